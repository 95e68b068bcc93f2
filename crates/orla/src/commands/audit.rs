//! `orla audit verify`: whether an audit log is as it was written.

use std::fs::{File, TryLockError};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use orla_marketplace::attestation::PublicKey;
use serde_json::Value;

use crate::config::{Source, read_text, reason};
use crate::governance::chain::{Break, Chain, MAX_LINE, Walk, first_record};
use crate::governance::head;
use crate::{Failure, render};

/// The largest file of heads that is read, in bytes.
const MAX_HEADS: u64 = 256 * 1024 * 1024;

/// Verifies logs, each of which continues the previous one.
pub(crate) fn verify(
    files: &[PathBuf],
    keys: &[PublicKey],
    heads: Option<&Path>,
    source: &Source,
) -> Result<(), Failure> {
    let configured;
    let files = match files {
        [] => {
            configured = super::load(source)?.governance.audit;
            std::slice::from_ref(&configured)
        }
        files => files,
    };
    let mut before: Option<(&Path, String)> = None;
    for path in files {
        if path.as_os_str().is_empty() {
            return Err(Failure::usage("no file: the configuration has no `audit`; give FILE"));
        }
        if files.len() > 1 {
            render::line(&format!("{}:", path.display()));
        }
        let end = verify_one(path, keys.to_vec(), heads)?;
        let continued = continued(path)
            .map_err(|err| Failure::failed(format!("{}: {}", path.display(), reason(&err))))?;
        match (before, continued) {
            (Some((_, end)), Some(hash)) if end == hash => {}
            (Some((former, _)), None) => {
                return Err(Failure::failed(format!(
                    "{}: it does not say which log it continues: it was begun anew, or does not follow {}",
                    path.display(),
                    former.display()
                )));
            }
            (Some((former, end)), Some(_)) => {
                return Err(Failure::failed(format!(
                    "{}: it does not continue {}, whose last hash is {end}: a file between them is missing, or the order is \
                     another",
                    path.display(),
                    former.display()
                )));
            }
            (None, Some(hash)) => render::note(&format!(
                "Not checked: the log that it continues, whose last hash is {hash} (give its file before this one)."
            )),
            (None, None) => {}
        }
        before = Some((path, end));
    }
    Ok(())
}

/// Returns the last hash of the log that this one continues, if it contains that hash.
fn continued(path: &Path) -> std::io::Result<Option<String>> {
    let mut line = Vec::new();
    BufReader::new(File::open(path)?).take(MAX_LINE as u64).read_until(b'\n', &mut line)?;
    let first: Option<Value> = serde_json::from_slice(&line).ok();
    Ok(first.and_then(|first| first["previous_hash"].as_str().map(str::to_owned)))
}

