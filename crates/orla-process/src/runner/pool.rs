//! The threads that run programs: started on demand, ended when idle.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::thread;

use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::oneshot;

use super::Job;
use super::follow::{Ended, run};
use crate::limits::PoolLimits;
use crate::process::Child;
use crate::wake::Wake;

/// Runs programs, each on a thread of its own.
#[derive(Debug)]
pub struct Runners {
    limits: PoolLimits,
    state: Mutex<State>,
    ready: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Task>,
    /// Threads that sleep until there is work, or are about to look for work.
    idle: usize,
    threads: usize,
    /// Children that did not exit after SIGKILL. They are reaped when the kernel releases them.
    unreaped: Vec<Child>,
}

#[derive(Debug)]
struct Task {
    job: Job,
    control: Arc<Control>,
    done: oneshot::Sender<io::Result<Ended>>,
}

/// The size of a thread's read buffer. Only pages that are used cost memory.
const BUFFER: usize = 64 * 1024;
/// The stack size. It is enough for `std`'s spawn, which needs little.
const STACK: usize = 256 * 1024;

impl Runners {
    /// Creates a pool, without threads yet.
    pub fn new(limits: PoolLimits) -> Arc<Self> {
        Arc::new(Self { limits, state: Mutex::default(), ready: Condvar::new() })
    }

    /// Starts a program. The future returns how the program ended. Dropping the future cancels the
    /// program, and a thread then ends it.
    ///
    /// # Errors
    /// There is no thread for it and none can be started, with the system's reason. Nothing is left
    /// waiting then.
    pub fn run(self: &Arc<Self>, job: Job) -> io::Result<Running> {
        let (done, ended) = oneshot::channel();
        let control = Arc::new(Control::default());
        let task = Task { job, control: Arc::clone(&control), done };
        let mut running = Running { ended, control, is_queued: false };
        let mut state = self.lock();
        if state.idle > state.waiting.len() {
            state.waiting.push_back(task);
            drop(state);
            self.ready.notify_one();
        } else if state.threads < self.limits.max_threads.max(1) {
            state.threads += 1;
            drop(state);
            self.start_thread(task).inspect_err(|_| self.lock().threads -= 1)?;
        } else {
            if state.waiting.len() >= self.limits.max_waiting {
                // Tasks that were withdrawn meanwhile need no place.
                state.waiting.retain(|task| !task.control.is_cancelled());
            }
            if state.waiting.len() >= self.limits.max_waiting {
                return Err(io::Error::new(io::ErrorKind::WouldBlock, "too many programs are waiting"));
            }
            state.waiting.push_back(task);
            running.is_queued = true;
        }
        Ok(running)
    }

    fn start_thread(self: &Arc<Self>, task: Task) -> io::Result<()> {
        let wake = Arc::new(Wake::new()?);
        let runners = Arc::clone(self);
        thread::Builder::new()
            .name("tool".to_owned())
            .stack_size(STACK)
            .spawn(move || runners.serve(task, &wake))
            .map(drop)
    }

    fn serve(&self, first: Task, wake: &Arc<Wake>) {
        let mut buffer = vec![0; BUFFER];
        let mut next = Some(first);
        while let Some(Task { job, control, done }) = next {
            control.enter(Stage::Running(Arc::clone(wake)));
            let mut unreaped = |child| self.lock().unreaped.push(child);
            // A panic is an error of this call alone: the sender is dropped without an answer.
            let ended =
                catch_unwind(AssertUnwindSafe(|| run(job, &control, wake, &mut buffer, &mut unreaped)));
            // From here on, this thread cannot be woken for the call that has ended.
            control.enter(Stage::Over);
            if control.is_cancelled() {
                wake.clear();
            }
            // The counter changes before the answer, so that a caller's next call finds this thread and
            // starts no other.
            self.lock().idle += 1;
            if let Ok(ended) = ended {
                let _ = done.send(ended);
            }
            next = self.next();
        }
    }

    /// Returns the next task for a thread that counts as idle; `None` when the thread must end.
    fn next(&self) -> Option<Task> {
        let mut state = self.lock();
        let mut slept_enough = false;
        loop {
            state.unreaped.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
            let task = state.waiting.pop_front();
            if task.is_some() || (slept_enough && state.unreaped.is_empty()) {
                state.idle -= 1;
                state.threads -= usize::from(task.is_none());
                return task;
            }
            slept_enough = self.ready.wait_for(&mut state, self.limits.idle).timed_out();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    #[cfg(test)]
    pub(super) fn threads(&self) -> usize {
        self.lock().threads
    }

    #[cfg(test)]
    pub(super) fn unreaped(&self) -> usize {
        self.lock().unreaped.len()
    }
}

/// A program that runs or is queued. Dropping it cancels the program.
#[derive(Debug)]
pub struct Running {
    ended: oneshot::Receiver<io::Result<Ended>>,
    control: Arc<Control>,
    is_queued: bool,
}

impl Running {
    /// Asks the program's group to end. Awaiting still returns its output.
    pub fn cancel(&self) {
        self.control.cancel();
    }

    /// Returns whether every thread was busy when the program arrived, so that its deadline may pass
    /// before it starts.
    pub fn is_queued(&self) -> bool {
        self.is_queued
    }

    /// Withdraws the program if it has not started yet. Then it never starts, and there is nothing to
    /// wait for.
    pub fn withdraw(&self) -> bool {
        self.control.withdraw()
    }
}

impl Future for Running {
    type Output = io::Result<Ended>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.ended).poll(cx).map(|ended| {
            ended.unwrap_or_else(|_| Err(io::Error::other("the runner of the program failed")))
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.control.cancel();
    }
}

/// Cancels a call from another thread.
#[derive(Debug, Default)]
pub(super) struct Control {
    cancelled: AtomicBool,
    stage: Mutex<Stage>,
}

/// The stage of a call.
#[derive(Debug, Default)]
enum Stage {
    #[default]
    Waiting,
    /// Runs on the thread that this wakes.
    Running(Arc<Wake>),
    Over,
}

impl Control {
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::SeqCst)
    }

    fn cancel(&self) {
        self.cancelled.store(true, Ordering::SeqCst);
        if let Stage::Running(wake) = &*self.stage() {
            wake.wake();
        }
    }

    /// Cancels a call that has not begun. A call that begins later finds itself cancelled.
    fn withdraw(&self) -> bool {
        let stage = self.stage();
        let is_waiting = matches!(*stage, Stage::Waiting);
        if is_waiting {
            self.cancelled.store(true, Ordering::SeqCst);
        }
        is_waiting
    }

    fn enter(&self, stage: Stage) {
        *self.stage() = stage;
    }

    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock()
    }
}
