//! The conversation with one process of a plugin: pending calls, and the bytes still to be written. No I/O here.
//!
//! Call numbers are unique per plugin, across restarts. A late answer, or one from a process that has
//! ended, therefore matches no other call.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use orla_marketplace::rtfs::text::excerpt;
use orla_marketplace::{JsonText, Notice, NoticeSink, Principal};
use orla_mcp::framing::{Outgoing, quoted};
use orla_mcp::{Fault, Messages, Reply, ServerInfo};
use orla_process::supervisor::{Cancellation, ProcessEvent, Protocol, Refusal, StillRunning};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::MALFORMED;
use super::wire::{self, Body, Failure};
use crate::process::fault;

/// The maximum length of the list of functions in an error, in bytes.
const SHOWN: usize = 500;

/// The settings of a plugin's conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConversationMode {
    /// Whether the plugin is asked what it serves, and receives calls only after its answer. Otherwise
    /// it receives calls immediately.
    pub(crate) describes: bool,
    /// Whether the plugin receives one call at a time. Otherwise every call is sent immediately.
    pub(crate) is_serial: bool,
}

/// A call of a function.
#[derive(Debug)]
pub(crate) struct Call {
    /// The name of the function.
    pub(crate) function: Arc<str>,
    /// The input.
    pub(crate) arguments: JsonText,
    /// Receives progress.
    pub(crate) notices: NoticeSink,
    /// The caller. It decides who may see a line that answers no call.
    pub(crate) principal: Option<Principal>,
}

/// The state that all processes of a plugin share with its handles.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// The newest line that is not an answer, or answers no call, and arrived while one call waited;
    /// quoted, with the ticket of that call.
    wrong_answer: Mutex<Option<(u64, String)>>,
}

impl Shared {
    /// Returns what the process wrote instead of an answer to this call. No other caller may see it.
    pub(crate) fn wrong_answer(&self, ticket: u64) -> Option<String> {
        self.wrong_answer
            .lock()
            .as_ref()
            .filter(|(call, _)| *call == ticket)
            .map(|(_, line)| no_answer(line))
    }
}

/// One conversation with one process.
#[derive(Debug)]
pub(crate) struct Conversation {
    name: Arc<str>,
    messages: Messages,
    tickets: Arc<AtomicU64>,
    /// The first number that this process may answer.
    first: u64,
    out: Outgoing,
    pending: HashMap<u64, SentCall>,
    /// The number of calls that the process was sent.
    sent: u64,
    /// The number of pending calls whose callers wait.
    in_flight: usize,
    describing: Describing,
    /// The functions that the plugin serves, if it has reported them.
    functions: HashSet<Arc<str>>,
    is_serial: bool,
    /// Whether the process has been silent since a call was cancelled.
    is_silent: bool,
    /// Whether the process has answered a call while an earlier one was running, which shows that it
    /// reads while it works.
    is_concurrent: bool,
    /// Whether the process was asked again to describe itself, as a probe.
    is_probed: bool,
    shared: Arc<Shared>,
    /// Whether such lines were logged: a warning is given once.
    has_logged_noise: bool,
    has_logged_unknown_id: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Describing {
    /// The process was not asked, because everything necessary is known.
    Unasked,
    Asked,
    Done,
}

/// A call that was sent.
#[derive(Debug)]
struct SentCall {
    /// The ordinal number of the call.
    order: u64,
    principal: Option<Principal>,
    state: Pending,
}

#[derive(Debug)]
enum Pending {
    Call {
        function: Arc<str>,
        notices: NoticeSink,
        reply: oneshot::Sender<Reply>,
    },
    /// The caller no longer waits, and the process has been informed.
    Cancelled {
        function: Arc<str>,
    },
}

impl Conversation {
    /// Creates a conversation, which begins with a request for the plugin's description if required.
    pub(crate) fn new(
        name: &str,
        tickets: &Arc<AtomicU64>,
        shared: &Arc<Shared>,
        mode: ConversationMode,
    ) -> Self {
        *shared.wrong_answer.lock() = None;
        let ConversationMode { describes, is_serial } = mode;
        let first = tickets.load(Ordering::Relaxed);
        let mut out = Outgoing::default();
        if describes {
            wire::write_describe(out.buffer());
        }
        Self {
            name: name.into(),
            messages: Messages::default(),
            tickets: Arc::clone(tickets),
            first,
            out,
            pending: HashMap::new(),
            sent: 0,
            in_flight: 0,
            describing: if describes { Describing::Asked } else { Describing::Unasked },
            functions: HashSet::new(),
            is_serial,
            is_silent: false,
            is_concurrent: false,
            is_probed: false,
            shared: Arc::clone(shared),
            has_logged_noise: false,
            has_logged_unknown_id: false,
        }
    }

