//! Questions to a client without a session: the request is answered with the questions, and continued by the
//! request that brings the answers (MCP 2026-07-28, multi round-trip requests).
//!
//! # How it works
//!
//! A request whose provider may ask has [`InputRequests`]. Without a question it costs one allocation. After a
//! question, [`InputRequests::has_questions`] waits a moment for further questions, and the request is answered with all
//! of them. The work continues in [`pending`](crate::mcp::dispatch::pending), where the next request finds it and
//! delivers its `inputResponses`: an answer goes to the question with the same key, missing answers are requested
//! again, and others are ignored.
//!
//! A request may also bring answers before any question, if its client knows the keys.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use orla_marketplace::{Client, ClientError, JsonText};
use orla_mcp::object::{Object, trusted};
use parking_lot::Mutex;
use rmcp::model::ErrorData;
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use crate::mcp::input::questions::{MAX_OPEN, Requirement, check_params, take_key, too_many};
use crate::mcp::notify::notices::NoticeReceiver;
use crate::mcp::rpc::push_json;

/// How long to wait for further questions, and how long in total. Questions go to a person or a model,
/// for whom this time is negligible, while each saved round trip matters.
const BATCH_WINDOW: Duration = Duration::from_millis(20);
const MAX_BATCH_WAIT: Duration = Duration::from_millis(200);

/// The questions of one sessionless request, across all requests that continue it.
pub(crate) struct InputRequests {
    inner: Mutex<Inner>,
    /// Notified when a question is asked.
    pub(crate) news: Notify,
    /// Cancelled when the client withdraws the request.
    cancellation: CancellationToken,
    /// Receives the notices of the work, if the client wants them.
    pub(crate) receiver: Option<Arc<NoticeReceiver>>,
}

struct Inner {
    /// The capabilities that the newest request declares.
    capabilities: JsonText,
    /// Answers that arrived before their questions.
    early: Option<JsonText>,
    open: Vec<Question>,
    /// The number of questions so far.
    count: u64,
    /// The first required capability that the client did not declare.
    missing: Option<Requirement>,
    over: bool,
}

struct Question {
    number: u64,
    key: String,
    method: String,
    params: JsonText,
    need: Requirement,
    reply: oneshot::Sender<Result<JsonText, ClientError>>,
}

impl InputRequests {
    /// Creates the input requests of a request with these capabilities and answers.
    pub(crate) fn new(
        capabilities: JsonText,
        early: Option<JsonText>,
        cancellation: CancellationToken,
        receiver: Option<Arc<NoticeReceiver>>,
    ) -> Arc<Self> {
        let inner =
            Inner { capabilities, early, open: Vec::new(), count: 0, missing: None, over: false };
        Arc::new(Self { inner: Mutex::new(inner), news: Notify::new(), cancellation, receiver })
    }

    /// Waits for a question, and then briefly for further ones.
    pub(crate) async fn has_questions(&self) {
        loop {
            while self.inner.lock().open.is_empty() {
                self.news.notified().await;
            }
            let mut count = self.inner.lock().count;
            for _ in 0..MAX_BATCH_WAIT.as_millis() / BATCH_WINDOW.as_millis() {
                tokio::time::sleep(BATCH_WINDOW).await;
                let before = std::mem::replace(&mut count, self.inner.lock().count);
                if before == count {
                    break;
                }
            }
            if !self.inner.lock().open.is_empty() {
                return;
            }
        }
    }

