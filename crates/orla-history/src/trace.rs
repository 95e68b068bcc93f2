//! W3C trace contexts: reads the context of the caller, and creates a span for each call. No I/O except
//! for random numbers.

use std::sync::Arc;

use crate::call::{Row, Trace};

/// Takes the calls that are part of sampled traces.
pub trait SpanSink: Send + Sync {
    /// Takes calls that have ended. Must not block.
    fn take(&self, rows: &[Row]);
}

/// How calls are traced.
pub struct Tracing {
    /// The part of the traces that begin here which is sampled, from 0 to 1.
    pub sample_ratio: f64,
    /// Takes the sampled calls.
    pub sink: Arc<dyn SpanSink>,
}

/// The trace context of one call, or of something that makes calls.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TraceContext {
    /// The trace, and the span.
    pub trace: Trace,
    /// Whether the trace is exported.
    pub is_sampled: bool,
}

impl TraceContext {
    /// Returns a new context within that of a caller. Without a valid one, a trace begins, which is sampled with this ratio.
    pub fn within(parent: Option<&str>, sample_ratio: f64) -> Self {
        let mut random = [0; 24];
        // Ids that are not random are better than no trace, and this fails on no supported system.
        let _ = getrandom::fill(&mut random);
        let (trace, span) = random.split_at_mut(16);
        // Zero is no id.
        (trace[15], span[7]) = (trace[15].max(1), span[7].max(1));
        let span_id = hex::encode(span);
        match parent.and_then(read) {
            Some((trace_id, parent_id, is_sampled)) => {
                let parent_id = Some(parent_id.to_owned());
                Self { trace: Trace { trace_id: trace_id.to_owned(), span_id, parent_id }, is_sampled }
            }
            None => {
                let draw = trace[..8].iter().fold(0_u64, |n, byte| n << 8 | u64::from(*byte));
                let is_sampled = (draw as f64) < sample_ratio * u64::MAX as f64 || sample_ratio >= 1.0;
                Self {
                    trace: Trace { trace_id: hex::encode(trace), span_id, parent_id: None },
                    is_sampled,
                }
            }
        }
    }

    /// Returns the context for nested calls, as a `traceparent`.
    pub fn traceparent(&self) -> Arc<str> {
        let flags = if self.is_sampled { "01" } else { "00" };
        format!("00-{}-{}-{flags}", self.trace.trace_id, self.trace.span_id).into()
    }
}

/// Returns the trace, the span and whether it is sampled, of a `traceparent`.
fn read(text: &str) -> Option<(&str, &str, bool)> {
    let is_hex = |text: &str, length: usize| {
        text.len() == length && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    let is_id =
        |text: &str, length: usize| is_hex(text, length) && text.bytes().any(|byte| byte != b'0');
    let mut parts = text.split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_valid = is_hex(version, 2)
        && version != "ff"
        && (version != "00" || parts.next().is_none())
        && is_id(trace, 32)
        && is_id(span, 16)
        && is_hex(flags, 2);
    let is_sampled = u8::from_str_radix(flags, 16).is_ok_and(|flags| flags & 1 == 1);
    is_valid.then_some((trace, span, is_sampled))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_call_is_within_the_span_of_its_caller() {
        let context = TraceContext::within(Some(PARENT), 0.0);
        assert!(context.is_sampled, "the caller decides");
        assert_eq!(context.trace.parent_id.as_deref(), Some("00f067aa0ba902b7"));
        let own = context.traceparent();
        assert!(own.starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-") && own.ends_with("-01"));
        assert_ne!(context.trace.span_id, "00f067aa0ba902b7");
        let unsampled = TraceContext::within(Some(&PARENT.replace("-01", "-00")), 1.0);
        assert!(!unsampled.is_sampled && unsampled.traceparent().ends_with("-00"));
        let next = TraceContext::within(Some(&own), 1.0);
        assert_eq!(next.trace.parent_id, Some(context.trace.span_id));
    }

    #[test]
    fn an_invalid_context_begins_a_trace() {
        for wrong in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
        ] {
            let context = TraceContext::within(Some(wrong), 1.0);
            assert!(context.trace.parent_id.is_none() && context.is_sampled, "{wrong}");
        }
        assert!(read("01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more").is_some());
        assert!(!TraceContext::within(None, 0.0).is_sampled);
        let sampled = (0..2000).filter(|_| TraceContext::within(None, 0.5).is_sampled).count();
        assert!((800..1200).contains(&sampled), "{sampled}");
    }
}
