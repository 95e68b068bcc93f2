//! Prompts: Markdown files that clients offer to people (RFC 1 §9.1, "prompt to tool execution flow").
//!
//! Every `*.md` file directly in `prompts_dir` is a prompt, named after the file, except `README.md` and hidden
//! files. A front matter may say more:
//!
//! ```text
//! ---
//! description: Reviews a file
//! arguments:
//!   - name: path
//!     required: true
//!   - name: tone
//!     values: [kind, strict]
//! tools: [read_file]
//! ---
//! Review {{path}}. Be {{tone}}.
//! ```
//!
//! # How it works
//!
//! [`load`] reads the directory, [`parse()`] makes a [`Prompt`] of a text, [`Prompt::render`] fills in the
//! arguments; the last two are pure. [`Prompts`] is the [`Surface`] that serves them.
//!
//! # Bounds
//!
//! 1,000 prompts of 256 KiB each; a rendered prompt of 4 MiB.

mod parse;

use std::collections::HashSet;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use orla_document::Position;
use orla_marketplace::id::{mcp_name, unused};
use orla_marketplace::rtfs::text::nearest;
use orla_marketplace::{CallContext, Item, JsonText, Principal, Subject, Surface, SurfaceError};
use serde_json::{Map, Value, json};

use crate::config::{Problem, reason};
use parse::{Part, parse};

const MAX_FILE: u64 = 256 * 1024;
const MAX_PROMPTS: usize = 1000;
const MAX_RENDERED: usize = 4 * 1024 * 1024;
/// Characters of a name that does not exist that an error repeats.
const SHOWN: usize = 200;
/// MCP's own bound for one answer of completion.
const MAX_COMPLETIONS: usize = 100;

/// One prompt.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Prompt {
    pub(crate) name: String,
    pub(crate) title: Option<String>,
    pub(crate) description: String,
    pub(crate) arguments: Vec<Argument>,
    /// Names of the tools it uses, with their places.
    pub(crate) tools: Vec<(String, Position)>,
    parts: Vec<Part>,
    pub(crate) path: PathBuf,
}

/// One argument of a prompt.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Argument {
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    pub(crate) required: bool,
    /// The values that completion offers.
    pub(crate) values: Vec<String>,
}

/// The prompts of a directory, and their problems.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    pub(crate) prompts: Vec<Prompt>,
    pub(crate) problems: Vec<Problem>,
    /// The reason why the directory cannot be read.
    pub(crate) unread: Option<String>,
}

/// Reads the prompts of a directory, in the order of their names. A missing directory is a problem only if it was
/// configured.
pub(crate) fn load(dir: &Path, asked_for: bool) -> Loaded {
    let mut loaded = Loaded::default();
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(err) if err.kind() == std::io::ErrorKind::NotFound && !asked_for => return loaded,
        Err(err) => {
            let text = format!("prompts_dir: {} cannot be read: {}", dir.display(), reason(&err));
            return Loaded { unread: Some(text), ..loaded };
        }
    };
    let mut paths: Vec<PathBuf> = entries
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(|path| is_prompt(path))
        .collect();
    paths.sort();
    if paths.len() > MAX_PROMPTS {
        let text = format!("{} has {} prompts: {MAX_PROMPTS} are served", dir.display(), paths.len());
        loaded.problems.push(Problem::new(text));
        paths.truncate(MAX_PROMPTS);
    }
    let mut taken = HashSet::new();
    for path in paths {
        let text = match read(&path) {
            Ok(Some(text)) => text,
            Ok(None) => continue,
            Err(problem) => {
                loaded.problems.push(problem);
                continue;
            }
        };
        let name = unused(&name_of(&path), |name| taken.contains(name));
        taken.insert(name.clone());
        let (prompt, problems) = parse(&name, &path, &text);
        loaded.problems.extend(problems);
        loaded.prompts.extend(prompt);
    }
    loaded.prompts.sort_by(|a, b| a.name.cmp(&b.name));
    loaded
}

fn is_prompt(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.to_ascii_lowercase().ends_with(".md")
        && !name.starts_with('.')
        && !name.eq_ignore_ascii_case("readme.md")
}

fn name_of(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    mcp_name(&stem.replace('.', "_"))
}

