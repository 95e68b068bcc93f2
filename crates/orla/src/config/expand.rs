//! `${VAR}` and `${VAR:-default}` in a text of the configuration.
//!
//! As in a shell, the default stands in for a variable that is not set *or* empty; it runs to the
//! first `}`. `$${` is a literal `${`, and a `$` before anything else means itself.
//!
//! The forms that MCP clients have in their files are variables too: `${env:VAR}`, `${input:ID}`, `${/}`.
//! What they stand for is the look-up's affair.

/// What is wrong with a text that has expansions.
#[derive(Debug, PartialEq)]
pub(crate) enum ExpandError {
    /// The variable is not set and has no default here.
    Missing(String),
    /// `${` without `}`, or a name that no variable has.
    Malformed(String),
}

/// The text with its variables filled in, and whether there were any.
pub(crate) fn expand(
    text: &str,
    lookup: &dyn Fn(&str) -> Option<String>,
) -> Result<(String, bool), ExpandError> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let mut expanded = false;
    while let Some(start) = rest.find("${") {
        out.push_str(&rest[..start]);
        let inside = &rest[start + 2..];
        if out.ends_with('$') {
            out.push('{');
            rest = inside;
            continue;
        }
        let Some(end) = inside.find('}') else {
            return Err(ExpandError::Malformed(rest[start..].to_owned()));
        };
        out.push_str(&value(&inside[..end], lookup)?);
        expanded = true;
        rest = &inside[end + 1..];
    }
    out.push_str(rest);
    Ok((out, expanded))
}

fn value(inside: &str, lookup: &dyn Fn(&str) -> Option<String>) -> Result<String, ExpandError> {
    let (name, default) = match inside.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inside, None),
    };
    if !is_proper(name) {
        return Err(ExpandError::Malformed(format!("${{{inside}}}")));
    }
    match (lookup(name), default) {
        (Some(value), None) => Ok(value),
        (Some(value), Some(_)) if !value.is_empty() => Ok(value),
        (_, Some(default)) => Ok(default.to_owned()),
        (None, None) => Err(ExpandError::Missing(name.to_owned())),
    }
}

fn is_proper(name: &str) -> bool {
    match name.split_once(':') {
        Some(("env", variable)) => is_variable(variable),
        Some(("input", id)) => !id.is_empty(),
        Some(_) => false,
        None => is_variable(name) || name == "/",
    }
}

fn is_variable(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// The environment variable that answers for what a client would ask a person.
pub(super) fn input_variable(id: &str) -> String {
    id.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect()
}

impl std::fmt::Display for ExpandError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Missing(name) if name.starts_with("input:") => {
                let id = &name["input:".len()..];
                let variable = input_variable(id);
                write!(
                    f,
                    "the input {id} is not known: set the environment variable {variable}, or give it a default in inputs"
                )
            }
            Self::Missing(name) => write!(
                f,
                "the environment variable {name} is not set (write ${{{name}:-default}} to give a default)",
                name = name.trim_start_matches("env:"),
            ),
            Self::Malformed(text) => write!(
                f,
                "`{text}` is not an expansion: it has the form ${{NAME}} or ${{NAME:-default}} ($${{ is a literal ${{)"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expand_here(text: &str) -> Result<(String, bool), ExpandError> {
        expand(text, &|name| match name {
            "HOME" => Some("/home/ada".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        })
    }

    #[test]
    fn fills_in_variables_and_defaults() {
        let cases = [
            ("plain $HOME {x}", "plain $HOME {x}", false),
            ("${HOME}/t", "/home/ada/t", true),
            ("${NOPE:-./t}", "./t", true),
            ("${EMPTY:-x}${EMPTY}", "x", true),
            ("${HOME:-x}", "/home/ada", true),
            ("${NOPE:-a:-b}", "a:-b", true),
            ("$${HOME}", "${HOME}", false),
            ("${NOPE:-}", "", true),
        ];
        for (text, value, expanded) in cases {
            let expected = value.replace("$${", "${");
            assert_eq!(expand_here(text), Ok((expected, expanded)), "{text}");
        }
    }

    #[test]
    fn says_what_is_missing_or_malformed() {
        assert_eq!(expand_here("a ${NOPE_X}"), Err(ExpandError::Missing("NOPE_X".into())));
        for text in
            ["${", "${}", "${a b}", "${1}", "x ${HOME", "${command:x}", "${input:}", "${env:a b}"]
        {
            assert!(matches!(expand_here(text), Err(ExpandError::Malformed(_))), "{text}");
        }
    }
}
