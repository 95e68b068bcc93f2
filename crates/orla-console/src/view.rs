//! JSON values and results of calls as people read them: a tree that folds, tables for lists of objects, images and
//! audio. Pure.

use maud::{Markup, html};

use crate::exact::Json;
use crate::text::{MAX_SHOWN, acts, plain, shortened, visible};

/// The maximum number of values of one result. Further values are left out, with a note.
const MAX_VALUES: usize = 3_000;
/// The maximum number of bytes of text of one result.
const MAX_BYTES: usize = 1024 * 1024;
/// The maximum number of parts of the content of one result.
const MAX_BLOCKS: usize = 300;
/// The deepest level of the tree. Deeper values are text.
const MAX_DEPTH: usize = 20;
/// The maximum number of columns of a table.
const MAX_COLUMNS: usize = 12;
/// The maximum number of bytes of an image or of audio.
const MAX_MEDIA: usize = 8 * 1024 * 1024;
/// The maximum number of bytes of JSON that is shown as text.
const MAX_TEXT: usize = 64 * 1024;

/// The remaining room on a page.
struct Room {
    values: usize,
    bytes: usize,
}

impl Room {
    fn new() -> Self {
        Self { values: MAX_VALUES, bytes: MAX_BYTES }
    }

    /// As much of a text as there is room for.
    fn text(&mut self, text: &str) -> Markup {
        let (shown, cut) = shortened(text, self.bytes.min(MAX_SHOWN));
        // A character that is escaped takes as much as some dozen others.
        let escapes = shown.chars().filter(|c| acts(*c)).count();
        self.bytes = self.bytes.saturating_sub(shown.len() + escapes * 40);
        html! { (plain(shown)) @if cut > 0 { span.escape { "… " (cut) " bytes more" } } }
    }
}

/// Returns a value as a tree.
pub(crate) fn value(value: &Json) -> Markup {
    value_within(value, &mut Room::new())
}

fn value_within(value: &Json, left: &mut Room) -> Markup {
    html! { div.value { (tree(value, 0, left)) } }
}

