//! The calls that wait for an approval: a pure state machine.
//!
//! A call *waits*. If its caller leaves, the question stays. A client that gives up early can come back,
//! and the same call attaches to the question again. An answer to a waiting call ends the question. An
//! approval of a call whose caller has left is *kept* for the next call with the same [`Binding`] under
//! the same rule, which uses it up. Every entry is removed when it expires.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Answer, ApprovalRule, ApprovalSubject, MayAnswer};
use crate::payload::Payload;
use crate::principal::Principal;

/// The most questions at once.
const MAX_QUESTIONS: usize = 1024;
/// The most questions of one caller.
const MAX_OF_ONE_CALLER: usize = 64;
/// The largest input of a question that stays when its caller leaves, in bytes.
const MAX_STORED_INPUT: usize = 64 << 10;

/// The scope of an approval: one call with exactly these values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Binding {
    /// The id of the capability.
    pub(super) capability: String,
    /// Its manifest and its program.
    pub(super) subject: ApprovalSubject,
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
    /// Returns whether this caller may answer it.
    pub(super) fn may_be_answered_by(&self, caller: Option<&Principal>, may_answer: MayAnswer) -> bool {
        self.rule.may_answer(caller, self.binding.caller.as_ref() == caller, may_answer)
    }
}

/// The state of a question.
enum State {
    Waiting(oneshot::Sender<Answer>),
    /// The caller has left.
    Left,
    /// The question was approved after the caller had left.
    Kept(Answer),
}

/// The result of opening a question.
#[derive(Debug)]
pub(super) enum Opened {
    /// The call waits for the answer to the question with this id.
    Waiting { id: String, expires: Instant, answer: oneshot::Receiver<Answer> },
    /// The call was approved already. The approval is used up.
    Approved(Answer),
}

/// Too many calls wait for their approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooMany;

#[derive(Default)]
pub(super) struct Table(Vec<(Question, State)>);

impl Table {
    /// Begins to wait for an approval, or uses one.
    pub(super) fn open(&mut self, question: Question, now: Instant) -> Result<Opened, TooMany> {
        self.expire(now);
        // If the rule has changed, other callers may have to answer.
        let is_same = |(other, _): &&mut (Question, State)| {
            other.binding == question.binding && other.rule == question.rule
        };
        let not_waiting = |(_, state): &&mut (Question, State)| !matches!(state, State::Waiting(_));
        if let Some((known, state)) = self.0.iter_mut().filter(is_same).find(not_waiting) {
            let (id, expires) = (known.id.clone(), known.expires);
            if let State::Kept(approval) = state {
                let approval = approval.clone();
                self.0.retain(|(question, _)| question.id != id);
                return Ok(Opened::Approved(approval));
            }
            known.call_id = question.call_id;
            let (sender, answer) = oneshot::channel();
            *state = State::Waiting(sender);
            return Ok(Opened::Waiting { id, expires, answer });
        }
        let is_of_caller =
            |(other, _): &&(Question, State)| other.binding.caller == question.binding.caller;
        if self.0.len() >= MAX_QUESTIONS
            || self.0.iter().filter(is_of_caller).count() >= MAX_OF_ONE_CALLER
        {
            return Err(TooMany);
        }
        let (sender, answer) = oneshot::channel();
        let (id, expires) = (question.id.clone(), question.expires);
        self.0.push((question, State::Waiting(sender)));
        Ok(Opened::Waiting { id, expires, answer })
    }

    /// Records that the caller no longer waits for this question. Returns whether the question had no
    /// answer yet.
    pub(super) fn leave(&mut self, id: &str, now: Instant) -> bool {
        self.expire(now);
        let Some((_, state)) = self.0.iter_mut().find(|(question, _)| question.id == id) else {
            return false;
        };
        *state = State::Left;
        self.0.retain(|(question, state)| {
            !matches!(state, State::Left) || question.input.text_bytes() <= MAX_STORED_INPUT
        });
        true
    }

    /// Removes the question in any state. Returns whether it was there.
    pub(super) fn end(&mut self, id: &str) -> bool {
        let before = self.0.len();
        self.0.retain(|(question, _)| question.id != id);
        self.0.len() < before
    }

    /// Answers a question. Returns the question if it had not been answered yet; `None` otherwise.
    pub(super) fn answer(&mut self, id: &str, answer: Answer, now: Instant) -> Option<Question> {
        self.expire(now);
        let at = self.0.iter().position(|(question, _)| question.id == id)?;
        if matches!(self.0[at].1, State::Kept(_)) {
            return None;
        }
        let (question, state) = self.0.remove(at);
        match state {
            // If the caller leaves at this moment, it leaves without the answer.
            State::Waiting(sender) => drop(sender.send(answer)),
            State::Left if answer.is_approval => self.0.push((question.clone(), State::Kept(answer))),
            State::Left | State::Kept(_) => {}
        }
        Some(question)
    }

