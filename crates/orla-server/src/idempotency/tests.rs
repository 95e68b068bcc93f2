use orla_state::{Limits, Memory};

use super::usage::{MAX_BYTES, SHARE};
use super::*;

fn attempt(key: &str, input: &str) -> Attempt {
    Attempt::new(None, key, "t", &JsonText::parse(input.to_owned()).unwrap())
}

fn answers() -> Arc<Answers> {
    Answers::new(Arc::new(Memory::new(Limits::default())))
}

fn answer(status: u16) -> StoredAnswer {
    let status = StatusCode::from_u16(status).unwrap();
    StoredAnswer { status, retry_after: None, body: "7".into() }
}

async fn new_of(answers: &Arc<Answers>, key: &str) -> Reserved {
    match answers.claim(attempt(key, "{}")).await {
        Ok(Claim::New(reserved)) => reserved,
        _ => panic!("the key is taken"),
    }
}

async fn new(answers: &Arc<Answers>, input: &str) -> Reserved {
    match answers.claim(attempt("k", input)).await {
        Ok(Claim::New(reserved)) => reserved,
        _ => panic!("the key is taken"),
    }
}

#[test]
fn inputs_are_the_same_in_any_order_and_not_with_another_number() {
    let one = attempt("k", r#"{"a": 1.10, "b": ["\u0041", {"y": 1, "x": 2}]}"#);
    let other = attempt("k", r#"{ "b":["A",{"x":2,"y":1}], "a":1.10}"#);
    assert_eq!(one.fingerprint, other.fingerprint);
    for different in [r#"{"a": 18446744073709551617}"#, r#"{"a": 18446744073709551618}"#, "{}"] {
        assert_ne!(attempt("k", different).fingerprint, one.fingerprint);
    }
    assert_ne!(
        attempt("k", r#"{"a": 18446744073709551617}"#).fingerprint,
        attempt("k", r#"{"a": 18446744073709551618}"#).fingerprint
    );
}

#[tokio::test]
async fn the_first_answer_is_repeated_also_that_of_a_failure() {
    let answers = answers();
    new(&answers, "{}").await.end(CallOutcome::Answered(&answer(502))).await;
    match answers.claim(attempt("k", "{}")).await {
        Ok(Claim::Answered(kept)) => {
            assert_eq!((kept.status.as_u16(), &kept.body[..]), (502, &b"7"[..]));
        }
        _ => panic!("the answer is not repeated"),
    }
    assert!(matches!(answers.claim(attempt("k", r#"{"a":1}"#)).await, Err(Refused::Conflict)));
    assert!(matches!(answers.claim(attempt("other", r#"{"a":1}"#)).await, Ok(Claim::New(_))));
}

/// A state that other servers use too.
struct Common(Arc<Memory>, tokio::sync::broadcast::Sender<Arc<str>>);

#[async_trait::async_trait]
impl StateStore for Common {
    async fn write(&self, changes: Vec<Change>) -> Result<Vec<Revision>, WriteError> {
        self.0.write(changes).await
    }

    async fn get(&self, key: &str) -> Result<Option<Record>, StateError> {
        self.0.get(key).await
    }

    async fn list(&self, query: Query) -> Result<Vec<Record>, StateError> {
        self.0.list(query).await
    }

    fn changed_keys(&self) -> Option<tokio::sync::broadcast::Receiver<Arc<str>>> {
        Some(self.1.subscribe())
    }
}

#[tokio::test(start_paused = true)]
async fn keys_removed_by_other_servers_are_recounted() {
    let common = Common(Arc::default(), tokio::sync::broadcast::Sender::new(1));
    let answers = Answers::new(Arc::new(common));
    let more = Amount { keys: 1, bytes: 0 };
    // Other servers have removed the records of these keys since.
    answers.usage().await.unwrap().lock().add("a", Amount { keys: MAX_KEYS, bytes: 0 });
    assert!(!answers.has_room("a", more).await.unwrap());
    tokio::time::sleep(RECOUNT).await;
    assert!(answers.has_room("a", more).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn servers_of_one_state_make_the_call_of_a_key_once() {
    let state = Arc::new(Memory::new(Limits::default()));
    let server = || {
        let common = Common(Arc::clone(&state), tokio::sync::broadcast::Sender::new(1));
        Answers::new(Arc::new(common))
    };
    let (one, other) = (server(), server());
    let running = new(&one, "{}").await;
    // Simulates a lost answer to a renewal.
    let note = state.get(&running.attempt.place).await.unwrap().unwrap();
    state.write(vec![Change::put(note.key, note.value)]).await.unwrap();
    let waiting = {
        let other = Arc::clone(&other);
        TaskTracker::new().spawn(async move { other.claim(attempt("k", "{}")).await })
    };
    // The call takes longer than a lease.
    tokio::time::sleep(3 * LEASE).await;
    assert!(!waiting.is_finished());
    assert!(matches!(other.claim(attempt("k", r#"{"a":1}"#)).await, Err(Refused::Conflict)));
    running.end(CallOutcome::Answered(&answer(200))).await;
    assert!(matches!(waiting.await.unwrap(), Ok(Claim::Answered(_))));

    // Of two concurrent claims, one makes the call.
    let [first, second] = [&one, &other].map(|server| {
        let server = Arc::clone(server);
        TaskTracker::new().spawn(async move {
            match server.claim(attempt("at once", "{}")).await {
                Ok(Claim::New(reserved)) => {
                    reserved.end(CallOutcome::Answered(&answer(200))).await;
                    1
                }
                Ok(Claim::Answered(_)) => 0,
                Err(_) => panic!("it is refused"),
            }
        })
    });
    assert_eq!(first.await.unwrap() + second.await.unwrap(), 1);

    // If the server of a claim is gone, it is unknown whether the call was made.
    let lost = new_of(&one, "lost").await;
    drop(lost);
    let begun = Instant::now();
    assert!(matches!(other.claim(attempt("lost", "{}")).await, Err(Refused::Interrupted)));
    assert!(begun.elapsed() >= LEASE);
}

#[tokio::test]
async fn a_key_is_free_again_if_nothing_has_run() {
    let answers = answers();
    new(&answers, "{}").await.end(CallOutcome::NeverRan).await;
    new(&answers, r#"{"a":1}"#).await.end(CallOutcome::Answered(&answer(200))).await;
}

#[tokio::test]
async fn an_unanswered_call_is_not_repeated() {
    let answers = answers();
    drop(new(&answers, "{}").await);
    assert!(matches!(answers.claim(attempt("k", "{}")).await, Err(Refused::Interrupted)));
}

#[tokio::test]
async fn a_note_that_cannot_be_read_is_not_overwritten_before_its_day_is_over() {
    let answers = answers();
    used(&answers, 0..1, KEPT_MS - 60_000).await;
    let place = attempt("old0", "{}").place;
    let unreadable = Change::put(&*place, "{\"form\":2}\n");
    answers.store.write(vec![unreadable]).await.unwrap();
    for _ in 0..2 {
        assert!(matches!(answers.claim(attempt("old0", "{}")).await, Err(Refused::Unreadable)));
    }
    // Another key does not remove it either.
    new_of(&answers, "other").await.end(CallOutcome::NeverRan).await;
    assert_eq!(answers.store.get(&place).await.unwrap().unwrap().value, "{\"form\":2}\n");
}

#[tokio::test]
async fn a_note_that_cannot_be_read_is_removed_after_its_day() {
    let answers = answers();
    used(&answers, 0..1, KEPT_MS + 1).await;
    let place = attempt("old0", "{}").place;
    answers.store.write(vec![Change::put(&*place, "")]).await.unwrap();
    new_of(&answers, "other").await.end(CallOutcome::NeverRan).await;
    assert!(answers.store.get(&place).await.unwrap().is_none());
    assert!(matches!(answers.claim(attempt("old0", "{}")).await, Ok(Claim::New(_))));
}

/// Stores the records of keys that were used `ago` milliseconds ago.
async fn used(answers: &Arc<Answers>, keys: std::ops::Range<usize>, ago: u64) {
    for key in keys {
        let attempt = attempt(&format!("old{key}"), "{}");
        let reserved_at = now() - ago;
        let ended = CancellationToken::new();
        let reserved = Reserved {
            answers: Arc::clone(answers),
            attempt,
            reserved_at,
            revision: Arc::default(),
            answered: ended.child_token(),
            ended,
        };
        answers.reserve(&reserved, None).await.ok().unwrap();
        reserved.end(CallOutcome::Answered(&answer(200))).await;
    }
}

#[tokio::test]
async fn a_key_that_is_used_again_after_its_day_keeps_its_new_answer() {
    let answers = answers();
    used(&answers, 0..100, KEPT_MS + 1).await;
    match answers.claim(attempt("old99", "{}")).await {
        Ok(Claim::New(reserved)) => reserved.end(CallOutcome::Answered(&answer(201))).await,
        _ => panic!("the key has not expired"),
    }
    for key in 0..10 {
        new_of(&answers, &format!("new{key}")).await.end(CallOutcome::NeverRan).await;
    }
    match answers.claim(attempt("old99", "{}")).await {
        Ok(Claim::Answered(kept)) => assert_eq!(kept.status.as_u16(), 201),
        _ => panic!("the new answer is gone"),
    }
    let amount = answers.usage().await.unwrap().lock().all;
    assert_eq!((amount.keys, amount.bytes), (1, 1), "what has expired is gone");
    assert_eq!(answers.store.list(Query::below("rest/", 1000)).await.unwrap().len(), 2);
}

#[tokio::test]
async fn requests_that_remove_the_same_expired_keys_count_them_once() {
    let answers = answers();
    used(&answers, 0..40, KEPT_MS + 1).await;
    let claims = (0..8).map(|key| {
        let answers = &answers;
        async move { new_of(answers, &format!("new{key}")).await.end(CallOutcome::NeverRan).await }
    });
    futures_util::future::join_all(claims).await;
    let amount = answers.usage().await.unwrap().lock().all;
    assert_eq!((amount.keys, amount.bytes), (0, 0));
}

#[tokio::test]
async fn a_caller_has_a_share_of_the_stored_keys() {
    let answers = answers();
    let large = StoredAnswer { body: vec![b'7'; MAX_ANSWER].into(), ..answer(200) };
    for key in 0..=MAX_BYTES / SHARE / MAX_ANSWER {
        new_of(&answers, &key.to_string()).await.end(CallOutcome::Answered(&large)).await;
    }
    let last = (MAX_BYTES / SHARE / MAX_ANSWER).to_string();
    assert!(matches!(answers.claim(attempt(&last, "{}")).await, Err(Refused::TooLarge)));
    assert!(matches!(answers.claim(attempt("0", "{}")).await, Ok(Claim::Answered(_))));
}

#[tokio::test]
async fn a_second_request_waits_for_the_first() {
    let answers = answers();
    let first = new(&answers, "{}").await;
    let done = answer(200);
    let ((), second) =
        tokio::join!(first.end(CallOutcome::Answered(&done)), answers.claim(attempt("k", "{}")));
    assert!(matches!(second, Ok(Claim::Answered(_))));
}
