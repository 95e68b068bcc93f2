//! The site, made by mdbook.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::links;
use super::page::Page;
use crate::{process, server};

/// The version that is installed below `target/docs`.
const MDBOOK: &str = "0.5.4";
/// Where links lead that leave the pages.
const REPOSITORY: &str = "https://github.com/orla-run/orla";
/// How long the site may take.
const LIMIT: Duration = Duration::from_secs(120);

/// Builds the site in `target/docs/site`, and says which of its links are dead.
pub(super) fn build(pages: &BTreeMap<PathBuf, Page>) -> Result<Vec<String>, String> {
    let folder = crate::target("docs")?;
    let mdbook = install(&folder)?;
    let (source, site) = (folder.join("source"), folder.join("site"));
    crate::copy_folder(&crate::root().join("docs"), &source)?;
    for (path, page) in pages {
        if let Ok(below) = path.strip_prefix("docs") {
            let file = source.join(below);
            let text = fs::read_to_string(&file).map_err(|err| format!("{}: {err}", file.display()))?;
            fs::write(&file, to_repository(path, page, &text)).map_err(|err| err.to_string())?;
        }
    }
    let mut build = Command::new(mdbook);
    build.arg("build").arg(&source).arg("--dest-dir").arg(&site);
    let done = process::run(&mut build, &folder, LIMIT)?;
    let said = done.stderr.clone();
    done.stdout_of_success().map_err(|err| format!("mdbook: {err}"))?;
    let mut html = BTreeMap::new();
    read_html(&site, Path::new(""), &mut html)?;
    let mut problems = links::dead_in_site(&html, |path| site.join(path).exists());
    problems.extend(said.lines().filter(|line| line.contains("WARN")).map(str::to_owned));
    println!("{} pages in {}", html.len(), site.display());
    Ok(problems)
}

fn install(folder: &Path) -> Result<PathBuf, String> {
    let root = folder.join("tools");
    let mdbook = root.join("bin/mdbook");
    let version = Command::new(&mdbook).arg("--version").output();
    let is_current = version.is_ok_and(|said| String::from_utf8_lossy(&said.stdout).contains(MDBOOK));
    if !is_current {
        println!("installing mdbook {MDBOOK}");
        let (root, build) = (root.display().to_string(), root.join("build").display().to_string());
        server::cargo(&[
            "install",
            "mdbook",
            "--version",
            MDBOOK,
            "--locked",
            "--quiet",
            "--no-default-features",
            "--features",
            "search",
            "--root",
            &root,
            "--target-dir",
            &build,
        ])?;
        // It is as large as the product's own.
        fs::remove_dir_all(&build).map_err(|err| format!("{build}: {err}"))?;
    }
    Ok(mdbook)
}

/// Returns a page whose links to files beside `docs` lead to the repository on the web.
fn to_repository(path: &Path, page: &Page, text: &str) -> String {
    let mut text = text.to_owned();
    for link in &page.links {
        let file = link.target.split('#').next().unwrap_or_default();
        if let Some(to) =
            links::resolve(path, file).filter(|to| file.starts_with("..") && !to.starts_with("docs"))
        {
            let is_folder = crate::root().join(&to).is_dir();
            let kind = if is_folder { "tree" } else { "blob" };
            let address = format!("]({REPOSITORY}/{kind}/main/{})", to.display());
            text = text.replace(&format!("]({})", link.target), &address);
        }
    }
    text
}

fn read_html(site: &Path, below: &Path, html: &mut BTreeMap<PathBuf, String>) -> Result<(), String> {
    let folder = site.join(below);
    let problem = |err: std::io::Error| format!("{}: {err}", folder.display());
    for entry in fs::read_dir(&folder).map_err(problem)? {
        let name = entry.map_err(problem)?.file_name();
        let path = below.join(&name);
        if site.join(&path).is_dir() {
            read_html(site, &path, html)?;
        } else if path.extension().is_some_and(|kind| kind == "html")
            && !["404.html", "toc.html"].contains(&name.to_str().unwrap_or_default())
        {
            html.insert(path.clone(), fs::read_to_string(site.join(&path)).map_err(problem)?);
        }
    }
    Ok(())
}
