//! What is called in a comparison: a program that is started for each call, a program behind its pipes, or a server.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use super::Effort;
use super::client;
use super::cores::Cores;
use super::report::Measurement;
use super::stats::{Round, median, spread};
use crate::server::{Server, processor_time};

/// Calls for a while, with so many clients at once.
type Load = Box<dyn FnMut(usize, Duration) -> Result<Round, String>>;

/// How many times as long as it should a round of a foreign side may take.
const TOO_SLOW: u32 = 10;

/// One side of a comparison.
pub(super) struct Side {
    name: String,
    load: Load,
    /// The process that does the work.
    pid: u32,
    /// Whether the load itself runs on the servers' cores.
    is_own_work: bool,
    max_clients: usize,
    /// Whether the others are measured without it when it fails.
    may_fail: bool,
}

impl Side {
    /// Returns a program that is started for each call, with this on its standard input.
    pub(super) fn spawning(name: &str, command: Vec<OsString>, input: &'static str) -> Self {
        let load = move |clients, time| spawn(&command, input, clients, time);
        Self {
            name: name.to_owned(),
            load: Box::new(load),
            pid: std::process::id(),
            is_own_work: true,
            max_clients: usize::MAX,
            may_fail: false,
        }
    }

    /// Returns a program behind its own pipes. `line` writes the call with an id, `words` stand in each
    /// answer.
    pub(super) fn piped(
        name: &str,
        mut pipes: Pipes,
        line: impl Fn(usize) -> String + 'static,
        words: &'static str,
    ) -> Self {
        let pid = pipes.child.id();
        let load = move |clients, time| pipes.round(clients, &line, words, time);
        Self {
            name: name.to_owned(),
            load: Box::new(load),
            pid,
            is_own_work: false,
            max_clients: usize::MAX,
            may_fail: false,
        }
    }

    /// Returns a server whose answers to this request are the same bytes each time. It is called by the
    /// cheapest client there is.
    pub(super) fn served(name: &str, server: Server, request: Vec<u8>) -> Self {
        Self::server(name, server, vec![request], client::polled)
    }

    /// Like `served`, with a session for each client, which writes its own requests.
    pub(super) fn served_to_sessions(name: &str, server: Server, requests: Vec<Vec<u8>>) -> Self {
        Self::server(name, server, requests, client::polled)
    }

    /// Returns a server whose answers differ, or whose work is so large that a thread for each client
    /// does not matter.
    pub(super) fn served_to_threads(name: &str, server: Server, request: Vec<u8>) -> Self {
        Self::server(name, server, vec![request], client::threads)
    }

    fn server(
        name: &str,
        server: Server,
        requests: Vec<Vec<u8>>,
        load: impl Fn(&str, &[Vec<u8>], usize, Duration) -> Result<Round, String> + 'static,
    ) -> Self {
        let pid = server.pid();
        let load = move |clients, time| load(&server.address, &requests, clients, time);
        Self {
            name: name.to_owned(),
            load: Box::new(load),
            pid,
            is_own_work: false,
            max_clients: usize::MAX,
            may_fail: false,
        }
    }

    /// Leaves it out where more clients call, and from its first failure on.
    pub(super) fn foreign(self, max_clients: usize) -> Self {
        Self { max_clients, may_fail: true, ..self }
    }

    /// One round, and the processor time of its calls.
    fn round(
        &mut self,
        clients: usize,
        time: Duration,
        cores: Option<&Cores>,
    ) -> Result<(Round, f64), String> {
        if let Some(cores) = cores.filter(|_| !self.is_own_work) {
            cores.call()?;
        }
        let before = processor_time(self.pid)?;
        let round = (self.load)(clients, time).map_err(|problem| format!("{}: {problem}", self.name))?;
        let took = processor_time(self.pid)?.saturating_sub(before);
        if let Some(cores) = cores {
            cores.serve()?;
        }
        let each = took.as_secs_f64() * 1e6 / round.latencies.len().max(1) as f64;
        Ok((round, each))
    }
}

/// Sides that take turns, and how many clients call them.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) clients: &'static [usize],
    /// The first one is what the others are compared with.
    pub(super) sides: Vec<Side>,
}