/// Walks the log from its beginning to its end, one line in memory at a time. Returns the last hash.
fn verify_one(path: &Path, keys: Vec<PublicKey>, heads: Option<&Path>) -> Result<String, Failure> {
    let failed = |why: String| Failure::failed(format!("{}: {why}", path.display()));
    let metadata = std::fs::metadata(path).map_err(|err| failed(reason(&err)))?;
    if !metadata.is_file() {
        return Err(failed("not a regular file".to_owned()));
    }
    let open = || File::open(path).map(BufReader::new).map_err(|err| failed(reason(&err)));
    // Heads are read first, so that a growing log is never behind them.
    let known = match heads {
        None => None,
        Some(file) => {
            let text = read_text(file, MAX_HEADS).map_err(Failure::failed)?;
            let log =
                first_record(&mut open()?).map_err(|err| failed(reason(&err)))?.unwrap_or_default();
            let newest = head::newest(&text, &log, &keys);
            let newest = newest.map_err(|why| Failure::failed(format!("{}: {why}", file.display())))?;
            let none = || {
                failed(format!(
                    "{} has no head of this log: the log was replaced, or is another one",
                    file.display()
                ))
            };
            Some(newest.ok_or_else(none)?)
        }
    };
    let has_keys = !keys.is_empty();
    let log = open()?;
    let is_being_written = is_locked(log.get_ref());
    let end = walk(log, Walk::checking(keys, known)).map_err(|stop| match stop {
        Stop::Unreadable(why) => failed(why),
        Stop::Broken(Break { line, reason }) => failed(format!("line {line} is broken: {reason}")),
    })?;
    let unsigned = end.chain.seq - end.signed;
    if has_keys && end.signed == 0 && end.chain.seq > 0 && !is_being_written {
        return Err(failed("no record is signed by the key: the log may have been replaced".to_owned()));
    }
    if has_keys && unsigned > 0 && !is_being_written {
        return Err(failed(format!(
            "the last {} not signed: added after the last signature, or written just before the server was killed",
            counted(unsigned, "record is", "records are")
        )));
    }
    render::line(&format!(
        "ok: {}, the last hash is {}",
        counted(end.chain.seq, "record", "records"),
        end.chain.hash
    ));
    if has_keys {
        render::line(&format!("signed up to record {}", end.signed));
    } else {
        render::note("Not checked: whether the log was replaced as a whole (--key checks it).");
    }
    if has_keys && unsigned > 0 {
        render::note(&format!(
            "Not signed yet: the last {}; a server is writing the log.",
            counted(unsigned, "record", "records")
        ));
    }
    if heads.is_none() {
        render::note("Not checked: whether records are missing at the end (--heads checks it).");
    }
    Ok(end.chain.hash)
}

fn counted(count: u64, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}

/// Returns whether a server holds the log.
fn is_locked(log: &File) -> bool {
    let locked = log.try_lock_shared();
    // The lock was only tested, and is released at once: a server may start meanwhile.
    let _ = log.unlock();
    matches!(locked, Err(TryLockError::WouldBlock))
}

/// Walks a whole log: how many records it has, and the hash of the last one.
///
/// # Errors
///
/// Returns which line is broken, or why the log cannot be read.
pub(super) fn walk_whole(log: File) -> Result<(u64, String), String> {
    match walk(BufReader::new(log), Walk::checking(Vec::new(), None)) {
        Ok(End { chain, .. }) => Ok((chain.seq, chain.hash)),
        Err(Stop::Unreadable(why)) => Err(format!("the audit log cannot be read: {why}")),
        Err(Stop::Broken(Break { line, reason })) => Err(format!("line {line} is broken: {reason}")),
    }
}

/// Where a log ends.
#[derive(Debug, PartialEq)]
struct End {
    chain: Chain,
    /// The number of the last record that is a good signature.
    signed: u64,
}

#[derive(Debug, PartialEq)]
enum Stop {
    Unreadable(String),
    Broken(Break),
}

fn walk(mut log: impl BufRead, mut walk: Walk) -> Result<End, Stop> {
    let (mut line, mut count) = (Vec::new(), 0);
    loop {
        line.clear();
        let mut bounded = log.by_ref().take(MAX_LINE as u64 + 1);
        bounded.read_until(b'\n', &mut line).map_err(|err| Stop::Unreadable(reason(&err)))?;
        count += 1;
        if line.len() > MAX_LINE {
            let reason = "it is longer than any line of an audit log";
            return Err(Stop::Broken(Break { line: count, reason }));
        }
        match line.strip_suffix(b"\n") {
            Some(line) => walk.line(line).map_err(Stop::Broken)?,
            None => {
                let signed = walk.signed();
                let chain = walk.finish(&line).map_err(Stop::Broken)?;
                return Ok(End { chain, signed });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_an_end_is_not_read_without_an_end() {
        let endless = std::io::repeat(b'x').take(10 * MAX_LINE as u64);
        let reason = "it is longer than any line of an audit log";
        assert_eq!(
            walk(BufReader::new(endless), Walk::default()),
            Err(Stop::Broken(Break { line: 1, reason }))
        );
        assert_eq!(walk(&b""[..], Walk::default()).map(|end| end.chain.seq), Ok(0));
    }
}
