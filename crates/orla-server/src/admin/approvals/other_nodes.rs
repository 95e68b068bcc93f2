//! Calls that wait for an approval at other nodes of the cluster.
//!
//! A question stays at the node whose call waits, and ends with it. Other nodes request the questions
//! that one of their callers may see, and pass on the caller's answers. The node of the call decides by
//! its own rules and policy which callers may answer, takes the first answer, and records it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::future::join_all;
use orla_marketplace::{AnswerError, JsonText, Principal, millis_down};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::local::{self, has_others};
use crate::nodes::{NoAnswer, Nodes, OtherNode, question};
use crate::state::Core;
use crate::waiting::{ApprovalRefused, ApprovalRequest};

/// The first word of messages between nodes about approvals.
pub(crate) const WORD: &[u8] = b"approvals";
/// The timeout of another node for one page of its list, and for taking an answer.
const NODE_TIMEOUT: Duration = Duration::from_secs(3);
/// The maximum number of calls shown for one node.
const MAX_SHOWN: usize = 2048;
/// The longest id of a question.
const MAX_ID: usize = 64;
/// The longest time for which a question may be open.
const MAX_OPEN: Duration = Duration::from_secs(366 * 24 * 3600);

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum NodeRequest {
    /// Requests the calls that the caller may see, after the first `skip`. `several` says that the
    /// asking node has several callers, so that no caller may approve its own calls.
    List { skip: usize, several: bool },
    /// Passes on the answer of the caller.
    Decide { id: String, approve: bool, several: bool },
}

/// A part of a list.
#[derive(Default, Serialize, Deserialize)]
struct Page {
    waiting: Vec<Row>,
    /// The start of the next part.
    next: Option<usize>,
}

/// A call that waits.
#[derive(Serialize, Deserialize)]
struct Row {
    id: String,
    capability: String,
    /// The id of the principal.
    principal: Option<String>,
    input: Box<RawValue>,
    /// The remaining time in milliseconds, so that the clocks of two nodes are not compared.
    expires_ms: u64,
    call_id: String,
    answerable: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Decision {
    Done,
    NotAllowed,
    Unknown,
}

/// Answers another node. If every caller needs a credential, a caller without one gets no answer.
pub(crate) fn answer(core: &Core, caller: Option<&Principal>, request: &[u8]) -> Bytes {
    if caller.is_none() && !core.admits_anonymous() {
        return Bytes::new();
    }
    let answer = match serde_json::from_slice(request) {
        Ok(NodeRequest::List { skip, several }) => {
            let max_payload = core.cluster().map_or(0, Nodes::max_payload);
            serde_json::to_vec(&page(
                local::waiting(core, caller, several || has_others(core)),
                skip,
                max_payload,
                SystemTime::now(),
            ))
        }
        Ok(NodeRequest::Decide { id, approve, several }) => {
            let has_others = several || has_others(core);
            let decided = match local::decide(core, caller, has_others, &id, approve) {
                Ok(()) => Decision::Done,
                Err(AnswerError::NotAllowed) => Decision::NotAllowed,
                Err(_) => Decision::Unknown,
            };
            serde_json::to_vec(&decided)
        }
        Err(_) => Ok(Vec::new()),
    };
    answer.unwrap_or_default().into()
}

/// Returns the calls that fit into one answer. A call with a larger input is shown only at its own node.
fn page(waiting: Vec<ApprovalRequest>, skip: usize, max_payload: usize, now: SystemTime) -> Page {
    let mut page = Page::default();
    let mut bytes = 0;
    for (at, waiting) in waiting.into_iter().enumerate().skip(skip) {
        let row = Row::of(waiting, now);
        let size = serde_json::to_vec(&row).map_or(usize::MAX, |row| row.len() + 1);
        if size > max_payload.saturating_sub(1024) {
            continue;
        }
        if bytes + size > max_payload - 1024 {
            page.next = Some(at);
            break;
        }
        bytes += size;
        page.waiting.push(row);
    }
    page
}

/// Returns the calls that wait at other nodes and that this caller may see.
pub(super) async fn waiting(core: &Core, caller: Option<&Principal>) -> Vec<ApprovalRequest> {
    let Some(cluster) = core.cluster() else { return Vec::new() };
    let lists = cluster.others().into_iter().map(async |other| {
        let mut rows = Vec::new();
        if let Err(error) = list(cluster, &other, caller, has_others(core), &mut rows).await {
            tracing::warn!(node = other.node, %error, "the calls that wait for an approval at a node are not shown");
        }
        let now = SystemTime::now();
        rows.into_iter().filter_map(move |row| row.read(&other.node, now))
    });
    join_all(lists).await.into_iter().flatten().collect()
}

async fn list(
    cluster: &dyn Nodes,
    other: &OtherNode,
    caller: Option<&Principal>,
    several: bool,
    rows: &mut Vec<Row>,
) -> Result<(), NoAnswer> {
    let mut skip = 0;
    while rows.len() < MAX_SHOWN {
        let page: Page = ask(cluster, other, caller, &NodeRequest::List { skip, several }).await?;
        if page.waiting.is_empty() {
            break;
        }
        rows.extend(page.waiting);
        match page.next {
            Some(next) if next > skip => skip = next,
            _ => break,
        }
    }
    Ok(())
}

/// Passes on an answer to the node whose call waits.
///
/// # Errors
///
/// Returns an error if no node has such a question, or the caller may not answer it.
pub(super) async fn decide(
    core: &Core,
    caller: Option<&Principal>,
    id: &str,
    approve: bool,
) -> Result<(), ApprovalRefused> {
    let others = core.cluster().map(|cluster| (cluster, cluster.others()));
    let Some((cluster, others)) = others.filter(|_| id.len() <= MAX_ID) else {
        return Err(AnswerError::Unknown.into());
    };
    let request = NodeRequest::Decide { id: id.to_owned(), approve, several: has_others(core) };
    let answers = others.iter().map(|other| ask(cluster, other, caller, &request));
    let answers = join_all(answers).await;
    let decided = answers.iter().zip(&others).filter_map(|(answer, other)| match answer {
        Ok(Decision::Unknown) | Err(NoAnswer::Gone) => None,
        Ok(Decision::Done) => Some((0, Ok(()))),
        Ok(Decision::NotAllowed) => Some((1, Err(AnswerError::NotAllowed.into()))),
        Err(_) => Some((2, Err(ApprovalRefused::Unreachable(other.node.clone())))),
    });
    let first = decided.min_by_key(|(order, _)| *order);
    first.map_or(Err(AnswerError::Unknown.into()), |(_, decided)| decided)
}

async fn ask<T: serde::de::DeserializeOwned>(
    cluster: &dyn Nodes,
    other: &OtherNode,
    caller: Option<&Principal>,
    request: &NodeRequest,
) -> Result<T, NoAnswer> {
    let answer = cluster.ask(&other.instance, caller, question(WORD, request), NODE_TIMEOUT).await?;
    serde_json::from_slice(&answer).map_err(|_| NoAnswer::Silent("its answer cannot be read".to_owned()))
}

impl Row {
    fn of(waiting: ApprovalRequest, now: SystemTime) -> Self {
        let remaining = waiting.expires_at.duration_since(now).unwrap_or_default();
        Self {
            id: waiting.id,
            capability: waiting.capability,
            principal: waiting.principal.map(|principal| principal.id().to_string()),
            input: RawValue::from_string(waiting.input.as_str().to_owned())
                .unwrap_or_else(|_| RawValue::NULL.to_owned()),
            expires_ms: millis_down(remaining),
            call_id: waiting.call_id.to_string(),
            answerable: waiting.is_answerable,
        }
    }

