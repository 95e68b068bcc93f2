//! A run that is saved and loaded wherever it pauses gives what it gives without; and no bytes do harm.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use rtfs::{
    Error, Event, Limits, Options, Outcome, Program, Request, Run, Source, Ticket, Unsaved, Value, Wait,
    compile,
};

const PROGRAMS: &[&str] = &[
    "(+ 1 (call :echo {:n 2}) 3)",
    "(map (fn [n] (:n (call :echo {:n n}))) [1 2 3])",
    "(defn f [n] (if (= n 0) (call :echo 0) (+ 1 (f (dec n))))) (f 50)",
    "(let [k 7 add (fn [x] (+ x k (call :echo 1)))] [(add 1) (add 2)])",
    "(parallel (call :echo 1) (+ 1 (call :echo 2)) (parallel (call :echo 3) 4))",
    "(pmap (fn [x] (* x (call :echo x))) (range 20) {:max 3})",
    "(settle (call :echo 1) (call :bad) (do (call :echo 2) (throw {:kind :odd :message \"x\"})))",
    "(race (do (call :bad) 1) (call :echo 2))",
    "(try (call :bad) (catch :failed e [(:kind e) (:message e) (:at e)]) (finally (call :echo 1)))",
    "(try (try (call :bad) (finally (call :echo 1))) (catch e (try (throw e) (catch f (:at f)))))",
    "(call :bad)",
    "(do (call :echo 1)\n  (nth [1] (call :echo 5)))",
    "(take 5 (map (fn [n] (+ n (call :echo n))) (iterate inc 1)))",
    "(def xs (map (fn [n] (call :echo n)) (range))) (do (first xs) [(nth xs 3) (take 2 (rest xs))])",
    "(def m (memoize (fn [n] (call :echo n)))) [(m 1) (m 2) (m 1) (m 2)]",
    "(let [g (memoize identity)] (g g) (call :echo 1) (fn? (g g)))",
    "(reduce (fn [acc n] (assoc acc (keyword (str \"k\" n)) (call :echo {:n n :s #{1 n} :l '(a b)}))) {} (range 5))",
    "(loop [i 0 acc []] (if (< i 200) (recur (inc i) (conj acc (* i i 99999999999))) (do (call :echo 1) (sum acc))))",
    "[2026-11-20T10:00:00Z 550e8400-e29b-41d4-a716-446655440000 1.5 ##NaN (call :echo \"ünï\") 'sym :k/w nil]",
    "(let [[a & {:keys [b]}] [(call :echo 1) :b (call :echo 2)]] [a b])",
    "(match (call :echo {:a [1 2]}) {:a [x y]} when (> y x) (call :echo (+ x y)) _ nil)",
    "(for [x (range 3) y (range 3) :when (< x y)] (call :echo [x y]))",
    "(sort (fn [a b] (< (call :echo a) (call :echo b))) [3 1 2])",
    "(step \"one\" (log :info \"hello\" {:a 1}) (call :echo 1))",
    "(count (capabilities \"x\"))",
    "((comp inc (partial + 2) (fn [x] (call :echo x))) 1)",
    "(let [s (zip (range) (map (fn [x] (call :echo x)) (range)))] (vec (take 3 s)))",
    "(str (gensym) (call :echo 1) (gensym))",
    "(update-in {:a {:b 1}} [:a :b] (fn [x] (+ x (call :echo 1))))",
    "(defn deep [n] (if (= n 0) (call :echo :bottom) [(deep (dec n))])) (deep 30)",
    "(defn go [n] (+ 1 (go (+ n (call :echo 1))))) (go 0)",
    "(loop [i 0] (call :echo i) (recur (inc i)))",
    "(try (first (stream :none)) (catch e (:kind e)))",
    "(vec (take 3 (stream :nums)))",
    r#"(parallel (sleep-until "2026-11-20T10:00:00Z") (await-task "t") (try (await-event :paid) (catch e (:kind e))))"#,
    "(pmap (fn [n] (try (await-event (str n)) (catch e [n (:kind e)]))) (range 9))",
    "(map (fn [t] (sleep-until t)) [2026-11-20T10:00:00.5Z])",
];

fn program(text: &str) -> Arc<Program> {
    compile(&Source::new("a", text), &Options::default())
        .unwrap_or_else(|errors| panic!("{text}: {errors}"))
}

