//! Approvals: calls that a user must approve (`approve` of the configuration).
//!
//! # How it works
//!
//! An approval is one step of a call, after its quotas. If an [`ApprovalRule`] concerns the call, the
//! call becomes a [`table`] row and waits. The question goes to the caller's own client, if it can be
//! asked (`question`), and to the front ends: [`Approvals::pending`] lists the table, and
//! [`Approvals::answer`] answers a row. The first answer counts. The clocks of the call and of its outer
//! calls stop meanwhile.
//!
//! # Invariants
//!
//! - An approval is valid for one call by the same caller of the same capability, with the same
//!   manifest, the same program and the same input (`Binding`), under the same rule. It is used once.
//!   Any other call asks again.
//! - Only what was approved runs. A call whose capability changed after the question is refused before
//!   each attempt.
//! - A call does not run after its caller's credential has expired or was withdrawn, even if it was
//!   approved before.
//! - Without an explicit approval the call does not run. A missing answer, a lost client and a full
//!   table refuse it.
//! - Every decision is observed once, with the name of its author.

mod question;
mod rule;
mod subject;
mod table;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::{ArcSwap, ArcSwapOption};
use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::attestation::{canonical_json, hash_text};
use crate::catalog::Entry;
use crate::client::Client;
use crate::error::{RuntimeError, RuntimeResult, seconds};
use crate::notice::{LogLevel, Notice, NoticeSink};
use crate::payload::{JsonText, Payload};
use crate::principal::{ANONYMOUS, Principal};
use table::{Binding, Opened, Question, Table};

pub(crate) use subject::ApprovalSubject;

pub use rule::ApprovalRule;

/// The reason for refusing a call if no client and no user can be asked.
const NO_APPROVER: &str =
    "nobody can be asked: call it at a terminal, or on a server, where `orla approvals` answers";

/// The calls that wait for an approval, and the rules.
pub struct Approvals {
    rules: ArcSwap<Vec<Arc<ApprovalRule>>>,
    table: Mutex<Table>,
    approvers: Mutex<Approvers>,
    observers: ArcSwapOption<Vec<Arc<Observer>>>,
    checks: ArcSwap<Vec<Arc<CallerCheck>>>,
    writing: Mutex<()>,
}

type CallerCheck = dyn Fn(&Principal) -> bool + Send + Sync;

type Observer = dyn Fn(&ApprovalRecord) + Send + Sync;

/// The parties that answer besides the caller's own client.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Approvers {
    /// No other party. A call whose client cannot be asked is refused immediately.
    #[default]
    Nobody,
    /// The callers to whom a front end shows [`Approvals::pending`].
    Callers,
    /// A user who can be asked directly.
    Person(Arc<dyn Approver>),
}

/// A user who can be asked directly, such as the one at the terminal.
#[async_trait]
pub trait Approver: Send + Sync {
    /// Asks the user to agree to the call that the sentence describes.
    async fn agrees(&self, sentence: &str) -> bool;
}

/// An answer to a question.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Answer {
    is_approval: bool,
    /// The principal who answered; `None` without a principal.
    by: Option<Principal>,
    via: &'static str,
}

impl Answer {
    fn decision(&self) -> ApprovalDecision {
        if self.is_approval { ApprovalDecision::Approved } else { ApprovalDecision::Denied }
    }

    fn outcome(&self) -> Result<(), String> {
        if self.is_approval { Ok(()) } else { Err("the call was denied".to_owned()) }
    }
}

/// The questions that a caller may answer if their rules do not name the answering callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MayAnswer {
    /// None.
    None,
    /// Questions about the calls of other callers.
    OfOthers,
    /// All.
    All,
}

/// A call that waits for an approval, as shown to its caller and to callers who may answer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PendingApproval {
    /// The id for the answer.
    pub id: String,
    /// The id of the capability.
    pub capability: String,
    /// The caller.
    pub principal: Option<Principal>,
    /// The input.
    pub input: Payload,
    /// When the question expires.
    pub expires_at: SystemTime,
    /// The call.
    pub call_id: Arc<str>,
    /// Whether the caller that sees it may answer it.
    pub is_answerable: bool,
}