    /// Handles a line of the process's standard output.
    fn receive(&mut self, line: &Bytes) -> Option<ProcessEvent<Self>> {
        match wire::read(line) {
            Some(message) if message.id == wire::DESCRIBE => self.receive_description(message.body),
            Some(message) => {
                if !self.pending.contains_key(&message.id) {
                    self.record_wrong_answer(line);
                }
                self.receive_answer(message.id, message.body);
                None
            }
            None => {
                if !line.trim_ascii().is_empty() {
                    self.log_noise(line);
                }
                None
            }
        }
    }

    fn receive_description(&mut self, body: Body) -> Option<ProcessEvent<Self>> {
        if self.is_probed && self.describing == Describing::Done {
            self.is_probed = matches!(body, Body::Progress(_));
            self.is_silent = false;
            self.is_concurrent |= !self.pending.is_empty();
            return None;
        }
        if self.describing != Describing::Asked {
            self.unknown_id(wire::DESCRIBE);
            return None;
        }
        let read = match body {
            Body::Progress(_) => return None,
            Body::Ok(value) => wire::functions(&value),
            Body::Error(Failure { message, .. }) => Err(message),
        };
        self.describing = Describing::Done;
        match read {
            Ok((functions, problem)) => {
                if let Some(problem) = problem {
                    let problem = quoted(problem.as_bytes());
                    tracing::warn!(
                        plugin = &*self.name,
                        problem,
                        "functions of its describe are left out"
                    );
                }
                self.functions = functions.iter().map(|function| (*function.name).into()).collect();
                Some(ProcessEvent::Ready(Some(ServerInfo {
                    tools: Some(functions),
                    ..ServerInfo::default()
                })))
            }
            Err(problem) => {
                let problem = quoted(problem.as_bytes());
                Some(ProcessEvent::Broken(format!("{MALFORMED}: {problem}")))
            }
        }
    }

    fn receive_answer(&mut self, id: u64, body: Body) {
        self.is_silent = false;
        if !self.is_concurrent
            && let Some(about) = self.pending.get(&id)
        {
            self.is_concurrent = self.pending.values().any(|sent| sent.order < about.order);
        }
        if let Body::Progress(progress) = body {
            if let Some(SentCall { state: Pending::Call { notices, .. }, .. }) = self.pending.get(&id) {
                notices.send(Notice::Progress(progress));
            }
            return;
        }
        self.shared.wrong_answer.lock().take_if(|(call, _)| *call == id);
        match self.pending.remove(&id).map(|sent| sent.state) {
            Some(Pending::Call { reply, .. }) => {
                self.in_flight -= 1;
                // The caller may have gone in the meantime.
                let _ = reply.send(reply_of(body));
            }
            Some(Pending::Cancelled { .. }) => {}
            None if (self.first..self.tickets.load(Ordering::Relaxed)).contains(&id) => {
                tracing::debug!(
                    plugin = &*self.name,
                    id,
                    "an answer to an abandoned request is dropped"
                );
            }
            None => self.unknown_id(id),
        }
    }

    /// Keeps a line for the only waiting call. The line may belong to any unanswered call, including
    /// cancelled ones, so all of them must have that call's principal.
    fn record_wrong_answer(&mut self, line: &[u8]) {
        let waits = |(_, sent): &(&u64, &SentCall)| matches!(sent.state, Pending::Call { .. });
        let mut waiting = self.pending.iter().filter(waits);
        let (Some((call, of)), None) = (waiting.next(), waiting.next()) else { return };
        if self.pending.values().all(|sent| sent.principal == of.principal) {
            *self.shared.wrong_answer.lock() = Some((*call, quoted(line)));
        }
    }

