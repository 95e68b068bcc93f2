use std::any::TypeId;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::prepared::BACKSTOP;
use super::*;
use crate::catalog::{Limits, RegistrationError};
use crate::id::Pattern;
use crate::manifest::{ANNOTATIONS, Availability, CapabilityManifest, Registration, TITLE};
use crate::payload::{JsonText, Payload};
use crate::policy::{AccessPolicy, Disclosure, Rule};
use crate::principal::{Callers, Principal};
use crate::provider::ProviderType;
use crate::testing::{Canned, marketplace};
use rtfs::Value;
use std::sync::atomic::AtomicU32;

use parking_lot::Mutex;

fn limits(timeout_ms: u64) -> Limits {
    Limits { timeout: Duration::from_millis(timeout_ms), ..Limits::default() }
}

#[tokio::test(start_paused = true)]
async fn a_hanging_capability_times_out_and_spares_its_neighbour() {
    let market = marketplace(
        Limits::default(),
        [("slow.one", Canned::Hangs), ("quick.one", Canned::Answers(Value::Int(42)))],
    );
    let (slow, quick) =
        tokio::join!(market.call(Call::to("slow.one")), market.call(Call::to("quick.one")));
    assert_eq!(slow.unwrap_err().to_string(), "slow__one timed out after 30 s");
    assert_eq!(quick.unwrap().value().unwrap(), Value::Int(42));
}

#[tokio::test(start_paused = true)]
async fn an_executor_that_heeds_nothing_is_given_up_after_a_grace() {
    let market = marketplace(limits(100), [("stuck", Canned::Sticks)]);
    let began = Instant::now();
    let error = market.call(Call::to("stuck")).await.unwrap_err();
    assert_eq!(error.kind(), "timeout");
    assert_eq!(began.elapsed(), Duration::from_millis(100) + BACKSTOP);

    let call = Call::to("stuck");
    call.scope.cancellation.cancel();
    assert_eq!(market.call(call).await.unwrap_err().kind(), "cancelled");
}

#[tokio::test]
async fn a_call_that_names_another_node_is_not_made_on_this_one() {
    let market = marketplace(Limits::default(), [("echo", Canned::Echoes)]);
    let named = |node: &str| {
        let mut call = Call::to("echo");
        call.scope.node = Some(node.into());
        market.call(call)
    };
    assert_eq!(named("alpha").await.unwrap_err().kind(), "unavailable", "it is in no cluster");
    market.set_node("alpha");
    assert!(named("alpha").await.is_ok());
    let error = named("beta").await.unwrap_err();
    assert!(error.to_string().contains("the call asks for node beta"), "{error}");
    let mut ctx = CallContext::for_tests("echo");
    ctx.scope.node = Some("beta".into());
    assert_eq!(Call::within(&ctx, "echo").scope.node, None);
}

#[tokio::test]
async fn a_panic_is_the_error_of_that_call_alone() {
    let market = marketplace(Limits::default(), [("bad", Canned::Panics), ("good", Canned::Echoes)]);
    assert_eq!(market.call(Call::to("bad")).await.unwrap_err().kind(), "panicked");
    assert!(market.call(Call::to("good")).await.is_ok());
    assert_eq!((market.running(), market.waiting()), (0, 0));
}

#[tokio::test]
async fn calls_that_wait_take_the_limits_of_a_new_snapshot() {
    let market = Arc::new(marketplace(Limits::default(), []));
    let provider = Canned::Hangs.manifest("a").provider;
    let publish = |all: usize, own: Option<usize>| {
        let limits = Limits { max_concurrency: all, max_provider_calls: all, ..Limits::default() };
        let mut registration =
            Registration::from(CapabilityManifest::new("a", "Hangs.", provider.clone()));
        registration.policy.max_concurrency = own;
        let mut builder = market.builder(limits);
        builder.capability(registration).unwrap();
        market.replace(builder.build());
    };
    let settled = async |running: usize| {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(market.running(), running);
    };
    publish(2, None);
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let market = Arc::clone(&market);
        calls.spawn(async move { market.call(Call::to("a")).await });
    }
    settled(2).await;
    publish(4, None);
    settled(4).await;
    publish(1, None);
    settled(4).await;
    calls.spawn({
        let market = Arc::clone(&market);
        async move { market.call(Call::to("a")).await }
    });
    settled(4).await;
    assert_eq!(market.waiting(), 3);
    calls.abort_all();
    while calls.join_next().await.is_some() {}

    // The same of the limit of one capability, also when it goes.
    publish(9, Some(1));
    for _ in 0..5 {
        let market = Arc::clone(&market);
        calls.spawn(async move { market.call(Call::to("a")).await });
    }
    settled(1).await;
    publish(9, Some(3));
    settled(3).await;
    publish(9, None);
    settled(5).await;
}

