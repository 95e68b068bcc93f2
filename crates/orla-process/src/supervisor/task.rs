//! The task that owns the process of a service (RFC 2 §7, §8).
//!
//! # How it works
//!
//! One task per service owns the process, its pipes and its timer. It waits for the next event, passes
//! it to [`state::step`](super::state::step) or the [`Protocol`], and performs the resulting actions. It
//! decides nothing by itself. Reading never waits for writing: both are tried without blocking. The
//! output of a process that stops reading is therefore still read, and a large message delays no other
//! service.
//!
//! Handles reach the task through a bounded queue of requests, pending commands, which are taken together,
//! and a list of requests whose callers no longer wait. That list cannot overflow, as each request is in
//! it at most once.
//!
//! # Deliberately absent
//!
//! Nothing here knows what a request means, and nothing is sent twice: a request that was sent to a
//! process that ended fails.

mod files;
mod pace;
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
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use orla_marketplace::{jitter, seconds};
use rustix::process::Signal;
use tokio::io::Interest;
use tokio::net::unix::pipe;
use tokio::sync::{OwnedMutexGuard, mpsc, oneshot};
use tokio::task::yield_now;
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use self::pace::LogPace;
use super::hang::Silence;
use super::process::Process;
use super::protocol::{Cancellation, Protocol, Refusal};
use super::service::Service;
use super::shared::{Cancelled, Info, PendingCommands, Shared};
use super::state::{Effect, Event, ReloadLoop, State, Then, step};
use crate::child::{NO_PYTHON_CACHE, Program, Variables};
use crate::watch::{Change, Watcher};
use files::{Watching, next_change};

/// The maximum number of requests that wait for a process.
pub(super) const MAX_WAITING: usize = 1024;
/// With more unwritten bytes than this, no further request is taken.
const MAX_UNWRITTEN: usize = 1024 * 1024;
/// How long a process may continue with a request whose cancellation is binding.
const CANCEL_GRACE: Duration = Duration::from_secs(2);
/// How often this time is extended while the process answers other requests.
const MAX_CANCEL_EXTENSIONS: u32 = 15;
/// How often a process with requests in flight is checked.
const HANG_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How many requests are taken in a row before other tasks run.
const MAX_BATCH: usize = 64;

/// The task's ends of the channels to its handles.
#[derive(Debug)]
pub(super) struct Inbox<S: Service> {
    pub(super) requests: mpsc::Receiver<Request<S>>,
    /// Cancelled when the service is no longer needed.
    pub(super) stop: CancellationToken,
}

type Answer<S> = <<S as Service>::Protocol as Protocol>::Answer;

/// A request on its way to a process.
#[derive(Debug)]
pub(super) struct Request<S: Service> {
    pub(super) ticket: u64,
    pub(super) request: <S::Protocol as Protocol>::Request,
    pub(super) reply: oneshot::Sender<<S::Protocol as Protocol>::Response>,
    /// What the service served, according to its last report, when the request was made.
    pub(super) info: Option<Arc<Info<S>>>,
}

impl<S: Service> Request<S> {
    fn refuse(self, refusal: Refusal) {
        let _ = self.reply.send(S::Protocol::refused(refusal));
    }

    fn refuse_for(self, reason: &str) {
        self.refuse(Refusal::Unavailable(reason.to_owned()));
    }

    /// Returns whether the service still reports the same about the requested function.
    fn is_still_valid(&self, now: Option<&Arc<Info<S>>>) -> bool {
        let before = self.info.as_ref();
        before.map(Arc::as_ptr) == now.map(Arc::as_ptr)
            || S::Protocol::is_unchanged(
                &self.request,
                before.map(|info| &**info),
                now.map(|info| &**info),
            )
    }
}

