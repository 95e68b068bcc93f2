//! Converts a server's messages about its tools and their results to the marketplace's types. Pure
//! functions. Data that is only passed on is neither parsed nor copied.

use std::borrow::Cow;
use std::collections::HashSet;

use orla_marketplace::{
    JsonText, LogLevel, LogText, Notice, Outcome, Payload, Progress, SurfaceNotice, TaskSupport,
    meant_hint,
};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::object::Object;
use super::scan;

/// A tool in the form of `tools/list`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedTool {
    /// The server's name for it.
    pub name: String,
    /// The title for users.
    pub title: Option<String>,
    /// The description.
    pub description: Option<String>,
    /// The input schema.
    pub input_schema: Option<Value>,
    /// The output schema.
    pub output_schema: Option<Value>,
    /// Annotations.
    pub annotations: Option<Value>,
    /// The execution settings (2025-11-25).
    pub execution: Option<Value>,
    /// The other members of the object, such as `icons` and `_meta`.
    #[serde(skip)]
    pub more: Option<JsonText>,
}

impl ListedTool {
    /// Parses one tool.
    fn read(text: &str) -> Option<Self> {
        const KNOWN: [&str; 7] =
            ["name", "title", "description", "inputSchema", "outputSchema", "annotations", "execution"];
        let mut tool: Self = serde_json::from_str(text).ok()?;
        let mut rest = Object::parse(text)?;
        KNOWN.iter().for_each(|known| rest.remove(known));
        tool.more = rest.members().next().is_some().then(|| rest.to_json());
        Some(tool)
    }
}

impl ListedTool {
    /// Returns whether the server declares that the tool is called as a task.
    pub fn task_support(&self) -> Option<TaskSupport> {
        TaskSupport::parse(self.execution.as_ref()?.get("taskSupport")?.as_str()?)
    }
}

/// One page of `tools/list`.
#[derive(Debug, Default)]
pub struct ToolPage {
    /// The valid tools of the page.
    pub tools: Vec<ListedTool>,
    /// The number of invalid tools.
    pub left_out: usize,
    /// The cursor of the next page, if there is one.
    pub next_cursor: Option<String>,
}

impl ToolPage {
    /// Parses the result of `tools/list`.
    ///
    /// # Errors
    /// What is wrong with the page as a whole.
    pub fn read(result: &JsonText) -> Result<Self, String> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Page<'a> {
            #[serde(borrow)]
            tools: Vec<&'a RawValue>,
            next_cursor: Option<String>,
        }
        let page: Page<'_> = serde_json::from_str(result.as_str()).map_err(|err| err.to_string())?;
        let listed = page.tools.len();
        let tools: Vec<ListedTool> =
            page.tools.iter().filter_map(|tool| ListedTool::read(tool.get())).collect();
        Ok(Self { left_out: listed - tools.len(), tools, next_cursor: page.next_cursor })
    }
}

/// Removes tools with the name of an earlier tool.
pub fn leave_out_duplicates(server: &str, tools: &mut Vec<ListedTool>) {
    let (mut seen, mut again) = (HashSet::new(), None);
    let listed = tools.len();
    tools.retain(|tool| {
        let is_new = seen.insert(tool.name.clone());
        if !is_new {
            again.get_or_insert_with(|| tool.name.clone());
        }
        is_new
    });
    if let Some(tool) = again {
        let more = listed - tools.len() - 1;
        tracing::warn!(server, tool, more, "a tool is listed twice, and counts once");
    }
}

/// Warns of misspelt hints, which rules of `approve` do not see.
pub fn warn_of_misspelt_hints(server: &str, tools: &[ListedTool]) {
    for (tool, annotation, meant) in misspelt_hints(tools) {
        tracing::warn!(server, tool, annotation, "unknown annotation, did you mean {meant}?");
    }
}

/// Returns the misspelt hints of tools, each with the name of its tool and the name that is meant.
fn misspelt_hints(tools: &[ListedTool]) -> impl Iterator<Item = (&str, &str, &'static str)> {
    tools.iter().flat_map(|tool| {
        let annotations = tool.annotations.as_ref().and_then(Value::as_object);
        let names = annotations.into_iter().flat_map(Map::keys);
        names.filter_map(|name| Some((&*tool.name, &**name, meant_hint(name)?)))
    })
}

