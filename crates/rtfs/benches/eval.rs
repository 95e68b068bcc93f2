//! How long programs take: `cargo bench -p rtfs`. The least of several runs, each with reading,
//! compiling, metering and dropping; then the reader alone, and a call of the host.

#![expect(clippy::print_stdout, reason = "a benchmark prints its table")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use rtfs::{Event, Limits, Options, Outcome, Run, Source, Value, check, compile, eval_pure, read};

/// Name, program, and as many milliseconds as it may take.
const PROGRAMS: &[(&str, &str, f64)] = &[
    ("fib 25", "(defn fib [n] (if (< n 2) n (+ (fib (- n 1)) (fib (- n 2))))) (fib 25)", 4.3),
    ("loop to 10^6", "(loop [i 0 s 0] (if (< i 1000000) (recur (+ i 1) (+ s i)) s))", 14.0),
    ("closure in reduce, 10^6", "(reduce (fn [a x] (+ a x)) 0 (range 1000000))", 42.0),
    (
        "map and filter, 10^5",
        "(count (filter (fn [x] (= 0 (mod x 3))) (map (fn [x] (* x 2)) (range 100000))))",
        12.0,
    ),
    (
        "string building, 10^4",
        "(count (loop [i 0 s \"\"] (if (< i 10000) (recur (inc i) (str s \"x\" i)) s)))",
        2.0,
    ),
    ("recursion, 9,000 deep", "(defn d [n] (if (= n 0) 0 (+ 1 (d (- n 1))))) (d 9000)", 1.0),
    ("sort 10^5", "(count (sort (map (fn [x] (mod (* x 7919) 100003)) (range 100000))))", 7.0),
    (
        "sort 10^5 by a function",
        "(count (sort (fn [a b] (- a b)) (map (fn [x] (mod (* x 7919) 100003)) (range 100000))))",
        120.0,
    ),
    (
        "map updates, 10^5",
        "(let [ks (mapv (fn [i] (str \"k\" i)) (range 5000))] (count (loop [i 0 m {}] (if (< i 100000) \
         (let [k (nth ks (mod i 5000))] (recur (inc i) (assoc m k (inc (get m k 0))))) m))))",
        12.0,
    ),
    (
        "closures made and called, 10^6",
        "(loop [i 0 s 0] (if (< i 1000000) (recur (inc i) ((fn [x] (+ x i s)) 1)) s))",
        85.0,
    ),
    (
        "records, 10^5",
        "(reduce (fn [s i] (let [m (assoc {:a i :b 2} :c 3)] (+ s (:a m) (:c m)))) 0 (range 100000))",
        40.0,
    ),
    (
        "word count over 1 MB",
        "(count (frequencies (split (string-join \" \" (map (fn [i] (str \"word\" (mod (* i 31) 977))) \
         (range 140000))) \" \")))",
        60.0,
    ),
    ("a small program", "(let [a 1 b {:x 2}] (map (fn [x] (+ x a)) [1 2 (:x b)]))", 0.02),
];

fn main() {
    // Compiles the prelude.
    black_box(eval_pure("1").is_ok());
    println!("{:32} {:>10} {:>10}", "program", "ms", "at most");
    for (name, program, most) in PROGRAMS {
        let took = least(9, || {
            black_box(eval_pure(program).is_ok());
        });
        println!("{name:32} {:>10.3} {most:>10}", took.as_secs_f64() * 1e3);
    }
    let form = "(defn f [x y] (let [z {:key \"text\" :n 12.5}] (when (> x 1) [x y :keyword z 'symbol \"str\"])))\n";
    let source = Source::new("", form.repeat(10_000));
    let took = least(5, || {
        black_box(compile(&source, &Options::default()).is_ok());
    });
    println!("{:32} {:>10.1} MB/s", "reading and compiling", speed(&source, took));
    let took = least(5, || {
        black_box(check(&source, &Options::default(), None).len());
    });
    println!("{:32} {:>10.1} MB/s", "reading, compiling and checking", speed(&source, took));
    let data = Source::new("", format!("[{}]", "{:name \"text\" :n 12 :list [1 2 3]} ".repeat(30_000)));
    let took = least(5, || {
        black_box(read(&data).is_ok());
    });
    println!("{:32} {:>10.1} MB/s", "reading values", speed(&data, took));
    println!("{:32} {:>10} ns", "suspend and resume", suspended().as_nanos());
}

fn speed(source: &Source, took: Duration) -> f64 {
    source.text().len() as f64 / 1e6 / took.as_secs_f64()
}

fn least(times: usize, mut work: impl FnMut()) -> Duration {
    let once = |work: &mut dyn FnMut()| {
        let start = Instant::now();
        work();
        start.elapsed()
    };
    (0..times).map(|_| once(&mut work)).min().unwrap_or_default()
}

/// Returns the time of one call, from the program to the host and back.
fn suspended() -> Duration {
    const CALLS: u32 = 200_000;
    let source =
        Source::new("", format!("(loop [i 0] (if (< i {CALLS}) (do (call :a i) (recur (inc i))) i))"));
    let Ok(program) = compile(&source, &Options::default()) else { return Duration::ZERO };
    let limits = Limits { calls: u64::MAX, ..Limits::default() };
    let took = least(5, || {
        let mut run = Run::new(program.clone(), limits, &[]);
        while let Outcome::Waiting = run.advance(u64::MAX) {
            let Some(Event::Request { ticket, .. }) = run.events().next() else { return };
            run.resolve(ticket, Ok(Value::Int(1)));
        }
    });
    took / CALLS
}
