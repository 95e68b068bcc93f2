//! Spans of a call: the processes that it starts, and the requests that it sends.
//!
//! An executor begins a span with [`NoticeSink::begin_span`](crate::NoticeSink::begin_span). Only the observer of the call learns
//! of it.

use std::time::{Duration, Instant};

use rtfs::text::excerpt;

use crate::error::MAX_SHOWN_CHARS;
use crate::notice::Observed;

/// A span that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Span {
    /// What was done.
    pub kind: SpanKind,
    /// The file name of the program, or the method and the origin of the request.
    pub name: String,
    /// The exit code by the shell's conventions, or the status of the answer; `None` if there is none.
    pub code: Option<i32>,
    /// When it began.
    pub started: Instant,
    /// From its beginning to its end.
    pub duration: Duration,
}

/// The kinds of spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// A process ran.
    Process,
    /// A request was sent over HTTP.
    Request,
}

/// A span that has begun. It ends when it is dropped.
#[must_use]
pub struct OpenSpan(Option<Open>);

struct Open {
    observed: Observed,
    span: Span,
}

impl OpenSpan {
    /// Begins a span, if somebody observes the call.
    pub(crate) fn new(
        observed: Option<&Observed>,
        kind: SpanKind,
        name: impl FnOnce() -> String,
    ) -> Self {
        Self(observed.map(|observed| Open {
            observed: observed.clone(),
            span: Span {
                kind,
                name: excerpt(observed.clean(name()), MAX_SHOWN_CHARS),
                code: None,
                started: Instant::now(),
                duration: Duration::ZERO,
            },
        }))
    }

    /// Sets the exit code, or the status of the answer.
    pub fn set_code(&mut self, code: i32) {
        if let Some(Open { span, .. }) = &mut self.0 {
            span.code = Some(code);
        }
    }
}

impl Drop for OpenSpan {
    fn drop(&mut self) {
        if let Some(Open { observed, mut span }) = self.0.take() {
            span.duration = span.started.elapsed();
            observed.on_span(span);
        }
    }
}
