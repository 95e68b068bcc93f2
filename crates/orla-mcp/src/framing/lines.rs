//! Line framing in both directions: input is split into bounded lines, output waits in a buffer. No I/O
//! here.

use bytes::{Bytes, BytesMut};

/// The maximum size of a message: 16 MiB.
pub const MAX_MESSAGE: usize = 16 * 1024 * 1024;
/// The initial buffer for reading, which is kept while nothing arrives.
const READ: usize = 16 * 1024;
/// The minimum free space; with less, the buffer grows.
const READ_LEAST: usize = 4 * 1024;
/// The maximum number of bytes of a large message that are read at once.
const READ_MOST: usize = 1024 * 1024;

/// Splits a stream of bytes into lines.
#[derive(Debug, Default)]
pub struct Lines {
    buffer: BytesMut,
    /// The length of the part of the buffer without a line end.
    searched: usize,
}

/// A line that is longer than [`MAX_MESSAGE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

impl Lines {
    /// Returns the buffer to append to, with room to read into.
    pub fn read_buffer(&mut self) -> &mut BytesMut {
        if self.buffer.is_empty() && self.buffer.capacity() > READ {
            self.buffer = BytesMut::new();
        }
        // A large message is read in growing pieces; small ones share a buffer.
        let least = self.buffer.len().clamp(READ_LEAST, READ_MOST);
        if self.buffer.capacity() - self.buffer.len() < least {
            self.buffer.reserve(least.max(READ));
        }
        &mut self.buffer
    }

    /// Returns the next complete line without its end.
    ///
    /// # Errors
    /// The line that has begun is too long; nothing can be read after it.
    #[expect(
        clippy::should_implement_trait,
        reason = "`None` means that more bytes are needed, not the end"
    )]
    pub fn next(&mut self) -> Result<Option<Bytes>, TooLong> {
        let end = memchr::memchr(b'\n', &self.buffer[self.searched..]);
        let Some(end) = end.map(|end| self.searched + end) else {
            self.searched = self.buffer.len();
            return if self.buffer.len() > MAX_MESSAGE { Err(TooLong) } else { Ok(None) };
        };
        self.searched = 0;
        if end > MAX_MESSAGE {
            return Err(TooLong);
        }
        let line = self.buffer.split_to(end + 1).freeze();
        Ok(Some(line.slice(..end)))
    }

    /// Returns the rest at the end of the stream: a line without an end.
    pub fn rest(&mut self) -> Option<Bytes> {
        self.searched = 0;
        let rest = self.buffer.split().freeze();
        (!rest.trim_ascii().is_empty() && rest.len() <= MAX_MESSAGE).then_some(rest)
    }
}

/// Bytes that wait to be written.
#[derive(Debug, Default)]
pub struct Outgoing {
    bytes: Vec<u8>,
    written: usize,
}

/// Beyond this size, written bytes are removed from the front of the buffer.
const COMPACT: usize = 256 * 1024;

impl Outgoing {
    /// Returns the buffer to append whole lines to.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Returns the bytes to write next.
    pub fn unwritten(&self) -> &[u8] {
        &self.bytes[self.written..]
    }

    /// Records that `count` bytes of [`unwritten`](Self::unwritten) were written.
    pub fn advance(&mut self, count: usize) {
        self.written += count;
        if self.written == self.bytes.len() {
            self.written = 0;
            // The capacity for one large message is not kept.
            if self.bytes.capacity() > COMPACT { self.bytes = Vec::new() } else { self.bytes.clear() }
        } else if self.written > COMPACT {
            self.bytes.drain(..self.written);
            self.written = 0;
        }
    }
}

/// Ends a JSON message that began at `start`, and puts it on one line: in JSON a line end is white
/// space.
pub fn end_line(out: &mut Vec<u8>, start: usize) {
    let mut from = start;
    while let Some(at) = memchr::memchr2(b'\n', b'\r', &out[from..]) {
        out[from + at] = b' ';
        from += at + 1;
    }
    out.push(b'\n');
}

/// The maximum length in bytes of a line that is quoted.
const MAX_QUOTED: usize = 200;

/// Returns the beginning of a line that is not a message, for a log line.
pub fn quoted(line: &[u8]) -> String {
    // A character has at most four bytes; a line may be long.
    let text = String::from_utf8_lossy(&line[..line.len().min(MAX_QUOTED + 4)]);
    let quoted = text[..text.floor_char_boundary(MAX_QUOTED)].replace(char::is_control, " ");
    if text.len() > MAX_QUOTED { quoted + "…" } else { quoted }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BufMut;

    #[test]
    fn lines_are_cut_wherever_the_pieces_end() {
        let mut lines = Lines::default();
        let mut got = Vec::new();
        for piece in ["a", "b\ncd\n\nef", "", "g\r\nrest"] {
            lines.read_buffer().put_slice(piece.as_bytes());
            while let Ok(Some(line)) = lines.next() {
                got.push(String::from_utf8(line.to_vec()).unwrap());
            }
        }
        assert_eq!(got, ["ab", "cd", "", "efg\r"]);
        assert_eq!(lines.rest().as_deref(), Some(&b"rest"[..]));
        assert_eq!(lines.rest(), None);
    }

    #[test]
    fn a_line_beyond_the_bound_is_refused_and_one_within_it_is_not() {
        let mut lines = Lines::default();
        lines.read_buffer().put_slice(&vec![b'x'; MAX_MESSAGE]);
        assert_eq!(lines.next(), Ok(None));
        lines.read_buffer().put_slice(b"\n");
        assert_eq!(lines.next().unwrap().unwrap().len(), MAX_MESSAGE);
        lines.read_buffer().put_slice(&vec![b'x'; MAX_MESSAGE + 1]);
        assert_eq!(lines.next(), Err(TooLong));
    }

    #[test]
    fn an_idle_stream_keeps_little_memory() {
        let mut lines = Lines::default();
        lines.read_buffer().put_slice(&vec![b'x'; 1024 * 1024]);
        lines.read_buffer().put_slice(b"\n");
        assert!(lines.next().unwrap().is_some());
        assert!(lines.read_buffer().capacity() <= 2 * READ, "{}", lines.buffer.capacity());
    }

    #[test]
    fn noise_is_quoted_in_200_bytes() {
        assert_eq!(quoted(b"hi\x1b[0m\n"), "hi [0m ");
        assert_eq!(quoted(&[b'x'; 300]).chars().count(), 201);
        assert_eq!(quoted("é".repeat(300).as_bytes()), "é".repeat(100) + "…");
        assert_eq!(quoted(format!("x{}", "é".repeat(300)).as_bytes()).len(), 199 + "…".len());
    }

    #[test]
    fn written_bytes_are_discarded() {
        let mut out = Outgoing::default();
        out.buffer().extend_from_slice(b"abc");
        out.advance(1);
        out.buffer().extend_from_slice(b"d");
        assert_eq!(out.unwritten(), b"bcd");
        out.advance(3);
        assert!(out.unwritten().is_empty());
        out.buffer().extend_from_slice(&vec![b'x'; 2 * COMPACT]);
        out.advance(COMPACT + 1);
        assert_eq!((out.unwritten().len(), out.bytes.len()), (COMPACT - 1, COMPACT - 1));
    }
}
