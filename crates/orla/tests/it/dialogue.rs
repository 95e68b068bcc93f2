//! `orla rtfs` at a terminal: input and output.

use orla_e2e::{Terminal, World, eventually};

use crate::{sh, world};

const UP: &str = "\u{1b}[A";
const CTRL_C: &str = "\u{3}";
const CTRL_D: &str = "\u{4}";

/// Returns a dialogue that has begun, with what was shown until then.
fn dialogue(world: World) -> (Terminal, usize) {
    let terminal = world.env("TERM", "xterm").at_terminal(&["rtfs"]);
    let at = terminal.shows(0, "rtfs> ");
    (terminal, at)
}

fn plain() -> World {
    world().env("NO_COLOR", "1")
}

/// Enters lines one after the other, and waits for the answer of each.
fn says(terminal: &mut Terminal, mut at: usize, rows: &[(&str, &str)]) -> usize {
    for (line, answer) in rows {
        terminal.enters(line);
        at = terminal.shows(at, "\n");
        at = terminal.shows(at, answer);
        at = terminal.shows(at, "rtfs> ");
    }
    at
}

#[test]
fn definitions_persist_and_the_last_values_have_names() {
    let world = plain().file("words.rtfs", "(defn hello [name] (str \"Hello, \" name))");
    let (mut terminal, at) = dialogue(world);
    let at = says(
        &mut terminal,
        at,
        &[
            ("(+ 40 2)", "42\r\n"),
            ("(* 2 *1)", "84\r\n"),
            ("[*1 *2]", "[84 42]\r\n"),
            ("(defn twice \"Doubles.\" [x] (* 2 x))", "#<function>"),
            ("(defmacro both [a b] `(do ~a ~b))", "both"),
            ("(deftype-alias Age [:and :int [:>= 0]])", "\r\n"),
            ("(import words :as w)", "nil\r\n"),
            ("[(both 1 (twice 4)) (is? -1 Age) (w/hello \"Ada\")]", "[8 false \"Hello, Ada\"]\r\n"),
            ("(quot 1 0)", "arithmetic"),
            ("(:kind *e)", ":arithmetic\r\n"),
            ("(twce 1)", "did you mean `twice`?"),
            (":doc twice", "(twice x)\r\nDoubles."),
            (":doc map", "(map f coll …)\r\n"),
            (":doc math.power", "An integer to a natural power"),
            (":type (map twice [1 2])", "[:vector :int]\r\n"),
            (":type :math.power", "[:fn ["),
            (":type (call :math.power {})", ":number\r\n"),
            (":time (twice 2)", "1 step\r\n"),
            (":find power", ":math.power"),
            (":load words.rtfs", "#<function>"),
            ("(hello \"Bob\")", "\"Hello, Bob\"\r\n"),
        ],
    );
    assert!(!terminal.shown().contains("\u{1b}[3"), "NO_COLOR: {:?}", terminal.shown());
    // An entry continues while a form is open, and is recalled as a whole.
    terminal.enters("(twice");
    terminal.enters("  21)");
    let at = terminal.shows(at, "42\r\n");
    let at = terminal.shows(at, "rtfs> ");
    terminal.types(UP);
    let at = terminal.shows(at, "21)");
    terminal.enters("");
    let at = terminal.shows(at, "42\r\n");
    terminal.shows(at, "rtfs> ");
    terminal.types(CTRL_D);
    assert!(terminal.ends().success());
    let history = terminal.read(".local/state/orla/rtfs_history");
    assert!(history.contains("(hello \"Bob\")"), "{history}");
}

#[test]
fn names_capabilities_and_what_they_take_are_completed() {
    let (mut terminal, at) = dialogue(plain());
    let mut at = at;
    for (typed, completed) in [
        ("(def temperature 20)\r", "20\r\n"),
        ("(inc temper\t)\r", "21\r\n"),
        ("(call :math.pow\t {:bas\t 2 :exp\t 10})\r", "1024\r\n"),
        ("(string-up\t \"a\")\r", "\"A\"\r\n"),
    ] {
        terminal.types(typed);
        at = terminal.shows(at, completed);
        at = terminal.shows(at, "rtfs> ");
    }
    // Several that fit are shown, with their types.
    terminal.types("(call :math.power {\t\t");
    let at = terminal.shows(at, ":base number");
    terminal.shows(at, ":exponent number");
}

#[test]
fn ctrl_c_ends_what_runs_and_its_calls_and_not_the_dialogue() {
    let world = plain().tool("slow", sh("echo $$ >> started; exec sleep 600"));
    let (mut terminal, at) = dialogue(world);
    terminal.enters("(parallel (call :slow {}) (call :slow {}))");
    // A process that is just being started still belongs to the terminal's group, and dies of Ctrl-C itself.
    eventually("both tools run", || {
        terminal.path("started").exists() && terminal.read("started").lines().count() == 2
    });
    assert!(!terminal.tool_processes().is_empty());
    terminal.interrupts();
    let at = terminal.shows(at, "cancelled");
    let at = terminal.shows(at, "rtfs> ");
    eventually("no tool is left", || terminal.tool_processes().is_empty());
    // A pure computation ends as well, and an unfinished entry is dropped.
    terminal.enters("(loop [i 0] (recur (inc i)))");
    let at = terminal.shows(at, "\n");
    terminal.interrupts();
    let at = terminal.shows(at, "rtfs> ");
    terminal.types(&format!("(+ 1{CTRL_C}"));
    let at = terminal.shows(at, "rtfs> ");
    says(&mut terminal, at, &[("(+ 1 1)", "2\r\n")]);
    terminal.enters(":quit");
    assert!(terminal.ends().success());
}

#[test]
fn colours_are_shown_at_a_terminal_and_brackets_with_their_partner() {
    let (mut terminal, at) = dialogue(world());
    terminal.types("(str :k \"a\")");
    let at = terminal.shows(at, "\u{1b}[36m:k\u{1b}[0m");
    terminal.shows(at, "\u{1b}[1;7m)\u{1b}[0m");
    terminal.types("\r");
    terminal.shows(at, "\u{1b}[32m\":ka\"\u{1b}[0m");
    terminal.types("(str ");
    terminal.shows(at, "\u{1b}[2mx …\u{1b}[0m");
}

#[test]
fn without_a_terminal_there_is_no_prompt_and_no_colour() {
    let ran = world().run_with_input(&["rtfs"], b"(+ 1\n 1)");
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "2\n"), "{}", ran.all());
    assert_eq!(ran.stderr, "");
}
