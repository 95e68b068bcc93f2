//! The task that owns a capsule's process (RFC 2 §7, §8).
//!
//! # How it works
//!
//! One task per capsule owns the process, its pipes and its timer. It waits for the next thing that
//! happens, tells [`state::step`](super::state::step) or the [`Conversation`], and does what they say;
//! it decides nothing by itself. Reading never waits for writing: both are tried without blocking, so a
//! capsule that stops reading still has its answers read, and a large message blocks nobody else.
//!
//! Handles talk to the task through a bounded queue of requests, wishes of which the latest counts, and
//! a list of requests that nobody waits for any more; that list is never full, as a request is in it once.
//!
//! # Deliberately absent
//!
//! Nothing here knows what a tool means, and nothing is sent twice: a call that was sent to a process
//! that ended is answered with an error.

mod files;
mod pipes;
mod report;

use std::collections::VecDeque;
use std::ffi::OsString;
use std::future::pending;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::BytesMut;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use orla_marketplace::{ClientError, JsonText, seconds};
use orla_mcp::Fault;
use orla_mcp::conversation::Request;
use orla_mcp::framing::Lines;
use rustix::process::Signal;
use tokio::io::Interest;
use tokio::net::unix::pipe;
use tokio::sync::{OwnedMutexGuard, mpsc};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::definition::Definition;
use super::hang::Silence;
use super::process::Process;
use super::shared::{Cancelled, PendingCommands, Shared};
use super::state::{Effect, Event, ReloadLoop, State, Then, step};
use super::talk::Talk;
use crate::child::{NO_PYTHON_CACHE, Program, Variables};
use crate::watch::{Change, Watcher};
use files::{Watching, next_change};

/// The most requests that wait for a process.
const MAX_WAITING: usize = 1024;
/// With more than this to be written, no further request is taken.
const MAX_UNWRITTEN: usize = 1024 * 1024;
/// How long a plugin may go on with a call that was cancelled.
const CANCEL_GRACE: Duration = Duration::from_secs(2);
/// How many times as long it may, while it goes on answering other calls.
const MAX_CANCEL_EXTENSIONS: u32 = 15;
/// How often a process that calls wait for is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How many requests are taken in a row before others have their turn.
const MAX_BATCH: usize = 64;

/// The task's ends of what its handles hold.
#[derive(Debug)]
pub(crate) struct Inbox {
    pub(crate) requests: mpsc::Receiver<Request>,
    /// Cancelled when the capsule is not needed any more.
    pub(crate) stop: CancellationToken,
}

/// The answer of a client to a question of the process, with the question's id.
type Answering = Pin<Box<dyn Future<Output = (JsonText, Result<JsonText, ClientError>)> + Send>>;

/// A capsule as its task sees it.
pub(crate) struct Task {
    shared: Arc<Shared>,
    inbox: Inbox,
    definition: Arc<Definition>,
    state: State,
    process: Option<Process>,
    /// The environment of the newest process.
    variables: Option<Variables>,
    talk: Talk,
    lines: Lines,
    /// The beginning of a line of standard error.
    stderr: BytesMut,
    last_words: String,
    waiting: VecDeque<Request>,
    /// Calls of a plugin that nobody waits for any more, with the time until which it may go on with them.
    withdrawn: VecDeque<Withdrawn>,
    /// Questions of the process that clients have not answered.
    questions: FuturesUnordered<Answering>,
    /// Why the process is about to end, or has ended.
    failure: Option<String>,
    /// When [`Event::Timer`] comes.
    timer: Option<Instant>,
    /// Until when calls wait for the opening of MCP.
    opening: Option<Instant>,
    /// When a process that has closed one of its streams is ended, and what is said of that.
    stream_closed: Option<(Instant, &'static str)>,
    /// What is known of its silence.
    silence: Silence,
    /// When it is next looked at while calls wait for it.
    look: Option<Instant>,
    /// When a reload that was held back is done.
    held: Option<Instant>,
    reloads: ReloadLoop,
    watching: Option<Watching>,
    watch_failed: bool,
    /// Whether some process of this capsule has spoken MCP, so that it is worth waiting for.
    speaks_mcp: Option<bool>,
    /// Held from the first process on: no other task of this name has one.
    turn: Option<OwnedMutexGuard<()>>,
    born: Instant,
    starts: u64,
    /// When the newest process was started.
    started: SystemTime,
}

/// What the task was woken by.
enum Woken {
    Stop,
    Request(Request),
    News,
    Readable,
    Writable,
    InputClosed,
    Stderr,
    Answered(JsonText, Result<JsonText, ClientError>),
    Exited,
    Changed(Change),
    Timer,
}

impl Task {
    pub(crate) fn new(shared: Arc<Shared>, definition: Arc<Definition>, inbox: Inbox) -> Self {
        // Nobody hears this one: each process has its own.
        let talk = Talk::new(&definition, &shared);
        Self {
            shared,
            inbox,
            definition,
            state: State::Created,
            process: None,
            variables: None,
            talk,
            lines: Lines::default(),
            stderr: BytesMut::new(),
            last_words: String::new(),
            waiting: VecDeque::new(),
            withdrawn: VecDeque::new(),
            questions: FuturesUnordered::new(),
            failure: None,
            timer: None,
            opening: None,
            stream_closed: None,
            silence: Silence::default(),
            look: None,
            held: None,
            reloads: ReloadLoop::default(),
            watching: None,
            watch_failed: false,
            speaks_mcp: None,
            turn: None,
            born: Instant::now(),
            starts: 0,
            started: SystemTime::now(),
        }
    }