/// The task of a service.
pub(super) struct Task<S: Service> {
    shared: Arc<Shared<S>>,
    inbox: Inbox<S>,
    service: Arc<S>,
    state: State,
    process: Option<Process>,
    /// The environment of the newest process.
    variables: Option<Variables>,
    protocol: S::Protocol,
    /// An incomplete line of standard error.
    stderr: BytesMut,
    /// Limits the number of its lines that are logged.
    pace: LogPace,
    last_line: String,
    waiting: VecDeque<Request<S>>,
    /// Requests whose cancellation is binding, in the order in which they are checked.
    cancelled: VecDeque<CancelledRequest>,
    /// Unanswered questions of the process.
    questions: FuturesUnordered<BoxFuture<'static, Answer<S>>>,
    /// Why the process is about to end, or has ended.
    failure: Option<String>,
    /// Wakes the task at the earliest of its times.
    alarm: Alarm,
    /// When [`Event::Timer`] comes.
    timer: Option<Instant>,
    /// The time until which requests wait for the handshake after the hello.
    handshake: Option<Instant>,
    /// When a process that has closed one of its streams is ended, and the reason.
    stream_closed: Option<(Instant, &'static str)>,
    /// Detects that the process hangs.
    silence: Silence,
    /// The next check of a process with requests in flight.
    look: Option<Look>,
    /// The time of a delayed reload.
    held: Option<Instant>,
    reloads: ReloadLoop,
    watching: Option<Watching>,
    watch_failed: bool,
    /// Whether some process of this service has taken part in the handshake, so that waiting for it
    /// makes sense.
    takes_part: Option<bool>,
    /// Held from the first process on, so that no other task of this name has one.
    process_lock: Option<OwnedMutexGuard<()>>,
    created_at: Instant,
    starts: u64,
    /// When the newest process was started.
    started: SystemTime,
}

/// The event that woke the task.
enum Woken<S: Service> {
    Stop,
    Request(Request<S>),
    Commands,
    Readable,
    Writable,
    InputClosed,
    Stderr,
    Answered(Answer<S>),
    Exited,
    Changed(Change),
    Timer,
}

impl<S: Service> Task<S> {
    pub(super) fn new(shared: Arc<Shared<S>>, service: Arc<S>, inbox: Inbox<S>) -> Self {
        // This protocol is connected to no process: each process gets its own.
        let protocol = service.protocol(&shared.tickets, &shared.of_protocol);
        Self {
            shared,
            inbox,
            service,
            state: State::Created,
            process: None,
            variables: None,
            protocol,
            stderr: BytesMut::new(),
            pace: LogPace::default(),
            last_line: String::new(),
            waiting: VecDeque::new(),
            cancelled: VecDeque::new(),
            questions: FuturesUnordered::new(),
            failure: None,
            alarm: Alarm::default(),
            timer: None,
            handshake: None,
            stream_closed: None,
            silence: Silence::default(),
            look: None,
            held: None,
            reloads: ReloadLoop::default(),
            watching: None,
            watch_failed: false,
            takes_part: None,
            process_lock: None,
            created_at: Instant::now(),
            starts: 0,
            started: SystemTime::now(),
        }
    }

    /// Serves until the service is no longer needed and its process is gone.
    pub(super) async fn run(mut self) {
        let mut stopping = false;
        while !stopping || self.state.has_process() {
            let woken = self.next(stopping).await;
            match woken {
                Woken::Stop => {
                    stopping = true;
                    self.handle_event(Event::Stop, "it is no longer needed").await;
                }
                Woken::Request(request) => {
                    self.yield_for_batch().await;
                    self.requested(request).await;
                }
                Woken::Commands => {
                    self.take_commands().await;
                    self.take_cancelled().await;
                }
                Woken::Readable => self.read().await,
                Woken::Writable => {}
                Woken::InputClosed => self.input_closed(),
                Woken::Stderr => {
                    self.read_stderr();
                    // Yields to other tasks, however fast a process writes.
                    yield_now().await;
                }
                Woken::Answered(answer) => self.protocol.answer(answer),
                Woken::Exited => self.exited().await,
                Woken::Changed(change) => self.changed(&change).await,
                Woken::Timer => self.timer().await,
            }
            self.send_waiting();
            self.write();
            self.schedule_look();
            self.note_current();
        }
        self.waiting.drain(..).for_each(|request| request.refuse_for("it was stopped"));
        self.inbox.requests.close();
        while let Ok(request) = self.inbox.requests.try_recv() {
            request.refuse_for("it was stopped");
        }
    }