/// The features that a server offers, according to its answer to `initialize`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offers {
    /// Tools.
    pub tools: bool,
    /// Resources and their templates.
    pub resources: bool,
    /// Subscriptions to resources.
    pub subscriptions: bool,
    /// Prompts.
    pub prompts: bool,
    /// Completion of arguments.
    pub completions: bool,
    /// Messages for the caller's log.
    pub logging: bool,
}

impl Offers {
    /// All features.
    pub const ALL: Self = Self {
        tools: true,
        resources: true,
        subscriptions: true,
        prompts: true,
        completions: true,
        logging: true,
    };

    /// Parses the result of `initialize` or `server/discover`. Any value of a member counts as the
    /// offer.
    pub fn read(result: &JsonText) -> Option<Self> {
        let result: Map<String, Value> = serde_json::from_str(result.as_str()).ok()?;
        let capabilities = result.get("capabilities");
        let get =
            |offer: &str| capabilities.and_then(|all| all.get(offer)).filter(|offer| !offer.is_null());
        let subscribe = get("resources").and_then(|resources| resources.get("subscribe"));
        Some(Self {
            tools: get("tools").is_some(),
            resources: get("resources").is_some(),
            subscriptions: subscribe == Some(&Value::Bool(true)),
            prompts: get("prompts").is_some(),
            completions: get("completions").is_some(),
            logging: get("logging").is_some(),
        })
    }
}

/// The type of a result that asks for input.
pub const INPUT_REQUIRED: &str = "input_required";

/// The result of a tool.
#[derive(Debug)]
pub enum ToolResult {
    /// A success.
    Success(Outcome),
    /// An error result.
    Failure(Outcome),
    /// The tool requires input before it can continue (2026-07-28).
    Asks,
}

/// Parses the result of `tools/call`. A result that is not in MCP's form is a plain value.
///
/// # Errors
/// What is wrong with a result in MCP's form.
pub fn tool_result(result: &JsonText) -> Result<ToolResult, String> {
    let mut outcome = Outcome::default();
    for (key, range) in scan::members(result.bytes()) {
        let part = || result.part(range.clone()).filter(|part| part.bytes() != &b"null"[..]);
        match key {
            b"content" => outcome.content = part(),
            b"structuredContent" => outcome.structured = part().map(Payload::from_json),
            b"_meta" => outcome.meta = part().filter(|meta| meta.bytes().starts_with(b"{")),
            b"isError" => {
                let Some(flag) = part() else { continue };
                outcome.is_error = match &flag.bytes()[..] {
                    b"true" => Some(true),
                    b"false" => Some(false),
                    _ => return Err("isError is neither true nor false".to_owned()),
                };
            }
            b"resultType" if part().is_some_and(|kind| is_text(&kind, INPUT_REQUIRED)) => {
                return Ok(ToolResult::Asks);
            }
            _ => {}
        }
    }
    if outcome.content.is_none() && outcome.structured.is_none() && outcome.is_error.is_none() {
        let value = Some(Payload::from_json(result.clone()));
        return Ok(ToolResult::Success(Outcome { structured: value, ..Outcome::default() }));
    }
    if let Some(content) = outcome.content.as_ref().filter(|content| !content.bytes().starts_with(b"["))
    {
        let shown: String = content.as_str().chars().take(40).collect();
        return Err(format!("content is not a list of blocks: {shown}"));
    }
    Ok(match outcome.is_error {
        Some(true) => ToolResult::Failure(outcome),
        _ => ToolResult::Success(outcome),
    })
}

fn is_text(json: &JsonText, text: &str) -> bool {
    serde_json::from_str::<Cow<'_, str>>(json.as_str()).is_ok_and(|read| read == text)
}

/// The meaning of a server's notification.
#[derive(Debug, PartialEq)]
pub enum ServerNotification {
    /// A notice for the caller of the request with this progress token, which is the request's id.
    Progress(u64, Notice),
    /// A log message for the caller.
    Log(LogLevel, LogText),
    /// The list of tools has changed.
    ToolsChanged,
    /// A list other than that of tools, or a resource, has changed.
    Surface(SurfaceNotice),
    /// A notification that is not relayed.
    Nothing,
}

