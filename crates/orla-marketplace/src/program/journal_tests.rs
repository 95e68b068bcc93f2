//! Runs with a journal, and their processes that end in the middle.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use parking_lot::Mutex;
use rtfs::{Error, Options, Source, Ticket, Value, Wait, compile};
use tokio::sync::Notify;

use super::{BegunCall, Job, Journal, JournalContents, RunRequest, run};
use crate::testing::{Canned, marketplace};
use crate::{Call, CapabilityMarketplace, Limits};

/// A journal in memory that outlives its run. After so many notes the process ends: nothing more happens.
#[derive(Default)]
struct MemoryJournal {
    state: Mutex<Option<Vec<u8>>>,
    answers: Mutex<Vec<(Ticket, Vec<u8>)>>,
    begun: Mutex<Vec<BegunCall>>,
    withdrawn: Mutex<Vec<Ticket>>,
    calls: Mutex<Vec<Ticket>>,
    left: Mutex<usize>,
    ended: Notify,
    is_long: AtomicBool,
    is_suspended: AtomicBool,
}

impl MemoryJournal {
    fn count_note(&self) -> bool {
        let mut left = self.left.lock();
        *left = left.saturating_sub(1);
        if *left == 0 {
            self.ended.notify_one();
        }
        *left > 0
    }
}

#[async_trait]
impl Journal for MemoryJournal {
    async fn recall(&self) -> Result<JournalContents, Error> {
        let answers = self.answers.lock().clone();
        let is_answered = |begun: &BegunCall| answers.iter().any(|answer| answer.0 == begun.ticket);
        let mut begun = self.begun.lock().clone();
        begun.retain(|begun| !is_answered(begun));
        Ok(JournalContents { state: self.state.lock().clone(), answers, begun })
    }

    fn record_wait(&self, _: &RunRequest) {}

    async fn record_begin(&self, request: &RunRequest, is_idempotent: bool) -> Result<(), Error> {
        let begun = BegunCall { ticket: request.ticket, is_idempotent };
        self.begun.lock().push(begun);
        self.calls.lock().push(request.ticket);
        if self.count_note() { Ok(()) } else { std::future::pending().await }
    }

    fn record_answer(
        &self,
        request: &RunRequest,
        answer: Vec<u8>,
        _: Option<&str>,
    ) -> Result<(), Error> {
        if *self.left.lock() > 0 {
            self.answers.lock().push((request.ticket, answer));
            self.count_note();
        }
        Ok(())
    }

    async fn wait(&self, _: Ticket, wait: &Wait) -> Result<Value, Error> {
        match wait {
            Wait::Event(name) if name == "now" => Ok(Value::Int(1)),
            _ => std::future::pending().await,
        }
    }

    fn record_withdrawal(&self, ticket: Ticket) {
        self.withdrawn.lock().push(ticket);
    }

    fn is_long(&self) -> bool {
        self.is_long.load(Ordering::Relaxed) && *self.left.lock() > 0
    }

    fn save(&self, state: Vec<u8>) -> Result<(), Error> {
        *self.state.lock() = Some(state);
        let answers = std::mem::take(&mut *self.answers.lock());
        self.begun.lock().retain(|begun| answers.iter().all(|answer| answer.0 != begun.ticket));
        Ok(())
    }

    async fn suspend(&self, state: Vec<u8>, waits: Vec<(RunRequest, Wait)>) -> Result<bool, Error> {
        assert!(!waits.is_empty());
        self.save(state)?;
        self.is_suspended.store(true, Ordering::Relaxed);
        Ok(true)
    }

    fn is_suspended(&self) -> bool {
        self.is_suspended.load(Ordering::Relaxed)
    }
}

fn market() -> Arc<CapabilityMarketplace> {
    let canned = [
        ("echo", Canned::Echoes),
        ("bad", Canned::Fails("it is broken".to_owned())),
        ("hangs", Canned::Hangs),
    ];
    marketplace(Limits::default(), canned)
}

/// Runs a program until its process ends after so many notes, or to its end.
async fn attempt(
    text: &str,
    journal: &Arc<MemoryJournal>,
    notes: usize,
) -> Option<Result<Value, Error>> {
    let market = market();
    *journal.left.lock() = notes;
    let mut ctx = market.surface_context(&Call::to("test"));
    ctx.scope.journal = Some(Arc::clone(journal) as Arc<dyn Journal>);
    let program = compile(&Source::new("", text), &Options::default()).unwrap();
    tokio::select! {
        biased;
        result = run(&market, Job::new(program), &ctx) => Some(result),
        () = journal.ended.notified() => None,
    }
}

const PROGRAM: &str = "(loop [i 0 out []] (if (< i 8) \
    (recur (inc i) (conj out (try (:n (call :echo {:n i})) (catch :interrupted e (- 0 i 1))))) \
    [out (try (call :bad) (catch [:failed :interrupted] e 1)) \
     (count (pmap (fn [n] (try (call :echo {:n n}) (catch :interrupted e n))) (range 5)))]))";

