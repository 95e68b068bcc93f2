//! What a call says while it runs, as MCP notifications.
//!
//! Rendering is pure; an [`Audience`] ties it to the request's own stream. A notice is dropped where the
//! client did not ask for it: progress without a token, a log message below the wanted level,
//! progress that does not grow (the specification demands that it does).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use orla_marketplace::{LogLevel, Notice, NoticeSink, Progress};

use crate::rpc::{Id, push_json};

/// Takes finished messages for a client. Sending never blocks and works from any thread.
pub(crate) trait Outlet: Send + Sync {
    /// Sends a message, or drops it when the client is too slow for what is a mere notification.
    fn send(&self, message: Bytes);

    /// Sends a message that must not be dropped, waiting for room.
    fn deliver(&self, message: Bytes) -> BoxFuture<'_, ()> {
        self.send(message);
        Box::pin(std::future::ready(()))
    }
}

/// What a client wants to hear of a call.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Wanted {
    /// The JSON text of the token that it gave for progress.
    pub(crate) progress_token: Option<Box<str>>,
    /// The least grave log message.
    pub(crate) log_level: Option<LogLevel>,
}

impl Wanted {
    /// Whether the client wants to hear anything at all.
    pub(crate) fn anything(&self) -> bool {
        self.progress_token.is_some() || self.log_level.is_some()
    }
}

/// Who hears a call's notices: its request, and when that was answered before the call was over, the
/// request that takes the call up again.
pub(crate) struct Audience {
    inner: Mutex<Inner>,
}

struct Inner {
    /// Nobody hears while no request is open.
    hears: Option<(Wanted, Arc<dyn Outlet>)>,
    /// The newest progress.
    last: f64,
}

impl Audience {
    /// The audience of a request.
    pub(crate) fn new(wanted: Wanted, outlet: Arc<dyn Outlet>) -> Arc<Self> {
        let inner = Inner { hears: Some((wanted, outlet)), last: f64::NEG_INFINITY };
        Arc::new(Self { inner: Mutex::new(inner) })
    }

    /// Puts another in its place.
    pub(crate) fn replace(&self, hears: Option<(Wanted, Arc<dyn Outlet>)>) {
        self.lock().hears = hears;
    }

    /// A sink that renders what is wanted and hands it to the outlet, in order. `logger` names the
    /// capability.
    pub(crate) fn sink(self: Arc<Self>, logger: Arc<str>) -> NoticeSink {
        NoticeSink::new(move |notice| self.hear(notice, &logger))
    }

