//! The examples of streams and of other instances, as they are configured in the repository.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::process;
use crate::server::Server;
use crate::tally::Tally;

/// How long one command may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Reads and writes the example streams.
pub(super) fn streams(binary: &Path, tally: &mut Tally) -> Result<(), String> {
    let even = "(vec (take 2 (filter even? (map :n (stream :ticks {})))))";
    for (arguments, expected) in [
        (&["call", "ticks", "limit=2", "--raw"][..], r#""ended_by":"limit""#),
        (&["call", "sorted", r#"send=["b", "a"]"#, "--raw"], r#"["a","b"]"#),
        (&["rtfs", "-e", even], "[2 4]"),
    ] {
        check("streams", binary, arguments, "", expected, tally)?;
    }
    Ok(())
}

/// Calls the repository's own tools at another instance.
pub(super) fn remotes(binary: &Path, tally: &mut Tally) -> Result<(), String> {
    let other = Server::start(binary, &crate::root(), &crate::target("interop")?)?;
    let url = format!("http://{}", other.address);
    for (arguments, expected) in [
        (&["call", "lab__word_count", "text=to be or not", "--raw"][..], r#""words""#),
        (&["call", "sum", "a=1", "b=2"], "3"),
        (&["call", "lab__rtfs", "program=(map inc [1 2])", "--raw"], "[2,3]"),
    ] {
        check("remote", binary, arguments, &url, expected, tally)?;
    }
    Ok(())
}

fn check(
    example: &str,
    binary: &Path,
    arguments: &[&str],
    url: &str,
    expected: &str,
    tally: &mut Tally,
) -> Result<(), String> {
    let mut command = Command::new(binary);
    command.args(arguments).args(["--config", &format!("examples/{example}/orla.yaml")]);
    command.current_dir(crate::root()).env("LAB_URL", url);
    let printed = process::run(&mut command, &crate::target("interop")?, PATIENCE)?.stdout_of_success();
    let result = printed.and_then(|printed| {
        match printed.replace(' ', "").contains(&expected.replace(' ', "")) {
            true => Ok(()),
            false => Err(format!("it printed {printed}")),
        }
    });
    tally.check(&format!("{example}: orla {}", arguments.join(" ")), result);
    Ok(())
}
