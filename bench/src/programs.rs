//! The programs, each in six languages. Where a language has several ways, the fastest is taken that
//! does the same work.

/// One program in six languages.
#[cfg_attr(
    not(feature = "embedded"),
    expect(dead_code, reason = "the texts for languages that are left out stay with the others")
)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) rtfs: &'static str,
    pub(crate) steel: &'static str,
    pub(crate) rhai: &'static str,
    /// A chunk that returns its result.
    pub(crate) lua: &'static str,
    /// The definition of a function `main` without parameters.
    pub(crate) python: &'static str,
    /// The body of a function.
    pub(crate) javascript: &'static str,
    /// What it finds under the name `text`.
    pub(crate) text: fn() -> String,
    /// How many times as fast as these it is to be.
    pub(crate) ahead_of_steel: f64,
    pub(crate) ahead_of_rhai: f64,
}

impl Program {
    /// How many times as fast as this language it is to be; `None` for RTFS itself.
    pub(crate) fn ahead_of(&self, language: &str) -> Option<f64> {
        match language {
            "rtfs" => None,
            "steel" => Some(self.ahead_of_steel),
            "rhai" => Some(self.ahead_of_rhai),
            _ => Some(1.0),
        }
    }
}

/// What is promised of most.
const USUAL: Program = Program {
    name: "",
    rtfs: "",
    steel: "",
    rhai: "",
    lua: "",
    python: "",
    javascript: "",
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
        lua: "local function fib(n) if n < 2 then return n end return fib(n - 1) + fib(n - 2) end return fib(25)",
        python: "def main():\n  def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)\n  return fib(25)",
        javascript: "const fib = n => n < 2 ? n : fib(n - 1) + fib(n - 2); return fib(25)",
        ..USUAL
    },
    Program {
        name: "sum of 1 to 10^6 by a closure in reduce",
        rtfs: "(reduce (fn [a x] (+ a x)) 0 (range 1 1000001))",
        steel: "(transduce (range 1 1000001) (into-reducer (lambda (a x) (+ a x)) 0))",
        rhai: "let f = |a, x| a + x; let s = 0; for x in 1..=1000000 { s = f.call(s, x); } s",
        lua: "local f = function(a, x) return a + x end local s = 0 for x = 1, 1000000 do s = f(s, x) end return s",
        python: "from functools import reduce\ndef main(): return reduce(lambda a, x: a + x, range(1, 1000001), 0)",
        javascript: "const f = (a, x) => a + x; let s = 0; for (let x = 1; x <= 1000000; x++) s = f(s, x); return s",
        ..USUAL
    },
    Program {
        name: "sum of 1 to 10^6 by a loop",
        rtfs: "(loop [i 1 s 0] (if (<= i 1000000) (recur (+ i 1) (+ s i)) s))",
        steel: "(let loop ([i 1] [s 0]) (if (<= i 1000000) (loop (+ i 1) (+ s i)) s))",
        rhai: "let i = 1; let s = 0; while i <= 1000000 { s += i; i += 1; } s",
        lua: "local i, s = 1, 0 while i <= 1000000 do s = s + i i = i + 1 end return s",
        python: "def main():\n  i = 1; s = 0\n  while i <= 1000000:\n    s += i; i += 1\n  return s",
        javascript: "let i = 1, s = 0; while (i <= 1000000) { s += i; i++; } return s",
        ..USUAL
    },
    Program {
        name: "map and filter with closures, 10^5",
        rtfs: "(count (filter (fn [x] (= 0 (mod x 3))) (map (fn [x] (* x 2)) (range 100000))))",
        steel: "(length (filter (lambda (x) (= 0 (modulo x 3))) (map (lambda (x) (* x 2)) (range 0 100000))))",
        rhai: "let xs = []; for x in 0..100000 { xs.push(x); } \
               xs.map(|x| x * 2).filter(|x| x % 3 == 0).len()",
        lua: LUA_MAP_FILTER,
        python: "def main():\n  xs = map(lambda x: x * 2, range(100000))\n  return len(list(filter(lambda x: x % 3 == 0, list(xs))))",
        javascript: "const xs = []; for (let x = 0; x < 100000; x++) xs.push(x); \
                     return xs.map(x => x * 2).filter(x => x % 3 === 0).length",
        ..USUAL
    },
    Program {
        name: "string building, 10^4",
        rtfs: "(count (loop [i 0 s \"\"] (if (< i 10000) (recur (+ i 1) (str s \"x\" i)) s)))",
        steel: "(string-length (let loop ([i 0] [s \"\"]) \
                (if (< i 10000) (loop (+ i 1) (string-append s \"x\" (number->string i))) s)))",
        rhai: "let s = \"\"; for i in 0..10000 { s += \"x\"; s += i; } s.len()",
        lua: "local s = '' for i = 0, 9999 do s = s .. 'x' .. i end return #s",
        python: "def main():\n  s = ''\n  for i in range(10000): s += 'x' + str(i)\n  return len(s)",
        javascript: "let s = ''; for (let i = 0; i < 10000; i++) s += 'x' + i; return s.length",
        ..USUAL
    },
    Program {
        name: "recursion, 9,000 deep",
        rtfs: "(defn d [n] (if (= n 0) 0 (+ 1 (d (- n 1))))) (d 9000)",
        steel: "(define (d n) (if (= n 0) 0 (+ 1 (d (- n 1))))) (d 9000)",
        rhai: "fn d(n) { if n == 0 { 0 } else { 1 + d(n - 1) } } d(9000)",
        lua: "local function d(n) if n == 0 then return 0 end return 1 + d(n - 1) end return d(9000)",
        python: "def main():\n  def d(n): return 0 if n == 0 else 1 + d(n - 1)\n  return d(9000)",
        javascript: "const d = n => n === 0 ? 0 : 1 + d(n - 1); return d(9000)",
        ahead_of_steel: 1.2,
        ..USUAL
    },
    Program {
        name: "sort of 10^5 integers",
        rtfs: "(nth (sort (map (fn [x] (mod (* x 7919) 100003)) (range 100000))) 50000)",
        steel: "(list-ref (sort (map (lambda (x) (modulo (* x 7919) 100003)) (range 0 100000)) <) 50000)",
        rhai: "let xs = []; for x in 0..100000 { xs.push((x * 7919) % 100003); } xs.sort(); xs[50000]",
        lua: "local xs = {} for x = 0, 99999 do xs[x + 1] = x * 7919 % 100003 end table.sort(xs) return xs[50001]",
        python: "def main(): return sorted([x * 7919 % 100003 for x in range(100000)])[50000]",
        javascript: "const xs = []; for (let x = 0; x < 100000; x++) xs.push(x * 7919 % 100003); \
                     return Int32Array.from(xs).sort()[50000]",
        ..USUAL
    },
    Program {
        name: "sort of 10^5 integers by a function",
        rtfs: "(nth (sort (fn [a b] (< a b)) (map (fn [x] (mod (* x 7919) 100003)) (range 100000))) 50000)",
        steel: "(list-ref (sort (map (lambda (x) (modulo (* x 7919) 100003)) (range 0 100000)) \
                (lambda (a b) (< a b))) 50000)",
        rhai: "let xs = []; for x in 0..100000 { xs.push((x * 7919) % 100003); } \
               xs.sort(|a, b| a - b); xs[50000]",
        lua: "local xs = {} for x = 0, 99999 do xs[x + 1] = x * 7919 % 100003 end \
              table.sort(xs, function(a, b) return a < b end) return xs[50001]",
        python: "from functools import cmp_to_key\ndef main():\n  xs = [x * 7919 % 100003 for x in range(100000)]\n  \
                 return sorted(xs, key=cmp_to_key(lambda a, b: a - b))[50000]",
        javascript: "const xs = []; for (let x = 0; x < 100000; x++) xs.push(x * 7919 % 100003); \
                     return xs.sort((a, b) => a - b)[50000]",
        ..USUAL
    },
    Program {
        name: "word count over 1 MB",
        rtfs: "(count (frequencies (split text \" \")))",
        steel: WORDS_IN_STEEL,
        rhai: WORDS_IN_RHAI,
        lua: LUA_WORDS,
        python: "from collections import Counter\ndef main(): return len(Counter(text.split(' ')))",
        javascript: JS_WORDS,
        text: words,
        ..USUAL
    },
    Program {
        name: "word count over 1 MB by a closure",
        rtfs: "(count (reduce (fn [m w] (assoc m w (+ 1 (get m w 0)))) {} (split text \" \")))",
        steel: WORDS_IN_STEEL,
        rhai: WORDS_IN_RHAI,
        lua: LUA_WORDS,
        python: "from functools import reduce\ndef main():\n  def add(m, w):\n    m[w] = m.get(w, 0) + 1\n    return m\n  \
                 return len(reduce(add, text.split(' '), {}))",
        javascript: JS_WORDS,
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
        lua: "local ks = {} for i = 0, 4999 do ks[i] = 'k' .. i end local m = {} \
              for i = 0, 99999 do local k = ks[i % 5000] m[k] = (m[k] or 0) + 1 end return m.k7",
        python: "def main():\n  ks = [f'k{i}' for i in range(5000)]\n  m = {}\n  for i in range(100000):\n    \
                 k = ks[i % 5000]; m[k] = m.get(k, 0) + 1\n  return m['k7']",
        javascript: "const ks = []; for (let i = 0; i < 5000; i++) ks.push('k' + i); const m = new Map(); \
                     for (let i = 0; i < 100000; i++) { const k = ks[i % 5000]; m.set(k, (m.get(k) || 0) + 1); } \
                     return m.get('k7')",
        ..USUAL
    },
    Program {
        name: "10^6 closures made and called",
        rtfs: "(loop [i 0 s 0] (if (< i 1000000) (recur (+ i 1) ((fn [x] (+ x i s)) 1)) s))",
        steel: "(define (make i s) (lambda (x) (+ x i s))) \
                (let loop ([i 0] [s 0]) (if (< i 1000000) (loop (+ i 1) ((make i s) 1)) s))",
        rhai: "let i = 0; let s = 0; \
               while i < 1000000 { let f = |i, s, x| x + i + s; s = f.curry(i).curry(s).call(1); i += 1; } s",
        lua: "local s = 0 for i = 0, 999999 do s = (function(x) return x + i + s end)(1) end return s",
        python: "def main():\n  s = 0\n  for i in range(1000000): s = (lambda x: x + i + s)(1)\n  return s",
        javascript: "let s = 0; for (let i = 0; i < 1000000; i++) { const before = s; s = (x => x + i + before)(1); } return s",
        ahead_of_steel: 2.0,
        ..USUAL
    },
];

