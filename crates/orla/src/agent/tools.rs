//! The tools that a model is offered, which of their calls need approval, and how it sees results.

use std::sync::Arc;

use genai::chat::{Tool, ToolCall};
use orla_marketplace::discovery::{self, Discovery};
use orla_marketplace::{ANNOTATIONS, Catalog, Entry, Outcome, Principal, RuntimeResult, program};
use serde::Deserialize;
use serde_json::Value;

use super::prompted::Prompted;
use crate::call_result::CallResult;
use crate::config::agent::Approve;

/// The capabilities that a model can call in one run, from one snapshot.
pub(crate) struct Tools {
    pub(crate) catalog: Arc<Catalog>,
    /// The listed capabilities, or those of discovery if the list is too long.
    pub(crate) offered: Vec<Tool>,
}

impl Tools {
    /// Returns the capabilities that this caller may call. A run must not start further runs, which
    /// would answer the same prompt again.
    pub(crate) fn of(catalog: Arc<Catalog>, most: usize, caller: Option<&Principal>) -> Self {
        let may_call = |entry: &&Arc<Entry>| {
            let is_run = entry.manifest.provider.settings::<Prompted>().is_ok();
            !is_run && catalog.permits(caller, entry).is_ok()
        };
        let listed: Vec<&Arc<Entry>> = catalog.offered().filter(may_call).collect();
        let offered = match listed.len() > most {
            false => listed.into_iter().filter_map(|entry| offer(entry)).collect(),
            true => {
                let ways = discovery::IDS.into_iter().chain(program::IDS);
                let entries = ways.filter_map(|id| catalog.get(id)).filter(may_call);
                entries.filter_map(|entry| offer(entry)).collect()
            }
        };
        Self { catalog, offered }
    }

    /// Returns whether a person has to approve a call.
    pub(crate) fn needs_approval(&self, approve: Approve, call: &ToolCall) -> bool {
        match approve {
            Approve::Never => false,
            Approve::Always => true,
            Approve::Destructive => self.may_destroy(call),
        }
    }

    /// Returns the scope of an approval for all such calls: the capability behind `capability_call`, not
    /// `capability_call` itself.
    pub(crate) fn name_of<'a>(&'a self, call: &'a ToolCall) -> &'a str {
        self.target(call).map_or(call.fn_name.as_str(), |entry| &*entry.name)
    }

    /// Returns the capability that is finally called, if it exists.
    pub(crate) fn target(&self, call: &ToolCall) -> Option<&Arc<Entry>> {
        let mut entry = self.catalog.get(&call.fn_name)?;
        let mut arguments = &call.fn_arguments;
        while let Ok(Discovery::Call) = entry.manifest.provider.settings::<Discovery>() {
            let inner = self.catalog.get(arguments["id"].as_str()?)?;
            (entry, arguments) = (inner, &arguments["input"]);
        }
        Some(entry)
    }

    /// Returns whether the capability declares, or leaves open, that it may be destructive. A call
    /// through `capability_call` is judged by its target.
    fn may_destroy(&self, call: &ToolCall) -> bool {
        let Some(entry) = self.target(call) else { return false };
        let annotations = entry.manifest.metadata.get(ANNOTATIONS).map_or("{}", String::as_str);
        let hints: Hints = serde_json::from_str(annotations).unwrap_or_default();
        hints.read_only_hint != Some(true) && hints.destructive_hint != Some(false)
    }
}

/// The MCP annotations about destructive calls. A missing annotation means that the call may be
/// destructive.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Hints {
    read_only_hint: Option<bool>,
    destructive_hint: Option<bool>,
}

fn offer(entry: &Entry) -> Option<Tool> {
    let schema: Value = serde_json::from_str(entry.input_schema().as_str()).ok()?;
    let tool = Tool::new(&*entry.name).with_schema(schema);
    Some(tool.with_description(entry.manifest.description.as_str()))
}

/// Returns the result of a call as the model sees it: its text, or else its value, and why it failed; at
/// most this many bytes.
pub(crate) fn result_text(result: &RuntimeResult<Outcome>, most: usize) -> String {
    let answer = CallResult::of(result);
    let text = answer.map_or_else(|err| format!("the result is malformed: {err}"), |one| one.text());
    cut(text, most)
}

fn cut(mut text: String, most: usize) -> String {
    if text.len() <= most {
        return text;
    }
    let end = text.floor_char_boundary(most);
    let rest = text.len() - end;
    text.truncate(end);
    text.push_str(&format!("\n[{rest} more bytes are left out]"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::App;
    use crate::config::Config;
    use serde_json::json;

    fn call(name: &str, arguments: Value) -> ToolCall {
        ToolCall {
            call_id: String::new(),
            fn_name: name.to_owned(),
            fn_arguments: arguments,
            thought_signatures: None,
        }
    }

    fn catalog() -> Arc<Catalog> {
        let dir = tempfile::tempdir().unwrap();
        let tools = dir.path().display();
        let config = Config::of(&format!("tools_dir: {tools}\nbuiltins: [math.*]\n")).unwrap();
        App::build(&config).unwrap().marketplace().snapshot()
    }

    #[test]
    fn listed_tools_are_offered_or_the_discovery_tools_if_there_are_too_many() {
        let catalog = catalog();
        let all = Tools::of(Arc::clone(&catalog), 1_000, None).offered;
        let add = all.iter().find(|tool| tool.name.as_str() == "math__add").unwrap();
        assert!(add.description.is_some());
        assert_eq!(add.schema.as_ref().unwrap()["type"], "object");
        let few: Vec<String> =
            Tools::of(catalog, 2, None).offered.iter().map(|tool| tool.name.to_string()).collect();
        let expected =
            ["capability_search", "capability_describe", "capability_call", "rtfs", "rtfs_check"];
        assert_eq!(few, expected);
    }

    #[test]
    fn a_call_is_judged_by_what_is_called_in_the_end() {
        let tools = Tools::of(catalog(), 1, None);
        let nested = json!({"id": "capability_call", "input": {"id": "rtfs", "input": {}}});
        for (name, arguments, expected) in [
            ("math__add", json!({}), false),
            ("math.add", json!({}), false),
            ("capability_search", json!({}), false),
            ("rtfs", json!({}), true),
            ("capability_call", json!({"id": "math.add"}), false),
            ("capability_call", json!({"id": "rtfs"}), true),
            ("capability_call", nested, true),
            ("capability_call", json!({}), false),
            ("nothing", json!({}), false),
        ] {
            let call = call(name, arguments);
            assert_eq!(tools.needs_approval(Approve::Destructive, &call), expected, "{call:?}");
            assert!(tools.needs_approval(Approve::Always, &call));
            assert!(!tools.needs_approval(Approve::Never, &call));
        }
        let through = call("capability_call", json!({"id": "rtfs"}));
        assert_eq!(tools.name_of(&through), "rtfs");
        assert_eq!(tools.name_of(&call("capability_call", json!({"id": "x"}))), "capability_call");
    }

    #[test]
    fn a_long_result_is_cut_between_characters_and_says_so() {
        assert_eq!(cut("abc".to_owned(), 3), "abc");
        assert_eq!(cut("aé€".to_owned(), 4), "aé\n[3 more bytes are left out]");
    }
}
