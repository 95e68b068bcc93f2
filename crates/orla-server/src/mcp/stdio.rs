//! The pipe transport: one message a line, for one client (MCP's stdio).
//!
//! # How it works
//!
//! The reader takes lines and waits for nothing else: each request runs in a task of its own, and one task owns
//! the output. When the client does not read, answers wait in a bounded queue and notifications are dropped.
//! Beyond the bound of running requests, new ones are refused.
//!
//! # How it ends
//!
//! At the end of input, requests that were read already have [`END_OF_INPUT_GRACE`] to be answered (so that `echo
//! '…' | orla --stdio` works). Then the remaining ones are cancelled, and their processes end. When the output is
//! closed, everything is cancelled at once. When the server is stopped, requests have the time that
//! [`drain`](crate::ServerOptions::drain) gives them.

mod lines;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use orla_marketplace::Origin;
use orla_marketplace::rtfs::text::excerpt;
use rmcp::model::ErrorData;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufWriter};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::mcp::dispatch::{self, Caller, Job};
use crate::mcp::notify::changes::fan_out;
use crate::mcp::notify::notices::Outlet;
use crate::mcp::protocol::Revision;
use crate::mcp::request_mode::{self, RequestMode};
use crate::mcp::rpc::{self, Id, Message, one_line};
use crate::mcp::session::{Calls, Declared, Session, SessionId};
use crate::mcp::stdio::lines::{Line, Lines};
use crate::state::Core;

/// How long requests may continue after the end of input.
const END_OF_INPUT_GRACE: Duration = Duration::from_millis(500);
/// How long cancelled requests, and then the output, may take to end.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(4);
/// Messages that wait for the client to read.
const QUEUE: usize = 256;

/// Serves one client until its input ends, its output is closed, or `shutdown` is cancelled.
pub(crate) async fn serve<R, W>(core: Arc<Core>, reader: R, writer: W, shutdown: CancellationToken)
where
    R: AsyncRead + Unpin + Send,
    W: AsyncWrite + Unpin + Send + 'static,
{
    core.set_serving();
    core.tracker.spawn(fan_out(Arc::clone(&core)));
    let options = core.settings.load().options.clone();
    let ended = core.abort.child_token();
    let (out, queue) = mpsc::channel(QUEUE);
    let writing = TaskTracker::new().spawn(write(queue, writer, ended.clone()));
    let mut pipe = Pipe {
        core: Arc::clone(&core),
        calls: Calls::new(ended.clone()),
        session: None,
        out,
        running: Arc::new(Semaphore::new(options.max_piped_requests.max(1))),
        tasks: TaskTracker::new(),
    };
    let mut lines = Lines::new(reader, options.max_line_bytes);
    let mut max_wait = END_OF_INPUT_GRACE;
    loop {
        let line = tokio::select! {
            biased;
            () = ended.cancelled() => break,
            () = shutdown.cancelled() => {
                max_wait = options.drain;
                break;
            }
            line = lines.next() => line,
        };
        match line {
            Ok(Some(Line::Text(line))) => pipe.take(&line),
            Ok(Some(Line::TooLong)) => {
                let what = format!("the message is longer than {} bytes", options.max_line_bytes);
                pipe.refuse(None, &ErrorData::invalid_request(what, None));
            }
            Ok(None) => break,
            Err(err) => {
                tracing::warn!(error = %err, "reading the input failed");
                break;
            }
        }
    }
    core.draining.cancel();
    let Pipe { tasks, out, session, .. } = pipe;
    // Dropping the session ends its subscriptions.
    drop(session);
    tasks.close();
    if tokio::time::timeout(max_wait, tasks.wait()).await.is_err() {
        if shutdown.is_cancelled() {
            core.market.stop();
        }
        ended.cancel();
        let _ = tokio::time::timeout(SHUTDOWN_GRACE, tasks.wait()).await;
    }
    // Requests that wait for answers of the client end with its input.
    core.tracker.close();
    if tokio::time::timeout(SHUTDOWN_GRACE, core.tracker.wait()).await.is_err() {
        core.abort.cancel();
        let _ = tokio::time::timeout(SHUTDOWN_GRACE, core.tracker.wait()).await;
    }
    drop(out);
    let abort = writing.abort_handle();
    if tokio::time::timeout(SHUTDOWN_GRACE, writing).await.is_err() {
        abort.abort(); // the client neither reads nor hangs up
    }
}

