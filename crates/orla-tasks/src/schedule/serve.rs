//! Starts the tasks of schedules at their times.

use std::sync::Arc;
use std::time::Duration;

use orla_marketplace::{JsonText, Payload, Principal};
use orla_state::{Change, Expect, Query, StateError};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::expression::Expression;
use super::plan::{self, Overlap, Record};
use crate::error::TaskError;
use crate::keys::SCHEDULES;
use crate::service::{Tasks, Viewer};
use crate::start::NewTask;
use crate::task::Timestamp;

/// The longest time between two reads of the clock, which may be set.
const MAX_CLOCK_WAIT: Duration = Duration::from_secs(30);
/// The time until the next look at a schedule whose firings wait for a task, or whose record could not
/// be written.
const SOON: Duration = Duration::from_millis(500);
/// A record that is later than the clock by this much was written by a wrong clock.
const WRONG_CLOCK: u64 = 24 * 3600 * 1000;

/// A task that is started at set times.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// Unique in the configuration; letters, digits, `_`, `-` and `.`.
    pub name: String,
    /// The times.
    pub expression: Expression,
    /// The capability. A program is a call of `rtfs`.
    pub capability: String,
    /// Whether its tasks are programs.
    pub is_program: bool,
    /// The input.
    pub input: JsonText,
    /// What happens while the previous task is not over.
    pub overlap: Overlap,
    /// The maximum number of missed instants that are made up for.
    pub catch_up: usize,
    /// The owner of its tasks.
    pub owner: Option<Principal>,
}

/// The status of a schedule, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScheduleStatus {
    /// Its name.
    pub name: String,
    /// The cron expression.
    pub schedule: String,
    /// The time zone.
    pub time_zone: String,
    /// The next instant.
    pub next: Option<Timestamp>,
    /// The reason why its last firing started no task.
    pub problem: Option<String>,
}

/// The schedules of an instance. Cloning shares them.
#[derive(Clone)]
pub struct Schedules(Arc<Inner>);

struct Inner {
    tasks: Tasks,
    /// Instants before this time were missed.
    since: Timestamp,
    configured: Mutex<Vec<Configured>>,
    changed: Notify,
}

#[derive(Clone)]
struct Configured {
    schedule: Arc<Schedule>,
    problem: Option<String>,
}

impl Schedules {
    /// Makes an empty set of schedules, whose tasks are started in `tasks`.
    /// [`configure`](Self::configure) adds schedules.
    pub fn new(tasks: Tasks) -> Self {
        let inner = Inner {
            tasks,
            since: Timestamp::now(),
            configured: Mutex::default(),
            changed: Notify::new(),
        };
        Self(Arc::new(inner))
    }

    /// Replaces the schedules. A schedule whose expression or zone has changed begins anew.
    pub fn configure(&self, schedules: Vec<Schedule>) {
        let configured = schedules
            .into_iter()
            .map(|schedule| Configured { schedule: Arc::new(schedule), problem: None });
        *self.0.configured.lock() = configured.collect();
        self.0.changed.notify_one();
    }

    /// Returns the schedules with their next instants, in the order of the configuration.
    pub fn status(&self) -> Vec<ScheduleStatus> {
        let now = Timestamp::now();
        let status = |configured: &Configured| {
            let schedule = &configured.schedule;
            ScheduleStatus {
                name: schedule.name.clone(),
                schedule: schedule.expression.as_str().to_owned(),
                time_zone: schedule.expression.time_zone().to_owned(),
                next: schedule.expression.next(now),
                problem: configured.problem.clone(),
            }
        };
        self.0.configured.lock().iter().map(status).collect()
    }

    /// Starts tasks from now on, until the tasks are drained.
    pub fn serve(&self) {
        let inner = Arc::clone(&self.0);
        let closing = self.0.tasks.0.closing.clone();
        self.0.tasks.0.tracker.spawn(async move {
            loop {
                let changed = inner.changed.notified();
                let wait = inner.fire_due().await;
                tokio::select! {
                    () = closing.cancelled() => return,
                    () = changed => inner.forget_removed().await,
                    () = tokio::time::sleep(wait) => {}
                }
            }
        });
    }
}

impl Inner {
    /// Fires what is due. Returns the time until the next call.
    async fn fire_due(&self) -> Duration {
        let mut wait = MAX_CLOCK_WAIT;
        let configured = self.configured.lock().clone();
        for Configured { schedule, problem: before } in configured {
            let (next, problem) = match self.fire(&schedule).await {
                Ok((next, problem)) => (next, problem),
                Err(error) => (SOON * 10, Some(error.to_string())),
            };
            wait = wait.min(next);
            if problem != before {
                if let Some(problem) = &problem {
                    tracing::error!(schedule = schedule.name, problem, "a schedule started no task");
                }
                let mut configured = self.configured.lock();
                let own = configured.iter_mut().find(|own| Arc::ptr_eq(&own.schedule, &schedule));
                if let Some(own) = own {
                    own.problem = problem;
                }
            }
        }
        wait
    }

