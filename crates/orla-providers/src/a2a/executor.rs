//! Runs the calls of agents: sends the message, follows its task, and ends the task when the call ends.

use std::any::TypeId;
use std::sync::Arc;
use std::time::Duration;

use a2a::{Message, SendMessageConfiguration, SendMessageRequest, StreamResponse, TaskState};
use async_trait::async_trait;
use futures_util::StreamExt as _;
use orla_marketplace::{
    A2ACapability, CallContext, CapabilityExecutor, ClientError, Hops, JsonText, Notice, Outcome,
    Payload, Progress, ProviderStatus, ProviderType, RuntimeError, RuntimeResult,
};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::agent::Agent;
use super::agents::{Agents, Connected};
use super::gather::{Gathered, InvalidEvent, Turn};
use super::wire::{Events, Fault, Wire};
use super::{answer, input};
use crate::deadline::effective_deadline;

/// The first pause between polls of a task.
const POLL_MIN: Duration = Duration::from_millis(50);
/// The maximum pause between polls of a task.
const POLL_MAX: Duration = Duration::from_secs(2);
/// How long an agent may take to end a task that is no longer needed.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(2);
/// How much longer than its own time a call waits for the end of its task. After that, the attempt
/// continues in the background.
const END_GRACE: Duration = Duration::from_millis(30);
/// How long after an answer a repeated question counts as the same question.
const REPEATED_QUESTION: Duration = Duration::from_secs(10);
/// The maximum number of questions of an agent in one call.
const MAX_QUESTIONS: usize = 32;

/// Runs [`A2ACapability`] providers (RTFS capability system §3.3).
///
/// A message is sent once. Its task is followed by events if the agent streams, and otherwise by
/// polling. After a broken connection the task is resumed. A task that outlives its call is cancelled.
///
/// Capabilities of one agent share its connections, which end when the executor and its clones are
/// dropped.
#[derive(Clone, Debug, Default)]
pub struct A2AExecutor {
    agents: Arc<Agents>,
}

impl A2AExecutor {
    /// Creates an executor with its own connections. No connection is opened before the first call.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an executor that uses the connections of `agents`.
    pub fn with_agents(agents: Arc<Agents>) -> Self {
        Self { agents }
    }
}

#[async_trait]
impl CapabilityExecutor for A2AExecutor {
    fn provider_type_id(&self) -> TypeId {
        TypeId::of::<A2ACapability>()
    }

