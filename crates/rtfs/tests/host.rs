//! A run and its host: requests, answers, strands, streams, limits that the host gives.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::HashMap;

use rtfs::{
    Error, Event, Limits, Options, Outcome, Request, Run, Source, Ticket, Value, Wait, compile,
    eval_pure,
};

/// A host that writes down what it is asked, and answers.
struct Host {
    run: Run,
    /// What happened, in order.
    log: Vec<String>,
    /// Requests that wait, by ticket.
    open: HashMap<u64, Request>,
    streams: HashMap<u64, std::vec::IntoIter<i64>>,
}

fn start(text: &str, limits: Limits) -> Host {
    let program =
        compile(&Source::new("", text), &Options::default()).unwrap_or_else(|errors| panic!("{errors}"));
    Host {
        run: Run::new(program, limits, &[]),
        log: Vec::new(),
        open: HashMap::new(),
        streams: HashMap::new(),
    }
}

impl Host {
    /// Advances until something is wanted, and writes the events down.
    fn advance(&mut self) -> Outcome {
        let outcome = loop {
            match self.run.advance(1_000) {
                Outcome::Yielded => {}
                other => break other,
            }
        };
        let events: Vec<_> = self.run.events().collect();
        for event in events {
            let line = match event {
                Event::Request { ticket, request, .. } => {
                    let line = match &request {
                        Request::Call { id, input, options } => {
                            let options =
                                options.timeout_ms.map_or(String::new(), |ms| format!(" {ms} ms"));
                            format!("{} call {id} {input:?}{options}", ticket.0)
                        }
                        Request::Open { id, input } => format!("{} open {id} {input:?}", ticket.0),
                        Request::Next { stream } => format!("{} next {}", ticket.0, stream.0),
                        Request::Send { stream, value } => {
                            format!("{} send {} {value:?}", ticket.0, stream.0)
                        }
                        Request::Close { stream } => format!("{} close {}", ticket.0, stream.0),
                        Request::Search { query } => format!("{} search {query}", ticket.0),
                        Request::Describe { id } => format!("{} describe {id}", ticket.0),
                        Request::Wait(Wait::Until(at)) => format!("{} until {at}", ticket.0),
                        Request::Wait(Wait::Task(id)) => format!("{} task {id}", ticket.0),
                        Request::Wait(Wait::Event(name)) => format!("{} event {name}", ticket.0),
                        other => format!("{other:?}"),
                    };
                    self.open.insert(ticket.0, request);
                    line
                }
                Event::Cancel { ticket } => format!("cancel {}", ticket.0),
                Event::CloseStream { stream } => format!("close stream {}", stream.0),
                Event::Log { level, message, data } => format!("log {level} {message} {data:?}"),
                Event::StepBegin { name } => format!("step {name}"),
                Event::StepEnd => "end".to_owned(),
                other => format!("{other:?}"),
            };
            self.log.push(line);
        }
        outcome
    }

    fn answer(&mut self, ticket: u64, value: impl Into<Value>) {
        self.open.remove(&ticket);
        self.run.resolve(Ticket(ticket), Ok(value.into()));
    }

    fn refuse(&mut self, ticket: u64, kind: &'static str) {
        self.open.remove(&ticket);
        self.run.resolve(Ticket(ticket), Err(Error::new(kind, "no").with_capability("x")));
    }

    /// Answers calls with their input and streams with the numbers from 1 to `items`, to the end.
    fn finish(&mut self, items: i64) -> Outcome {
        loop {
            let outcome = self.advance();
            if !matches!(outcome, Outcome::Waiting) {
                return outcome;
            }
            let mut open: Vec<_> = self.open.drain().collect();
            assert!(!open.is_empty(), "it waits for nothing");
            open.sort_by_key(|entry| entry.0);
            for (ticket, request) in open {
                let value = match request {
                    Request::Call { input, .. } => input,
                    Request::Open { .. } => {
                        self.streams.insert(ticket, (1..=items).collect::<Vec<_>>().into_iter());
                        Value::Nil
                    }
                    Request::Next { stream } => {
                        match self.streams.get_mut(&stream.0).and_then(Iterator::next) {
                            Some(n) => Value::vector(vec![n.into()]).unwrap(),
                            None => Value::Nil,
                        }
                    }
                    _ => Value::Nil,
                };
                self.run.resolve(Ticket(ticket), Ok(value));
            }
        }
    }
}

