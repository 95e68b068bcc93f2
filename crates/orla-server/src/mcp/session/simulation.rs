//! A simulation of sessions whose client goes from one server to another, over a network that loses, delays, repeats and
//! reorders messages.
//!
//! The servers share sessions through the store of a simulated cluster ([`orla_state::testing::simulation`]). A client makes
//! one request after another, each at any server: it looks at its log level, sets it, lists tools, or ends the session.
//!
//! The invariants: [`FRESH`], [`FORWARD`], [`SAVED`], [`ENDED`] and [`ALIKE`]. A server that knows a session may have an older
//! copy of its record for a moment. It then answers by that copy, and never by an older one.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use orla_marketplace::{CapabilityMarketplace, Limits, LogLevel};
use orla_state::testing::simulation::{Birth, Cluster, Random, check_repeated, check_worlds};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::listed::Versions;
use super::shared::{self, STATE_TIMEOUT, key};
use super::{Declared, Session, SessionId};
use crate::ServerOptions;
use crate::mcp::protocol::{Revision, SESSION_ID};
use crate::state::Core;

const FRESH: &str = "a server that takes a session up has all that was written of it before the request";
const FORWARD: &str = "a server never goes back to an older state of a session";
const SAVED: &str =
    "what a client has set is written if the store answers, whatever others write meanwhile";
const ENDED: &str = "no server that can know that a session has ended continues it";
const ALIKE: &str =
    "every server shows what the client has set and listed last, once nothing is on its way any more";

/// Seeds that failed in the past.
const SEEDS: [u64; 4] = [1, 20_261_183, 20_261_369, 20_289_586];

const NODES: usize = 3;
/// How long an unused session lives. A quarter of it later, its record is renewed.
const IDLE: Duration = Duration::from_secs(40);
/// The number of steps of one world after which nothing fails.
const BUSY: u64 = 3_000;
/// The maximum number of steps of one world.
const LONGEST: u64 = 30_000;

/// What a client wants.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Wish {
    Begin,
    Look,
    Set(LogLevel),
    /// It lists tools, and finds this version.
    List(usize),
    End,
}

/// The state of a session that servers share.
#[derive(Clone, Debug, PartialEq)]
struct State {
    level: LogLevel,
    /// The name of the versions that it has listed.
    listed: Option<String>,
}

/// An answer to a client.
#[derive(Debug)]
struct Answer {
    wish: Wish,
    node: usize,
    life: u64,
    /// The state after the request, and the revision of the record then. `None` if there is no such session.
    seen: Option<(State, u64)>,
    /// Whether the server knows the versions that were listed, if any.
    knows_versions: bool,
    /// Whether the record says what the server does.
    is_saved: bool,
    /// Whether the store answered in time.
    is_answered: bool,
    /// Whether the server knew the session before.
    was_known: bool,
    /// Whether the copy of the server said before that the session has ended.
    was_ended: bool,
}

struct Server {
    core: Arc<Core>,
    life: u64,
}

/// A request that is under way.
struct Asked {
    node: usize,
    life: u64,
    wish: Wish,
    /// The revision of the record, as the store had it when the request was made.
    stored: u64,
    had_ended: bool,
    /// The connection of the server, if it had one.
    connection: Option<u64>,
}

struct World {
    cluster: Cluster<Server>,
    id: SessionId,
    asked: Option<Asked>,
    answer: Arc<Mutex<Option<Answer>>>,
    /// What the client has set and listed last; `None` before the session begins.
    state: Option<State>,
    /// How often the client still uses its session, once it has ended it.
    after_end: Option<u32>,
    /// The revision that each process has shown last.
    shown: [(u64, u64); NODES],
    /// The servers that have shown the last state at the end.
    alike: usize,
    next_id: u64,
    steps: u64,
}

/// The part of an answer that its server knows.
struct Served {
    seen: Option<(State, u64)>,
    knows_versions: bool,
    is_saved: bool,
    is_answered: bool,
}

impl Served {
    /// There is no such session.
    fn nothing(is_answered: bool) -> Self {
        Self { seen: None, knows_versions: true, is_saved: true, is_answered }
    }
}