    async fn execute(
        &self,
        provider: &ProviderType,
        inputs: &Payload,
        ctx: &CallContext,
    ) -> RuntimeResult<Outcome> {
        let settings: &A2ACapability = provider.settings()?;
        let message = input::message(inputs.json()?.as_str(), settings.options.skill.as_deref(), ctx)?;
        let agent = match connected(settings) {
            Some(connected) => Arc::clone(&connected.agent),
            None => self.agents.reach(settings).map_err(|problem| RuntimeError::Failed {
                id: ctx.name.to_string(),
                message: format!("{} failed: {problem}", ctx.name),
                outcome: None,
            })?,
        };
        // An agent may be another orla, which leads back to this one.
        let hops = ctx.scope.hops.through(&agent.host());
        let hops = hops.map_err(|what| RuntimeError::Limit { id: ctx.name.to_string(), what })?;
        let (deadline, limit) = effective_deadline(settings.timeout_ms, ctx);
        let leave = CancellationToken::new();
        let mut conversation =
            Box::pin(run_conversation(Arc::clone(&agent), message, leave.clone(), hops, ctx.clone()));
        let ended = tokio::select! {
            biased;
            () = ctx.scope.cancellation.cancelled() => Err(End::Cancelled),
            done = timeout_at(deadline, &mut conversation) => done.map_err(|_| End::TimedOut),
        };
        let (end, gathered) = match ended {
            Ok((result, gathered)) => (End::Over(result), gathered),
            Err(end) => {
                // The task can be ended only once its id is known.
                leave.cancel();
                match timeout(END_GRACE, &mut conversation).await {
                    Ok((_, gathered)) => (end, gathered),
                    Err(_) => {
                        let (agents, agent) = (Arc::clone(&self.agents), Arc::clone(&agent));
                        let ctx = ctx.clone();
                        self.agents.detach(async move {
                            if let Ok((_, gathered)) = timeout(CANCEL_TIMEOUT, conversation).await {
                                cancel_task(&agents, &agent, &gathered, &ctx).await;
                            }
                        });
                        (end, Gathered::default())
                    }
                }
            }
        };
        let (name, host) = (ctx.name.to_string(), agent.host());
        let partial = |gathered: &Gathered| Some(Box::new(answer::partial(gathered, &host, ctx)));
        match end {
            End::Over(Ok(())) => {
                // The agent has exceeded the number of questions.
                if gathered.turn() == Turn::Working {
                    cancel_task(&self.agents, &agent, &gathered, ctx).await;
                }
                answer::result(&gathered, ctx)
            }
            End::Over(Err(Stop::Declined)) => {
                cancel_task(&self.agents, &agent, &gathered, ctx).await;
                let message = format!("{name} failed: the agent's question was not answered");
                Err(RuntimeError::Failed { id: name, message, outcome: partial(&gathered) })
            }
            End::Over(Err(Stop::Fault(fault))) => {
                cancel_task(&self.agents, &agent, &gathered, ctx).await;
                let error = fault.of(&name, &host);
                match gathered.is_empty() {
                    true => Err(error),
                    false => {
                        let message = match &error {
                            RuntimeError::Failed { message, .. } => message.clone(),
                            other => format!("{name} failed: {other}"),
                        };
                        Err(RuntimeError::Failed { id: name, message, outcome: partial(&gathered) })
                    }
                }
            }
            End::TimedOut => {
                cancel_task(&self.agents, &agent, &gathered, ctx).await;
                Err(RuntimeError::TimedOut { id: name, limit, outcome: partial(&gathered) })
            }
            End::Cancelled => {
                cancel_task(&self.agents, &agent, &gathered, ctx).await;
                let outcome = if gathered.is_empty() { None } else { partial(&gathered) };
                Err(RuntimeError::Cancelled { id: name, outcome })
            }
        }
    }

    fn status(&self, provider: &ProviderType) -> ProviderStatus {
        let mut status = ProviderStatus::default();
        if let Ok(settings) = provider.settings::<A2ACapability>() {
            let connected = connected(settings);
            status.source = Some(
                connected.map_or_else(|| settings.agent_id.clone(), |connected| connected.agent.host()),
            );
            let agent = connected.map(|connected| &connected.agent);
            let info = agent.and_then(|agent| agent.info());
            status.interpreter = info.map(|info| info.wire.binding().to_owned());
            status.last_failure = agent.and_then(|agent| agent.failure());
        }
        status
    }
}

fn connected(settings: &A2ACapability) -> Option<&Connected> {
    settings.options.connection.as_ref()?.get()
}

/// How a conversation ended.
enum End {
    Over(Result<(), Stop>),
    TimedOut,
    Cancelled,
}

