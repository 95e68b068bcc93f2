//! Whatever the pieces in which standard error arrives, its text and its notices are the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use orla_marketplace::Notice;
use orla_process::directives::{Filter, Sink};

#[derive(Default)]
struct Seen {
    text: Vec<u8>,
    notices: Vec<String>,
}

impl Sink for Seen {
    fn text(&mut self, bytes: &[u8]) {
        self.text.extend_from_slice(bytes);
    }

    fn notice(&mut self, notice: Notice) {
        self.notices.push(format!("{notice:?}"));
    }
}

fn seen<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Seen {
    let (mut filter, mut seen) = (Filter::default(), Seen::default());
    pieces.for_each(|piece| filter.feed(piece, &mut seen));
    filter.finish(&mut seen);
    seen
}

fuzz_target!(|input: (u8, Vec<u8>)| {
    let (size, bytes) = input;
    let whole = seen(std::iter::once(bytes.as_slice()));
    let cut = seen(bytes.chunks(usize::from(size).max(1)));
    assert_eq!(whole.text, cut.text);
    assert_eq!(whole.notices, cut.notices);
    assert!(whole.text.len() <= bytes.len());
    if whole.notices.is_empty() {
        assert_eq!(whole.text, bytes);
    }
});