    /// Fires the due instants of one schedule. Returns the time until the next call, and the reason if a
    /// task was not started.
    async fn fire(&self, schedule: &Schedule) -> Result<(Duration, Option<String>), TaskError> {
        let now = Timestamp::now();
        let (record, is_new, expect) = self.record(schedule, now).await?;
        let due = plan::due(&schedule.expression, record.last, self.since, now, schedule.catch_up);
        let is_running = self.is_running(&record).await?;
        let step = plan::step(schedule.overlap, is_running, record.waiting.clone(), &due);
        for skipped in &step.skipped {
            let (schedule, at) = (&schedule.name, skipped.to_string());
            tracing::warn!(schedule, at, "left out, as the task before is not over");
        }
        let (mut task, mut problem) = (record.task.clone(), None);
        for at in &step.start {
            match self.tasks.start(new_task(schedule, *at)).await {
                Ok(started) => task = Some(started.task.id.to_string()),
                // Retried.
                Err(error @ (TaskError::State(_) | TaskError::Full(_) | TaskError::Closing)) => {
                    return Err(error);
                }
                Err(error) => problem = Some(format!("{at}: {error}")),
            }
        }
        let after = Record { last: due.last, waiting: step.waiting, task, ..record.clone() };
        if is_new || after != record {
            let value = serde_json::to_vec(&after).map_err(|err| StateError::new(err.to_string()))?;
            let key = format!("{SCHEDULES}{}", schedule.name);
            if !self.tasks.0.write_if(vec![Change::put(key, value).expecting(expect)]).await? {
                // Another node has fired the schedule. The tasks of this node have the same keys.
                return Ok((SOON, problem));
            }
        }
        let next = schedule.expression.next(Timestamp::now());
        let until = next.map_or(MAX_CLOCK_WAIT, |next| {
            Duration::from_millis(next.0.saturating_sub(Timestamp::now().0))
        });
        let until = if after.waiting.is_empty() { until } else { until.min(SOON) };
        Ok((until, problem))
    }

    /// Returns the record of a schedule, whether it must be written, and the expected stored record.
    async fn record(
        &self,
        schedule: &Schedule,
        now: Timestamp,
    ) -> Result<(Record, bool, Expect), StateError> {
        let key = format!("{SCHEDULES}{}", schedule.name);
        let kept = self.tasks.0.store.get(&key).await?;
        let expect = kept.as_ref().map_or(Expect::Absent, |kept| Expect::Revision(kept.revision));
        let kept = kept.and_then(|kept| serde_json::from_slice::<Record>(&kept.value).ok());
        let (expression, zone) = (schedule.expression.as_str(), schedule.expression.time_zone());
        match kept {
            Some(kept)
                if kept.expression == expression
                    && kept.time_zone == zone
                    && kept.last.0 <= now.0.saturating_add(WRONG_CLOCK) =>
            {
                Ok((kept, false, expect))
            }
            kept => {
                let record = Record {
                    expression: expression.to_owned(),
                    time_zone: zone.to_owned(),
                    last: now,
                    waiting: Vec::new(),
                    task: kept.and_then(|kept| kept.task),
                };
                Ok((record, true, expect))
            }
        }
    }

    async fn is_running(&self, record: &Record) -> Result<bool, TaskError> {
        let Some(task) = &record.task else { return Ok(false) };
        match self.tasks.get(task, Viewer::Operator).await {
            Ok(task) => Ok(!task.state.is_terminal()),
            // The task was over and is no longer kept.
            Err(TaskError::Unknown(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes the records of schedules that are no longer configured. A schedule that returns begins
    /// anew.
    async fn forget_removed(&self) {
        // Other nodes may have other schedules.
        if self.tasks.0.is_shared() {
            return;
        }
        /// More schedules than a configuration can have.
        const MAX: usize = 10_000;
        let Ok(records) = self.tasks.0.store.list(Query::below(SCHEDULES, MAX)).await else { return };
        let removed: Vec<Change> = {
            let configured = self.configured.lock();
            let is_configured =
                |name: &str| configured.iter().any(|configured| configured.schedule.name == name);
            let name = |key: &str| key.strip_prefix(SCHEDULES).unwrap_or_default().to_owned();
            let removed = records.iter().filter(|record| !is_configured(&name(&record.key)));
            removed.map(|record| Change::remove(record.key.clone())).collect()
        };
        if !removed.is_empty()
            && let Err(error) = self.tasks.0.write(removed).await
        {
            tracing::warn!(%error, "the records of removed schedules stay");
        }
    }
}

/// Returns the task of an instant. Its idempotency key consists of the schedule's name and the instant.
fn new_task(schedule: &Schedule, at: Timestamp) -> NewTask {
    let input = Payload::from_json(schedule.input.clone());
    let mut new = NewTask::call(schedule.capability.as_str(), input, schedule.owner.clone());
    new.is_program = schedule.is_program;
    new.schedule = Some(schedule.name.clone());
    new.key = Some(format!("{SCHEDULES}{}/{at}", schedule.name));
    new
}
