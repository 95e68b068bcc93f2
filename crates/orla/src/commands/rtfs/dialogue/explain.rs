//! `:doc` and `:type`: the documentation of a name, and the type of an expression.

use std::sync::Arc;

use orla_marketplace::discovery;
use orla_marketplace::program::QUOTA;
use orla_marketplace::rtfs::{
    Event, Global, Limits, Outcome, Position, Program, Request, Run, Source as Text, documentation, read,
};

use super::{Dialogue, LAST};

/// Steps that finding a type may take.
const MAX_STEPS: u64 = 5_000_000;

impl Dialogue<'_> {
    /// Returns the documentation of a name.
    pub(super) fn doc(&self, name: &str) -> String {
        let id = name.trim_start_matches(':').trim_matches('"');
        if !name.starts_with(':') {
            if let Some(global) = self.global(name) {
                let head = signature(global);
                return match &global.doc {
                    Some(doc) => format!("{head}\n{doc}"),
                    None => head,
                };
            }
            if let Some(known) = documentation(name) {
                return format!("{}\n{}", known.usage(name), known.text);
            }
        }
        let Some(entry) = self.session.app.marketplace().get(id) else {
            return format!("nothing is called {name}; :find WORDS searches for capabilities");
        };
        let described = discovery::description(&entry);
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let mut lines = vec![
            format!(":{} ({})", entry.manifest.id, text(&described["kind"])),
            entry.manifest.description.clone(),
        ];
        for side in ["input", "output"] {
            let ty = text(&described[side]["type"]);
            if !ty.is_empty() {
                lines.push(format!("  {side:<6}  {ty}"));
            }
        }
        // The description of each parameter, if the schema has one.
        let properties = described["input"]["json_schema"]["properties"].as_object();
        for (name, schema) in properties.into_iter().flatten() {
            if let Some(about) = schema["description"].as_str() {
                lines.push(format!("  :{name:<7} {about}"));
            }
        }
        lines.push(format!("  example {}", text(&described["example"]["rtfs"])));
        lines.join("\n")
    }

    /// Returns the type of an expression. It calls nothing and changes no definition.
    pub(super) async fn type_of(&self, text: &str) -> Result<String, String> {
        let text = text.trim();
        if let Some(global) = self.global(text)
            && !global.params.is_empty()
        {
            return Ok(signature(global));
        }
        if self.global(text).is_none()
            && let Some(known) = documentation(text)
        {
            return Ok(known.usage(text));
        }
        if let Some(id) = text.strip_prefix(':')
            && let Some((input, output)) = self.types_of(id)
        {
            return Ok(format!("[:fn [{input}] {output}]"));
        }
        let program = self.compiled(&Text::new("", format!("(type-of (do\n{text}\n))")), None)?;
        let limits = Limits { steps: MAX_STEPS.min(self.session.limits.steps), ..self.session.limits };
        let mut run = match &self.before {
            Some((_, before)) => Run::beside(program, limits, before),
            None => Run::new(program, limits, &[]),
        };
        for (name, value) in LAST.into_iter().zip(&self.last) {
            run.give(name, value.clone());
        }
        loop {
            match run.advance(QUOTA) {
                Outcome::Done(value) => return Ok(value.pr_str()),
                Outcome::Failed(error) => return Err(error.report()),
                Outcome::Yielded => tokio::task::yield_now().await,
                Outcome::Waiting => return self.type_of_what_is_asked(text, run.events().next_back()),
            }
        }
    }

    /// Returns the type of an expression that makes this call before it has a value.
    fn type_of_what_is_asked(&self, text: &str, asked: Option<Event>) -> Result<String, String> {
        let Some(Event::Request { request: Request::Call { id, .. }, at, .. }) = asked else {
            return Err("that depends on what the host answers".to_owned());
        };
        let is_all = at == Some(Position { line: 2, column: 1 })
            && read(&Text::new("", text)).is_ok_and(|forms| forms.len() == 1);
        match self.types_of(&id.to_string()) {
            Some((_, output)) if is_all => Ok(output),
            _ => Err(format!("that depends on what :{id} gives, and :type calls nothing")),
        }
    }

    /// Returns the input and output of a capability.
    fn types_of(&self, id: &str) -> Option<(String, String)> {
        let described = discovery::description(&*self.session.app.marketplace().get(id)?);
        let of = |side: &str| described[side]["type"].as_str().unwrap_or(":any").to_owned();
        Some((of("input"), of("output")))
    }

    fn global(&self, name: &str) -> Option<&Global> {
        let program: &Arc<Program> = &self.before.as_ref()?.0;
        program.globals().iter().rfind(|global| &*global.name == name)
    }
}

fn signature(global: &Global) -> String {
    match global.params.join(" ").as_str() {
        "" => global.name.to_string(),
        params => format!("({} {params})", global.name),
    }
}