const WORDS_IN_STEEL: &str = "(hash-length (transduce (split-many text \" \") (into-reducer \
    (lambda (m w) (hash-insert m w (+ 1 (or (hash-try-get m w) 0)))) (hash))))";
const WORDS_IN_RHAI: &str =
    "let m = #{}; for w in text.split(\" \") { if w in m { m[w] += 1; } else { m[w] = 1; } } m.len()";

const LUA_MAP_FILTER: &str = "local function map(f, xs) local ys = {} for i = 1, #xs do ys[i] = f(xs[i]) end return ys end \
    local function filter(f, xs) local ys = {} for i = 1, #xs do local x = xs[i] if f(x) then ys[#ys + 1] = x end end return ys end \
    local xs = {} for x = 0, 99999 do xs[#xs + 1] = x end \
    return #filter(function(x) return x % 3 == 0 end, map(function(x) return x * 2 end, xs))";
const LUA_WORDS: &str = "local m, n = {}, 0 for w in text:gmatch('[^ ]+') do \
    local c = m[w] if c then m[w] = c + 1 else m[w] = 1 n = n + 1 end end return n";
const JS_WORDS: &str =
    "const m = new Map(); for (const w of text.split(' ')) m.set(w, (m.get(w) || 0) + 1); return m.size";

/// 1 MB of words, of which 977 differ.
fn words() -> String {
    let words: Vec<String> = (0..140_000).map(|i| format!("word{}", i * 31 % 977)).collect();
    words.join(" ")
}
