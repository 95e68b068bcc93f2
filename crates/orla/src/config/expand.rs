//! `${VAR}` and `${VAR:-default}` in a text of the configuration.
//!
//! As in a shell, the default replaces a variable that is not set *or* empty. The default extends to the
//! first `}`. `$${` is a literal `${`, and a `$` before anything else means itself.
//!
//! The forms in the files of MCP clients are variables too: `${env:VAR}`, `${input:ID}`, `${/}`. The
//! look-up determines their values.
//!
//! `${secret:NAME}`, `${file:PATH}` and `${command:LINE}` are references to secrets, which have no
//! default. Braces within a command line come in pairs.

use orla_secrets::{Reference, ReferenceError, Secret};

/// The values of expansions.
#[derive(Clone, Copy)]
pub(crate) struct Values<'a> {
    /// The value of a variable.
    pub(crate) variable: &'a dyn Fn(&str) -> Option<String>,
    /// The value of a reference to a secret.
    pub(crate) reference: &'a dyn Fn(Reference<'_>) -> Result<Secret, ReferenceError>,
}

/// A problem with an expansion.
#[derive(Debug, PartialEq)]
pub(crate) enum ExpandError {
    /// The variable is not set and has no default here.
    Missing(String),
    /// `${` without `}`, or a name that no variable has.
    Malformed(String),
    /// A reference to a secret has no value.
    Reference(String),
}

/// Returns the text with its variables filled in, and whether there were any.
pub(crate) fn expand(text: &str, values: Values<'_>) -> Result<(String, bool), ExpandError> {
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
        let Some(end) = end_of(inside) else {
            return Err(ExpandError::Malformed(rest[start..].to_owned()));
        };
        match Reference::parse(&inside[..end]).map(values.reference) {
            Some(Ok(secret)) => out.push_str(secret.expose()),
            Some(Err(problem)) => return Err(ExpandError::Reference(problem.to_string())),
            None => out.push_str(&value(&inside[..end], values.variable)?),
        }
        expanded = true;
        rest = &inside[end + 1..];
    }
    out.push_str(rest);
    Ok((out, expanded))
}

/// Returns the text with its references to secrets filled in. Every other text stays as it is, except
/// that `$${` before a reference is a literal `${`.
pub(crate) fn expand_references(
    text: &str,
    reference: &dyn Fn(Reference<'_>) -> Result<Secret, ReferenceError>,
) -> Result<String, ExpandError> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        let (before, inside) = (&rest[..start], &rest[start + 2..]);
        let found = end_of(inside).and_then(|end| Some((end, Reference::parse(&inside[..end])?)));
        out.push_str(before);
        rest = inside;
        match found {
            Some(_) if before.ends_with('$') => out.push('{'),
            Some((end, found)) => {
                let secret =
                    reference(found).map_err(|problem| ExpandError::Reference(problem.to_string()))?;
                out.push_str(secret.expose());
                rest = &inside[end + 1..];
            }
            None if is_open(inside) && !before.ends_with('$') => {
                return Err(ExpandError::Malformed(format!("${{{inside}")));
            }
            None => out.push_str("${"),
        }
    }
    out.push_str(rest);
    Ok(out)
}

/// Returns whether a reference to a secret begins here that has no end.
fn is_open(inside: &str) -> bool {
    ["secret:", "file:", "command:"].iter().any(|form| inside.starts_with(form))
        && end_of(inside).is_none()
}

/// Where the expansion ends whose inside the text begins with.
fn end_of(inside: &str) -> Option<usize> {
    if !inside.starts_with("command:") {
        return inside.find('}');
    }
    let mut open = 0_usize;
    inside.bytes().position(|byte| {
        match byte {
            b'{' => open += 1,
            b'}' if open == 0 => return true,
            b'}' => open -= 1,
            _ => {}
        }
        false
    })
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

/// Returns the environment variable that replaces an input that a client would request from a person.
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
            Self::Reference(problem) => f.write_str(problem),
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
        let variable = |name: &str| match name {
            "HOME" => Some("/home/ada".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        };
        let reference = |reference: Reference<'_>| match reference {
            Reference::Secret("none") => Err(ReferenceError::NotSet { name: "none".to_owned() }),
            known => Ok(Secret::from(format!("<{known}>"))),
        };
        expand(text, Values { variable: &variable, reference: &reference })
    }

    #[test]
    fn fills_in_references_to_secrets() {
        for (text, value) in [
            ("Bearer ${secret:api/key}", "Bearer <secret:api/key>"),
            ("${file:/run/a b}${HOME}", "<file:/run/a b>/home/ada"),
            ("${command:awk '{print ${1}}' x}!", "<command:awk '{print ${1}}' x>!"),
            ("$${secret:x}", "${secret:x}"),
        ] {
            assert_eq!(expand_here(text).unwrap().0, value, "{text}");
        }
        let missing = expand_here("${secret:none}").unwrap_err();
        assert!(missing.to_string().contains("orla secret set none"), "{missing}");
        assert!(matches!(expand_here("${command:a {"), Err(ExpandError::Malformed(_))));
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
    fn references_alone_are_filled_in_in_declarations() {
        let fill = |text: &str| {
            expand_references(text, &|reference| Ok(Secret::from(format!("<{reference}>")))).unwrap()
        };
        for (text, filled) in [
            ("a${secret:x}b", "a<secret:x>b"),
            ("${HOME} $${HOME} ${", "${HOME} $${HOME} ${"),
            ("$${secret:x} ${file:y}", "${secret:x} <file:y>"),
        ] {
            assert_eq!(fill(text), filled);
        }
    }

    #[test]
    fn says_what_is_missing_or_malformed() {
        assert_eq!(expand_here("a ${NOPE_X}"), Err(ExpandError::Missing("NOPE_X".into())));
        for text in ["${", "${}", "${a b}", "${1}", "x ${HOME", "${other:x}", "${input:}", "${env:a b}"]
        {
            assert!(matches!(expand_here(text), Err(ExpandError::Malformed(_))), "{text}");
        }
    }
}