    /// Returns the next event. Nothing is lost when a branch is dropped for another.
    async fn next(&mut self, stopping: bool) -> Woken<S> {
        let pace = self.pace.due();
        let Self {
            inbox,
            process,
            protocol,
            watching,
            waiting,
            cancelled,
            questions,
            shared,
            alarm,
            ..
        } = self;
        let process = process.as_ref();
        let takes = waiting.len() < MAX_WAITING && protocol.unwritten().len() < MAX_UNWRITTEN;
        let writes = !protocol.unwritten().is_empty();
        let timer = [
            self.timer,
            self.handshake,
            self.stream_closed.map(|(at, _)| at),
            self.held,
            self.look.map(|look| look.at),
            pace,
            cancelled.front().map(|one| one.until),
        ];
        let timer = timer.into_iter().flatten().min();
        tokio::select! {
            () = inbox.stop.cancelled(), if !stopping => Woken::Stop,
            Some(request) = inbox.requests.recv(), if takes => Woken::Request(request),
            () = shared.changed.notified() => Woken::Commands,
            () = readable(process.and_then(|process| process.stdout.as_ref())) => Woken::Readable,
            () = writable(process.and_then(|process| process.stdin.as_ref())), if writes => Woken::Writable,
            () = input_closed(process.and_then(|process| process.stdin.as_ref())) => Woken::InputClosed,
            () = readable(process.and_then(|process| process.stderr.as_ref())) => Woken::Stderr,
            Some(answer) = questions.next(), if !questions.is_empty() => Woken::Answered(answer),
            () = exited(process) => Woken::Exited,
            (watcher, change) = changed(watching.as_mut()), if !stopping => {
                *watching = Some(next_change(watcher));
                Woken::Changed(change)
            }
            () = alarm.at(timer) => Woken::Timer,
        }
    }

    /// Waits for requests that are about to arrive, if others are in flight. Requests that are written
    /// together wake the process once. A single request does not wait.
    async fn yield_for_batch(&mut self) {
        if self.protocol.in_flight() > 0 && self.inbox.requests.len() < MAX_BATCH {
            yield_now().await;
        }
    }

