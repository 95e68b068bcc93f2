//! The notices of a running call, as MCP notifications.
//!
//! Rendering is pure. A [`NoticeReceiver`] passes the result to the request's own stream. Notices that
//! the client did not request are dropped: progress without a token, and log messages below the wanted
//! level. The specification requires progress to increase. If it does not, its message is sent as a log
//! message.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use orla_marketplace::{LogLevel, LogText, Notice, NoticeSink, Progress};
use parking_lot::Mutex;

use crate::mcp::rpc::{Id, push_json};

/// Receives finished messages for a client. Sending never blocks and works from any thread.
pub(crate) trait Outlet: Send + Sync {
    /// Sends a message, or drops a notification if the client is too slow.
    fn send(&self, message: Bytes);

    /// Sends a message that must not be dropped, waiting for room.
    fn deliver(&self, message: Bytes) -> BoxFuture<'_, ()> {
        self.send(message);
        Box::pin(std::future::ready(()))
    }
}

/// The notifications that a client wants during a call.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct NoticeOptions {
    /// The JSON text of the client's progress token.
    pub(crate) progress_token: Option<Box<str>>,
    /// The least severe wanted log level.
    pub(crate) log_level: Option<LogLevel>,
}

impl NoticeOptions {
    /// Returns whether the client wants any notification.
    pub(crate) fn wants_any(&self) -> bool {
        self.progress_token.is_some() || self.log_level.is_some()
    }
}

/// The maximum number of notices, and the most bytes of them, that are kept between two requests. The
/// oldest are dropped first.
const MAX_KEPT: usize = 128;
const MAX_KEPT_BYTES: usize = 1 << 20;

/// Receives a call's notices for the open request: the one that began the call, or one that continues it after a
/// question to the client. Notices between two requests are kept for the next one.
pub(crate) struct NoticeReceiver {
    inner: Mutex<Inner>,
}

struct Inner {
    request: Request,
    /// The last progress sent.
    last: f64,
}

/// The request that receives the notices of a call.
enum Request {
    /// An open request wants these notices.
    Open(NoticeOptions, Arc<dyn Outlet>),
    /// An open request wants no notices.
    Silent,
    /// The client has been asked and has not returned yet.
    Awaited(VecDeque<(Notice, Arc<str>)>),
}

impl NoticeReceiver {
    /// Creates the receiver of an open request.
    pub(crate) fn new(wanted: NoticeOptions, outlet: Arc<dyn Outlet>) -> Arc<Self> {
        let inner = Inner { request: Request::Open(wanted, outlet), last: f64::NEG_INFINITY };
        Arc::new(Self { inner: Mutex::new(inner) })
    }

    /// Notes that the open request was answered with a question. Notices are kept until the next
    /// request.
    pub(crate) fn detach(&self) {
        self.inner.lock().request = Request::Awaited(VecDeque::new());
    }

    /// Attaches another request that continues the call. It receives the kept notices if it wants any.
    pub(crate) fn attach(&self, request: Option<(NoticeOptions, Arc<dyn Outlet>)>) {
        let mut inner = self.inner.lock();
        let request = request.map_or(Request::Silent, |(wanted, outlet)| Request::Open(wanted, outlet));
        if let Request::Awaited(buffered) = std::mem::replace(&mut inner.request, request) {
            buffered.into_iter().for_each(|(notice, logger)| inner.receive(notice, &logger));
        }
    }

    /// Returns a sink that renders the wanted notices and passes them to the outlet, in order. `logger`
    /// names the capability.
    pub(crate) fn sink(self: Arc<Self>, logger: Arc<str>) -> NoticeSink {
        NoticeSink::new(move |notice| self.receive(notice, &logger))
    }

    fn receive(&self, notice: Notice, logger: &Arc<str>) {
        // The lock is held while sending, so that increasing progress also arrives in order.
        self.inner.lock().receive(notice, logger);
    }
}

impl Inner {
    fn receive(&mut self, notice: Notice, logger: &Arc<str>) {
        let (wanted, outlet) = match &mut self.request {
            Request::Open(wanted, outlet) => (wanted, outlet),
            Request::Silent => return,
            Request::Awaited(buffered) => {
                buffered.push_back((notice, Arc::clone(logger)));
                let bytes = |buffered: &VecDeque<(Notice, _)>| {
                    buffered.iter().map(|(notice, _)| text_bytes(notice)).sum::<usize>()
                };
                while buffered.len() > MAX_KEPT || bytes(buffered) > MAX_KEPT_BYTES {
                    buffered.pop_front();
                }
                return;
            }
        };
        match (notice, wanted) {
            (Notice::Progress(progress), NoticeOptions { progress_token: Some(token), .. })
                if progress.progress.is_finite() && progress.progress > self.last =>
            {
                self.last = progress.progress;
                outlet.send(progress_message(token, &progress));
            }
            (
                Notice::Progress(Progress { message: Some(message), .. }),
                NoticeOptions { progress_token: Some(_), log_level: Some(least) },
            ) if LogLevel::Info >= *least => {
                outlet.send(log_message(LogLevel::Info, logger, &message.into()));
            }
            // The protocol has no notification for a result that is still being written.
            (Notice::Text(text), NoticeOptions { log_level: Some(least), .. })
                if LogLevel::Info >= *least =>
            {
                outlet.send(log_message(LogLevel::Info, logger, &text.into()));
            }
            (Notice::Log { level, message }, NoticeOptions { log_level: Some(least), .. })
                if level >= *least =>
            {
                outlet.send(log_message(level, logger, &message));
            }
            _ => {}
        }
    }
}

