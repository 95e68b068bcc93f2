//! The calls that wait for an approval: a pure state machine.
//!
//! A question lasts as long as its call waits. It ends with an answer, when it expires, or when its caller leaves: an
//! approval lets through the call that waits, and no later one.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Answer, ApprovalRule, MayAnswer};
use crate::payload::Payload;
use crate::principal::Principal;

/// The most questions at once.
const MAX_QUESTIONS: usize = 1024;
/// The most questions of one caller.
const MAX_OF_ONE_CALLER: usize = 64;

/// What a question is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Binding {
    /// The id of the capability.
    pub(super) capability: String,
    /// The digest of its manifest.
    pub(super) manifest: String,
    /// The digest of the input.
    pub(super) input: String,
    /// The caller.
    pub(super) caller: Option<Principal>,
}

/// A call that needs an approval.
#[derive(Clone)]
pub(super) struct Question {
    /// Random, so that it cannot be guessed.
    pub(super) id: String,
    pub(super) binding: Binding,
    pub(super) rule: Arc<ApprovalRule>,
    pub(super) input: Payload,
    pub(super) call_id: Arc<str>,
    pub(super) expires: Instant,
}

impl Question {
    /// Whether this caller may answer it.
    pub(super) fn may_be_answered_by(&self, caller: Option<&Principal>, may_answer: MayAnswer) -> bool {
        self.rule.may_answer(caller, self.binding.caller.as_ref() == caller, may_answer)
    }
}

/// A question that was put.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) expires: Instant,
    pub(super) answer: oneshot::Receiver<Answer>,
}

/// Too many calls wait for their approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooMany;

#[derive(Default)]
pub(super) struct Table(Vec<(Question, oneshot::Sender<Answer>)>);

impl Table {
    /// Begins to wait for an approval.
    pub(super) fn open(&mut self, question: Question) -> Result<Opened, TooMany> {
        let is_of_caller = |(other, _): &&(Question, oneshot::Sender<Answer>)| {
            other.binding.caller == question.binding.caller
        };
        if self.0.len() >= MAX_QUESTIONS
            || self.0.iter().filter(is_of_caller).count() >= MAX_OF_ONE_CALLER
        {
            return Err(TooMany);
        }
        let (sender, answer) = oneshot::channel();
        let expires = question.expires;
        self.0.push((question, sender));
        Ok(Opened { expires, answer })
    }

    /// Removes a question. Returns whether it was there, and so had no answer yet.
    pub(super) fn end(&mut self, id: &str) -> bool {
        let before = self.0.len();
        self.0.retain(|(question, _)| question.id != id);
        self.0.len() < before
    }

    /// Answers a question. Gives the question if its call waits for the answer; `None` otherwise.
    pub(super) fn answer(&mut self, id: &str, answer: Answer) -> Option<Question> {
        let waits = |(question, sender): &(Question, oneshot::Sender<Answer>)| {
            question.id == id && !sender.is_closed()
        };
        let at = self.0.iter().position(waits)?;
        let (question, sender) = self.0.remove(at);
        // The caller may leave at this moment; it then leaves without the answer.
        drop(sender.send(answer));
        Some(question)
    }

    /// The questions without an answer, the oldest first. A call ends its question itself when that expires.
    pub(super) fn unanswered(&self) -> impl Iterator<Item = &Question> {
        self.0.iter().map(|(question, _)| question)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn question(id: &str, caller: &str, input: &str) -> Question {
        let payload = crate::JsonText::parse(input.to_owned()).unwrap();
        Question {
            id: id.to_owned(),
            binding: Binding {
                capability: "a".to_owned(),
                manifest: "sha256:0".to_owned(),
                input: input.to_owned(),
                caller: Some(Principal::token(caller)),
            },
            rule: Arc::new(ApprovalRule::new("approve[0]")),
            input: Payload::from_json(payload),
            call_id: "call-1".into(),
            expires: Instant::now() + Duration::from_secs(60),
        }
    }

    fn yes() -> Answer {
        Answer { is_approval: true, by: Some(Principal::token("ada")), via: "orla approvals" }
    }

    fn no() -> Answer {
        Answer { is_approval: false, ..yes() }
    }

    fn waits(table: &mut Table, question: Question) -> oneshot::Receiver<Answer> {
        table.open(question).unwrap().answer
    }

    fn ids(table: &Table) -> Vec<String> {
        table.unanswered().map(|question| question.id.clone()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_ends_one_question_and_comes_once() {
        let mut table = Table::default();
        let mut first = waits(&mut table, question("1", "bob", "{}"));
        let mut second = waits(&mut table, question("2", "bob", "{}"));
        assert!(table.answer("1", yes()).is_some());
        assert!(table.answer("1", yes()).is_none(), "an approval is given once");
        assert!(first.try_recv().unwrap().is_approval);
        assert!(second.try_recv().is_err(), "the same call needs an approval of its own");
        assert!(table.answer("2", no()).is_some());
        assert!(!second.try_recv().unwrap().is_approval);
        assert!(table.answer("3", yes()).is_none());
        assert!(ids(&table).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_ends_with_its_call() {
        let mut table = Table::default();
        drop(waits(&mut table, question("1", "bob", "{}")));
        assert!(table.answer("1", yes()).is_none(), "nobody waits for the answer");
        assert!(table.end("1") && !table.end("1"));
        let mut again = waits(&mut table, question("2", "bob", "{}"));
        assert_eq!(ids(&table), ["2"]);
        assert!(again.try_recv().is_err(), "the same call is asked about anew");
    }

    #[tokio::test(start_paused = true)]
    async fn one_caller_cannot_fill_the_table() {
        let mut table = Table::default();
        let mut waiting = Vec::new();
        let mut fill = |table: &mut Table, who: &str| {
            let open = |number: usize| {
                let one = question(&format!("{who}{number}"), who, &format!("{number}"));
                table.open(one).map(|opened| waiting.push(opened)).is_ok()
            };
            (0..2 * MAX_OF_ONE_CALLER).map(open).filter(|is_open| *is_open).count()
        };
        assert_eq!(fill(&mut table, "bob"), MAX_OF_ONE_CALLER);
        assert_eq!(fill(&mut table, "ada"), MAX_OF_ONE_CALLER);
        for number in 0..2 * MAX_QUESTIONS / MAX_OF_ONE_CALLER {
            fill(&mut table, &format!("caller {number} "));
        }
        assert_eq!(table.0.len(), MAX_QUESTIONS);
    }
}
