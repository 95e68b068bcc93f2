use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::FutureExt;
use tokio::time::advance;

use super::*;
use crate::call::{Call, Checkpoint};
use crate::catalog::Limits;
use crate::client::{Client, ClientError};
use crate::id::Pattern;
use crate::marketplace::CapabilityMarketplace;
use crate::principal::Callers;
use crate::testing::{Canned, marketplace};

/// `a` needs an approval.
fn market(by: Option<&str>) -> Arc<CapabilityMarketplace> {
    let market = marketplace(Limits::default(), [("a", Canned::Echoes), ("b", Canned::Echoes)]);
    market.approvals().configure(vec![ApprovalRule {
        capabilities: vec![Pattern::new("a")],
        expires: Duration::from_secs(60),
        by: by.map(|by| Callers::parse([by]).unwrap()),
        ..ApprovalRule::new("approve[0]")
    }]);
    market.approvals().set_approvers(Approvers::Callers);
    market
}

fn call(caller: &str, input: &str) -> Call {
    let input = JsonText::parse(input.to_owned()).unwrap();
    let mut call = Call::to("a").with(Payload::from_json(input));
    call.scope.principal = Some(Principal::token(caller));
    call
}

fn only(market: &CapabilityMarketplace) -> PendingApproval {
    let mut pending = market.approvals().pending(None, MayAnswer::All);
    assert_eq!(pending.len(), 1, "{pending:?}");
    pending.remove(0)
}