/// The reason why a conversation stopped before its end.
enum Stop {
    Fault(Fault),
    /// The caller's client declines to answer.
    Declined,
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// Runs a conversation that owns its parts, so that it can outlive its call. Returns the gathered events
/// too.
async fn run_conversation(
    agent: Arc<Agent>,
    message: Message,
    leave: CancellationToken,
    hops: Hops,
    ctx: CallContext,
) -> (Result<(), Stop>, Gathered) {
    let mut gathered = Gathered::default();
    let result = converse(&agent, message, &mut gathered, &leave, &hops, &ctx).await;
    (result, gathered)
}

/// Converses until the agent is done, or requires something that orla cannot provide. After `leave`,
/// ends as soon as the id of the task, if there is one, is known.
async fn converse(
    agent: &Agent,
    message: Message,
    gathered: &mut Gathered,
    leave: &CancellationToken,
    hops: &Hops,
    ctx: &CallContext,
) -> Result<(), Stop> {
    let Some(info) = leave.run_until_cancelled(agent.fetch_info()).await else { return Ok(()) };
    let info = info?;
    let wire = agent.wire(&info, ctx)?.carrying(&ctx.scope, hops);
    let is_streaming = info.card.streaming;
    let mut progress = ProgressReporter { ctx, reports: 0.0 };
    let metadata = message.metadata.clone();
    let mut next = Some(message);
    for _ in 0..MAX_QUESTIONS {
        let Some(message) = next.take().filter(|_| !leave.is_cancelled()) else { break };
        let last = begin(&wire, message, is_streaming, gathered, leave, &mut progress).await?;
        let following = follow(&wire, last, is_streaming, gathered, &mut progress);
        let Some(end) = leave.run_until_cancelled(following).await else { break };
        end?;
        let is_question =
            gathered.turn() == Turn::Asking && gathered.state == Some(TaskState::InputRequired);
        let Some(task) = gathered.task.clone().filter(|_| is_question) else { break };
        let Some(Some(text)) = leave.run_until_cancelled(ask_client(gathered, ctx)).await.transpose()?
        else {
            break;
        };
        let mut reply = input::reply(&text, &task, gathered.context.as_deref());
        // The same skill continues.
        reply.metadata.clone_from(&metadata);
        next = Some(reply);
        gathered.answered();
    }
    Ok(())
}

/// Sends a message and handles the events of its answer. Returns how the answer ended.
async fn begin(
    wire: &Wire,
    message: Message,
    is_streaming: bool,
    gathered: &mut Gathered,
    leave: &CancellationToken,
    progress: &mut ProgressReporter<'_>,
) -> Result<Result<(), Fault>, Fault> {
    let answered = message.task_id.clone();
    let request = SendMessageRequest {
        message,
        configuration: Some(SendMessageConfiguration {
            accepted_output_modes: None,
            task_push_notification_config: None,
            history_length: None,
            // The task can be ended only if its id is known. An immediate answer also contains a task
            // that still asks.
            return_immediately: Some(answered.is_none()),
        }),
        metadata: None,
        tenant: None,
    };
    let sent = wire.send(request, is_streaming);
    let mut events = match answered.as_ref() {
        None => sent.await?,
        Some(task) => match leave.run_until_cancelled(sent).await {
            Some(events) => events?,
            None => {
                gathered.task.get_or_insert_with(|| task.clone());
                return Ok(Ok(()));
            }
        },
    };
    if (answered.is_some() || gathered.task.is_none())
        && let Some(first) = events.next().await
        && let Err(fault) = first.and_then(|event| apply(event, gathered, progress))
    {
        return Ok(Err(fault));
    }
    // The first event of an agent is the state of its task at the time of the answer.
    if answered.is_some() && gathered.turn() == Turn::Asking {
        let next = timeout(REPEATED_QUESTION, events.next());
        if let Some(Ok(Some(event))) = leave.run_until_cancelled(next).await
            && let Err(fault) = event.and_then(|event| apply(event, gathered, progress))
        {
            return Ok(Err(fault));
        }
    }
    let rest = leave.run_until_cancelled(read_events(events, gathered, progress)).await;
    Ok(rest.unwrap_or(Ok(())))
}

/// Follows a task until it is the caller's turn.
async fn follow(
    wire: &Wire,
    mut last: Result<(), Fault>,
    is_streaming: bool,
    gathered: &mut Gathered,
    progress: &mut ProgressReporter<'_>,
) -> Result<(), Fault> {
    let (mut pause, mut can_subscribe) = (POLL_MIN, is_streaming);
    loop {
        match last {
            // The agent may become reachable again, and its task continues there.
            Ok(()) | Err(Fault::Unavailable(_)) if gathered.turn() != Turn::Working => return Ok(()),
            Ok(()) | Err(Fault::Unavailable(_)) => {}
            Err(fault) => return Err(fault),
        }
        let Some(task) = gathered.task.clone() else {
            return Err(last
                .err()
                .unwrap_or_else(|| Fault::Invalid("it answers with nothing".to_owned())));
        };
        last = poll(wire, &task, gathered, progress).await;
        if can_subscribe && last.is_ok() && gathered.turn() == Turn::Working {
            last = match wire.subscribe(&task).await {
                Ok(events) => {
                    let end = read_events(events, gathered, progress).await;
                    if end.is_ok() && gathered.turn() == Turn::Done {
                        // Only the agent knows the events during the interruption.
                        let _ = poll(wire, &task, gathered, progress).await;
                    }
                    end
                }
                Err(Fault::Refused(_)) => {
                    can_subscribe = false;
                    Ok(())
                }
                Err(fault) => Err(fault),
            };
        }
        if gathered.turn() == Turn::Working {
            sleep(pause).await;
            pause = POLL_MAX.min(pause * 2);
        }
    }
}

/// Handles events until it is the caller's turn, or there are no more.
async fn read_events(
    mut events: Events,
    gathered: &mut Gathered,
    progress: &mut ProgressReporter<'_>,
) -> Result<(), Fault> {
    while gathered.turn() == Turn::Working
        && let Some(event) = events.next().await
    {
        apply(event?, gathered, progress)?;
    }
    Ok(())
}

/// Requests the state of a task.
async fn poll(
    wire: &Wire,
    task: &str,
    gathered: &mut Gathered,
    progress: &mut ProgressReporter<'_>,
) -> Result<(), Fault> {
    let task = wire.get(task).await?;
    apply(StreamResponse::Task(task), gathered, progress)
}

fn apply(
    event: StreamResponse,
    gathered: &mut Gathered,
    progress: &mut ProgressReporter<'_>,
) -> Result<(), Fault> {
    match gathered.apply(event) {
        Ok(message) => {
            if gathered.turn() == Turn::Working {
                progress.report(message);
            }
            Ok(())
        }
        Err(InvalidEvent::TooLarge) => Err(Fault::TooLarge),
        Err(error) => Err(Fault::Invalid(error.to_string())),
    }
}

/// Reports the agent's progress to the caller.
struct ProgressReporter<'a> {
    ctx: &'a CallContext,
    reports: f64,
}