/// Parses a notification.
pub fn notification(method: &str, params: Option<&JsonText>) -> ServerNotification {
    let read = match (method, params) {
        ("notifications/progress", Some(params)) => {
            progress(params).map(|(token, notice)| ServerNotification::Progress(token, notice))
        }
        ("notifications/message", Some(params)) => {
            log(params).map(|(level, message)| ServerNotification::Log(level, message))
        }
        ("notifications/tools/list_changed", _) => Some(ServerNotification::ToolsChanged),
        ("notifications/prompts/list_changed", _) => {
            Some(ServerNotification::Surface(SurfaceNotice::PromptsChanged))
        }
        ("notifications/resources/list_changed", _) => {
            Some(ServerNotification::Surface(SurfaceNotice::ResourcesChanged))
        }
        ("notifications/resources/updated", Some(params)) => {
            uri(params).map(|uri| ServerNotification::Surface(SurfaceNotice::ResourceUpdated { uri }))
        }
        _ => None,
    };
    read.unwrap_or(ServerNotification::Nothing)
}

/// Parses `notifications/progress`: the token, which is a request's id, and the notice.
fn progress(params: &JsonText) -> Option<(u64, Notice)> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Params {
        progress_token: u64,
        progress: f64,
        total: Option<f64>,
        message: Option<String>,
    }
    let Params { progress_token, progress, total, message } =
        serde_json::from_str(params.as_str()).ok()?;
    Some((progress_token, Notice::Progress(Progress { progress, total, message })))
}

/// Parses `notifications/resources/updated`.
fn uri(params: &JsonText) -> Option<String> {
    #[derive(Deserialize)]
    struct Params {
        uri: String,
    }
    serde_json::from_str(params.as_str()).ok().map(|Params { uri }| uri)
}

/// Returns the id of the call that a capsule's own request belongs to, if the request names it.
pub fn call_of(params: &JsonText) -> Option<u64> {
    #[derive(Deserialize)]
    struct Params {
        #[serde(rename = "_meta")]
        meta: Meta,
    }
    #[derive(Deserialize)]
    struct Meta {
        #[serde(rename = "orla/call")]
        call: u64,
    }
    serde_json::from_str(params.as_str()).ok().map(|Params { meta }| meta.call)
}

