//! The audit log's chain: pure functions between records and lines.
//!
//! A line is a JSON object whose last two members are `prev`, the hash of the line before it, and
//! `hash`, the SHA-256 of everything on the line before `,"hash"`. Lines are numbered from 1 by `seq`.
//! Changing, adding, removing or moving any line therefore breaks the chain.
//!
//! # Limits
//!
//! The chain alone does not show that the whole log was replaced, or that lines at its end are missing.
//! A signature of the head ([`head`](super::head)), which is also a record (`signed`), shows the former.
//! Heads that are stored elsewhere show the latter. A line that a crash cut off is followed by one that
//! confirms its bytes (`recovered`).

use std::io::{BufRead, Read};

use orla_marketplace::attestation::{PublicKey, hash_text};
use serde_json::{Map, Value, json};

use super::head::{Head, Seal};

/// The longest line, and the most of a file's end that is searched for the end of a line.
pub(crate) const MAX_LINE: usize = 1024 * 1024;

/// The value in place of the hash before the first line.
const BEGINNING: &str = "0000000000000000000000000000000000000000000000000000000000000000";
/// Before the hash of a line, and after it.
const HASH: &str = ",\"hash\":\"";
const END: &str = "\"}";
/// Hexadecimal digits of a hash.
const DIGITS: usize = 64;
/// The event of the line after a line that was cut off.
pub(super) const RECOVERED: &str = "recovered";
/// The event of the line that holds a signature over the head before it.
pub(super) const SIGNED: &str = "signed";

/// How far a log is: the end that the next line is chained to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    /// The number of the last line; 0 in an empty log.
    pub(crate) seq: u64,
    /// The hash of the last line.
    pub(crate) hash: String,
}

impl Default for Chain {
    fn default() -> Self {
        Self { seq: 0, hash: BEGINNING.to_owned() }
    }
}

/// The content of one event, without its place in the chain.
pub(crate) type Fields = Map<String, Value>;

impl Chain {
    /// Returns the next line, its end included.
    pub(super) fn append(&mut self, fields: Fields) -> String {
        let seq = self.seq + 1;
        let mut record = Map::with_capacity(fields.len() + 2);
        record.insert("seq".to_owned(), json!(seq));
        record.extend(fields);
        record.insert("prev".to_owned(), json!(self.hash));
        let mut line = Value::Object(record).to_string();
        line.pop();
        let hash = digits(line.as_bytes());
        line.extend([HASH, &hash, END, "\n"]);
        *self = Self { seq, hash };
        line
    }

    /// Returns the record of a signature over a head.
    pub(super) fn signed(seal: &Seal, time: &str) -> Fields {
        let mut fields = Fields::new();
        fields.insert("time".to_owned(), json!(time));
        fields.insert("event".to_owned(), json!(SIGNED));
        fields.insert("key".to_owned(), json!(seal.key));
        fields.insert("signature".to_owned(), json!(seal.signature));
        fields
    }

    /// Returns the end of a log whose last line is this one, as far as the line itself shows.
    ///
    /// # Errors
    ///
    /// Returns why it is not a line of a log.
    pub(super) fn at(line: &[u8]) -> Result<Self, &'static str> {
        read(line).map(|link| link.end)
    }

    /// Returns the line after one that a crash cut off.
    pub(super) fn recovered(torn: &[u8], time: &str) -> Fields {
        let mut fields = Fields::new();
        fields.insert("time".to_owned(), json!(time));
        fields.insert("event".to_owned(), json!(RECOVERED));
        fields.insert("torn_bytes".to_owned(), json!(torn.len()));
        fields.insert("torn_hash".to_owned(), json!(hash_text(torn)));
        fields
    }
}