#[test]
fn what_is_registered_as_it_was_keeps_its_entry() {
    let market = marketplace(Limits::default(), []);
    let provider = Canned::Echoes.manifest("a").provider;
    let publish = |limits: Limits, change: &dyn Fn(&mut Registration)| {
        let mut manifest = CapabilityManifest::new("a", "Does something.", provider.clone());
        manifest.input_schema = Some("[:map {:city :string}]".parse().unwrap());
        let mut registration = Registration::from(manifest);
        registration.policy.upstream = Some("somewhere".into());
        change(&mut registration);
        let mut builder = market.builder(limits);
        builder.capability(registration).unwrap();
        market.replace(builder.build());
        market.get("a").unwrap()
    };
    let first = publish(Limits::default(), &|_| {});
    let again = publish(Limits::default(), &|_| {});
    assert!(Arc::ptr_eq(&first, &again));
    // The state of an upstream goes on, too.
    let breaker = first.breaker.as_ref().unwrap();
    let described = publish(Limits::default(), &|one| one.manifest.description.push('!'));
    assert!(!Arc::ptr_eq(&again, &described) && described.manifest.description.ends_with('!'));
    assert!(Arc::ptr_eq(breaker, described.breaker.as_ref().unwrap()));
    let changes: [&dyn Fn(&mut Registration); 5] = [
        &|one| one.manifest.input_schema = None,
        &|one| one.manifest.permissions.push("net".to_owned()),
        &|one| drop(one.manifest.metadata.insert(TITLE.to_owned(), "A".to_owned())),
        &|one| one.policy.retries = Some(1),
        &|one| one.manifest.provider = Canned::Echoes.manifest("a").provider,
    ];
    for change in changes {
        let before = market.get("a").unwrap();
        assert!(!Arc::ptr_eq(&before, &publish(Limits::default(), change)));
    }
    let unchanged = publish(Limits::default(), &|_| {});
    let limited = Limits { max_queue: 1, ..Limits::default() };
    assert!(!Arc::ptr_eq(&unchanged, &publish(limited, &|_| {})));
}

#[test]
fn a_schema_that_was_the_programs_own_is_looked_at_when_it_is_somebody_elses() {
    let market = marketplace(Limits::default(), []);
    market.register_executor(Arc::new(crate::program::LanguageExecutor::new(&market))).unwrap();
    let schema = serde_json::json!({"type": "object", "properties": {"a": {"type": "nonsense"}}});
    let offer = |provider: ProviderType| {
        let mut manifest = CapabilityManifest::new("a", "Does something.", provider);
        manifest.input_schema = Some(crate::schema::type_from_json_schema(&schema));
        let mut builder = market.builder(Limits::default());
        builder.capability(manifest).map(|()| market.replace(builder.build()))
    };
    assert!(offer(ProviderType::Custom(Arc::new(crate::program::Language::Run))).is_ok());
    let refused = offer(Canned::Echoes.manifest("a").provider);
    assert!(matches!(refused, Err(RegistrationError::InputSchema { .. })), "{refused:?}");
}

#[tokio::test]
async fn an_unknown_name_is_answered_with_the_nearest() {
    let market = marketplace(Limits::default(), [("summarize", Canned::Echoes)]);
    for wrong in ["sumarise", "SUMMARIZE", "Summarize"] {
        let error = market.call(Call::to(wrong)).await.unwrap_err();
        assert_eq!(error.to_string(), format!("unknown tool: {wrong}; did you mean summarize?"));
    }
    let far = market.call(Call::to("zzz")).await.unwrap_err();
    assert_eq!(far.to_string(), "unknown tool: zzz");
    let market = marketplace(Limits::default(), [("text.words", Canned::Echoes)]);
    for (wrong, near) in [("txt.words", "text.words"), ("txt__words", "text__words")] {
        let error = market.call(Call::to(wrong)).await.unwrap_err();
        assert_eq!(error.to_string(), format!("unknown tool: {wrong}; did you mean {near}?"));
    }
}

