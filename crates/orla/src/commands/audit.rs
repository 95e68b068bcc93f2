//! `orla audit verify`: whether an audit log is as it was written.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use crate::config::{Source, reason};
use crate::governance::audit::MAX_LINE;
use crate::governance::chain::{Break, Chain, Walk};
use crate::{Failure, render};

/// Walks the log from its beginning to its end, one line in memory at a time.
pub(crate) fn verify(file: Option<&Path>, source: &Source) -> Result<(), Failure> {
    let path = match file {
        Some(path) => path.to_owned(),
        None => {
            let config = source.load().map_err(|problems| Failure::configuration(&problems))?;
            config.governance.audit
        }
    };
    if path.as_os_str().is_empty() {
        return Err(Failure::usage("which file? The configuration has no `audit`; give FILE"));
    }
    let failed = |why: String| Failure::failed(format!("{}: {why}", path.display()));
    let metadata = std::fs::metadata(&path).map_err(|err| failed(reason(&err)))?;
    if !metadata.is_file() {
        return Err(failed("not a regular file".to_owned()));
    }
    let opened = File::open(&path).map_err(|err| failed(reason(&err)))?;
    let end = walk(BufReader::new(opened)).map_err(|stop| match stop {
        Stop::Unreadable(why) => failed(why),
        Stop::Broken(Break { line, reason }) => failed(format!("line {line} is broken: {reason}")),
    })?;
    let plural = if end.seq == 1 { "record" } else { "records" };
    render::line(&format!("ok: {} {plural}, the last hash is {}", end.seq, end.hash));
    Ok(())
}

#[derive(Debug, PartialEq)]
enum Stop {
    Unreadable(String),
    Broken(Break),
}

fn walk(mut log: impl BufRead) -> Result<Chain, Stop> {
    let (mut walk, mut line, mut count) = (Walk::default(), Vec::new(), 0);
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
            None => return walk.finish(&line).map_err(Stop::Broken),
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
        assert_eq!(walk(BufReader::new(endless)), Err(Stop::Broken(Break { line: 1, reason })));
        assert_eq!(walk(&b""[..]).map(|end| end.seq), Ok(0));
    }
}