fn limits() -> Limits {
    Limits { steps: 100_000, depth: 200, calls: 300, calls_at_once: 4, ..Limits::default() }
}

fn answer(request: &Request) -> Result<Value, Error> {
    match request {
        Request::Call { id, input, .. } if id.as_str() == "echo" => Ok(input.clone()),
        Request::Call { .. } => Err(Error::new("failed", "it is broken").with_capability("bad")),
        Request::Search { .. } => Ok(Value::vector(vec![1.into(), 2.into()]).unwrap()),
        Request::Open { id, .. } if id.as_str() == "nums" => Ok(Value::Nil),
        Request::Wait(Wait::Task(id)) => Ok(id.as_str().into()),
        Request::Wait(Wait::Until(_)) => Ok(1.into()),
        Request::Next { .. } => Ok(Value::vector(vec![7.into()]).unwrap()),
        _ => Err(Error::new("unavailable", "there is nothing")),
    }
}

/// How a run ended: its value or error, and the steps that were left.
#[derive(Debug, PartialEq)]
struct End(String, u64);

/// Runs to the end. `pause` says, at each turn, whether the run is saved and loaded.
fn run(text: &str, quota: u64, mut pause: impl FnMut() -> bool) -> (End, usize) {
    let program = program(text);
    let mut run = Run::new(program.clone(), limits(), &[]).resumable();
    let mut open: BTreeMap<Ticket, Request> = BTreeMap::new();
    let mut saves = 0;
    loop {
        let outcome = run.advance(quota);
        for event in run.events() {
            match event {
                Event::Request { ticket, request, .. } => {
                    open.insert(ticket, request);
                }
                Event::Cancel { ticket } => {
                    open.remove(&ticket);
                }
                _ => {}
            }
        }
        match outcome {
            Outcome::Done(value) => return (End(format!("{value:?}"), run.steps_left()), saves),
            Outcome::Failed(error) => {
                assert_eq!(run.save().unwrap_err(), Unsaved::Ended);
                return (End(error.report(), run.steps_left()), saves);
            }
            Outcome::Waiting | Outcome::Yielded => {}
        }
        if pause() {
            let bytes = run.save().unwrap();
            run = Run::load(program.clone(), limits(), &bytes)
                .unwrap_or_else(|error| panic!("{text}: {error}"));
            // Who waits for a stream does not any more.
            if !text.contains("stream") {
                assert_eq!(run.save().unwrap(), bytes, "{text}: saving is not stable");
            }
            saves += 1;
            // The process is another: what was asked is asked again.
            open.clear();
            if matches!(outcome, Outcome::Waiting) {
                continue;
            }
        }
        // One answer at a time, so that others are open meanwhile.
        if let Some((ticket, request)) = open.pop_first() {
            run.resolve(ticket, answer(&request));
        }
    }
}

#[test]
fn a_run_gives_the_same_whether_it_is_saved_at_each_pause_or_not() {
    for text in PROGRAMS {
        let (expected, _) = run(text, 11, || false);
        let mut turn = 0;
        let every_other = || {
            turn += 1;
            turn % 2 == 1
        };
        let (got, saves) = run(text, 11, every_other);
        if text.contains(":nums") {
            assert!(got.0.contains("unavailable"), "{text}: {got:?}");
            continue;
        }
        assert_eq!(got, expected, "{text}");
        assert!(saves > 0, "{text} never paused");
    }
}

#[test]
fn a_run_is_of_its_program_and_of_no_other() {
    let one = program("(call :echo 1)");
    let mut run = Run::new(one.clone(), limits(), &[]);
    assert!(matches!(run.advance(1_000), Outcome::Waiting));
    assert_eq!(run.save().unwrap_err(), Unsaved::Events);
    assert_eq!(run.events().count(), 1);
    assert_eq!(run.save().unwrap_err(), Unsaved::NotResumable);

    let mut run = Run::new(one.clone(), limits(), &[]).resumable();
    run.advance(1_000);
    assert_eq!(run.events().count(), 1);
    let bytes = run.save().unwrap();
    let other = Run::load(program("(call :echo 2)"), limits(), &bytes).err().unwrap();
    assert!(other.to_string().contains("another program"), "{other}");
    assert!(Run::load(one.clone(), Limits { memory: 1_000, ..limits() }, &bytes).is_err());
    let again = Run::load(one, limits(), &bytes).unwrap();
    assert_eq!(again.steps_left(), run.steps_left());
}

