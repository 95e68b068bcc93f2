//! Server-sent events: bytes in, events out. No I/O here.

use bytes::{Buf, Bytes, BytesMut};

use super::lines::MAX_MESSAGE;

/// One event of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// The value of `data:`; empty for an event that only has an id.
    pub data: Bytes,
    /// The id with which the stream can be resumed after this event.
    pub id: Option<Bytes>,
    /// The pause before resuming, in milliseconds.
    pub retry: Option<u64>,
}

/// An event that is larger than its stream allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge;

/// Splits a stream into events.
#[derive(Debug)]
pub struct Events {
    buffer: BytesMut,
    /// The most bytes of one event.
    limit: usize,
    /// The length of the part of the buffer without a line end.
    searched: usize,
    /// Whether the last line ended in a carriage return, so that a following line feed belongs to it.
    after_return: bool,
    has_begun: bool,
    event: Event,
    /// The data of the event, if it has several lines.
    joined: BytesMut,
    has_data: bool,
    has_any: bool,
}

impl Default for Events {
    fn default() -> Self {
        Self::with_limit(MAX_MESSAGE)
    }
}

impl Events {
    /// Returns a stream of events of at most `limit` bytes; [`MAX_MESSAGE`] by default.
    pub fn with_limit(limit: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            limit,
            searched: 0,
            after_return: false,
            has_begun: false,
            event: Event::default(),
            joined: BytesMut::new(),
            has_data: false,
            has_any: false,
        }
    }

    /// Adds the next bytes of the stream.
    pub fn push(&mut self, bytes: &Bytes) {
        self.buffer.extend_from_slice(bytes);
        if !self.has_begun && self.buffer.len() >= 3 {
            self.has_begun = true;
            if self.buffer.starts_with(b"\xef\xbb\xbf") {
                self.buffer.advance(3);
                self.searched = self.searched.saturating_sub(3);
            }
        }
    }

    /// Returns whether an event is incomplete.
    pub fn is_within_event(&self) -> bool {
        self.has_any || !self.buffer.is_empty()
    }

    /// Returns the next complete event.
    ///
    /// # Errors
    /// The event that has begun is too large; nothing can be read after it.
    #[expect(
        clippy::should_implement_trait,
        reason = "`None` means that more bytes are needed, not the end"
    )]
    pub fn next(&mut self) -> Result<Option<Event>, TooLarge> {
        while let Some(line) = self.line()? {
            if line.is_empty() {
                let mut event = std::mem::take(&mut self.event);
                self.has_data = false;
                if !self.joined.is_empty() {
                    event.data = std::mem::take(&mut self.joined).freeze();
                }
                if std::mem::take(&mut self.has_any) {
                    return Ok(Some(event));
                }
            } else {
                self.field(&line)?;
            }
        }
        Ok(None)
    }

    fn line(&mut self) -> Result<Option<Bytes>, TooLarge> {
        if self.after_return && !self.buffer.is_empty() {
            self.after_return = false;
            if self.buffer[0] == b'\n' {
                self.buffer.advance(1);
                self.searched = 0;
            }
        }
        let Some(end) = memchr::memchr2(b'\n', b'\r', &self.buffer[self.searched..]) else {
            self.searched = self.buffer.len();
            return if self.buffer.len() > self.limit { Err(TooLarge) } else { Ok(None) };
        };
        let end = self.searched + end;
        self.searched = 0;
        if end > self.limit {
            return Err(TooLarge);
        }
        self.after_return = self.buffer[end] == b'\r';
        let line = self.buffer.split_to(end + 1).freeze();
        Ok(Some(line.slice(..end)))
    }

    fn field(&mut self, line: &Bytes) -> Result<(), TooLarge> {
        let (name, value) = match memchr::memchr(b':', line) {
            // A comment.
            Some(0) => return Ok(()),
            Some(colon) => {
                let value = line.slice(colon + 1..);
                (&line[..colon], if value.starts_with(b" ") { value.slice(1..) } else { value })
            }
            None => (&line[..], Bytes::new()),
        };
        match name {
            b"data" if self.has_data => {
                if self.joined.is_empty() {
                    self.joined.extend_from_slice(&self.event.data);
                }
                if self.joined.len() + 1 + value.len() > self.limit {
                    return Err(TooLarge);
                }
                self.joined.extend_from_slice(b"\n");
                self.joined.extend_from_slice(&value);
            }
            b"data" => {
                self.event.data = value;
                self.has_data = true;
            }
            b"id" if !value.contains(&0) => self.event.id = Some(value),
            b"retry" => {
                self.event.retry = std::str::from_utf8(&value).ok().and_then(|ms| ms.parse().ok());
            }
            _ => return Ok(()),
        }
        self.has_any = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &[u8], size: usize) -> Vec<(String, Option<String>, Option<u64>)> {
        let mut events = Events::default();
        let mut found = Vec::new();
        for piece in text.chunks(size.max(1)) {
            events.push(&Bytes::copy_from_slice(piece));
            while let Some(event) = events.next().unwrap() {
                let text = |bytes: Bytes| String::from_utf8(bytes.to_vec()).unwrap();
                found.push((text(event.data), event.id.map(text), event.retry));
            }
        }
        found
    }

    const STREAM: &[u8] = b"\xef\xbb\xbf: hello\n\nevent: message\ndata: {\"a\":1}\n\nid: 7\nretry: 50\ndata:\n\r\ndata: x\r\ndata:  y\r\n\r\rid\rdata: z\r\rdata: cut";

    #[test]
    fn events_are_cut_wherever_the_pieces_end() {
        let event = |data: &str, id: Option<&str>, retry: Option<u64>| {
            (data.to_owned(), id.map(str::to_owned), retry)
        };
        let expected = [
            event("{\"a\":1}", None, None),
            event("", Some("7"), Some(50)),
            event("x\n y", None, None),
            event("z", Some(""), None),
        ];
        for size in 1..STREAM.len() {
            assert_eq!(read(STREAM, size), expected, "in pieces of {size}");
        }
    }

    #[test]
    fn an_event_without_end_is_refused() {
        let mut events = Events::default();
        events.push(&Bytes::from(vec![b'x'; MAX_MESSAGE]));
        assert_eq!(events.next(), Ok(None));
        events.push(&Bytes::from_static(b"xx"));
        assert_eq!(events.next(), Err(TooLarge));
        let mut events = Events::default();
        let line = Bytes::from([b"data: ".as_slice(), &[b'x'; 1024 * 1024], b"\n"].concat());
        let refused = (0..20).find(|_| {
            events.push(&line);
            events.next().is_err()
        });
        assert_eq!(refused, Some(15), "many lines are one event too");
    }

    proptest! {
        #[test]
        fn any_bytes_can_be_read(bytes in proptest::collection::vec(any::<u8>(), 0..300), size in 1..40_usize) {
            let mut events = Events::default();
            for piece in bytes.chunks(size) {
                events.push(&Bytes::copy_from_slice(piece));
                while let Ok(Some(_)) = events.next() {}
            }
        }

        #[test]
        fn written_events_are_read_back(data in proptest::collection::vec("[a-z{}:\" ]{0,20}", 1..6), size in 1..40_usize) {
            let text: String = data.iter().map(|data| format!("data: {data}\n\n")).collect();
            let found: Vec<String> = read(text.as_bytes(), size).into_iter().map(|event| event.0).collect();
            prop_assert_eq!(found, data);
        }
    }
}
