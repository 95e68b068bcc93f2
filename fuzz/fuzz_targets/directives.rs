//! Whatever the pieces in which standard error arrives, its text and its notices are the same.
#![no_main]

use std::sync::{Arc, Mutex};

use libfuzzer_sys::fuzz_target;
use orla_marketplace::NoticeSink;
use orla_process::runner::OutputFilter as _;
use orla_providers::tool::directives::Filter;

#[derive(Default)]
struct Seen {
    text: Vec<u8>,
    notices: Vec<String>,
}

fn seen<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Seen {
    let notices = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&notices);
    let mut filter =
        Filter::new(NoticeSink::new(move |notice| sink.lock().unwrap().push(format!("{notice:?}"))));
    let mut text = Vec::new();
    pieces.for_each(|piece| filter.feed(piece, &mut |kept| text.extend_from_slice(kept)));
    filter.finish(&mut |kept| text.extend_from_slice(kept));
    let notices = notices.lock().unwrap().clone();
    Seen { text, notices }
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