#[tokio::test(start_paused = true)]
async fn beyond_the_queue_a_call_is_told_at_once_that_we_are_busy() {
    let bounds = Limits { max_concurrency: 1, max_queue: 1, ..Limits::default() };
    let market = marketplace(bounds, [("slow", Canned::Hangs)]);
    let calls = (0..3).map(|_| market.call(Call::to("slow")));
    let kinds: Vec<_> =
        futures_util::future::join_all(calls).await.into_iter().map(|r| r.unwrap_err().kind()).collect();
    assert_eq!(kinds, ["timeout", "timeout", "busy"]);
}

#[tokio::test]
async fn a_declared_schema_is_enforced_before_anything_runs() {
    let market = marketplace(Limits::default(), []);
    let mut manifest = Canned::Panics.manifest("strict");
    let schema = serde_json::json!({"type": "object", "required": ["a"]});
    manifest.input_schema = Some(crate::schema::schema_from_declaration(&schema).unwrap());
    market.register_capability(manifest).unwrap();
    let error = market.call(Call::to("strict")).await.unwrap_err();
    assert_eq!(error.kind(), "invalid-input");
    assert!(error.to_string().contains("\"a\""), "{error}");
}

#[tokio::test]
async fn a_long_check_leaves_the_thread_to_other_calls() {
    let market = marketplace(Limits::default(), []);
    let mut manifest = Canned::Echoes.manifest("checked");
    let patterns: serde_json::Map<_, _> =
        (0..2000).map(|n| (format!("^a{n}$"), serde_json::json!({"type": "integer"}))).collect();
    let schema = serde_json::json!({"type": "object", "patternProperties": patterns});
    manifest.input_schema = Some(crate::schema::schema_from_declaration(&schema).unwrap());
    market.register_capability(manifest).unwrap();
    let call = |members: usize| {
        let members: serde_json::Map<_, _> =
            (0..members).map(|n| (format!("a{n}"), "x".into())).collect();
        let input = JsonText::of(&serde_json::Value::from(members)).unwrap();
        market.call(Call::to("checked").with(Payload::from_json(input)))
    };
    assert_eq!(call(1).now_or_never().unwrap().unwrap_err().kind(), "invalid-input");
    let mut long = std::pin::pin!(call(500));
    assert!(futures_util::poll!(&mut long).is_pending());
    assert_eq!(long.await.unwrap_err().kind(), "invalid-input");
}

#[test]
fn a_schema_that_stays_is_not_compiled_again_and_one_that_changes_is() {
    let market = marketplace(Limits::default(), []);
    let publish = |key: &str| {
        let mut manifest = Canned::Echoes.manifest("a");
        let schema = serde_json::json!({"type": "object", "required": [key]});
        manifest.input_schema = Some(crate::schema::schema_from_declaration(&schema).unwrap());
        manifest.output_schema.clone_from(&manifest.input_schema);
        let mut builder = market.builder(Limits::default());
        builder.capability(manifest).unwrap();
        market.replace(builder.build());
        let entry = market.get("a").unwrap();
        (entry.input.validator().cloned().unwrap(), entry.output.validator().cloned().unwrap())
    };
    let (first, same, other) = (publish("x"), publish("x"), publish("y"));
    assert!(Arc::ptr_eq(&first.0, &same.0) && Arc::ptr_eq(&first.1, &same.1));
    assert!(!Arc::ptr_eq(&first.0, &other.0) && !Arc::ptr_eq(&first.1, &other.1));
    assert!(other.0.check("{\"x\": 1}", "input").is_err());
}

#[tokio::test]
async fn a_call_keeps_the_snapshot_it_names() {
    let market = marketplace(Limits::default(), [("old", Canned::Echoes)]);
    let before = market.snapshot();
    let changes = market.changes();
    assert!(market.unregister_capability("old").is_some());
    assert!(changes.has_changed().unwrap());
    assert_eq!(market.call(Call::to("old")).await.unwrap_err().kind(), "unknown-capability");
    let mut call = Call::to("old");
    call.scope.catalog = Some(before);
    assert!(market.call(call).await.is_ok());
}

#[tokio::test]
async fn without_its_executor_a_capability_is_unavailable_and_cannot_be_registered() {
    let market = marketplace(Limits::default(), [("a", Canned::Echoes)]);
    assert!(market.unregister_executor(TypeId::of::<Canned>()).is_some());
    assert_eq!(market.call(Call::to("a")).await.unwrap_err().kind(), "unavailable");
    assert!(matches!(
        market.register_capability(Canned::Echoes.manifest("b")),
        Err(RegistrationError::NoExecutor { .. })
    ));
}

