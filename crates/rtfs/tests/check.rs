//! The checker beside the machine: it refuses nothing that runs, and what it lets be runs.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::path::Path;

use proptest::prelude::*;
use rtfs::{Diagnostic, Options, Severity, Source, check, eval_pure};

fn errors(program: &str) -> Vec<Diagnostic> {
    let mut found = check(&Source::new("", program), &Options::default(), None);
    found.retain(|found| found.severity == Severity::Error);
    found
}

/// Returns every program that the other tests run.
fn corpus() -> Vec<String> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut programs = Vec::new();
    for entry in std::fs::read_dir(dir.join("cases")).unwrap() {
        let mut program = String::new();
        for line in std::fs::read_to_string(entry.unwrap().path()).unwrap().lines() {
            if line.starts_with(";=> ") {
                programs.push(std::mem::take(&mut program));
            } else {
                program.push_str(line);
                program.push('\n');
            }
        }
    }
    for line in include_str!("fixtures/sample.jsonl").lines() {
        let case: serde_json::Value = serde_json::from_str(line).unwrap();
        programs.push(case["src"].as_str().unwrap().to_owned());
    }
    let reference = include_str!("../../../docs/rtfs.md");
    let blocks = reference.split("```rtfs\n").skip(1).filter_map(|rest| rest.split("```").next());
    let examples = blocks.flat_map(str::lines).filter_map(|line| line.rsplit_once(" => "));
    programs.extend(examples.map(|(program, _)| program.to_owned()));
    programs
}

#[test]
fn nothing_is_refused_that_runs_to_a_value() {
    let corpus = corpus();
    assert!(corpus.len() > 300, "{}", corpus.len());
    let mut wrong = Vec::new();
    for program in corpus {
        if eval_pure(&program).is_ok() {
            let found = errors(&program);
            wrong.extend(found.iter().map(|found| format!("{}\n    {found}", program.trim())));
        }
    }
    assert!(wrong.is_empty(), "{} refused:\n{}", wrong.len(), wrong.join("\n"));
}

/// The types of generated forms.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Int,
    Text,
    Bool,
    Keyword,
    Ints,
    Record,
}

const KINDS: [Kind; 6] = [Kind::Int, Kind::Text, Kind::Bool, Kind::Keyword, Kind::Ints, Kind::Record];

impl Kind {
    fn annotation(self) -> &'static str {
        match self {
            Self::Int => ":int",
            Self::Text => ":string",
            Self::Bool => ":bool",
            Self::Keyword => ":keyword",
            Self::Ints => "[:vector :int]",
            Self::Record => "[:map {:n :int :s :string}]",
        }
    }
}

/// Writes programs whose forms have the types that they are wanted to have, but for mistakes.
struct Writer<'c> {
    choices: std::slice::Iter<'c, u16>,
    vars: Vec<(String, Kind)>,
    functions: Vec<(String, Vec<Kind>, Kind)>,
    names: usize,
    /// One in so many arguments is wrong; none if 0.
    mistakes: usize,
    is_wrong: bool,
}

