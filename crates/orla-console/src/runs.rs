//! Calls that visitors have started on a page, kept while a visitor may want to see them.
//!
//! A call runs apart from the request that started it, so that a browser can come back for its result.
//! It is an ordinary call of the marketplace, in the name of its visitor. Its questions (elicitation)
//! wait here for an answer on its page.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use orla_marketplace::{
    Call, CapabilityMarketplace, Client, ClientError, JsonText, Notice, NoticeSink, Outcome, Payload,
    Principal, Progress, RuntimeResult,
};
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::exact::Json;
use crate::text::shortened;

/// The maximum number of calls that are kept.
const MAX_RUNS: usize = 200;
/// The maximum number of calls of one visitor that are kept.
const MAX_OWN: usize = 50;
/// The maximum number of bytes of the results of all that are kept.
const MAX_BYTES: usize = 64 * 1024 * 1024;
/// The maximum number of bytes of one part of a result that a page reads as JSON.
const MAX_READ: usize = 4 * 1024 * 1024;
/// The maximum number of messages of one call that are kept: the newest.
const MAX_LINES: usize = 200;
/// The maximum number of bytes of one message.
const MAX_LINE: usize = 4 * 1024;
/// How often it is checked that the credential of a call's visitor is still accepted.
const CHECK_EVERY: Duration = Duration::from_secs(2);

/// The calls of all visitors.
pub(crate) struct Runs {
    market: Arc<CapabilityMarketplace>,
    all: Mutex<VecDeque<Arc<Run>>>,
    tracker: TaskTracker,
    end: CancellationToken,
}

/// One call.
pub(crate) struct Run {
    pub(crate) id: String,
    /// The id of the call.
    pub(crate) call: Arc<str>,
    /// The MCP name of the called capability.
    pub(crate) target: String,
    /// Its input as people may see it, as JSON text: without what its schema marks as secret.
    pub(crate) input: String,
    owner: Option<Principal>,
    pub(crate) started: Instant,
    cancellation: CancellationToken,
    state: Mutex<State>,
    /// Counts the changes.
    changes: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    progress: Option<Progress>,
    lines: VecDeque<Line>,
    question: Option<PendingQuestion>,
    end: Option<(Duration, Arc<RuntimeResult<Outcome>>)>,
}

/// A message of a call.
#[derive(Clone)]
pub(crate) struct Line {
    pub(crate) level: &'static str,
    pub(crate) text: String,
}

struct PendingQuestion {
    question: Question,
    answer: oneshot::Sender<String>,
}

/// A question of a provider to the visitor.
#[derive(Clone)]
pub(crate) struct Question {
    pub(crate) number: u64,
    pub(crate) message: String,
    /// The JSON Schema of the answer.
    pub(crate) schema: serde_json::Value,
}

/// The known state of a call at one moment.
pub(crate) struct Snapshot {
    pub(crate) progress: Option<Progress>,
    pub(crate) lines: Vec<Line>,
    pub(crate) question: Option<Question>,
    pub(crate) end: Option<(Duration, Arc<RuntimeResult<Outcome>>)>,
}

impl Runs {
    pub(crate) fn new(market: Arc<CapabilityMarketplace>) -> Self {
        Self {
            market,
            all: Mutex::default(),
            tracker: TaskTracker::new(),
            end: CancellationToken::new(),
        }
    }

