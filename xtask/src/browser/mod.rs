//! The console in a real browser: the system's Chromium, driven by Playwright (pinned in `xtask/fixtures/browser/`, installed below
//! `target/browser` once).
//!
//! Three servers are opened: one to all callers, with a history, a server that asks and one that puts hostile texts wherever it
//! can (`world/`), one where callers sign in (`signed/`), and one with three small tools (`shown/`). Each part is a script beside the pins, which prints its checks:
//!
//! | part | what |
//! |---|---|
//! | `pages` | every page that links lead to, at 320, 768 and 1440 px, dark and light: overflow, WCAG 2.2 AA by axe |
//! | `person` | forms, progress, questions, cancelling, repeating, programs, approvals, signing in and out; without scripts, too |
//! | `payloads` | each hostile text of `payloads.json` through every page |
//! | `pictures` | the pictures of the documentation; `--bless` writes them to `docs/pictures` |
//!
//! On each page, errors on the browser's console, violations of the content security policy, requests to other origins and foreign
//! elements are failures.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use crate::install;
use crate::parts::{self, Parts};
use crate::server::Server;
use crate::tally::Tally;
use crate::{Outcome, process, server};

/// What can be asked for by name; in this order.
const PARTS: &[&str] = &["pages", "person", "payloads", "pictures"];
/// Where a browser may be; `$CHROMIUM` goes first.
const BROWSERS: &[&str] = &["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];
/// The pictures of the documentation, and where they stand there.
const PICTURES: [&str; 4] = ["shown-calls", "shown-call", "shown-form", "shown-program"];
const PICTURED: &str = "docs/pictures";
/// How long one part may take.
const TIMEOUT: Duration = Duration::from_secs(1_800);

/// Runs the named parts, or all of them.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    let parts = Parts::of(arguments, &[parts::QUICK, parts::BLESS], PARTS)?;
    let chromium = chromium()?;
    let binary = server::binary()?;
    let binary = std::path::absolute(&binary).map_err(|err| format!("{}: {err}", binary.display()))?;
    let fixtures = install::pins("browser");
    let foreign = install::programs("browser", false)?;
    let open = foreign.folder.join("open");
    crate::copy_folder(&fixtures.join("world"), &open)?;
    copy(&fixtures.join("payloads.json"), &open.join("payloads.json"))?;
    let signed = foreign.folder.join("signed");
    crate::copy_folder(&fixtures.join("signed"), &signed)?;
    crate::copy_folder(&fixtures.join("world/tools"), &signed.join("tools"))?;
    let shown = foreign.folder.join("shown");
    crate::copy_folder(&fixtures.join("shown"), &shown)?;
    let (open, signed, shown) =
        (serve(&binary, &open)?, serve(&binary, &signed)?, serve(&binary, &shown)?);
    let world = json!({
        "open": format!("http://{}", open.address),
        "signed": format!("http://{}", signed.address),
        "shown": format!("http://{}", shown.address),
        "chromium": chromium,
        "out": foreign.folder,
        "isQuick": parts.is_quick,
        // Chromium has no sandbox of its own for root.
        "isRoot": rustix::process::geteuid().is_root(),
    });
    let file = foreign.folder.join("world.json");
    std::fs::write(&file, world.to_string()).map_err(|err| format!("{}: {err}", file.display()))?;
    let mut tally = Tally::default();
    for part in PARTS.iter().filter(|part| parts.has(part)) {
        let mut command = Command::new(&foreign.node);
        command.arg(foreign.folder.join("browser.mjs")).arg(&file).arg(part);
        tally.judge("browser:", &process::run(&mut command, &foreign.folder, TIMEOUT)?);
    }
    let pictures = foreign.folder.join("pictures");
    if parts.is_blessing {
        let documented = crate::root().join(PICTURED);
        std::fs::create_dir_all(&documented)
            .map_err(|err| format!("{}: {err}", documented.display()))?;
        for picture in PICTURES.map(|name| format!("{name}.png")) {
            copy(&pictures.join(&picture), &documented.join(&picture))?;
        }
    }
    println!("pictures are in {}", pictures.display());
    Ok(tally.close())
}

/// Returns the system's browser.
fn chromium() -> Result<PathBuf, String> {
    let named = std::env::var_os("CHROMIUM").map(PathBuf::from);
    let mut known = named.into_iter().chain(BROWSERS.iter().map(PathBuf::from));
    known.find(|path| path.is_file()).ok_or_else(|| {
        "no Chromium was found: install it (Debian: `apt install chromium`), or name it in $CHROMIUM"
            .to_owned()
    })
}

fn serve(binary: &Path, folder: &Path) -> Result<Server, String> {
    let mut command = Command::new(binary);
    command.args(["--port", "0", "--log-format", "json"]).current_dir(folder).env("HOME", folder);
    Server::listening(command, &folder.join("server.log"), server::address)
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    std::fs::copy(from, to).map(drop).map_err(|err| format!("{}: {err}", from.display()))
}
