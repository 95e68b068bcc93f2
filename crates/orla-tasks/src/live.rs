//! The state of tasks that only this process knows: the running tasks and their watchers.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use orla_marketplace::rtfs::text::excerpt;
use orla_marketplace::{Notice, NoticeSink};
use parking_lot::Mutex;
use tokio::sync::{Notify, broadcast, watch};
use tokio_util::sync::CancellationToken;

use crate::client::Questions;
use crate::state::{Repeat, State};
use crate::task::{LogLine, Task, TaskId, TaskProgress};

/// The maximum number of log lines kept for a task.
const LINES: usize = 50;
/// The maximum number of characters kept of a line.
const LINE: usize = 1000;
/// The maximum number of notices that wait for one listener.
const BACKLOG: usize = 256;

/// The tasks that run in this process, and the watchers of tasks.
#[derive(Default)]
pub(crate) struct Live {
    running: Mutex<HashMap<TaskId, Arc<Running>>>,
    /// Watchers of everything that a task reports.
    watchers: Watchers,
    /// Watchers of the state of a task only.
    states: Watchers,
    /// Listeners to each single notice of a task.
    listeners: Mutex<HashMap<TaskId, broadcast::Sender<Update>>>,
}

/// A notice from the call of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    /// The current activity of the call, or a line of its log.
    Line(Arc<str>),
    /// A piece of the text of the result. The result contains the whole text.
    Text {
        /// The piece.
        text: Arc<str>,
        /// Whether this is the first piece.
        is_first: bool,
    },
}

/// The tasks that have watchers.
#[derive(Default)]
struct Watchers {
    senders: Mutex<HashMap<TaskId, watch::Sender<Arc<Task>>>>,
    /// The number of watched tasks at which the tasks without watchers are dropped.
    sweep_at: AtomicUsize,
}

/// A task that runs in this process.
#[derive(Default)]
pub(crate) struct Running {
    /// Cancelled when no part of the task runs in this process any more.
    pub(crate) stopped: CancellationToken,
    /// Cancelled to end its call.
    pub(crate) cancellation: CancellationToken,
    /// The waiting questions of the call, and the receivers of their answers.
    pub(crate) questions: Questions,
    /// Notified when an event arrives for the program of the task.
    pub(crate) arrived: Arc<Notify>,
    /// The record as this process last read or wrote it.
    pub(crate) record: Mutex<Option<Task>>,
    /// Set when the call starts, to what may be done after a crash. The record is updated with its next
    /// write, if no effect is possible before that write.
    pub(crate) begun: OnceLock<Repeat>,
    /// Whether the record may say that the call ran although it did not: the mark was being written, and
    /// the answer to the write was lost.
    pub(crate) is_unbegun: AtomicBool,
    /// Whether the end of the task is written with the next write, because the task had no watcher when
    /// it ended.
    pub(crate) ends_later: AtomicBool,
    notes: Mutex<Notes>,
}

/// The notices of a call that are kept.
#[derive(Default)]
struct Notes {
    progress: Option<TaskProgress>,
    log: VecDeque<LogLine>,
}

/// A running task. It stays registered until this value is dropped.
pub(crate) struct Registered<'a> {
    live: &'a Live,
    id: &'a TaskId,
    pub(crate) running: Arc<Running>,
}

impl Live {
    /// Registers a task that is about to run.
    pub(crate) fn register<'a>(&'a self, id: &'a TaskId) -> Registered<'a> {
        let running = Arc::new(Running::default());
        self.running.lock().insert(id.clone(), Arc::clone(&running));
        Registered { live: self, id, running }
    }

    pub(crate) fn running(&self, id: &TaskId) -> Option<Arc<Running>> {
        self.running.lock().get(id).cloned()
    }

    /// Returns the tasks that run here or are watched.
    pub(crate) fn ids(&self) -> BTreeSet<TaskId> {
        let mut ids: BTreeSet<TaskId> = self.running.lock().keys().cloned().collect();
        for watchers in [&self.watchers, &self.states] {
            ids.extend(watchers.senders.lock().keys().cloned());
        }
        ids
    }

    /// Ends the calls of all tasks that run here.
    pub(crate) fn cancel_all(&self) {
        self.running.lock().values().for_each(|running| running.cancellation.cancel());
    }

    /// Watches the changes of a task from now on, including its notices.
    pub(crate) fn watch(&self, task: Arc<Task>) -> watch::Receiver<Arc<Task>> {
        self.watchers.watch(task)
    }

    /// Watches the state of a task from now on. Notices do not wake the watcher.
    pub(crate) fn watch_state(&self, task: Arc<Task>) -> watch::Receiver<Arc<Task>> {
        self.states.watch(task)
    }

    /// Returns whether a task has watchers.
    pub(crate) fn is_watched(&self, id: &TaskId) -> bool {
        self.watchers.has(id) || self.states.has(id)
    }

    /// Listens to the notices of a task from now on.
    pub(crate) fn listen(&self, id: &TaskId) -> broadcast::Receiver<Update> {
        let mut listeners = self.listeners.lock();
        listeners.retain(|_, sender| sender.receiver_count() > 0);
        listeners.entry(id.clone()).or_insert_with(|| broadcast::Sender::new(BACKLOG)).subscribe()
    }