    fn log_noise(&mut self, line: &[u8]) {
        self.record_wrong_answer(line);
        let (plugin, text) = (&*self.name, quoted(line));
        if std::mem::replace(&mut self.has_logged_noise, true) {
            tracing::debug!(plugin, text, "a line on standard output is not an answer, and is ignored");
        } else {
            tracing::warn!(
                plugin,
                text,
                "a line on standard output is not an answer, and is ignored; diagnostics belong on standard error"
            );
        }
    }

    fn unknown_id(&mut self, id: u64) {
        if !std::mem::replace(&mut self.has_logged_unknown_id, true) {
            let plugin = &*self.name;
            tracing::warn!(plugin, id, "an answer to a request that was never sent is dropped");
        }
    }
}

impl Protocol for Conversation {
    type Request = Call;
    type Response = Reply;
    type Info = ServerInfo;
    type Shared = Shared;
    /// The plugin asks no questions.
    type Answer = Infallible;

    fn refused(refusal: Refusal) -> Reply {
        Err(fault(refusal))
    }

    fn is_unchanged(call: &Call, before: Option<&ServerInfo>, now: Option<&ServerInfo>) -> bool {
        ServerInfo::has_same_description(before, now, Some(&call.function))
    }

    fn unwritten(&self) -> &[u8] {
        self.out.unwritten()
    }

    fn advance(&mut self, count: usize) {
        self.out.advance(count);
    }

    fn read_buffer(&mut self) -> &mut BytesMut {
        self.messages.read_buffer()
    }

    fn next(&mut self) -> Option<ProcessEvent<Self>> {
        loop {
            let message = match self.messages.next() {
                Ok(message) => message?,
                Err(reason) => return Some(ProcessEvent::Broken(reason)),
            };
            if let Some(event) = self.receive(&message) {
                return Some(event);
            }
        }
    }

    fn end_of_output(&mut self) {
        self.messages.end();
    }

    fn is_open(&self) -> bool {
        self.describing != Describing::Asked
    }

    /// Returns a process that was silent since a cancellation may be busy with the cancelled call and
    /// read nothing. A call that is sent to the process would be lost with it. This does not apply to a
    /// process that has answered while it was working.
    fn is_free(&self) -> bool {
        let cancelled = self.pending.len() - self.in_flight;
        match self.is_serial {
            true => self.pending.is_empty(),
            false => cancelled == 0 || !self.is_silent || self.is_concurrent,
        }
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn send(
        &mut self,
        ticket: u64,
        call: Call,
        reply: oneshot::Sender<Reply>,
        _: impl FnOnce() -> Option<Arc<ServerInfo>>,
    ) {
        let Call { function, arguments, notices, principal } = call;
        if self.describing == Describing::Done && !self.functions.contains(&function) {
            let _ = reply.send(Err(Fault::Failed(unknown(self.functions.iter().map(|name| &**name)))));
            return;
        }
        wire::write_call(self.out.buffer(), ticket, &function, &arguments);
        let state = Pending::Call { function, notices, reply };
        self.pending.insert(ticket, SentCall { order: self.sent, principal, state });
        self.sent += 1;
        self.in_flight += 1;
    }

    fn cancel(&mut self, ticket: u64) -> Cancellation {
        let Some(SentCall { state, .. }) = self.pending.get_mut(&ticket) else {
            return Cancellation::NotSent;
        };
        let Pending::Call { function, .. } = state else { return Cancellation::NotSent };
        let function = Arc::clone(function);
        *state = Pending::Cancelled { function };
        self.in_flight -= 1;
        self.is_silent = true;
        let id = self.tickets.fetch_add(1, Ordering::Relaxed);
        wire::write_cancel(self.out.buffer(), id, ticket);
        // A process that reads while it works answers this request immediately, so no call has to wait
        // to find that out.
        let may_be_asked = self.describing == Describing::Done && !self.is_serial && !self.is_concurrent;
        if may_be_asked && !std::mem::replace(&mut self.is_probed, true) {
            wire::write_describe(self.out.buffer());
        }
        Cancellation::Binding
    }

    fn still_running(&self, ticket: u64) -> Option<StillRunning<'_>> {
        match &self.pending.get(&ticket)?.state {
            Pending::Cancelled { function } => {
                Some(StillRunning { function, answers_others: self.is_concurrent && !self.is_serial })
            }
            Pending::Call { .. } => None,
        }
    }