    /// Returns the call in the form of this node, or `None` if no valid node could have sent it.
    fn read(self, node: &str, now: SystemTime) -> Option<ApprovalRequest> {
        let is_id = (1..=MAX_ID).contains(&self.id.len())
            && self.id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        is_id.then(|| ApprovalRequest {
            id: self.id,
            capability: self.capability,
            principal: self.principal.as_deref().map(Principal::from_id),
            input: JsonText::from(self.input),
            expires_at: now + Duration::from_millis(self.expires_ms).min(MAX_OPEN),
            call_id: Arc::from(self.call_id),
            is_answerable: self.answerable,
            node: Some(node.to_owned()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: SystemTime = SystemTime::UNIX_EPOCH;

    fn call(id: &str, input: &str) -> ApprovalRequest {
        ApprovalRequest {
            id: id.to_owned(),
            capability: "rm".to_owned(),
            principal: Some(Principal::token("bob")),
            input: JsonText::parse(input.to_owned()).unwrap(),
            expires_at: NOW + Duration::from_secs(9),
            call_id: "c-1".into(),
            is_answerable: true,
            node: None,
        }
    }

    #[test]
    fn a_waiting_call_is_shown_at_other_nodes_by_their_own_clock() {
        let row = Row::of(call("0a", r#"{"n": 1.10}"#), NOW);
        let text = serde_json::to_string(&row).unwrap();
        let later = NOW + Duration::from_secs(1000);
        let shown = serde_json::from_str::<Row>(&text).unwrap().read("alpha", later).unwrap();
        assert_eq!((shown.id.as_str(), shown.input.as_str()), ("0a", r#"{"n": 1.10}"#));
        assert_eq!(shown.principal, Some(Principal::token("bob")));
        assert_eq!(shown.expires_at, later + Duration::from_secs(9));
        assert_eq!(shown.node.as_deref(), Some("alpha"));
        for bad in ["", "a/b", &"a".repeat(65)] {
            assert!(Row::of(call(bad, "{}"), NOW).read("alpha", NOW).is_none(), "{bad}");
        }
    }

    #[test]
    fn a_list_has_pages_without_oversized_calls() {
        let input = |bytes: usize| format!("\"{}\"", "x".repeat(bytes));
        let all =
            || ["a", "b", "c", "d"].map(|id| call(id, &input(if id == "b" { 5000 } else { 1000 })));
        let (mut skip, mut seen) = (0, Vec::new());
        for _ in 0..4 {
            let page = page(all().into(), skip, 4096, NOW);
            seen.push(page.waiting.iter().map(|row| row.id.clone()).collect::<String>());
            match page.next {
                Some(next) => skip = next,
                None => break,
            }
        }
        assert_eq!(seen, ["ac", "d"]);
        assert!(page(all().into(), 0, 0, NOW).waiting.is_empty());
    }
}