    /// Serves until the capsule is not needed any more and its process is gone.
    pub(crate) async fn run(mut self) {
        let mut stopping = false;
        while !stopping || self.state.has_process() {
            let woken = self.next(stopping).await;
            match woken {
                Woken::Stop => {
                    stopping = true;
                    self.happened(Event::Stop, "it is not needed any more").await;
                }
                Woken::Request(request) => {
                    self.yield_for_batch().await;
                    self.requested(request).await;
                }
                Woken::News => {
                    self.wished().await;
                    self.cancelled().await;
                }
                Woken::Readable => self.read().await,
                Woken::Writable => {}
                Woken::InputClosed => self.input_closed(),
                Woken::Stderr => self.read_stderr(),
                Woken::Answered(id, answer) => self.talk.answer_question(&id, answer),
                Woken::Exited => self.exited().await,
                Woken::Changed(change) => self.changed(&change).await,
                Woken::Timer => self.timer().await,
            }
            self.send_waiting();
            self.write();
            self.schedule_look();
        }
        self.waiting.drain(..).for_each(|request| refuse(request, "it was stopped"));
        self.inbox.requests.close();
        while let Ok(request) = self.inbox.requests.try_recv() {
            refuse(request, "it was stopped");
        }
    }

    /// The next thing that happens. Nothing is lost when a branch is dropped for another.
    async fn next(&mut self, stopping: bool) -> Woken {
        let Self { inbox, process, talk, watching, waiting, withdrawn, questions, shared, .. } = self;
        let process = process.as_ref();
        let takes = waiting.len() < MAX_WAITING && talk.unwritten().len() < MAX_UNWRITTEN;
        let writes = !talk.unwritten().is_empty();
        let timer = [
            self.timer,
            self.opening,
            self.stream_closed.map(|(at, _)| at),
            self.held,
            self.look,
            withdrawn.front().map(|one| one.until),
        ];
        let timer = timer.into_iter().flatten().min();
        tokio::select! {
            () = inbox.stop.cancelled(), if !stopping => Woken::Stop,
            Some(request) = inbox.requests.recv(), if takes => Woken::Request(request),
            () = shared.news.notified() => Woken::News,
            () = readable(process.and_then(|process| process.stdout.as_ref())) => Woken::Readable,
            () = writable(process.and_then(|process| process.stdin.as_ref())), if writes => Woken::Writable,
            () = input_closed(process.and_then(|process| process.stdin.as_ref())) => Woken::InputClosed,
            () = readable(process.and_then(|process| process.stderr.as_ref())) => Woken::Stderr,
            Some((id, answer)) = questions.next(), if !questions.is_empty() => Woken::Answered(id, answer),
            () = exited(process) => Woken::Exited,
            (watcher, change) = changed(watching.as_mut()), if !stopping => {
                *watching = Some(next_change(watcher));
                Woken::Changed(change)
            }
            () = until(timer) => Woken::Timer,
        }
    }

    /// Lets those come that are about to, where other calls are under way: what is written together costs the
    /// process one awakening. A call that is alone does not wait.
    async fn yield_for_batch(&mut self) {
        if self.talk.in_flight() > 0 && self.inbox.requests.len() < MAX_BATCH {
            yield_now().await;
        }
    }