/// Returns the value as it is printed, or `error KIND MESSAGE`.
fn shown(outcome: Outcome) -> String {
    match outcome {
        Outcome::Done(value) => value.pr_str(),
        Outcome::Failed(error) => format!("error {} {}", error.kind, error.message),
        other => format!("{other:?}"),
    }
}

#[test]
fn inputs_and_options_reach_the_host() {
    let cases = [
        ("(call :a.b {:x 1})", "1 call a.b {:x 1}"),
        ("(call \"a.b\")", "1 call a.b {}"),
        ("(call (keyword \"a\" \"b\") nil)", "1 call a/b nil"),
        ("(call :math.add 1 2)", "1 call math.add [1 2]"),
        ("(call :a {:x 1} {:timeout-ms 500})", "1 call a {:x 1} 500 ms"),
        ("(call :a {:x 1} {:other 500})", "1 call a [{:x 1} {:other 500}]"),
        ("(call :a (map inc (take 2 (range))))", "1 call a (1 2)"),
        ("(apply call [:a {:x 1}])", "1 call a {:x 1}"),
        ("(capabilities \"some words\")", "1 search some words"),
        ("(describe :a)", "1 describe a"),
        ("(do (sleep-until \"2026-11-20T11:00:00.5+01:00\") 7)", "1 until 2026-11-20T10:00:00.500Z"),
        ("(or (sleep-until 2026-11-20T10:00:00Z) 7)", "1 until 2026-11-20T10:00:00Z"),
        ("(await-task \"0199-a\")", "1 task 0199-a"),
        ("(await-event :paid)", "1 event paid"),
    ];
    for (text, line) in cases {
        let mut host = start(text, Limits::default());
        assert!(matches!(host.advance(), Outcome::Waiting), "{text}");
        assert_eq!(host.log, [line], "{text}");
        host.answer(1, 7);
        assert_eq!(shown(host.advance()), "7", "{text}");
    }
}

#[test]
fn long_waits_do_not_count_towards_calls_at_once() {
    let limits = Limits { calls_at_once: 1, ..Limits::default() };
    let mut host = start("(parallel (await-event :a) (await-event :b) (call :x) (call :y))", limits);
    assert!(matches!(host.advance(), Outcome::Waiting));
    assert_eq!(host.log, ["1 event a", "2 event b", "3 call x {}"]);
    host.answer(2, 2);
    assert!(matches!(host.advance(), Outcome::Waiting));
    assert_eq!(host.log.len(), 3, "an event makes no room for a call");
    host.answer(3, 3);
    assert!(matches!(host.advance(), Outcome::Waiting));
    assert_eq!(host.log[3..], ["4 call y {}"]);
}

#[test]
fn invalid_instants_tasks_and_events_are_errors_at_their_place() {
    for (text, error) in [
        ("(sleep-until \"tomorrow\")", "invalid-argument: `sleep-until` takes an RFC 3339 instant"),
        ("(sleep-until (first [5]))", "type: `sleep-until` takes an instant or its text, got 5"),
        ("(await-task (first [:a]))", "type: the id of a task is a string, got :a"),
        ("(await-event (first [5]))", "type: the name of an event is a string or a keyword, got 5"),
    ] {
        let Outcome::Failed(got) = start(text, Limits::default()).advance() else { panic!("{text}") };
        assert!(got.to_string().starts_with(error), "{text}: {got}");
    }
}

#[test]
fn a_failed_call_is_an_error_that_can_be_caught() {
    let mut host = start(
        "(try (call :a) (catch [:denied :timeout] e [(:kind e) (:capability e) (:at e)]))",
        Limits::default(),
    );
    host.advance();
    host.refuse(1, "timeout");
    assert_eq!(shown(host.advance()), "[:timeout :x {:line 1, :column 6}]");
    let mut host = start("\n  (call :a)", Limits::default());
    host.advance();
    host.refuse(1, "denied");
    let Outcome::Failed(error) = host.advance() else { panic!() };
    assert_eq!(error.report(), "2:3: denied: no\n2 |   (call :a)\n  |   ^^^^^^^^^");
}

#[test]
fn parallel_calls_are_requested_at_once_and_answered_in_any_order() {
    let mut host = start("(parallel (call :a) (+ (call :b) 1) {:c (call :c)})", Limits::default());
    host.advance();
    assert_eq!(host.log, ["1 call a {}", "2 call b {}", "3 call c {}"]);
    host.answer(3, 30);
    host.answer(1, 10);
    assert!(matches!(host.advance(), Outcome::Waiting));
    host.answer(2, 20);
    assert_eq!(shown(host.advance()), "[10 21 {:c 30}]");
}

