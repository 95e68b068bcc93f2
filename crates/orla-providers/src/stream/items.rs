//! Converts bytes to items, and items to bytes. Pure.

use bytes::{Buf, Bytes, BytesMut};
use orla_marketplace::{
    JsonText, Payload, SendAs, StreamItems, StreamOptions, StreamTransport, rtfs::Value,
};

/// The item exceeds the maximum size. Nothing can be read after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooLarge;

/// Splits bytes into lines.
#[derive(Debug)]
pub(super) struct Lines {
    chunk: Bytes,
    /// The beginning of a line whose end has not arrived.
    begun: BytesMut,
    max: usize,
}

impl Lines {
    /// Creates a splitter for lines of at most `max` bytes.
    pub(super) fn new(max: usize) -> Self {
        Self { chunk: Bytes::new(), begun: BytesMut::new(), max }
    }

    /// Adds the next bytes. All lines of the previous bytes have been taken.
    pub(super) fn push(&mut self, chunk: Bytes) {
        self.chunk = chunk;
    }

    /// Returns the next line that is not empty, without its end.
    ///
    /// # Errors
    /// The line is too long.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, TooLarge> {
        while !self.chunk.is_empty() {
            let Some(end) = memchr::memchr(b'\n', &self.chunk) else {
                if self.begun.len() + self.chunk.len() > self.max {
                    return Err(TooLarge);
                }
                self.begun.extend_from_slice(&self.chunk);
                self.chunk.clear();
                return Ok(None);
            };
            if self.begun.len() + end > self.max {
                return Err(TooLarge);
            }
            let line = self.chunk.split_to(end);
            self.chunk.advance(1);
            let line = self.whole(line);
            if !line.is_empty() {
                return Ok(Some(line));
            }
        }
        Ok(None)
    }

    /// Returns the text after the last line end, if everything has arrived.
    pub(super) fn rest(&mut self) -> Option<Bytes> {
        let line = self.whole(Bytes::new());
        (!line.is_empty()).then_some(line)
    }

    fn whole(&mut self, end: Bytes) -> Bytes {
        let line = if self.begun.is_empty() {
            end
        } else {
            self.begun.extend_from_slice(&end);
            std::mem::take(&mut self.begun).freeze()
        };
        if line.last() == Some(&b'\r') { line.slice(..line.len() - 1) } else { line }
    }
}

/// Decodes an item as a value.
///
/// # Errors
/// It does not have the format of items.
pub(super) fn decode(form: StreamItems, bytes: &Bytes) -> Result<Payload, String> {
    if form != StreamItems::Text {
        match JsonText::parse(bytes.clone()) {
            Ok(json) => return Ok(Payload::from_json(json)),
            Err(err) if form == StreamItems::Json => {
                return Err(format!("no JSON: {err}"));
            }
            Err(_) => {}
        }
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(Payload::from_value(Value::from(text))),
        Err(_) => Ok(Payload::from_value(Value::from(&*String::from_utf8_lossy(bytes)))),
    }
}

/// Returns the format of values that are sent to a stream.
pub(super) fn send_as(options: &StreamOptions) -> SendAs {
    options.send_as.unwrap_or(match (options.items, options.transport) {
        (StreamItems::Text, _) | (StreamItems::Auto, StreamTransport::WebSocket) => SendAs::Text,
        _ => SendAs::Json,
    })
}

/// Encodes a value as an item, on one line if items are lines.
///
/// # Errors
/// It cannot be an item.
pub(super) fn encode(form: SendAs, are_lines: bool, value: &Payload) -> Result<Bytes, String> {
    let json = value.json().map_err(|err| err.to_string())?;
    let text = json.as_str();
    if form == SendAs::Text && text.starts_with('"') {
        let text: String = serde_json::from_str(text).map_err(|err| err.to_string())?;
        return match are_lines && text.contains(['\n', '\r']) {
            true => Err("a text of one line, as each line is an item".to_owned()),
            false => Ok(text.into()),
        };
    }
    if !text.contains(['\n', '\r']) {
        return Ok(json.bytes().clone());
    }
    // JSON may have line ends between its tokens.
    let tree: serde_json::Value = serde_json::from_str(text).map_err(|err| err.to_string())?;
    Ok(tree.to_string().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lines(text: &[u8], size: usize) -> Vec<String> {
        let mut lines = Lines::new(20);
        let mut found = Vec::new();
        for chunk in text.chunks(size.max(1)) {
            lines.push(Bytes::copy_from_slice(chunk));
            while let Some(line) = lines.next().unwrap() {
                found.push(String::from_utf8(line.to_vec()).unwrap());
            }
        }
        found.extend(lines.rest().map(|line| String::from_utf8(line.to_vec()).unwrap()));
        found
    }

    #[test]
    fn lines_are_cut_wherever_the_chunks_end() {
        let text = b"a\n\nbc\r\n\r\nd e\nlast";
        for size in 1..=text.len() {
            assert_eq!(lines(text, size), ["a", "bc", "d e", "last"], "in chunks of {size}");
        }
        let mut long = Lines::new(3);
        long.push(Bytes::from_static(b"abc"));
        assert_eq!(long.next(), Ok(None));
        long.push(Bytes::from_static(b"d"));
        assert_eq!(long.next(), Err(TooLarge));
    }

    #[test]
    fn an_item_is_json_where_it_can_be_read_as_that() {
        let json = |form, text: &'static str| {
            decode(form, &Bytes::from_static(text.as_bytes()))
                .map(|item| item.json().unwrap().as_str().to_owned())
        };
        assert_eq!(json(StreamItems::Auto, r#"{"n": 1.10}"#).unwrap(), r#"{"n": 1.10}"#);
        assert_eq!(json(StreamItems::Auto, "hello there").unwrap(), r#""hello there""#);
        assert_eq!(json(StreamItems::Text, "17").unwrap(), r#""17""#);
        assert!(json(StreamItems::Json, "hello").unwrap_err().contains("no JSON"));
    }

    #[test]
    fn a_value_is_one_line() {
        let encoded = |form, json: &str| {
            let value = Payload::from_json(JsonText::parse(json.to_owned()).unwrap());
            encode(form, true, &value).map(|bytes| String::from_utf8(bytes.to_vec()).unwrap())
        };
        assert_eq!(encoded(SendAs::Json, r#"{"n": 1.10}"#).unwrap(), r#"{"n": 1.10}"#);
        assert_eq!(encoded(SendAs::Json, "[1,\n 2]").unwrap(), "[1,2]");
        assert_eq!(encoded(SendAs::Text, r#""plain""#).unwrap(), "plain");
        assert!(encoded(SendAs::Text, r#""two\nlines""#).is_err());
    }

    proptest! {
        #[test]
        fn written_lines_are_read_back(text in proptest::collection::vec("[a-z]{1,9}", 0..9), size in 1..12_usize) {
            prop_assert_eq!(lines(text.join("\n").as_bytes(), size), text);
        }

        #[test]
        fn any_bytes_are_items(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let bytes = Bytes::from(bytes);
            prop_assert!(decode(StreamItems::Auto, &bytes).is_ok() && decode(StreamItems::Text, &bytes).is_ok());
        }
    }
}