/// Serves one request.
async fn serve(core: Arc<Core>, id: SessionId, wish: Wish) -> Served {
    let mut headers = HeaderMap::new();
    headers.insert(SESSION_ID, HeaderValue::from_str(&id.to_string()).unwrap());
    if wish == Wish::Begin {
        let newest = core.market.snapshot();
        let declared = Declared { capabilities: None, client: None };
        let make = |id| {
            let lists = *core.lists.borrow();
            Session::new(id, Revision::V2025_11_25, None, declared, newest, lists, &core.abort)
        };
        let session = core.sessions.add_as(id, 9, make).unwrap();
        session.share(&core.pending_changes);
    } else {
        shared::refresh_session(&core, None, &headers).await;
    }
    let Some(session) = core.sessions.get(id, None, IDLE) else { return Served::nothing(true) };
    let began = Instant::now();
    match wish {
        Wish::Begin | Wish::Look => {}
        Wish::Set(level) => session.set_log_level(level),
        Wish::List(version) => {
            let versions = Versions::new([("a".to_owned(), version.to_string())]);
            session.move_tools_to(&core.market.snapshot(), Some(core.versions.share(versions)));
        }
        Wish::End => {
            core.sessions.remove(&session);
            shared::end(&core, id).await;
            return Served::nothing(began.elapsed() < STATE_TIMEOUT);
        }
    }
    shared::save(&core, &session).await;
    let state = State { level: session.log_level(), listed: session.listed_name() };
    let knows_versions = session.unknown_versions().is_none();
    let record = session.record.lock();
    let revision = record.known.as_ref().map_or(0, |known| known.revision);
    let is_saved = record.known.as_ref().is_some_and(|known| known.data == session.data(&record));
    let is_answered = began.elapsed() < STATE_TIMEOUT;
    Served { seen: Some((state, revision)), knows_versions, is_saved, is_answered }
}

impl World {
    fn new(random: &mut Random) -> Self {
        let cluster = Cluster::new(random, NODES, |birth: Birth| {
            let market = Arc::new(CapabilityMarketplace::new(Limits::default()));
            let options = ServerOptions { session_idle: IDLE, ..ServerOptions::default() };
            let core = Core::new(market, options);
            core.share_sessions(birth.store);
            let sweeping = Arc::clone(&core);
            core.tracker.spawn(async move {
                loop {
                    tokio::time::sleep(Duration::from_secs(10)).await;
                    shared::sweep(&sweeping, IDLE).await;
                }
            });
            Server { core, life: birth.life }
        });
        Self {
            cluster,
            id: SessionId(1),
            asked: None,
            answer: Arc::default(),
            state: None,
            after_end: None,
            shown: [(0, 0); NODES],
            alike: 0,
            next_id: 1,
            steps: 0,
        }
    }

    /// Makes one step. Returns whether the world is over.
    fn step(&mut self, random: &mut Random) -> bool {
        self.steps += 1;
        assert!(self.steps < LONGEST, "{ALIKE}");
        let is_busy = self.steps < BUSY;
        let cluster = &self.cluster;
        let is_gone =
            |asked: &mut Asked| cluster.process(asked.node).is_none_or(|at| at.life != asked.life);
        let answer = self.answer.lock().take();
        if let Some(answer) = answer {
            self.hear(&answer, is_busy);
        } else if let Some(lost) = self.asked.take_if(is_gone) {
            // The client never learns what has become of its wish.
            if lost.wish != Wish::Look {
                self.forget();
            }
        } else if self.asked.is_none() && random.one_in(16) {
            self.ask(random, is_busy);
        } else {
            self.cluster.step(random, is_busy);
        }
        self.alike == NODES
    }

    /// The client cannot know the state of its session, and begins another one.
    fn forget(&mut self) {
        self.next_id += 1;
        (self.id, self.state, self.after_end) = (SessionId(self.next_id.into()), None, None);
        self.shown = [(0, 0); NODES];
        self.alike = 0;
    }