/// Returns the hash of a log's first record, which identifies the log; it may follow a line that was cut
/// off. In a log whose beginning is missing, the first record that is there.
///
/// # Errors
///
/// Returns an error if the log cannot be read.
pub(crate) fn first_record(log: &mut impl BufRead) -> std::io::Result<Option<String>> {
    for _ in 0..2 {
        let mut line = Vec::new();
        log.by_ref().take(MAX_LINE as u64).read_until(b'\n', &mut line)?;
        let chain = Chain::at(line.strip_suffix(b"\n").unwrap_or(&line));
        if let Ok(chain) = chain {
            return Ok(Some(chain.hash));
        }
    }
    Ok(None)
}

/// A line's place in the chain.
struct Link {
    prev: String,
    /// A signature over the line before, and its time.
    seal: Option<(Seal, String)>,
    end: Chain,
    /// The line that it confirms, if it follows a line that was cut off.
    torn: Option<String>,
}

fn read(line: &[u8]) -> Result<Link, &'static str> {
    let head =
        line.len().checked_sub(HASH.len() + DIGITS + END.len()).ok_or("it is not a whole line")?;
    let (head, tail) = line.split_at(head);
    let hash = tail.strip_prefix(HASH.as_bytes()).and_then(|rest| rest.strip_suffix(END.as_bytes()));
    let hash = hash.and_then(|hash| str::from_utf8(hash).ok()).ok_or("it is not a whole line")?;
    if digits(head) != hash {
        return Err("it was changed: its hash does not match its content");
    }
    let record: Value = serde_json::from_slice(line).map_err(|_| "it is not a JSON object")?;
    let prev = record["prev"].as_str().ok_or("it has no prev")?.to_owned();
    let seq = record["seq"].as_u64().ok_or("it has no seq")?;
    let is_recovered = record["event"] == RECOVERED;
    let torn = record["torn_hash"].as_str().filter(|_| is_recovered).map(str::to_owned);
    let text = |key: &str| record[key].as_str().unwrap_or_default().to_owned();
    let seal = || (Seal { key: text("key"), signature: text("signature") }, text("time"));
    let seal = (record["event"] == SIGNED).then(seal);
    Ok(Link { prev, seal, end: Chain { seq, hash: hash.to_owned() }, torn })
}

/// Follows a log from its beginning, line by line.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    chain: Chain,
    /// The keys that signatures are checked with; without keys, signatures are not checked.
    keys: Vec<PublicKey>,
    /// A head of this log from elsewhere.
    known: Option<Head>,
    /// The hash of the first record.
    log: String,
    /// The number of the last record with a valid signature; 0 if there is no such record.
    signed: u64,
    /// The lines so far, including those that were cut off.
    line: u64,
    /// An incomplete line that the next line has not confirmed yet: its number, its hash, and its
    /// problem.
    torn: Option<(u64, String, &'static str)>,
}

/// Where a log is broken, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Break {
    /// Counted from 1.
    pub(crate) line: u64,
    pub(crate) reason: &'static str,
}

impl Walk {
    /// Also checks signatures by these keys, and that the log has this head.
    pub(crate) fn checking(keys: Vec<PublicKey>, known: Option<Head>) -> Self {
        Self { keys, known, ..Self::default() }
    }

    /// Returns the number of the last record with a valid signature; 0 if there is no such record.
    pub(crate) fn signed(&self) -> u64 {
        self.signed
    }

