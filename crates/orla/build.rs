//! Puts the functions that run during a start or a call next to each other (`functions.order`), if the linker can.
//!
//! They are less than a tenth of the program's code. Otherwise they are spread over the whole program, and a call touches more pages.
//! `cargo xtask order` writes the list; docs/design/speed.md says what it is worth.
//!
//! After a change of the system's linker to one that takes no scripts, run `cargo clean -p orla`: Cargo runs this again only if the linker is
//! named in the environment.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=functions.order");
    let variable = |name: &str| env::var(name).unwrap_or_default();
    let target = variable("TARGET").replace(['-', '.'], "_").to_uppercase();
    println!("cargo::rerun-if-env-changed=CARGO_TARGET_{target}_LINKER");
    if variable("PROFILE") != "release" || variable("CARGO_CFG_TARGET_OS") != "linux" {
        return;
    }
    let folder = variable("OUT_DIR");
    match order(Path::new(&folder)) {
        Ok(option) => println!("cargo::rustc-link-arg-bins={option}"),
        Err(why) => println!("cargo::warning=the functions of the program are not ordered: {why}"),
    }
}

/// Returns the linker's option that orders the functions.
fn order(folder: &Path) -> Result<String, String> {
    let list = fs::read_to_string("functions.order").map_err(|err| format!("functions.order: {err}"))?;
    let script = folder.join("functions.ld");
    fs::write(&script, linker_script(&list)).map_err(|err| format!("{}: {err}", script.display()))?;
    // Linkers take this option, and so do compilers that run them.
    let option = format!("-T{}", script.display());
    links_with(&option, folder).map(|()| option)
}

/// Returns a script that puts these functions into a section before all others.
fn linker_script(list: &str) -> String {
    let mut script = "SECTIONS {\n.text.first : {\n".to_owned();
    for name in list.lines() {
        // The optimiser appends something to the names of functions that were local.
        let _ = writeln!(script, "*(.text.{name} .text.{name}.llvm.*)");
    }
    script.push_str("}\n} INSERT BEFORE .text;\n");
    script
}

/// Links an empty program with an option.
fn links_with(option: &str, folder: &Path) -> Result<(), String> {
    let source = folder.join("links.rs");
    fs::write(&source, "fn main() {}\n").map_err(|err| format!("{}: {err}", source.display()))?;
    let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc.arg(&source).arg("-o").arg(folder.join("links"));
    if let Some(target) = env::var_os("TARGET") {
        rustc.arg("--target").arg(target);
    }
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        rustc.arg("-C").arg(format!("linker={linker}"));
    }
    if let Ok(flags) = env::var("CARGO_ENCODED_RUSTFLAGS") {
        rustc.args(flags.split('\u{1f}').filter(|flag| !flag.is_empty()));
    }
    rustc.arg("-C").arg(format!("link-arg={option}"));
    let output = rustc.output().map_err(|err| format!("{rustc:?}: {err}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let error = said.lines().find(|line| line.contains("error")).unwrap_or_default();
    Err(format!("the linker takes no script ({error})"))
}
