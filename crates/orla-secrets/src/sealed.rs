//! The encrypted form of a store: AES-256-GCM under a random key, with a new nonce for each change. No I/O.
//!
//! The file is a JSON object: `version`, `key` (the location of the key), `nonce` and `data`. The names
//! of secrets are inside of `data`, with their values. The other members are authenticated too.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::key::Protection;
use crate::secret::Secret;

/// The length of a key in bytes.
const KEY: usize = 32;
/// The version of the form.
const VERSION: u32 = 1;

/// All secrets by name.
pub(crate) type Secrets = BTreeMap<String, Secret>;

/// The key that seals a store.
#[derive(Clone)]
pub(crate) struct Key(Zeroizing<[u8; KEY]>);

impl Key {
    /// Generates a new key.
    pub(crate) fn random() -> Result<Self, Broken> {
        let mut bytes = Zeroizing::new([0; KEY]);
        SystemRandom::new().fill(&mut *bytes).map_err(|_| Broken::Randomness)?;
        Ok(Self(bytes))
    }

    /// Returns the key as text, for storage.
    pub(crate) fn to_text(&self) -> Zeroizing<String> {
        Zeroizing::new(BASE64.encode(*self.0))
    }

    /// Parses a text from [`to_text`](Self::to_text).
    pub(crate) fn from_text(text: &str) -> Option<Self> {
        let bytes = Zeroizing::new(BASE64.decode(text.trim()).ok()?);
        Some(Self(Zeroizing::new(bytes.as_slice().try_into().ok()?)))
    }

    fn cipher(&self) -> Result<LessSafeKey, Broken> {
        let key = UnboundKey::new(&AES_256_GCM, &*self.0).map_err(|_| Broken::Key)?;
        Ok(LessSafeKey::new(key))
    }
}

/// The content of a file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sealed {
    version: u32,
    /// The location of its key.
    pub(crate) key: Protection,
    nonce: String,
    data: String,
}

/// The reason why sealed secrets cannot be read, or secrets cannot be sealed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// The file has another format.
    Form,
    /// The file has a later version.
    Version(u32),
    /// The file was sealed with another key, or modified.
    Key,
    /// The system has no random numbers.
    Randomness,
}

impl Sealed {
    /// Seals secrets.
    pub(crate) fn seal(secrets: &Secrets, key: &Key, place: Protection) -> Result<Self, Broken> {
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).map_err(|_| Broken::Randomness)?;
        let plain: BTreeMap<&str, &str> =
            secrets.iter().map(|(name, secret)| (&**name, secret.expose())).collect();
        let mut data = Zeroizing::new(serde_json::to_vec(&plain).map_err(|_| Broken::Form)?);
        key.cipher()?
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(header(place)),
                &mut *data,
            )
            .map_err(|_| Broken::Key)?;
        Ok(Self {
            version: VERSION,
            key: place,
            nonce: BASE64.encode(nonce),
            data: BASE64.encode(&*data),
        })
    }

    /// Parses the text of a file.
    pub(crate) fn from_text(text: &[u8]) -> Result<Self, Broken> {
        let sealed: Self = serde_json::from_slice(text).map_err(|_| Broken::Form)?;
        match sealed.version {
            VERSION => Ok(sealed),
            later => Err(Broken::Version(later)),
        }
    }

    /// Returns the text of a file.
    pub(crate) fn to_text(&self) -> Result<String, Broken> {
        serde_json::to_string(self).map(|text| text + "\n").map_err(|_| Broken::Form)
    }

    /// Returns the secrets.
    pub(crate) fn open(&self, key: &Key) -> Result<Secrets, Broken> {
        let nonce = BASE64.decode(&self.nonce).ok().and_then(|bytes| bytes.try_into().ok());
        let nonce = Nonce::assume_unique_for_key(nonce.ok_or(Broken::Form)?);
        let mut data = Zeroizing::new(BASE64.decode(&self.data).map_err(|_| Broken::Form)?);
        let plain = key
            .cipher()?
            .open_in_place(nonce, Aad::from(header(self.key)), &mut data)
            .map_err(|_| Broken::Key)?;
        let plain: BTreeMap<String, String> = serde_json::from_slice(plain).map_err(|_| Broken::Form)?;
        Ok(plain.into_iter().map(|(name, value)| (name, value.into())).collect())
    }
}

/// Returns the authenticated data besides the secrets.
fn header(place: Protection) -> String {
    format!("orla secrets {VERSION} {place:?}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sealed(secrets: &Secrets, key: &Key) -> Sealed {
        Sealed::seal(secrets, key, Protection::KeyFile).unwrap()
    }

    proptest! {
        #[test]
        fn sealed_secrets_round_trip_and_are_not_in_the_text(
            secrets in proptest::collection::btree_map("[a-z]{12,20}", "(?s).{12,40}", 0..5)
        ) {
            let secrets: Secrets = secrets.into_iter().map(|(name, value)| (name, value.into())).collect();
            let key = Key::random().unwrap();
            let text = sealed(&secrets, &key).to_text().unwrap();
            for (name, value) in &secrets {
                prop_assert!(!text.contains(name.as_str()) && !text.contains(value.expose()));
            }
            let again = Key::from_text(&key.to_text()).unwrap();
            prop_assert_eq!(Sealed::from_text(text.as_bytes()).unwrap().open(&again), Ok(secrets));
        }

        #[test]
        fn any_text_is_read_or_refused(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Sealed::from_text(&text);
        }
    }

    #[test]
    fn another_key_and_a_changed_text_are_refused() {
        let secrets = Secrets::from([("name".to_owned(), Secret::from("value"))]);
        let key = Key::random().unwrap();
        let mut one = sealed(&secrets, &key);
        assert_eq!(one.open(&Key::random().unwrap()), Err(Broken::Key));
        one.key = Protection::Keyring;
        assert_eq!(one.open(&key), Err(Broken::Key));
        one.key = Protection::KeyFile;
        let mut data = BASE64.decode(&one.data).unwrap();
        data[0] ^= 1;
        one.data = BASE64.encode(data);
        assert_eq!(one.open(&key), Err(Broken::Key));
        assert!(matches!(Sealed::from_text(b"{}"), Err(Broken::Form)));
        let later = br#"{"version": 2, "key": "key_file", "nonce": "", "data": ""}"#;
        assert!(matches!(Sealed::from_text(later), Err(Broken::Version(2))));
    }
}