#[test]
fn the_first_error_cancels_the_rest_and_its_late_answers_are_ignored() {
    let mut host = start(
        "(try (parallel (call :a) (parallel (call :b) (call :c))) (catch :denied e :caught))",
        Limits::default(),
    );
    host.advance();
    host.refuse(1, "denied");
    assert_eq!(shown(host.advance()), ":caught");
    assert_eq!(host.log[3..], ["cancel 2", "cancel 3"]);
    host.answer(2, 1);
    assert_eq!(shown(host.advance()), ":caught");
}

#[test]
fn a_race_is_won_by_the_first_success() {
    let mut host = start("(race (call :a) (call :b) (call :c))", Limits::default());
    host.advance();
    host.refuse(1, "failed");
    assert!(matches!(host.advance(), Outcome::Waiting));
    host.answer(3, 3);
    assert_eq!(shown(host.advance()), "3");
    assert_eq!(host.log.last().unwrap(), "cancel 2");
    let mut host = start("(race (call :a) (call :b))", Limits::default());
    host.advance();
    host.refuse(1, "failed");
    host.refuse(2, "timeout");
    assert_eq!(shown(host.advance()), "error timeout no");
}

#[test]
fn settle_gives_each_outcome() {
    let mut host = start(
        "(map (fn [r] (or (:ok r) (:kind (:error r)))) (settle (call :a) (call :b)))",
        Limits::default(),
    );
    host.advance();
    host.refuse(1, "busy");
    host.answer(2, 2);
    assert_eq!(shown(host.advance()), "[:busy 2]");
}

#[test]
fn pmap_keeps_to_its_maximum_and_its_order() {
    let mut host = start("(pmap (fn [x] (* 10 (call :a x))) (range 5) {:max 2})", Limits::default());
    host.advance();
    assert_eq!(host.log.len(), 2);
    host.answer(2, 1);
    host.advance();
    assert_eq!(host.log[2], "3 call a 2");
    assert_eq!(shown(host.finish(0)), "[0 10 20 30 40]");
}

#[test]
fn concurrent_requests_are_limited_by_the_host() {
    let limits = Limits { calls_at_once: 2, ..Limits::default() };
    let mut host = start("(parallel (call :a) (call :b) (call :c) (call :d))", limits);
    host.advance();
    assert_eq!(host.log, ["1 call a {}", "2 call b {}"]);
    host.answer(1, 1);
    host.advance();
    assert_eq!(host.log[2..], ["3 call c {}"]);
    host.refuse(2, "failed");
    assert_eq!(shown(host.advance()), "error failed no");
    // What was never asked is not cancelled.
    assert_eq!(host.log[3..], ["cancel 3"]);
}

#[test]
fn a_limit_ends_the_run_without_asking_its_handlers() {
    let limits = Limits { calls: 2, ..Limits::default() };
    let mut host =
        start("(try (doseq [x (range 5)] (try (call :a x) (catch e 1))) (finally (log :late)))", limits);
    assert_eq!(shown(host.finish(0)), "error limit more than 2 calls");
    assert!(host.log.iter().all(|line| !line.starts_with("log")));
    let mut host = start("(try (call :a) (catch e 1) (finally (call :b)))", Limits::default());
    host.advance();
    host.run.fail(Error::new("cancelled", "the client has gone"));
    assert_eq!(shown(host.advance()), "error cancelled the client has gone");
    assert_eq!(host.log, ["1 call a {}", "cancel 1"]);
}

#[test]
fn finally_runs_and_its_calls_count() {
    let mut host = start("(try (/ 1 0) (finally (call :clean)))", Limits::default());
    host.advance();
    assert_eq!(host.log, ["1 call clean {}"]);
    host.answer(1, 1);
    assert_eq!(shown(host.advance()), "error arithmetic `/`: division by zero");
}