/// Returns the text of a prompt's file; `None` where it is not a regular file.
fn read(path: &Path) -> Result<Option<String>, Problem> {
    let unreadable = |err: std::io::Error| {
        Problem::new(format!("{} cannot be read: {}", path.display(), reason(&err)))
    };
    // Checked before it is opened: opening a fifo would wait for its writer.
    let is_file = fs::metadata(path).map_err(unreadable)?.is_file();
    if !is_file {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    let file = fs::File::open(path).map_err(unreadable)?;
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(Problem::new(format!(
            "{} is larger than {MAX_FILE} bytes: not served",
            path.display()
        )));
    }
    let text = orla_document::decode(&bytes).map_err(|err| Problem::at(path, err.at, err.problem))?;
    Ok(Some(text.strip_prefix('\u{feff}').unwrap_or(text).to_owned()))
}

impl Prompt {
    /// Returns the text of the prompt with its arguments filled in.
    ///
    /// # Errors
    ///
    /// Returns an error if a required argument is missing, one is not text, or the result would be too large.
    pub(crate) fn render(&self, given: &Map<String, Value>) -> Result<String, String> {
        let mut values = Vec::with_capacity(self.arguments.len());
        for argument in &self.arguments {
            values.push(match given.get(&argument.name) {
                Some(Value::String(text)) => text.as_str(),
                None | Some(Value::Null) if argument.required => {
                    return Err(format!("prompt {} needs the argument {}", self.name, argument.name));
                }
                None | Some(Value::Null) => "",
                Some(_) => {
                    return Err(format!(
                        "argument {} of prompt {} must be text",
                        argument.name, self.name
                    ));
                }
            });
        }
        let mut text = String::new();
        for part in &self.parts {
            text.push_str(match part {
                Part::Text(text) => text,
                Part::Argument(index) => values.get(*index).copied().unwrap_or_default(),
            });
            if text.len() > MAX_RENDERED {
                return Err(format!("prompt {} would be larger than {MAX_RENDERED} bytes", self.name));
            }
        }
        Ok(text)
    }

    /// As an element of `prompts/list`.
    fn listed(&self) -> Value {
        let mut prompt = Map::new();
        prompt.insert("name".to_owned(), self.name.as_str().into());
        if let Some(title) = &self.title {
            prompt.insert("title".to_owned(), title.as_str().into());
        }
        prompt.insert("description".to_owned(), self.description.as_str().into());
        if !self.arguments.is_empty() {
            prompt.insert("arguments".to_owned(), self.arguments.iter().map(Argument::listed).collect());
        }
        if !self.tools.is_empty() {
            let tools: Vec<&str> = self.tools.iter().map(|(tool, _)| tool.as_str()).collect();
            prompt.insert("_meta".to_owned(), json!({ "orla/tools": tools }));
        }
        prompt.into()
    }
}

impl Argument {
    fn listed(&self) -> Value {
        let mut argument = Map::new();
        argument.insert("name".to_owned(), self.name.as_str().into());
        if let Some(description) = &self.description {
            argument.insert("description".to_owned(), description.as_str().into());
        }
        argument.insert("required".to_owned(), self.required.into());
        argument.into()
    }
}

/// Finds the description of a tool that is served now and that this caller may use.
pub(crate) type DescribeTool = Box<dyn Fn(&str, Option<&Principal>) -> Option<String> + Send + Sync>;

/// Serves the prompts of one snapshot: `prompts/list`, `prompts/get`, and `completion/complete` for
/// arguments that name their values.
pub(crate) struct Prompts {
    prompts: Vec<Prompt>,
    listed: JsonText,
    describe: DescribeTool,
}

impl Prompts {
    pub(crate) fn new(prompts: Vec<Prompt>, describe: DescribeTool) -> Result<Self, serde_json::Error> {
        let listed: Vec<Value> = prompts.iter().map(Prompt::listed).collect();
        let listed = JsonText::of(&json!({ "prompts": listed }))?;
        Ok(Self { prompts, listed, describe })
    }

    fn find(&self, name: &str) -> Result<&Prompt, SurfaceError> {
        self.prompts.iter().find(|prompt| prompt.name == name).ok_or_else(|| {
            SurfaceError::NotFound(format!("unknown prompt: {}", crate::text::cut(name, SHOWN)))
        })
    }

