//! The example plugins of the repository, as they are configured there.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::process;
use crate::server;
use crate::tally::Tally;

/// How long one command may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Builds the example in Rust, and calls what the examples serve.
pub(super) fn run(binary: &Path, tally: &mut Tally) -> Result<(), String> {
    server::cargo(&["build", "--package", "orla-e2e", "--example", "words"])?;
    let scratch = crate::target("interop")?;
    for (call, expected) in [
        (["call", "calc__add", "a=1", "b=2.5"], "3.5"),
        (["call", "calc__factorials", "upto=4", "--raw"], "[1, 2, 6, 24]"),
        (["call", "words", "text=to be or not", "--raw"], "{\"words\":4}"),
        (["call", "sum", "a=1", "b=2"], "3"),
    ] {
        let mut command = Command::new(binary);
        command.args(call).args(["--config", "examples/plugins/orla.yaml"]);
        command.current_dir(crate::root());
        let printed = process::run(&mut command, &scratch, PATIENCE)?.stdout_of_success();
        let result = printed.and_then(|printed| match printed.contains(expected) {
            true => Ok(()),
            false => Err(format!("it printed {printed}")),
        });
        tally.check(&format!("plugins: orla {}", call.join(" ")), result);
    }
    Ok(())
}
