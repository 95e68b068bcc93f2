//! Regular expressions.

/// Whether a character means something other than itself in a pattern.
pub(crate) fn is_special(c: char) -> bool {
    "\\.+*?()|[]{}^$#&-~".contains(c)
}
