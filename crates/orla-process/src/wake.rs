//! Wakes a thread that sleeps in a poll.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{OFlags, fcntl_setfl};

/// Wakes a thread from its poll.
#[derive(Debug)]
pub(crate) struct Wake {
    reader: io::PipeReader,
    writer: io::PipeWriter,
}

impl Wake {
    pub(crate) fn new() -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        fcntl_setfl(&reader, OFlags::NONBLOCK)?;
        fcntl_setfl(&writer, OFlags::NONBLOCK)?;
        Ok(Self { reader, writer })
    }

    /// Returns a descriptor that is readable once [`wake`](Self::wake) was called.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }

    pub(crate) fn wake(&self) {
        // A full pipe wakes as well.
        let _ = rustix::io::write(&self.writer, &[0]);
    }

    pub(crate) fn clear(&self) {
        let mut bytes = [0; 64];
        while rustix::io::read(&self.reader, &mut bytes[..]).is_ok_and(|count| count == bytes.len()) {}
    }
}
