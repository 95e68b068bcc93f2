//! Checks the calls of schedules and programs: whether the capability exists, and whether it accepts the
//! input.
//!
//! A capability that only a provider knows that was not asked may still appear, and causes no message.

use std::sync::Arc;

use orla_document::Position;
use orla_marketplace::Catalog;
use orla_marketplace::program::file::ProgramFile;
use orla_marketplace::rtfs::{
    Capability, Diagnostic, Options, Severity, Signatures, Source as Text, check as check_program,
};
use orla_providers::tool::Finding;
use orla_tasks::Schedule;
use serde_json::Value;

use crate::app::App;
use crate::config::Config;
use crate::findings::Findings;
use crate::programs;

/// Adds calls that can never succeed to the problems, and questionable calls of programs to the
/// warnings.
pub(super) fn check(config: &Config, app: &App, findings: &mut Findings) {
    let catalog = app.marketplace().snapshot();
    let known = Known { catalog: Arc::clone(&catalog), may_be_served: Box::new(app.may_be_served()) };
    let known = Arc::new(known);
    let owned = config.owned_schedules();
    for (index, (placed, schedule)) in config.schedules.iter().zip(&owned).enumerate() {
        for (key, problem, is_error) in known.of_schedule(schedule) {
            let text = config.placed(placed.at, format!("tasks[{index}].{key}: {problem}"));
            let list = if is_error { &mut findings.problems } else { &mut findings.warnings };
            list.push(text);
        }
    }
    for entry in catalog.entries() {
        let Ok(file) = entry.manifest.provider.settings::<ProgramFile>() else { continue };
        // An unreadable file has already been reported.
        let Ok(text) = programs::read(file.path()) else { continue };
        let text = Text::new(file.path().to_string_lossy(), text);
        let modules = Some(programs::modules_beside(file.path().parent()));
        for found in known.of_program(&text, &Options { modules, ..Options::default() }) {
            let (line, column) = (found.position.line as usize, found.position.column as usize);
            let (path, at) = (found.source.into(), Some(Position { line, column }));
            let text = Finding { path, at, message: found.message }.to_string();
            let list = match found.severity {
                Severity::Error => &mut findings.problems,
                Severity::Warning => &mut findings.warnings,
            };
            if !list.contains(&text) {
                list.push(text);
            }
        }
    }
}

/// The served capabilities, and those that a provider that was not asked may serve.
struct Known {
    catalog: Arc<Catalog>,
    may_be_served: Box<dyn Fn(&str) -> bool + Send + Sync>,
}

impl Known {
    /// Returns the problems of a schedule, each with its key, and whether its task can never succeed.
    fn of_schedule(self: &Arc<Self>, schedule: &Schedule) -> Vec<(&'static str, String, bool)> {
        if schedule.is_program {
            let input: Value = serde_json::from_str(schedule.input.as_str()).unwrap_or_default();
            let text = Text::new("", input["program"].as_str().unwrap_or_default());
            let options = Options { inputs: vec!["input".to_owned()], ..Options::default() };
            let found = self.of_program(&text, &options).into_iter();
            return found
                .map(|found| {
                    let is_error = found.severity == Severity::Error;
                    let at = found.position;
                    ("program", format!("{}:{}: {}", at.line, at.column, found.message), is_error)
                })
                .collect();
        }
        let name = &schedule.capability;
        let Some(entry) = self.catalog.get(name) else {
            if (self.may_be_served)(name) {
                return Vec::new();
            }
            let near = self.similar(name).into_iter().next();
            let hint = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
            return vec![("capability", format!("there is no capability {name}{hint}"), true)];
        };
        if let Err(denial) = self.catalog.permits(schedule.owner.as_ref(), entry) {
            let needed = denial.permission;
            let text = format!("the policy denies {name} to the schedule: it needs {needed}");
            return vec![("capability", text, true)];
        }
        let checked = entry.check_input(&schedule.input).err();
        checked.map(|err| ("input", err.to_string(), true)).into_iter().collect()
    }

    fn of_program(self: &Arc<Self>, text: &Text, options: &Options) -> Vec<Diagnostic> {
        let signatures: Arc<dyn Signatures> = Arc::clone(self) as Arc<dyn Signatures>;
        check_program(text, options, Some(signatures))
    }

    /// Ids that are like one.
    fn similar(&self, id: &str) -> Vec<String> {
        let id_of =
            |name: String| self.catalog.get(&name).map_or(name, |entry| entry.manifest.id.clone());
        self.catalog.similar(id).into_iter().map(id_of).collect()
    }
}

impl Signatures for Known {
    fn capability(&self, id: &str) -> Capability {
        match self.catalog.get(id) {
            Some(entry) => Capability::Known {
                input: entry.manifest.input_schema.clone(),
                output: entry.manifest.output_schema.clone(),
            },
            None if (self.may_be_served)(id) => Capability::Undisclosed,
            None => Capability::Unknown { similar: self.similar(id) },
        }
    }
}