#[test]
fn a_run_of_another_format_version_is_refused_with_the_reason() {
    let program = program("(call :echo 1)");
    let mut run = Run::new(program.clone(), limits(), &[]).resumable();
    run.advance(1_000);
    assert_eq!(run.events().count(), 1);
    let bytes = run.save().unwrap();
    for version in [1, bytes[7] + 1] {
        let mut bytes = bytes.clone();
        bytes[7] = version;
        let refused = Run::load(program.clone(), limits(), &bytes).err().unwrap();
        assert!(refused.to_string().contains("another version of the format"), "{refused}");
    }
}

#[test]
fn the_function_after_a_program_is_called_also_in_another_process() {
    let program = program("(def k (call :echo 2)) (defn main [n] (* k (call :echo n)))");
    let mut run = Run::new(program.clone(), limits(), &[]).resumable().then("main", vec![21.into()]);
    let value = loop {
        match run.advance(100) {
            Outcome::Done(value) => break value,
            Outcome::Failed(error) => panic!("{error}"),
            Outcome::Yielded => {}
            Outcome::Waiting => {
                run.events().for_each(drop);
                run = Run::load(program.clone(), limits(), &run.save().unwrap()).unwrap();
                assert!(matches!(run.advance(100), Outcome::Waiting));
                let Some(Event::Request { ticket, request, .. }) = run.events().next() else { panic!() };
                run.resolve(ticket, answer(&request));
            }
        }
    };
    assert_eq!(value, Value::Int(42));
    let mut run = Run::new(self::program("1"), limits(), &[]).then("main", Vec::new());
    let Outcome::Failed(error) = run.advance(100) else { panic!("there is no main") };
    assert_eq!(&*error.kind, "undefined");
}

#[test]
fn an_answer_is_the_same_when_it_was_written_and_read() {
    let program = program("(call :echo 1)");
    let mut run = Run::new(program.clone(), limits(), &[]).resumable();
    let text = r#"{:a [1 2.5 "x" 'y nil true] "b" #{:c} :d 2026-11-20T10:00:00Z :e (list 99999999999999999999)}"#;
    let value = rtfs::eval_pure(text).unwrap();
    let error = Error::new("mine", "odd").with_data(value.clone()).with_capability("x");
    for answer in [Ok(value), Ok(Value::Nil), Err(error)] {
        let bytes = run.write_answer(&answer);
        let mut other = Run::new(program.clone(), limits(), &[]);
        let read = other.read_answer(&bytes).unwrap();
        assert_eq!(format!("{read:?}"), format!("{answer:?}"));
        for cut in 0..bytes.len() {
            assert!(other.read_answer(&bytes[..cut]).is_err(), "{cut} bytes of {answer:?}");
        }
    }
    assert!(run.read_answer(b"").is_err());
}

#[test]
fn a_long_lazy_chain_and_deep_data_are_saved_without_recursion() {
    let text = "(def s (map identity (range))) (def deep (reduce (fn [v _] [v]) 1 (range 900))) (def n (nth s 50000)) (call :echo n)";
    let program = program(text);
    let limits = Limits::default();
    let mut run = Run::new(program.clone(), limits, &[]).resumable();
    assert!(matches!(run.advance(u64::MAX), Outcome::Waiting));
    assert_eq!(run.events().count(), 1);
    let bytes = run.save().unwrap();
    let mut run = Run::load(program, limits, &bytes).unwrap();
    assert!(matches!(run.advance(u64::MAX), Outcome::Waiting));
    let Some(Event::Request { ticket, request, .. }) = run.events().next() else { panic!("no request") };
    run.resolve(ticket, answer(&request));
    let Outcome::Done(value) = run.advance(u64::MAX) else { panic!("not done") };
    assert_eq!(value, Value::Int(50_000));
}