    /// Takes an event, does what follows, and says so.
    async fn happened(&mut self, event: Event, cause: &str) {
        let mut next = Some((event, cause.to_owned()));
        while let Some((event, cause)) = next.take() {
            let policy = self.shared.policy();
            let (state, effects) = step(self.state, event, &policy);
            let before = std::mem::replace(&mut self.state, state);
            if state != before {
                self.timer = state
                    .timeout(self.definition.startup_timeout(), &policy, random())
                    .map(|timeout| Instant::now() + timeout);
                self.log(before, &cause);
                // Before anyone hears of the effects: whoever is told that it crashed sees it so.
                self.publish();
            }
            for effect in effects {
                if let Some(reason) = self.act(*effect, &cause).await {
                    next = Some((Event::Exited, reason));
                }
            }
            match state {
                State::Draining if self.talk.in_flight() == 0 => {
                    next = Some((Event::Drained, "no call is in flight".to_owned()));
                }
                State::Starting { .. } if self.process.is_some() && self.talk.is_ready_at_once() => {
                    let held = self.shared.may_start(&self.definition, Some(self.started)).await;
                    next = Some(match held {
                        Ok(()) => (Event::Hello, "it runs".to_owned()),
                        Err(reason) => {
                            self.failure.get_or_insert_with(|| reason.clone());
                            (Event::Broken, reason)
                        }
                    });
                }
                _ => {}
            }
            if !effects.is_empty() {
                self.publish();
            }
        }
    }

    /// Does one effect. A process that could not be started has ended, for the reason that is given.
    async fn act(&mut self, effect: Effect, cause: &str) -> Option<String> {
        match (effect, &mut self.process) {
            (Effect::Spawn, _) => return self.spawn().await,
            (Effect::CloseInput, Some(process)) => process.stdin = None,
            (Effect::Terminate, Some(process)) => {
                process.signal(Signal::TERM);
                // A stopped process would sleep through it.
                process.signal(Signal::CONT);
            }
            (Effect::Kill, Some(process)) => process.signal(Signal::KILL),
            (Effect::FailSent, _) => {
                let reason = self.failure.clone().unwrap_or_else(|| cause.to_owned());
                self.talk.fail(&format!("it ended during the call: {reason}"));
            }
            (Effect::FailWaiting, _) => {
                let reason = self.stopped_because();
                self.waiting.drain(..).for_each(|request| refuse(request, &reason));
            }
            // What waits is sent once MCP is open.
            (Effect::Send | Effect::CloseInput | Effect::Terminate | Effect::Kill, _) => {}
        }
        None
    }

    async fn spawn(&mut self) -> Option<String> {
        self.failure = None;
        self.opening = None;
        self.stream_closed = None;
        self.silence = Silence::default();
        self.lines = Lines::default();
        self.stderr = BytesMut::new();
        self.last_words = String::new();
        self.questions = FuturesUnordered::new();
        self.talk = Talk::new(&self.definition, &self.shared);
        self.withdrawn = VecDeque::new();
        self.starts += 1;
        if self.turn.is_none() {
            self.turn = Some(Arc::clone(&self.shared.turn).lock_owned().await);
        }
        self.watch();
        self.started = SystemTime::now();
        if let Err(reason) = self.shared.may_start(&self.definition, None).await {
            self.failure = Some(reason.clone());
            return Some(reason);
        }
        let started = match self.launch() {
            Ok((program, args)) => {
                self.variables = Some(program.variables(&self.shared.instance.environment()));
                Process::start(Arc::new(program), args, Arc::clone(&self.shared.instance)).await
            }
            Err(err) => Err(err),
        };
        match started {
            Ok(process) => {
                self.process = Some(process);
                None
            }
            Err(err) => {
                let reason = format!("it could not start: {}", self.definition.explain(&err));
                self.failure = Some(reason.clone());
                Some(reason)
            }
        }
    }

    /// Takes a request, and those that came with it, so that they are written together.
    async fn requested(&mut self, request: Request) {
        self.reloads.called();
        let mut next = Some(request);
        for _ in 0..MAX_BATCH {
            let Some(request) = next.take().or_else(|| self.inbox.requests.try_recv().ok()) else {
                break;
            };
            // Whoever calls after a load calls what was loaded.
            self.wished().await;
            self.want().await;
            self.wait(request);
        }
    }