    /// Starts a call; `shown` is its input as its page shows it. `None` if too many of this visitor run.
    pub(crate) fn start(
        &self,
        target: &str,
        input: JsonText,
        shown: String,
        owner: Option<Principal>,
    ) -> Option<Arc<Run>> {
        if self.end.is_cancelled() {
            return None;
        }
        let run = Arc::new(Run {
            id: number(),
            call: self.market.reserve_call_id(),
            target: target.to_owned(),
            input: shown,
            owner,
            started: Instant::now(),
            cancellation: self.end.child_token(),
            state: Mutex::default(),
            changes: watch::Sender::default(),
        });
        if !self.keep(&run) {
            return None;
        }
        let mut call = Call::to(target).with(Payload::from_json(input));
        call.scope.call_id = Some(Arc::clone(&run.call));
        call.scope.principal.clone_from(&run.owner);
        call.scope.cancellation = run.cancellation.clone();
        call.scope.client = Some(Arc::new(Visitor(Arc::clone(&run))));
        let listener = Arc::downgrade(&run);
        call.scope.notices = NoticeSink::new(move |notice| {
            if let Some(run) = listener.upgrade() {
                run.record(notice);
            }
        });
        let (market, own) = (Arc::clone(&self.market), Arc::clone(&run));
        self.tracker.spawn(async move {
            let called = market.call(call);
            tokio::pin!(called);
            let result = loop {
                let check = tokio::time::sleep(CHECK_EVERY);
                tokio::select! {
                    biased;
                    result = &mut called => break result,
                    () = check => {
                        let is_known = |owner: &Principal| market.approvals().knows(owner);
                        if !own.owner.as_ref().is_none_or(is_known) {
                            own.cancellation.cancel();
                        }
                    }
                }
            };
            own.finish(result);
        });
        Some(run)
    }

    /// Keeps a call, and forgets older ones that are over. Returns whether there is room for it.
    fn keep(&self, run: &Arc<Run>) -> bool {
        let mut all = self.all.lock();
        let is_own = |other: &Arc<Run>| other.owner == run.owner;
        let mut own = all.iter().filter(|other| is_own(other)).count();
        let mut bytes: usize = all.iter().map(|run| run.bytes()).sum();
        let mut count = all.len();
        all.retain(|other| {
            let is_too_much =
                count >= MAX_RUNS || bytes > MAX_BYTES || (own >= MAX_OWN && is_own(other));
            if !is_too_much || !other.is_over() {
                return true;
            }
            count -= 1;
            bytes -= other.bytes();
            own -= usize::from(is_own(other));
            false
        });
        let has_room = count < MAX_RUNS && own < MAX_OWN;
        if has_room {
            all.push_back(Arc::clone(run));
        }
        has_room
    }

    /// Returns a call of this visitor.
    pub(crate) fn get(&self, id: &str, visitor: Option<&Principal>) -> Option<Arc<Run>> {
        let all = self.all.lock();
        all.iter().find(|run| run.id == id && run.owner.as_ref() == visitor).cloned()
    }

    /// Ends what runs, and waits for it.
    pub(crate) async fn close(&self) {
        self.end.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }
}

impl Run {
    /// Returns the current state.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let state = self.state.lock();
        Snapshot {
            progress: state.progress.clone(),
            lines: state.lines.iter().cloned().collect(),
            question: state.question.as_ref().map(|pending| pending.question.clone()),
            end: state.end.clone(),
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.state.lock().end.is_some()
    }

    /// Returns the number of changes, to be watched.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Waits until the call is over or needs its visitor, at most for `max_wait`.
    pub(crate) async fn settled(&self, max_wait: Duration) {
        let mut changes = self.changes();
        let settled = async {
            loop {
                let is_settled = {
                    let state = self.state.lock();
                    state.end.is_some() || state.question.is_some()
                };
                if is_settled || changes.changed().await.is_err() {
                    return;
                }
            }
        };
        let _late = tokio::time::timeout(max_wait, settled).await;
    }

    /// Withdraws the call.
    pub(crate) fn cancel(&self) {
        self.cancellation.cancel();
    }

    /// Answers the question with this number, with the JSON text of an MCP result. Returns whether it was waiting.
    pub(crate) fn answer(&self, number: u64, answer: String) -> bool {
        let pending = {
            let mut state = self.state.lock();
            match &state.question {
                Some(pending) if pending.question.number == number => state.question.take(),
                _ => None,
            }
        };
        let is_taken = pending.is_some_and(|pending| pending.answer.send(answer).is_ok());
        self.changed();
        is_taken
    }