fn tree(value: &Json, depth: usize, left: &mut Room) -> Markup {
    let Some(rest) = left.values.checked_sub(1).filter(|_| left.bytes > 0) else {
        return html! { span.note { "…" } };
    };
    left.values = rest;
    if depth > MAX_DEPTH {
        return html! { code { (left.text(shortened(&value.to_string(), MAX_TEXT).0)) } };
    }
    match value {
        Json::Null => html! { span.null { "null" } },
        Json::Bool(is) => html! { span.bool { (is) } },
        Json::Number(number) => html! { span.number { (left.text(number)) } },
        Json::Text(text) if text.contains('\n') => html! { pre.text { (left.text(text)) } },
        Json::Text(text) => html! { span.text { (left.text(text)) } },
        Json::Array(items) if items.is_empty() => html! { span.null { "[ ]" } },
        Json::Object(members) if members.is_empty() => html! { span.null { "{ }" } },
        Json::Array(items) => {
            let shown = match columns(items) {
                Some(columns) => table(items, &columns, depth, left),
                None => html! {
                    ol start="0" { @for item in fitting(items, left.values) { li { (tree(item, depth + 1, left)) } } }
                },
            };
            let note = counted(items.len(), "item");
            folded(&note, depth < 3, &html! { (shown) (more(items.len(), left)) })
        }
        Json::Object(members) => {
            let shown = html! {
                dl {
                    @for (key, value) in fitting(members, left.values) {
                        div { dt { (left.text(key)) } dd { (tree(value, depth + 1, left)) } }
                    }
                }
                (more(members.len(), left))
            };
            if depth == 0 { shown } else { folded(&counted(members.len(), "member"), depth < 3, &shown) }
        }
    }
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// As many parts as there is room for.
fn fitting<T>(parts: &[T], left: usize) -> &[T] {
    &parts[..parts.len().min(left)]
}

fn more(count: usize, left: &Room) -> Markup {
    html! { @if left.values == 0 || left.bytes == 0 { p.note { "Too large to be shown whole: " (count) " parts here." } } }
}

fn folded(summary: &str, is_open: bool, content: &Markup) -> Markup {
    html! { details open[is_open] { summary { (summary) } (content) } }
}

/// Returns the columns of a list of objects that is a table.
fn columns(items: &[Json]) -> Option<Vec<&str>> {
    if items.len() < 2 {
        return None;
    }
    let mut columns: Vec<&str> = Vec::new();
    for item in items {
        let Json::Object(members) = item else { return None };
        for (key, _) in members {
            if !columns.contains(&&**key) {
                columns.push(key);
                if columns.len() > MAX_COLUMNS {
                    return None;
                }
            }
        }
    }
    (!columns.is_empty()).then_some(columns)
}

fn table(items: &[Json], columns: &[&str], depth: usize, left: &mut Room) -> Markup {
    html! {
        div.scroll tabindex="0" role="group" aria-label="Table" {
            table {
                thead { tr { @for column in columns { th scope="col" { (left.text(column)) } } } }
                tbody {
                    @for item in fitting(items, left.values) {
                        tr { @for column in columns {
                            td { @if let Some(value) = item.get(column) { (tree(value, depth + 3, left)) } }
                        } }
                    }
                }
            }
        }
    }
}

/// Returns the content of a result, as MCP writes it (`content`, `structuredContent`, `isError`), or any
/// other JSON.
pub(crate) fn result(output: &Json) -> Markup {
    let content = match output.get("content") {
        Some(Json::Array(blocks)) if blocks.iter().all(|block| block.get("type").is_some()) => blocks,
        _ => return value(output),
    };
    let structured = output.get("structuredContent");
    // The text of a result with a structured value repeats it.
    let repeats = |block: &Json| {
        let text = block.get("text").and_then(Json::as_text).and_then(|text| Json::parse(text).ok());
        structured.is_some_and(|value| text.is_some_and(|text| text.is_same(value)))
    };
    let mut left = Room::new();
    html! {
        @if let Some(structured) = structured { (value_within(structured, &mut left)) }
        @for block in content.iter().take(MAX_BLOCKS).filter(|block| !repeats(block)) { (content_block(block, &mut left)) }
        @if content.len() > MAX_BLOCKS { p.note { "The first " (MAX_BLOCKS) " of " (content.len()) " parts." } }
        @if let Some(meta) = output.get("_meta") {
            details { summary { "Metadata" } (value_within(meta, &mut left)) }
        }
    }
}

fn content_block(block: &Json, left: &mut Room) -> Markup {
    let text = |name: &str| block.get(name).and_then(Json::as_text).unwrap_or_default();
    let media = |family: &str| {
        let (kind, data) = (text("mimeType"), text("data"));
        let is_known = KNOWN_MEDIA.contains(&kind) && kind.starts_with(family);
        let is_data = !data.is_empty() && data.len() <= MAX_MEDIA && data.bytes().all(is_base64);
        (is_known && is_data).then(|| format!("data:{kind};base64,{data}"))
    };
    match text("type") {
        "text" => match Json::parse(text("text")) {
            Ok(json @ (Json::Object(_) | Json::Array(_))) => value_within(&json, left),
            _ => html! { pre.text { (left.text(text("text"))) } },
        },
        "image" => match media("image/") {
            Some(data) => html! { p { img.media src=(data) alt="Image of the result"; } },
            None => html! { p.note { "An image that cannot be shown: " (plain(text("mimeType"))) } },
        },
        "audio" => match media("audio/") {
            Some(data) => html! { p { audio controls src=(data) {} } },
            None => html! { p.note { "Audio that cannot be played: " (plain(text("mimeType"))) } },
        },
        "resource_link" => {
            html! { p { (left.text(text("name"))) " " code { (left.text(text("uri"))) } } }
        }
        _ => value_within(block, left),
    }
}

/// The kinds of media that are shown. SVG is not: it can have scripts in it.
const KNOWN_MEDIA: [&str; 12] = [
    "image/png",
    "image/jpeg",
    "image/gif",
    "image/webp",
    "image/avif",
    "image/bmp",
    "audio/mpeg",
    "audio/wav",
    "audio/x-wav",
    "audio/ogg",
    "audio/webm",
    "audio/mp4",
];

fn is_base64(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=')
}

/// Returns a text that can be copied, with its name. A text that would have to be cut is left out.
pub(crate) fn snippet(name: &str, text: &str) -> Markup {
    if text.len() > MAX_SHOWN {
        return html! { p.note { (name) ": too long to be shown" } };
    }
    html! {
        div.snippet {
            div.label { span { (name) } button.small type="button" data-copy hidden { "Copy" span.unseen { " " (name) } } }
            pre tabindex="0" { (visible(text)) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        result(&Json::parse(text).unwrap()).into_string()
    }

    #[test]
    fn lists_of_objects_are_tables() {
        let html = shown(r#"[{"a":1,"b":"x"},{"a":2}]"#);
        assert!(
            html.contains("<th scope=\"col\">a</th>") && html.matches("<tr>").count() == 3,
            "{html}"
        );
        assert!(!shown(r#"[{"a":1},2]"#).contains("<table"));
    }

    #[test]
    fn images_are_shown_and_scripts_are_not() {
        let image = |kind: &str, data: &str| {
            shown(&format!(r#"{{"content":[{{"type":"image","mimeType":"{kind}","data":"{data}"}}]}}"#))
        };
        assert!(image("image/png", "aGk=").contains("src=\"data:image/png;base64,aGk=\""));
        for (kind, data) in
            [("image/svg+xml", "aGk="), ("image/png", "x' onload='"), ("text/html", "aGk=")]
        {
            assert!(!image(kind, data).contains("<img"), "{kind}");
        }
    }

    #[test]
    fn a_structured_value_is_not_shown_twice() {
        let html =
            shown(r#"{"content":[{"type":"text","text":"{\"sum\":3}"}],"structuredContent":{"sum":3}}"#);
        assert_eq!(html.matches("sum").count(), 1, "{html}");
    }

    #[test]
    fn a_large_value_is_bounded() {
        let items: Vec<String> = (0..50_000).map(|n| n.to_string()).collect();
        assert!(shown(&format!("[{}]", items.join(","))).len() < 400_000);
    }
}