    /// Takes the next line, without its end.
    ///
    /// # Errors
    ///
    /// Returns the first line that is broken, which may be the one before.
    pub(crate) fn line(&mut self, line: &[u8]) -> Result<(), Break> {
        self.line += 1;
        let at = self.line;
        let link = match read(line) {
            Ok(link) => link,
            Err(reason) => {
                let before = self.torn.replace((at, hash_text(line), reason));
                return match before {
                    Some((line, _, reason)) => Err(Break { line, reason }),
                    None => Ok(()),
                };
            }
        };
        if let Some((line, hash, reason)) = self.torn.take()
            && link.torn.as_ref() != Some(&hash)
        {
            return Err(Break { line, reason });
        }
        if link.end.seq != self.chain.seq + 1 {
            return Err(Break { line: at, reason: "lines before it are missing, or stand elsewhere" });
        }
        if link.prev != self.chain.hash {
            return Err(Break { line: at, reason: "the line before it is not its predecessor" });
        }
        if let Some((seal, time)) = link.seal.filter(|_| !self.keys.is_empty()) {
            let Chain { seq, hash } = self.chain.clone();
            let head = Head { log: self.log.clone(), seq, hash, time };
            if !head.is_signed(&seal, &self.keys) {
                let reason = match seal.is_by(&self.keys) {
                    true => "it is not a signature of the key over the lines before it",
                    false => {
                        "it is signed by a key that was not given: if the key was changed, give both with --key"
                    }
                };
                return Err(Break { line: at, reason });
            }
            self.signed = link.end.seq;
        }
        self.chain = link.end;
        if self.chain.seq == 1 {
            self.log.clone_from(&self.chain.hash);
        }
        let known = self.known.as_ref().filter(|known| known.seq == self.chain.seq);
        if known.is_some_and(|known| known.hash != self.chain.hash) {
            return Err(Break {
                line: at,
                reason: "it is not the line of the log's head: the log was replaced",
            });
        }
        Ok(())
    }

    /// Returns the end of the log; the bytes after the last line end were cut off.
    ///
    /// # Errors
    ///
    /// Returns an error if the last line is broken.
    pub(crate) fn finish(self, cut_off: &[u8]) -> Result<Chain, Break> {
        if let Some((line, _, reason)) = self.torn {
            return Err(Break { line, reason });
        }
        if self.known.as_ref().is_some_and(|known| known.seq > self.chain.seq) {
            let reason = match cut_off {
                [] => "it is missing: the log's head is further on, so its end was cut off",
                _ => "it was cut off after it was written: the log's head includes it",
            };
            return Err(Break { line: self.line + 1, reason });
        }
        if !cut_off.is_empty() {
            let reason = match self.known {
                Some(_) => {
                    "it is incomplete, as after a crash; the next start of the server confirms it"
                }
                None => {
                    "it is incomplete: after a crash, the next start of the server confirms it; without a \
                    crash, the log was changed (--heads tells whether a whole line was cut)"
                }
            };
            return Err(Break { line: self.line + 1, reason });
        }
        Ok(self.chain)
    }
}

