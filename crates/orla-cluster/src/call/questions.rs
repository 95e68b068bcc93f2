//! Questions to the caller's client from a node that runs its call.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use orla_marketplace::{Client, ClientError, JsonText};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot};

/// The code of an answer that does not fit into a message.
const TOO_LARGE: i64 = -32603;

/// The caller's client, as the node that runs the call sees it.
pub(super) struct FarClient {
    pub(super) capabilities: JsonText,
    pub(super) questions: mpsc::Sender<Asked>,
    /// The most bytes of a question.
    pub(super) max: usize,
}

/// A question, and where its answer goes.
pub(super) struct Asked {
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
impl Client for FarClient {
    fn capabilities(&self) -> JsonText {
        self.capabilities.clone()
    }

    async fn request(&self, method: &str, params: JsonText) -> Result<JsonText, ClientError> {
        let question =
            Question { method: method.to_owned(), params: raw(&params).ok_or(ClientError::Gone)? };
        let text = serde_json::to_vec(&question).map_err(|_| ClientError::Gone)?;
        if text.len() > self.max {
            let what = format!("questions of more than {} bytes through another node", self.max);
            return Err(ClientError::Unsupported(what));
        }
        let (answer, answered) = oneshot::channel();
        self.questions.send(Asked { text, answer }).await.map_err(|_| ClientError::Gone)?;
        let text = answered.await.map_err(|_| ClientError::Gone)?;
        read(&text)
    }
}

/// The answer to a question, from the text that came.
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

/// Asks the client what another node wants to know. Returns the text of the answer, of at most `max` bytes.
pub(super) async fn ask(client: Option<Arc<dyn Client>>, question: Bytes, max: usize) -> Vec<u8> {
    let answer = match (client, serde_json::from_slice::<Question>(&question)) {
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

/// The answer to a question that was not asked.
pub(super) fn unasked() -> Vec<u8> {
    serde_json::to_vec(&Answer::Gone).unwrap_or_default()
}

fn raw(json: &JsonText) -> Option<Box<RawValue>> {
    RawValue::from_string(json.as_str().to_owned()).ok()
}

#[cfg(test)]
mod tests {
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
        let (questions, mut asked) = mpsc::channel(1);
        let far = FarClient { capabilities: JsonText::parse("{}").unwrap(), questions, max: 1000 };
        let request = far.request("roots/list", JsonText::parse(r#"{"a":1.10}"#).unwrap());
        let answering = async {
            let Asked { text, answer } = asked.recv().await.unwrap();
            answer.send(ask(Some(Arc::new(Canned(canned))), text.into(), max).await.into()).unwrap();
        };
        tokio::join!(request, answering).0
    }

    #[tokio::test]
    async fn an_answer_is_the_same_answer_there() {
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

    #[tokio::test]
    async fn what_does_not_fit_into_a_message_is_refused_with_a_sentence() {
        let long = || JsonText::of(&"x".repeat(500)).map_err(|_| ClientError::Gone);
        let Err(ClientError::Refused { message, .. }) = through(200, long).await else { panic!() };
        assert!(message.contains("200 bytes"));
        let (questions, _asked) = mpsc::channel(1);
        let far = FarClient { capabilities: JsonText::parse("{}").unwrap(), questions, max: 10 };
        let answer = far.request("roots/list", JsonText::parse("{}").unwrap()).await;
        assert!(matches!(answer, Err(ClientError::Unsupported(_))));
    }
}
