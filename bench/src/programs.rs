//! The programs, each in three languages. Where a language has several ways, the fastest is taken that
//! does the same work.

/// One program in three languages.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) rtfs: &'static str,
    pub(crate) steel: &'static str,
    pub(crate) rhai: &'static str,
    /// What it finds under the name `text`.
    pub(crate) text: fn() -> String,
    /// How many times as fast as these it is to be.
    pub(crate) ahead_of_steel: f64,
    pub(crate) ahead_of_rhai: f64,
}

/// What is promised of most.
const USUAL: Program = Program {
    name: "",
    rtfs: "",
    steel: "",
    rhai: "",
    text: String::new,
    ahead_of_steel: 3.0,
    ahead_of_rhai: 5.0,
};

pub(crate) const PROGRAMS: &[Program] = &[
    Program {
        name: "fib(25), recursive",
        rtfs: "(defn fib [n] (if (< n 2) n (+ (fib (- n 1)) (fib (- n 2))))) (fib 25)",
        steel: "(define (fib n) (if (< n 2) n (+ (fib (- n 1)) (fib (- n 2))))) (fib 25)",
        rhai: "fn fib(n) { if n < 2 { n } else { fib(n - 1) + fib(n - 2) } } fib(25)",
        ..USUAL
    },
    Program {
        name: "sum of 1 to 10^6 by a closure in reduce",
        rtfs: "(reduce (fn [a x] (+ a x)) 0 (range 1 1000001))",
        steel: "(transduce (range 1 1000001) (into-reducer (lambda (a x) (+ a x)) 0))",
        rhai: "let f = |a, x| a + x; let s = 0; for x in 1..=1000000 { s = f.call(s, x); } s",
        ..USUAL
    },
    Program {
        name: "sum of 1 to 10^6 by a loop",
        rtfs: "(loop [i 1 s 0] (if (<= i 1000000) (recur (+ i 1) (+ s i)) s))",
        steel: "(let loop ([i 1] [s 0]) (if (<= i 1000000) (loop (+ i 1) (+ s i)) s))",
        rhai: "let i = 1; let s = 0; while i <= 1000000 { s += i; i += 1; } s",
        ..USUAL
    },
    Program {
        name: "map and filter with closures, 10^5",
        rtfs: "(count (filter (fn [x] (= 0 (mod x 3))) (map (fn [x] (* x 2)) (range 100000))))",
        steel: "(length (filter (lambda (x) (= 0 (modulo x 3))) (map (lambda (x) (* x 2)) (range 0 100000))))",
        rhai: "let xs = []; for x in 0..100000 { xs.push(x); } \
               xs.map(|x| x * 2).filter(|x| x % 3 == 0).len()",
        ..USUAL
    },
    Program {
        name: "string building, 10^4",
        rtfs: "(count (loop [i 0 s \"\"] (if (< i 10000) (recur (+ i 1) (str s \"x\" i)) s)))",
        steel: "(string-length (let loop ([i 0] [s \"\"]) \
                (if (< i 10000) (loop (+ i 1) (string-append s \"x\" (number->string i))) s)))",
        rhai: "let s = \"\"; for i in 0..10000 { s += \"x\"; s += i; } s.len()",
        ..USUAL
    },
    Program {
        name: "recursion, 9,000 deep",
        rtfs: "(defn d [n] (if (= n 0) 0 (+ 1 (d (- n 1))))) (d 9000)",
        steel: "(define (d n) (if (= n 0) 0 (+ 1 (d (- n 1))))) (d 9000)",
        rhai: "fn d(n) { if n == 0 { 0 } else { 1 + d(n - 1) } } d(9000)",
        ahead_of_steel: 1.2,
        ..USUAL
    },
    Program {
        name: "sort of 10^5 integers",
        rtfs: "(nth (sort (map (fn [x] (mod (* x 7919) 100003)) (range 100000))) 50000)",
        steel: "(list-ref (sort (map (lambda (x) (modulo (* x 7919) 100003)) (range 0 100000)) <) 50000)",
        rhai: "let xs = []; for x in 0..100000 { xs.push((x * 7919) % 100003); } xs.sort(); xs[50000]",
        ..USUAL
    },
    Program {
        name: "sort of 10^5 integers by a function",
        rtfs: "(nth (sort (fn [a b] (< a b)) (map (fn [x] (mod (* x 7919) 100003)) (range 100000))) 50000)",
        steel: "(list-ref (sort (map (lambda (x) (modulo (* x 7919) 100003)) (range 0 100000)) \
                (lambda (a b) (< a b))) 50000)",
        rhai: "let xs = []; for x in 0..100000 { xs.push((x * 7919) % 100003); } \
               xs.sort(|a, b| a - b); xs[50000]",
        ..USUAL
    },
    Program {
        name: "word count over 1 MB",
        rtfs: "(count (frequencies (split text \" \")))",
        steel: WORDS_IN_STEEL,
        rhai: WORDS_IN_RHAI,
        text: words,
        ..USUAL
    },
    Program {
        name: "word count over 1 MB by a closure",
        rtfs: "(count (reduce (fn [m w] (assoc m w (+ 1 (get m w 0)))) {} (split text \" \")))",
        steel: WORDS_IN_STEEL,
        rhai: WORDS_IN_RHAI,
        text: words,
        ..USUAL
    },
    Program {
        name: "10^5 map updates, 5,000 keys",
        rtfs: "(let [ks (map (fn [i] (str \"k\" i)) (range 5000))] \
               (get (loop [i 0 m {}] (if (< i 100000) \
               (let [k (nth ks (mod i 5000))] (recur (+ i 1) (assoc m k (+ 1 (get m k 0))))) m)) \"k7\"))",
        steel: "(let ([ks (list->vector (map (lambda (i) (string-append \"k\" (number->string i))) (range 0 5000)))]) \
                (hash-ref (transduce (range 0 100000) (into-reducer (lambda (m i) \
                (let ([k (vector-ref ks (modulo i 5000))]) \
                (hash-insert m k (+ 1 (or (hash-try-get m k) 0))))) (hash))) \"k7\"))",
        rhai: "let ks = []; for i in 0..5000 { ks.push(`k${i}`); } let m = #{}; \
               for i in 0..100000 { let k = ks[i % 5000]; if k in m { m[k] += 1; } else { m[k] = 1; } } m[\"k7\"]",
        ..USUAL
    },
    Program {
        name: "10^6 closures made and called",
        rtfs: "(loop [i 0 s 0] (if (< i 1000000) (recur (+ i 1) ((fn [x] (+ x i s)) 1)) s))",
        steel: "(define (make i s) (lambda (x) (+ x i s))) \
                (let loop ([i 0] [s 0]) (if (< i 1000000) (loop (+ i 1) ((make i s) 1)) s))",
        rhai: "let i = 0; let s = 0; \
               while i < 1000000 { let f = |i, s, x| x + i + s; s = f.curry(i).curry(s).call(1); i += 1; } s",
        ahead_of_steel: 2.0,
        ..USUAL
    },
];

const WORDS_IN_STEEL: &str = "(hash-length (transduce (split-many text \" \") (into-reducer \
    (lambda (m w) (hash-insert m w (+ 1 (or (hash-try-get m w) 0)))) (hash))))";
const WORDS_IN_RHAI: &str =
    "let m = #{}; for w in text.split(\" \") { if w in m { m[w] += 1; } else { m[w] = 1; } } m.len()";

/// 1 MB of words, of which 977 differ.
fn words() -> String {
    let words: Vec<String> = (0..140_000).map(|i| format!("word{}", i * 31 % 977)).collect();
    words.join(" ")
}