#[tokio::test(start_paused = true)]
async fn a_run_continues_where_its_process_ended_and_repeats_no_call() {
    for is_long in [false, true] {
        for notes in 1..6 {
            let journal = Arc::new(MemoryJournal::default());
            journal.is_long.store(is_long, Ordering::Relaxed);
            let mut attempts = 0;
            let result = loop {
                attempts += 1;
                assert!(attempts < 200, "it makes no progress with {notes} notes for each process");
                // The first note of a process that goes on may be lost, and then nothing would follow.
                if let Some(result) = attempt(PROGRAM, &journal, notes + 1).await {
                    break result.unwrap();
                }
            };
            let Value::Vector(parts) = &result else { panic!("{result:?}") };
            let calls = journal.calls.lock().clone();
            let distinct: std::collections::HashSet<_> = calls.iter().collect();
            assert_eq!((calls.len(), distinct.len()), (14, 14), "a call was made twice: {calls:?}");
            let Value::Vector(out) = &parts.items()[0] else { panic!("{result:?}") };
            for (at, value) in out.items().iter().enumerate() {
                let at = at as i64;
                assert!(*value == Value::Int(at) || *value == Value::Int(-at - 1), "{result:?}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_program_whose_last_answer_is_known_ends_with_its_own_error_though_other_calls_had_begun() {
    let journal = Arc::new(MemoryJournal::default());
    let text = "(parallel (call :hangs {:n 1}) (call :hangs {:n 2}) (call :bad))";
    for _ in 0..2 {
        // The second process begins where the first one had everything but the end.
        let error = attempt(text, &journal, 100).await.unwrap().unwrap_err();
        assert_eq!(&*error.kind, "failed", "{error}");
        assert_eq!((journal.begun.lock().len(), journal.answers.lock().len()), (3, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn the_journal_learns_again_which_calls_of_an_earlier_process_are_not_wanted() {
    let journal = Arc::new(MemoryJournal::default());
    let text = "(do (try (parallel (call :hangs {:n 1}) (call :bad)) (catch e nil)) (call :echo 1) (call :echo 2))";
    // The two calls, the answer of one, and the next call.
    assert!(attempt(text, &journal, 4).await.is_none());
    let withdrawn = std::mem::take(&mut *journal.withdrawn.lock());
    assert_eq!(withdrawn, [Ticket(1)]);
    let error = attempt(text, &journal, 100).await.unwrap().unwrap_err();
    assert_eq!(&*error.kind, "interrupted", "{error}");
    assert_eq!(*journal.withdrawn.lock(), withdrawn);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_withdrawn_before_it_begins_is_not_noted() {
    let journal = Arc::new(MemoryJournal::default());
    let text = "(do (try (pmap (fn [n] (if (= n 3) (throw \"no\") (call :echo {:n n}))) [1 2 3]) (catch e nil)) \
        (call :hangs) 5)";
    // The call after them is noted, and it is the only one.
    assert!(attempt(text, &journal, 1).await.is_none());
    assert_eq!(journal.begun.lock().len(), 1, "{:?}", journal.begun.lock());
}

#[tokio::test(start_paused = true)]
async fn a_journal_that_does_not_fit_its_program_ends_the_run_and_makes_no_call() {
    let journal = Arc::new(MemoryJournal::default());
    assert!(attempt("[(call :echo 1) (call :echo 2)]", &journal, 3).await.is_none());
    assert_eq!(journal.answers.lock().len(), 1);
    for other in ["(+ 1 2)", "(call :echo 3) 7", "(try (describe :echo) (catch e (await-event :a)))"] {
        let error = attempt(other, &journal, 100).await.unwrap().unwrap_err();
        assert_eq!(&*error.kind, "not-resumable", "{other}: {error}");
    }
    journal.answers.lock()[0].1[0] ^= 0x55;
    let error = attempt("[(call :echo 1) (call :echo 2)]", &journal, 100).await.unwrap().unwrap_err();
    assert_eq!(&*error.kind, "not-resumable");
    assert_eq!(journal.calls.lock().len(), 2, "a call was made all the same");
}

#[tokio::test(start_paused = true)]
async fn a_run_that_waits_for_nothing_near_is_suspended() {
    let journal = Arc::new(MemoryJournal::default());
    let text = "[(call :echo 1) (await-event :now) (sleep-until \"9000-01-01T00:00:00Z\")]";
    let error = attempt(text, &journal, 100).await.unwrap().unwrap_err();
    assert!(journal.is_suspended() && journal.state.lock().is_some(), "{error}");
}

#[tokio::test(start_paused = true)]
async fn without_a_journal_a_program_sleeps_within_its_time_and_awaits_nothing() {
    for (text, result) in [
        ("(or (sleep-until \"2020-01-01T00:00:00Z\") 1)", "Int(1)"),
        ("(try (await-event :a) (catch :unavailable e (:kind e)))", ":unavailable"),
        ("(try (await-task \"a\") (catch :unavailable e (:kind e)))", ":unavailable"),
    ] {
        let market = market();
        let ctx = market.surface_context(&Call::to("test"));
        let program = compile(&Source::new("", text), &Options::default()).unwrap();
        let value = run(&market, Job::new(program), &ctx).await.unwrap();
        assert!(format!("{value:?}") == result || value == Value::Int(1), "{text}: {value:?}");
    }
}
