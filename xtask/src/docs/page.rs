//! A page of the documentation, as it is read here: its anchors, its links, and its blocks. Pure.

use std::collections::HashMap;

/// One Markdown file.
#[derive(Debug, Default)]
pub(super) struct Page {
    /// What a link may name behind `#`: as GitHub and mdbook make it of a heading.
    pub(super) anchors: Vec<String>,
    pub(super) links: Vec<Link>,
    pub(super) blocks: Vec<Block>,
}

#[derive(Debug)]
pub(super) struct Link {
    /// Counted from 1.
    pub(super) line: usize,
    pub(super) target: String,
}

/// A block between two fences.
#[derive(Debug, Default)]
pub(super) struct Block {
    /// The line of its first fence, counted from 1.
    pub(super) line: usize,
    /// The first word of its fence.
    pub(super) language: String,
    /// The other words of it.
    pub(super) words: Vec<String>,
    pub(super) lines: Vec<String>,
    /// The paragraph in front of it.
    pub(super) before: String,
}

impl Page {
    pub(super) fn read(text: &str) -> Self {
        let mut page = Self::default();
        let mut taken: HashMap<String, usize> = HashMap::new();
        let mut open: Option<(usize, Block)> = None;
        let (mut paragraph, mut before) = (String::new(), String::new());
        for (index, line) in text.lines().enumerate() {
            let trimmed = line.trim_start();
            let indent = line.len() - trimmed.len();
            let fence = trimmed.strip_prefix("```").filter(|rest| !rest.contains('`'));
            match (&mut open, fence) {
                (Some(_), Some("")) => page.blocks.extend(open.take().map(|(_, block)| block)),
                (Some((indent, block)), _) => {
                    block.lines.push(line.get(*indent..).unwrap_or_default().to_owned());
                }
                (None, Some(info)) => {
                    let mut words = info.split_whitespace().map(str::to_owned);
                    let language = words.next().unwrap_or_default();
                    let before = if paragraph.is_empty() { &before } else { &paragraph };
                    let (line, before) = (index + 1, before.clone());
                    let block =
                        Block { line, language, words: words.collect(), lines: Vec::new(), before };
                    open = Some((indent, block));
                    paragraph.clear();
                }
                (None, None) => {
                    if trimmed.is_empty() {
                        if !paragraph.is_empty() {
                            before = std::mem::take(&mut paragraph);
                        }
                        continue;
                    }
                    paragraph.push_str(trimmed);
                    paragraph.push('\n');
                    if let Some(heading) = heading(line) {
                        let anchor = anchor(heading);
                        let count = taken.entry(anchor.clone()).or_default();
                        page.anchors.push(match *count {
                            0 => anchor,
                            again => format!("{anchor}-{again}"),
                        });
                        *count += 1;
                    }
                    page.links.extend(targets(line).map(|target| Link { line: index + 1, target }));
                }
            }
        }
        page
    }
}

fn heading(line: &str) -> Option<&str> {
    let text = line.trim_start_matches('#');
    let level = line.len() - text.len();
    ((1..=6).contains(&level) && text.starts_with(' ')).then(|| text.trim())
}

/// Returns the anchor of a heading: its letters, digits, `-` and `_` in lower case, with a `-` for each
/// space.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter_map(|char| match char {
        ' ' => Some('-'),
        '-' | '_' => Some(char),
        _ => char.is_alphanumeric().then_some(char),
    });
    kept.flat_map(char::to_lowercase).collect()
}

/// Returns where the links of a line lead. What stands in backquotes is no link.
fn targets(line: &str) -> impl Iterator<Item = String> {
    let mut found = Vec::new();
    let (mut is_code, mut rest) = (false, line);
    while let Some(at) = rest.find(['`', ']']) {
        let (is_tick, after) = (rest[at..].starts_with('`'), &rest[at + 1..]);
        rest = after;
        if is_tick {
            is_code = !is_code;
        } else if let (false, Some((target, after))) =
            (is_code, after.strip_prefix('(').and_then(|link| link.split_once(')')))
        {
            found.push(target.split_whitespace().next().unwrap_or_default().to_owned());
            rest = after;
        }
    }
    found.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_links_and_blocks_are_read() {
        let text = "# A `b`: c, d\n\nSee [x](a.md#b) and `[y](z.md)`.\n\nWrite `f`:\n\n```sh file=f\n# no [l](i.nk)\n```\n## A b c d\n## x_y-z\n";
        let page = Page::read(text);
        assert_eq!(page.anchors, ["a-b-c-d", "a-b-c-d-1", "x_y-z"]);
        let links: Vec<(usize, &str)> =
            page.links.iter().map(|link| (link.line, link.target.as_str())).collect();
        assert_eq!(links, [(3, "a.md#b")]);
        let block = &page.blocks[0];
        assert_eq!((block.line, block.language.as_str()), (7, "sh"));
        assert_eq!(
            (block.words.as_slice(), block.before.trim()),
            (&["file=f".to_owned()][..], "Write `f`:")
        );
        assert_eq!(block.lines, ["# no [l](i.nk)"]);
    }
}