    fn ask(&mut self, random: &mut Random, is_busy: bool) {
        let wish = match random.below(16) {
            _ if self.state.is_none() => Wish::Begin,
            _ if self.after_end.is_some() || !is_busy => Wish::Look,
            0 => Wish::End,
            1..4 => Wish::Set(LogLevel::ALL[random.index(LogLevel::ALL.len())]),
            4..7 => Wish::List(random.index(3)),
            _ => Wish::Look,
        };
        let node = match is_busy {
            true => random.index(NODES),
            false => self.alike,
        };
        let Some(life) = self.cluster.process(node).map(|server| server.life) else { return };
        let (id, key) = (self.id, key(self.id));
        let record = self.cluster.network().record(&key);
        let stored = record.as_ref().map_or(0, |record| record.revision);
        let had_ended = record.is_some_and(|record| record.value == shared::ENDED);
        let connection = self.cluster.connection(node);
        self.asked = Some(Asked { node, life, wish, stored, had_ended, connection });
        let answer = Arc::clone(&self.answer);
        self.cluster.spawn(node, |server| {
            let core = Arc::clone(&server.core);
            async move {
                let was_known = core.sessions.peek(id).is_some();
                let store = &core.shared_sessions().unwrap().store;
                let record = store.get(&key).await.ok().flatten();
                let was_ended = record.is_some_and(|record| record.value == shared::ENDED);
                let Served { seen, knows_versions, is_saved, is_answered } = serve(core, id, wish).await;
                *answer.lock() = Some(Answer {
                    wish,
                    node,
                    life,
                    seen,
                    knows_versions,
                    is_saved,
                    is_answered,
                    was_known,
                    was_ended,
                });
            }
        });
    }

    fn hear(&mut self, answer: &Answer, is_busy: bool) {
        let Some(asked) = self.asked.take() else { return };
        if (asked.node, asked.life, asked.wish) != (answer.node, answer.life, answer.wish) {
            return;
        }
        let is_new = !answer.was_known && answer.wish != Wish::Begin;
        self.after_end = self.after_end.map(|left| left.saturating_sub(1));
        let Some((state, revision)) = answer.seen.clone() else {
            match answer.wish {
                Wish::End => self.after_end = Some(4),
                // It has ended, or the server does not know it and cannot ask.
                _ if self.after_end == Some(0) || !is_busy => self.forget(),
                _ => {}
            }
            return;
        };
        assert!(!answer.was_ended, "{ENDED}: {answer:?}");
        assert!(!(is_new && asked.had_ended), "{ENDED}: {answer:?}");
        assert!(!is_new || revision >= asked.stored, "{FRESH}: {answer:?} after {}", asked.stored);
        let (life, before) = self.shown[answer.node];
        // The record may be gone, if nobody could use the session for long.
        let is_older = life == answer.life && revision > 0 && revision < before;
        assert!(!is_older, "{FORWARD}: {answer:?} after {before}");
        self.shown[answer.node] = (answer.life, revision);
        if self.after_end == Some(0) {
            return self.forget();
        }
        if matches!(answer.wish, Wish::Begin | Wish::Set(_) | Wish::List(_)) {
            let connection = self.cluster.connection(answer.node);
            let could_write =
                answer.is_answered && connection.is_some() && connection == asked.connection;
            assert!(answer.is_saved || !could_write, "{SAVED}: {answer:?}");
            if !answer.is_saved {
                // Only this server knows it, and it may be gone any moment.
                return self.forget();
            }
            self.state = Some(state.clone());
        }
        if !is_busy && answer.wish == Wish::Look {
            // The copies of servers need a moment.
            match Some(state) == self.state && answer.knows_versions {
                true => self.alike += 1,
                false => self.alike = 0,
            }
        }
    }
}

#[test]
fn sessions_move_over_any_network() {
    check_worlds("sessions", &SEEDS, LONGEST, World::new, World::step);
}

#[test]
fn a_world_of_sessions_follows_from_its_seed() {
    let trace = |world: &World| (world.steps, world.cluster.trace());
    check_repeated(World::new, World::step, trace);
}