#[tokio::test]
async fn what_lost_its_executor_stays_through_changes_of_others() {
    let market = marketplace(Limits::default(), [("a", Canned::Echoes), ("b", Canned::Echoes)]);
    let executor = market.unregister_executor(TypeId::of::<Canned>()).unwrap();
    assert!(market.unregister_capability("b").is_some());
    assert_eq!(market.call(Call::to("a")).await.unwrap_err().kind(), "unavailable");
    assert!(market.replace_executor(executor).is_none());
    assert!(market.call(Call::to("a")).await.is_ok());
    assert!(market.register_capability(Canned::Echoes.manifest("c")).is_ok());
    assert_eq!(market.list().len(), 2);
}

#[tokio::test]
async fn a_second_executor_or_id_is_refused() {
    let market = marketplace(Limits::default(), [("a", Canned::Echoes)]);
    let again = market.register_executor(Arc::new(crate::testing::MockExecutor));
    assert!(matches!(again, Err(RegistrationError::SecondExecutor)));
    let twice = market.register_capability(Canned::Echoes.manifest("a"));
    assert!(matches!(twice, Err(RegistrationError::Duplicate(_))));
}

#[tokio::test]
async fn every_call_is_recorded_once_also_when_its_caller_goes_away() {
    let market = marketplace(Limits::default(), [("slow", Canned::Hangs), ("quick", Canned::Echoes)]);
    let seen: Arc<Mutex<Vec<(String, &str)>>> = Arc::default();
    let sink = Arc::clone(&seen);
    market.on_finished(move |record| sink.lock().push((record.name.to_string(), record.outcome)));
    market.call(Call::to("quick")).await.unwrap();
    assert!(market.call(Call::to("slow")).now_or_never().is_none());
    let expected = [("quick".to_owned(), "ok"), ("slow".to_owned(), "cancelled")];
    assert_eq!(*seen.lock(), expected);
    assert_eq!(market.running(), 0);
}

#[tokio::test]
async fn search_finds_by_any_word_and_prefers_the_name() {
    let market =
        marketplace(Limits::default(), [("weather", Canned::Echoes), ("canned", Canned::Echoes)]);
    let names =
        |words: &str| market.search(words).iter().map(|e| e.name.to_string()).collect::<Vec<_>>();
    assert_eq!(names("canned"), ["canned", "weather"]);
    assert_eq!(names("capability WEATHER"), ["weather", "canned"]);
    assert!(names("nothing like it").is_empty());
}

#[test]
fn denied_names_are_neither_listed_nor_callable() {
    let market = marketplace(Limits::default(), []);
    let mut builder = market.builder(Limits::default());
    for id in ["read", "write", "admin"] {
        builder.capability(Canned::Echoes.manifest(id)).unwrap();
    }
    builder.allow(vec![Pattern::new("*r*")]);
    builder.deny(vec![Pattern::new("write"), Pattern::new("dr.*")]);
    builder.capability(Canned::Echoes.manifest("dr.write")).unwrap();
    builder.capability(Canned::Echoes.manifest("r.write")).unwrap();
    let catalog = builder.build();
    let names: Vec<&str> = catalog.entries().iter().map(|entry| &*entry.name).collect();
    assert_eq!(names, ["r__write", "read"], "a pattern is one of ids too");
    assert!(catalog.get("write").is_none());
    market.replace(catalog);
    for id in ["other", "write", "run"] {
        market.register_capability(Canned::Echoes.manifest(id)).unwrap();
    }
    let names: Vec<String> = market.list().iter().map(|entry| entry.name.to_string()).collect();
    assert_eq!(names, ["other", "r__write", "read", "run"], "what comes later is held to it, too");
}