    fn get(&self, params: &Value, caller: Option<&Principal>) -> Result<Value, SurfaceError> {
        let name = text_of(params, "name")?;
        let prompt = self.find(name)?;
        let nothing = Map::new();
        let arguments = match params.get("arguments") {
            None | Some(Value::Null) => &nothing,
            Some(Value::Object(arguments)) => arguments,
            Some(_) => return Err(SurfaceError::Invalid("arguments must be an object".to_owned())),
        };
        let mut text = prompt.render(arguments).map_err(SurfaceError::Invalid)?;
        let tools = self.wanted(prompt, caller);
        if !tools.is_empty() {
            text.push_str(&format!("\n\nUse these tools:\n{tools}"));
        }
        Ok(json!({
            "description": prompt.description,
            "messages": [{"role": "user", "content": {"type": "text", "text": text}}],
        }))
    }

    /// Returns the tools that a prompt uses, that are served and that the caller may use, one line each.
    fn wanted(&self, prompt: &Prompt, caller: Option<&Principal>) -> String {
        let mut text = String::new();
        for (tool, _) in &prompt.tools {
            if let Some(description) = (self.describe)(tool, caller) {
                let first = description.lines().next().unwrap_or_default().to_owned();
                text.push_str(&format!("- {tool}: {first}\n"));
            }
        }
        text
    }

    fn complete(&self, params: &Value) -> Result<Value, SurfaceError> {
        let reference = params.get("ref").unwrap_or(&Value::Null);
        if reference.get("type").and_then(Value::as_str) != Some("ref/prompt") {
            return Err(SurfaceError::NotFound("not a prompt".to_owned()));
        }
        let prompt = self.find(text_of(reference, "name")?)?;
        let argument = params.get("argument").unwrap_or(&Value::Null);
        let (name, typed) = (text_of(argument, "name")?, text_of(argument, "value")?.to_lowercase());
        let known = prompt.arguments.iter().find(|argument| argument.name == name);
        let fitting: Vec<&String> = known
            .map(|argument| argument.values.as_slice())
            .unwrap_or_default()
            .iter()
            .filter(|value| value.to_lowercase().starts_with(&typed))
            .collect();
        let shown = &fitting[..fitting.len().min(MAX_COMPLETIONS)];
        let more = shown.len() < fitting.len();
        Ok(json!({"completion": {"values": shown, "total": fitting.len(), "hasMore": more}}))
    }
}

fn text_of<'a>(params: &'a Value, key: &str) -> Result<&'a str, SurfaceError> {
    let text = params.get(key).and_then(Value::as_str);
    text.ok_or_else(|| SurfaceError::Invalid(format!("{key} must be text")))
}

