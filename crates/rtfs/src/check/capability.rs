//! Checks calls of capabilities against their schemas.

use super::Capability;
use super::clash::{clashes, meaning};
use super::parts::nearest_key;
use super::ty::{Detail, Place, Record, Ty, type_of};
use super::walk::Walker;
use crate::compiler::ir::Id;
use crate::kinds::Kinds;
use crate::syntax::Span;
use crate::types::TypeExpr;
use crate::value::Value;

impl Walker<'_> {
    /// `(call :id input options?)`
    pub(super) fn capability(&mut self, forms: &[Id], types: &[Ty], span: Span) -> Ty {
        let ([id, rest @ ..], Some(&id_form)) = (types, forms.first()) else { return Ty::ANY };
        if !id.is_never() && !id.kinds.meets(Kinds::NAME) {
            let message = format!("the id of a capability is a keyword or a string, got {}", id.shown());
            self.error("type", self.span(id_form), message);
            return Ty::ANY;
        }
        let id = match id.value() {
            Some(Value::Keyword(name)) => name.name().to_owned(),
            Some(Value::Str(name)) => name.as_str().to_owned(),
            _ => return Ty::ANY,
        };
        let Some(known) = self.state.capability(&id) else { return Ty::ANY };
        match &*known {
            Capability::Undisclosed => Ty::ANY,
            Capability::Unknown { similar } => {
                let hint =
                    similar.first().map_or(String::new(), |near| format!("; did you mean `:{near}`?"));
                let message = format!("there is no capability `{id}`{hint}");
                self.error("unknown-capability", self.span(id_form), message);
                Ty::ANY
            }
            Capability::Known { input, output } => {
                if let Some(wanted) = input {
                    self.input(&id, wanted, rest, forms, span);
                }
                let types = self.view.session.types();
                // Without a structured result, a call returns the text.
                let text = Ty::of(Kinds::STRING);
                output.as_ref().map_or(Ty::ANY, |output| type_of(output, types, Place::Output).or(&text))
            }
        }
    }

    /// Checks the input of a capability: one value, and then optional options. Positional arguments are
    /// not checked.
    fn input(&mut self, id: &str, wanted: &TypeExpr, given: &[Ty], forms: &[Id], span: Span) {
        let empty = || Ty::record(Record { fields: Vec::new(), closed: true });
        let (ty, at) = match given {
            [] => (empty(), span),
            [input] => (input.clone(), self.span(forms[1])),
            [input, options] if is_options(options) => (input.clone(), self.span(forms[1])),
            _ => return,
        };
        if ty.is_never() || ty.kinds.meets(Kinds::ORDERED) {
            return;
        }
        let types = self.view.session.types();
        let found = clashes(&ty, wanted, types, Place::Input, "input");
        if !found.is_empty() {
            let takes = takes(wanted).map_or(String::new(), |takes| format!("; it takes {takes}"));
            let message = format!("`{id}` cannot take this: {}{takes}", found.join("; "));
            self.error("invalid-input", at, message);
            return;
        }
        // An open map allows any key, but a key that is similar to a declared one is probably a mistake.
        let TypeExpr::Map(map) = meaning(wanted) else { return };
        let keys: Vec<Value> = match (ty.detail(), ty.value()) {
            (Some(Detail::Record(record)), _) => {
                record.fields.iter().map(|field| field.key.clone()).collect()
            }
            (_, Some(Value::Map(map))) => {
                map.iter().take(super::ty::MAX_PARTS).map(|entry| entry.0.clone()).collect()
            }
            _ => return,
        };
        for key in keys {
            if !map.fields.iter().any(|field| field.key == key)
                && let Some(near) = nearest_key(&key, map.fields.iter().map(|field| &field.key))
                && *near != key
                && matches!((&key, near), (Value::Keyword(_), Value::Keyword(_)))
            {
                let message = format!("`{id}` knows no input {key:?}; did you mean {near:?}?");
                self.state.warn("key", at, message);
            }
        }
    }
}

fn is_options(ty: &Ty) -> bool {
    let is_option = |key: &Value| matches!(key, Value::Keyword(name) if matches!(name.name(), "timeout-ms" | "retries"));
    match (ty.detail(), ty.value()) {
        (Some(Detail::Record(record)), _) => {
            record.closed
                && !record.fields.is_empty()
                && record.fields.iter().all(|field| is_option(&field.key))
        }
        (_, Some(Value::Map(map))) => !map.is_empty() && map.iter().all(|(key, _)| is_option(key)),
        _ => false,
    }
}

/// Returns `{:city :string, :days :int?}`, if the input is a map.
fn takes(wanted: &TypeExpr) -> Option<String> {
    const MOST: usize = 20;
    let TypeExpr::Map(map) = meaning(wanted) else { return None };
    let shown = map.fields.iter().take(MOST).map(|field| {
        let optional = if field.optional { " ?" } else { "" };
        format!("{:?} {}{optional}", field.key, meaning(&field.ty))
    });
    let mut shown: Vec<_> = shown.collect();
    if map.fields.len() > MOST {
        shown.push("…".to_owned());
    }
    Some(format!("{{{}}}", shown.join(", ")))
}
