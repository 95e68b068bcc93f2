//! A stream of bytes as messages: one on each line, or a batch of them (2025-03-26).

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use super::framing::{Lines, MAX_MESSAGE};
use super::wire;

/// Splits a stream of bytes into messages.
#[derive(Debug, Default)]
pub struct Messages {
    lines: Lines,
    /// The remaining messages of a batch.
    batch: VecDeque<Bytes>,
}

impl Messages {
    /// Returns the buffer to append to, with room to read into.
    pub fn read_buffer(&mut self) -> &mut BytesMut {
        self.lines.read_buffer()
    }

    /// Returns the next complete message; `None` if more bytes are needed.
    ///
    /// # Errors
    /// The message that has begun is too long. It is dropped with all bytes after it.
    #[expect(
        clippy::should_implement_trait,
        reason = "`None` means that more bytes are needed, not the end"
    )]
    pub fn next(&mut self) -> Result<Option<Bytes>, String> {
        loop {
            if let Some(message) = self.batch.pop_front() {
                return Ok(Some(message));
            }
            match self.lines.next() {
                Ok(Some(line)) if line.starts_with(b"[") => self.batch.extend(wire::messages(line)),
                Ok(line) => return Ok(line),
                Err(_) => {
                    self.lines = Lines::default();
                    return Err(format!("it wrote a message of more than {} MiB", MAX_MESSAGE >> 20));
                }
            }
        }
    }

    /// Handles the end of the stream: a last line without an end is a message, too.
    pub fn end(&mut self) {
        self.batch.extend(self.lines.rest().map(wire::messages).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_the_parts_of_batches_are_messages_and_so_is_a_last_line_without_an_end() {
        let mut messages = Messages::default();
        messages.read_buffer().extend_from_slice(b"{\"a\":1}\n[{\"b\":2},{\"c\":3}]\n{\"d\"");
        let mut taken = || {
            let mut all = Vec::new();
            while let Some(message) = messages.next().unwrap() {
                all.push(String::from_utf8(message.to_vec()).unwrap());
            }
            messages.end();
            all
        };
        assert_eq!(taken(), [r#"{"a":1}"#, r#"{"b":2}"#, r#"{"c":3}"#]);
        assert_eq!(taken(), [r#"{"d""#]);
        assert!(taken().is_empty());
    }

    #[test]
    fn a_message_that_is_too_long_is_an_error_once() {
        let mut messages = Messages::default();
        messages.read_buffer().extend_from_slice(&vec![b'x'; MAX_MESSAGE + 1]);
        assert_eq!(messages.next(), Err("it wrote a message of more than 16 MiB".to_owned()));
        assert_eq!(messages.next(), Ok(None));
    }
}
