//! Asks the store of a cluster everything that a store promises, at a real NATS server: `store NATS CLUSTER`. Two nodes
//! share the store. `cargo xtask cluster` runs it.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a suite panics where a promise is broken"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use orla_cluster::{Cluster, ClusterSettings};
use orla_marketplace::{CapabilityMarketplace, Limits as MarketLimits};
use orla_state::testing::{Model, conforms, operations};
use orla_state::{Change, Expect, Limits, MAX_CHANGES, Query, StateStore, WriteError};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [nats, name] = &arguments[..] else { panic!("expected NATS CLUSTER") };
    let one = Node::start(nats, name, "one").await;
    let other = Node::start(nats, name, "other").await;

    let limits = Limits { changes: MAX_CHANGES, ..Limits::default() };
    conforms(Arc::clone(&one.store), "suite/a.b *>%/", limits).await;
    println!("one node conforms");
    conforms(Arc::clone(&other.store), "other/", limits).await;
    println!("the other node conforms");
    what_one_writes_the_other_reads(&*one.store, &*other.store).await;
    println!("what one writes the other reads");
    one_condition_is_met_once(&one.store, &other.store).await;
    println!("one condition is met once");
    let late = Node::start(nats, name, "late").await;
    late.store.sync().await.unwrap();
    let all = Query::below("", usize::MAX);
    assert_eq!(late.store.list(all.clone()).await.unwrap(), one.store.list(all).await.unwrap());
    println!("a node that comes late reads everything");

    let model = Node::start(nats, &format!("{name}-model"), "one").await;
    let mut runner = TestRunner::deterministic();
    for _ in 0..20 {
        let mut map = Model::default();
        for record in model.store.list(Query::below("", usize::MAX)).await.unwrap() {
            model.store.write(vec![Change::remove(record.key)]).await.unwrap();
        }
        for operation in operations().new_tree(&mut runner).unwrap().current() {
            map.compare(&*model.store, operation).await;
        }
        map.compare_all(&*model.store).await;
    }
    println!("it is a map");

    let start = Instant::now();
    for number in 0..200 {
        let batch = (0..3).map(|part| Change::put(format!("cost/{number}/{part}"), vec![0; 300]));
        one.store.write(batch.collect()).await.unwrap();
    }
    println!("a batch of three: {:?}", start.elapsed() / 200);
    let start = Instant::now();
    for number in 0..200 {
        one.store.write(vec![Change::put(format!("cost/{number}"), vec![0; 300])]).await.unwrap();
    }
    println!("one change: {:?}", start.elapsed() / 200);
    let start = Instant::now();
    for _ in 0..200 {
        one.store.sync().await.unwrap();
    }
    println!("sync: {:?}", start.elapsed() / 200);
    for node in [one, other, late, model] {
        node.end().await;
    }
}

async fn what_one_writes_the_other_reads(one: &dyn StateStore, other: &dyn StateStore) {
    for number in 0..100 {
        let value = vec![7; number * 20_000];
        one.write(vec![Change::put("across", value.clone())]).await.unwrap();
        other.sync().await.unwrap();
        assert!(other.get("across").await.unwrap().unwrap().value == value, "{number}");
        other.write(vec![Change::remove("across")]).await.unwrap();
        one.sync().await.unwrap();
        assert_eq!(one.get("across").await.unwrap(), None);
    }
}

async fn one_condition_is_met_once(one: &Arc<dyn StateStore>, other: &Arc<dyn StateStore>) {
    for round in 0..50 {
        let claims = [one, other].map(|store| {
            let store = Arc::clone(store);
            let claim = Change::put(format!("claim/{round}"), "x").expecting(Expect::Absent);
            let own = Change::put(format!("own/{round}"), "x");
            tokio::spawn(async move { store.write(vec![own, claim]).await })
        });
        let mut won = 0;
        for claim in claims {
            match claim.await.unwrap() {
                Ok(_) => won += 1,
                Err(WriteError::Conflict { key }) => assert_eq!(key, format!("claim/{round}")),
                Err(WriteError::Failed(err)) => panic!("{err}"),
            }
        }
        assert_eq!(won, 1);
    }
}

struct Node {
    cluster: Cluster,
    store: Arc<dyn StateStore>,
    _market: Arc<CapabilityMarketplace>,
}

impl Node {
    async fn start(nats: &str, name: &str, node: &str) -> Self {
        let market = Arc::new(CapabilityMarketplace::new(MarketLimits::default()));
        let settings = ClusterSettings {
            nats: vec![nats.to_owned()],
            name: name.to_owned(),
            node: node.to_owned(),
            ..ClusterSettings::default()
        };
        let cluster = Cluster::new(settings, &market, |_| None);
        assert!(cluster.start().await.unwrap().is_none(), "NATS cannot be reached");
        let store = cluster.store();
        Self { cluster, store, _market: market }
    }

    async fn end(self) {
        use orla_marketplace::Source;
        drop(tokio::time::timeout(Duration::from_secs(5), self.cluster.shutdown()).await);
    }
}