/// Loads changed bytes, and runs the result.
fn survives(program: &Arc<Program>, bytes: &[u8]) {
    let limits = Limits { steps: 5_000, memory: 4 << 20, output: 1 << 20, ..limits() };
    let Ok(mut run) = Run::load(program.clone(), limits, bytes) else { return };
    for _ in 0..200 {
        match run.advance(1_000) {
            Outcome::Done(_) | Outcome::Failed(_) => return,
            Outcome::Waiting | Outcome::Yielded => {}
        }
        let events: Vec<_> = run.events().collect();
        for event in events {
            if let Event::Request { ticket, request, .. } = event {
                run.resolve(ticket, answer(&request));
            }
        }
        let _ = run.save();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn saving_at_random_pauses_changes_nothing(at in 0..PROGRAMS.len(), quota in 1..60_u64, seed: u64) {
        let text = PROGRAMS[at];
        prop_assume!(!text.contains(":nums"));
        let (expected, _) = run(text, quota, || false);
        let mut state = seed | 1;
        let random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 62 == 0
        };
        let (got, _) = run(text, quota, random);
        prop_assert_eq!(&got.0, &expected.0, "{}", text);
        // How often branches wait for each other depends on the order of the answers, and a load asks again.
        if !["pmap", "parallel", "race"].iter().any(|form| text.contains(form)) {
            prop_assert_eq!(got.1, expected.1, "the steps left of {}", text);
        }
    }

    #[test]
    fn changed_bytes_do_no_harm(
        at in 0..PROGRAMS.len(),
        turns in 1..12_usize,
        quota in 1..200_u64,
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6),
        cut in proptest::option::weighted(0.1, any::<proptest::sample::Index>()),
    ) {
        let program = program(PROGRAMS[at]);
        let mut run = Run::new(program.clone(), limits(), &[]).resumable();
        for _ in 0..turns {
            if matches!(run.advance(quota), Outcome::Done(_) | Outcome::Failed(_)) {
                break;
            }
            let events: Vec<_> = run.events().collect();
            for (at, event) in events.into_iter().enumerate() {
                if let Event::Request { ticket, request, .. } = event && at % 2 == 0 {
                    run.resolve(ticket, answer(&request));
                }
            }
        }
        if let Ok(mut bytes) = run.save() {
            for (place, byte) in changes {
                // Not the fingerprint: what comes after it is what is checked here.
                let at = 16 + place.index(bytes.len() - 16);
                bytes[at] = byte;
            }
            if let Some(cut) = cut {
                bytes.truncate(cut.index(bytes.len()));
            }
            survives(&program, &bytes);
        }
    }
}

/// Returns the steps and branches of all requests until nothing goes on, as `step:1/pmap:2[0]`.
fn scopes(run: &mut Run) -> Vec<String> {
    fn text(scope: &rtfs::Scope) -> String {
        let own = match &scope.part {
            rtfs::Part::Step(name) => format!("{name}:{}", scope.number),
            rtfs::Part::Branch { form, index } => format!("{form}:{}[{index}]", scope.number),
        };
        match &scope.outer {
            Some(outer) => format!("{}/{own}", text(outer)),
            None => own,
        }
    }
    assert!(matches!(run.advance(u64::MAX), Outcome::Waiting));
    let shown = |event: Event| match event {
        Event::Request { scope, .. } => Some(scope.as_deref().map(text).unwrap_or_default()),
        _ => None,
    };
    run.events().filter_map(shown).collect()
}

#[test]
fn a_request_names_its_steps_and_branches_also_after_a_load() {
    let text = r#"(do (call :echo 1)
        (step "one" (pmap (fn [x] (step "two" (call :echo x))) [1 2]) (call :echo 2))
        (try (step "bad" (throw {:kind :odd :message "x"})) (catch e nil))
        (call :echo 3)
        (defn deep [n] (if (= n 0) (call :echo 4) (step (str n) (deep (dec n)))))
        (deep 20)
        (call :echo 5))"#;
    let expected: [&[&str]; 6] = [
        &[""],
        &["one:1/pmap:2[0]/two:3", "one:1/pmap:2[1]/two:4"],
        &["one:1"],
        &[""],
        &["20:6/19:7/18:8/17:9/16:10/15:11/14:12/13:13/12:14/11:15/10:16/9:17/8:18/7:19/6:20/5:21"],
        &[""],
    ];
    let program = program(text);
    let mut run = Run::new(program.clone(), limits(), &[]).resumable();
    let mut ticket = 0;
    for expected in expected {
        assert_eq!(scopes(&mut run), expected);
        run = Run::load(program.clone(), limits(), &run.save().unwrap()).unwrap();
        assert_eq!(scopes(&mut run), expected, "after a load");
        for _ in expected {
            ticket += 1;
            run.resolve(Ticket(ticket), Ok(Value::Nil));
        }
    }
    assert!(matches!(run.advance(u64::MAX), Outcome::Done(_)));
}
