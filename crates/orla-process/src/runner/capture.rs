//! Captures one output of a program, up to a limit.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;

/// The captured output of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Captured {
    /// The kept bytes. If output was dropped, text ends with a complete character.
    pub bytes: Vec<u8>,
    /// The number of bytes dropped after them.
    pub dropped: u64,
}

/// Filters an output of a program while it runs.
pub trait OutputFilter: fmt::Debug + Send {
    /// Takes the next piece of output, and passes the bytes to keep to `keep`.
    fn feed(&mut self, bytes: &[u8], keep: &mut dyn FnMut(&[u8]));

    /// Handles the end of the output.
    fn finish(&mut self, keep: &mut dyn FnMut(&[u8]));
}

impl Captured {
    fn keep(&mut self, bytes: &[u8], limit: usize) {
        let room = limit.saturating_sub(self.bytes.len()).min(bytes.len());
        // After the first dropped byte, nothing is kept.
        let room = if self.dropped == 0 { room } else { 0 };
        self.bytes.extend_from_slice(&bytes[..room]);
        self.dropped += (bytes.len() - room) as u64;
    }

    /// Drops an incomplete character at the end of truncated text.
    fn end_with_a_whole_character(&mut self) {
        if self.dropped == 0 {
            return;
        }
        if let Err(err) = str::from_utf8(&self.bytes)
            && err.error_len().is_none()
        {
            self.dropped += (self.bytes.len() - err.valid_up_to()) as u64;
            self.bytes.truncate(err.valid_up_to());
        }
    }
}

/// Reads one pipe without blocking.
pub(super) struct Reader {
    pipe: Option<OwnedFd>,
    captured: Captured,
    limit: usize,
    filter: Option<Box<dyn OutputFilter>>,
}

/// More than any pipe holds (an unprivileged process can ask for at most 1 MiB), so that draining ends
/// although another process goes on writing.
const DRAIN: usize = 2 * 1024 * 1024;

impl Reader {
    pub(super) fn new(
        pipe: Option<impl Into<OwnedFd>>,
        limit: usize,
        filter: Option<Box<dyn OutputFilter>>,
    ) -> io::Result<Self> {
        let pipe = pipe.map(Into::into);
        if let Some(pipe) = &pipe {
            fcntl_setfl(pipe, OFlags::NONBLOCK)?;
        }
        Ok(Self { pipe, captured: Captured::default(), limit, filter })
    }

    /// Returns the descriptor to poll; `None` once every writer has closed the other end.
    pub(super) fn pipe(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Reads once, at most `buffer`. Returns the number of bytes.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> usize {
        let Some(pipe) = &self.pipe else { return 0 };
        match rustix::io::read(pipe, &mut *buffer) {
            Ok(0) => self.pipe = None,
            Ok(count) => {
                self.take(&buffer[..count]);
                return count;
            }
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(_) => self.pipe = None,
        }
        0
    }

    /// Reads the available bytes, and ends.
    pub(super) fn finish(mut self, buffer: &mut [u8]) -> Captured {
        let mut drained = 0;
        while drained < DRAIN {
            match self.read(buffer) {
                0 => break,
                count => drained += count,
            }
        }
        if let Some(mut filter) = self.filter {
            filter.finish(&mut |bytes| self.captured.keep(bytes, self.limit));
        }
        self.captured.end_with_a_whole_character();
        self.captured
    }

    fn take(&mut self, bytes: &[u8]) {
        match &mut self.filter {
            None => self.captured.keep(bytes, self.limit),
            Some(filter) => filter.feed(bytes, &mut |kept| self.captured.keep(kept, self.limit)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_beyond_the_limit_are_counted() {
        type Case<'a> = (&'a [&'a [u8]], usize, &'a [u8], u64);
        let cases: &[Case<'_>] = &[
            (&[b"abc"], 3, b"abc", 0),
            (&[b"abc", b"de"], 4, b"abcd", 1),
            (&[b"abc", b"de"], 0, b"", 5),
            // An é that is cut in two is dropped as a whole, and nothing follows it.
            (&["aé".as_bytes(), b"b"], 2, b"a", 3),
            (&["aé".as_bytes(), b"b"], 3, "aé".as_bytes(), 1),
            (&["a漢".as_bytes()], 3, b"a", 3),
            // Bytes that are not text are not truncated further.
            (&[b"\xff\xfe\xc3"], 2, b"\xff\xfe", 1),
        ];
        for (pieces, limit, bytes, dropped) in cases {
            let mut captured = Captured::default();
            for piece in *pieces {
                captured.keep(piece, *limit);
            }
            captured.end_with_a_whole_character();
            assert_eq!(captured, Captured { bytes: bytes.to_vec(), dropped: *dropped });
        }
    }
}
