//! The table of tasks: their state, their owners, and which make room. Pure except for the events to followers.
//!
//! A finished task makes room for a new one, the oldest first. An unfinished task never does.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use a2a::{
    ListTasksRequest, ListTasksResponse, Message, StreamResponse, Task, TaskPushNotificationConfig,
    TaskState,
};
use chrono::{DateTime, Utc};
use orla_marketplace::Principal;
use tokio::sync::{broadcast, oneshot};
use tokio_util::sync::CancellationToken;

/// The most push configurations of one task.
const MAX_HOOKS: usize = 8;
/// The most tasks on one page of a list.
const MAX_PAGE: i32 = 100;
/// The default size of a page.
const PAGE: i32 = 50;

/// How much a table holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) tasks: usize,
    /// Of all tasks together.
    pub(super) bytes: usize,
    /// Of one.
    pub(super) task_bytes: usize,
    /// How long one is kept that is over.
    pub(super) age: Duration,
}

/// The tasks.
pub(super) struct Table {
    bounds: Bounds,
    records: HashMap<String, Record>,
    /// By the time of their last state, the oldest first.
    order: BTreeSet<(u64, String)>,
    states: u64,
    bytes: usize,
    /// The changes to write, if tasks are kept in a file.
    changes: Option<Changes>,
}

/// What has changed and was not written yet.
#[derive(Default)]
struct Changes {
    ids: BTreeSet<String>,
    /// Of all changes ever.
    count: u64,
    /// Whether a writer is running.
    writing: bool,
}

/// A task to write; `None` if it was removed.
pub(super) type Changed = (String, Option<Snapshot>);

/// A task at one moment, with everything that is kept about it.
pub(super) struct Snapshot {
    pub(super) task: Arc<Task>,
    pub(super) owner: Option<Principal>,
    pub(super) hooks: Vec<TaskPushNotificationConfig>,
}

/// A push configuration of a task.
pub(super) struct Hook {
    pub(super) config: TaskPushNotificationConfig,
    /// Cancelled when it is no longer needed.
    pub(super) stop: CancellationToken,
}

/// A task, and whose it is.
pub(super) struct Record {
    pub(super) task: Arc<Task>,
    pub(super) owner: Option<Principal>,
    pub(super) hooks: Vec<Hook>,
    /// The number of its last state.
    number: u64,
    bytes: usize,
    /// There while the task is not over.
    pub(super) live: Option<Live>,
}

/// The state of an unfinished task.
pub(super) struct Live {
    pub(super) events: broadcast::Sender<Arc<StreamResponse>>,
    /// Cancels its work.
    pub(super) token: CancellationToken,
    /// Receives the next message, if the task waits for one.
    pub(super) asking: Option<oneshot::Sender<Message>>,
}

