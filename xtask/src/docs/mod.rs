//! `cargo xtask docs`: the site over `docs/`, its links, and every command of the pages that are followed step by step.
//!
//! - `links`: no link of a page leads nowhere, and the summary lists every page.
//! - `site`: mdbook builds `target/docs/site`, and no link of it leads nowhere.
//! - `commands`: what the tour and the tutorials say is typed and compared ([`session`]), with the release binary, in a folder of
//!   its own with a home of its own. `--bless` writes what is printed into the pages.
//!
//! Not here: links to other sites. They would make a check of ours fail for a fault of theirs.

mod book;
mod links;
mod page;
mod session;
mod terminal;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use page::Page;
use session::{Printed, Step};
use terminal::Terminal;

use crate::parts::{self, Parts};
use crate::tally::Tally;
use crate::{Outcome, server};
use orla_e2e::free_port;

/// The page whose programs need the examples of the repository, and the configuration for them.
const TOUR: (&str, &str) = ("docs/rtfs-tour.md", "examples/rtfs/orla.yaml");
/// Where the other pages are that are followed. They begin in an empty folder.
const TUTORIALS: &str = "docs/tutorials";
/// What these need from the network is left out of `--quick`.
const NEEDS_NETWORK: [&str; 1] = ["docs/tutorials/servers.md"];
/// Ports in pages, which are other ones here, as these may be taken.
const PORTS: [&str; 2] = ["8080", "9090"];
/// What the home of a reader is called in pages.
const HOME: &str = "/home/ada";
/// How long a command that was started and shows nothing may need until others see what it does.
const SETTLED: Duration = Duration::from_secs(60);
/// Pages beside `docs` whose links are checked too.
const BESIDE: [&str; 6] = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "examples/README.md",
    "editors/README.md",
];

pub(crate) fn run(arguments: &[String]) -> Outcome {
    let (chosen, others): (Vec<String>, Vec<String>) =
        arguments.iter().cloned().partition(|argument| argument.ends_with(".md"));
    let parts = Parts::of(&others, &[parts::QUICK, parts::BLESS], &["links", "site", "commands"])?;
    let wants = |part: &str| if parts.is_all() { chosen.is_empty() } else { parts.has(part) };
    let pages = pages()?;
    let mut tally = Tally::default();
    if wants("links") {
        all(
            &mut tally,
            "no link of a page is dead",
            &links::dead(&pages, |path| crate::root().join(path).exists()),
        );
        let summary = pages.get(Path::new("docs/SUMMARY.md")).ok_or("there is no docs/SUMMARY.md")?;
        all(
            &mut tally,
            "the summary lists every page",
            &links::unlisted(Path::new("docs"), summary, &pages),
        );
    }
    if wants("site") {
        all(&mut tally, "no link of the site is dead", &book::build(&pages)?);
    }
    if wants("commands") || !chosen.is_empty() {
        let binary = server::binary()?;
        let binary = fs::canonicalize(&binary).map_err(|err| format!("{}: {err}", binary.display()))?;
        for (path, page) in &pages {
            let name = path.display().to_string();
            let is_followed = name == TOUR.0 || path.starts_with(TUTORIALS);
            let is_left_out = parts.is_quick && NEEDS_NETWORK.contains(&name.as_str());
            let is_chosen = chosen.is_empty() || chosen.iter().any(|end| name.ends_with(end.as_str()));
            if is_followed && is_chosen && !is_left_out {
                follow(&binary, path, page, parts.is_blessing, &mut tally)?;
            }
        }
    }
    Ok(tally.close())
}

fn all(tally: &mut Tally, what: &str, problems: &[String]) {
    let verdict =
        if problems.is_empty() { Ok(()) } else { Err(format!("\n  {}", problems.join("\n  "))) };
    tally.check(what, verdict);
}

