//! Has the linker put the functions that a start and each call run beside each other (`functions.order`), if it can.
//!
//! They are 3 of 37 MB. Else they lie on pages all over the program, each of which a call has to find anew. `cargo xtask order` writes
//! the list, docs/design/speed.md says what it is worth.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=functions.order");
    let variable = |name: &str| env::var_os(name).unwrap_or_default();
    let list = Path::new(&variable("CARGO_MANIFEST_DIR")).join("functions.order");
    let Some(list) = list.to_str().filter(|_| variable("PROFILE") == "release") else { return };
    let options = [
        format!("link-arg=-Wl,--symbol-ordering-file={list}"),
        // Names that this compiler does not make.
        "link-arg=-Wl,--no-warn-symbol-ordering".to_owned(),
    ];
    if links_with(&options, &PathBuf::from(variable("OUT_DIR"))) {
        for option in options {
            println!("cargo::rustc-{}", option.replacen("link-arg=", "link-arg-bins=", 1));
        }
    }
}

/// Returns whether the linker knows these options: LLVM's does, which is the default on Linux for x86-64.
fn links_with(options: &[String], folder: &Path) -> bool {
    let source = folder.join("links.rs");
    if std::fs::write(&source, "fn main() {}\n").is_err() {
        return false;
    }
    let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc.arg(&source).arg("-o").arg(folder.join("links"));
    if let Some(target) = env::var_os("TARGET") {
        rustc.arg("--target").arg(target);
    }
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        let mut option = std::ffi::OsString::from("linker=");
        option.push(linker);
        rustc.arg("-C").arg(option);
    }
    if let Ok(flags) = env::var("CARGO_ENCODED_RUSTFLAGS") {
        rustc.args(flags.split('\u{1f}').filter(|flag| !flag.is_empty()));
    }
    for option in options {
        rustc.arg("-C").arg(option);
    }
    rustc.output().is_ok_and(|output| output.status.success())
}