    fn record(&self, notice: Notice) {
        {
            let mut state = self.state.lock();
            let (level, text) = match notice {
                Notice::Progress(progress) => {
                    state.progress = Some(progress);
                    drop(state);
                    return self.changed();
                }
                Notice::Log { level, message } => (level.as_str(), message.into_text()),
                Notice::Text(text) => ("text", text),
            };
            if state.lines.len() >= MAX_LINES {
                state.lines.pop_front();
            }
            state.lines.push_back(Line { level, text: shortened(&text, MAX_LINE).0.to_owned() });
        }
        self.changed();
    }

    fn finish(&self, result: RuntimeResult<Outcome>) {
        {
            let mut state = self.state.lock();
            state.question = None;
            state.end = Some((self.started.elapsed(), Arc::new(result)));
        }
        self.changed();
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    fn bytes(&self) -> usize {
        let output = match self.state.lock().end.as_ref().map(|(_, result)| Arc::clone(result)) {
            Some(result) => match &*result {
                Ok(outcome) => outcome.bytes(),
                Err(error) => error.outcome().map_or(0, Outcome::bytes),
            },
            None => 0,
        };
        output + self.input.len()
    }
}

/// Returns an outcome as the JSON of an MCP result. An outcome that is too large for a page becomes a
/// text.
pub(crate) fn outcome_json(outcome: &Outcome) -> RuntimeResult<Json> {
    let json = |text: &JsonText| {
        let text = text.as_str();
        let parsed = (text.len() <= MAX_READ).then(|| Json::parse(text).ok()).flatten();
        parsed.unwrap_or_else(|| Json::Text(text.to_owned()))
    };
    let mut members = Vec::new();
    if let Some(structured) = &outcome.structured {
        members.push(("structuredContent".to_owned(), json(structured.json()?)));
    }
    let content = outcome.content.as_ref().map_or(Json::Array(Vec::new()), json);
    members.push(("content".to_owned(), content));
    members.extend(outcome.meta.as_ref().map(|meta| ("_meta".to_owned(), json(meta))));
    Ok(Json::Object(members))
}

/// The visitor as the client of a call.
struct Visitor(Arc<Run>);

#[async_trait]
impl Client for Visitor {
    fn capabilities(&self) -> JsonText {
        JsonText::parse(r#"{"elicitation":{"form":{}}}"#).unwrap_or_default()
    }

    async fn request(&self, method: &str, params: JsonText) -> Result<JsonText, ClientError> {
        let request: serde_json::Value = serde_json::from_str(params.as_str()).unwrap_or_default();
        let is_form = request.get("mode").is_none_or(|mode| mode == "form");
        if method != "elicitation/create" || !is_form {
            return Err(ClientError::Unsupported(method.to_owned()));
        }
        let message =
            request.get("message").and_then(|text| text.as_str()).unwrap_or_default().to_owned();
        let schema = request.get("requestedSchema").cloned().unwrap_or_default();
        let (answer, answered) = oneshot::channel();
        let number = self.0.changes.borrow().wrapping_add(1);
        {
            let mut state = self.0.state.lock();
            if state.question.is_some() {
                let message = "another question waits for its answer".to_owned();
                return Err(ClientError::Refused { code: -32000, message, data: None });
            }
            state.question =
                Some(PendingQuestion { question: Question { number, message, schema }, answer });
        }
        let _guard = WithdrawOnDrop { run: &self.0, number };
        self.0.changed();
        let answer = answered.await.map_err(|_| ClientError::Gone)?;
        JsonText::parse(answer).map_err(|_| ClientError::Gone)
    }
}

/// Takes a question back when its provider no longer waits for the answer.
struct WithdrawOnDrop<'a> {
    run: &'a Run,
    number: u64,
}

impl Drop for WithdrawOnDrop<'_> {
    fn drop(&mut self) {
        {
            let mut state = self.run.state.lock();
            if state.question.as_ref().is_none_or(|pending| pending.question.number != self.number) {
                return;
            }
            state.question = None;
        }
        self.run.changed();
    }
}

/// Returns a random number, which others cannot guess.
fn number() -> String {
    let mut bytes = [0; 12];
    getrandom::fill(&mut bytes).expect("the system gives random numbers");
    hex::encode(bytes)
}