/// A call that needs an approval, besides its input.
pub(crate) struct WaitingCall<'a> {
    /// The name under which the capability is served.
    pub(crate) name: &'a str,
    pub(crate) call_id: &'a Arc<str>,
    pub(crate) principal: Option<&'a Principal>,
    /// The client of the call, if it has one that can be asked.
    pub(crate) client: Option<&'a Arc<dyn Client>>,
    pub(crate) cancellation: &'a CancellationToken,
    /// Whether the call belongs to a task of this server alone. Only cancelling the task withdraws its question.
    pub(crate) is_task: bool,
    /// Receives a notice that the call waits.
    pub(crate) notices: &'a NoticeSink,
}

/// Returns the message of a waiting call: what it waits for, and how to approve it.
fn waiting_message(name: &str, id: &str) -> String {
    format!("{name}{WAITING_TEXT}{id}`")
}

/// Returns whether a message of a call says that it waits for an approval.
pub fn is_waiting_message(message: &str) -> bool {
    message.contains(WAITING_TEXT)
}

const WAITING_TEXT: &str = " waits for an approval: `orla approvals approve ";

/// The record of a decided question.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ApprovalRecord {
    /// The question.
    pub id: String,
    /// The call.
    pub call_id: Arc<str>,
    /// The id of the capability.
    pub capability: String,
    /// The caller.
    pub principal: Option<Principal>,
    /// The rule, such as `approve[0]`.
    pub rule: String,
    /// The digest of the input.
    pub input: String,
    /// The decision.
    pub decision: ApprovalDecision,
    /// The name of the caller who answered, if there was an answer.
    pub by: Option<String>,
    /// How that caller was identified.
    pub by_identified_by: Option<String>,
    /// The channel of the answer: `elicitation`, `orla approvals` or `terminal`.
    pub via: Option<&'static str>,
}

/// The decision about a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ApprovalDecision {
    /// The call may run.
    Approved,
    /// The call may not run.
    Denied,
    /// There was no answer in time.
    Expired,
    /// The caller left before there was an answer.
    Withdrawn,
    /// No client and no user could be asked, or there was no room for the question.
    Unasked,
    /// A later call used an approval that was given after its first caller had left.
    Used,
}

/// Why a question cannot be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AnswerError {
    /// No such question waits. It may have been answered or have expired.
    #[error("no call waits for an approval with this id; it may have been answered, or have expired")]
    Unknown,
    /// Other callers answer the question.
    #[error("you may not answer this approval")]
    NotAllowed,
}

impl ApprovalDecision {
    /// Returns the decision's word for logs, metrics and the audit.
    pub fn word(self) -> &'static str {
        match self {
            Self::Approved => "approved",
            Self::Denied => "denied",
            Self::Expired => "expired",
            Self::Withdrawn => "withdrawn",
            Self::Unasked => "unasked",
            Self::Used => "used",
        }
    }
}

impl Default for Approvals {
    fn default() -> Self {
        Self {
            rules: ArcSwap::default(),
            table: Mutex::default(),
            approvers: Mutex::default(),
            observers: ArcSwapOption::empty(),
            checks: ArcSwap::default(),
            writing: Mutex::default(),
        }
    }
}

impl Approvals {
    /// Sets the rules. Waiting calls keep theirs.
    pub fn configure(&self, rules: Vec<ApprovalRule>) {
        self.rules.store(Arc::new(rules.into_iter().map(Arc::new).collect()));
    }

    /// Sets the parties that answer besides callers' own clients.
    pub fn set_approvers(&self, approvers: Approvers) {
        *self.approvers.lock() = approvers;
    }

    /// Sets an observer of every decision.
    pub fn on_decided(&self, observe: impl Fn(&ApprovalRecord) + Send + Sync + 'static) {
        let _writing = self.writing.lock();
        let before = self.observers.load();
        let before = before.iter().flat_map(|before| before.iter().map(Arc::clone));
        let observer: Arc<Observer> = Arc::new(observe);
        self.observers.store(Some(Arc::new(before.chain([observer]).collect())));
    }

    /// Adds a check whether the credential of a caller is still accepted once its call has been
    /// approved. If there are several servers, one must accept it.
    pub fn check_callers(&self, accepts: impl Fn(&Principal) -> bool + Send + Sync + 'static) {
        let _writing = self.writing.lock();
        let check: Arc<CallerCheck> = Arc::new(accepts);
        let before = self.checks.load();
        self.checks.store(Arc::new(before.iter().map(Arc::clone).chain([check]).collect()));
    }

