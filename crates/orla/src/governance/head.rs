//! The head of an audit log, signed: pure functions.
//!
//! A head states the last record of a log at a certain time. All records before it are in its hash, so one
//! signature covers the whole log so far. A log is identified by the hash of its first record.

use orla_marketplace::attestation::{PublicKey, SigningKey};
use serde::{Deserialize, Serialize};

/// Where a log was at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// The hash of the log's first record.
    pub(crate) log: String,
    /// The number of the last record.
    pub(crate) seq: u64,
    /// The hash of the last record.
    pub(crate) hash: String,
    /// When that was, as the log writes times.
    pub(crate) time: String,
}

/// A signature over a head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seal {
    /// The public key for its signature.
    pub(crate) key: String,
    pub(crate) signature: String,
}

impl Head {
    /// Returns the signed bytes. The first line keeps them apart from everything else that the key may
    /// sign.
    fn statement(&self) -> String {
        let Self { log, seq, hash, time } = self;
        format!("orla audit head 1\nlog {log}\nseq {seq}\nhash {hash}\ntime {time}\n")
    }

    pub(crate) fn sign(&self, key: &SigningKey) -> Seal {
        let signature = key.sign(self.statement().as_bytes());
        Seal { key: key.public().to_string(), signature }
    }

    /// Returns whether one of these keys has signed this head.
    pub(crate) fn is_signed(&self, seal: &Seal, keys: &[PublicKey]) -> bool {
        keys.iter().any(|key| {
            key.to_string() == seal.key && key.verifies(self.statement().as_bytes(), &seal.signature)
        })
    }
}

impl Seal {
    /// Returns whether it names one of these keys.
    pub(crate) fn is_by(&self, keys: &[PublicKey]) -> bool {
        keys.iter().any(|key| key.to_string() == self.key)
    }
}

/// A head in the form that is delivered.
#[derive(Deserialize, Serialize)]
struct Line {
    log: String,
    seq: u64,
    hash: String,
    time: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    signature: Option<String>,
}

/// Returns a head as a line of JSON, its end included.
pub(crate) fn line(head: Head, seal: Option<Seal>) -> String {
    let Head { log, seq, hash, time } = head;
    let (key, signature) = seal.map(|seal| (seal.key, seal.signature)).unzip();
    // A struct of texts and a number is always JSON.
    serde_json::to_string(&Line { log, seq, hash, time, key, signature }).unwrap_or_default() + "\n"
}

/// Returns the newest head of a log among published ones, one line each.
///
/// With keys, every head must be signed by one of them. A last line without an end was cut off by a
/// crash and is skipped.
///
/// # Errors
///
/// Returns the first line that is not a head, or not signed, with its number.
pub(crate) fn newest(text: &str, log: &str, keys: &[PublicKey]) -> Result<Option<Head>, String> {
    let mut newest: Option<Head> = None;
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    for (at, line) in whole.lines().enumerate() {
        let Ok(Line { log: of, seq, hash, time, key, signature }) = serde_json::from_str(line) else {
            return Err(format!("line {} is not a head of an audit log", at + 1));
        };
        let head = Head { log: of, seq, hash, time };
        let seal = key.zip(signature).map(|(key, signature)| Seal { key, signature });
        let is_signed = || seal.is_some_and(|seal| head.is_signed(&seal, keys));
        if !keys.is_empty() && !is_signed() {
            return Err(format!("line {} is not signed by the key", at + 1));
        }
        if head.log == log && newest.as_ref().is_none_or(|newest| newest.seq < head.seq) {
            newest = Some(head);
        }
    }
    Ok(newest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(seq: u64) -> Head {
        Head { log: "l".into(), seq, hash: format!("h{seq}"), time: "t".into() }
    }

    #[test]
    fn a_signature_is_for_one_head_and_one_key() {
        let (key, _) = SigningKey::generate().unwrap();
        let (other, _) = SigningKey::generate().unwrap();
        let seal = head(1).sign(&key);
        assert!(head(1).is_signed(&seal, &[other.public(), key.public()]));
        assert!(!head(2).is_signed(&seal, &[key.public()]));
        assert!(!head(1).is_signed(&seal, &[other.public()]));
        let renamed = Seal { key: other.public().to_string(), ..seal };
        assert!(!head(1).is_signed(&renamed, &[other.public(), key.public()]));
    }

    #[test]
    fn the_newest_head_of_a_log_counts() {
        let (key, _) = SigningKey::generate().unwrap();
        let signed = |head: Head| {
            let seal = head.sign(&key);
            line(head, Some(seal))
        };
        let other = Head { log: "other".into(), ..head(9) };
        let text =
            [signed(head(1)), signed(head(3)), signed(head(2)), signed(other)].concat() + "{\"torn";
        assert_eq!(newest(&text, "l", &[key.public()]), Ok(Some(head(3))));
        assert_eq!(newest(&text, "none", &[]), Ok(None));
        let unsigned = line(head(4), None);
        assert_eq!(newest(&unsigned, "l", &[]), Ok(Some(head(4))));
        assert!(newest(&unsigned, "l", &[key.public()]).is_err());
        assert!(newest("x\n", "l", &[]).unwrap_err().contains("line 1"));
    }
}