#[test]
fn clients_are_shown_an_object_schema_whatever_the_author_left_out() {
    let market = marketplace(Limits::default(), []);
    let declare = |id: &str, schema: serde_json::Value| {
        let mut manifest = Canned::Echoes.manifest(id);
        manifest.input_schema = Some(crate::schema::schema_from_declaration(&schema).unwrap());
        market.register_capability(manifest).map(|()| market.get(id).unwrap().input_schema().to_string())
    };
    let without = serde_json::json!({"required": ["a"]});
    assert_eq!(declare("a", without).unwrap(), r#"{"type":"object","required":["a"]}"#);
    let with = serde_json::json!({"title": "t", "type": "object"});
    assert_eq!(declare("b", with).unwrap(), r#"{"title":"t","type":"object"}"#);
    let array = serde_json::json!({"type": "array", "items": {"type": "string"}});
    assert_eq!(
        declare("c", array).unwrap_err().to_string(),
        "c: its input schema cannot be enforced: type: expected an input schema of type object, because arguments have names"
    );
}

#[tokio::test]
async fn a_name_that_is_not_known_yet_is_found_by_asking_the_providers() {
    let market = Arc::new(marketplace(Limits::default(), []));
    let before = market.snapshot();
    let asked = Arc::downgrade(&market);
    let learn = move |_| {
        let asked = asked.clone();
        async move {
            let market = asked.upgrade().unwrap();
            if market.get("late").is_none() {
                market.register_capability(Canned::Echoes.manifest("late")).unwrap();
            }
        }
        .boxed()
    };
    market.on_listing(learn, || {});
    assert!(market.call(Call::to("late")).await.is_ok());
    // A call that names a snapshot sees that snapshot.
    let mut call = Call::to("late");
    call.scope.catalog = Some(before);
    assert_eq!(market.call(call).await.unwrap_err().kind(), "unknown-capability");
    market.prepare_listing().await;
    assert_eq!(market.list().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_for_unknown_providers_as_long_as_it_has_time_and_a_known_one_not_at_all() {
    let market = marketplace(limits(100), []);
    let mut unlearned = Registration::from(Canned::Echoes.manifest("here"));
    unlearned.policy.availability = Availability::Unlearned;
    let mut builder = market.builder(limits(100));
    builder.capability(unlearned).unwrap();
    market.replace(builder.build());
    market.on_listing(|_| std::future::pending().boxed(), || {});
    let began = Instant::now();
    assert!(market.call(Call::to("here")).await.is_ok());
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert_eq!(market.call(Call::to("elsewhere")).await.unwrap_err().kind(), "timeout");
    assert_eq!(began.elapsed(), Duration::from_millis(100));
    let mut impatient = Call::to("elsewhere");
    impatient.timeout = Some(Duration::from_millis(30));
    assert_eq!(market.call(impatient).await.unwrap_err().kind(), "timeout");
    assert_eq!(began.elapsed(), Duration::from_millis(130));
}

#[tokio::test(start_paused = true)]
async fn the_time_until_a_provider_is_known_is_time_of_the_call() {
    let market = Arc::new(marketplace(limits(100), []));
    let asked = Arc::downgrade(&market);
    market.on_listing(
        move |_| {
            let asked = asked.clone();
            async move {
                tokio::time::sleep(Duration::from_millis(60)).await;
                asked.upgrade().unwrap().register_capability(Canned::Hangs.manifest("late")).unwrap();
            }
            .boxed()
        },
        || {},
    );
    let began = Instant::now();
    assert_eq!(market.call(Call::to("late")).await.unwrap_err().kind(), "timeout");
    assert_eq!(began.elapsed(), Duration::from_millis(100));
}

#[tokio::test(start_paused = true)]
async fn the_times_in_the_queue_and_in_the_executor_are_recorded_also_for_a_call_that_ends_there() {
    let limits = Limits { max_concurrency: 1, ..limits(100) };
    let market = Arc::new(marketplace(limits, [("slow", Canned::Hangs), ("echo", Canned::Echoes)]));
    let records = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&records);
    market.on_finished(move |record| {
        let times = [record.queued, record.executed].map(|time| time.as_millis());
        sink.lock().push((record.name.to_string(), record.outcome, times));
    });
    let mut waits = Call::to("echo");
    waits.timeout = Some(Duration::from_millis(40));
    let (first, second) = tokio::join!(market.call(Call::to("slow")), market.call(waits));
    assert!(first.is_err() && second.is_err());
    assert!(market.call(Call::to("echo")).await.is_ok());
    let expected = [("echo", "timeout", [40, 0]), ("slow", "timeout", [0, 100]), ("echo", "ok", [0, 0])];
    let expected = expected.map(|(name, outcome, times)| (name.to_owned(), outcome, times));
    assert_eq!(*records.lock(), expected);
}

#[tokio::test]
async fn the_time_of_checks_against_schemas_is_recorded() {
    let market = marketplace(limits(100), [("echo", Canned::Echoes)]);
    let mut manifest = Canned::Echoes.manifest("typed");
    let schema = serde_json::json!({"type": "object", "properties": {"n": {"type": "integer"}}});
    manifest.input_schema = Some(crate::schema::schema_from_declaration(&schema).unwrap());
    manifest.output_schema.clone_from(&manifest.input_schema);
    market.register_capability(manifest).unwrap();
    let records = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&records);
    market.on_finished(move |record| sink.lock().push(record.clone()));
    for (id, input, is_checked) in
        [("echo", r#"{"n":1}"#, false), ("typed", r#"{"n":1}"#, true), ("typed", r#"{"n":"x"}"#, true)]
    {
        let input = Payload::from_json(JsonText::parse(input.to_owned()).unwrap());
        let _ = market.call(Call::to(id).with(input)).await;
        let record = records.lock().pop().unwrap();
        assert_eq!(record.validated > Duration::ZERO, is_checked, "{record:?}");
        assert!(record.validated + record.executed <= record.duration, "{record:?}");
    }
}

/// Returns a registration whose calls cannot be reached so many times.
fn unreachable(id: &str, times: u32, annotations: Option<&str>) -> (Registration, Arc<AtomicU32>) {
    let left = Arc::new(AtomicU32::new(times));
    let mut manifest = Canned::Unreachable(Arc::clone(&left)).manifest(id);
    if let Some(annotations) = annotations {
        manifest.metadata.insert(ANNOTATIONS.to_owned(), annotations.to_owned());
    }
    let mut registration = Registration::from(manifest);
    registration.policy.upstream = Some("http://upstream".into());
    (registration, left)
}

#[tokio::test(start_paused = true)]
async fn only_what_is_idempotent_is_called_again() {
    let market = marketplace(Limits::default(), []);
    for (id, annotations, retries, outcome, left) in [
        ("once", None, None, "unavailable", 2),
        ("reads", Some(r#"{"readOnlyHint": true}"#), None, "ok", 0),
        ("repeats", Some(r#"{"idempotentHint": true}"#), Some(3), "ok", 0),
        ("never", Some(r#"{"idempotentHint": true}"#), Some(0), "unavailable", 2),
        ("writes", Some(r#"{"idempotentHint": false}"#), Some(9), "unavailable", 2),
    ] {
        let times = if outcome == "ok" { 2 } else { 3 };
        let (mut registration, remaining) = unreachable(id, times, annotations);
        registration.policy.retries = retries;
        market.register_capability(registration).unwrap();
        let result = market.call(Call::to(id)).await;
        assert_eq!(result.map_or_else(|err| err.kind(), |_| "ok"), outcome, "{id}");
        assert_eq!(remaining.load(Ordering::Relaxed), left, "{id}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_upstream_that_fails_again_and_again_is_left_alone_with_all_its_capabilities() {
    let market = marketplace(Limits::default(), []);
    let (first, left) = unreachable("first", 5, None);
    let (second, _) = unreachable("second", 0, None);
    market.register_capability(first).unwrap();
    market.register_capability(second).unwrap();
    for _ in 0..5 {
        assert_eq!(market.call(Call::to("first")).await.unwrap_err().kind(), "unavailable");
    }
    let error = market.call(Call::to("second")).await.unwrap_err();
    let text =
        "second is unavailable: http://upstream failed several times in a row; it is tried again in 1 s";
    assert_eq!(error.to_string(), text);
    assert_eq!(left.load(Ordering::Relaxed), 0);
    // What an upstream did is not forgotten when the catalogue changes.
    market.register_capability(Canned::Echoes.manifest("other")).unwrap();
    assert!(market.call(Call::to("second")).await.is_err());
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(market.call(Call::to("second")).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_capability_has_places_of_its_own() {
    let bounds = Limits { max_queue: 1, ..limits(1000) };
    let market = marketplace(bounds, [("free", Canned::Echoes)]);
    let mut narrow = Registration::from(Canned::Hangs.manifest("narrow"));
    narrow.policy.max_concurrency = Some(1);
    market.register_capability(narrow).unwrap();
    let calls = (0..3).map(|_| market.call(Call::to("narrow")));
    let (narrow, free) =
        tokio::join!(futures_util::future::join_all(calls), market.call(Call::to("free")));
    let kinds: Vec<_> = narrow.into_iter().map(|result| result.unwrap_err().kind()).collect();
    assert_eq!(kinds, ["timeout", "timeout", "busy"]);
    assert!(free.is_ok());
}

#[tokio::test]
async fn whoever_lacks_a_permission_learns_nothing_of_the_schema() {
    lacking_a_permission(Disclosure::Conceal, "unknown tool: fetch").await;
    let denied = "fetch: permission denied: requires net:api.example.com";
    lacking_a_permission(Disclosure::Reveal, denied).await;
}

async fn lacking_a_permission(disclosure: Disclosure, denied: &str) {
    let market = marketplace(Limits::default(), []);
    let mut manifest = Canned::Echoes.manifest("fetch");
    manifest.permissions = vec!["net:api.example.com".to_owned()];
    let schema = serde_json::json!({"type": "object", "required": ["secret"]});
    manifest.input_schema = Some(crate::schema::schema_from_declaration(&schema).unwrap());
    let mut builder = market.builder(Limits::default());
    builder.capability(manifest).unwrap();
    builder.access(AccessPolicy {
        rules: vec![Rule {
            to: Callers::parse(["alice"]).unwrap(),
            capabilities: vec![Pattern::new("*")],
            allow: vec!["net:*.example.com".parse().unwrap()],
            deny: Vec::new(),
        }],
        disclosure,
        ..AccessPolicy::default()
    });
    market.replace(builder.build());
    let error = market.call(Call::to("fetch")).await.unwrap_err();
    assert_eq!(error.to_string(), denied);
    let mut call = Call::to("fetch");
    call.scope.principal = Some(Principal::token("alice"));
    assert_eq!(market.call(call).await.unwrap_err().kind(), "invalid-input");
    let near = market.call(Call::to("fetsh")).await.unwrap_err();
    assert_eq!(near.to_string(), "unknown tool: fetsh", "nor is it suggested");
}

/// A content that is never read to its end.
struct Endless;

impl crate::attestation::Content for Endless {
    fn hash(&self) -> Result<String, String> {
        Err("it has no end".to_owned())
    }

    fn known_hash(&self) -> Option<Arc<str>> {
        None
    }

    fn is_unchanged_since(&self, _: std::time::SystemTime) -> bool {
        true
    }

    fn hash_later(&self) -> BoxFuture<'static, Result<String, String>> {
        std::future::pending().boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn reading_what_is_vouched_for_takes_no_longer_than_the_call_may() {
    let market = marketplace(limits(100), []);
    let mut attested = Registration::from(Canned::Echoes.manifest("a"));
    let custody = crate::attestation::Custody::new(Arc::new(Endless));
    attested.policy.custody = Some(custody.attested("x", None, true));
    market.register_capability(attested).unwrap();
    let began = Instant::now();
    assert_eq!(market.call(Call::to("a")).await.unwrap_err().kind(), "timeout");
    assert_eq!(began.elapsed(), Duration::from_millis(100));
    let call = Call::to("a");
    call.scope.cancellation.cancel();
    assert_eq!(market.call(call).await.unwrap_err().kind(), "cancelled");
}

/// Counts the calls that are about to run, and refuses them after so many.
struct Gate {
    begun: AtomicU32,
    most: u32,
}

#[async_trait::async_trait]
impl Checkpoint for Gate {
    async fn before_attempt(&self, _capability: &crate::catalog::Entry) -> RuntimeResult<()> {
        if self.begun.fetch_add(1, Ordering::SeqCst) < self.most {
            Ok(())
        } else {
            Err(crate::RuntimeError::Generic("not written".into()))
        }
    }
}

#[tokio::test]
async fn a_checkpoint_is_passed_before_a_call_runs_and_can_refuse_it() {
    let market = marketplace(Limits::default(), [("echo", Canned::Echoes), ("stuck", Canned::Sticks)]);
    let gate = Arc::new(Gate { begun: AtomicU32::new(0), most: 1 });
    let guarded = |target: &str| {
        let mut call = Call::to(target);
        call.scope.checkpoint = Some(Arc::clone(&gate) as Arc<dyn Checkpoint>);
        call
    };
    assert!(market.call(guarded("echo")).await.is_ok());
    assert_eq!(market.call(guarded("stuck")).await.unwrap_err().to_string(), "not written");
    assert_eq!(market.call(guarded("nothing")).await.unwrap_err().kind(), "unknown-capability");
    assert_eq!(gate.begun.load(Ordering::SeqCst), 2, "an unknown capability never runs");
}
