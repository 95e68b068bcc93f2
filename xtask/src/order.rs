//! Writes `crates/orla/functions.order`: the functions that each kind of call and a start run, for the linker (`crates/orla/build.rs`).
//!
//! The release program, with its symbols, runs in Valgrind's `callgrind`, where it starts, lists its tools, and is called. A name contains
//! a hash of the compiler, of the profile and target, and of the crate with its version, features and dependencies, but not of the code.
//! Where few functions have the same name without it, the list has a pattern for all of them, which fits every build. For the others,
//! this is run again before each release, after the version and `Cargo.lock` have changed.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::Outcome;
use crate::bench::client::{self, Connection};
use crate::bench::{TEN_CALLS, arguments, compiled, executable, fresh, package};
use crate::server::{self, Server};

/// Calls before those that count: some things run once, such as the first use of a regular expression.
const FIRST_CALLS: usize = 50;
/// Calls that count.
const CALLS: usize = 100;
/// How long the history and the log take to write what has ended.
const SETTLE: Duration = Duration::from_secs(4);

/// The maximum number of functions with the same name that one pattern lists. With more, much code would come first that no call runs.
const MAX_NAMESAKES: usize = 2;

/// A kind of call.
struct Kind {
    name: &'static str,
    /// The configuration.
    config: Value,
    /// What is in the folder of tools: a name, and the program of a capsule or the text of a script.
    tool: Option<(&'static str, Tool)>,
    /// The MCP name of what is called.
    called: &'static str,
    arguments: Value,
}

enum Tool {
    Capsule(PathBuf),
    Text(&'static str),
}

/// Measures, and writes the list.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    if !arguments.is_empty() {
        return Err("it takes no arguments".to_owned());
    }
    let binary = match std::env::var_os("ORLA_BIN") {
        Some(binary) => PathBuf::from(binary),
        None => {
            let whole = ["rustc", "--release", "-p", "orla", "--bin", "orla", "--", "-C", "strip=none"];
            server::cargo(&whole)?;
            crate::target("release")?.join("orla")
        }
    };
    let folder = crate::target("order")?;
    let there = folder.join("there");
    fresh(&there)?;
    fs::write(there.join("orla.yaml"), "builtins: true\n").map_err(|err| err.to_string())?;
    let upstream = Server::start(&binary, &there, &there)?;
    let (mut names, mut plain) = (Names::default(), None);
    for kind in kinds(&folder, &upstream.address)? {
        eprintln!("{}", kind.name);
        let (start, calls) = kind.run(&binary, &folder.join(kind.name))?;
        names.extend(&calls);
        plain.get_or_insert(start);
    }
    let of_calls = names.list.len();
    names.extend(&plain.unwrap_or_default());
    if of_calls == 0 {
        return Err("the program has no symbols: build it with `-C strip=none`".to_owned());
    }
    let of_start = names.list.len() - of_calls;
    let lines = patterns(&names.list, &symbols(&binary)?);
    let file = crate::root().join("crates/orla/functions.order");
    let old = fs::read_to_string(&file).unwrap_or_default();
    let kept = old.lines().filter(|old| lines.iter().any(|line| line == old)).count();
    fs::write(&file, lines.join("\n") + "\n").map_err(|err| format!("{}: {err}", file.display()))?;
    println!(
        "{of_calls} functions of calls, {of_start} more of a start, in {} lines; {kept} of the {} lines before are among them",
        lines.len(),
        old.lines().count()
    );
    Ok(true)
}

