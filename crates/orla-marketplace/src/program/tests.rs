use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::*;
use crate::testing::{Canned, marketplace};
use crate::{Call, Limits, Payload};
use rtfs::{Options, Source, compile};

fn program(text: &str) -> Arc<Program> {
    compile(&Source::new("", text), &Options::default()).unwrap_or_else(|err| panic!("{err}"))
}

fn market() -> Arc<CapabilityMarketplace> {
    let canned = [
        ("echo", Canned::Echoes),
        ("math.one", Canned::Answers(Value::Int(1))),
        ("bad", Canned::Fails("it is broken".to_owned())),
        ("slow", Canned::Hangs),
        ("down", Canned::Unreachable(Arc::new(AtomicU32::new(u32::MAX)))),
    ];
    marketplace(Limits::default(), canned)
}

async fn eval(text: &str) -> Result<Value, Error> {
    let market = market();
    let ctx = market.surface_context(&Call::to("test"));
    run(&market, Job::new(program(text)), &ctx).await
}

#[tokio::test(start_paused = true)]
async fn a_program_calls_capabilities_and_catches_what_they_do_wrong() {
    for (text, printed) in [
        (r#"(call :echo {:a [1 2.5 "x"]})"#, r#"{:a [1 2.5 "x"]}"#),
        ("(call :echo)", "{}"),
        (r#"(+ (call "math.one") (call :math__one))"#, "2"),
        ("(parallel (call :math.one) (call :echo {:b 2}))", "[1 {:b 2}]"),
        ("(pmap (fn [n] (:n (call :echo {:n n}))) [1 2 3] {:max 2})", "[1 2 3]"),
        ("(try (call :bad {}) (catch :failed e (:message e)))", r#""it is broken""#),
        ("(try (call :nobody {}) (catch :unknown-capability e (:capability e)))", ":nobody"),
        ("(try (call :slow {} {:timeout-ms 50}) (catch :timeout _ :late))", ":late"),
        ("(race (call :slow) (call :math.one))", "1"),
        (
            "(settle (call :math.one) (do (call :down) 1))",
            r#"[{:ok 1} {:error {:kind :unavailable, :message "down is unavailable: no answer", :capability :down, :at {:line 1, :column 30}}}]"#,
        ),
        (r#"(map :id (capabilities "math"))"#, r#"["math.one"]"#),
        ("(:description (describe :math.one))", r#""The canned capability math.one""#),
        (
            "(try (describe :math.two) (catch _ e [(:kind e) (:data e)]))",
            r#"[:unknown-capability ["math.one"]]"#,
        ),
        ("(try (vec (stream :echo)) (catch _ e [(:kind e) (:at e)]))", "[:type {:line 1, :column 11}]"),
        (
            "(try (vec (stream :no.such)) (catch _ e [(:kind e) (:at e)]))",
            "[:unknown-capability {:line 1, :column 11}]",
        ),
    ] {
        match eval(text).await {
            Ok(value) => assert_eq!(format!("{value:?}"), printed, "{text}"),
            Err(error) => panic!("{text}: {}", error.report()),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_ends_at_its_deadline_without_running_handlers() {
    let market = market();
    let call = Call { timeout: Some(Duration::from_millis(200)), ..Call::to("test") };
    let ctx = market.surface_context(&call);
    let text = "(try (call :slow) (catch _ e :caught) (finally (call :echo)))";
    let error = run(&market, Job::new(program(text)), &ctx).await.unwrap_err();
    assert_eq!(error.to_string(), "limit: the run took longer than 0.2 s");
    assert_eq!((market.running(), market.waiting()), (0, 0));
}

#[tokio::test]
async fn a_call_that_uses_up_the_time_of_its_run_ends_the_run() {
    let market = market();
    let text = "(try (call :slow) (catch _ e (call :echo) :caught) (finally (log :info \"late\")))";
    let program = program(text);
    // By the clock of the machine: which of the two deadlines is seen first is chance.
    for _ in 0..50 {
        let call = Call { timeout: Some(Duration::from_millis(3)), ..Call::to("test") };
        let ctx = market.surface_context(&call);
        let logged = Arc::new(AtomicU32::new(0));
        let seen = Arc::clone(&logged);
        let trace = TraceSink::new(move |trace| {
            // The call itself may be seen to end before the run is.
            if !matches!(trace, Trace::Called { id, .. } if &*id == "slow") {
                seen.fetch_add(1, Ordering::Relaxed);
            }
        });
        let job = Job { trace, ..Job::new(Arc::clone(&program)) };
        let error = run(&market, job, &ctx).await.unwrap_err();
        assert_eq!((&*error.kind, error.data.pr_str()), ("limit", "{:limit :time}".to_owned()));
        assert_eq!(logged.load(Ordering::Relaxed), 0);
    }
}

#[tokio::test]
async fn a_run_that_only_computes_is_cancelled_too() {
    let market = market();
    let ctx = market.surface_context(&Call::to("test"));
    ctx.scope.cancellation.cancel();
    let job = Job::new(program("(loop [i 0] (recur (inc i)))"));
    let error = run(&market, job, &ctx).await.unwrap_err();
    assert_eq!(&*error.kind, "cancelled");
}

#[tokio::test(start_paused = true)]
async fn the_trace_has_calls_steps_and_messages() {
    let market = market();
    let ctx = market.surface_context(&Call::to("test"));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&seen);
    let trace = TraceSink::new(move |trace| {
        sink.lock().push(match trace {
            Trace::Called { id, input, result, at, .. } => {
                format!("{id} {input:?} {:?} {}", result.is_ok(), at.map_or(0, |at| at.column))
            }
            Trace::Step { name } => format!("step {name}"),
            Trace::Logged { level, message, data } => format!("{level} {message} {data:?}"),
        });
    });
    let text = r#"(step "one" (call :echo {:a 1})) (log :warn "odd" 7)"#;
    let job = Job { trace, ..Job::new(program(text)) };
    run(&market, job, &ctx).await.unwrap();
    assert_eq!(*seen.lock(), ["step one", "echo {:a 1} true 13", "warn odd 7"]);
}

#[tokio::test(start_paused = true)]
async fn the_tool_runs_a_program_and_locates_errors() {
    let market = market();
    market.register_executor(Arc::new(LanguageExecutor::new(&market))).unwrap();
    for registration in registrations() {
        market.register_capability(registration).unwrap();
    }
    let call = |tool: &str, input: serde_json::Value| {
        let input = Payload::from_json(crate::JsonText::of(&input).unwrap());
        market.call(Call::to(tool).with(input))
    };
    let json = serde_json::json!({"program": "(+ (:n input) (call :math.one))", "input": {"n": 41}});
    let outcome = call("rtfs", json).await.unwrap();
    assert_eq!(outcome.structured.unwrap().json().unwrap().as_str(), r#"{"value":42}"#);
    for (program, text) in [
        ("(+ 1", "1:1"),
        ("(inc \"a\")", "1:1: type"),
        ("(call :bad)", "1:1: failed: it is broken"),
        ("(fn [x] x)", "cannot be given as JSON"),
    ] {
        let error = call("rtfs", serde_json::json!({ "program": program })).await.unwrap_err();
        assert!(error.to_string().contains(text), "{program}: {error}");
    }
    let many = "(loop [i 0] (recur (inc i)))";
    let tight = serde_json::json!({"program": many, "limits": {"steps": 1000}});
    let error = call("rtfs", tight).await.unwrap_err().to_string();
    assert!(error.contains("limit") && error.contains("1000"), "{error}");
    let checked = call("rtfs_check", serde_json::json!({"program": "(let [x] 1)\n(if)"})).await.unwrap();
    let checked: serde_json::Value =
        serde_json::from_str(checked.structured.unwrap().json().unwrap().as_str()).unwrap();
    assert_eq!(checked["ok"], false);
    assert_eq!(checked["problems"][0]["line"], 1);
}

#[tokio::test(start_paused = true)]
async fn programs_within_programs_do_not_hold_places_that_they_need() {
    let bounds = Limits { max_concurrency: 1, ..Limits::default() };
    let market = marketplace(bounds, [("echo", Canned::Echoes)]);
    market.register_executor(Arc::new(LanguageExecutor::new(&market))).unwrap();
    for registration in registrations() {
        market.register_capability(registration).unwrap();
    }
    let count = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&count);
    market.on_finished(move |record| {
        counted.fetch_add(u32::from(record.outcome == "ok"), Ordering::Relaxed);
    });
    let inner = r#"(call :rtfs {:program "(call :echo {:deep true})"})"#;
    let input = serde_json::json!({ "program": inner });
    let call = Call::to("rtfs").with(Payload::from_json(crate::JsonText::of(&input).unwrap()));
    let outcome = market.call(call).await.unwrap();
    assert_eq!(
        outcome.structured.unwrap().json().unwrap().as_str(),
        r#"{"value":{"value":{"deep":true}}}"#
    );
    assert_eq!(count.load(Ordering::Relaxed), 3);
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_a_lazy_sequence_that_is_closed_when_it_is_not_read_any_more() {
    for (text, result, log) in [
        // Read to its end.
        ("(vec (stream :nums {:from 1}))", "[1 2 3]", "open {:from 1} next next next next drop"),
        ("(reduce + (stream :nums))", "6", "open {} next next next next drop"),
        // No more is asked for than is needed.
        ("(first (stream :nums))", "1", "open {} next close drop"),
        ("(take 2 (stream :nums))", "(1 2)", "open {} next next close drop"),
        ("(->> (stream :nums) (filter odd?) (map inc) (take 1))", "(2)", "open {} next close drop"),
        ("(let [s (stream :nums)] (take 2 s))", "(1 2)", "open {} next next close drop"),
        ("(for [x (stream :nums) :while (< x 2)] x)", "[1]", "open {} next next close drop"),
        ("(do (stream :nums) 1)", "1", "open {} close drop"),
        // Held by a definition it is closed with the run.
        ("(def s (stream :nums)) (first s)", "1", "open {} next close drop"),
        // A consumer that fails, or is not wanted any more.
        (
            "(try (doseq [x (stream :nums)] (throw x)) (catch e (:data e)))",
            "1",
            "open {} next close drop",
        ),
        ("(race (count (stream :endless)) (call :echo {}))", "{}", "open {} close drop"),
        // Both ways.
        (
            r#"(let [s (stream :nums)] (send! s {:a 1}) (send! s "b") (close! s) 5)"#,
            "5",
            r#"open {} send {:a 1} send "b" close drop"#,
        ),
    ] {
        let log_of = Arc::new(Mutex::new(Vec::new()));
        let stream = |items: &[i64], hangs| {
            Canned::Streams(crate::testing::CannedStream {
                items: items.iter().map(|n| Value::Int(*n)).collect(),
                hangs,
                log: Arc::clone(&log_of),
            })
        };
        let canned = [
            ("nums", stream(&[1, 2, 3], false)),
            ("endless", stream(&[1], true)),
            ("echo", Canned::Echoes),
        ];
        let market = marketplace(Limits::default(), canned);
        let records = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&records);
        market.on_finished(move |record| {
            if &*record.name != "echo" {
                seen.lock().push(record.outcome);
            }
        });
        let ctx = market.surface_context(&Call::to("test"));
        let value = run(&market, Job::new(program(text)), &ctx).await;
        let value = value.unwrap_or_else(|error| panic!("{text}: {}", error.report()));
        assert_eq!(format!("{value:?}"), result, "{text}");
        assert_eq!(log_of.lock().join(" "), log, "{text}");
        assert_eq!(*records.lock(), ["ok"], "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_ends_with_its_run_also_at_the_deadline() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let stream =
        crate::testing::CannedStream { hangs: true, log: Arc::clone(&log), ..Default::default() };
    let market = marketplace(Limits::default(), [("endless", Canned::Streams(stream))]);
    let call = Call { timeout: Some(Duration::from_millis(200)), ..Call::to("test") };
    let ctx = market.surface_context(&call);
    let error = run(&market, Job::new(program("(vec (stream :endless))")), &ctx).await.unwrap_err();
    assert_eq!(&*error.kind, "limit");
    assert_eq!(log.lock().join(" "), "open {} next close drop");
}

#[test]
fn the_description_lists_existing_functions_and_is_short() {
    let text = include_str!("teach.txt");
    // A token is three bytes and more, so this is below 1,500 of them.
    assert!(text.len() < 4_400, "{} bytes", text.len());
    let known = rtfs::all_names();
    let listed = text.lines().find_map(|line| line.strip_prefix("Functions: ")).unwrap();
    let names = listed.trim_end_matches('.').replace(" ((fmt \"{name} is {age:5.1}\" m))", "");
    for name in names.split([' ', ';']).filter(|name| !name.is_empty()) {
        assert!(known.binary_search(&name).is_ok(), "{name} is not a function");
    }
    let example = text.split_once("Example:\n").unwrap().1;
    let example = example.replace("(call :weather.current {:city c})", "(call :echo {:temp 11})");
    program(&example);
}

#[tokio::test]
async fn a_run_lets_others_run_each_time_its_quota_is_used() {
    let (market, turns) = (market(), 25);
    let ctx = market.surface_context(&Call::to("test"));
    let text = format!("(loop [i 0] (if (< i {}) (recur (inc i)) i))", turns * QUOTA);
    let mut running = std::pin::pin!(run(&market, Job::new(program(&text)), &ctx));
    let mut polls = 0;
    // Each time that it gives way is one poll more; no time is looked at.
    let value = poll_fn(|cx| {
        polls += 1;
        running.as_mut().poll(cx)
    });
    assert_eq!(value.await.unwrap(), Value::Int((turns * QUOTA) as i64));
    assert!(polls >= turns, "{polls} polls");
}
