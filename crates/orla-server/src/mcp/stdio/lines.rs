//! Cuts bytes into lines of bounded length. A longer line is skipped without being kept.

use std::io;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Reads lines.
pub(crate) struct Lines<R> {
    reader: R,
    max: usize,
    buffer: BytesMut,
    /// How far `buffer` is known to have no line break.
    scanned: usize,
    /// The current line is beyond the bound.
    skipping: bool,
    ended: bool,
}

/// One line, without its line break.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    Text(Bytes),
    /// It was longer than the bound and is gone.
    TooLong,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(crate) fn new(reader: R, max: usize) -> Self {
        Self { reader, max, buffer: BytesMut::new(), scanned: 0, skipping: false, ended: false }
    }

    /// Returns the next line; the last one need not end with a line break. `None` at the end. May be
    /// dropped while it waits: nothing that was read is lost.
    pub(crate) async fn next(&mut self) -> io::Result<Option<Line>> {
        loop {
            let unseen = &self.buffer[self.scanned..];
            if let Some(at) = unseen.iter().position(|byte| *byte == b'\n') {
                let mut line = self.buffer.split_to(self.scanned + at + 1);
                self.scanned = 0;
                line.truncate(line.len() - 1);
                return Ok(Some(self.finish(line)));
            }
            self.scanned = self.buffer.len();
            if self.scanned > self.max {
                self.skipping = true;
            }
            if self.skipping {
                self.buffer.clear();
                self.scanned = 0;
            }
            if self.ended {
                let rest = std::mem::take(&mut self.buffer);
                self.scanned = 0;
                let nothing = rest.is_empty() && !self.skipping;
                return Ok(if nothing { None } else { Some(self.finish(rest)) });
            }
            self.buffer.reserve(8 * 1024);
            self.ended = self.reader.read_buf(&mut self.buffer).await? == 0;
        }
    }

    fn finish(&mut self, line: BytesMut) -> Line {
        if std::mem::take(&mut self.skipping) || line.len() > self.max {
            Line::TooLong
        } else {
            Line::Text(line.freeze())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    async fn lines(pieces: &[&[u8]], max: usize) -> Vec<Line> {
        let mut reader = tokio_test_reader(pieces);
        let mut lines = Lines::new(&mut reader, max);
        let mut found = Vec::new();
        while let Some(line) = lines.next().await.unwrap() {
            found.push(line);
        }
        found
    }

    /// Returns the pieces one read at a time.
    fn tokio_test_reader(pieces: &[&[u8]]) -> impl AsyncRead + Unpin {
        struct Pieces(std::collections::VecDeque<Vec<u8>>);
        impl AsyncRead for Pieces {
            fn poll_read(
                mut self: std::pin::Pin<&mut Self>,
                _: &mut std::task::Context<'_>,
                buffer: &mut tokio::io::ReadBuf<'_>,
            ) -> std::task::Poll<io::Result<()>> {
                if let Some(mut piece) = self.0.pop_front() {
                    let fits = piece.len().min(buffer.remaining());
                    buffer.put_slice(&piece[..fits]);
                    if fits < piece.len() {
                        piece.drain(..fits);
                        self.0.push_front(piece);
                    }
                }
                std::task::Poll::Ready(Ok(()))
            }
        }
        Pieces(pieces.iter().filter(|piece| !piece.is_empty()).map(|piece| piece.to_vec()).collect())
    }

    fn text(text: &'static str) -> Line {
        Line::Text(Bytes::from_static(text.as_bytes()))
    }

    #[tokio::test]
    async fn a_line_beyond_the_bound_is_skipped_and_the_next_one_is_read() {
        let found = lines(&[b"a\nbb", b"b\n", b"0123456789", b"0123456789\nlast"], 8).await;
        assert_eq!(found, [text("a"), text("bbb"), Line::TooLong, text("last")]);
        assert_eq!(lines(&[b"123456789"], 8).await, [Line::TooLong]);
        assert_eq!(lines(&[b"12345678\n"], 8).await, [text("12345678")]);
        assert_eq!(lines(&[], 8).await, []);
    }

    #[tokio::test]
    async fn a_skipped_line_takes_no_memory() {
        let mut lines = Lines::new(tokio::io::repeat(b'x').take(100_000_000), 1024);
        assert_eq!(lines.next().await.unwrap(), Some(Line::TooLong));
        assert!(lines.buffer.capacity() < 100_000, "{}", lines.buffer.capacity());
    }

    proptest! {
        #[test]
        fn lines_do_not_depend_on_chunks(
            bytes in proptest::collection::vec(prop_oneof![Just(b'\n'), Just(b'x')], 0..60),
            cuts in proptest::collection::vec(0_usize..60, 0..5),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let found = runtime.block_on(lines(&pieces, 10));
            let mut expected: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
            if expected.last().is_some_and(|last| last.is_empty()) {
                expected.pop();
            }
            prop_assert_eq!(found.len(), expected.len());
            for (line, expected) in found.into_iter().zip(expected) {
                match line {
                    Line::Text(text) => prop_assert!(text == expected && text.len() <= 10),
                    Line::TooLong => prop_assert!(expected.len() > 10),
                }
            }
        }
    }
}
