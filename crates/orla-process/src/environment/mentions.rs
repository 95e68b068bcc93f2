//! Finds the variables that a script mentions, in the syntax of shells, Python, Node.js and Ruby. Pure.

/// The text before a quoted name.
const QUOTED: [&str; 5] = ["os.environ[", "os.environ.get(", "os.getenv(", "process.env[", "ENV["];
/// The text before a bare name.
const BARE: [&str; 3] = ["process.env.", "${", "$"];

/// Returns the names of variables that a script mentions: `$NAME`, `${NAME}`, `os.environ["NAME"]`,
/// `os.environ.get("NAME"`, `os.getenv("NAME"`, `process.env.NAME`, `process.env["NAME"]`,
/// `ENV["NAME"]`. Repeated mentions are returned repeatedly.
pub fn mentioned(script: &str) -> impl Iterator<Item = &str> {
    let quoted = QUOTED.iter().flat_map(move |form| after(script, form).filter_map(quoted_name));
    let bare = BARE.iter().flat_map(move |form| after(script, form).filter_map(name));
    quoted.chain(bare)
}

/// Returns the text after each occurrence of `form`.
fn after<'s>(script: &'s str, form: &'static str) -> impl Iterator<Item = &'s str> {
    script.match_indices(form).map(move |(at, _)| &script[at + form.len()..])
}

fn quoted_name(text: &str) -> Option<&str> {
    let text = text.trim_start();
    let quote = text.chars().next().filter(|quote| matches!(quote, '"' | '\''))?;
    let name = name(&text[1..])?;
    text[1 + name.len()..].starts_with(quote).then_some(name)
}

/// Returns the variable name at the beginning of a text.
fn name(text: &str) -> Option<&str> {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let length = text.bytes().take_while(|byte| is_part(byte)).count();
    let starts_well = text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    starts_well.then(|| &text[..length])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_form_is_found() {
        for (script, names) in [
            ("echo $A_1 \"${B:-x}\" $1 $$ ${#C}", &["B", "A_1"][..]),
            ("os.environ[\"A\"]; os.environ.get('B', 1); os.getenv( \"C\")", &["A", "B", "C"]),
            ("process.env.A + process.env['B']", &["B", "A"]),
            ("ENV['A'] ENV.fetch", &["A"]),
            ("os.environ[name] os.getenv(\"A) price: 5$", &[]),
        ] {
            assert_eq!(mentioned(script).collect::<Vec<_>>(), names, "{script}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read(script in "(?s)(\\$|\\{|ENV\\[|'|\"|A|é|.){0,40}") {
            let _ = mentioned(&script).count();
        }
    }
}
