//! Questions from a node that runs a call: to the caller's client, and whether the call may begin.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use orla_marketplace::{Checkpoint, Client, ClientError, Entry, JsonText, RuntimeError, RuntimeResult};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot};

/// The code of an answer that does not fit into a message.
const TOO_LARGE: i64 = -32603;

/// The caller's client, as the node that runs the call sees it.
pub(super) struct RemoteClient {
    pub(super) capabilities: JsonText,
    pub(super) questions: mpsc::Sender<PendingQuestion>,
    /// The maximum number of bytes of a question.
    pub(super) max: usize,
}

/// The checkpoint at the caller's node, as the node that runs the call sees it.
pub(super) struct RemoteCheckpoint {
    questions: mpsc::Sender<PendingQuestion>,
    /// Whether the call has waited for an approval since it was noted.
    has_waited: AtomicBool,
}

/// The call waits for an approval, and has not begun.
const WAITS: &str = "orla/waits";
/// The call was approved, and is about to begin.
const BEGINS: &str = "orla/begins";

impl RemoteCheckpoint {
    pub(super) fn new(questions: mpsc::Sender<PendingQuestion>) -> Self {
        Self { questions, has_waited: AtomicBool::new(false) }
    }

    async fn ask(&self, method: &str) -> Result<JsonText, ClientError> {
        let params = RawValue::NULL.to_owned();
        send_question(&self.questions, &Question { method: method.to_owned(), params }, usize::MAX).await
    }
}

#[async_trait]
impl Checkpoint for RemoteCheckpoint {
    async fn before_approval(&self, _capability: &Entry) -> RuntimeResult<()> {
        // If the caller's node does not receive this, it still considers the call possibly begun.
        let is_delivered = self.ask(WAITS).await.is_ok();
        self.has_waited.store(is_delivered, Ordering::Release);
        Ok(())
    }

    async fn before_attempt(&self, capability: &Entry) -> RuntimeResult<()> {
        if !self.has_waited.load(Ordering::Acquire) {
            return Ok(());
        }
        let refused = |_| RuntimeError::Cancelled { id: capability.name.to_string(), outcome: None };
        self.ask(BEGINS).await.map_err(refused)?;
        self.has_waited.store(false, Ordering::Release);
        Ok(())
    }
}

/// A question, and where its answer goes.
pub(super) struct PendingQuestion {
    pub(super) text: Vec<u8>,
    pub(super) answer: oneshot::Sender<Bytes>,
}

#[derive(Serialize, Deserialize)]
struct Question {
    method: String,
    params: Box<RawValue>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Result(Box<RawValue>),
    Unsupported(String),
    Refused { code: i64, message: String, data: Option<Box<RawValue>> },
    Gone,
}

#[async_trait]
impl Client for RemoteClient {
    fn capabilities(&self) -> JsonText {
        self.capabilities.clone()
    }

    async fn request(&self, method: &str, params: JsonText) -> Result<JsonText, ClientError> {
        let question =
            Question { method: method.to_owned(), params: raw(&params).ok_or(ClientError::Gone)? };
        send_question(&self.questions, &question, self.max).await
    }
}

/// Returns the answer of the caller's node to a question of at most `max` bytes.
async fn send_question(
    questions: &mpsc::Sender<PendingQuestion>,
    question: &Question,
    max: usize,
) -> Result<JsonText, ClientError> {
    let text = serde_json::to_vec(question).map_err(|_| ClientError::Gone)?;
    if text.len() > max {
        let what = format!("questions of more than {max} bytes through another node");
        return Err(ClientError::Unsupported(what));
    }
    let (answer, answered) = oneshot::channel();
    questions.send(PendingQuestion { text, answer }).await.map_err(|_| ClientError::Gone)?;
    let text = answered.await.map_err(|_| ClientError::Gone)?;
    read(&text)
}

/// Returns the answer to a question, from the text that came.
fn read(text: &[u8]) -> Result<JsonText, ClientError> {
    match serde_json::from_slice(text) {
        Ok(Answer::Result(result)) => Ok(result.into()),
        Ok(Answer::Unsupported(what)) => Err(ClientError::Unsupported(what)),
        Ok(Answer::Refused { code, message, data }) => {
            Err(ClientError::Refused { code, message, data: data.map(JsonText::from) })
        }
        Ok(Answer::Gone) | Err(_) => Err(ClientError::Gone),
    }
}

/// Answers what another node wants to know: of the client, or of the checkpoint, with whether the call is idempotent.
/// Returns the text of the answer, of at most `max` bytes.
pub(super) async fn ask(
    client: Option<Arc<dyn Client>>,
    noted: Option<(Arc<dyn Checkpoint>, bool)>,
    question: Bytes,
    max: usize,
) -> Vec<u8> {
    let done = || Answer::Result(RawValue::NULL.to_owned());
    let answer = match (client, serde_json::from_slice::<Question>(&question)) {
        (_, Ok(Question { method, .. })) if method == WAITS || method == BEGINS => match noted {
            Some((checkpoint, _)) if method == WAITS => {
                checkpoint.on_remote_approval().await;
                done()
            }
            Some((checkpoint, is_idempotent)) => {
                let begun = checkpoint.before_remote_attempt(is_idempotent).await;
                begun.map_or(Answer::Gone, |()| done())
            }
            None => Answer::Gone,
        },
        (Some(client), Ok(Question { method, params })) => {
            match client.request(&method, params.into()).await {
                Ok(result) => raw(&result).map_or(Answer::Gone, Answer::Result),
                Err(ClientError::Unsupported(what)) => Answer::Unsupported(what),
                Err(ClientError::Refused { code, message, data }) => {
                    Answer::Refused { code, message, data: data.as_ref().and_then(raw) }
                }
                Err(_) => Answer::Gone,
            }
        }
        _ => Answer::Gone,
    };
    let text = serde_json::to_vec(&answer).unwrap_or_default();
    if text.len() <= max {
        return text;
    }
    let message = format!("the answer has more than {max} bytes, which another node cannot be sent");
    let refused = Answer::Refused { code: TOO_LARGE, message, data: None };
    serde_json::to_vec(&refused).unwrap_or_default()
}

