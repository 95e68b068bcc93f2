//! The stored calls, and their visibility.

#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect has failed")]

use std::sync::Arc;

use orla_history::{History, NoticeKind, Options, Query, RUNNING, ReplayError, Viewer};
use orla_marketplace::testing::{Canned, marketplace};
use orla_marketplace::{
    Call, CallContext, CallScope, CapabilityMarketplace, JsonText, Limits, NoticeSink, Outcome, Payload,
    Principal, Redactor, RuntimeError,
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

fn recorded(capabilities: &[(&str, Canned)]) -> (Arc<CapabilityMarketplace>, History) {
    let market = marketplace(Limits::default(), capabilities.iter().cloned());
    let history = History::in_memory(&market, Options::default()).unwrap();
    (market, history)
}

fn call(id: &str, input: &str) -> Call {
    Call::to(id).with(Payload::from_json(JsonText::parse(input.to_owned()).unwrap()))
}

#[tokio::test]
async fn a_call_is_kept_with_its_data_and_the_newest_is_the_first() {
    let (market, history) =
        recorded(&[("echo", Canned::Echoes), ("bad", Canned::Fails("the reason".to_owned()))]);
    market.call(call("echo", r#"{"n":18446744073709551616}"#)).await.unwrap();
    market.call(call("bad", "{}")).await.unwrap_err();
    let calls = history.list(&Query::default(), &Viewer::All).await.unwrap();
    let shown: Vec<_> = calls.iter().map(|call| (&*call.capability, &*call.outcome)).collect();
    assert_eq!(shown, [("bad", "failed"), ("echo", "ok")]);
    let of = async |at: usize| {
        let detail = history.detail(&calls[at].id, &Viewer::All).await.unwrap().unwrap();
        serde_json::to_string(&detail).unwrap()
    };
    let echo = of(1).await;
    assert!(
        echo.contains(r#""input":{"n":18446744073709551616},"output":{"n":18446744073709551616}"#),
        "{echo}"
    );
    assert!(of(0).await.contains(r#""error":{"kind":"failed","message":"the reason"}"#));
    let mut failed = Query::default();
    failed.failed = true;
    assert_eq!(history.list(&failed, &Viewer::All).await.unwrap(), calls[..1]);
    let mut older = Query::default();
    older.before = Some(calls[0].id.clone());
    assert_eq!(history.list(&older, &Viewer::All).await.unwrap(), calls[1..]);
}

#[tokio::test]
async fn a_viewer_sees_its_own_calls() {
    let (market, history) = recorded(&[("echo", Canned::Echoes)]);
    for name in ["ada", "bob"] {
        let mut call = call("echo", "{}");
        call.scope.principal = Some(Principal::token(name));
        market.call(call).await.unwrap();
    }
    market.call(call("echo", "{}")).await.unwrap();
    let ada = Viewer::Own(Some(Principal::token("ada").id().to_string()));
    let all = history.list(&Query::default(), &Viewer::All).await.unwrap();
    let own = history.list(&Query::default(), &ada).await.unwrap();
    assert_eq!(own, all[2..]);
    assert!(history.detail(&all[1].id, &ada).await.unwrap().is_none());
    let replayed = history.replay(&all[1].id, &ada, None, CallScope::default()).await;
    assert!(matches!(replayed, Err(ReplayError::Unknown)));
    assert_eq!(history.list(&Query::default(), &Viewer::Own(None)).await.unwrap(), all[..1]);
    let subject = Principal::oauth("https://id.example", "ada");
    let subject = Viewer::Own(Some(subject.id().to_string()));
    assert!(history.list(&Query::default(), &subject).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_call_that_runs_is_seen_and_can_be_cancelled() {
    let (market, history) = recorded(&[("hangs", Canned::Hangs)]);
    let mut changes = history.changes();
    let running = TaskTracker::new().spawn({
        let market = Arc::clone(&market);
        async move { market.call(call("hangs", "{}")).await }
    });
    changes.changed().await.unwrap();
    let seen = history.running(&Viewer::All);
    assert_eq!((seen.len(), &*seen[0].call.outcome), (1, RUNNING));
    let id = seen[0].call.id.clone();
    assert!(history.detail(&id, &Viewer::All).await.unwrap().is_some());
    assert!(!history.cancel(&id, &Viewer::Own(Some("token:eve".to_owned()))));
    assert!(history.cancel(&id, &Viewer::All));
    running.await.unwrap().unwrap_err();
    assert!(history.running(&Viewer::All).is_empty());
    let calls = history.list(&Query::default(), &Viewer::All).await.unwrap();
    assert_eq!((&*calls[0].id, &*calls[0].outcome), (&*id, "cancelled"));
}

#[tokio::test]
async fn notices_are_recorded_even_if_the_caller_does_not_listen() {
    let (market, history) = recorded(&[("reports", Canned::Reports(3))]);
    let mut listened = call("reports", "{}");
    listened.scope.notices = NoticeSink::new(|_| {});
    market.call(listened).await.unwrap();
    market.call(call("reports", "{}")).await.unwrap();
    for call in history.list(&Query::default(), &Viewer::All).await.unwrap() {
        let detail = history.detail(&call.id, &Viewer::All).await.unwrap().unwrap();
        let kinds: Vec<_> = detail.row.notices.iter().map(|line| line.kind).collect();
        assert_eq!(kinds, [NoticeKind::Progress; 3]);
    }
}

#[tokio::test]
async fn the_first_spans_of_a_call_are_kept_without_secrets() {
    let name = "GET http://hush.reserved.example".to_owned();
    let market = marketplace(Limits::default(), [("asks", Canned::Spans(40, name))]);
    let mut options = Options::default();
    options.secrets = Arc::new(Redactor::new(["reserved"]));
    let history = History::in_memory(&market, options).unwrap();
    market.set_redaction(Arc::new(Redactor::new(["hush"])));
    market.call(call("asks", "{}")).await.unwrap();
    let calls = history.list(&Query::default(), &Viewer::All).await.unwrap();
    let spans = &calls[0].spans;
    let codes: Vec<_> = spans.iter().filter_map(|span| span.code).collect();
    assert_eq!(codes, (0..32).collect::<Vec<_>>());
    assert!(
        spans.iter().all(|span| span.name == "GET http://[redacted].[redacted].example"),
        "{spans:?}"
    );
    assert!(spans.iter().all(|span| span.at_ms >= 0.0 && span.duration_ms >= 0.0), "{spans:?}");
}

#[tokio::test]
async fn a_call_is_made_again_with_its_own_input_or_another() {
    let (market, history) = recorded(&[("echo", Canned::Echoes)]);
    market.call(call("echo", r#"{"n":4}"#)).await.unwrap();
    let first = history.list(&Query::default(), &Viewer::All).await.unwrap()[0].id.clone();
    let mut changes = history.changes();
    let mut expected = vec![r#"{"n":4}"#];
    for (input, shown) in [(None, r#"{"n":4}"#), (Some(r#"{"n":9}"#), r#"{"n":9}"#)] {
        let input = input.map(|text| JsonText::parse(text).unwrap());
        let id = history.replay(&first, &Viewer::All, input, CallScope::default()).await.unwrap();
        expected.push(shown);
        while history.list(&Query::default(), &Viewer::All).await.unwrap().len() < expected.len() {
            changes.changed().await.unwrap();
        }
        let detail = history.detail(&id, &Viewer::All).await.unwrap().unwrap();
        assert_eq!(detail.row.input.unwrap().text, shown);
    }
}

#[tokio::test]
async fn calls_within_a_call_are_its_children() {
    let market = marketplace(Limits::default(), [("echo", Canned::Echoes)]);
    let history = History::in_memory(&market, Options::default()).unwrap();
    let ctx = market.program_context(&Call::to("outer"));
    for _ in 0..2 {
        let inner = Call::within(&ctx, "echo");
        market.call(inner).await.unwrap();
    }
    let listed = async || history.list(&Query::default(), &Viewer::All).await.unwrap();
    let calls = listed().await;
    assert!(calls.iter().all(|call| call.depth == 1 && call.parent.is_none()), "nothing has its id yet");
    let mut outer = call("echo", "{}");
    outer.scope.call_id = Some(Arc::clone(&ctx.call_id));
    market.call(outer).await.unwrap();
    let calls = &listed().await[1..];
    assert!(calls.iter().all(|call| call.parent.as_deref() == Some(&*ctx.call_id)));
    let detail = history.detail(&ctx.call_id, &Viewer::All).await.unwrap().unwrap();
    assert_eq!(detail.children.len(), 2);
}

#[tokio::test]
async fn a_call_shows_no_secret_of_its_outermost_call_even_if_it_ends_last() {
    let market = marketplace(Limits::default(), [("hangs", Canned::Hangs)]);
    let history = History::in_memory(&market, Options::default()).unwrap();
    let ctx = market.program_context(&Call::to("hangs"));
    let mut outer = call("hangs", r#"{"authorization":"Bearer abcdef"}"#);
    outer.scope.call_id = Some(Arc::clone(&ctx.call_id));
    let (outer_ends, inner_ends) = (outer.scope.cancellation.clone(), CancellationToken::new());
    let input = Payload::from_json(JsonText::parse(r#"{"sent":"Bearer abcdef"}"#).unwrap());
    let inner = || {
        let mut inner = Call::within(&ctx, "hangs").with(input.clone());
        inner.scope.cancellation = inner_ends.child_token();
        inner
    };
    let (first, second) = (inner(), inner());
    let first_ends = first.scope.cancellation.clone();
    let tasks = TaskTracker::new();
    let mut changes = history.changes();
    for (call, running) in [(outer, 1), (first, 2), (second, 3)] {
        let market = Arc::clone(&market);
        tasks.spawn(async move { market.call(call).await });
        while history.running(&Viewer::All).len() < running {
            changes.changed().await.unwrap();
        }
    }
    let nested = history.running(&Viewer::All).into_iter().filter(|running| running.call.depth == 1);
    for running in nested {
        let detail = history.detail(&running.call.id, &Viewer::All).await.unwrap().unwrap();
        assert_eq!(detail.row.input.unwrap().text, r#"{"sent":"[redacted]"}"#, "while both run");
    }
    let listed = async || history.list(&Query::default(), &Viewer::All).await.unwrap();
    for (number, ends) in [outer_ends, first_ends, inner_ends].iter().enumerate() {
        ends.cancel();
        while listed().await.len() <= number {
            changes.changed().await.unwrap();
        }
    }
    for last in &listed().await[..2] {
        assert_eq!(last.depth, 1);
        let detail = history.detail(&last.id, &Viewer::All).await.unwrap().unwrap();
        assert_eq!(detail.row.input.unwrap().text, r#"{"sent":"[redacted]"}"#);
    }
}

/// A call that runs until it ends, and makes calls.
struct Outer {
    market: Arc<CapabilityMarketplace>,
    ctx: CallContext,
    ends: CancellationToken,
    running: JoinHandle<Result<Outcome, RuntimeError>>,
}

impl Outer {
    async fn begin(market: &Arc<CapabilityMarketplace>, history: &History) -> Self {
        let ctx = market.program_context(&Call::to("hangs"));
        let mut outer = call("hangs", "{}");
        outer.scope.call_id = Some(Arc::clone(&ctx.call_id));
        let ends = outer.scope.cancellation.clone();
        let mut changes = history.changes();
        let market = Arc::clone(market);
        let running = TaskTracker::new().spawn({
            let market = Arc::clone(&market);
            async move { market.call(outer).await }
        });
        while history.running(&Viewer::All).is_empty() {
            changes.changed().await.unwrap();
        }
        Self { market, ctx, ends, running }
    }

    async fn call(&self, input: &str) {
        let input = Payload::from_json(JsonText::parse(input.to_owned()).unwrap());
        self.market.call(Call::within(&self.ctx, "echo").with(input)).await.unwrap();
    }

    async fn end(self) {
        self.ends.cancel();
        self.running.await.unwrap().unwrap_err();
    }
}

/// Keeps this number of rows of calls of `echo` and `hangs`.
async fn keeping(rows: usize) -> (Arc<CapabilityMarketplace>, History) {
    let (market, history) = recorded(&[("echo", Canned::Echoes), ("hangs", Canned::Hangs)]);
    let mut options = Options::default();
    options.max_rows = rows;
    history.configure(options);
    // Afterwards, the history knows how many rows it keeps.
    history.list(&Query::default(), &Viewer::All).await.unwrap();
    (market, history)
}

async fn input_of(history: &History, id: &str) -> String {
    let detail = history.detail(id, &Viewer::All).await.unwrap().unwrap();
    detail.row.input.unwrap().text
}

const REDACTED_SENT: &str = r#"{"sent":"[redacted]"}"#;

#[tokio::test]
async fn a_secret_of_a_call_that_is_not_kept_is_not_in_the_rows_around_it() {
    let (market, history) = keeping(2).await;
    let outer = Outer::begin(&market, &history).await;
    outer.call(r#"{"authorization":"Bearer abcdef"}"#).await;
    for _ in 0..10 {
        market.call(call("echo", "{}")).await.unwrap();
    }
    outer.call(r#"{"sent":"Bearer abcdef"}"#).await;
    outer.end().await;
    let calls = history.list(&Query::default(), &Viewer::All).await.unwrap();
    assert_eq!(calls.len(), 2);
    assert_eq!(input_of(&history, &calls[1].id).await, REDACTED_SENT);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_found_while_it_ends() {
    let (market, history) = keeping(10).await;
    for _ in 0..300 {
        let outer = Outer::begin(&market, &history).await;
        let id = Arc::clone(&outer.ctx.call_id);
        let ending = TaskTracker::new().spawn(outer.end());
        while !ending.is_finished() {
            assert!(history.detail(&id, &Viewer::All).await.unwrap().is_some());
        }
        ending.await.unwrap();
    }
}

#[tokio::test]
async fn of_many_trees_the_newest_are_kept_whole() {
    let (market, history) = keeping(6).await;
    for n in 0..50 {
        let outer = Outer::begin(&market, &history).await;
        outer.call(&format!(r#"{{"authorization":"Bearer {n}"}}"#)).await;
        outer.call(&format!(r#"{{"sent":"Bearer {n}"}}"#)).await;
        outer.end().await;
    }
    let calls = history.list(&Query::default(), &Viewer::All).await.unwrap();
    let depths: Vec<u32> = calls.iter().map(|call| call.depth).collect();
    assert_eq!(depths, [0, 1, 1, 0, 1, 1]);
    assert_eq!(input_of(&history, &calls[1].id).await, REDACTED_SENT);
    assert_eq!(input_of(&history, &calls[4].id).await, REDACTED_SENT);
}

#[tokio::test]
async fn of_many_calls_at_once_the_newest_are_kept() {
    let market = marketplace(Limits::default(), [("echo", Canned::Echoes)]);
    let mut options = Options::default();
    options.max_rows = 3;
    let history = History::in_memory(&market, options).unwrap();
    for n in 0..10 {
        market.call(call("echo", &format!(r#"{{"n":{n}}}"#))).await.unwrap();
    }
    let calls = history.list(&Query::default(), &Viewer::All).await.unwrap();
    let mut inputs = Vec::new();
    for call in &calls {
        let detail = history.detail(&call.id, &Viewer::All).await.unwrap().unwrap();
        inputs.push(detail.row.input.unwrap().text);
    }
    assert_eq!(inputs, [r#"{"n":9}"#, r#"{"n":8}"#, r#"{"n":7}"#]);
}

#[tokio::test]
async fn calls_are_kept_again_as_soon_as_the_history_is_turned_on_again() {
    let market = marketplace(Limits::default(), [("echo", Canned::Echoes)]);
    let history = History::in_memory(&market, Options::default()).unwrap();
    let mut off = Options::default();
    off.enabled = false;
    history.configure(off);
    market.call(call("echo", "{}")).await.unwrap();
    assert!(history.list(&Query::default(), &Viewer::All).await.unwrap().is_empty());
    history.configure(Options::default());
    market.call(call("echo", "{}")).await.unwrap();
    assert_eq!(history.list(&Query::default(), &Viewer::All).await.unwrap().len(), 1);
}