/// Returns every page below `docs`, and those beside it, by its path from the root.
fn pages() -> Result<BTreeMap<PathBuf, Page>, String> {
    let mut paths: Vec<PathBuf> = BESIDE.iter().map(PathBuf::from).collect();
    let mut folders = vec![PathBuf::from("docs")];
    while let Some(folder) = folders.pop() {
        let problem = |err: std::io::Error| format!("{}: {err}", folder.display());
        for entry in fs::read_dir(crate::root().join(&folder)).map_err(problem)? {
            let path = folder.join(entry.map_err(problem)?.file_name());
            if crate::root().join(&path).is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|kind| kind == "md") {
                paths.push(path);
            }
        }
    }
    let read = |path: PathBuf| {
        let text = fs::read_to_string(crate::root().join(&path))
            .map_err(|err| format!("{}: {err}", path.display()))?;
        Ok((path, Page::read(&text)))
    };
    paths.into_iter().map(read).collect()
}

/// Where a page is followed.
struct World<'a> {
    binary: &'a Path,
    /// The home of its reader.
    home: PathBuf,
    /// The folder in it that its reader works in.
    folder: PathBuf,
    /// What lies beside the home: the program, and what terminals printed.
    beside: PathBuf,
    /// Ports of pages, and what they are here.
    ports: Vec<(&'static str, String)>,
    terminals: BTreeMap<String, Terminal>,
    /// Whether a command was started that shows nothing of what it does, so that the next one may come too early.
    is_settling: bool,
}

/// Does what a page says, and compares what is printed.
fn follow(
    binary: &Path,
    path: &Path,
    page: &Page,
    is_blessed: bool,
    tally: &mut Tally,
) -> Result<(), String> {
    let began = Instant::now();
    let name = path.display();
    let steps = session::steps(page).map_err(|problem| format!("{name}:{problem}"))?;
    let mut world = World::new(binary, path)?;
    let mut blessed = Vec::new();
    for step in &steps {
        let (line, what) = match step {
            Step::Write { line, path, .. } => (*line, format!("`{path}` is written")),
            Step::Type { line, command, .. } => (*line, format!("$ {command}")),
            Step::Await { line, .. } => (*line, "more is printed".to_owned()),
            Step::Interrupt { .. } => (0, "^C".to_owned()),
            Step::Evaluate { line, program, .. } => (*line, program.clone()),
        };
        let verdict = world.step(step).map_err(|printed| {
            let text = printed.join("\n    ");
            if let Step::Type { printed: shown, .. } = step {
                blessed.push((shown, printed));
            }
            format!("it printed\n    {text}")
        });
        tally.count(&format!("{name}:{line}: {what}"), verdict);
    }
    println!("{name}: {} steps in {:.1} s", steps.len(), began.elapsed().as_secs_f64());
    if is_blessed { bless(path, &blessed) } else { Ok(()) }
}

/// Writes what was printed into a page.
fn bless(path: &Path, blessed: &[(&Printed, Vec<String>)]) -> Result<(), String> {
    let file = crate::root().join(path);
    let text = fs::read_to_string(&file).map_err(|err| format!("{}: {err}", file.display()))?;
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for (shown, printed) in blessed.iter().rev() {
        let start = shown.line - 1;
        lines.splice(start..start + shown.lines.len(), printed.iter().cloned());
    }
    fs::write(&file, lines.join("\n") + "\n").map_err(|err| format!("{}: {err}", file.display()))
}

impl<'a> World<'a> {
    fn new(binary: &'a Path, page: &Path) -> Result<Self, String> {
        let name = page.file_stem().and_then(|name| name.to_str()).unwrap_or("page");
        let beside = crate::target("docs/run")?.join(name);
        let _ = fs::remove_dir_all(&beside);
        let home = beside.join("home");
        let folder = home.join("try");
        for made in [&folder, &beside.join("bin")] {
            fs::create_dir_all(made).map_err(|err| format!("{}: {err}", made.display()))?;
        }
        std::os::unix::fs::symlink(binary, beside.join("bin/orla")).map_err(|err| err.to_string())?;
        if page == Path::new(TOUR.0) {
            crate::copy_folder(&crate::root().join("examples"), &folder.join("examples"))?;
        }
        let port = |shown| Ok((shown, free_port().to_string()));
        let ports = PORTS.into_iter().map(port).collect::<Result<_, String>>()?;
        Ok(Self { binary, home, folder, beside, ports, terminals: BTreeMap::new(), is_settling: false })
    }