    fn hear(&self, notice: Notice, logger: &str) {
        // Held while sending, so that what grows also arrives in that order.
        let mut inner = self.lock();
        let Inner { hears: Some((wanted, outlet)), last } = &mut *inner else { return };
        match (notice, wanted) {
            (Notice::Progress(progress), Wanted { progress_token: Some(token), .. })
                if progress.progress.is_finite() && progress.progress > *last =>
            {
                *last = progress.progress;
                outlet.send(progress_message(token, &progress));
            }
            // The protocol has no word of its own for a result that is still being written.
            (Notice::Text(text), Wanted { log_level: Some(least), .. }) if LogLevel::Info >= *least => {
                outlet.send(log_message(LogLevel::Info, logger, &text));
            }
            (Notice::Log { level, message }, Wanted { log_level: Some(least), .. })
                if level >= *least =>
            {
                outlet.send(log_message(level, logger, &message));
            }
            _ => {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn progress_message(token: &str, progress: &Progress) -> Bytes {
    let mut out = Vec::with_capacity(128);
    out.extend_from_slice(
        br#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"#,
    );
    out.extend_from_slice(token.as_bytes());
    out.extend_from_slice(br#","progress":"#);
    push_number(&mut out, progress.progress);
    if let Some(total) = progress.total.filter(|total| total.is_finite()) {
        out.extend_from_slice(br#","total":"#);
        push_number(&mut out, total);
    }
    if let Some(message) = &progress.message {
        out.extend_from_slice(br#","message":"#);
        push_json(&mut out, message);
    }
    out.extend_from_slice(b"}}");
    out.into()
}

fn log_message(level: LogLevel, logger: &str, message: &str) -> Bytes {
    let mut out = Vec::with_capacity(128 + message.len());
    out.extend_from_slice(br#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":""#);
    out.extend_from_slice(level.as_str().as_bytes());
    out.extend_from_slice(br#"","logger":"#);
    push_json(&mut out, logger);
    out.extend_from_slice(br#","data":"#);
    push_json(&mut out, message);
    out.extend_from_slice(b"}}");
    out.into()
}

/// A notification that some list has changed; on a subscription with the id that asked for it.
pub(crate) fn list_changed(list: &str, subscription: Option<&Id>) -> Bytes {
    let mut out = begin(list, "list_changed");
    if let Some(id) = subscription {
        out.extend_from_slice(br#","params":{"#);
        push_subscription(&mut out, id);
        out.push(b'}');
    }
    out.push(b'}');
    out.into()
}

/// A notification that a resource has changed; on a subscription with the id that asked for it.
pub(crate) fn resource_updated(uri: &str, subscription: Option<&Id>) -> Bytes {
    let mut out = begin("resources", "updated");
    out.extend_from_slice(br#","params":{"uri":"#);
    push_json(&mut out, uri);
    if let Some(id) = subscription {
        out.push(b',');
        push_subscription(&mut out, id);
    }
    out.extend_from_slice(b"}}");
    out.into()
}

fn begin(list: &str, what: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(160);
    out.extend_from_slice(br#"{"jsonrpc":"2.0","method":"notifications/"#);
    out.extend_from_slice(format!("{list}/{what}\"").as_bytes());
    out
}

fn push_subscription(out: &mut Vec<u8>, id: &Id) {
    out.extend_from_slice(br#""_meta":{""#);
    out.extend_from_slice(crate::protocol::META_SUBSCRIPTION_ID.as_bytes());
    out.extend_from_slice(br#"":"#);
    out.extend_from_slice(id.as_str().as_bytes());
    out.push(b'}');
}

/// A whole number without the `.0` that floating point would get.
fn push_number(out: &mut Vec<u8>, number: f64) {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if number.fract() == 0.0 && number.abs() <= EXACT {
        #[expect(clippy::cast_possible_truncation, reason = "checked to be a whole number within 2^53")]
        push_json(out, &(number as i64));
    } else {
        push_json(out, &number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Kept(Mutex<Vec<String>>);

    impl Outlet for Kept {
        fn send(&self, message: Bytes) {
            self.0.lock().unwrap().push(String::from_utf8(message.to_vec()).unwrap());
        }
    }

    fn heard(wanted: Wanted, notices: impl IntoIterator<Item = Notice>) -> Vec<String> {
        let kept = Arc::new(Kept::default());
        let audience = Audience::new(wanted, Arc::clone(&kept) as Arc<dyn Outlet>);
        let sink = audience.sink("ls".into());
        for notice in notices {
            sink.send(notice);
        }
        kept.0.lock().unwrap().clone()
    }

    fn progress(progress: f64, total: Option<f64>, message: Option<&str>) -> Notice {
        Notice::Progress(Progress { progress, total, message: message.map(str::to_owned) })
    }

    #[test]
    fn progress_goes_out_with_the_callers_token_and_only_grows() {
        let wanted = Wanted { progress_token: Some(r#""t""#.into()), log_level: None };
        let steps = [
            progress(1.0, Some(3.0), Some("a \"step\"")),
            progress(1.0, None, None),
            progress(0.5, None, None),
            progress(f64::NAN, None, None),
            progress(2.5, Some(f64::INFINITY), None),
            progress(1e300, None, None),
        ];
        let head =
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"t","#;
        assert_eq!(
            heard(wanted, steps),
            [
                format!(r#"{head}"progress":1,"total":3,"message":"a \"step\""}}}}"#),
                format!(r#"{head}"progress":2.5}}}}"#),
                format!(r#"{head}"progress":1e+300}}}}"#),
            ]
        );
    }

    #[test]
    fn a_change_says_what_has_changed_and_who_asked() {
        let body = br#"{"jsonrpc":"2.0","method":"x","id":"s"}"#;
        let Ok(crate::rpc::Message::Request(request)) = crate::rpc::parse(body) else {
            panic!("a request")
        };
        let meta = r#""_meta":{"io.modelcontextprotocol/subscriptionId":"s"}"#;
        let head = r#"{"jsonrpc":"2.0","method":"notifications/"#;
        let id = Some(&request.id);
        assert_eq!(list_changed("tools", None), format!(r#"{head}tools/list_changed"}}"#));
        assert_eq!(
            list_changed("tools", id),
            format!(r#"{head}tools/list_changed","params":{{{meta}}}}}"#)
        );
        assert_eq!(
            resource_updated("a:\"b", None),
            format!(r#"{head}resources/updated","params":{{"uri":"a:\"b"}}}}"#)
        );
        assert_eq!(
            resource_updated("a:b", id),
            format!(r#"{head}resources/updated","params":{{"uri":"a:b",{meta}}}}}"#)
        );
    }

    #[test]
    fn a_log_message_goes_out_from_the_wanted_level_on() {
        let log = |level, message: &str| Notice::Log { level, message: message.to_owned() };
        let wanted = Wanted { progress_token: None, log_level: Some(LogLevel::Warning) };
        let logs = [log(LogLevel::Info, "no"), log(LogLevel::Error, "yes"), progress(1.0, None, None)];
        assert_eq!(
            heard(wanted, logs.clone()),
            [concat!(
                r#"{"jsonrpc":"2.0","method":"notifications/message","params":"#,
                r#"{"level":"error","logger":"ls","data":"yes"}}"#
            )]
        );
        assert!(heard(Wanted::default(), logs).is_empty());
    }
}
