//! Keys as subjects of NATS. No I/O.
//!
//! A key is one token. Characters that a subject cannot contain are written as `%XX`. Different keys
//! therefore have different subjects, and no key is a wildcard.

use std::fmt::Write as _;

/// Returns the token of a key.
pub(super) fn token(key: &str) -> String {
    let mut token = String::with_capacity(key.len());
    for byte in key.bytes() {
        match byte {
            b'.' | b'*' | b'>' | b' ' | b'%' => drop(write!(token, "%{byte:02X}")),
            plain => token.push(char::from(plain)),
        }
    }
    token
}

/// Returns the key of a token. `None` if no key has it.
pub(super) fn key(token: &str) -> Option<String> {
    let mut key = String::with_capacity(token.len());
    let mut bytes = token.bytes();
    while let Some(byte) = bytes.next() {
        let plain = match byte {
            b'%' => {
                let digits = [bytes.next()?, bytes.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            plain => plain,
        };
        key.push(char::from(plain));
    }
    (orla_state::check_key(&key).is_ok() && self::token(&key) == token).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn invalid_characters_of_a_subject_are_escaped() {
        assert_eq!(token("task/1"), "task/1");
        assert_eq!(token("a.b *>%"), "a%2Eb%20%2A%3E%25");
        for foreign in ["", "a%2eb", "a%41", "a%", "a%2", "ä", "a.b"] {
            assert_eq!(key(foreign), None, "{foreign:?}");
        }
    }

    proptest! {
        #[test]
        fn a_key_is_read_back(text in "[ -~]{1,200}") {
            let token = token(&text);
            prop_assert!(!token.contains(['.', '*', '>', ' ']));
            prop_assert_eq!(key(&token), Some(text));
        }

        #[test]
        fn any_token_can_be_read(text in "\\PC{0,100}") {
            if let Some(key) = key(&text) {
                prop_assert_eq!(token(&key), text);
            }
        }
    }
}