    /// Returns whether the caller's credential is still valid: it has not expired, and was not
    /// withdrawn.
    fn still_accepts(&self, caller: Option<&Principal>) -> bool {
        let Some(caller) = caller else { return true };
        caller.expires_at().is_none_or(|at| SystemTime::now() < at) && self.knows(caller)
    }

    /// Returns whether the caller's credential was not withdrawn. It may have expired.
    pub fn knows(&self, caller: &Principal) -> bool {
        let checks = self.checks.load();
        checks.is_empty() || checks.iter().any(|accepts| accepts(caller))
    }

    /// Returns the maximum time that a call may wait for its approval; zero if no call has to.
    pub fn longest_wait(&self) -> Duration {
        self.rules.load().iter().map(|rule| rule.expires).max().unwrap_or_default()
    }

    /// Returns whether a call of this capability by this caller needs an approval.
    pub fn concerns(&self, caller: Option<&Principal>, entry: &Entry) -> bool {
        self.rule_for(caller, entry).is_some()
    }

    /// Returns the first rule that concerns a call.
    pub(crate) fn rule_for(
        &self,
        caller: Option<&Principal>,
        entry: &Entry,
    ) -> Option<Arc<ApprovalRule>> {
        self.rules.load().iter().find(|rule| rule.concerns(caller, entry)).map(Arc::clone)
    }

    /// Returns the calls that wait for an approval, the oldest first: those that this caller may answer,
    /// and its own. `may_answer` says which questions the policy lets the caller answer.
    pub fn pending(&self, caller: Option<&Principal>, may_answer: MayAnswer) -> Vec<PendingApproval> {
        let (now, wall) = (Instant::now(), SystemTime::now());
        let mut table = self.table.lock();
        let shown = table.unanswered(now).filter_map(|question| {
            let is_answerable = question.may_be_answered_by(caller, may_answer);
            let is_own = question.binding.caller.as_ref() == caller;
            (is_answerable || is_own).then(|| PendingApproval {
                id: question.id.clone(),
                capability: question.binding.capability.clone(),
                principal: question.binding.caller.clone(),
                input: question.input.clone(),
                expires_at: wall + question.expires.saturating_duration_since(now),
                call_id: Arc::clone(&question.call_id),
                is_answerable,
            })
        });
        shown.collect()
    }

    /// Returns how many calls wait for an approval.
    pub fn waiting(&self) -> usize {
        self.table.lock().unanswered(Instant::now()).count()
    }

    /// Returns whether the question with this id has no answer yet.
    pub fn is_waiting(&self, id: &str) -> bool {
        self.table.lock().unanswered(Instant::now()).any(|question| question.id == id)
    }

    /// Answers a question in the name of this caller.
    ///
    /// # Errors
    /// There is no such question, or the caller may not answer it. A caller learns nothing of questions that it cannot see.
    pub fn answer(
        &self,
        id: &str,
        caller: Option<&Principal>,
        may_answer: MayAnswer,
        is_approval: bool,
    ) -> Result<(), AnswerError> {
        let answer = Answer { is_approval, by: caller.cloned(), via: "orla approvals" };
        let now = Instant::now();
        let question = {
            let mut table = self.table.lock();
            let question = table.unanswered(now).find(|question| question.id == id);
            let question = question.ok_or(AnswerError::Unknown)?;
            if !question.may_be_answered_by(caller, may_answer) {
                let is_own = question.binding.caller.as_ref() == caller;
                return Err(if is_own { AnswerError::NotAllowed } else { AnswerError::Unknown });
            }
            table.answer(id, answer.clone(), now).ok_or(AnswerError::Unknown)?
        };
        self.record_decision(&question, answer.decision(), Some(&answer));
        Ok(())
    }

    /// Waits until the call is approved. Returns what was approved.
    ///
    /// # Errors
    /// [`RuntimeError::Unapproved`], also if the caller's credential is no longer valid; or the
    /// call was cancelled.
    pub(crate) async fn ask(
        &self,
        rule: Arc<ApprovalRule>,
        entry: &Entry,
        input: &Payload,
        call: &WaitingCall<'_>,
    ) -> RuntimeResult<ApprovalSubject> {
        let answered = tokio::select! {
            biased;
            answered = self.wait_for_answer(&rule, entry, input, call) => answered,
            () = call.cancellation.cancelled() => {
                return Err(RuntimeError::Cancelled { id: call.name.to_owned(), outcome: None });
            }
        };
        let reason = match answered {
            Ok(subject) if self.still_accepts(call.principal) => return Ok(subject),
            Ok(_) => "the caller's credential has expired or was withdrawn meanwhile".to_owned(),
            Err(reason) => reason,
        };
        Err(RuntimeError::Unapproved { id: call.name.to_owned(), rule: rule.name.clone(), reason })
    }