#[test]
fn streams_are_read_as_far_as_they_are_used_and_closed() {
    let cases = [
        ("(vec (take 2 (stream :s {})))", "[1 2]", 2),
        ("(reduce + (stream :s))", "15", 6),
        ("(first (filter even? (map inc (stream :s))))", "2", 1),
        ("(for [x (stream :s) :while (< x 3)] x)", "[1 2]", 3),
        ("(do (doseq [x (stream :s)] (when (= x 2) (throw {:kind :enough}))) 1)", "error enough ", 2),
        ("(count (partition-all 2 (stream :s)))", "3", 6),
        (
            "(let [s (stream :s)] [(first s) (first s) (second s) (type-name s)])",
            "[1 1 2 \"stream\"]",
            2,
        ),
        ("(into [] (take-while #(< % 4) (drop 1 (distinct (stream :s)))))", "[2 3]", 4),
        ("(take 2 (stream :s))", "(1 2)", 2),
    ];
    for (text, value, reads) in cases {
        let mut host = start(text, Limits::default());
        assert_eq!(shown(host.finish(5)), value, "{text}");
        let read = host.log.iter().filter(|line| line.contains(" next ")).count();
        assert_eq!(read, reads, "{text}: {:?}", host.log);
        host.run.events().for_each(drop);
        let closed = host.log.iter().filter(|line| *line == "close stream 1").count();
        assert_eq!(closed, 1, "{text}: {:?}", host.log);
    }
}

#[test]
fn sinks_are_written_and_closed() {
    let mut host = start(
        "(let [s (stream :sink {})] (send! s 1) (send! s {:a 2}) (close! s) :done)",
        Limits::default(),
    );
    assert_eq!(shown(host.finish(0)), ":done");
    assert_eq!(host.log[..4], ["1 open sink {}", "2 send 1 1", "3 send 1 {:a 2}", "4 close 1"]);
}

#[test]
fn steps_and_logs_are_reported_in_order() {
    let mut host = start(
        "(step \"one\" (log :warn \"text\" {:a 1}) (step \"two\" (call :a)) (log \"plain\"))",
        Limits::default(),
    );
    host.advance();
    host.refuse(1, "failed");
    host.advance();
    assert_eq!(host.log, ["step one", "log warn text {:a 1}", "step two", "1 call a {}", "end", "end"]);
}

#[test]
fn a_run_gives_way_when_its_quota_is_used() {
    let mut host = start("(loop [i 0] (if (< i 100000) (recur (inc i)) i))", Limits::default());
    assert!(matches!(host.run.advance(1_000), Outcome::Yielded));
    let before = host.run.steps_left();
    assert!(matches!(host.run.advance(1_000), Outcome::Yielded));
    assert_eq!(before - host.run.steps_left(), 1_000);
    assert_eq!(shown(host.advance()), "100000");
}

#[test]
fn no_quota_makes_a_program_cheaper() {
    for text in [
        "(loop [i 0] (if (< i 5000) (recur (inc i)) i))",
        "(reduce (fn [a x] (+ a x)) 0 (range 2000))",
        "(nth (sort (fn [a b] (> a b)) (range 3000)) 0)",
        "(count (sort (reverse (range 100000))))",
        "(count (string-join (repeat 50000 \"text\")))",
    ] {
        let used = |quota: u64| {
            let mut run = start(text, Limits::default()).run;
            let mut advances = 1_u64;
            while let Outcome::Yielded = run.advance(quota) {
                advances += 1;
            }
            (Limits::default().steps - run.steps_left(), advances)
        };
        let (steps, once) = used(u64::MAX);
        assert_eq!(once, 1, "{text}");
        for quota in [1, 100, 1_000] {
            let (same, advances) = used(quota);
            assert_eq!(same, steps, "{text}: quota {quota}");
            assert!(advances <= steps / quota + 1, "{text}: {advances} advances of {quota}");
        }
    }
}

#[test]
fn inputs_are_names_of_the_program_and_functions_can_be_called_afterwards() {
    let options = Options { inputs: vec!["input".to_owned()], ..Options::default() };
    let source = Source::new("tool.rtfs", "(def k 2) (defn main \"Doubles.\" [x] (* k x (:n input)))");
    let program = compile(&source, &options).unwrap();
    let main = program.globals().iter().find(|global| &*global.name == "main").unwrap();
    assert_eq!((main.doc.as_deref(), main.params.len()), (Some("Doubles."), 1));
    let input = eval_pure("{:n 10}").unwrap();
    let mut run = Run::new(program, Limits::default(), &[("input", input)]);
    assert!(matches!(run.advance(1_000), Outcome::Done(_)));
    run.call("main", vec![Value::Int(3)]).unwrap();
    assert_eq!(shown(run.advance(1_000)), "60");
    assert_eq!(run.call("other", Vec::new()).unwrap_err().kind, "undefined");
}