    fn wait(&mut self, request: Request) {
        if matches!(self.state, State::Stopped | State::Ending { then: Then::Stop, .. }) {
            refuse(request, &self.stopped_because());
        } else if self.waiting.len() >= MAX_WAITING {
            let busy = Fault::Busy { sent: self.talk.in_flight(), waiting: self.waiting.len() };
            let _ = request.reply.send(Err(busy));
        } else {
            self.waiting.push_back(request);
        }
    }

    async fn want(&mut self) {
        if self.state == State::Created && !self.inbox.stop.is_cancelled() {
            self.happened(Event::Wanted, "it is needed").await;
        }
    }

    async fn wished(&mut self) {
        let PendingCommands { want, loaded, subscriptions } = self.shared.take_wishes();
        if subscriptions {
            self.talk.subscriptions(&self.shared.subscriptions());
        }
        match loaded {
            Some(definition) if *definition != *self.definition => {
                self.replace(definition);
                self.happened(Event::Changed, "what it is started from has changed").await;
            }
            Some(_) if self.has_another_environment() => {
                self.happened(Event::Changed, "its environment has changed").await;
            }
            Some(_) => self.happened(Event::Revived, "the configuration was loaded anew").await,
            None => {}
        }
        if want {
            self.want().await;
            if self.state == State::Stopped {
                self.publish();
            }
        }
    }

    /// What the next process is started from.
    fn launch(&self) -> io::Result<(Program, Vec<OsString>)> {
        let (program, args) = self.definition.launch()?;
        let is_guarded = self.shared.is_guarded();
        Ok((if is_guarded { program.with_variable(NO_PYTHON_CACHE) } else { program }, args))
    }

    /// Whether the next process would get another environment than the newest one did.
    fn has_another_environment(&self) -> bool {
        let Some(variables) = &self.variables else { return false };
        let environment = self.shared.instance.environment();
        self.launch().is_ok_and(|(program, _)| program.variables(&environment) != *variables)
    }

    async fn cancelled(&mut self) {
        let cancelled = self.shared.take_cancelled();
        let mut sent = false;
        for Cancelled { ticket, is_late, next } in cancelled {
            if self.talk.cancel(ticket) {
                sent = true;
                if is_late && !self.talk.has_to_obey() {
                    self.silence.expired(ticket, next);
                }
                if self.talk.has_to_obey() {
                    self.withdrawn.push_back(Withdrawn {
                        until: Instant::now() + CANCEL_GRACE,
                        ticket,
                        respites: MAX_CANCEL_EXTENSIONS,
                    });
                }
            } else {
                self.waiting.retain(|request| request.ticket != ticket);
            }
        }
        if sent {
            self.look_for_hang().await;
            self.drained().await;
        }
    }

    /// Sees to it that a process that calls wait for is looked at again.
    fn schedule_look(&mut self) {
        let is_waited_for = matches!(self.state, State::Ready { .. }) && self.talk.in_flight() > 0;
        self.look = match self.look {
            _ if !is_waited_for => None,
            None => Some(Instant::now() + LOOK_EVERY),
            look => look,
        };
    }

    /// Ends a process that is ready and hangs.
    async fn look_for_hang(&mut self) {
        // Output that waits in the pipes is no silence.
        self.read().await;
        self.read_stderr();
        if !matches!(self.state, State::Ready { .. }) {
            return;
        }
        let is_stopped = self.process.as_ref().is_some_and(Process::is_stopped);
        let hang = match is_stopped && self.talk.in_flight() > 0 {
            true => Some("it hung: it was stopped by a signal while calls wait".to_owned()),
            false => {
                let (oldest, ping) = (self.talk.oldest(), self.talk.unanswered_ping());
                self.silence.verdict(self.born.elapsed(), oldest, ping)
            }
        };
        let Some(reason) = hang else { return };
        let (_, [capsule, server, plugin]) = self.definition.shown();
        tracing::warn!(capsule, server, plugin, reason, "it hangs, and is ended and restarted");
        self.failure.get_or_insert(reason.clone());
        self.happened(Event::Hung, &reason).await;
    }

    async fn drained(&mut self) {
        if self.state == State::Draining && self.talk.in_flight() == 0 {
            self.happened(Event::Drained, "the calls in flight are over").await;
        }
    }

    /// Sends what waits, if it may be sent.
    fn send_waiting(&mut self) {
        let reads = self.process.as_ref().is_some_and(|process| process.stdin.is_some());
        let is_ready = matches!(self.state, State::Ready { .. }) && reads;
        if !is_ready || self.waiting.is_empty() || !self.is_open() {
            return;
        }
        while self.talk.unwritten().len() < MAX_UNWRITTEN && self.talk.is_free() {
            let Some(request) = self.waiting.pop_front() else { break };
            if !request.reply.is_closed() {
                self.talk.send(request, || self.shared.only_tool());
            }
        }
    }

