//! Checks the beginning of a state file and its log, before SQLite opens them. Pure.

use std::collections::BTreeSet;
use std::io::{self, Read, Seek, SeekFrom};

/// `application_id` of a state file: "orla".
pub(super) const APPLICATION: u32 = u32::from_be_bytes(*b"orla");
/// The version of the format that this version writes.
pub(super) const FORMAT: u32 = 1;
/// Bytes of a page of new files.
pub(super) const PAGE: u32 = 4096;
/// Bytes of a file's header.
pub(super) const HEADER: usize = 100;
/// Bytes of a log's header, and of the one before each of its pages.
const LOG_HEADER: usize = 32;
const FRAME_HEADER: usize = 24;

/// The reason why a file is not opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    /// It is something else.
    NotState,
    /// A part is missing or was overwritten.
    Damaged(String),
    /// It has another version's format.
    Version(u32),
}

/// A log beside the main file, as far as it was looked at.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// The pages that it holds.
    pages: BTreeSet<u32>,
}

/// Checks the header of a main file against the file's size. Returns the size of a page.
///
/// With a log, the main file may be shorter than its header says, because the missing pages are in the
/// log.
pub(super) fn check(
    header: &[u8],
    size: u64,
    log: impl FnOnce(u32) -> Result<Option<Log>, Problem>,
) -> Result<(), Problem> {
    const MAGIC: &[u8] = b"SQLite format 3\0";
    if size == 0 {
        return Err(Problem::Damaged("it is empty".to_owned()));
    }
    if !header.starts_with(MAGIC) {
        // A truncated file may be even shorter.
        return Err(match MAGIC.starts_with(header) {
            true => cut(size),
            false => Problem::NotState,
        });
    }
    if header.len() < HEADER {
        return Err(cut(size));
    }
    if word(header, 68) != APPLICATION {
        return Err(Problem::NotState);
    }
    if word(header, 60) != FORMAT {
        return Err(Problem::Version(word(header, 60)));
    }
    let page = match u32::from(header[16]) << 8 | u32::from(header[17]) {
        1 => 65536,
        page => page,
    };
    // 2: the file has a log.
    let modes = [header[18], header[19]] == [2, 2];
    let pages = word(header, 28);
    let counted = pages > 0 && word(header, 24) == word(header, 92);
    if !page.is_power_of_two() || page < 512 || !modes || !counted {
        return Err(Problem::Damaged("its header was overwritten".to_owned()));
    }
    let log = log(page)?;
    let whole = u32::try_from(size / u64::from(page)).unwrap_or(u32::MAX);
    // Pages beyond the count in the header do not matter.
    let in_log = |log: Log| log.pages.range(whole + 1..=pages).count();
    if whole < pages && log.map_or(0, in_log) < (pages - whole) as usize {
        return Err(cut(size));
    }
    Ok(())
}

fn cut(size: u64) -> Problem {
    Problem::Damaged(format!("it ends after {size} bytes"))
}

/// Looks at a log whose main file has pages of `page` bytes. A log that is empty, or that was never synced, is none.
pub(super) fn log(mut log: impl Read + Seek, page: u32) -> io::Result<Result<Option<Log>, Problem>> {
    let damaged = || Ok(Err(Problem::Damaged("its log was overwritten".to_owned())));
    let mut header = [0; LOG_HEADER];
    let got = fill(&mut log, &mut header)?;
    if header[..got].iter().all(|byte| *byte == 0) {
        // After a loss of power, a log may be all zeros.
        let mut rest = [0; 4096];
        loop {
            match fill(&mut log, &mut rest)? {
                0 => return Ok(Ok(None)),
                got if rest[..got].iter().any(|byte| *byte != 0) => return damaged(),
                _ => {}
            }
        }
    }
    // An incomplete header was being written, and nothing follows it.
    if got < LOG_HEADER {
        return Ok(Ok(None));
    }
    let magic = word(&header, 0) & !1 == 0x377f_0682;
    if !magic || word(&header, 8) != page {
        return damaged();
    }
    let salts = &header[16..24];
    let mut pages = BTreeSet::new();
    let mut frame = [0; FRAME_HEADER];
    let mut at = LOG_HEADER as u64;
    // Frames with other salts are of the log before this one.
    while fill(&mut log, &mut frame)? == FRAME_HEADER && frame[8..16] == *salts {
        pages.insert(word(&frame, 0));
        at += FRAME_HEADER as u64 + u64::from(page);
        log.seek(SeekFrom::Start(at))?;
    }
    Ok(Ok(Some(Log { pages })))
}

/// Reads until a buffer is full or the input ends.
pub(super) fn fill(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while got < buffer.len() {
        match input.read(&mut buffer[got..]) {
            Ok(0) => break,
            Ok(more) => got += more,
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            Err(err) => return Err(err),
        }
    }
    Ok(got)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |word, byte| word << 8 | u32::from(*byte))
}
