//! What capabilities of a provider are called that has several.

use orla_marketplace::id::Pattern;
use orla_marketplace::id::mcp_name;

/// Whether `name` is the id or the name of something below `id`.
pub(crate) fn is_below(id: &str, name: &str) -> bool {
    let rest = |start: &str, separator: &str| {
        name.strip_prefix(start).is_some_and(|rest| rest.starts_with(separator))
    };
    rest(id, ".") || rest(&mcp_name(&format!("{id}.")), "") || rest(id, "__")
}

/// Whether what has this name is included, where not all is, and not excluded.
pub(crate) fn is_chosen(include: Option<&[Pattern]>, exclude: &[Pattern], name: &str) -> bool {
    let is_included = include.is_none_or(|included| included.iter().any(|one| one.matches(name)));
    is_included && !exclude.iter().any(|one| one.matches(name))
}
