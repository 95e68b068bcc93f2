//! Tasks in the state of this directory, which no server uses.

use std::sync::Arc;
use std::time::Duration;

use orla_marketplace::{CapabilityMarketplace, JsonText, Payload};
use orla_server::{ResultForm, task_json, task_json_with_result};
use orla_state::StateStore;
use orla_tasks::{Filter, NewTask, State, TaskError, TaskId, Tasks, Viewer};
use tokio_util::sync::CancellationToken;

use super::print::{print_list, print_result, print_task};
use crate::app::App;
use crate::cli::{TaskCommand, TaskList, TaskRun};
use crate::commands::call::until_stopped;
use crate::commands::records::CallRecords;
use crate::config::Config;
use crate::served::limits;
use crate::signals::Signals;
use crate::{Failure, render, state};

pub(super) async fn run(
    command: &TaskCommand,
    wanted: Option<JsonText>,
    config: &Config,
) -> Result<(), Failure> {
    let store = state::of_command(config).await?;
    let done = with_store(command, wanted.unwrap_or_default(), config, &store).await;
    store.close().await;
    done
}

async fn with_store(
    command: &TaskCommand,
    wanted: JsonText,
    config: &Config,
    store: &Arc<dyn StateStore>,
) -> Result<(), Failure> {
    if let TaskCommand::Run(run) = command {
        let app = App::build_local(config)?;
        let records = CallRecords::of(&app, config)?;
        let tasks = tasks(store, app.marketplace(), config);
        let done = start(run, wanted, &tasks).await;
        tasks.close(Duration::ZERO).await;
        app.end_providers().await;
        records.end().await;
        return done;
    }
    // Reading tasks requires no capabilities.
    let tasks = tasks(store, &Arc::new(CapabilityMarketplace::new(limits(config))), config);
    match command {
        TaskCommand::Run(_) => Ok(()),
        TaskCommand::List(list) => {
            let found = tasks.list(&filter(list)?, Viewer::Operator).await.map_err(failed)?;
            let rows: Vec<String> = found.iter().map(|task| task_json(task).to_string()).collect();
            print_list(&format!("[{}]", rows.join(",")), list, "There are no tasks.")
        }
        TaskCommand::Show { id, json } => print_task(&text(&tasks, id, ResultForm::Plain).await?, *json),
        TaskCommand::Wait { id } => {
            let task = tasks.get(id, Viewer::Operator).await.map_err(failed)?;
            if !task.state.is_terminal() {
                let what =
                    format!("{id} is {}, and no server runs here: start one with `orla`", task.state);
                return Err(Failure::failed(what));
            }
            print_result(&text(&tasks, id, ResultForm::Mcp).await?)
        }
        TaskCommand::Cancel { id } => {
            tasks.cancel(id, Viewer::Operator).await.map_err(failed)?;
            render::note("Cancelled.");
            Ok(())
        }
        TaskCommand::Event { id, name, .. } => {
            tasks.event(id, Viewer::Operator, name, wanted).await.map_err(failed)?;
            render::note("Sent.");
            Ok(())
        }
    }
}

fn tasks(store: &Arc<dyn StateStore>, market: &Arc<CapabilityMarketplace>, config: &Config) -> Tasks {
    Tasks::open(Arc::clone(store), Arc::clone(market), config.task_options.clone())
}

/// Stores a task, and runs it if that is wanted.
async fn start(run: &TaskRun, wanted: JsonText, tasks: &Tasks) -> Result<(), Failure> {
    let input = Payload::from_json(wanted);
    let mut new = match run.capability() {
        Some(name) => NewTask::call(name, input, None),
        None => NewTask::program(input, None),
    };
    new.key.clone_from(&run.key);
    let started = tasks.start(new).await.map_err(failed)?;
    let id = &started.task.id;
    if !run.wait {
        render::line(id.as_str());
        if started.task.state == State::Queued {
            render::note("The task is stored. It runs when a server starts here.");
        }
        return Ok(());
    }
    tasks.run_one(&started).await.map_err(failed)?;
    let mut signals = Signals::install().map_err(|err| Failure::failed(err.to_string()))?;
    let cancellation = CancellationToken::new();
    let work = async {
        let mut changes = tasks.subscribe(id.as_str(), Viewer::Operator).await.map_err(failed)?;
        let over = async {
            // It ends with the task.
            drop(changes.wait_for(|task| task.state.is_terminal()).await);
        };
        tokio::select! {
            () = over => {}
            () = cancellation.cancelled() => {
                drop(tasks.cancel(id.as_str(), Viewer::Operator).await);
            }
        }
        text(tasks, id.as_str(), ResultForm::Mcp).await
    };
    print_result(&until_stopped(work, &cancellation, &mut signals).await??)
}

/// Returns a task with its result.
async fn text(tasks: &Tasks, id: &str, form: ResultForm) -> Result<String, Failure> {
    let task = tasks.get(id, Viewer::Operator).await.map_err(failed)?;
    let result = tasks.result(&task.id).await.map_err(failed)?;
    let timeline = tasks.journal(&task).await.map_err(failed)?;
    Ok(task_json_with_result(&task, result.as_ref(), timeline.as_ref(), form))
}

fn filter(list: &TaskList) -> Result<Filter, Failure> {
    let mut filter = Filter::default();
    for word in &list.state {
        let state = word.parse().map_err(|problem| Failure::usage(format!("--state: {problem}")))?;
        filter.states.push(state);
    }
    filter.capability.clone_from(&list.capability);
    filter.limit = Some(list.limit.into());
    if let Some(before) = &list.before {
        let id = TaskId::parse(before);
        filter.before =
            Some(id.ok_or_else(|| Failure::usage(format!("{before:?} is not the id of a task")))?);
    }
    Ok(filter)
}

fn failed(error: TaskError) -> Failure {
    match error {
        TaskError::State(held) if held.is_held() => {
            Failure::usage(format!("{held}: name a server with --url http://HOST:PORT"))
        }
        error => Failure::failed(error.to_string()),
    }
}
