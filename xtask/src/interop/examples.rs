//! The examples of the repository, one for each kind of provider, as they are configured there and by the commands that they
//! name.
//!
//! The README's rows link to them; a test holds that each of these folders has its commands here.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::install::Foreign;
use crate::process;
use crate::server::{self, Server};
use crate::tally::Tally;
use orla_e2e::free_port;

/// How long one command may take.
const TIMEOUT: Duration = Duration::from_secs(60);

/// One folder of examples.
struct Example {
    /// Below `examples`.
    folder: &'static str,
    needs: Needs,
    commands: &'static [Shown],
}

/// What is typed after `orla`, and what has to be in what it prints, both without spaces.
type Shown = (&'static [&'static str], &'static str);

/// What has to be there before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Needs {
    Nothing,
    /// The plugin in Rust, whose path is in a variable.
    Built(&'static str),
    /// The folder's `server.py`, whose address is in a variable.
    Api(&'static str),
    /// Another instance of orla with the repository's own tools, whose address is in a variable.
    Instance(&'static str),
    /// What npm has installed.
    Packages,
}

const EXAMPLES: &[Example] = &[
    Example {
        folder: "tools",
        needs: Needs::Nothing,
        commands: &[
            (&["call", "slugify", "text=Crème brûlée"], r#"{"slug":"creme-brulee"}"#),
            (&["call", "csv_to_json", "csv=a,b\n1,2", "--raw"], r#""rows":[{"a":"1","b":"2"}]"#),
            (&["call", "swatch", r#"args=["51", "102", "153"]"#, "--raw"], r#""type":"image""#),
            (&["test"], "3 passed, 0 failed"),
        ],
    },
    Example {
        folder: "capsules/python-counter",
        needs: Needs::Nothing,
        commands: &[
            (&["call", "counter__add", "by=2"], "The total is 2."),
            (&["rtfs", "-e", "(call :counter.add {:by 2}) (call :counter.add {:by 3})"], "{:total 5}"),
        ],
    },
    Example {
        folder: "capsules/sql",
        needs: Needs::Nothing,
        commands: &[(&["call", "sql", "statement=select 6 * 7 as answer"], "42")],
    },
    Example {
        folder: "mcp",
        needs: Needs::Packages,
        commands: &[
            (&["call", "everything__echo", "message=hello"], "Echo: hello"),
            (&["call", "total", "by=2"], "The total is 2."),
        ],
    },
    Example {
        folder: "plugins",
        needs: Needs::Built("WORDS"),
        commands: &[
            (&["call", "calc__add", "a=1", "b=2.5"], "3.5"),
            (&["call", "calc__factorials", "upto=4", "--raw"], "[1,2,6,24]"),
            (&["call", "words", "text=to be or not", "--raw"], r#"{"words":4}"#),
            (&["call", "sum", "a=1", "b=2"], "3"),
        ],
    },
    Example {
        folder: "http",
        needs: Needs::Api("WEATHER_URL"),
        commands: &[
            (&["call", "weather.current", "city=Oslo", "unit=fahrenheit"], r#""degrees":40.1"#),
            (&["call", "weather.note", "city=Oslo", "degrees=4.5"], r#""noted":{"city":"Oslo""#),
            (&["call", "api.current", "city=Lima"], r#""degrees":19.0"#),
        ],
    },
    Example {
        folder: "agents",
        needs: Needs::Instance("AGENT_URL"),
        commands: &[
            (&["call", "helper__word_count", "text=to be or not", "--raw"], r#""words":4"#),
            (&["call", "words", "text=to be or not", "--raw"], r#""state":"completed""#),
        ],
    },
    Example {
        folder: "remote",
        needs: Needs::Instance("LAB_URL"),
        commands: &[
            (&["call", "lab__word_count", "text=to be or not", "--raw"], r#""words":4"#),
            (&["call", "sum", "a=1", "b=2"], "3"),
            (&["call", "lab__rtfs", "program=(map inc [1 2])", "--raw"], "[2,3]"),
        ],
    },
    Example {
        folder: "streams",
        needs: Needs::Nothing,
        commands: &[
            (&["call", "ticks", "limit=2", "--raw"], r#""ended_by":"limit""#),
            (&["call", "sorted", r#"send=["b", "a"]"#, "--raw"], r#"["a","b"]"#),
            (&["rtfs", "-e", "(vec (take 2 (filter even? (map :n (stream :ticks {})))))"], "[2 4]"),
        ],
    },
    Example {
        folder: "builtins",
        needs: Needs::Nothing,
        commands: &[
            (&["call", "average", "numbers=[1, 2, 6]"], "3.0"),
            (&["call", "date.weekday", "date=2026-11-20"], "Friday"),
            (&["list"], "date__weekday"),
        ],
    },
    Example {
        folder: "rtfs",
        needs: Needs::Nothing,
        commands: &[
            (
                &["rtfs", "-e", r#"(call :weather.current {:city "Paris"})"#],
                r#"{:city "Paris", :temp 21.5}"#,
            ),
            (&["call", "warmest", r#"cities=["Paris", "Oslo"]"#], r#"{"city":"Paris","temp":21.5}"#),
            (&["test"], "1 passed, 0 failed"),
        ],
    },
];

/// Runs the commands of each.
pub(super) fn run(binary: &Path, foreign: &Foreign, tally: &mut Tally) -> Result<(), String> {
    let logs = foreign.folder.join("examples");
    std::fs::create_dir_all(&logs).map_err(|err| format!("{}: {err}", logs.display()))?;
    for example in EXAMPLES {
        // A server that goes on until the commands are done, and what they have to know.
        let (_server, variable) = match example.needs {
            Needs::Nothing | Needs::Packages => (None, None),
            Needs::Built(variable) => {
                server::cargo(&["build", "--package", "orla", "--example", "words"])?;
                let built = crate::target("debug")?.join("examples/words");
                (None, Some((variable, built.display().to_string())))
            }
            Needs::Api(variable) => {
                let port = free_port();
                let mut api = Command::new("python3");
                api.arg(of(example.folder).join("server.py")).arg(port.to_string());
                let api = Server::reachable(api, &logs.join("api.log"), &format!("127.0.0.1:{port}"))?;
                reached_by(variable, api)
            }
            Needs::Instance(variable) => {
                reached_by(variable, Server::start(binary, &crate::root(), &logs)?)
            }
        };
        for (arguments, expected) in example.commands {
            let mut command = Command::new(binary);
            command.args(*arguments).current_dir(crate::root());
            // A folder without a configuration holds tools, or is one.
            match of(example.folder).join("orla.yaml") {
                config if config.exists() => command.arg("--config").arg(config),
                _ => command.arg("--tools-dir").arg(of(example.folder)),
            };
            if example.needs == Needs::Packages {
                // Where npx finds what it would else fetch.
                command.current_dir(&foreign.folder);
            }
            command.envs(variable.clone());
            let printed = process::run(&mut command, &logs, TIMEOUT)?.stdout_of_success();
            let verdict = printed.and_then(|printed| shows(&printed, expected));
            tally.check(&format!("examples/{}: orla {}", example.folder, arguments.join(" ")), verdict);
        }
    }
    let mut script = Command::new(of("tasks").join("run.sh"));
    let ended = process::run(script.env("ORLA", binary), &logs, TIMEOUT)?.stdout_of_success();
    tally.check(
        "examples/tasks: run.sh",
        ended.and_then(|printed| shows(&printed, r#""courier":"Ada""#)),
    );
    Ok(())
}

fn reached_by(
    variable: &'static str,
    server: Server,
) -> (Option<Server>, Option<(&'static str, String)>) {
    let address = format!("http://{}", server.address);
    (Some(server), Some((variable, address)))
}

fn of(folder: &str) -> std::path::PathBuf {
    crate::root().join("examples").join(folder)
}

fn shows(printed: &str, expected: &str) -> Result<(), String> {
    match printed.replace(' ', "").contains(&expected.replace(' ', "")) {
        true => Ok(()),
        false => Err(format!("it printed {printed}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_readme_that_names_a_provider_links_to_an_example_that_is_run() {
        let readme = std::fs::read_to_string(crate::root().join("README.md")).unwrap();
        for row in [
            "Tools",
            "Packages and capsules",
            "MCP servers",
            "Plugins",
            "HTTP",
            "Agents",
            "Other instances",
            "Streams",
            "Built-ins",
            "Programs",
        ] {
            let line = readme.lines().find(|line| line.starts_with(&format!("| {row} |")));
            let line = line.unwrap_or_else(|| panic!("no row {row}"));
            let (_, link) = line.split_once("](examples/").unwrap_or_else(|| panic!("{line}"));
            let folder = link.split(')').next().unwrap_or_default();
            let is_run = |example: &Example| example.folder.split('/').next() == Some(folder);
            assert!(EXAMPLES.iter().any(is_run), "{row}: {folder}");
        }
        for example in EXAMPLES {
            assert!(of(example.folder).is_dir(), "{}", example.folder);
        }
    }
}