    /// Returns the JSON object of the open questions: `inputRequests`.
    pub(crate) fn input_requests(&self) -> Vec<u8> {
        let mut out = vec![b'{'];
        for question in &self.inner.lock().open {
            if out.len() > 1 {
                out.push(b',');
            }
            push_json(&mut out, &question.key);
            out.extend_from_slice(br#":{"method":"#);
            push_json(&mut out, &question.method);
            out.extend_from_slice(br#","params":"#);
            out.extend_from_slice(question.params.bytes());
            out.push(b'}');
        }
        out.push(b'}');
        out
    }

    /// Returns the keys of the open questions.
    pub(crate) fn keys(&self) -> Vec<String> {
        self.inner.lock().open.iter().map(|question| question.key.clone()).collect()
    }

    /// Takes in the next request. Its answers go to their questions, and questions that need a
    /// capability that the client no longer declares are refused.
    pub(crate) fn resume(&self, capabilities: JsonText, answers: Option<&JsonText>) {
        let mut inner = self.inner.lock();
        inner.capabilities = capabilities;
        inner.early = None;
        for question in std::mem::take(&mut inner.open) {
            // Sending fails if the asking call has just ended.
            if let Some(answer) = answers.and_then(|answers| find(answers, &question.key)) {
                drop(question.reply.send(Ok(answer)));
            } else if question.need.is_met(inner.capabilities.as_str()) {
                inner.open.push(question);
            } else {
                inner.missing.get_or_insert(question.need);
                drop(question.reply.send(Err(ClientError::Unsupported(question.method))));
            }
        }
    }

    /// Refuses further questions, and ends all open ones without an answer.
    pub(crate) fn end(&self) {
        let mut inner = self.inner.lock();
        inner.over = true;
        inner.open.clear();
    }

    /// Returns the error of a request that failed after its provider had asked for something that the
    /// client did not declare.
    pub(crate) fn missing_capability(&self) -> Option<ErrorData> {
        self.inner.lock().missing.map(Requirement::missing)
    }
}

/// Returns the answer under this key. A value that is not an object is ignored.
fn find(answers: &JsonText, key: &str) -> Option<JsonText> {
    let answers = Object::parse(answers.as_str())?;
    answers.get(key).filter(|answer| answer.starts_with('{')).map(|answer| trusted(answer.to_owned()))
}

impl Inner {
    /// Returns the key for a new question, unique among the open ones: the provider's name, or else a
    /// generated one.
    fn key(&self, named: Option<String>, need: Requirement) -> String {
        let name = named.unwrap_or_else(|| format!("{}-{}", need.stem(), self.count + 1));
        let taken = |key: &str| self.open.iter().any(|question| question.key == key);
        if !taken(&name) {
            return name;
        }
        let mut key = String::new();
        for number in 2_u32.. {
            key = format!("{name}-{number}");
            if !taken(&key) {
                break;
            }
        }
        key
    }
}

#[async_trait]
impl Client for InputRequests {
    fn capabilities(&self) -> JsonText {
        self.inner.lock().capabilities.clone()
    }

    async fn request(&self, method: &str, params: JsonText) -> Result<JsonText, ClientError> {
        check_params(&params)?;
        let (named, params) = take_key(params);
        let unsupported = || ClientError::Unsupported(method.to_owned());
        let need = Requirement::of(method, &params).ok_or_else(unsupported)?;
        let (number, answer) = {
            let mut inner = self.inner.lock();
            if inner.over {
                return Err(ClientError::Gone);
            }
            if !need.is_met(inner.capabilities.as_str()) {
                inner.missing.get_or_insert(need);
                return Err(unsupported());
            }
            if inner.open.len() >= MAX_OPEN {
                return Err(too_many());
            }
            let key = inner.key(named, need);
            inner.count += 1;
            if let Some(answer) = inner.early.as_ref().and_then(|early| find(early, &key)) {
                return Ok(answer);
            }
            let number = inner.count;
            let (reply, answer) = oneshot::channel();
            let method = method.to_owned();
            inner.open.push(Question { number, key, method, params, need, reply });
            (number, answer)
        };
        let _pending = PendingQuestion { requests: self, number };
        self.news.notify_one();
        tokio::select! {
            biased;
            answer = answer => answer.unwrap_or(Err(ClientError::Gone)),
            () = self.cancellation.cancelled() => Err(ClientError::Gone),
        }
    }
}

/// An open question. Dropping it removes the question.
struct PendingQuestion<'a> {
    requests: &'a InputRequests,
    number: u64,
}

impl Drop for PendingQuestion<'_> {
    fn drop(&mut self) {
        self.requests.inner.lock().open.retain(|question| question.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use tokio::time::Instant;

    fn text(json: &str) -> JsonText {
        JsonText::parse(json.to_owned()).unwrap()
    }

    fn input_requests(capabilities: &str, early: Option<&str>) -> Arc<InputRequests> {
        InputRequests::new(text(capabilities), early.map(text), CancellationToken::new(), None)
    }

    const ALL: &str = r#"{"sampling":{},"elicitation":{},"roots":{}}"#;

    fn pending_requests(requests: &InputRequests) -> String {
        String::from_utf8(requests.input_requests()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn simultaneous_questions_are_one_round() {
        let requests = input_requests(ALL, None);
        let began = Instant::now();
        let named = || text(r#"{"message":"?","_meta":{"orla/key":"name"}}"#);
        let later = async {
            tokio::time::sleep(BATCH_WINDOW / 2).await;
            requests.request("roots/list", text("{}")).await
        };
        let answers = async {
            requests.has_questions().await;
            assert!(began.elapsed() >= BATCH_WINDOW && began.elapsed() <= 4 * BATCH_WINDOW);
            assert_eq!(
                pending_requests(&requests),
                concat!(
                    r#"{"name":{"method":"elicitation/create","params":{"message":"?"}},"#,
                    r#""name-2":{"method":"elicitation/create","params":{"message":"?"}},"#,
                    r#""roots-3":{"method":"roots/list","params":{}}}"#
                )
            );
            let some = r#"{"name":{"n": 1.10},"roots-3":7,"odd":{}}"#;
            requests.resume(text(ALL), Some(&text(some)));
            requests.has_questions().await;
            assert!(
                pending_requests(&requests).starts_with(r#"{"name-2":"#),
                "the others are asked again"
            );
            assert!(pending_requests(&requests).contains(r#""roots-3":"#));
            // The second request does not declare roots.
            requests.resume(text(r#"{"elicitation":{}}"#), Some(&text(r#"{"name-2":{}}"#)));
        };
        let (first, second, third, ()) = tokio::join!(
            requests.request("elicitation/create", named()),
            requests.request("elicitation/create", named()),
            later,
            answers
        );
        assert_eq!(first.unwrap().as_str(), r#"{"n": 1.10}"#);
        assert_eq!(second.unwrap().as_str(), "{}");
        assert_eq!(third.unwrap_err(), ClientError::Unsupported("roots/list".into()));
        assert_eq!(requests.missing_capability().unwrap().code.0, -32021);
    }

    #[tokio::test(start_paused = true)]
    async fn a_provider_that_never_stops_asking_is_not_waited_for() {
        let requests = input_requests(ALL, None);
        let asking = async {
            let mut open = Vec::new();
            loop {
                let mut request = requests.request("roots/list", text("{}"));
                assert!(request.as_mut().now_or_never().is_none());
                open.push(request);
                tokio::time::sleep(BATCH_WINDOW / 2).await;
            }
        };
        let began = Instant::now();
        tokio::select! { () = requests.has_questions() => {}, () = asking => {} }
        assert!(began.elapsed() <= MAX_BATCH_WAIT + BATCH_WINDOW);
    }

    #[tokio::test]
    async fn undeclared_questions_are_refused() {
        let requests = input_requests(r#"{"sampling":{}}"#, None);
        let refused = requests.request("elicitation/create", text("{}")).await;
        assert_eq!(refused, Err(ClientError::Unsupported("elicitation/create".into())));
        let odd = requests.request("tools/call", text("{}")).await;
        assert_eq!(odd, Err(ClientError::Unsupported("tools/call".into())));
        assert_eq!(pending_requests(&requests), "{}");
        let missing = requests.missing_capability().unwrap().data.unwrap();
        assert_eq!(missing["requiredCapabilities"], serde_json::json!({"elicitation": {}}));
    }

    #[tokio::test]
    async fn answers_may_come_before_their_questions() {
        let requests = input_requests(ALL, Some(r#"{"name":{"n":1},"roots-2":12345}"#));
        let named = requests.request("roots/list", text(r#"{"_meta":{"orla/key":"name"}}"#)).await;
        assert_eq!(named.unwrap().as_str(), r#"{"n":1}"#);
        let mut second = requests.request("roots/list", text("{}"));
        assert!(second.as_mut().now_or_never().is_none(), "a number is not an answer");
        assert!(pending_requests(&requests).starts_with(r#"{"roots-2":"#));
        drop(second);
        assert_eq!(pending_requests(&requests), "{}", "no provider waits for it");
    }

    #[tokio::test]
    async fn the_end_ends_every_open_question() {
        let requests = input_requests(ALL, None);
        let waiting = requests.request("roots/list", text("{}"));
        let ((), answer) = tokio::join!(async { requests.end() }, waiting);
        assert_eq!(answer, Err(ClientError::Gone));
        assert_eq!(requests.request("roots/list", text("{}")).await, Err(ClientError::Gone));
        let withdrawn = input_requests(ALL, None);
        withdrawn.cancellation.cancel();
        assert_eq!(withdrawn.request("roots/list", text("{}")).await, Err(ClientError::Gone));
    }

    #[tokio::test]
    async fn the_questions_of_a_request_are_bounded() {
        let requests = input_requests(ALL, None);
        let mut open = Vec::new();
        for _ in 0..MAX_OPEN {
            let mut request = requests.request("roots/list", text("{}"));
            assert!(request.as_mut().now_or_never().is_none());
            open.push(request);
        }
        assert_eq!(requests.request("roots/list", text("{}")).await, Err(too_many()));
    }
}