/// One client's connection.
struct Pipe {
    core: Arc<Core>,
    calls: Arc<Calls>,
    /// Created by `initialize`.
    session: Option<Arc<Session>>,
    out: mpsc::Sender<Bytes>,
    running: Arc<Semaphore>,
    tasks: TaskTracker,
}

impl Pipe {
    /// Handles one line, without waiting.
    fn take(&mut self, line: &Bytes) {
        if line.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        match rpc::parse(line) {
            Err(malformed) => self.refuse(malformed.id.as_ref(), &malformed.error),
            Ok(Message::Response(answer)) => {
                if let Some(session) = &self.session {
                    session.questions.answer(&answer, line);
                }
            }
            Ok(Message::Notification(notification)) => {
                if &*notification.method == "notifications/cancelled"
                    && let Some(key) = notification.params.cancelled_request()
                {
                    self.calls.cancel(&key);
                }
            }
            Ok(Message::Request(request)) => self.request(request, line),
        }
    }

    fn request(&mut self, request: rpc::Request<'_>, line: &Bytes) {
        let meta = request.params.meta();
        let (session, revision) = match request_mode::of_piped_request(
            &request.method,
            &request.params,
            &meta,
        ) {
            Err(refused) => return self.refuse(Some(&request.id), &refused.error),
            Ok(RequestMode::Initialize { requested }) => return self.initialize(&request, &requested),
            Ok(RequestMode::Sessionless { revision }) => (None, revision),
            Ok(RequestMode::Session) => match &self.session {
                Some(session) => (Some(Arc::clone(session)), session.revision),
                None if &*request.method == "ping" => return self.send(rpc::result(&request.id, b"{}")),
                None => {
                    let what = "not initialized: begin with initialize, or send a request of revision 2026-07-28";
                    return self.refuse(Some(&request.id), &ErrorData::invalid_request(what, None));
                }
            },
        };
        let Ok(permit) = Arc::clone(&self.running).try_acquire_owned() else {
            let what = "too many requests are running; wait for some to be answered";
            return self.refuse(Some(&request.id), &ErrorData::internal_error(what, None));
        };
        let Some(running) = self.calls.begin(&request.id) else {
            let what = "a request with this id is still running";
            return self.refuse(Some(&request.id), &ErrorData::invalid_request(what, None));
        };
        let job = Job::of(request, meta, line);
        let outlet = Arc::new(PipeOutlet { out: self.out.clone(), answered: AtomicBool::new(false) });
        let wanted = job.is_subscription() || job.notice_options(session.as_deref()).wants_any();
        let origin = match &session {
            Some(session) => session.origin.clone(),
            None => Origin::new(None, job.client.clone()),
        };
        let caller = Caller {
            revision,
            session,
            principal: None,
            origin,
            missing_scopes: OnceLock::new(),
            outlet: wanted.then(|| Arc::clone(&outlet) as Arc<dyn Outlet>),
            cancellation: running.token.clone(),
        };
        let (core, out) = (Arc::clone(&self.core), self.out.clone());
        let (began, method) = (Instant::now(), job.method.clone());
        self.tasks.spawn(async move {
            let answer = dispatch::answer(core, job, caller).await;
            log_answered(&method, began.elapsed());
            outlet.answered.store(true, Ordering::Relaxed);
            let withdrawn = running.token.is_cancelled();
            drop(running);
            if !withdrawn {
                // Fails when the output is closed, and then there is no reader.
                let _ = out.send(one_line(answer.message)).await;
            }
            drop(permit);
        });
    }

