//! Several nodes in one process, on one store. Each can die, be cut off, and miss answers.

use std::sync::Arc;
use std::time::Duration;

use orla_marketplace::{Claim, NotTaken, Period, Permits, QuotaRule, Rate, Taken};
use orla_state::testing::{Fault, Link, LinkState, Shared};
use orla_state::{Change, Query, StateStore as _};
use parking_lot::Mutex;
use proptest::prelude::*;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::ledger::{LEASE, OWN_LEASE};
use super::{ALL, ClusterPermits};

/// The places of the count.
const PLACES: usize = 2;
/// The calls in a minute.
const CALLS: u64 = 6;

struct Node {
    permits: Arc<ClusterPermits>,
    link: Link,
    serving: JoinHandle<()>,
    calls: Arc<Mutex<Vec<Taken>>>,
    stop: CancellationToken,
}

impl Node {
    /// As many calls run there as there are places.
    async fn take_all_places(&self) {
        for _ in 0..PLACES {
            let taken = self.take(places()).await.unwrap();
            self.calls.lock().push(taken);
        }
    }

    fn new(common: &Arc<Shared>, start: Instant) -> Self {
        let (store, link) = common.connect(LinkState::Open);
        let cut = link.clone();
        let clock = move || {
            (cut.state() != LinkState::Disconnected)
                .then(|| Duration::from_secs(1_000) + start.elapsed())
        };
        let permits = ClusterPermits::new("n", Arc::new(clock));
        let stop = CancellationToken::new();
        let serving = TaskTracker::new().spawn(Arc::clone(&permits).serve(store, stop.clone()));
        Self { permits, link, serving, calls: Arc::default(), stop }
    }

    /// The next write is made, and its answer is lost.
    fn lose_next_answer(&self) {
        self.link.set_fault(Some(Fault::Unanswered("", 1)));
        self.link.set(LinkState::Open);
    }

    async fn take(&self, claims: Vec<Claim>) -> Result<Taken, NotTaken> {
        tokio::task::yield_now().await;
        Arc::clone(&self.permits).take(claims).await
    }

    /// Returns the calls that run.
    fn running(&self) -> usize {
        let is_lost = |taken: &Taken| taken.lost().is_some_and(CancellationToken::is_cancelled);
        self.calls.lock().iter().filter(|taken| !is_lost(taken)).count()
    }