    /// Whether calls need not wait for the opening of MCP any more.
    fn is_open(&self) -> bool {
        self.talk.is_open() || self.opening.is_none()
    }

    async fn timer(&mut self) {
        let now = Instant::now();
        let is_due = |timer: &mut Option<Instant>| timer.take_if(|at| *at <= now).is_some();
        if is_due(&mut self.opening) && !self.talk.is_open() {
            // It says nothing to `initialize`. Should it answer later, its tools will be known then.
            self.speaks_mcp.get_or_insert(false);
            self.shared.settled();
        }
        if let Some((_, reason)) = self.stream_closed.take_if(|(at, _)| *at <= now) {
            self.failure.get_or_insert_with(|| reason.to_owned());
            self.happened(Event::Broken, reason).await;
        }
        if is_due(&mut self.look) {
            self.look_for_hang().await;
        }
        if is_due(&mut self.held) {
            self.happened(Event::Changed, "its files have changed").await;
        }
        while self.withdrawn.front().is_some_and(|one| one.until <= now) {
            let Some(Withdrawn { ticket, respites, .. }) = self.withdrawn.pop_front() else { break };
            // What it does for others is not cut, and who comes meanwhile need not wait for that.
            if respites > 0
                && self.talk.in_flight() > 0
                && self.talk.is_concurrent()
                && self.talk.goes_on_with(ticket).is_some()
            {
                let until = now + CANCEL_GRACE;
                self.withdrawn.push_back(Withdrawn { until, ticket, respites: respites - 1 });
                continue;
            }
            if let Some(function) = self.talk.goes_on_with(ticket) {
                let plugin = &*self.shared.name;
                tracing::warn!(
                    plugin,
                    function,
                    "it goes on with a call that was cancelled, and is restarted"
                );
                let cause = format!("it goes on with a call of {function} that was cancelled");
                // As with other files: what others wait for may come to its end.
                self.happened(Event::Changed, &cause).await;
            }
        }
        if is_due(&mut self.timer) {
            let cause = match self.state {
                State::Starting { .. } => {
                    let startup = seconds(self.definition.startup_timeout());
                    let [opening, _] = self.definition.opening();
                    let reason = format!("it did not {opening} within {startup}");
                    self.failure.get_or_insert(reason).clone()
                }
                State::Draining => {
                    let reason = "it was reloaded, and its calls in flight were not over in time";
                    self.failure.get_or_insert(reason.to_owned()).clone()
                }
                State::Crashed { .. } => "its backoff is over".to_owned(),
                _ => "its time is over".to_owned(),
            };
            self.happened(Event::Timer, &cause).await;
        }
    }
}

/// A call that a plugin goes on with though nobody waits for it.
struct Withdrawn {
    /// When it is looked after.
    until: Instant,
    ticket: u64,
    /// How many times more it may be let go on.
    respites: u32,
}

fn refuse(request: Request, reason: &str) {
    let _ = request.reply.send(Err(Fault::Gone(reason.to_owned())));
}

/// A number from 0 to 1.
fn random() -> f64 {
    let bits = getrandom::u32().unwrap_or(u32::MAX / 2);
    f64::from(bits) / f64::from(u32::MAX)
}

async fn readable(pipe: Option<&pipe::Receiver>) {
    match pipe {
        Some(pipe) => drop(pipe.readable().await),
        None => pending().await,
    }
}

async fn writable(pipe: Option<&pipe::Sender>) {
    match pipe {
        Some(pipe) => drop(pipe.writable().await),
        None => pending().await,
    }
}

/// Ends when the process has closed its end of its standard input.
async fn input_closed(pipe: Option<&pipe::Sender>) {
    match pipe {
        Some(pipe) => drop(pipe.ready(Interest::ERROR).await),
        None => pending().await,
    }
}

async fn exited(process: Option<&Process>) {
    match process {
        Some(process) => process.exited().await,
        None => pending().await,
    }
}

async fn changed(watching: Option<&mut Watching>) -> (Watcher, Change) {
    match watching {
        Some(watching) => watching.await,
        None => pending().await,
    }
}

async fn until(timer: Option<Instant>) {
    match timer {
        Some(timer) => sleep_until(timer).await,
        None => pending().await,
    }
}