    fn fail(&mut self, reason: &str) {
        let wrong = self.shared.wrong_answer.lock().take();
        for (ticket, SentCall { state, .. }) in self.pending.drain() {
            if let Pending::Call { reply, .. } = state {
                let own = wrong.as_ref().filter(|(call, _)| *call == ticket);
                let wrong = own.map(|(_, line)| format!("; {}", no_answer(line))).unwrap_or_default();
                let _ = reply.send(Err(Fault::Unavailable(format!("{reason}{wrong}"))));
            }
        }
        self.in_flight = 0;
    }

    fn answer(&mut self, answer: Infallible) {
        match answer {}
    }
}

/// Returns the part of an error that quotes a line which is not an answer.
fn no_answer(line: &str) -> String {
    format!("it wrote a line that answers no call: {line:?}")
}

/// Returns the failure for an unknown function, with the list of known ones.
fn unknown<'a>(functions: impl Iterator<Item = &'a str>) -> Failure {
    let mut all: Vec<&str> = functions.collect();
    all.sort_unstable();
    let message = match all[..] {
        [] => "it has no functions".to_owned(),
        _ => format!("it has no such function, only {}", excerpt(all.join(", "), SHOWN)),
    };
    Failure { kind: "unknown-function".to_owned(), message, whole: None }
}