/// Returns the answer to an unknown question.
pub(super) fn gone_answer() -> Vec<u8> {
    serde_json::to_vec(&Answer::Gone).unwrap_or_default()
}

fn raw(json: &JsonText) -> Option<Box<RawValue>> {
    RawValue::from_string(json.as_str().to_owned()).ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    struct Canned(fn() -> Result<JsonText, ClientError>);

    #[async_trait]
    impl Client for Canned {
        fn capabilities(&self) -> JsonText {
            JsonText::parse("{}").unwrap()
        }

        async fn request(&self, method: &str, params: JsonText) -> Result<JsonText, ClientError> {
            assert_eq!((method, params.as_str()), ("roots/list", r#"{"a":1.10}"#));
            (self.0)()
        }
    }

    async fn through(
        max: usize,
        canned: fn() -> Result<JsonText, ClientError>,
    ) -> Result<JsonText, ClientError> {
        let (questions, mut pending) = mpsc::channel(1);
        let remote = RemoteClient { capabilities: JsonText::parse("{}").unwrap(), questions, max: 1000 };
        let request = remote.request("roots/list", JsonText::parse(r#"{"a":1.10}"#).unwrap());
        let answering = async {
            let PendingQuestion { text, answer } = pending.recv().await.unwrap();
            let client: Arc<dyn Client> = Arc::new(Canned(canned));
            answer.send(ask(Some(client), None, text.into(), max).await.into()).unwrap();
        };
        tokio::join!(request, answering).0
    }

    #[tokio::test]
    async fn an_answer_arrives_unchanged() {
        let answer = through(1000, || Ok(JsonText::parse("1e400").unwrap())).await;
        assert_eq!(answer.unwrap().as_str(), "1e400");
        let refused = || {
            Err(ClientError::Refused {
                code: -1,
                message: "no".to_owned(),
                data: JsonText::parse("7").ok(),
            })
        };
        assert_eq!(through(1000, refused).await, refused());
        let unsupported = || Err(ClientError::Unsupported("roots".to_owned()));
        assert_eq!(through(1000, unsupported).await, unsupported());
        assert_eq!(through(1000, || Err(ClientError::Gone)).await, Err(ClientError::Gone));
    }

    /// Records its calls.
    #[derive(Default)]
    struct Recorder(Mutex<Vec<&'static str>>);

    #[async_trait]
    impl Checkpoint for Recorder {
        async fn before_attempt(&self, _: &Entry) -> RuntimeResult<()> {
            Ok(())
        }

        async fn on_remote_approval(&self) {
            self.0.lock().unwrap().push(WAITS);
        }

        async fn before_remote_attempt(&self, is_idempotent: bool) -> RuntimeResult<()> {
            self.0.lock().unwrap().push(BEGINS);
            if is_idempotent { Ok(()) } else { Err(RuntimeError::Generic("not written".into())) }
        }
    }

    #[tokio::test]
    async fn the_node_that_noted_a_call_learns_that_it_waits_and_begins() {
        let written = Arc::new(Recorder::default());
        let (questions, mut pending) = mpsc::channel(1);
        let remote = RemoteCheckpoint::new(questions);
        for (method, noted, is_ok) in [
            (WAITS, Some(false), true),
            (BEGINS, Some(true), true),
            (BEGINS, Some(false), false),
            (BEGINS, None, false),
        ] {
            let noted = noted.map(|it| (Arc::clone(&written) as Arc<dyn Checkpoint>, it));
            let answering = async {
                let PendingQuestion { text, answer } = pending.recv().await.unwrap();
                answer.send(ask(None, noted, text.into(), 1000).await.into()).unwrap();
            };
            assert_eq!(tokio::join!(remote.ask(method), answering).0.is_ok(), is_ok, "{method}");
        }
        assert_eq!(*written.0.lock().unwrap(), [WAITS, BEGINS, BEGINS]);
    }

    #[tokio::test]
    async fn a_question_too_large_for_a_message_is_refused() {
        let long = || JsonText::of(&"x".repeat(500)).map_err(|_| ClientError::Gone);
        let Err(ClientError::Refused { message, .. }) = through(200, long).await else { panic!() };
        assert!(message.contains("200 bytes"));
        let (questions, _pending) = mpsc::channel(1);
        let remote = RemoteClient { capabilities: JsonText::parse("{}").unwrap(), questions, max: 10 };
        let answer = remote.request("roots/list", JsonText::parse("{}").unwrap()).await;
        assert!(matches!(answer, Err(ClientError::Unsupported(_))));
    }
}