#[test]
fn a_dialogue_keeps_its_definitions() {
    let line = |text: &str, before: Option<Run>| {
        let base = before.as_ref().map(|run| run.program().clone());
        let options = Options { base, open: true, ..Options::default() };
        let program = compile(&Source::new("", text), &options).unwrap();
        let mut run = match before {
            Some(before) => Run::continuing(program, Limits::default(), before),
            None => Run::new(program, Limits::default(), &[]),
        };
        let outcome = shown(run.advance(u64::MAX));
        (run, outcome)
    };
    let (run, _) = line("(defn f [x] (* 2 x)) (defn g [x] (f x)) (def a 5)", None);
    let (run, value) = line("(g a)", Some(run));
    assert_eq!(value, "10");
    let (run, _) = line("(defn f [x] (* 3 x))", Some(run));
    let (run, value) = line("(g a)", Some(run));
    assert_eq!(value, "15");
    // Macros, types and imports are part of it, until their names are given to something else.
    let (run, _) = line("(defmacro twice [form] `(do ~form ~form)) (deftype-alias Age :int)", Some(run));
    let (run, _) =
        line("(module m (:exports [one]) (def one 1)) (import m :as mm :only [one])", Some(run));
    let (run, value) = line("[(twice a) (is? 3 Age) mm/one one]", Some(run));
    assert_eq!(value, "[5 true 1 1]");
    assert_eq!(run.program().macros().collect::<Vec<_>>(), ["twice"]);
    let (run, _) = line("(defn twice [x] (* 2 x)) (def one 11)", Some(run));
    let (mut run, value) = line("[(twice a) one mm/one]", Some(run));
    assert_eq!(value, "[10 11 1]");
    assert!(run.give("a", Value::Int(7)) && !run.give("b", Value::Nil));
    assert_eq!(line("a", Some(run)).1, "7");
}

#[test]
fn modules_come_from_the_host() {
    let modules = |name: &str| {
        match name {
        "util" => Some("(module util (:exports [twice]) (import base :only [two]) (defn twice [x] (* two x)) (defn hidden [] 1))".to_owned()),
        "base" => Some("(def two 2)".to_owned()),
        "a" => Some("(import b) 1".to_owned()),
        "b" => Some("(import a) 1".to_owned()),
        "bad" => Some("(def x".to_owned()),
        _ => None,
    }
    };
    let run = |text: &str| {
        let options = Options { modules: Some(std::sync::Arc::new(modules)), ..Options::default() };
        match compile(&Source::new("", text), &options) {
            Ok(program) => shown(Run::new(program, Limits::default(), &[]).advance(u64::MAX)),
            Err(errors) => errors.0[0].message.lines().next().unwrap().to_owned(),
        }
    };
    let cases = [
        ("(import util :as u) (u/twice 4)", "8"),
        ("(import util :only [twice]) (twice 4)", "8"),
        ("(import util) (util/twice 4)", "8"),
        ("(import util :as u) (import util :as v) [(u/twice 1) (v/twice 2)]", "[2 4]"),
        ("(import util :as u) (u/hidden)", "error undefined `u/hidden` is not defined"),
        ("(import util :only [hidden])", "`util` does not export `hidden`"),
        ("(import none)", "there is no module `none`"),
        ("(import a)", "a:1:1: b:1:1: modules import each other: `a` imports `b` imports `a`"),
        ("(import bad)", "bad:1:1: `(` is never closed: `)` is missing"),
    ];
    for (text, expected) in cases {
        let got = run(text);
        assert_eq!(got, expected, "{text}");
    }
}

#[test]
fn messages_are_delivered_before_they_accumulate() {
    for told in ["(log :info text)", "(step text nil)"] {
        let program = format!("(let [text (repeat-string 300000 \"a\")] (loop [] {told} (recur)))");
        let mut host = start(&program, Limits { steps: 500_000, ..Limits::default() });
        let outcome = loop {
            match host.run.advance(u64::MAX) {
                Outcome::Yielded => {}
                other => break other,
            }
            let bytes: usize = host
                .run
                .events()
                .map(|event| match event {
                    Event::Log { message, .. } => message.len(),
                    Event::StepBegin { name } => name.len(),
                    _ => 0,
                })
                .sum();
            assert!(bytes < 2 << 20, "{told}: {bytes}");
        };
        let Outcome::Failed(error) = outcome else { panic!("{told}: {outcome:?}") };
        assert_eq!(
            (error.kind.as_ref(), error.to_string().contains("step")),
            ("limit", true),
            "{error}"
        );
    }
}
