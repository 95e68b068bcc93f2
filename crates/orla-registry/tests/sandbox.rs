//! Every built-in runs under a filter that ends the process at any system call but those for memory, for locks
//! and for the result. The test is a program of its own, because the filter is the whole process's: it plays
//! the test and those who are confined.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "all of this is a test, without the harness, of what must not be done elsewhere"
)]

fn main() {
    #[cfg(target_os = "linux")]
    linux::main();
    #[cfg(not(target_os = "linux"))]
    println!("sandbox: there are no such filters here");
}

#[cfg(target_os = "linux")]
mod linux {
    use std::collections::BTreeMap;
    use std::env;
    use std::hash::RandomState;
    use std::io::Write as _;
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Command, Output, exit};

    use orla_registry::CapabilityRegistry;
    use rtfs::json::value_from_json;
    use rtfs::{Map, Value};
    use seccompiler::{
        SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
        apply_filter,
    };

    /// The signal that ends a process whose system call is refused.
    const SIGSYS: i32 = 31;

    pub(super) fn main() {
        match env::args().nth(1).as_deref() {
            Some("--play-builtins") => run_every_builtin(),
            Some("--play-reader") => read_a_file(),
            // A list is what test runners ask for first.
            Some("--list") => println!("sandbox: test"),
            _ => {
                every_builtin_does_without_system_calls();
                the_filter_bites();
            }
        }
    }

    fn every_builtin_does_without_system_calls() {
        let output = play("--play-builtins");
        let (out, err) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{:?} after {out}{err}", output.status);
        let count = CapabilityRegistry.builtins().count();
        assert!(out.ends_with(&format!("{count} built-ins\n")), "{out}");
    }

    fn the_filter_bites() {
        let output = play("--play-reader");
        assert_eq!(output.status.signal(), Some(SIGSYS), "{:?}", output.status);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "begins\nconfined\n");
    }

    fn play(role: &str) -> Output {
        Command::new(env::current_exe().unwrap()).arg(role).output().unwrap()
    }

    fn run_every_builtin() -> ! {
        let junk: Vec<Value> =
            ["{}", "[]", r#""x""#, "-1", "1e300", "null", r#"[{"a":"x"},[1]]"#, "true"]
                .iter()
                .map(|json| value_from_json(json).unwrap())
                .collect();
        confine();
        let mut count = 0;
        for builtin in CapabilityRegistry.builtins() {
            say(builtin.name);
            for example in builtin.examples {
                builtin.call(&value_from_json(example.input).unwrap()).unwrap();
            }
            // And what fails, whose errors are put together.
            for value in &junk {
                let mut input = Map::new();
                for parameter in builtin.parameters {
                    input.insert(Value::keyword(parameter.name), value.clone()).unwrap();
                }
                let _ = builtin.call(&input.into());
                let _ = builtin.call(value);
            }
            count += 1;
        }
        say(&format!("{count} built-ins"));
        exit(0)
    }

    fn read_a_file() -> ! {
        confine();
        say("confined");
        let _ = std::fs::read("/dev/null");
        say("a file was read");
        exit(0)
    }

    fn say(line: &str) {
        let mut out = std::io::stdout();
        writeln!(out, "{line}").unwrap();
        out.flush().unwrap();
    }

    /// From here on there are memory, locks, standard output and the end.
    fn confine() {
        // A thread asks once for the seeds of the standard library's maps; they are no affair of a built-in.
        drop(RandomState::new());
        say("begins"); // the buffer of standard output is made
        let output = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, 1).unwrap();
        let to_output = vec![SeccompRule::new(vec![output]).unwrap()];
        let mut allowed: BTreeMap<i64, Vec<SeccompRule>> =
            numbers::MEMORY_AND_LOCKS.iter().map(|number| (*number, Vec::new())).collect();
        allowed.insert(numbers::WRITE, to_output);
        let filter = SeccompFilter::new(
            allowed,
            SeccompAction::KillProcess,
            SeccompAction::Allow,
            env::consts::ARCH.try_into().unwrap(),
        );
        let program: seccompiler::BpfProgram = filter.unwrap().try_into().unwrap();
        apply_filter(&program).unwrap();
    }

    #[cfg(target_arch = "x86_64")]
    mod numbers {
        pub(super) const WRITE: i64 = 1;
        /// mmap, mprotect, munmap, brk, mremap, madvise, sigaltstack, futex, exit, exit_group
        pub(super) const MEMORY_AND_LOCKS: [i64; 10] = [9, 10, 11, 12, 25, 28, 131, 202, 60, 231];
    }

    #[cfg(not(target_arch = "x86_64"))]
    mod numbers {
        // As the generic table has them.
        pub(super) const WRITE: i64 = 64;
        /// mmap, mprotect, munmap, brk, mremap, madvise, sigaltstack, futex, exit, exit_group
        pub(super) const MEMORY_AND_LOCKS: [i64; 10] = [222, 226, 215, 214, 216, 233, 132, 98, 93, 94];
    }
}
