//! Finds heads of HTTP/1 requests that have both `Content-Length` and `Transfer-Encoding`.
//!
//! Such a request has two lengths, and a proxy in front of the server may have used the other one
//! (request smuggling, RFC 9112 §6.3). hyper removes the `Content-Length` before a handler runs, so this
//! module scans the bytes for lines that begin with either name, up to an empty line. Bodies are scanned
//! too; JSON never has such lines.

/// The longest name with its colon.
const NAMED: usize = "transfer-encoding:".len();

/// Scans the bytes of one connection, in pieces of any size.
#[derive(Debug, Default)]
pub(crate) struct Framing {
    /// The beginning of the line that is not complete yet, up to the longest name.
    line: Vec<u8>,
    has_length: bool,
    has_encoding: bool,
}

impl Framing {
    /// Returns whether these bytes complete a head with both headers.
    pub(crate) fn is_ambiguous(&mut self, bytes: &[u8]) -> bool {
        let (mut found, mut rest) = (false, bytes);
        while let Some(end) = memchr::memchr(b'\n', rest) {
            let (line, after) = (&rest[..end], &rest[end + 1..]);
            if self.line.is_empty() {
                found |= self.end_line(line);
            } else {
                self.begin_line(line);
                let line = std::mem::take(&mut self.line);
                found |= self.end_line(&line);
            }
            rest = after;
        }
        self.begin_line(rest);
        found
    }

    /// Keeps the beginning of a line whose end is in another piece.
    fn begin_line(&mut self, piece: &[u8]) {
        let room = NAMED - self.line.len();
        self.line.extend_from_slice(&piece[..piece.len().min(room)]);
    }

    fn end_line(&mut self, line: &[u8]) -> bool {
        let line = &line[..line.len().min(NAMED)];
        let is_of =
            |name: &[u8]| line.get(..name.len()).is_some_and(|line| line.eq_ignore_ascii_case(name));
        self.has_length |= is_of(b"content-length:");
        self.has_encoding |= is_of(b"transfer-encoding:");
        let is_ambiguous = self.has_length && self.has_encoding;
        if line.trim_ascii().is_empty() {
            (self.has_length, self.has_encoding) = (false, false);
        }
        is_ambiguous
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ambiguous_head_is_found_in_any_chunks() {
        let head = |lines: &str| format!("POST /mcp HTTP/1.1\r\nHost: x\r\n{lines}\r\n");
        let (length, encoding) = ("content-LENGTH: 5\r\n", "Transfer-Encoding: chunked\r\n");
        for (text, expected) in [
            (head(length), false),
            (head(encoding), false),
            (head(&format!("{length}{encoding}")), true),
            (head(&format!("{encoding}X: y\n{length}")), true),
            (format!("{}hello{}", head(length), head(encoding)), false),
            (format!("{}hello{}", head(length), head(&format!("{length}{encoding}"))), true),
            (head("X-Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"), false),
        ] {
            for size in [1, 7, text.len()] {
                let mut framing = Framing::default();
                let found = text.as_bytes().chunks(size).map(|piece| framing.is_ambiguous(piece));
                assert_eq!(found.fold(false, |any, one| any | one), expected, "{text:?} by {size}");
            }
        }
    }
}
