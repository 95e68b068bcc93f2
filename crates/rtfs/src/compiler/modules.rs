//! `(module my.mod (:exports [f g]) …)` and `(import my.mod :as m)`

use super::ir::{Id, Ir};
use super::lower::Lower;
use super::{Module, Unit};
use crate::syntax::{Kind, NodeId, Source, Tree};
use crate::value::Value;

impl Lower<'_> {
    /// Returns the forms of a module that is part of this text.
    pub(super) fn module(&mut self, node: NodeId, args: &[NodeId]) -> Id {
        let span = self.tree.span(node);
        let Some((name, exports, body)) = self.module_head(args) else {
            return self.fail(node, "`module` takes a name: (module my.mod (:exports [f]) …)");
        };
        if !self.at_top() || !self.prefix.is_empty() {
            return self.fail(node, "`module` stands at the top level only");
        }
        if self.session.modules.insert(name.clone(), Module { exports }).is_some() {
            return self.fail(node, format!("there is a module `{name}` already"));
        }
        self.prefix = format!("{name}/");
        let outer = (std::mem::take(&mut self.aliases), std::mem::take(&mut self.imported));
        self.scan(&body);
        let mut ids = self.exprs(&body);
        (self.aliases, self.imported) = outer;
        self.prefix.clear();
        self.check_exports(node, &name);
        ids.push(self.nil(span));
        self.add(Ir::Do(ids), span)
    }

    fn module_head(&self, args: &[NodeId]) -> Option<(String, Option<Vec<String>>, Vec<NodeId>)> {
        let (&name, mut body) = args.split_first()?;
        let name = self.tree.symbol(name).or(self.tree.keyword(name))?.to_owned();
        let mut exports = None;
        if let Some((&clause, rest)) = body.split_first()
            && let [head, names] = self.tree.kids(clause)
            && matches!(self.tree.keyword(*head), Some("exports" | "export"))
        {
            let names = self.tree.forms(*names);
            exports = Some(
                names.iter().filter_map(|&name| self.tree.symbol(name).map(str::to_owned)).collect(),
            );
            body = rest;
        }
        Some((name, exports, body.to_vec()))
    }

    fn check_exports(&mut self, node: NodeId, module: &str) {
        let exports =
            self.session.modules.get(module).and_then(|known| known.exports.clone()).unwrap_or_default();
        for name in exports {
            let full = format!("{module}/{name}");
            if !self.session.by_name.contains_key(&full) && !self.session.macros.contains_key(&full) {
                self.fail(node, format!("`{module}` exports `{name}`, which it does not define"));
            }
        }
    }

    /// `(import my.mod :as m)`, `(import my.mod :only [f])`
    pub(super) fn import(&mut self, node: NodeId, args: &[NodeId]) -> Id {
        let span = self.tree.span(node);
        let Some((&name_node, options)) = args.split_first() else {
            return self.fail(node, "`import` takes the name of a module: (import my.mod :as m)");
        };
        let Some(name) = self.tree.symbol(name_node).or(self.tree.keyword(name_node)).map(str::to_owned)
        else {
            return self.fail(name_node, "the name of a module is expected here");
        };
        if !self.at_top() {
            return self.fail(node, "`import` stands inside of a function");
        }
        let mut ids = Vec::new();
        let is_loading = self.session.loading.contains(&name);
        if is_loading || !self.session.modules.contains_key(&name) {
            match self.load(&name) {
                Ok(entry) => ids.push(self.add(Ir::CallCode(entry, Vec::new()), span)),
                Err(message) => return self.fail(node, message),
            }
        }
        self.aliases.insert(name.clone(), name.clone());
        for option in options.chunks(2) {
            match (self.tree.keyword(option[0]), option.get(1)) {
                (Some("as"), Some(&alias)) => match self.tree.symbol(alias).map(str::to_owned) {
                    Some(alias) => {
                        self.aliases.insert(alias, name.clone());
                    }
                    None => return self.fail(alias, "a name is expected after `:as`"),
                },
                (Some("only"), Some(&only)) if self.tree.kind(only) == Kind::Vector => {
                    for item in self.tree.forms(only) {
                        let Some(wanted) = self.tree.symbol(item).map(str::to_owned) else { continue };
                        match (
                            self.session.export(&name, &wanted),
                            self.session.exported_macro(&name, &wanted),
                        ) {
                            (Some(global), _) => {
                                self.imported.insert(wanted, global);
                            }
                            (None, Some(known)) => {
                                let known = known.clone();
                                self.macros.insert(wanted, known);
                            }
                            (None, None) => {
                                self.fail(item, format!("`{name}` does not export `{wanted}`"));
                            }
                        }
                    }
                }
                _ => return self.fail(option[0], "`:as name` or `:only [names]` is expected here"),
            }
        }
        ids.push(self.constant(Value::Nil, span));
        self.add(Ir::Do(ids), span)
    }

    /// Compiles a module whose text the host supplies, and returns the code that defines its names.
    fn load(&mut self, name: &str) -> Result<u32, String> {
        if self.session.loading.iter().any(|known| known == name) {
            let cycle = self.session.loading.join("` imports `");
            return Err(format!("modules import each other: `{cycle}` imports `{name}`"));
        }
        let text = self.session.options.modules.as_ref().and_then(|modules| modules(name));
        let Some(text) = text else { return Err(format!("there is no module `{name}`")) };
        let tree = Tree::read(Source::new(name, text)).map_err(|errors| errors.to_string())?;
        self.session.loading.push(name.to_owned());
        if let Some(checking) = &mut self.session.checking {
            checking.enter_module();
        }
        let mut unit = Unit::new(self.session, tree);
        // The text is one `(module …)`, or only definitions.
        let roots = unit.lower.tree.roots.clone();
        let says_module = roots.len() == 1
            && unit
                .lower
                .tree
                .kids(roots[0])
                .first()
                .is_some_and(|&head| unit.lower.tree.is_symbol(head, "module"));
        if !says_module {
            unit.lower.prefix = format!("{name}/");
            unit.lower.session.modules.insert(name.to_owned(), Module { exports: None });
        }
        let entry = unit.compile(&roots);
        let (_, _, errors) = unit.take_back();
        self.session.loading.pop();
        if let Some(checking) = &mut self.session.checking {
            checking.leave_module();
        }
        if !errors.is_empty() {
            return Err(crate::Diagnostics(errors).to_string());
        }
        if !self.session.modules.contains_key(name) {
            return Err(format!("the text of `{name}` defines another module"));
        }
        Ok(entry)
    }
}