impl Table {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            records: HashMap::new(),
            order: BTreeSet::new(),
            states: 0,
            bytes: 0,
            changes: None,
        }
    }

    /// Sets other bounds, from now on.
    pub(super) fn bound(&mut self, bounds: Bounds) {
        self.bounds = bounds;
    }

    /// A task, if it belongs to this caller.
    pub(super) fn of(&mut self, id: &str, caller: Option<&Principal>) -> Option<&mut Record> {
        self.records.get_mut(id).filter(|record| record.owner.as_ref() == caller)
    }

    /// The unfinished tasks of these callers.
    pub(super) fn unfinished(
        &self,
        of: impl Fn(Option<&Principal>) -> bool,
    ) -> impl Iterator<Item = &Live> {
        let records = self.records.values().filter(move |record| of(record.owner.as_ref()));
        records.filter_map(|record| record.live.as_ref())
    }

    /// A task of any caller.
    pub(super) fn get(&self, id: &str) -> Option<&Record> {
        self.records.get(id)
    }

    pub(super) fn get_mut(&mut self, id: &str) -> Option<&mut Record> {
        self.records.get_mut(id)
    }

    /// Adds a task; `None` if there is no room because all others are unfinished.
    pub(super) fn add(&mut self, task: Task, owner: Option<Principal>, live: Option<Live>) -> bool {
        let hooks = Vec::new();
        let bytes = size(&task);
        let is_full = |table: &Self| {
            table.records.len() >= table.bounds.tasks || table.bytes + bytes > table.bounds.bytes
        };
        while is_full(self) {
            if !self.make_room(None) {
                return false;
            }
        }
        self.states += 1;
        let (id, number) = (task.id.clone(), self.states);
        self.bytes += bytes;
        self.order.insert((number, id.clone()));
        self.note(&id);
        self.records.insert(id, Record { task: Arc::new(task), owner, hooks, number, bytes, live });
        true
    }

    /// Changes an unfinished task and notifies its followers. The change returns by how many bytes the task has
    /// grown, apart from its status.
    pub(super) fn change(
        &mut self,
        id: &str,
        change: impl FnOnce(&mut Task) -> (StreamResponse, usize),
    ) {
        self.pass(id, change);
        self.note(id);
    }

    /// Like `change`, but not persisted: a task that was working has failed after a restart in any case.
    pub(super) fn pass(&mut self, id: &str, change: impl FnOnce(&mut Task) -> (StreamResponse, usize)) {
        let Some(record) = self.records.get_mut(id) else { return };
        let Some(events) = record.live.as_ref().map(|live| live.events.clone()) else { return };
        // Of the task's parts alone, as a whole task is long to count.
        let before = size(&record.task.status);
        let (event, grown) = change(Arc::make_mut(&mut record.task));
        let (more, less) = (size(&record.task.status) + grown, before.min(record.bytes));
        record.bytes = record.bytes - less + more;
        self.bytes = self.bytes - less + more;
        if matches!(event, StreamResponse::StatusUpdate(_)) {
            self.states += 1;
            self.order.remove(&(record.number, id.to_owned()));
            record.number = self.states;
            self.order.insert((record.number, id.to_owned()));
        }
        if record.task.status.state.is_terminal() {
            record.live = None;
        }
        // There may be no follower.
        let _ = events.send(Arc::new(event));
        while self.bytes > self.bounds.bytes && self.make_room(Some(id)) {}
    }

    /// Whether so much more fits into a task.
    pub(super) fn fits(&self, id: &str, more: usize) -> bool {
        self.records.get(id).is_some_and(|record| record.bytes + more <= self.bounds.task_bytes)
    }

    /// Whether one task may be so large.
    pub(super) fn takes(&self, bytes: usize) -> bool {
        bytes <= self.bounds.task_bytes
    }

    /// Forgets a task.
    pub(super) fn forget(&mut self, id: &str) {
        if let Some(record) = self.records.remove(id) {
            record.hooks.iter().for_each(|hook| hook.stop.cancel());
            self.bytes -= record.bytes;
            self.order.remove(&(record.number, id.to_owned()));
            self.note(id);
        }
    }

    /// Removes tasks that finished before this time.
    pub(super) fn expire(&mut self, now: DateTime<Utc>) {
        let Some(before) = now.checked_sub_signed(
            chrono::TimeDelta::from_std(self.bounds.age).unwrap_or(chrono::TimeDelta::MAX),
        ) else {
            return;
        };
        let is_old = |record: &Record| record.task.status.timestamp.is_some_and(|time| time < before);
        let old = self.order.iter().map(|(_, id)| id);
        // They are in the order of their times: all tasks after the first young one are young too.
        let old = old.filter_map(|id| self.records.get(id)).take_while(|record| is_old(record));
        let over = old.filter(|record| record.live.is_none()).map(|record| record.task.id.clone());
        for id in over.collect::<Vec<_>>() {
            self.forget(&id);
        }
    }

    /// Adds or replaces a push configuration of a task. Returns whether there is room.
    pub(super) fn hook(&mut self, id: &str, hook: Hook) -> bool {
        let Some(record) = self.records.get_mut(id) else { return false };
        let is_same = |other: &Hook| other.config.id == hook.config.id;
        match record.hooks.iter().position(is_same) {
            Some(at) => std::mem::replace(&mut record.hooks[at], hook).stop.cancel(),
            None if record.hooks.len() < MAX_HOOKS => record.hooks.push(hook),
            None => return false,
        }
        self.note(id);
        true
    }

    /// Removes a push configuration of a task.
    pub(super) fn unhook(&mut self, id: &str, hook: &str) {
        let Some(record) = self.records.get_mut(id) else { return };
        let is_this = |other: &Hook| other.config.id.as_deref() == Some(hook);
        let gone: Vec<Hook> = record.hooks.extract_if(.., |hook| is_this(hook)).collect();
        gone.iter().for_each(|hook| hook.stop.cancel());
        self.note(id);
    }

    /// Records changes from now on.
    pub(super) fn note_changes(&mut self) {
        self.changes.get_or_insert_default();
    }

    /// Notes that a task has changed.
    pub(super) fn note(&mut self, id: &str) {
        if let Some(changes) = &mut self.changes {
            changes.ids.insert(id.to_owned());
            changes.count += 1;
        }
    }

    /// How often something has changed.
    pub(super) fn changes(&self) -> u64 {
        self.changes.as_ref().map_or(0, |changes| changes.count)
    }

    /// Whether the caller must start a writer.
    pub(super) fn begin_writing(&mut self) -> bool {
        let waits = |changes: &&mut Changes| !changes.ids.is_empty() && !changes.writing;
        let waiting = self.changes.as_mut().filter(waits);
        waiting.map(|changes| changes.writing = true).is_some()
    }

    /// The changes to write now, and their count. `None` if there are none; the writer then ends.
    pub(super) fn take_changes(&mut self) -> Option<(u64, Vec<Changed>)> {
        let changes = self.changes.as_mut()?;
        let ids = std::mem::take(&mut changes.ids);
        changes.writing = !ids.is_empty();
        let (writing, count) = (changes.writing, changes.count);
        let row = |id: String| {
            let snapshot = self.records.get(&id).map(|record| Snapshot {
                task: Arc::clone(&record.task),
                owner: record.owner.clone(),
                hooks: record.hooks.iter().map(|hook| hook.config.clone()).collect(),
            });
            (id, snapshot)
        };
        writing.then(|| (count, ids.into_iter().map(row).collect()))
    }

    /// The tasks of a caller that fit, the newest state first.
    ///
    /// # Errors
    /// What is wrong with the request.
    pub(super) fn list(
        &self,
        asked: &ListTasksRequest,
        caller: Option<&Principal>,
    ) -> Result<ListTasksResponse, String> {
        let size = match asked.page_size {
            None => PAGE,
            Some(size) if (1..=MAX_PAGE).contains(&size) => size,
            Some(_) => return Err(format!("pageSize: expected 1 to {MAX_PAGE}")),
        };
        if asked.history_length.is_some_and(|length| length < 0) {
            return Err("historyLength: expected 0 or more".to_owned());
        }
        let before = match asked.page_token.as_deref() {
            None | Some("") => u64::MAX,
            Some(token) => token
                .parse()
                .map_err(|_| "pageToken: it is of no page that was given here".to_owned())?,
        };
        let fits = |record: &&Record| {
            let task = &record.task;
            record.owner.as_ref() == caller
                && asked.context_id.as_ref().is_none_or(|context| *context == task.context_id)
                && asked.status.as_ref().is_none_or(|state| *state == task.status.state)
                && asked
                    .status_timestamp_after
                    .is_none_or(|after| task.status.timestamp.is_some_and(|time| time >= after))
        };
        let newest = self.order.iter().rev().filter_map(|(_, id)| self.records.get(id));
        let all: Vec<&Record> = newest.filter(fits).collect();
        let mut rest = all.iter().filter(|record| record.number < before).peekable();
        let page: Vec<&&Record> =
            rest.by_ref().take(usize::try_from(size).unwrap_or_default()).collect();
        let next = page.last().filter(|_| rest.peek().is_some()).map(|last| last.number.to_string());
        let tasks = page.iter().map(|record| {
            let task = &record.task;
            let artifacts = || task.artifacts.clone().unwrap_or_default();
            let mut shown = Task {
                id: task.id.clone(),
                context_id: task.context_id.clone(),
                status: task.status.clone(),
                artifacts: (asked.include_artifacts == Some(true)).then(artifacts),
                history: task.history.clone(),
                metadata: task.metadata.clone(),
            };
            shorten(&mut shown, asked.history_length);
            shown
        });
        Ok(ListTasksResponse {
            tasks: tasks.collect(),
            next_page_token: next.unwrap_or_default(),
            page_size: size,
            total_size: i32::try_from(all.len()).unwrap_or(i32::MAX),
        })
    }

    /// Removes the oldest finished task except this one. Returns whether there was one.
    fn make_room(&mut self, but: Option<&str>) -> bool {
        let is_over = |id: &&String| {
            self.records.get(*id).is_some_and(|record| record.live.is_none()) && Some(id.as_str()) != but
        };
        let Some(id) = self.order.iter().map(|(_, id)| id).find(is_over).cloned() else { return false };
        self.forget(&id);
        true
    }
}