    /// Waits for the answer. Returns the approved content.
    ///
    /// # Errors
    /// Why the call may not run.
    async fn wait_for_answer(
        &self,
        rule: &Arc<ApprovalRule>,
        entry: &Entry,
        input: &Payload,
        call: &WaitingCall<'_>,
    ) -> Result<ApprovalSubject, String> {
        let question = question_of(rule, entry, input, call).await?;
        let subject = question.binding.subject.clone();
        let client = call.client.filter(|client| {
            rule.may_ask_client_of(call.principal) && question::can_be_asked(&***client)
        });
        let approvers = self.approvers.lock().clone();
        if client.is_none() && matches!(approvers, Approvers::Nobody) {
            self.record_decision(&question, ApprovalDecision::Unasked, None);
            return Err(NO_APPROVER.to_owned());
        }
        let opened = self.table.lock().open(question.clone(), Instant::now());
        let (id, expires, mut answer) = match opened {
            Err(table::TooMany) => {
                self.record_decision(&question, ApprovalDecision::Unasked, None);
                return Err("too many calls wait for an approval; try again later".to_owned());
            }
            Ok(Opened::Approved(approval)) => {
                self.record_decision(&question, ApprovalDecision::Used, Some(&approval));
                return Ok(subject);
            }
            Ok(Opened::Waiting { id, expires, answer }) => (id, expires, answer),
        };
        let question = Question { id, ..question };
        let mut guard = WaitingGuard { approvals: self, call, question: Some(&question) };
        let caller = call.principal.map_or(ANONYMOUS, Principal::name);
        if matches!(approvers, Approvers::Callers) {
            let message = waiting_message(call.name, &question.id);
            call.notices.send(Notice::Log { level: LogLevel::Notice, message: message.into() });
        }
        log_waiting(&question, matches!(approvers, Approvers::Callers));
        let text = input.json().map_or("", JsonText::as_str);
        let sentence = question::sentence(call.name, caller, text);
        // An answer from the client or the terminal, which this call asks itself.
        let direct = async {
            if let Some(client) = client
                && let Some(is_approval) = question::ask(&**client, &question.id, &sentence).await
            {
                return Some(Answer { is_approval, by: call.principal.cloned(), via: "elicitation" });
            }
            match &approvers {
                Approvers::Person(person) => {
                    let is_approval = person.agrees(&sentence).await;
                    Some(Answer { is_approval, by: None, via: "terminal" })
                }
                Approvers::Callers => std::future::pending().await,
                Approvers::Nobody => None,
            }
        };
        let ended = tokio::select! {
            biased;
            Ok(answer) = &mut answer => Ended::ByOthers(answer),
            answer = direct => answer.map_or(Ended::Unasked, Ended::Directly),
            () = sleep_until(expires) => Ended::Expired,
        };
        let is_unanswered = guard.settle();
        let ended = match ended {
            Ended::ByOthers(answer) => Ended::ByOthers(answer),
            // Another answer arrived at the same moment, and counts.
            ended if !is_unanswered => answer.await.map_or(ended, Ended::ByOthers),
            ended => ended,
        };
        match ended {
            // The answer was recorded when it was given.
            Ended::ByOthers(answer) => answer.outcome().map(|()| subject),
            Ended::Directly(answer) => {
                self.record_decision(&question, answer.decision(), Some(&answer));
                answer.outcome().map(|()| subject)
            }
            Ended::Unasked => {
                self.record_decision(&question, ApprovalDecision::Unasked, None);
                Err("the client gave no answer".to_owned())
            }
            Ended::Expired => {
                self.record_decision(&question, ApprovalDecision::Expired, None);
                Err(format!("there was no answer within {}", seconds(rule.expires)))
            }
        }
    }

