//! Reads `[--FLAG…] [WHAT…]`, the arguments of a command that consists of parts.

/// What is asked for.
pub(crate) struct Parts<'a> {
    /// Whether the short form is wanted.
    pub(crate) is_quick: bool,
    /// Whether what is found now becomes what is expected.
    pub(crate) is_blessing: bool,
    names: Vec<&'a str>,
}

/// The flag of the short form.
pub(crate) const QUICK: &str = "--quick";
/// The flag by which what is found now becomes what is expected.
pub(crate) const BLESS: &str = "--bless";

impl<'a> Parts<'a> {
    /// # Errors
    /// An argument is neither a flag that the command has nor one of the known parts.
    pub(crate) fn of(arguments: &'a [String], flags: &[&str], known: &[&str]) -> Result<Self, String> {
        let (given_flags, names): (Vec<&str>, Vec<&str>) =
            arguments.iter().map(String::as_str).partition(|argument| flags.contains(argument));
        match names.iter().find(|name| !known.contains(name)) {
            Some(unknown) => {
                let expected = [flags, known].concat().join(", ");
                Err(format!("`{unknown}` is not one of: {expected}"))
            }
            None => Ok(Self {
                is_quick: given_flags.contains(&QUICK),
                is_blessing: given_flags.contains(&BLESS),
                names,
            }),
        }
    }

    /// Returns whether no part is asked for by name.
    pub(crate) fn is_all(&self) -> bool {
        self.names.is_empty()
    }

    /// Returns whether a part is to run: it is asked for by name, or none is.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.is_all() || self.names.contains(&name)
    }
}