/// A client that gives this answer.
struct Answers(&'static str, AtomicUsize);

#[async_trait]
impl Client for Answers {
    fn capabilities(&self) -> JsonText {
        JsonText::parse(r#"{"elicitation":{}}"#).unwrap()
    }

    async fn request(&self, _: &str, _: JsonText) -> Result<JsonText, ClientError> {
        self.1.fetch_add(1, Ordering::Relaxed);
        if self.0.is_empty() { Err(ClientError::Gone) } else { Ok(JsonText::parse(self.0).unwrap()) }
    }
}

fn with_client(mut call: Call, answer: &'static str) -> (Call, Arc<Answers>) {
    let client = Arc::new(Answers(answer, AtomicUsize::new(0)));
    call.scope.client = Some(Arc::clone(&client) as Arc<dyn Client>);
    (call, client)
}

const YES: &str = r#"{"action":"accept","content":{"approve":true}}"#;

#[tokio::test(start_paused = true)]
async fn a_call_runs_once_it_is_approved_and_keeps_its_time() {
    let market = market(None);
    let mut calling = Box::pin(market.call(call("bob", r#"{"n":1}"#)));
    assert!(calling.as_mut().now_or_never().is_none());
    // Longer than the call's own 30 s.
    advance(Duration::from_secs(50)).await;
    assert!(calling.as_mut().now_or_never().is_none());
    let id = only(&market).id;
    let ada = Principal::token("ada");
    market.approvals().answer(&id, Some(&ada), MayAnswer::All, true).unwrap();
    assert_eq!(calling.await.unwrap().payload().unwrap().json().unwrap().as_str(), r#"{"n":1}"#);
    let again = market.approvals().answer(&id, Some(&ada), MayAnswer::All, true);
    assert_eq!(again, Err(AnswerError::Unknown));
    assert!(market.call(Call::to("b")).now_or_never().unwrap().is_ok(), "others are not asked about");
}

/// As that of another node does which is gone.
struct Mute;

#[async_trait]
impl Checkpoint for Mute {
    async fn before_approval(&self, _: &Entry) -> RuntimeResult<()> {
        std::future::pending().await
    }

    async fn before_attempt(&self, _: &Entry) -> RuntimeResult<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_that_does_not_answer_holds_no_call_past_its_end() {
    let market = market(None);
    let held = || {
        let mut call = call("bob", "{}");
        call.scope.checkpoint = Some(Arc::new(Mute));
        call
    };
    assert_eq!(market.call(held()).await.unwrap_err().kind(), "timeout");
    let withdrawn = held();
    withdrawn.scope.cancellation.cancel();
    assert_eq!(market.call(withdrawn).await.unwrap_err().kind(), "cancelled");
    assert_eq!(market.approvals().waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn silence_and_denial_refuse_the_call() {
    let market = market(None);
    let refused = market.call(call("bob", "{}")).await.unwrap_err();
    assert_eq!((refused.kind(), refused.rule()), ("approval", Some("approve[0]")));
    assert_eq!(refused.to_string(), "a: not approved: there was no answer within 60 s");
    let mut calling = Box::pin(market.call(call("bob", "{}")));
    assert!(calling.as_mut().now_or_never().is_none());
    market.approvals().answer(&only(&market).id, None, MayAnswer::All, false).unwrap();
    assert_eq!(calling.await.unwrap_err().to_string(), "a: not approved: the call was denied");
    assert_eq!(market.approvals().waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_callers_client_answers_for_its_own_call_alone() {
    let market = market(None);
    for (answer, is_approved) in [(YES, true), (r#"{"action":"decline"}"#, false)] {
        let (call, client) = with_client(call("bob", "{}"), answer);
        assert_eq!(market.call(call).await.is_ok(), is_approved, "{answer}");
        assert_eq!(client.1.load(Ordering::Relaxed), 1);
    }
    let (lost, _) = with_client(call("bob", "{}"), "");
    let mut calling = Box::pin(market.call(lost));
    assert!(calling.as_mut().now_or_never().is_none(), "others can still answer");
    market.approvals().answer(&only(&market).id, None, MayAnswer::All, true).unwrap();
    assert!(calling.await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_client_whose_caller_may_not_answer_is_not_asked() {
    let market = market(Some("ada"));
    let (bobs, client) = with_client(call("bob", "{}"), YES);
    let mut calling = Box::pin(market.call(bobs));
    assert!(calling.as_mut().now_or_never().is_none());
    assert_eq!(client.1.load(Ordering::Relaxed), 0);
    let [ada, bob, eve] = ["ada", "bob", "eve"].map(Principal::token);
    let approvals = market.approvals();
    let id = approvals.pending(Some(&ada), MayAnswer::None)[0].id.clone();
    assert!(!approvals.pending(Some(&bob), MayAnswer::All)[0].is_answerable);
    assert!(approvals.pending(Some(&eve), MayAnswer::All).is_empty());
    assert_eq!(approvals.answer(&id, Some(&bob), MayAnswer::All, true), Err(AnswerError::NotAllowed));
    assert_eq!(approvals.answer(&id, Some(&eve), MayAnswer::All, true), Err(AnswerError::Unknown));
    approvals.answer(&id, Some(&ada), MayAnswer::None, true).unwrap();
    assert!(calling.await.is_ok());
    let (adas, client) = with_client(call("ada", "{}"), YES);
    assert!(market.call(adas).await.is_ok());
    assert_eq!(client.1.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn without_anyone_to_ask_a_call_is_refused_at_once() {
    let market = market(None);
    market.approvals().set_approvers(Approvers::Nobody);
    let refused = market.call(call("bob", "{}")).now_or_never().unwrap().unwrap_err();
    assert_eq!(refused.to_string(), format!("a: not approved: {NO_APPROVER}"));
    let (lost, _) = with_client(call("bob", "{}"), "");
    assert_eq!(market.call(lost).await.unwrap_err().kind(), "approval");
    let (asked, _) = with_client(call("bob", "{}"), YES);
    assert!(market.call(asked).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_callers_credential_has_ended_does_not_run() {
    let market = market(None);
    let is_known = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let known = Arc::clone(&is_known);
    market.approvals().check_callers(move |_| known.load(Ordering::Relaxed));
    let ask_and_approve = |call: Call, meanwhile: &dyn Fn()| {
        let mut calling = Box::pin(market.call(call));
        assert!(calling.as_mut().now_or_never().is_none());
        meanwhile();
        market.approvals().answer(&only(&market).id, None, MayAnswer::All, true).unwrap();
        calling.now_or_never().unwrap()
    };
    let ended = "a: not approved: the caller's credential has expired or was withdrawn meanwhile";
    let mut expired = call("bob", "{}");
    expired.scope.principal = Some(Principal::token("bob").with_expiry(SystemTime::UNIX_EPOCH));
    assert_eq!(ask_and_approve(expired, &|| ()).unwrap_err().to_string(), ended);
    let revoked = ask_and_approve(call("bob", "{}"), &|| is_known.store(false, Ordering::Relaxed));
    assert_eq!(revoked.unwrap_err().to_string(), ended);
    is_known.store(true, Ordering::Relaxed);
    assert!(ask_and_approve(call("bob", "{}"), &|| ()).is_ok());
}

#[tokio::test(start_paused = true)]
async fn an_answer_and_a_leave_of_the_same_moment_end_a_question_once() {
    let market = market(None);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let records = Arc::clone(&seen);
    market.approvals().on_decided(move |record| records.lock().push(record.decision));
    let mut calling = Box::pin(market.call(call("bob", "{}")));
    assert!(calling.as_mut().now_or_never().is_none());
    market.approvals().answer(&only(&market).id, None, MayAnswer::All, true).unwrap();
    drop(calling);
    assert_eq!(*seen.lock(), [ApprovalDecision::Approved]);
}

#[tokio::test(start_paused = true)]
async fn every_question_ends_with_one_record() {
    let market = market(None);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let records = Arc::clone(&seen);
    market.approvals().on_decided(move |record| {
        records.lock().push((record.decision, record.by.clone(), record.via));
    });
    let approvals = market.approvals();
    let begin = || {
        let mut calling = Box::pin(market.call(call("bob", "{}")));
        assert!(calling.as_mut().now_or_never().is_none());
        calling
    };
    let first = begin();
    approvals.answer(&only(&market).id, Some(&Principal::token("ada")), MayAnswer::All, true).unwrap();
    first.await.unwrap();
    drop(begin());
    // It is approved after its caller has left, and the same call uses that up.
    approvals.answer(&only(&market).id, Some(&Principal::token("ada")), MayAnswer::All, true).unwrap();
    market.call(call("bob", "{}")).await.unwrap();
    drop(market.call(call("bob", r#"{"n":2}"#)).await);
    let (asked, _) = with_client(call("bob", "{}"), YES);
    market.call(asked).await.unwrap();
    let of = |decision, by: Option<&str>, via| (decision, by.map(str::to_owned), via);
    let command = Some("orla approvals");
    assert_eq!(
        *seen.lock(),
        [
            of(ApprovalDecision::Approved, Some("ada"), command),
            of(ApprovalDecision::Withdrawn, None, None),
            of(ApprovalDecision::Approved, Some("ada"), command),
            of(ApprovalDecision::Used, Some("ada"), command),
            of(ApprovalDecision::Expired, None, None),
            of(ApprovalDecision::Approved, Some("bob"), Some("elicitation")),
        ]
    );
}