fn digits(bytes: &[u8]) -> String {
    let mut hash = hash_text(bytes);
    hash.split_off(hash.len() - DIGITS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn event(n: u64) -> Fields {
        let mut fields = Fields::new();
        fields.insert("event".to_owned(), json!("call"));
        fields.insert("capability".to_owned(), json!(format!("tool \"{n}\"\n")));
        fields
    }

    fn log(count: u64) -> Vec<u8> {
        let mut chain = Chain::default();
        (0..count).map(|n| chain.append(event(n))).collect::<String>().into_bytes()
    }

    fn walk(log: &[u8]) -> Result<Chain, Break> {
        let mut walk = Walk::default();
        let mut rest = log;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            walk.line(&rest[..end])?;
            rest = &rest[end + 1..];
        }
        walk.finish(rest)
    }

    fn lines(log: &[u8]) -> Vec<Vec<u8>> {
        log.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
    }

    #[test]
    fn an_untouched_log_is_whole() {
        assert_eq!(walk(b""), Ok(Chain::default()));
        let log = log(3);
        let end = walk(&log).unwrap();
        assert_eq!(end.seq, 3);
        let last = lines(&log).pop().unwrap();
        assert_eq!(Chain::at(&last[..last.len() - 1]), Ok(end));
        let first: Value = serde_json::from_slice(&lines(&log)[0]).unwrap();
        assert_eq!(first["seq"], 1);
        assert_eq!(first["prev"], BEGINNING);
        assert_eq!(first["capability"], "tool \"0\"\n");
    }

    #[test]
    fn the_first_line_that_does_not_fit_is_named() {
        let changed = |change: fn(&mut Vec<Vec<u8>>)| {
            let mut lines = lines(&log(5));
            change(&mut lines);
            walk(&lines.concat()).map_err(|broken| broken.line)
        };
        assert_eq!(changed(|lines| drop(lines.remove(0))), Err(1), "the first is gone");
        assert_eq!(changed(|lines| drop(lines.remove(2))), Err(3), "one is gone");
        assert_eq!(changed(|lines| lines.swap(1, 2)), Err(2), "two changed places");
        assert_eq!(changed(|lines| lines.insert(2, lines[1].clone())), Err(3), "one stands twice");
        assert_eq!(changed(|lines| lines[3][20] ^= 1), Err(4), "a byte changed");
        assert_eq!(changed(|lines| lines[4].truncate(30)), Err(5), "the last is cut off");
        assert_eq!(
            changed(|lines| lines[4].retain(|byte| *byte != b'\n')),
            Err(5),
            "its end is cut off"
        );
        assert_eq!(changed(|lines| lines.insert(1, b"\n".to_vec())), Err(2), "an empty line came");
        assert_eq!(changed(|lines| lines.push(b"x\n".to_vec())), Err(6), "a malformed line");
    }

    #[test]
    fn a_line_that_was_changed_and_hashed_anew_breaks_the_next() {
        let mut lines = lines(&log(3));
        let mut chain = Chain::default();
        lines[0] = chain.append(event(9)).into_bytes();
        assert_eq!(walk(&lines.concat()).map_err(|broken| broken.line), Err(2));
    }

    #[test]
    fn a_head_tells_a_line_that_was_cut_later_from_one_that_a_crash_cut() {
        let log = log(2);
        let torn = &lines(&log)[1][..30];
        let reason = |known: Option<u64>| {
            let head = known.map(|seq| Head {
                seq,
                log: String::new(),
                hash: String::new(),
                time: String::new(),
            });
            let chain = Chain { seq: 1, hash: String::new() };
            let walk = Walk { chain, line: 1, known: head, ..Walk::default() };
            let Break { line, reason } = walk.finish(torn).unwrap_err();
            assert_eq!(line, 2);
            reason
        };
        assert!(reason(None).contains("--heads"));
        assert!(reason(Some(1)).starts_with("it is incomplete, as after a crash"));
        assert!(reason(Some(2)).starts_with("it was cut off after it was written"));
    }

    #[test]
    fn a_line_that_was_cut_off_is_vouched_for_by_the_next() {
        let mut log = log(2);
        let mut chain = walk(&log).unwrap();
        let torn = b"{\"seq\":3,\"ti\0\0";
        log.extend(torn);
        assert!(walk(&log).is_err());
        log.push(b'\n');
        assert!(walk(&log).is_err());
        let other = chain.clone().append(event(7));
        assert_eq!(walk(&[&log[..], other.as_bytes()].concat()).map_err(|b| b.line), Err(3));
        log.extend(chain.append(Chain::recovered(torn, "now")).into_bytes());
        log.extend(chain.append(event(8)).into_bytes());
        assert_eq!(walk(&log).map(|end| end.seq), Ok(4));
        let at = log.windows(4).position(|bytes| bytes == b"ti\0\0").unwrap();
        log[at] = b'T';
        assert_eq!(walk(&log).map_err(|broken| broken.line), Err(3), "nor can it be changed");
    }

    proptest! {
        #[test]
        fn any_change_of_one_byte_is_found(at in any::<prop::sample::Index>(), to in any::<u8>()) {
            let mut log = log(4);
            let at = at.index(log.len());
            let same = log[at] == to;
            log[at] = to;
            prop_assert_eq!(walk(&log).is_ok(), same);
        }

        #[test]
        fn no_byte_comes_or_goes_unnoticed(at in any::<prop::sample::Index>(), with in any::<u8>()) {
            let log = log(4);
            let mut fewer = log.clone();
            fewer.remove(at.index(log.len()));
            prop_assert!(walk(&fewer).is_err());
            let mut more = log.clone();
            more.insert(at.index(log.len()), with);
            prop_assert!(walk(&more).is_err());
        }

        #[test]
        fn no_bytes_are_too_odd(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = walk(&bytes);
            let _ = Chain::at(&bytes);
        }
    }
}