/// Parses `notifications/message`.
fn log(params: &JsonText) -> Option<(LogLevel, LogText)> {
    #[derive(Deserialize)]
    struct Params<'a> {
        level: String,
        logger: Option<Value>,
        #[serde(borrow)]
        data: Option<&'a RawValue>,
    }
    let Params { level, logger, data } = serde_json::from_str(params.as_str()).ok()?;
    let data = JsonText::from(data.unwrap_or(RawValue::NULL).to_owned());
    let logger = logger.and_then(|logger| logger.as_str().map(str::to_owned));
    Some((level.parse().ok()?, LogText::sent(logger, data)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> JsonText {
        JsonText::parse(text.to_owned()).unwrap()
    }

    #[test]
    fn misspelt_hints_are_named_with_their_tools() {
        let page = json(
            r#"{"tools": [{"name": "rm", "annotations": {"destructivHint": true, "title": "x", "mine": 1}},
                {"name": "ls", "annotations": {"readOnlyHint": true}}, {"name": "ps"}]}"#,
        );
        let tools = ToolPage::read(&page).unwrap().tools;
        let found: Vec<_> = misspelt_hints(&tools).collect();
        assert_eq!(found, [("rm", "destructivHint", "destructiveHint")]);
    }

    fn shown(text: &str) -> String {
        let parts = |outcome: Outcome| {
            let structured = outcome.structured.map(|value| value.json().unwrap().clone());
            let part = |name: &str, text: Option<JsonText>| {
                text.map(|text| format!(" {name}={text}")).unwrap_or_default()
            };
            part("structured", structured)
                + &part("content", outcome.content)
                + &part("meta", outcome.meta)
        };
        match tool_result(&json(text)) {
            Ok(ToolResult::Success(outcome)) => format!("ok{}", parts(outcome)),
            Ok(ToolResult::Failure(outcome)) => format!("failed{}", parts(outcome)),
            Ok(ToolResult::Asks) => "asks".to_owned(),
            Err(problem) => format!("broken: {problem}"),
        }
    }

    #[test]
    fn a_result_comes_out_as_it_went_in() {
        let cases = [
            (
                r#"{"content":[{"type":"text","text":"a"}, {"type":"image","data":"aGk="}],"structuredContent":{"x":1.10},"_meta":{"k":"v"}}"#,
                r#"ok structured={"x":1.10} content=[{"type":"text","text":"a"}, {"type":"image","data":"aGk="}] meta={"k":"v"}"#,
            ),
            (r#"{"content":[]}"#, "ok content=[]"),
            (r#"{"content":[],"isError":false}"#, "ok content=[]"),
            (r#"{"sum":3}"#, r#"ok structured={"sum":3}"#),
            ("7", "ok structured=7"),
            (r#"{"content":"text"}"#, "broken: content is not a list of blocks: \"text\""),
            (
                r#"{"content":[{"type":"text","text":"bad"}],"isError":true}"#,
                r#"failed content=[{"type":"text","text":"bad"}]"#,
            ),
            (r#"{"isError":true}"#, "failed"),
            (r#"{"resultType":"input_required","inputRequests":{}}"#, "asks"),
            (r#"{"resultType":"complete","content":[]}"#, "ok content=[]"),
        ];
        for (text, expected) in cases {
            assert_eq!(shown(text), expected, "{text}");
        }
    }

    #[test]
    fn notices_are_read() {
        let (token, notice) =
            progress(&json(r#"{"progressToken":7,"progress":1,"total":3,"message":"m"}"#)).unwrap();
        let expected = Progress { progress: 1.0, total: Some(3.0), message: Some("m".into()) };
        assert_eq!((token, notice), (7, Notice::Progress(expected)));
        assert_eq!(progress(&json(r#"{"progressToken":"x","progress":1}"#)), None);
        for (logger, data, text) in [
            (None, r#""hm""#, "hm"),
            (Some("L"), r#"{"a":1.10}"#, r#"{"a":1.10}"#),
            (None, "null", "null"),
        ] {
            let logged = logger.map_or(String::new(), |logger| format!(r#","logger":"{logger}""#));
            let sent = json(&format!(r#"{{"level":"warning","data":{data}{logged}}}"#));
            let (level, message) = log(&sent).unwrap();
            assert_eq!((level, &*message), (LogLevel::Warning, text));
            let sent = message.as_sent().unwrap();
            assert_eq!((sent.logger.as_deref(), sent.data.as_str()), (logger, data));
        }
        assert_eq!(log(&json(r#"{"level":"loud","data":1}"#)), None);
    }

    #[test]
    fn offers_and_tools_are_read() {
        let read = |text: &str| Offers::read(&json(text));
        let offers = Offers { tools: true, prompts: true, ..Offers::default() };
        assert_eq!(
            read(r#"{"capabilities":{"tools":{"listChanged":true},"prompts":{},"resources":null}}"#),
            Some(offers)
        );
        let offers = Offers { resources: true, subscriptions: true, ..Offers::default() };
        assert_eq!(read(r#"{"capabilities":{"resources":{"subscribe":true}}}"#), Some(offers));
        assert_eq!((read("{}"), read("[]")), (Some(Offers::default()), None));
        let page = |text: &str| ToolPage::read(&json(text));
        let read =
            page(r#"{"tools":[{"name":"a","inputSchema":{"type":"object"}},{"name":7},3],"x":1}"#)
                .unwrap();
        assert_eq!((read.tools[0].name.as_str(), read.tools.len(), read.left_out), ("a", 1, 2));
        assert_eq!(read.tools[0].more, None);
        let more = r#"{"tools":[{"name":"a","icons":[1],"x":{"n": 1.10},"title":"A"}]}"#;
        let more = page(more).unwrap().tools.remove(0).more.unwrap();
        assert_eq!(more.as_str(), r#"{"icons":[1],"x":{"n": 1.10}}"#);
        assert_eq!(page(r#"{"tools":[],"nextCursor":"n"}"#).unwrap().next_cursor.as_deref(), Some("n"));
        assert!(page(r#"{"tools":7}"#).is_err() && page("[]").is_err());
    }
}
