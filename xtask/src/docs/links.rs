//! Where the pages and the site lead nowhere.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use super::page::Page;

/// Links of pages to files that are not there, and to anchors that a page lacks. `exists` knows every file and directory,
/// `pages` those that are read, both by their path from the root.
pub(super) fn dead(pages: &BTreeMap<PathBuf, Page>, exists: impl Fn(&Path) -> bool) -> Vec<String> {
    let mut dead = Vec::new();
    for (path, page) in pages {
        for link in page.links.iter().filter(|link| !is_elsewhere(&link.target)) {
            let (file, anchor) = link.target.split_once('#').unwrap_or((&link.target, ""));
            let to = resolve(path, file);
            let problem = match to.as_ref().map(|to| (to, pages.get(to))) {
                None => "leads out of the repository".to_owned(),
                Some((to, None)) if !exists(to) => format!("there is no {}", to.display()),
                Some((to, Some(page)))
                    if !anchor.is_empty() && !page.anchors.iter().any(|a| a == anchor) =>
                {
                    format!("{} has no heading `{anchor}`", to.display())
                }
                Some(_) => continue,
            };
            dead.push(format!("{}:{}: {}: {problem}", path.display(), link.line, link.target));
        }
    }
    dead
}

/// Pages that the summary does not list, and those that it lists twice.
pub(super) fn unlisted(folder: &Path, summary: &Page, pages: &BTreeMap<PathBuf, Page>) -> Vec<String> {
    let mut listed = BTreeSet::new();
    let mut problems = Vec::new();
    for link in &summary.links {
        if !listed.insert(folder.join(&link.target)) {
            problems.push(format!("SUMMARY.md:{}: {} is listed twice", link.line, link.target));
        }
    }
    let below = pages.keys().filter(|path| path.starts_with(folder) && !path.ends_with("SUMMARY.md"));
    problems.extend(
        below
            .filter(|path| !listed.contains(*path))
            .map(|path| format!("SUMMARY.md does not list {}", path.display())),
    );
    problems
}

/// Links of the site's pages to files or anchors that it lacks. A page is its path and its HTML.
pub(super) fn dead_in_site(
    site: &BTreeMap<PathBuf, String>,
    exists: impl Fn(&Path) -> bool,
) -> Vec<String> {
    let ids: BTreeMap<&PathBuf, BTreeSet<&str>> =
        site.iter().map(|(path, html)| (path, attributes(html, "id").collect())).collect();
    let mut dead = BTreeSet::new();
    for (path, html) in site {
        let links = attributes(html, "href").chain(attributes(html, "src"));
        for target in links.filter(|target| !is_elsewhere(target)) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let is_there = resolve(path, file).is_some_and(|to| match ids.get(&to) {
                Some(ids) => anchor.is_empty() || ids.contains(anchor),
                None => exists(&to),
            });
            if !is_there {
                dead.insert(format!("{}: {target}", path.display()));
            }
        }
    }
    dead.into_iter().collect()
}

fn is_elsewhere(target: &str) -> bool {
    ["https:", "http:", "mailto:", "data:"].iter().any(|scheme| target.starts_with(scheme))
}

/// Returns where a link of a file leads, from the root; `None` outside of it.
pub(super) fn resolve(from: &Path, target: &str) -> Option<PathBuf> {
    if target.is_empty() {
        return Some(from.to_owned());
    }
    let mut to = from.parent()?.to_owned();
    for part in Path::new(target).components() {
        match part {
            Component::Normal(name) => to.push(name),
            Component::CurDir => {}
            Component::ParentDir if to.pop() => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(to)
}

/// Returns the values of an attribute in HTML that a generator wrote.
fn attributes<'a>(html: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let before = format!(" {name}=\"");
    let starts: Vec<usize> = html.match_indices(&before).map(|(at, found)| at + found.len()).collect();
    starts.into_iter().filter_map(|at| html[at..].split('"').next())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(texts: &[(&str, &str)]) -> BTreeMap<PathBuf, Page> {
        texts.iter().map(|(path, text)| (PathBuf::from(path), Page::read(text))).collect()
    }

    #[test]
    fn dead_links_and_anchors_are_named() {
        let texts = [
            ("README.md", "[a](docs/a.md#top) [b](docs/b.md)"),
            (
                "docs/a.md",
                "# Top\n[up](../README.md) [in](#top) [no](#none) [out](../../x) [web](https://x.y)",
            ),
        ];
        let pages = pages(&texts);
        assert_eq!(
            dead(&pages, |path| pages.contains_key(path)),
            [
                "README.md:1: docs/b.md: there is no docs/b.md",
                "docs/a.md:2: #none: docs/a.md has no heading `none`",
                "docs/a.md:2: ../../x: leads out of the repository",
            ]
        );
    }

    #[test]
    fn a_page_that_the_summary_lacks_is_named() {
        let pages = pages(&[("docs/a.md", ""), ("docs/b.md", ""), ("docs/SUMMARY.md", "")]);
        let summary = Page::read("- [A](a.md)\n- [Again](a.md)");
        let problems = unlisted(Path::new("docs"), &summary, &pages);
        assert_eq!(
            problems,
            ["SUMMARY.md:2: a.md is listed twice", "SUMMARY.md does not list docs/b.md"]
        );
    }

    #[test]
    fn dead_links_of_the_site_are_named() {
        let site = [
            ("a.html", "<h1 id=\"x\"> <a href=\"b.html#y\"> <a href=\"a.html#x\"> <img src=\"i.png\">"),
            ("b.html", ""),
        ];
        let site = site.iter().map(|(path, html)| (PathBuf::from(path), (*html).to_owned())).collect();
        assert_eq!(dead_in_site(&site, |_| false), ["a.html: b.html#y", "a.html: i.png"]);
    }
}
