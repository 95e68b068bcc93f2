//! Calls from many clients at once, every answer of which is read and judged.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::bench::client::{self, Connection};

/// What came of the calls.
#[derive(Debug, Default)]
pub(super) struct Responses {
    /// Results that are no error.
    pub(super) good: usize,
    /// Texts of results that are errors.
    pub(super) errors: Vec<String>,
    /// What was no answer at all.
    pub(super) lost: Vec<String>,
    pub(super) slowest: Duration,
    pub(super) elapsed: Duration,
}

impl Responses {
    pub(super) fn count(&self) -> usize {
        self.good + self.errors.len() + self.lost.len()
    }

    /// Calls each second.
    pub(super) fn rate(&self) -> f64 {
        self.count() as f64 / self.elapsed.as_secs_f64().max(f64::EPSILON)
    }

    /// Returns the first problem.
    pub(super) fn first_problem(&self) -> String {
        self.lost.first().or_else(|| self.errors.first()).cloned().unwrap_or_default()
    }

    pub(super) fn shown(&self) -> String {
        format!(
            "{} calls, {} errors, {} lost, {:.0}/s, slowest {:.2} s",
            self.count(),
            self.errors.len(),
            self.lost.len(),
            self.rate(),
            self.slowest.as_secs_f64()
        )
    }
}

/// Sends `count` requests from so many clients, each on a connection of its own that is kept.
pub(super) fn calls(
    address: &str,
    request: &[u8],
    clients: usize,
    count: usize,
    is_right: impl Fn(&[u8]) -> bool + Sync,
) -> Result<Responses, String> {
    let begun = AtomicUsize::new(0);
    let started = Instant::now();
    let parts = client::side_by_side(clients, || {
        let mut connection = Connection::open(address)?;
        let mut part = Responses::default();
        while begun.fetch_add(1, Ordering::Relaxed) < count {
            let asked = Instant::now();
            match connection.exchange(request) {
                Ok(answer) if client::is_good(&answer) && is_right(answer.body) => part.good += 1,
                Ok(answer) => match sentence(answer.body) {
                    Some(text) => part.errors.push(text),
                    None => part.lost.push(String::from_utf8_lossy(answer.body).into_owned()),
                },
                Err(problem) => {
                    part.lost.push(problem);
                    connection = Connection::open(address)?;
                }
            }
            part.slowest = part.slowest.max(asked.elapsed());
        }
        Ok(vec![part])
    })?;
    let mut all = Responses { elapsed: started.elapsed(), ..Responses::default() };
    for part in parts {
        all.good += part.good;
        all.errors.extend(part.errors);
        all.lost.extend(part.lost);
        all.slowest = all.slowest.max(part.slowest);
    }
    Ok(all)
}

/// Returns the text of a result that is an error.
fn sentence(body: &[u8]) -> Option<String> {
    let answer = client::message_of(body).ok()?;
    let result = answer.get("result").filter(|result| result["isError"] == true)?;
    let blocks = result["content"].as_array()?;
    blocks.iter().rev().find_map(|block| block["text"].as_str()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_read_from_both_kinds_of_answers() {
        let json = r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"gone"}],"isError":true}}"#;
        let stream = format!("3\r\n:\n\n\r\nBE\r\ndata: {json}\n\n\r\n0\r\n\r\n");
        for body in [json, &stream] {
            assert_eq!(sentence(body.as_bytes()).as_deref(), Some("gone"), "{body}");
        }
        assert_eq!(sentence(&stream.as_bytes()[..40]), None);
    }
}