    fn initialize(&mut self, request: &rpc::Request<'_>, requested: &str) {
        let id = &request.id;
        if self.session.is_some() {
            return self.refuse(Some(id), &ErrorData::invalid_request("initialized already", None));
        }
        let revision = Revision::negotiate(requested);
        let newest = self.core.market.snapshot();
        let (notified, ended) = (*self.core.lists.borrow(), &self.calls.ended);
        let declared = Declared::of(&request.params);
        let session = Session::new(SessionId::NONE, revision, None, declared, newest, notified, ended);
        let session = Arc::new(session);
        let began = Instant::now();
        self.send(dispatch::initialize(&self.core, id, revision));
        log_answered(&request.method, began.elapsed());
        let telling = notify(Arc::clone(&self.core), Arc::clone(&session), self.out.clone());
        self.core.tracker.spawn(telling);
        self.session = Some(session);
    }

    fn refuse(&self, id: Option<&Id>, error: &ErrorData) {
        dispatch::log_refused(None, error);
        self.send(rpc::error(id, error));
    }

    /// Sends an answer of the reader itself, which must not wait. When the queue is full, a task waits instead.
    /// When too many tasks wait, the answer is dropped, because its client does not read.
    fn send(&self, message: Bytes) {
        let Err(mpsc::error::TrySendError::Full(message)) = self.out.try_send(one_line(message)) else {
            return;
        };
        match Arc::clone(&self.running).try_acquire_owned() {
            Ok(permit) => {
                let out = self.out.clone();
                self.tasks.spawn(async move {
                    let _ = out.send(message).await;
                    drop(permit);
                });
            }
            Err(_) => tracing::warn!("an answer was dropped: the client does not read"),
        }
    }
}

/// The log line of a request (RFC 1 §8.2: request timings). A failed one has a line of its own.
fn log_answered(method: &str, took: Duration) {
    let duration_ms = took.as_micros() as f64 / 1000.0;
    tracing::debug!(rpc = excerpt(method, 100), duration_ms, "request answered");
}

struct PipeOutlet {
    out: mpsc::Sender<Bytes>,
    /// Notifications about a request end with its answer.
    answered: AtomicBool,
}

impl Outlet for PipeOutlet {
    fn send(&self, message: Bytes) {
        if !self.answered.load(Ordering::Relaxed) {
            let _ = self.out.try_send(one_line(message));
        }
    }

    fn deliver(&self, message: Bytes) -> BoxFuture<'_, ()> {
        Box::pin(async {
            // Fails when the output is closed, and then there is no reader.
            let _ = self.out.send(one_line(message)).await;
        })
    }
}

/// Notifies the client of changes while its session exists.
async fn notify(core: Arc<Core>, session: Arc<Session>, out: mpsc::Sender<Bytes>) {
    let mut lists = core.lists.subscribe();
    loop {
        let now = *lists.borrow_and_update();
        for change in session.changes(now) {
            tokio::select! {
                sent = out.send(change.message()) => if sent.is_err() { return },
                // A client that does not read must not delay the end.
                () = core.draining.cancelled() => return,
            }
        }
        tokio::select! {
            changed = lists.changed() => if changed.is_err() { return },
            () = session.subscriber().woken.notified() => {}
            () = session.calls.ended.cancelled() => return,
            () = core.draining.cancelled() => return,
        }
    }
}

/// Owns the output. Cancels `ended` when the output is closed, because no client is left.
async fn write<W: AsyncWrite + Unpin>(
    mut queue: mpsc::Receiver<Bytes>,
    writer: W,
    ended: CancellationToken,
) {
    let mut writer = BufWriter::with_capacity(64 * 1024, writer);
    while let Some(message) = queue.recv().await {
        if let Err(err) = write_batch(&mut queue, &mut writer, message).await {
            tracing::debug!(error = %err, "the output is closed");
            ended.cancel();
            return;
        }
    }
}

/// Writes a message and all that wait behind it, then flushes them.
async fn write_batch<W: AsyncWrite + Unpin>(
    queue: &mut mpsc::Receiver<Bytes>,
    writer: &mut BufWriter<W>,
    first: Bytes,
) -> std::io::Result<()> {
    let mut next = Some(first);
    while let Some(message) = next {
        writer.write_all(&message).await?;
        writer.write_all(b"\n").await?;
        next = queue.try_recv().ok();
    }
    writer.flush().await
}
