//! Reads `[--quick] [WHAT…]`, the arguments of a command that consists of parts.

/// What is asked for.
pub(crate) struct Parts<'a> {
    /// Whether the short form is wanted.
    pub(crate) is_quick: bool,
    names: Vec<&'a str>,
}

impl<'a> Parts<'a> {
    /// # Errors
    /// An argument is neither `--quick` nor one of the known parts.
    pub(crate) fn of(arguments: &'a [String], known: &[&str]) -> Result<Self, String> {
        let (flags, names): (Vec<&str>, Vec<&str>) =
            arguments.iter().map(String::as_str).partition(|argument| *argument == "--quick");
        match names.iter().find(|name| !known.contains(name)) {
            Some(unknown) => {
                let expected = [&["--quick"], known].concat().join(", ");
                Err(format!("`{unknown}` is not one of: {expected}"))
            }
            None => Ok(Self { is_quick: !flags.is_empty(), names }),
        }
    }

    /// Whether no part is asked for by name.
    pub(crate) fn is_all(&self) -> bool {
        self.names.is_empty()
    }

    /// Whether a part is to run: it is asked for by name, or none is.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.is_all() || self.names.contains(&name)
    }
}
