//! Has the linker put the functions that calls and a start run beside each other (`functions.order`), if it can.
//!
//! They are 2.4 of 37 MB. Else they lie on pages all over the program, each of which a call has to find anew. `cargo xtask order` writes
//! the list, docs/design/speed.md says what it is worth.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=functions.order");
    let variable = |name: &str| env::var_os(name).unwrap_or_default();
    if variable("PROFILE") != "release" {
        return;
    }
    let Ok(list) = fs::read_to_string("functions.order") else { return };
    let folder = variable("OUT_DIR");
    let script = Path::new(&folder).join("functions.ld");
    let option = format!("-Wl,-T,{}", script.display());
    let can =
        fs::write(&script, linker_script(&list)).is_ok() && links_with(&option, Path::new(&folder));
    if can {
        println!("cargo::rustc-link-arg-bins={option}");
    }
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

/// Returns whether the linker can do it: those of LLVM and GNU can.
fn links_with(option: &str, folder: &Path) -> bool {
    let source = folder.join("links.rs");
    if fs::write(&source, "fn main() {}\n").is_err() {
        return false;
    }
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
    rustc.output().is_ok_and(|output| output.status.success())
}