fn reply_of(body: Body) -> Result<JsonText, Fault> {
    match body {
        Body::Ok(value) => Ok(value),
        Body::Error(failure) => Err(Fault::Failed(failure)),
        Body::Progress(_) => Err(Fault::Unavailable("it answered with progress".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Setting {
        conversation: Conversation,
        tickets: Arc<AtomicU64>,
    }

    impl Setting {
        fn new(describes: bool) -> Self {
            Self::with(ConversationMode { describes, is_serial: false })
        }

        fn with(mode: ConversationMode) -> Self {
            let tickets = Arc::new(AtomicU64::new(1));
            Self { conversation: Conversation::new("p", &tickets, &Arc::default(), mode), tickets }
        }

        fn call(&mut self, function: &str) -> (u64, oneshot::Receiver<Reply>) {
            self.call_of(None, function)
        }

        fn call_of(
            &mut self,
            principal: Option<&str>,
            function: &str,
        ) -> (u64, oneshot::Receiver<Reply>) {
            let ticket = self.tickets.fetch_add(1, Ordering::Relaxed);
            let (reply, answer) = oneshot::channel();
            let arguments = JsonText::parse("{}").unwrap();
            let principal = principal.map(Principal::token);
            let notices = NoticeSink::default();
            let call = Call { function: function.into(), arguments, notices, principal };
            self.conversation.send(ticket, call, reply, || None);
            (ticket, answer)
        }

        fn receive(&mut self, line: &str) -> Option<ProcessEvent<Conversation>> {
            self.conversation.receive(&Bytes::from(line.to_owned()))
        }

        /// Returns the function of a cancelled call that the process still works at.
        fn runs_on(&self, ticket: u64) -> Option<&str> {
            self.conversation.still_running(ticket).map(|running| running.function)
        }

        fn answers_others(&self, ticket: u64) -> bool {
            self.conversation.still_running(ticket).is_some_and(|running| running.answers_others)
        }

        fn written(&mut self) -> String {
            let written = String::from_utf8(self.conversation.unwritten().to_vec()).unwrap();
            self.conversation.advance(written.len());
            written
        }
    }

    #[test]
    fn answers_meet_their_calls_in_any_order() {
        let mut setting = Setting::new(false);
        assert!(setting.conversation.is_open());
        let ((_, mut one), (_, mut two)) = (setting.call("a"), setting.call("b"));
        assert_eq!(
            setting.written(),
            "{\"id\":1,\"function\":\"a\",\"input\":{}}\n{\"id\":2,\"function\":\"b\",\"input\":{}}\n"
        );
        for line in [r#"{"id":2,"ok":"b"}"#, r#"{"id":1,"error":{"kind":"k","message":"m"}}"#] {
            assert!(setting.receive(line).is_none());
        }
        let Err(Fault::Failed(failure)) = one.try_recv().unwrap() else { panic!("a failure") };
        assert_eq!((&*failure.kind, &*failure.message), ("k", "m"));
        assert_eq!(failure.whole.unwrap().as_str(), r#"{"kind":"k","message":"m"}"#);
        assert_eq!(two.try_recv().unwrap().unwrap().as_str(), "\"b\"");
        assert_eq!(setting.conversation.in_flight(), 0);
    }

    #[test]
    fn noise_and_unrequested_answers_change_nothing() {
        let mut setting = Setting::new(false);
        let (ticket, mut answer) = setting.call("a");
        for line in
            ["hello", "", r#"{"id":99,"ok":1}"#, r#"{"id":0,"ok":{}}"#, r#"{"id":1}"#, "\u{fffd}"]
        {
            assert!(setting.receive(line).is_none(), "{line}");
        }
        assert!(answer.try_recv().is_err() && setting.conversation.in_flight() == 1);
        assert_eq!(setting.conversation.shared.wrong_answer(ticket), Some(no_answer("\u{fffd}")));
        setting.receive(&format!(r#"{{"id":{ticket},"ok":1}}"#));
        setting.receive(&format!(r#"{{"id":{ticket},"ok":2}}"#));
        assert_eq!(answer.try_recv().unwrap().unwrap().as_str(), "1");
        assert_eq!(setting.conversation.shared.wrong_answer(ticket), None, "its call was answered");
    }

    #[test]
    fn a_stray_line_is_shown_only_to_the_caller_whose_calls_it_may_be_about() {
        let reason = |answer: &mut oneshot::Receiver<Reply>| match answer.try_recv().unwrap() {
            Err(Fault::Unavailable(reason)) => reason,
            other => panic!("{other:?}"),
        };
        let mut setting = Setting::new(false);
        let (_, mut alice) = setting.call_of(Some("alice"), "a");
        setting.receive("user=alice");
        let (_, mut bob) = setting.call_of(Some("bob"), "b");
        setting.receive("whose is this?");
        setting.conversation.fail("it ended");
        assert!(reason(&mut alice).contains("user=alice"));
        assert_eq!(reason(&mut bob), "it ended");

        // A line that may belong to a withdrawn call is shown to a later call only if both have the same
        // caller.
        for (who, is_shown) in [("bob", false), ("alice", true)] {
            let (one, _) = setting.call_of(Some("alice"), "a");
            setting.conversation.cancel(one);
            let (_, mut later) = setting.call_of(Some(who), "b");
            setting.receive("user=alice");
            setting.conversation.fail("it ended");
            assert_eq!(reason(&mut later).contains("user=alice"), is_shown, "{who}");
        }
    }

    #[test]
    fn a_cancelled_call_runs_until_it_is_answered() {
        let mut setting = Setting::new(false);
        let (ticket, _answer) = setting.call("slow");
        setting.written();
        let cancelled = [ticket, ticket, 77].map(|ticket| setting.conversation.cancel(ticket));
        let expected = [Cancellation::Binding, Cancellation::NotSent, Cancellation::NotSent];
        assert_eq!(cancelled, expected);
        assert_eq!(setting.written(), "{\"id\":2,\"cancel\":1}\n");
        assert_eq!((setting.conversation.in_flight(), setting.runs_on(ticket)), (0, Some("slow")));
        setting.receive(r#"{"id":1,"progress":0.5}"#);
        setting.receive(r#"{"id":2,"ok":null}"#);
        assert_eq!(setting.runs_on(ticket), Some("slow"));
        setting.receive(r#"{"id":1,"error":{"kind":"cancelled","message":""}}"#);
        assert_eq!(setting.runs_on(ticket), None);
    }

    #[test]
    fn nothing_is_sent_to_a_process_that_may_not_read_it() {
        let mut setting = Setting::new(false);
        let ((one, _), (two, _)) = (setting.call("a"), setting.call("b"));
        assert!(setting.conversation.is_free());
        setting.conversation.cancel(one);
        assert!(!setting.conversation.is_free());
        // The process answers, so it does several things at once.
        setting.receive(&format!(r#"{{"id":{two},"progress":1}}"#));
        assert!(setting.conversation.is_free());
        setting.conversation.cancel(two);
        setting.receive(&format!(r#"{{"id":{two},"ok":1}}"#));
        assert!(setting.conversation.is_free() && setting.runs_on(one).is_some());

        // After this is known, no call is held back.
        let ((three, _), (four, _)) = (setting.call("a"), setting.call("b"));
        setting.conversation.cancel(three);
        setting.conversation.cancel(four);
        assert!(setting.conversation.is_free() && setting.answers_others(four));

        let mut serial = Setting::with(ConversationMode { describes: false, is_serial: true });
        assert!(serial.conversation.is_free());
        let (one, _) = serial.call("a");
        serial.receive(&format!(r#"{{"id":{one},"progress":1}}"#));
        assert!(!serial.conversation.is_free());
        serial.conversation.cancel(one);
        assert!(!serial.conversation.is_free());
        serial.receive(&format!(r#"{{"id":{one},"ok":1}}"#));
        assert!(serial.conversation.is_free());
    }

    #[test]
    fn a_process_that_answers_the_probe_gets_more_calls() {
        let described = r#"{"id":0,"ok":{"functions":[{"name":"a"}]}}"#;
        let mut setting = Setting::new(true);
        setting.receive(described);
        let ((one, _), (two, _)) = (setting.call("a"), setting.call("a"));
        setting.written();
        setting.conversation.cancel(one);
        setting.conversation.cancel(two);
        // The process is probed once, until it has answered.
        assert_eq!(
            setting.written(),
            "{\"id\":3,\"cancel\":1}\n{\"id\":0,\"function\":\"describe\"}\n{\"id\":4,\"cancel\":2}\n"
        );
        assert!(!setting.conversation.is_free());
        assert!(setting.receive(described).is_none());
        assert!(setting.conversation.is_free() && setting.answers_others(one));

        // A process that answers only earlier requests does not count as concurrent.
        let mut setting = Setting::new(true);
        setting.receive(described);
        let (one, _) = setting.call("a");
        setting.conversation.cancel(one);
        setting.receive(&format!(r#"{{"id":{one},"ok":1}}"#));
        setting.receive(r#"{"id":0,"error":{"kind":"unknown","message":""}}"#);
        assert!(setting.conversation.is_free() && !setting.conversation.is_concurrent);
    }

    #[test]
    fn it_is_ready_when_it_has_described_itself() {
        let mut setting = Setting::new(true);
        assert!(!setting.conversation.is_open());
        assert_eq!(setting.written(), "{\"id\":0,\"function\":\"describe\"}\n");
        let described = setting.receive(r#"{"id":0,"ok":{"functions":[{"name":"a"}]}}"#);
        let Some(ProcessEvent::Ready(Some(info))) = described else { panic!("not ready") };
        assert_eq!(info.tools.unwrap()[0].name, "a");
        let (_, mut answer) = setting.call("b");
        let Err(Fault::Failed(failure)) = answer.try_recv().unwrap() else { panic!("it was sent") };
        assert_eq!(failure.message, "it has no such function, only a");
        assert_eq!((setting.conversation.in_flight(), setting.written().as_str()), (0, ""));
        setting.call("a");
        assert_eq!(setting.conversation.in_flight(), 1);
        for (line, problem) in [
            (r#"{"id":0,"error":{"kind":"unknown","message":"no such function"}}"#, "no such function"),
            (r#"{"id":0,"ok":[]}"#, "expected an object with functions"),
        ] {
            let Some(ProcessEvent::Broken(reason)) = Setting::new(true).receive(line) else {
                panic!("{line}")
            };
            assert!(reason.contains(problem), "{reason}");
        }
    }

    #[test]
    fn calls_of_an_ended_process_fail() {
        let mut setting = Setting::new(false);
        let (_, mut one) = setting.call("a");
        setting.receive("\u{1b}[2J oh");
        let (two, _) = setting.call("b");
        setting.conversation.cancel(two);
        setting.conversation.fail("it is gone");
        assert_eq!(
            one.try_recv().unwrap(),
            Err(Fault::Unavailable(
                "it is gone; it wrote a line that answers no call: \" [2J oh\"".into()
            ))
        );
        assert_eq!((setting.conversation.in_flight(), setting.runs_on(two)), (0, None));
    }
}