    /// The process is gone, with its calls.
    fn kill(&self) {
        self.calls.lock().clear();
        self.serving.abort();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

fn common() -> (Arc<Shared>, Instant) {
    (Shared::new(Duration::from_millis(1)), Instant::now())
}

fn places() -> Vec<Claim> {
    let mut rule = QuotaRule::new("quotas[0]");
    rule.concurrent = Some(PLACES);
    vec![Claim::new(rule, None).unwrap()]
}

fn rate() -> Vec<Claim> {
    let mut rule = QuotaRule::new("quotas[1]");
    rule.rate = Some(Rate::new(CALLS, Period::Minute));
    vec![Claim::new(rule, None).unwrap()]
}

#[tokio::test(start_paused = true)]
async fn two_nodes_have_the_places_of_one() {
    let (common, start) = common();
    let (a, b) = (Node::new(&common, start), Node::new(&common, start));
    let first = a.take(places()).await.unwrap();
    let _second = b.take(places()).await.unwrap();
    for node in [&a, &b] {
        assert!(matches!(node.take(places()).await, Err(NotTaken::Over { .. })));
    }
    let mut freed = b.permits.changes();
    drop(first);
    freed.changed().await.unwrap();
    sleep(Duration::from_millis(10)).await;
    assert!(b.take(places()).await.is_ok());
    assert_eq!(a.permits.counts_of(places()[0].rule()).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn two_nodes_have_the_calls_of_one() {
    let (common, start) = common();
    let nodes = [Node::new(&common, start), Node::new(&common, start)];
    let mut admitted = 0;
    for turn in 0..20 {
        admitted += u64::from(nodes[turn % 2].take(rate()).await.is_ok());
    }
    assert_eq!(admitted, CALLS);
    sleep(Duration::from_secs(11)).await;
    assert!(nodes[1].take(rate()).await.is_ok());
    assert!(nodes[0].take(rate()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn the_places_of_a_dead_node_are_free_after_its_lease() {
    let (common, start) = common();
    let (a, b) = (Node::new(&common, start), Node::new(&common, start));
    a.take_all_places().await;
    sleep(LEASE * 3).await;
    assert!(b.take(places()).await.is_err(), "it is there as long as it says so");
    a.kill();
    sleep(LEASE / 2).await;
    assert!(b.take(places()).await.is_err());
    sleep(LEASE).await;
    assert!(b.take(places()).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_node_that_ends_releases_its_places() {
    let (common, start) = common();
    let (a, b) = (Node::new(&common, start), Node::new(&common, start));
    a.take_all_places().await;
    a.stop.cancel();
    sleep(Duration::from_secs(1)).await;
    assert!(b.take(places()).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn without_nats_nothing_is_admitted_and_calls_end_before_others_take_their_places() {
    let (common, start) = common();
    let (a, b) = (Node::new(&common, start), Node::new(&common, start));
    a.take_all_places().await;
    for state in [LinkState::Disconnected, LinkState::Hanging] {
        a.link.set(state);
        let refused = a.take(rate()).await.map(drop);
        assert!(matches!(refused, Err(NotTaken::Unavailable(_))), "{state:?}: {refused:?}");
    }
    assert_eq!(a.running(), PLACES);
    sleep(OWN_LEASE).await;
    assert_eq!(a.running(), 0);
    sleep(LEASE).await;
    assert!(b.take(places()).await.is_ok());
    a.link.set(LinkState::Open);
    sleep(Duration::from_secs(3)).await;
    assert!(a.take(places()).await.is_ok(), "it is there again");
}

#[tokio::test(start_paused = true)]
async fn a_place_whose_answer_was_lost_is_released() {
    let (common, start) = common();
    let node = Node::new(&common, start);
    let _first = node.take(places()).await.unwrap();
    node.lose_next_answer();
    assert!(matches!(node.take(places()).await, Err(NotTaken::Unavailable(_))));
    sleep(Duration::from_secs(2)).await;
    assert!(node.take(places()).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn unused_counts_leave_no_record() {
    let (common, start) = common();
    let node = Node::new(&common, start);
    drop(node.take([places(), rate()].concat()).await.unwrap());
    sleep(Duration::from_secs(200)).await;
    assert_eq!(common.records().list(Query::below(ALL, 10)).await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn a_record_that_cannot_be_read_admits_nothing() {
    let (common, start) = common();
    let node = Node::new(&common, start);
    drop(node.take(places()).await.unwrap());
    let key = format!("{}{}", super::COUNTS, places()[0].name());
    common.records().write(vec![Change::put(key.clone(), "?")]).await.unwrap();
    common.notify(key);
    sleep(Duration::from_millis(10)).await;
    assert!(matches!(node.take(places()).await, Err(NotTaken::Unavailable(_))));
    assert!(node.take(rate()).await.is_ok(), "others are counted");
}

#[derive(Clone, Debug)]
enum Step {
    Take(usize),
    Rate(usize),
    Give(usize, usize),
    Link(usize, LinkState),
    Unanswered(usize),
    Die(usize),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let state = prop_oneof![4 => Just(LinkState::Open), 1 => Just(LinkState::Disconnected), 1 => Just(LinkState::Hanging)];
    prop_oneof![
        6 => (0..3_usize).prop_map(Step::Take),
        2 => (0..3_usize).prop_map(Step::Rate),
        4 => (0..3_usize, 0..4_usize).prop_map(|(node, at)| Step::Give(node, at)),
        4 => (0..3_usize, state).prop_map(|(node, state)| Step::Link(node, state)),
        1 => (0..3_usize).prop_map(Step::Unanswered),
        1 => (0..3_usize).prop_map(Step::Die),
        6 => prop_oneof![1_u64..20, 500_u64..6_000].prop_map(Step::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn no_failure_admits_more_calls_than_places(steps in prop::collection::vec(step(), 1..80)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(async {
            let (common, start) = common();
            let mut nodes: Vec<Node> = (0..3).map(|_| Node::new(&common, start)).collect();
            let rated = Arc::new(Mutex::new(0_u64));
            for step in steps {
                match step {
                    Step::Take(at) => {
                        let (permits, calls) = (Arc::clone(&nodes[at].permits), Arc::clone(&nodes[at].calls));
                        TaskTracker::new().spawn(async move {
                            if let Ok(taken) = permits.take(places()).await {
                                calls.lock().push(taken);
                            }
                        });
                    }
                    Step::Rate(at) => {
                        let (permits, rated) = (Arc::clone(&nodes[at].permits), Arc::clone(&rated));
                        TaskTracker::new().spawn(async move {
                            *rated.lock() += u64::from(permits.take(rate()).await.is_ok());
                        });
                    }
                    Step::Give(at, call) => {
                        let mut calls = nodes[at].calls.lock();
                        if call < calls.len() {
                            drop(calls.swap_remove(call));
                        }
                    }
                    Step::Link(at, state) => nodes[at].link.set(state),
                    Step::Unanswered(at) => nodes[at].lose_next_answer(),
                    Step::Die(at) => nodes[at] = Node::new(&common, start),
                    Step::Pass(ms) => sleep(Duration::from_millis(ms)).await,
                }
                for _ in 0..4 {
                    tokio::task::yield_now().await;
                }
                let running: usize = nodes.iter().map(Node::running).sum();
                prop_assert!(running <= PLACES, "{running} calls run");
                let most = CALLS as f64 * (1.0 + start.elapsed().as_secs_f64() / 60.0);
                prop_assert!(*rated.lock() as f64 <= most);
            }
            // No place stays taken.
            for node in &nodes {
                node.link.set_fault(None);
                node.link.set(LinkState::Open);
                node.calls.lock().clear();
            }
            sleep(LEASE * 3).await;
            for node in &nodes {
                node.calls.lock().clear();
            }
            sleep(Duration::from_secs(5)).await;
            for node in &nodes[..PLACES] {
                let taken = node.take(places()).await;
                prop_assert!(taken.is_ok(), "{:?}", taken.err());
                node.calls.lock().extend(taken);
            }
            Ok(())
        })?;
    }
}