fn text_bytes(notice: &Notice) -> usize {
    match notice {
        Notice::Progress(progress) => progress.message.as_ref().map_or(0, String::len),
        Notice::Log { message, .. } => {
            message.as_sent().map_or(message.len(), |sent| sent.data.as_str().len())
        }
        Notice::Text(text) => text.len(),
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

/// Returns a message of a call's log. A message of a server is passed on unchanged.
fn log_message(level: LogLevel, logger: &str, message: &LogText) -> Bytes {
    let sent = message.as_sent();
    let logger = sent.and_then(|sent| sent.logger.as_deref()).unwrap_or(logger);
    let mut out = Vec::with_capacity(128 + message.len());
    out.extend_from_slice(br#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":""#);
    out.extend_from_slice(level.as_str().as_bytes());
    out.extend_from_slice(br#"","logger":"#);
    push_json(&mut out, logger);
    out.extend_from_slice(br#","data":"#);
    match sent {
        Some(sent) => out.extend_from_slice(sent.data.as_str().as_bytes()),
        None => push_json(&mut out, &**message),
    }
    out.extend_from_slice(b"}}");
    out.into()
}

/// Returns a notification that some list has changed; for a subscription, with its id.
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

/// Returns a notification that a resource has changed; for a subscription, with its id.
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
    out.extend_from_slice(crate::mcp::protocol::META_SUBSCRIPTION_ID.as_bytes());
    out.extend_from_slice(br#"":"#);
    out.extend_from_slice(id.as_str().as_bytes());
    out.push(b'}');
}

/// Writes a whole number without the `.0` of a floating-point number.
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
    struct Recorder(Mutex<Vec<String>>);

    impl Outlet for Recorder {
        fn send(&self, message: Bytes) {
            self.0.lock().push(String::from_utf8(message.to_vec()).unwrap());
        }
    }

    fn received(wanted: NoticeOptions, notices: impl IntoIterator<Item = Notice>) -> Vec<String> {
        let recorder = Arc::new(Recorder::default());
        let receiver = NoticeReceiver::new(wanted, Arc::clone(&recorder) as Arc<dyn Outlet>);
        let sink = receiver.sink("ls".into());
        for notice in notices {
            sink.send(notice);
        }
        recorder.0.lock().clone()
    }

    fn progress(progress: f64, total: Option<f64>, message: Option<&str>) -> Notice {
        Notice::Progress(Progress { progress, total, message: message.map(str::to_owned) })
    }

    #[test]
    fn progress_goes_out_with_the_callers_token_and_only_grows() {
        let wanted = NoticeOptions { progress_token: Some(r#""t""#.into()), log_level: None };
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
            received(wanted, steps),
            [
                format!(r#"{head}"progress":1,"total":3,"message":"a \"step\""}}}}"#),
                format!(r#"{head}"progress":2.5}}}}"#),
                format!(r#"{head}"progress":1e+300}}}}"#),
            ]
        );
    }

    #[test]
    fn notices_between_two_requests_reach_the_second() {
        let wanted = |token: &str| NoticeOptions {
            progress_token: Some(token.into()),
            log_level: Some(LogLevel::Info),
        };
        let (first, second) = (Arc::new(Recorder::default()), Arc::new(Recorder::default()));
        let receiver = NoticeReceiver::new(wanted("1"), Arc::clone(&first) as Arc<dyn Outlet>);
        let sink = Arc::clone(&receiver).sink("ls".into());
        sink.send(progress(1.0, None, None));
        receiver.detach();
        sink.send(progress(2.0, None, None));
        sink.send(Notice::Log { level: LogLevel::Info, message: "between".into() });
        receiver.attach(Some((wanted("2"), Arc::clone(&second) as Arc<dyn Outlet>)));
        sink.send(progress(3.0, None, None));
        receiver.detach();
        for step in 0..1000 {
            sink.send(progress(f64::from(step), None, None));
        }
        receiver.attach(None);
        sink.send(progress(2000.0, None, None));
        let count = |recorder: &Recorder| recorder.0.lock().len();
        assert_eq!((count(&first), count(&second)), (1, 3));
        receiver.detach();
        for step in 3000..4000 {
            sink.send(progress(f64::from(step), None, None));
        }
        receiver.attach(Some((wanted("3"), Arc::clone(&first) as Arc<dyn Outlet>)));
        assert_eq!(count(&first), 1 + MAX_KEPT);
    }

    #[test]
    fn a_change_notification_names_the_list_and_the_subscription() {
        let body = br#"{"jsonrpc":"2.0","method":"x","id":"s"}"#;
        let Ok(crate::mcp::rpc::Message::Request(request)) = crate::mcp::rpc::parse(body) else {
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
        let log = |level, message: &str| Notice::Log { level, message: message.into() };
        let wanted = NoticeOptions { progress_token: None, log_level: Some(LogLevel::Warning) };
        let logs = [log(LogLevel::Info, "no"), log(LogLevel::Error, "yes"), progress(1.0, None, None)];
        assert_eq!(
            received(wanted, logs.clone()),
            [concat!(
                r#"{"jsonrpc":"2.0","method":"notifications/message","params":"#,
                r#"{"level":"error","logger":"ls","data":"yes"}}"#
            )]
        );
        assert!(received(NoticeOptions::default(), logs).is_empty());
    }
}