    /// Does one step. An error is what was printed instead.
    fn step(&mut self, step: &Step) -> Result<(), Vec<String>> {
        match step {
            Step::Write { path, text, .. } => self.write(path, text).map_err(|err| vec![err]),
            Step::Type { terminal, command, printed, .. } => {
                let (command, shown) = (self.localize(command), self.shown(printed));
                let is_first = terminal.is_empty();
                let max_wait = if self.is_settling { SETTLED } else { Duration::ZERO };
                let end = Instant::now() + max_wait;
                if !is_first || !shown.is_empty() {
                    self.is_settling = !is_first && shown.is_empty();
                }
                let terminal = self.terminal(terminal).map_err(|err| vec![err])?;
                let done = loop {
                    let done = match is_first {
                        true => terminal.run(&command, &shown),
                        false => terminal.start(&command, &shown),
                    };
                    if done.is_ok() || Instant::now() > end {
                        break done;
                    }
                };
                done.map_err(|printed| printed.iter().map(|line| self.generalize(line)).collect())
            }
            Step::Await { terminal, printed, .. } => {
                let shown = self.shown(printed);
                let terminal = self.terminal(terminal).map_err(|err| vec![err])?;
                terminal.wait_for(&shown)
            }
            Step::Interrupt { terminal } => {
                let terminal = self.terminal(terminal).map_err(|err| vec![err])?;
                terminal.interrupt().map_err(|err| vec![err])
            }
            Step::Evaluate { before, program, value, .. } => {
                let mut command = Command::new(self.binary);
                command.args(["rtfs", "--config", TOUR.1, "-e", &format!("{before}{program}")]);
                let done =
                    command.current_dir(&self.folder).output().map_err(|err| vec![err.to_string()])?;
                let printed = String::from_utf8_lossy(&done.stdout).trim_end().to_owned();
                if done.status.success() && printed == *value {
                    return Ok(());
                }
                Err(vec![printed, String::from_utf8_lossy(&done.stderr).into_owned()])
            }
        }
    }

    fn write(&self, path: &str, text: &str) -> Result<(), String> {
        let file = self.folder.join(path);
        let problem = |err: std::io::Error| format!("{}: {err}", file.display());
        // Its folder has to be there: a reader is told to make it.
        fs::write(&file, self.localize(text)).map_err(problem)
    }

    fn terminal(&mut self, name: &str) -> Result<&mut Terminal, String> {
        if !self.terminals.contains_key(name) {
            let path = std::env::var("PATH").unwrap_or_default();
            let mut bash = Command::new("bash");
            bash.args(["--noprofile", "--norc"])
                .current_dir(&self.folder)
                .env_clear()
                .env("PATH", format!("{}:{path}", self.beside.join("bin").display()))
                .env("HOME", &self.home)
                .env("ORLA_PORT", &self.ports[0].1)
                .envs([("LANG", "C.UTF-8"), ("TZ", "UTC"), ("TERM", "dumb"), ("COLUMNS", "100")])
                // What npm fetched once it need not fetch again.
                .env("npm_config_cache", crate::target("docs/npm")?)
                .env("npm_config_update_notifier", "false");
            let output = self.beside.join(format!("terminal-{name}.txt"));
            self.terminals.insert(name.to_owned(), Terminal::open(bash, &output)?);
        }
        self.terminals.get_mut(name).ok_or_else(|| "no terminal".to_owned())
    }

    fn shown(&self, printed: &Printed) -> Vec<String> {
        printed.lines.iter().map(|line| self.localize(line)).collect()
    }

    /// Returns a text of the page with the home and the ports that there are here.
    fn localize(&self, text: &str) -> String {
        let text = text.replace(HOME, &self.home.display().to_string());
        self.ports.iter().fold(text, |text, (shown, port)| text.replace(shown, port))
    }

    /// What was printed, with the home and the ports of the page.
    fn generalize(&self, text: &str) -> String {
        let text = text.replace(&self.home.display().to_string(), HOME);
        self.ports.iter().fold(text, |text, (shown, port)| text.replace(port, shown))
    }
}