impl ProgressReporter<'_> {
    fn report(&mut self, message: Option<String>) {
        if self.ctx.scope.notices.is_wanted() {
            self.reports += 1.0;
            let progress = Progress { progress: self.reports, total: None, message };
            self.ctx.scope.notices.send(Notice::Progress(progress));
        }
    }
}

/// Returns the client's answer to the agent's question; `None` if there is no client to ask.
async fn ask_client(gathered: &Gathered, ctx: &CallContext) -> Result<Option<String>, Stop> {
    let Some(client) = ctx.scope.client.as_ref().filter(|client| can_answer(&client.capabilities()))
    else {
        return Ok(None);
    };
    let question = gathered.last_message().unwrap_or_else(|| "The agent needs more input.".to_owned());
    let question = json!({
        "mode": "form",
        "message": question,
        "requestedSchema": {"type": "object", "properties": {"answer": {"type": "string", "title": "Answer"}}, "required": ["answer"]},
    });
    let Ok(question) = JsonText::of(&question) else { return Ok(None) };
    let answer = match client.request("elicitation/create", question).await {
        Ok(answer) => answer,
        Err(ClientError::Refused { .. }) => return Err(Stop::Declined),
        Err(_) => return Ok(None),
    };
    let answer: Value = serde_json::from_str(answer.as_str()).unwrap_or_default();
    match (answer["action"].as_str(), answer["content"]["answer"].as_str()) {
        (Some("accept"), Some(text)) => Ok(Some(text.to_owned())),
        _ => Err(Stop::Declined),
    }
}

/// Returns whether a client with these capabilities shows forms (MCP 2025-11-25, elicitation).
fn can_answer(capabilities: &JsonText) -> bool {
    let declared: Value = serde_json::from_str(capabilities.as_str()).unwrap_or_default();
    match declared.get("elicitation") {
        Some(Value::Object(modes)) => modes.is_empty() || modes.contains_key("form"),
        _ => false,
    }
}

/// Asks the agent to end the task of a call that is over. The answer is awaited only briefly, and
/// otherwise in the background.
async fn cancel_task(agents: &Agents, agent: &Arc<Agent>, gathered: &Gathered, ctx: &CallContext) {
    let (Some(task), Some(info)) = (gathered.task.clone(), agent.info()) else { return };
    let Ok(wire) = agent.wire(&info, ctx) else { return };
    if gathered.turn() == Turn::Done {
        return;
    }
    let agent = Arc::clone(agent);
    let cancelled = agents.detach(async move {
        let end = timeout(CANCEL_TIMEOUT, wire.cancel(&task)).await;
        if !matches!(end, Ok(Ok(()))) {
            tracing::debug!(agent = agent.settings.name, task, "a task could not be cancelled");
        }
    });
    let _ = timeout(END_GRACE, cancelled).await;
}