    fn record_decision(&self, question: &Question, decision: ApprovalDecision, answer: Option<&Answer>) {
        let record = ApprovalRecord {
            id: question.id.clone(),
            call_id: Arc::clone(&question.call_id),
            capability: question.binding.capability.clone(),
            principal: question.binding.caller.clone(),
            rule: question.rule.name.clone(),
            input: question.binding.input.clone(),
            decision,
            by: answer.map(|answer| answer.by.as_ref().map_or(ANONYMOUS, Principal::name).to_owned()),
            by_identified_by: answer
                .and_then(|answer| answer.by.as_ref())
                .map(|by| by.identified_by().to_string()),
            via: answer.map(|answer| answer.via),
        };
        tracing::info!(
            id = record.id,
            call_id = &*record.call_id,
            capability = record.capability,
            principal = record.principal.as_ref().map(Principal::name),
            identified_by =
                record.principal.as_ref().map(|it| tracing::field::display(it.identified_by())),
            rule = record.rule,
            decision = decision.word(),
            by = record.by,
            by_identified_by = record.by_identified_by,
            via = record.via,
            "approval"
        );
        if let Some(observers) = &*self.observers.load() {
            observers.iter().for_each(|observe| observe(&record));
        }
    }
}

/// A call that waits. Dropping it leaves the question without a caller. The question of a cancelled task
/// is removed.
struct WaitingGuard<'a> {
    approvals: &'a Approvals,
    call: &'a WaitingCall<'a>,
    question: Option<&'a Question>,
}

/// The end of the wait for an answer.
enum Ended {
    ByOthers(Answer),
    /// The answer of the caller's client or of the user at the terminal.
    Directly(Answer),
    /// The client gave no answer, and no other party can be asked.
    Unasked,
    Expired,
}

impl WaitingGuard<'_> {
    /// Removes the question. Returns whether it had no answer yet.
    fn settle(&mut self) -> bool {
        self.question.take().is_some_and(|question| self.approvals.table.lock().end(&question.id))
    }
}

impl Drop for WaitingGuard<'_> {
    fn drop(&mut self) {
        if let Some(question) = self.question.take() {
            let is_cancelled = self.call.is_task && self.call.cancellation.is_cancelled();
            let mut table = self.approvals.table.lock();
            let is_unanswered = match is_cancelled {
                true => table.end(&question.id),
                false => table.leave(&question.id, Instant::now()),
            };
            drop(table);
            // An answer of the same moment has been recorded already.
            if is_unanswered {
                self.approvals.record_decision(question, ApprovalDecision::Withdrawn, None);
            }
        }
    }
}

/// Logs one line: which caller waits for what, by which rule, and how to answer.
fn log_waiting(question: &Question, is_answered_by_command: bool) {
    let caller = question.binding.caller.as_ref();
    let answer = match is_answered_by_command {
        true => format!(
            "; answer it with `orla approvals approve {0}` or `orla approvals deny {0}`",
            question.id
        ),
        false => String::new(),
    };
    tracing::info!(
        id = question.id,
        call_id = &*question.call_id,
        capability = question.binding.capability,
        principal = caller.map(Principal::name),
        identified_by = caller.map(|it| tracing::field::display(it.identified_by())),
        rule = question.rule.name,
        "a call waits for an approval{answer}"
    );
}

/// Creates the question about a call.
///
/// # Errors
/// Why the call cannot be identified.
async fn question_of(
    rule: &Arc<ApprovalRule>,
    entry: &Entry,
    input: &Payload,
    call: &WaitingCall<'_>,
) -> Result<Question, String> {
    let subject = ApprovalSubject::of(entry).await?;
    let text = input.json().map_err(|err| format!("its input cannot be read: {err}"))?.as_str();
    // An input without a canonical form is used unchanged.
    let input_form = canonical_json(text).unwrap_or_else(|_| text.to_owned());
    let number = getrandom::u64().map_err(|_| "the system has no random bytes for its id".to_owned())?;
    Ok(Question {
        id: format!("{number:016x}"),
        binding: Binding {
            capability: entry.manifest.id.clone(),
            subject,
            input: hash_text(input_form.as_bytes()),
            caller: call.principal.cloned(),
        },
        rule: Arc::clone(rule),
        input: input.clone(),
        call_id: Arc::clone(call.call_id),
        expires: Instant::now() + rule.expires,
    })
}

#[cfg(test)]
mod tests;