    /// Handles an event, performs its effects, and reports them.
    async fn handle_event(&mut self, event: Event, cause: &str) {
        let mut next = Some((event, cause.to_owned()));
        while let Some((event, cause)) = next.take() {
            let policy = self.shared.policy();
            let (state, effects) = step(self.state, event, &policy);
            let before = std::mem::replace(&mut self.state, state);
            if state != before {
                self.timer = state
                    .timeout(self.service.startup_timeout(), &policy, jitter())
                    .map(|timeout| Instant::now() + timeout);
                self.log(before, &cause);
                // The status is published before the effects, so that a caller who gets a crash as an
                // error sees that state.
                self.publish();
            }
            for effect in effects {
                if let Some(reason) = self.act(*effect, &cause).await {
                    next = Some((Event::Exited, reason));
                }
            }
            match state {
                State::Draining if self.protocol.in_flight() == 0 => {
                    next = Some((Event::Drained, "no call is in flight".to_owned()));
                }
                State::Starting { .. } if self.process.is_some() && self.protocol.is_open() => {
                    let held = self.shared.may_start(&self.service, Some(self.started)).await;
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

    /// Performs one effect. Returns the reason if a process could not be started.
    async fn act(&mut self, effect: Effect, cause: &str) -> Option<String> {
        match (effect, &mut self.process) {
            (Effect::Spawn, _) => return self.spawn().await,
            (Effect::CloseInput, Some(process)) => process.stdin = None,
            (Effect::Terminate, Some(process)) => {
                process.signal(Signal::TERM);
                // A stopped process would not handle the signal.
                process.signal(Signal::CONT);
            }
            (Effect::Kill, Some(process)) => process.signal(Signal::KILL),
            (Effect::FailSent, _) => {
                let reason = self.failure.clone().unwrap_or_else(|| cause.to_owned());
                self.protocol.fail(&format!("it ended during the call: {reason}"));
            }
            (Effect::FailWaiting, _) => {
                let reason = self.stopped_because();
                self.waiting.drain(..).for_each(|request| request.refuse_for(&reason));
            }
            // Waiting requests are sent when the handshake is over.
            (Effect::Send | Effect::CloseInput | Effect::Terminate | Effect::Kill, _) => {}
        }
        None
    }

    async fn spawn(&mut self) -> Option<String> {
        self.failure = None;
        self.handshake = None;
        self.stream_closed = None;
        self.silence = Silence::default();
        self.stderr = BytesMut::new();
        self.pace = LogPace::default();
        self.last_line = String::new();
        self.questions = FuturesUnordered::new();
        self.protocol = self.service.protocol(&self.shared.tickets, &self.shared.of_protocol);
        self.cancelled = VecDeque::new();
        self.starts += 1;
        if self.process_lock.is_none() {
            self.process_lock = Some(Arc::clone(&self.shared.process_lock).lock_owned().await);
        }
        self.watch();
        self.started = SystemTime::now();
        if let Err(reason) = self.shared.may_start(&self.service, None).await {
            self.failure = Some(reason.clone());
            return Some(reason);
        }
        let started = match self.launch() {
            Ok((program, args)) => {
                self.variables = Some(program.variables(&self.shared.instance.environment()));
                Process::start(program, args, Arc::clone(&self.shared.instance)).await
            }
            Err(err) => Err(err),
        };
        match started {
            Ok(process) => {
                self.process = Some(process);
                None
            }
            Err(err) => {
                let reason = format!("it could not start: {}", self.service.explain(&err));
                self.failure = Some(reason.clone());
                Some(reason)
            }
        }
    }

    /// Takes a request, and those that arrived with it, so that they are written together.
    async fn requested(&mut self, request: Request<S>) {
        self.reloads.called();
        let mut next = Some(request);
        for _ in 0..MAX_BATCH {
            let Some(request) = next.take().or_else(|| self.inbox.requests.try_recv().ok()) else {
                break;
            };
            // A call that arrives after a load uses the loaded configuration.
            self.take_commands().await;
            self.start().await;
            self.wait(request);
        }
    }

    fn wait(&mut self, request: Request<S>) {
        if matches!(self.state, State::Stopped | State::Ending { then: Then::Stop, .. }) {
            request.refuse_for(&self.stopped_because());
        } else if self.waiting.len() >= MAX_WAITING {
            let (sent, waiting) = (self.protocol.in_flight(), self.waiting.len());
            request.refuse(Refusal::Busy { sent, waiting });
        } else {
            self.waiting.push_back(request);
        }
    }

    async fn start(&mut self) {
        if self.state == State::Created && !self.inbox.stop.is_cancelled() {
            self.handle_event(Event::Wanted, "it is needed").await;
        }
    }

    async fn take_commands(&mut self) {
        let PendingCommands { start, restart, loaded, shared_changed } = self.shared.take_commands();
        if shared_changed {
            self.protocol.shared_changed();
        }
        match loaded {
            Some(service) if *service != *self.service => {
                self.replace(service);
                self.handle_event(Event::Changed, "what it is started from has changed").await;
            }
            Some(_) if self.environment_has_changed() => {
                self.handle_event(Event::Changed, "its environment has changed").await;
            }
            Some(_) => self.handle_event(Event::ConfigReloaded, "the configuration was reloaded").await,
            None => {}
        }
        if restart && !self.inbox.stop.is_cancelled() {
            self.handle_event(Event::Changed, "a restart was requested").await;
            self.start().await;
        }
        if start {
            self.start().await;
            if self.state == State::Stopped {
                self.publish();
            }
        }
    }

    /// Returns the program and arguments of the next process.
    fn launch(&self) -> io::Result<(Program, Vec<OsString>)> {
        let (program, args) = self.service.launch()?;
        let is_guarded = self.shared.is_guarded();
        Ok((if is_guarded { program.with_variable(NO_PYTHON_CACHE) } else { program }, args))
    }

    /// Returns whether the next process would get another environment than the newest one did.
    fn environment_has_changed(&self) -> bool {
        let Some(variables) = &self.variables else { return false };
        let environment = self.shared.instance.environment();
        self.launch().is_ok_and(|(program, _)| program.variables(&environment) != *variables)
    }

    async fn take_cancelled(&mut self) {
        let mut sent = false;
        for Cancelled { ticket, is_late, next } in self.shared.take_cancelled() {
            match self.protocol.cancel(ticket) {
                Cancellation::NotSent => {
                    self.waiting.retain(|request| request.ticket != ticket);
                    continue;
                }
                Cancellation::Advisory if is_late => self.silence.expired(ticket, next),
                Cancellation::Advisory => {}
                Cancellation::Binding => self.cancelled.push_back(CancelledRequest {
                    until: Instant::now() + CANCEL_GRACE,
                    ticket,
                    extensions: MAX_CANCEL_EXTENSIONS,
                }),
            }
            sent = true;
        }
        if sent {
            self.end_if_hung().await;
            self.end_if_drained().await;
        }
    }

    /// Schedules the next check of a process with requests in flight. It stays scheduled when they have ended, so
    /// that it is not scheduled anew for each request.
    fn schedule_look(&mut self) {
        let is_waited_for = matches!(self.state, State::Ready { .. }) && self.protocol.in_flight() > 0;
        match &mut self.look {
            Some(look) => look.was_idle |= !is_waited_for,
            None if is_waited_for => {
                self.look = Some(Look { at: Instant::now() + HANG_CHECK_INTERVAL, was_idle: false });
            }
            None => {}
        }
    }

    /// Ends a process that is ready and hangs.
    async fn end_if_hung(&mut self) {
        // Unread output in the pipes is not silence.
        self.read().await;
        self.read_stderr();
        if !matches!(self.state, State::Ready { .. }) {
            return;
        }
        let is_stopped = self.process.as_ref().is_some_and(Process::is_stopped);
        let hang = match is_stopped && self.protocol.in_flight() > 0 {
            true => Some("it hung: it was stopped by a signal while calls wait".to_owned()),
            false => {
                let (oldest, ping) = (self.protocol.oldest(), self.protocol.unanswered_ping());
                self.silence.verdict(self.created_at.elapsed(), oldest, ping)
            }
        };
        let Some(reason) = hang else { return };
        let [capsule, server, plugin] = self.log_fields();
        tracing::warn!(capsule, server, plugin, reason, "it hangs, and is ended and restarted");
        self.failure.get_or_insert(reason.clone());
        self.handle_event(Event::Hung, &reason).await;
    }

    async fn end_if_drained(&mut self) {
        if self.state == State::Draining && self.protocol.in_flight() == 0 {
            self.handle_event(Event::Drained, "the calls in flight are over").await;
        }
    }

    /// Returns whether requests may be sent to the process.
    fn takes_requests(&self) -> bool {
        let reads = self.process.as_ref().is_some_and(|process| process.stdin.is_some());
        let is_open = self.protocol.is_open() || self.handshake.is_none();
        matches!(self.state, State::Ready { .. }) && reads && is_open
    }

    fn note_current(&self) {
        let is_over = matches!(self.state, State::Stopped | State::Ending { then: Then::Stop, .. });
        let is_current = is_over || self.takes_requests();
        let current = &self.shared.current;
        current.send_if_modified(|before| std::mem::replace(before, is_current) != is_current);
    }

    /// Sends the waiting requests, if allowed.
    fn send_waiting(&mut self) {
        if self.waiting.is_empty() || !self.takes_requests() {
            return;
        }
        let info = self.shared.info();
        while self.protocol.unwritten().len() < MAX_UNWRITTEN && self.protocol.is_free() {
            let Some(waiting) = self.waiting.pop_front() else { break };
            if waiting.reply.is_closed() {
                continue;
            }
            if !waiting.is_still_valid(info.as_ref()) {
                waiting.refuse(Refusal::Changed);
                continue;
            }
            let Request { ticket, request, reply, .. } = waiting;
            self.protocol.send(ticket, request, reply, || info.clone());
        }
    }

    async fn timer(&mut self) {
        let now = Instant::now();
        let is_due = |timer: &mut Option<Instant>| timer.take_if(|at| *at <= now).is_some();
        if is_due(&mut self.handshake) && !self.protocol.is_open() {
            // The process takes no part in the handshake. If it does so later, what it serves will be
            // known then.
            self.takes_part.get_or_insert(false);
            self.shared.mark_learned();
        }
        if let Some((_, reason)) = self.stream_closed.take_if(|(at, _)| *at <= now) {
            self.failure.get_or_insert_with(|| reason.to_owned());
            self.handle_event(Event::Broken, reason).await;
        }
        if self.pace.is_over(now) {
            self.end_pace();
        }
        if self.look.take_if(|look| look.at <= now).is_some_and(|look| !look.was_idle) {
            self.end_if_hung().await;
        }
        if is_due(&mut self.held) {
            self.handle_event(Event::Changed, "its files have changed").await;
        }
        while self.cancelled.front().is_some_and(|one| one.until <= now) {
            let Some(CancelledRequest { ticket, extensions, .. }) = self.cancelled.pop_front() else {
                break;
            };
            let Some(running) = self.protocol.still_running(ticket) else { continue };
            // Its work for other callers is not interrupted, and new requests need not wait for it.
            if extensions > 0 && self.protocol.in_flight() > 0 && running.answers_others {
                let until = now + CANCEL_GRACE;
                let extensions = extensions - 1;
                self.cancelled.push_back(CancelledRequest { until, ticket, extensions });
                continue;
            }
            let [capsule, server, plugin] = self.log_fields();
            let function = running.function;
            tracing::warn!(capsule, server, plugin, function, "ignored a cancellation: restarting");
            let cause = format!("{function}: ignored its cancellation");
            // The change is handled like a change of other files: requests in flight may finish.
            self.handle_event(Event::Changed, &cause).await;
        }
        if is_due(&mut self.timer) {
            let cause = match self.state {
                State::Starting { .. } => {
                    let startup = seconds(self.service.startup_timeout());
                    let [handshake, _] = S::HANDSHAKE;
                    let reason = format!(
                        "it did not {handshake} within {startup}{}",
                        self.service.startup_remedy()
                    );
                    self.failure.get_or_insert(reason).clone()
                }
                State::Draining => {
                    let reason = "it was reloaded, and its calls in flight were not over in time";
                    self.failure.get_or_insert(reason.to_owned()).clone()
                }
                State::Crashed { .. } => "its backoff is over".to_owned(),
                _ => "its time limit has passed".to_owned(),
            };
            self.handle_event(Event::Timer, &cause).await;
        }
    }
}

/// A scheduled check whether a process hangs.
#[derive(Clone, Copy)]
struct Look {
    at: Instant,
    /// Whether no request was in flight at some time since it was scheduled. Then the present ones have not waited for
    /// a whole interval, and nothing is checked.
    was_idle: bool,
}

/// A request whose cancellation is binding.
struct CancelledRequest {
    /// The time of the check whether the process still works at the request.
    until: Instant,
    ticket: u64,
    /// The number of remaining extensions.
    extensions: u32,
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

/// Waits until the process has closed its end of standard input.
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

/// One timer for all times of a task. It stays set between events, because setting a timer costs
/// more than handling most events.
#[derive(Debug, Default)]
struct Alarm(Option<Pin<Box<Sleep>>>);

impl Alarm {
    /// Waits until `time`, or for ever.
    async fn at(&mut self, time: Option<Instant>) {
        let Some(time) = time else { return pending().await };
        let sleep = self.0.get_or_insert_with(|| Box::pin(sleep_until(time)));
        if sleep.deadline() != time {
            sleep.as_mut().reset(time);
        }
        sleep.as_mut().await;
    }
}