    /// Shows a task to its watchers.
    pub(crate) fn publish(&self, task: &Task) {
        self.watchers.publish(task);
        self.states.publish(task);
    }

    /// Tells the watchers of a task that it runs.
    pub(crate) fn publish_begun(&self, id: &TaskId, running: &Running) {
        self.watchers.fill(id, running);
        self.states.fill(id, running);
    }

    /// Shows the notices of a task to its watchers.
    fn publish_notices(&self, id: &TaskId, running: &Running) {
        self.watchers.fill(id, running);
    }
}

impl Watchers {
    fn watch(&self, task: Arc<Task>) -> watch::Receiver<Arc<Task>> {
        let mut senders = self.senders.lock();
        if senders.len() >= self.sweep_at.load(Ordering::Relaxed) {
            senders.retain(|_, sender| sender.receiver_count() > 0);
            self.sweep_at.store(2 * senders.len() + 16, Ordering::Relaxed);
        }
        senders.entry(task.id.clone()).or_insert_with(|| watch::Sender::new(task)).subscribe()
    }

    fn has(&self, id: &TaskId) -> bool {
        self.senders.lock().get(id).is_some_and(|sender| sender.receiver_count() > 0)
    }

    fn publish(&self, task: &Task) {
        let mut senders = self.senders.lock();
        if let Some(sender) = senders.get(&task.id) {
            // Of two concurrent changes, the later one wins.
            sender.send_if_modified(|shown| {
                let is_newer = task.revision >= shown.revision && !shown.state.is_terminal();
                if is_newer {
                    *shown = Arc::new(task.clone());
                }
                is_newer
            });
            if task.state.is_terminal() {
                senders.remove(&task.id);
            }
        }
    }

    fn fill(&self, id: &TaskId, running: &Running) {
        if let Some(sender) = self.senders.lock().get(id) {
            sender.send_if_modified(|shown| {
                if shown.state.is_terminal() {
                    return false;
                }
                running.fill(Arc::make_mut(shown));
                true
            });
        }
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.live.running.lock().remove(self.id);
        self.running.stopped.cancel();
    }
}

impl Running {
    /// Returns the state to show for a task whose record has this state.
    pub(crate) fn shown_state(&self, recorded: State) -> State {
        match self.begun.get() {
            Some(_) if recorded == State::Queued => State::Working,
            _ => recorded,
        }
    }

    /// Keeps a record that was read or written, unless a later one is known.
    pub(crate) fn keep_record(&self, task: &Task) {
        let mut record = self.record.lock();
        if record.as_ref().is_none_or(|known| known.revision < task.revision) {
            *record = Some(task.clone());
        }
    }

    /// Copies the notices of the call into its record.
    pub(crate) fn fill(&self, task: &mut Task) {
        task.state = self.shown_state(task.state);
        let notes = self.notes.lock();
        if notes.progress.is_some() {
            task.progress.clone_from(&notes.progress);
        }
        if !notes.log.is_empty() {
            task.log = notes.log.iter().cloned().collect();
        }
    }

    fn keep_notice(&self, notice: Notice) {
        let mut notes = self.notes.lock();
        match notice {
            Notice::Progress(progress) => {
                let message = progress.message.map(|message| excerpt(&message, LINE));
                let (progress, total) = (progress.progress, progress.total);
                notes.progress = Some(TaskProgress { progress, total, message });
            }
            Notice::Log { level, message } => {
                if notes.log.len() >= LINES {
                    notes.log.pop_front();
                }
                let message = excerpt(&message, LINE);
                notes.log.push_back(LogLine { level: level.as_str().to_owned(), message });
            }
            Notice::Text(_) => {}
        }
    }
}

/// Returns the sink for the notices of a task's call. The sink holds the tasks weakly, since it may
/// outlive them.
pub(crate) fn sink(live: &Arc<Live>, id: &TaskId, running: &Arc<Running>) -> NoticeSink {
    let (live, id, running) = (Arc::downgrade(live), id.clone(), Arc::clone(running));
    let has_text = AtomicBool::new(false);
    NoticeSink::new(move |notice| {
        let Some(live) = live.upgrade() else { return };
        let update = match &notice {
            Notice::Text(text) => {
                let is_first = !has_text.swap(true, Ordering::Relaxed);
                Some(Update::Text { text: text.as_str().into(), is_first })
            }
            Notice::Progress(progress) => progress.message.as_deref().map(line),
            Notice::Log { message, .. } => Some(line(message)),
        };
        if let (Some(sender), Some(update)) = (live.listeners.lock().get(&id), update) {
            // The listeners may be gone.
            let _ = sender.send(update);
        }
        // The text is part of the result.
        if !matches!(notice, Notice::Text(_)) {
            running.keep_notice(notice);
            live.publish_notices(&id, &running);
        }
    })
}

fn line(text: &str) -> Update {
    Update::Line(excerpt(text, LINE).into())
}