#[async_trait]
impl Surface for Prompts {
    fn owner(&self) -> &'static str {
        "prompts"
    }

    fn serves(&self, method: &str) -> bool {
        matches!(method, "prompts/list" | "prompts/get" | "completion/complete")
    }

    fn item(&self, subject: Subject<'_>) -> Option<Item> {
        let Subject::Prompt(name) = subject else { return None };
        Some(Item { id: name.to_owned(), name: name.to_owned(), needs: Vec::new() })
    }

    fn similar(&self, subject: Subject<'_>) -> Vec<String> {
        let near = nearest(subject.name(), self.prompts.iter().map(|prompt| prompt.name.as_str()));
        near.map(str::to_owned).into_iter().collect()
    }

    async fn request(
        &self,
        method: &str,
        params: &JsonText,
        ctx: &CallContext,
    ) -> Result<JsonText, SurfaceError> {
        if method == "prompts/list" {
            return Ok(self.listed.clone());
        }
        let params: Value = serde_json::from_str(params.as_str())
            .map_err(|err| SurfaceError::Invalid(err.to_string()))?;
        let result = match method {
            "prompts/get" => self.get(&params, ctx.scope.principal.as_ref())?,
            "completion/complete" => self.complete(&params)?,
            _ => return Err(SurfaceError::NotFound(format!("unknown method: {method}"))),
        };
        JsonText::of(&result).map_err(|err| SurfaceError::Failed(err.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompts(files: &[(&str, &str)]) -> Loaded {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        load(dir.path(), true)
    }

    fn surface(text: &str) -> Prompts {
        let describe =
            |tool: &str, _: Option<&_>| (tool == "ls").then(|| "Lists files.\nMore.".to_owned());
        Prompts::new(prompts(&[("p.md", text)]).prompts, Box::new(describe)).unwrap()
    }

    #[test]
    fn the_directory_gives_its_markdown_files() {
        let loaded = prompts(&[
            ("b.md", "B"),
            ("a b.md", "A"),
            ("a_b.md", "A too"),
            ("README.md", "no"),
            (".hidden.md", "no"),
            ("x.txt", "no"),
            ("bad.md", "---\narguments: 7\n---\n"),
        ]);
        let names: Vec<_> = loaded.prompts.iter().map(|prompt| prompt.name.as_str()).collect();
        assert_eq!(names, ["a_b", "a_b_2", "b"]);
        assert_eq!(loaded.problems.len(), 1);
        assert!(loaded.problems[0].to_string().ends_with("bad.md:2:12"), "{}", loaded.problems[0]);
    }

    #[test]
    fn prompts_with_the_same_name_get_distinct_names() {
        let (one, two) = (format!("a b{}.md", "x".repeat(60)), format!("a_b{}.md", "x".repeat(60)));
        let loaded = prompts(&[(&one, "A"), (&two, "B")]);
        let names: Vec<_> = loaded.prompts.iter().map(|prompt| prompt.name.as_str()).collect();
        let x = "x".repeat(59);
        assert_eq!(names, [format!("a_b{x}_2"), format!("a_b{x}x")]);
    }

    #[test]
    fn a_name_of_a_megabyte_is_not_compared_and_not_sent_back_whole() {
        let prompts = surface("Hello");
        let unknown = prompts.get(&json!({"name": "p".repeat(1 << 20)}), None).unwrap_err();
        let SurfaceError::NotFound(text) = unknown else { panic!("{unknown:?}") };
        assert_eq!(text, format!("unknown prompt: {}…", "p".repeat(199)));
    }

    #[test]
    fn a_missing_directory_matters_only_where_it_was_asked_for() {
        assert!(load(Path::new("/nonexistent"), false).unread.is_none());
        assert!(load(Path::new("/nonexistent"), true).unread.is_some());
    }

    #[test]
    fn arguments_are_filled_in_once_and_required_ones_are_missed() {
        let text = "---\narguments: [{name: a, required: true}]\n---\nA {{a}} and {{ b }}; \\{{a}}\n";
        let prompt = prompts(&[("p.md", text)]).prompts.remove(0);
        let given = |value: Value| value.as_object().unwrap().clone();
        assert_eq!(
            prompt.render(&given(json!({"a": "{{b}}", "b": "x"}))).unwrap(),
            "A {{b}} and x; {{a}}\n"
        );
        assert_eq!(prompt.render(&given(json!({"a": "1"}))).unwrap(), "A 1 and ; {{a}}\n");
        assert_eq!(prompt.render(&Map::new()).unwrap_err(), "prompt p needs the argument a");
        assert_eq!(
            prompt.render(&given(json!({"a": 1}))).unwrap_err(),
            "argument a of prompt p must be text"
        );
    }

    #[test]
    fn a_prompt_that_would_grow_without_bound_is_refused() {
        let prompt = prompts(&[("p.md", &"{{a}}".repeat(1000))]).prompts.remove(0);
        let given = json!({"a": "x".repeat(100_000)}).as_object().unwrap().clone();
        assert_eq!(prompt.render(&given).unwrap_err(), "prompt p would be larger than 4194304 bytes");
    }

    #[test]
    fn lists_gets_and_completes() {
        let prompts = surface(
            "---\ntitle: T\narguments: [{name: tone, values: [kind, strict, stern]}]\ntools: [ls, gone]\n---\nBe {{tone}}",
        );
        assert_eq!(
            prompts.listed.as_str(),
            r#"{"prompts":[{"name":"p","title":"T","description":"Be {{tone}}","arguments":[{"name":"tone","required":false}],"_meta":{"orla/tools":["ls","gone"]}}]}"#
        );
        let got = prompts.get(&json!({"name": "p", "arguments": {"tone": "kind"}}), None).unwrap();
        let text = &got["messages"][0]["content"]["text"];
        assert_eq!(text, "Be kind\n\nUse these tools:\n- ls: Lists files.\n");
        let done = prompts
            .complete(&json!({"ref": {"type": "ref/prompt", "name": "p"}, "argument": {"name": "tone", "value": "St"}}))
            .unwrap();
        assert_eq!(done["completion"]["values"], json!(["strict", "stern"]));
        assert_eq!(
            prompts.get(&json!({"name": "pp"}), None).unwrap_err(),
            SurfaceError::NotFound("unknown prompt: pp".to_owned())
        );
        assert!(matches!(prompts.get(&json!({}), None), Err(SurfaceError::Invalid(_))));
    }
}