/// Leaves at most so many messages, the newest.
pub(super) fn shorten(task: &mut Task, length: Option<i32>) {
    let Some(length) = length.and_then(|length| usize::try_from(length).ok()) else { return };
    if length == 0 {
        task.history = None;
    } else if let Some(history) = &mut task.history {
        history.drain(..history.len().saturating_sub(length));
    }
}

/// Whether nothing more happens until the caller acts.
pub(super) fn is_callers_turn(state: &TaskState) -> bool {
    state.is_terminal() || matches!(state, TaskState::InputRequired | TaskState::AuthRequired)
}

/// The approximate size in bytes.
pub(super) fn size(value: &impl serde::Serialize) -> usize {
    /// Counts what is written.
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // Nothing that is written into a number fails.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2a::{Part, Role, TaskStatus, TaskStatusUpdateEvent};
    use proptest::prelude::*;

    const BOUNDS: Bounds =
        Bounds { tasks: 3, bytes: 1 << 20, task_bytes: 1 << 16, age: Duration::from_secs(60) };

    fn task(id: &str, state: TaskState) -> Task {
        Task {
            id: id.to_owned(),
            context_id: format!("context of {id}"),
            status: TaskStatus { state, message: None, timestamp: Some(Utc::now()) },
            artifacts: None,
            history: Some(vec![Message::new(Role::User, vec![Part::text("x")])]),
            metadata: None,
        }
    }

    fn live() -> Live {
        Live { events: broadcast::channel(8).0, token: CancellationToken::new(), asking: None }
    }

    fn begin(table: &mut Table, id: &str, owner: Option<&Principal>) -> bool {
        table.add(task(id, TaskState::Submitted), owner.cloned(), Some(live()))
    }

    fn become_of(table: &mut Table, id: &str, state: TaskState) {
        table.change(id, |task| updated(task, state));
    }

    fn updated(task: &mut Task, state: TaskState) -> (StreamResponse, usize) {
        task.status = TaskStatus { state, message: None, timestamp: Some(Utc::now()) };
        let event = StreamResponse::StatusUpdate(TaskStatusUpdateEvent {
            task_id: task.id.clone(),
            context_id: task.context_id.clone(),
            status: task.status.clone(),
            metadata: None,
        });
        (event, 0)
    }

    fn asked(json: serde_json::Value) -> ListTasksRequest {
        serde_json::from_value(json).unwrap()
    }

    fn ids(list: &ListTasksResponse) -> Vec<&str> {
        list.tasks.iter().map(|task| task.id.as_str()).collect()
    }

    #[test]
    fn a_caller_sees_only_its_own_tasks() {
        let mut table = Table::new(BOUNDS);
        let (ada, bob) = (Principal::token("ada"), Principal::token("bob"));
        assert!(begin(&mut table, "a", Some(&ada)));
        assert!(table.of("a", Some(&ada)).is_some());
        assert!(table.of("a", Some(&bob)).is_none() && table.of("a", None).is_none());
        let all = asked(serde_json::json!({}));
        assert_eq!(ids(&table.list(&all, Some(&ada)).unwrap()), ["a"]);
        assert_eq!(table.list(&all, Some(&bob)).unwrap().total_size, 0);
    }

    #[test]
    fn what_is_over_makes_room_the_oldest_first_and_what_is_at_work_does_not() {
        let mut table = Table::new(BOUNDS);
        for id in ["a", "b", "c"] {
            assert!(begin(&mut table, id, None));
        }
        assert!(!begin(&mut table, "d", None), "all are at work");
        become_of(&mut table, "b", TaskState::Completed);
        become_of(&mut table, "a", TaskState::Failed);
        assert!(begin(&mut table, "d", None));
        assert!(table.get("b").is_none() && table.get("a").is_some());
        become_of(&mut table, "a", TaskState::Working);
        assert_eq!(table.get("a").unwrap().task.status.state, TaskState::Failed, "the end is the end");
    }

    #[test]
    fn what_is_over_for_long_is_forgotten() {
        let mut table = Table::new(BOUNDS);
        begin(&mut table, "a", None);
        begin(&mut table, "b", None);
        become_of(&mut table, "a", TaskState::Completed);
        table.note_changes();
        table.expire(Utc::now());
        assert!(table.get("a").is_some());
        table.expire(Utc::now() + Duration::from_secs(61));
        assert!(table.get("a").is_none() && table.get("b").is_some());
        assert!(table.begin_writing());
        assert!(!table.begin_writing(), "a writer is already running");
        become_of(&mut table, "b", TaskState::Working);
        let (count, rows) = table.take_changes().unwrap();
        let rows: Vec<_> = rows.iter().map(|(id, task)| (id.as_str(), task.is_some())).collect();
        assert_eq!((count, rows), (2, vec![("a", false), ("b", true)]));
        assert!(table.take_changes().is_none() && !table.begin_writing());
        become_of(&mut table, "b", TaskState::Completed);
        assert!(table.begin_writing());
    }

    #[test]
    fn a_list_comes_in_pages_the_newest_state_first() {
        let mut table = Table::new(Bounds { tasks: 10, ..BOUNDS });
        for id in ["a", "b", "c", "d"] {
            begin(&mut table, id, None);
        }
        become_of(&mut table, "a", TaskState::Completed);
        let first = table.list(&asked(serde_json::json!({"pageSize": 3})), None).unwrap();
        assert_eq!((ids(&first), first.total_size), (vec!["a", "d", "c"], 4));
        let next = serde_json::json!({"pageSize": 3, "pageToken": first.next_page_token});
        let second = table.list(&asked(next), None).unwrap();
        assert_eq!((ids(&second), second.next_page_token.as_str()), (vec!["b"], ""));
        for (filter, found) in [
            (serde_json::json!({"status": "TASK_STATE_COMPLETED"}), vec!["a"]),
            (serde_json::json!({"contextId": "context of c"}), vec!["c"]),
            (serde_json::json!({"statusTimestampAfter": "2999-01-01T00:00:00Z"}), vec![]),
        ] {
            assert_eq!(ids(&table.list(&asked(filter.clone()), None).unwrap()), found, "{filter}");
        }
        for wrong in [
            serde_json::json!({"pageSize": 0}),
            serde_json::json!({"pageSize": 101}),
            serde_json::json!({"pageToken": "x"}),
            serde_json::json!({"historyLength": -1}),
        ] {
            assert!(table.list(&asked(wrong.clone()), None).is_err(), "{wrong}");
        }
        let bare = table.list(&asked(serde_json::json!({"historyLength": 0})), None).unwrap();
        assert!(bare.tasks.iter().all(|task| task.history.is_none() && task.artifacts.is_none()));
    }

    #[test]
    fn what_passes_is_told_and_counted_and_not_kept() {
        let mut table = Table::new(BOUNDS);
        begin(&mut table, "a", None);
        table.note_changes();
        let mut told = table.get("a").unwrap().live.as_ref().unwrap().events.subscribe();
        table.pass("a", |task| updated(task, TaskState::Working));
        assert!(matches!(*told.try_recv().unwrap(), StreamResponse::StatusUpdate(_)));
        assert_eq!((table.bytes, table.changes()), (size(&*table.get("a").unwrap().task), 0));
        become_of(&mut table, "a", TaskState::Completed);
        assert_eq!(table.changes(), 1);
    }

    proptest! {
        #[test]
        fn a_table_is_never_more_than_its_bounds_and_what_it_counts_is_there(
            steps in proptest::collection::vec((0..6_u8, 0..4_u8), 0..60)
        ) {
            let mut table = Table::new(BOUNDS);
            for (id, what) in steps {
                let id = id.to_string();
                match what {
                    0 if table.get(&id).is_none() => drop(begin(&mut table, &id, None)),
                    1 => become_of(&mut table, &id, TaskState::Working),
                    2 => become_of(&mut table, &id, TaskState::Completed),
                    3 => table.forget(&id),
                    _ => {}
                }
                prop_assert!(table.records.len() <= BOUNDS.tasks);
                prop_assert_eq!(table.records.len(), table.order.len());
                let bytes: usize = table.records.values().map(|record| size(&*record.task)).sum();
                prop_assert_eq!(table.bytes, bytes);
                for record in table.records.values() {
                    prop_assert_eq!(record.live.is_none(), record.task.status.state.is_terminal());
                }
            }
        }
    }
}