/// Returns the names of the functions of a program, without duplicates.
fn symbols(binary: &Path) -> Result<HashSet<String>, String> {
    let output = Command::new("nm").args(["--defined-only", "--format=posix"]).arg(binary).output();
    let output = output.map_err(|err| format!("nm: {err}"))?;
    if !output.status.success() {
        return Err(format!("nm: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let symbols = text.lines().filter_map(|line| line.split_once(' '));
    let functions = symbols.filter(|(_, rest)| rest.starts_with(['t', 'T']));
    Ok(functions.map(|(name, _)| plain(name).to_owned()).collect())
}

/// Returns the lines of the list: each name, or a pattern of it and of its few namesakes.
fn patterns(names: &[String], all: &HashSet<String>) -> Vec<String> {
    let mut namesakes: HashMap<String, usize> = HashMap::new();
    for pattern in all.iter().filter_map(|name| without_hash(name)) {
        *namesakes.entry(pattern).or_default() += 1;
    }
    let mut known = HashSet::new();
    let lines = names.iter().map(|name| {
        let pattern = without_hash(name);
        pattern
            .filter(|pattern| namesakes.get(pattern).is_none_or(|count| *count <= MAX_NAMESAKES))
            .unwrap_or_else(|| name.clone())
    });
    lines.filter(|line| known.insert(line.clone())).collect()
}

/// Returns the name with `?` in place of each digit of its hash, if it has one.
fn without_hash(name: &str) -> Option<String> {
    const DIGITS: usize = 16;
    let rest = name.strip_suffix('E')?;
    let (rest, hash) = rest.split_at_checked(rest.len().checked_sub(DIGITS)?)?;
    let is_hash = hash.bytes().all(|byte| byte.is_ascii_hexdigit()) && rest.ends_with("17h");
    is_hash.then(|| format!("{rest}{}E", "?".repeat(DIGITS)))
}

/// Returns the name without what the optimiser appends to local names, which is another text in each build.
fn plain(name: &str) -> &str {
    name.split_once(".llvm.").map_or(name, |(name, _)| name)
}

/// Returns the kinds of calls. The start of the first one counts too.
fn kinds(folder: &Path, upstream: &str) -> Result<Vec<Kind>, String> {
    let program = |name: &str| compiled(name, folder);
    let kind = |name, config, called, arguments| Kind { name, config, tool: None, called, arguments };
    let stdio = json!({"mcpServers": {"upstream": {"command": program("echo_mcp")?, "prefix": ""}}});
    let http =
        json!({"mcpServers": {"upstream": {"url": format!("http://{upstream}/mcp"), "prefix": ""}}});
    let plugin = json!({"plugins": {"echo": program("echo_plugin")?}});
    let sum = json!({"a": 1, "b": 2});
    let script = "#!/bin/sh\n# Says hello.\necho hello\n";
    Ok(vec![
        Kind {
            tool: Some(("hello", Tool::Text(script))),
            ..kind("tool", json!({}), "hello", json!({}))
        },
        kind("built-in", json!({"builtins": true}), "math__add", sum.clone()),
        kind("server", stdio.clone(), "echo", arguments()),
        Kind {
            tool: Some(("echo", Tool::Capsule(program("echo_capsule")?))),
            ..kind("capsule", json!({}), "echo", arguments())
        },
        kind("plugin", plugin, "echo", arguments()),
        kind("server-http", http, "math__add", sum),
        kind("large", stdio, "large", json!({})),
        Kind {
            tool: Some(("ten.rtfs", Tool::Text(TEN_CALLS))),
            ..kind("program", json!({}), "ten", json!({"from": 1}))
        },
    ])
}

impl Kind {
    /// Returns what `callgrind` wrote of the start, and of the calls after the first ones.
    fn run(&self, binary: &Path, folder: &Path) -> Result<(String, String), String> {
        let problem = |err: std::io::Error| format!("{}: {err}", folder.display());
        // What another run left would be taken for what this one found.
        fresh(folder)?;
        fresh(&folder.join("tools"))?;
        fs::write(folder.join("orla.yaml"), self.config.to_string()).map_err(problem)?;
        match &self.tool {
            Some((name, Tool::Capsule(program))) => {
                package(program, &folder.join("tools").join(name), name, "")?;
            }
            Some((name, Tool::Text(text))) => {
                executable(&folder.join("tools").join(name), text)?;
            }
            None => {}
        }
        let mut command = Command::new("valgrind");
        command.args([
            "--tool=callgrind",
            "--compress-strings=no",
            "--compress-pos=no",
            "--demangle=no",
        ]);
        command.arg(format!("--callgrind-out-file={}", folder.join("ran").display()));
        command.arg(binary).args(["--port", "0", "--log-format", "json"]).current_dir(folder);
        let server = Server::listening(command, &folder.join("server.log"), server::address)?;
        let mut connection = Connection::open(&server.address)?;
        connection.exchange(&client::sessionless("tools/list", json!({})))?;
        let call = client::call(self.called, &self.arguments);
        let mut round = |count: usize| -> Result<(), String> {
            for _ in 0..count {
                let answer = connection.exchange(&call)?;
                if !client::is_good(&answer) {
                    return Err(format!("unexpected answer: {}", String::from_utf8_lossy(answer.body)));
                }
            }
            // Nothing tells when its threads sleep again.
            std::thread::sleep(SETTLE);
            let dump =
                Command::new("callgrind_control").arg("-d").arg(server.pid().to_string()).output();
            match dump {
                Ok(dump) if dump.status.success() => Ok(()),
                Ok(dump) => Err(format!("callgrind_control: {}", String::from_utf8_lossy(&dump.stderr))),
                Err(err) => Err(format!("callgrind_control: {err}")),
            }
        };
        round(0)?;
        round(FIRST_CALLS)?;
        round(CALLS)?;
        server.end(Duration::from_secs(60))?;
        let read = |name: &str| fs::read_to_string(folder.join(name)).map_err(problem);
        Ok((read("ran.1")?, read("ran.3")?))
    }
}

/// Names of functions, in the order in which they were found.
#[derive(Default)]
struct Names {
    list: Vec<String>,
    known: HashSet<String>,
}

impl Names {
    /// Adds the functions of Rust that ran, by the lines of a dump.
    fn extend(&mut self, dump: &str) {
        for line in dump.lines() {
            let Some(name) = line.strip_prefix("fn=") else { continue };
            // Recursions are counted: `NAME'2`.
            let name = name.split_once('\'').map_or(name, |(name, _)| name);
            let name = plain(name);
            let is_rust = name.starts_with("_ZN") || name.starts_with("_R");
            if is_rust && self.known.insert(name.to_owned()) {
                self.list.push(name.to_owned());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_function_of_rust_is_listed_once() {
        let dump = "ob=/a/orla\nfn=_ZN3one17h0123456789abcdefE.llvm.12\n10 5\ncfn=_ZN5other17h0E\ncalls=1 0\n0 9\nfn=_RNv3two\nfn=_RNv3two'2\nfn=malloc\n";
        let mut names = Names::default();
        names.extend(dump);
        assert_eq!(names.list, ["_ZN3one17h0123456789abcdefE", "_RNv3two"]);
    }

    #[test]
    fn functions_with_few_namesakes_are_listed_by_a_pattern() {
        let name = |text: &str, number: usize| format!("_ZN3{text}17h{number:016x}E");
        let all = (0..MAX_NAMESAKES).map(|number| name("few", number));
        let all = all.chain((0..=MAX_NAMESAKES).map(|number| name("all", number))).collect();
        let names = [name("few", 1), name("few", 2), name("all", 3), "_RNv3two".to_owned()];
        assert_eq!(
            patterns(&names, &all),
            ["_ZN3few17h????????????????E".to_owned(), name("all", 3), "_RNv3two".to_owned()]
        );
    }
}