impl Writer<'_> {
    fn program(choices: &[u16], mistakes: usize) -> (String, bool) {
        let mut writer = Writer {
            choices: choices.iter(),
            vars: Vec::new(),
            functions: Vec::new(),
            names: 0,
            mistakes,
            is_wrong: false,
        };
        let mut text = String::new();
        for _ in 0..writer.below(3) {
            let name = writer.name("f");
            let params: Vec<_> =
                (0..1 + writer.below(2)).map(|_| (writer.name("p"), writer.kind())).collect();
            let result = writer.kind();
            writer.vars = params.clone();
            let body = writer.form(result, 3);
            writer.vars.clear();
            let shown: Vec<_> =
                params.iter().map(|(name, kind)| format!("{name} :- {}", kind.annotation())).collect();
            let gives = if writer.below(2) == 0 {
                format!(" :- {}", result.annotation())
            } else {
                String::new()
            };
            text.push_str(&format!("(defn {name} [{}]{gives} {body})\n", shown.join(", ")));
            writer.functions.push((name, params.iter().map(|param| param.1).collect(), result));
        }
        let kind = writer.kind();
        let last = writer.form(kind, 5);
        (text + &last, writer.is_wrong)
    }

    fn below(&mut self, n: usize) -> usize {
        usize::from(self.choices.next().copied().unwrap_or(0)) % n
    }

    fn kind(&mut self) -> Kind {
        KINDS[self.below(KINDS.len())]
    }

    fn name(&mut self, stem: &str) -> String {
        self.names += 1;
        format!("{stem}{}", self.names)
    }

    /// Returns an argument that has to be of this type, or the call fails.
    fn arg(&mut self, kind: Kind, depth: usize) -> String {
        if self.mistakes == 0 || self.below(self.mistakes) != 0 {
            return self.form(kind, depth);
        }
        let others: Vec<_> = KINDS.into_iter().filter(|other| *other != kind).collect();
        let other = others[self.below(others.len())];
        self.is_wrong = true;
        self.literal(other)
    }

    /// Returns a call of a function that has so many arguments, unless that is the mistake.
    fn called(&mut self, name: &str, kinds: &[Kind], depth: usize) -> String {
        let mut args: Vec<_> = kinds.iter().map(|&kind| self.arg(kind, depth)).collect();
        let mut name = name.to_owned();
        if self.mistakes > 0 && self.below(3 * self.mistakes) == 0 {
            self.is_wrong = true;
            match self.below(3) {
                // Of a row of comparisons only the first is sure to be made.
                0 if name != "<" => args.extend(["1".to_owned(), "2".to_owned(), "3".to_owned()]),
                0 | 1 => args.clear(),
                _ => name.push_str("-not"),
            }
        }
        format!("({name} {})", args.join(" "))
    }

    fn literal(&mut self, kind: Kind) -> String {
        let n = self.below(9);
        match kind {
            Kind::Int => n.to_string(),
            Kind::Text => format!("\"t{n}\""),
            Kind::Bool => n.is_multiple_of(2).to_string(),
            Kind::Keyword => format!(":k{n}"),
            Kind::Ints => format!("[{n} 1]"),
            Kind::Record => format!("{{:n {n} :s \"s\"}}"),
        }
    }

    fn form(&mut self, kind: Kind, depth: usize) -> String {
        use Kind::{Bool, Int, Ints, Keyword, Record, Text};
        let known: Vec<_> =
            self.vars.iter().filter(|var| var.1 == kind).map(|var| var.0.clone()).collect();
        if depth == 0 {
            let at = self.below(known.len() + 1);
            return known.get(at).cloned().unwrap_or_else(|| self.literal(kind));
        }
        let depth = depth - 1;
        match self.below(10) {
            0 => return self.literal(kind),
            1 if !known.is_empty() => return known[self.below(known.len())].clone(),
            2 | 3 => {
                let (name, bound) = (self.name("v"), self.kind());
                let mark = if self.below(2) == 0 {
                    format!(" :- {}", bound.annotation())
                } else {
                    String::new()
                };
                let value = self.form(bound, depth);
                self.vars.push((name.clone(), bound));
                let body = self.form(kind, depth);
                self.vars.pop();
                return format!("(let [{name}{mark} {value}] {body})");
            }
            4 => {
                let test = self.form(Bool, depth);
                return format!("(if {test} {} {})", self.form(kind, depth), self.form(kind, depth));
            }
            5 => {
                let fitting: Vec<_> =
                    self.functions.iter().filter(|function| function.2 == kind).cloned().collect();
                if !fitting.is_empty() {
                    let (name, params, _) = fitting[self.below(fitting.len())].clone();
                    return self.called(&name, &params, depth);
                }
            }
            6 => {
                let (name, bound) = (self.name("m"), self.kind());
                let value = self.form(bound, depth);
                self.vars.push((name.clone(), bound));
                let body = self.form(kind, depth);
                self.vars.pop();
                return format!("(match {value} {name} {body})");
            }
            _ => {}
        }
        match (kind, self.below(4)) {
            (Int, 0) => self.called("inc", &[Int], depth),
            (Int, 1) => self.called("+", &[Int, Int], depth),
            (Int, 2) => self.called("count", &[Ints], depth),
            (Int, _) => format!("(:n {})", self.form(Record, depth)),
            (Text, 0) => self.called("upper", &[Text], depth),
            (Text, 1) => self.called("substring", &[Text, Int], 0),
            (Text, 2) => format!("(str {} {})", self.form(Int, depth), self.form(Keyword, depth)),
            (Text, _) => self.called("replace", &[Text, Text, Text], depth),
            (Bool, 0) => self.called("<", &[Int, Int], depth),
            (Bool, 1) => self.called("starts-with?", &[Text, Text], depth),
            (Bool, 2) => self.called("even?", &[Int], depth),
            (Bool, _) => format!("(not {})", self.form(Bool, depth)),
            (Keyword, _) => format!("(keyword {})", self.form(Text, depth)),
            (Ints, 0) => format!("(map inc {})", self.form(Ints, depth)),
            (Ints, 1) => {
                format!("(filter (fn [x] (> x {})) {})", self.form(Int, depth), self.form(Ints, depth))
            }
            (Ints, 2) => {
                format!("(vec (for [x {}] (+ x {})))", self.form(Ints, depth), self.form(Int, depth))
            }
            (Ints, _) => format!("[{} {}]", self.form(Int, depth), self.form(Int, depth)),
            (Record, 0) => format!("(assoc {} :n {})", self.form(Record, depth), self.form(Int, depth)),
            (Record, _) => format!("{{:n {} :s {}}}", self.form(Int, depth), self.form(Text, depth)),
        }
    }
}

fn is_mistake(kind: &str) -> bool {
    matches!(kind, "type" | "arity" | "undefined")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn correct_programs_are_accepted(choices in prop::collection::vec(any::<u16>(), 0..120)) {
        let (program, _) = Writer::program(&choices, 0);
        let found = errors(&program);
        prop_assert!(found.is_empty(), "{program}\n{}", found[0]);
        if let Err(failure) = eval_pure(&program) {
            prop_assert!(!is_mistake(failure.kind()), "{program}\n{failure}");
        }
    }

    #[test]
    fn accepted_programs_make_no_type_errors(
        choices in prop::collection::vec(any::<u16>(), 0..120),
        mistakes in 2..12_usize,
    ) {
        let (program, is_wrong) = Writer::program(&choices, mistakes);
        let found = errors(&program);
        prop_assert!(found.is_empty() || is_wrong, "{program}\n{}", found[0]);
        match eval_pure(&program) {
            Err(failure) if is_mistake(failure.kind()) => {
                prop_assert!(!found.is_empty(), "{program}\n{failure}");
            }
            _ => {}
        }
    }
}