    /// The questions without an answer, the oldest first.
    pub(super) fn unanswered(&mut self, now: Instant) -> impl Iterator<Item = &Question> {
        self.expire(now);
        let unanswered = self.0.iter().filter(|(_, state)| !matches!(state, State::Kept(_)));
        unanswered.map(|(question, _)| question)
    }

    fn expire(&mut self, now: Instant) {
        // A waiting call removes its question itself, with a better reason.
        self.0.retain(|(question, state)| now < question.expires || matches!(state, State::Waiting(_)));
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
                subject: ApprovalSubject::default(),
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
        match table.open(question, Instant::now()).unwrap() {
            Opened::Waiting { answer, .. } => answer,
            Opened::Approved(by) => panic!("approved by {by:?}"),
        }
    }

    fn ids(table: &mut Table) -> Vec<String> {
        table.unanswered(Instant::now()).map(|question| question.id.clone()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_ends_one_question_and_comes_once() {
        let (mut table, now) = (Table::default(), Instant::now());
        let mut first = waits(&mut table, question("1", "bob", "{}"));
        let mut second = waits(&mut table, question("2", "bob", "{}"));
        assert!(table.answer("1", yes(), now).is_some());
        assert!(table.answer("1", yes(), now).is_none(), "an approval is given once");
        assert!(first.try_recv().unwrap().is_approval);
        assert!(second.try_recv().is_err(), "the same call needs an approval of its own");
        assert!(table.answer("2", no(), now).is_some());
        assert!(!second.try_recv().unwrap().is_approval);
        assert!(table.answer("3", yes(), now).is_none());
        assert!(ids(&mut table).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn an_approval_holds_once_and_only_for_the_same_call() {
        let (mut table, now) = (Table::default(), Instant::now());
        drop(waits(&mut table, question("1", "bob", r#"{"n":1}"#)));
        table.leave("1", now);
        assert_eq!(ids(&mut table), ["1"], "it can still be answered");
        assert!(table.answer("1", yes(), now).is_some());
        assert!(ids(&mut table).is_empty());
        assert!(table.answer("1", no(), now).is_none());
        drop(waits(&mut table, question("2", "bob", r#"{"n":2}"#)));
        drop(waits(&mut table, question("3", "eve", r#"{"n":1}"#)));
        let mut changed = question("4", "bob", r#"{"n":1}"#);
        changed.binding.subject.manifest = "sha256:1".to_owned();
        drop(waits(&mut table, changed));
        let mut narrowed = question("6", "bob", r#"{"n":1}"#);
        let by = Some(crate::principal::Callers::parse(["eve"]).unwrap());
        narrowed.rule = Arc::new(ApprovalRule { by, ..ApprovalRule::new("approve[0]") });
        drop(waits(&mut table, narrowed));
        let same = || question("5", "bob", r#"{"n":1}"#);
        assert!(matches!(table.open(same(), now), Ok(Opened::Approved(_))));
        drop(waits(&mut table, same()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_repeated_call_rejoins_its_open_question() {
        let (mut table, now) = (Table::default(), Instant::now());
        drop(waits(&mut table, question("1", "bob", "{}")));
        table.leave("1", now);
        let mut again = waits(&mut table, question("2", "bob", "{}"));
        assert_eq!(ids(&mut table), ["1"]);
        assert!(table.answer("1", yes(), now).is_some());
        assert!(again.try_recv().unwrap().is_approval);
        assert!(!table.end("1"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_denial_and_an_expired_approval_are_not_kept() {
        let mut table = Table::default();
        for (id, answer) in [("1", no()), ("2", yes())] {
            drop(waits(&mut table, question(id, "bob", "{}")));
            table.leave(id, Instant::now());
            table.answer(id, answer, Instant::now());
            tokio::time::advance(Duration::from_secs(60)).await;
        }
        drop(waits(&mut table, question("3", "bob", "{}")));
        table.leave("3", Instant::now());
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(table.answer("3", yes(), Instant::now()).is_none(), "it has expired");
    }

    #[tokio::test(start_paused = true)]
    async fn one_caller_cannot_fill_the_table() {
        let mut table = Table::default();
        let fill = |table: &mut Table, who: &str| {
            let open = |number: &usize| {
                let one = question(&format!("{who}{number}"), who, &format!("{number}"));
                table.open(one, Instant::now()).is_ok()
            };
            (0..2 * MAX_OF_ONE_CALLER).filter(open).count()
        };
        assert_eq!(fill(&mut table, "bob"), MAX_OF_ONE_CALLER);
        assert_eq!(fill(&mut table, "ada"), MAX_OF_ONE_CALLER);
        for number in 0..2 * MAX_QUESTIONS / MAX_OF_ONE_CALLER {
            fill(&mut table, &format!("caller {number} "));
        }
        assert_eq!(table.0.len(), MAX_QUESTIONS);
    }
}