impl Row {
    /// Measures all sides in interleaved rounds: what else the machine does then hits all of them alike. Each side is measured as
    /// often after the one before it as after the one behind it: caches and sleeping cores are as the last one left them. What
    /// failed and was left out goes to `skipped`.
    pub(super) fn measure(
        mut self,
        effort: Effort,
        cores: Option<&Cores>,
        skipped: &mut Vec<String>,
    ) -> Result<Vec<Measurement>, String> {
        let mut measurements = Vec::new();
        for &clients in self.clients {
            let mut sides: Vec<&mut Side> =
                self.sides.iter_mut().filter(|side| clients <= side.max_clients).collect();
            let mut rounds = vec![Vec::new(); sides.len()];
            let mut order: Vec<usize> = (0..sides.len()).collect();
            for _ in 0..effort.rounds {
                for &at in &order {
                    let (side, rounds) = (&mut sides[at], &mut rounds[at]);
                    if side.max_clients == 0 {
                        continue;
                    }
                    match side.round(clients, effort.round, cores) {
                        Ok((round, _)) if side.may_fail && round.elapsed > effort.round * TOO_SLOW => {
                            side.max_clients = 0;
                            skipped.push(format!("{}, {}: it does not keep up", self.name, side.name));
                        }
                        Ok((round, cpu)) => {
                            rounds.push([round.micros(50), round.micros(99), round.rate(), cpu]);
                        }
                        Err(problem) if side.may_fail => {
                            side.max_clients = 0;
                            skipped.push(format!("{}, {clients} clients: {problem}", self.name));
                        }
                        Err(problem) => return Err(problem),
                    }
                }
                order.reverse();
                let first = order.len().min(1);
                order.rotate_left(first);
            }
            let measured = sides.iter().zip(rounds).filter(|(side, _)| side.max_clients > 0);
            measurements.extend(measured.map(|(side, rounds)| {
                let values = |index: usize| rounds.iter().map(|round| round[index]).collect::<Vec<_>>();
                Measurement {
                    row: self.name.to_owned(),
                    side: side.name.clone(),
                    clients,
                    p50_us: median(values(0)),
                    p99_us: median(values(1)),
                    per_s: median(values(2)),
                    cpu_us: Some(median(values(3))),
                    spread: spread(&values(0)),
                }
            }));
        }
        Ok(measurements)
    }
}

/// Starts a program for each call, writes its input, reads its output, and waits for its end.
fn spawn(command: &[OsString], input: &str, clients: usize, time: Duration) -> Result<Round, String> {
    let [program, arguments @ ..] = command else { return Err("no program".to_owned()) };
    let started = Instant::now();
    let latencies = client::side_by_side(clients, || {
        let mut latencies = Vec::new();
        while started.elapsed() < time {
            let asked = Instant::now();
            let mut child = Command::new(program)
                .args(arguments)
                .stdin(if input.is_empty() { Stdio::null() } else { Stdio::piped() })
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .map_err(|err| format!("{}: {err}", program.display()))?;
            if let Some(mut stdin) = child.stdin.take() {
                stdin.write_all(input.as_bytes()).map_err(|err| err.to_string())?;
            }
            let output = child.wait_with_output().map_err(|err| err.to_string())?;
            latencies.push(asked.elapsed());
            if !output.status.success() || output.stdout.is_empty() {
                return Err(format!("{} gave no answer", program.display()));
            }
        }
        Ok(latencies)
    })?;
    Ok(Round { latencies, elapsed: started.elapsed() })
}

/// A program's pipes, without anything between.
pub(super) struct Pipes {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Pipes {
    /// Starts a program that waits to be spoken to.
    pub(super) fn start(program: &Path) -> Result<Self, String> {
        let mut child = Command::new(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|err| format!("{}: {err}", program.display()))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("no pipes".to_owned());
        };
        Ok(Self { child, input, output: BufReader::new(output) })
    }

    /// Starts a capsule and waits for its first line.
    pub(super) fn greeted(program: &Path) -> Result<Self, String> {
        let mut pipes = Self::start(program)?;
        pipes.line()?;
        Ok(pipes)
    }

    /// Writes a line and returns the line that answers it.
    pub(super) fn ask(&mut self, line: &str) -> Result<String, String> {
        self.input.write_all(line.as_bytes()).map_err(|err| err.to_string())?;
        self.line()
    }

    fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        match self.output.read_line(&mut line).map_err(|err| err.to_string())? {
            0 => Err("the program ended without an answer".to_owned()),
            _ => Ok(line),
        }
    }

    /// Keeps so many calls under way; the program answers in their order.
    fn round(
        &mut self,
        clients: usize,
        line: &dyn Fn(usize) -> String,
        words: &str,
        time: Duration,
    ) -> Result<Round, String> {
        let mut latencies = Vec::with_capacity(1 << 20);
        let mut under_way = std::collections::VecDeque::with_capacity(clients);
        let started = Instant::now();
        let mut id = 0;
        let mut send = |input: &mut ChildStdin| {
            id += 1;
            let call = line(id);
            let asked = Instant::now();
            input.write_all(call.as_bytes()).map(|()| asked).map_err(|err| err.to_string())
        };
        for _ in 0..clients {
            under_way.push_back(send(&mut self.input)?);
        }
        while let Some(asked) = under_way.pop_front() {
            let mut answer = String::new();
            self.output.read_line(&mut answer).map_err(|err| err.to_string())?;
            latencies.push(asked.elapsed());
            if !answer.contains(words) {
                return Err(format!("unexpected answer: {answer}"));
            }
            if started.elapsed() < time {
                under_way.push_back(send(&mut self.input)?);
            }
        }
        Ok(Round { latencies, elapsed: started.elapsed() })
    }
}

impl Drop for Pipes {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
