//! The limits on writes, common to all engines.

use crate::{Change, StateError};

/// The longest key, in bytes.
pub const MAX_KEY: usize = 512;

/// Every engine makes at least this many changes at once.
pub const MAX_CHANGES: usize = 1000;

/// How large values and batches may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one value.
    pub value: usize,
    /// Bytes of all keys and values of one batch.
    pub batch: usize,
    /// Changes of one batch, [`MAX_CHANGES`] or more.
    pub changes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { value: 32 << 20, batch: 64 << 20, changes: 1 << 20 }
    }
}

/// Returns the bytes of a batch, if all of it may be written.
///
/// # Errors
///
/// A key is invalid, there are too many changes, or something is larger than the limits.
pub fn check(changes: &[Change], limits: &Limits) -> Result<usize, StateError> {
    if changes.len() > limits.changes {
        return Err(StateError::new(format!(
            "the state cannot make {} changes at once: at most {} are allowed",
            changes.len(),
            limits.changes
        )));
    }
    let mut size = 0_usize;
    for Change { key, value, .. } in changes {
        check_key(key)?;
        let bytes = value.as_ref().map_or(0, bytes::Bytes::len);
        if bytes > limits.value {
            return Err(StateError::new(format!(
                "the state cannot hold {bytes} bytes under `{key}`: at most {} are allowed",
                limits.value
            )));
        }
        size = size.saturating_add(key.len()).saturating_add(bytes);
    }
    if size > limits.batch {
        return Err(StateError::new(format!(
            "the state cannot take {size} bytes at once: at most {} are allowed",
            limits.batch
        )));
    }
    Ok(size)
}

/// Checks that a text is a key: one to [`MAX_KEY`] printable ASCII characters.
///
/// # Errors
///
/// Returns an error if it is not.
pub fn check_key(key: &str) -> Result<(), StateError> {
    if key.is_empty() || key.len() > MAX_KEY {
        return Err(StateError::new(format!(
            "a key of the state has {} bytes: it must have 1 to {MAX_KEY}",
            key.len()
        )));
    }
    if !key.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') {
        return Err(StateError::new(format!(
            "`{}` is not a key of the state: only printable ASCII characters are allowed",
            key.escape_debug()
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_short_printable_ascii() {
        for good in ["a", "task/0193", "a b~!", &"k".repeat(MAX_KEY)] {
            assert!(check_key(good).is_ok(), "{good:?}");
        }
        for bad in ["", "a\n", "a\u{7f}", "ä", "a\0b", &"k".repeat(MAX_KEY + 1)] {
            assert!(check_key(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn values_and_batches_are_bounded() {
        let limits = Limits { value: 4, batch: 10, changes: 3 };
        let put = |key: &str, bytes: usize| Change::put(key, vec![0; bytes]);
        assert_eq!(check(&[put("a", 4), put("b", 4)], &limits).unwrap(), 10);
        assert!(check(&[put("a", 5)], &limits).is_err());
        assert!(check(&[put("a", 4), put("b", 4), Change::remove("c")], &limits).is_err());
        assert_eq!(check(&[], &limits).unwrap(), 0);
        let many = [Change::remove("a"), Change::remove("a"), Change::remove("a"), Change::remove("a")];
        assert!(check(&many[1..], &limits).is_ok() && check(&many, &limits).is_err());
    }
}
