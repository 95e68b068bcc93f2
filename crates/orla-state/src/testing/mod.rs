//! The conformance tests for engines.
//!
//! [`conforms`] checks every promise of [`StateStore`] on an engine. It only uses keys below a prefix,
//! so that a remote engine can be tested more than once. [`Model`] is a map with the same behaviour, and
//! property tests compare an engine with it. [`Shared`] is a store for tests of several nodes, and [`simulation`] has nodes
//! with clocks of their own, behind a network with faults.

mod model;
mod shared;
pub mod simulation;

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::{
    Change, Expect, Limits, MAX_CHANGES, MAX_KEY, Order, Pages, Query, Record, Revision, StateStore,
    WriteError,
};

pub use model::{Model, Operation, operations};
pub use shared::{Fault, Link, LinkState, Shared};

/// Asks a store everything that the seam promises, with keys that begin with `prefix`. None may exist.
///
/// # Panics
/// A promise is not kept.
pub async fn conforms(store: Arc<dyn StateStore>, prefix: &str, limits: Limits) {
    let suite = Suite { store, prefix: prefix.to_owned() };
    suite.records_are_put_read_and_removed().await;
    suite.all_changes_are_made_or_none().await;
    suite.changes_of_a_batch_follow_each_other().await;
    suite.conditions_hold_in_every_combination().await;
    suite.revisions_grow_also_over_a_removal().await;
    suite.ranges_are_read_in_both_directions().await;
    suite.invalid_keys_are_refused().await;
    suite.large_values_are_kept_up_to_the_limit(limits).await;
    suite.so_many_changes_are_made_at_once_and_no_more(limits).await;
    suite.of_many_writers_with_one_condition_one_wins().await;
    suite.a_conflict_fails_only_its_own_batch().await;
    suite.deferred_writes_are_made().await;
    suite.no_increment_is_lost().await;
    suite.readers_see_all_of_a_batch_or_nothing().await;
}

struct Suite {
    store: Arc<dyn StateStore>,
    prefix: String,
}

impl Suite {
    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn put(&self, name: &str, value: &str) -> Change {
        Change::put(self.key(name), value.as_bytes().to_vec())
    }

    fn remove(&self, name: &str) -> Change {
        Change::remove(self.key(name))
    }

    async fn write(&self, changes: impl IntoIterator<Item = Change>) -> Vec<Revision> {
        self.store.write(changes.into_iter().collect()).await.unwrap()
    }

    async fn refused(&self, changes: impl IntoIterator<Item = Change>) -> String {
        match self.store.write(changes.into_iter().collect()).await {
            Err(WriteError::Conflict { key }) => key[self.prefix.len()..].to_owned(),
            other => panic!("expected a conflict, got {other:?}"),
        }
    }

    async fn get(&self, name: &str) -> Option<Record> {
        self.store.get(&self.key(name)).await.unwrap()
    }

    async fn value(&self, name: &str) -> Option<String> {
        self.get(name).await.map(|record| String::from_utf8(record.value.to_vec()).unwrap())
    }

    /// Returns the names below a part of the prefix.
    async fn names(&self, query: Query) -> Vec<String> {
        let records = self.store.list(query).await.unwrap();
        records.into_iter().map(|record| record.key[self.prefix.len()..].to_owned()).collect()
    }

    async fn records_are_put_read_and_removed(&self) {
        assert_eq!(self.get("a").await, None);
        let first = self.write([self.put("a", "one")]).await;
        let record = self.get("a").await.unwrap();
        assert_eq!(
            (record.key, &*record.value, vec![record.revision]),
            (self.key("a"), &b"one"[..], first)
        );
        let keys = ["none", "a"].map(|name| self.key(name)).to_vec();
        let both = self.store.get_all(keys).await.unwrap();
        assert!(both[0].is_none() && both[1] == self.get("a").await, "{both:?}");
        self.write([self.put("a", "")]).await;
        assert_eq!(self.value("a").await.unwrap(), "");
        self.write([self.remove("a")]).await;
        assert_eq!(self.get("a").await, None);
        self.write([self.remove("a")]).await;
        assert_eq!(self.write([]).await, []);
        let bytes: Vec<u8> = (0..=255).collect();
        self.write([Change::put(self.key("a"), bytes.clone())]).await;
        assert_eq!(self.get("a").await.unwrap().value, bytes);
        self.write([self.remove("a")]).await;
    }

    async fn all_changes_are_made_or_none(&self) {
        self.write([self.put("b/1", "old"), self.put("b/2", "old")]).await;
        let before = self.store.list(Query::below(&self.key("b/"), 10)).await.unwrap();
        let changes = [
            self.put("b/1", "new"),
            self.remove("b/2"),
            self.put("b/3", "new"),
            self.put("b/2", "x").expecting(Expect::Revision(before[1].revision)),
        ];
        assert_eq!(self.refused(changes).await, "b/2", "it was removed by the same batch");
        assert_eq!(self.store.list(Query::below(&self.key("b/"), 10)).await.unwrap(), before);
    }

    async fn changes_of_a_batch_follow_each_other(&self) {
        let absent = Expect::Absent;
        let changes = [
            self.put("c", "1").expecting(absent),
            self.put("c", "2"),
            self.remove("c"),
            self.put("c", "3").expecting(absent),
        ];
        let revisions = self.write(changes).await;
        assert!(revisions.is_sorted_by(|a, b| a < b), "{revisions:?}");
        let record = self.get("c").await.unwrap();
        assert_eq!((&*record.value, record.revision), (&b"3"[..], revisions[3]));
        assert_eq!(
            self.refused([
                self.remove("c"),
                self.remove("c/x"),
                self.put("c", "4"),
                self.put("c", "5").expecting(absent)
            ])
            .await,
            "c"
        );
        assert_eq!(self.get("c").await.unwrap(), record);
    }

    async fn conditions_hold_in_every_combination(&self) {
        let [old] = self.write([self.put("d", "0")]).await[..] else { panic!("one revision") };
        let [current] = self.write([self.put("d", "1")]).await[..] else { panic!("one revision") };
        let stale =
            [Expect::Absent, Expect::Revision(old), Expect::Revision(0), Expect::Revision(u64::MAX)];
        for expect in stale {
            assert_eq!(self.refused([self.put("d", "2").expecting(expect)]).await, "d", "{expect:?}");
            assert_eq!(self.refused([self.remove("d").expecting(expect)]).await, "d", "{expect:?}");
        }
        assert_eq!(self.value("d").await.unwrap(), "1");
        let [next] = self.write([self.put("d", "2").expecting(Expect::Revision(current))]).await[..]
        else {
            panic!("one revision")
        };
        self.write([self.remove("d").expecting(Expect::Revision(next))]).await;
        for expect in [Expect::Revision(next), Expect::Revision(0)] {
            assert_eq!(self.refused([self.put("d", "3").expecting(expect)]).await, "d", "{expect:?}");
            assert_eq!(self.refused([self.remove("d").expecting(expect)]).await, "d", "{expect:?}");
        }
        self.write([self.remove("d").expecting(Expect::Absent)]).await;
        self.write([self.put("d", "4").expecting(Expect::Absent)]).await;
        assert_eq!(self.value("d").await.unwrap(), "4");
    }

    async fn revisions_grow_also_over_a_removal(&self) {
        let mut revisions = Vec::new();
        for _ in 0..3 {
            revisions.extend(self.write([self.put("e", "1")]).await);
            revisions.extend(self.write([self.put("e", "1")]).await);
            revisions.extend(self.write([self.remove("e")]).await);
        }
        assert!(revisions.is_sorted_by(|a, b| a < b), "{revisions:?}");
    }

    async fn ranges_are_read_in_both_directions(&self) {
        // In the order of their bytes, which is not that of a dictionary.
        let names = ["f", "f/", "f/ ", "f/1", "f/1/x", "f/10", "f/2", "f/A", "f/a", "f/~", "f0", "g"];
        let mut shuffled = names;
        shuffled.reverse();
        shuffled.swap(1, 7);
        self.write(shuffled.map(|name| self.put(name, name))).await;
        let below = &names[1..10];
        assert_eq!(self.names(Query::below(&self.key("f/"), 100)).await, below);
        let mut backwards = below.to_vec();
        backwards.reverse();
        assert_eq!(self.names(Query::below(&self.key("f/"), 100).reversed()).await, backwards);
        assert_eq!(self.names(Query::below(&self.key("f/"), 2)).await, below[..2]);
        assert_eq!(self.names(Query::below(&self.key("f/"), 2).reversed()).await, backwards[..2]);
        assert_eq!(self.names(Query::below(&self.key("f/"), 0)).await, [""; 0]);
        for size in [1, 2, below.len(), 100] {
            let query = Query::below(&self.key("f/"), size);
            for (query, expected) in [(query.clone(), below), (query.reversed(), &backwards[..])] {
                let pages = Pages::new(&*self.store, query).rest().await.unwrap();
                let names: Vec<_> = pages.iter().map(|row| &row.key[self.prefix.len()..]).collect();
                assert_eq!(names, expected, "pages of {size}");
            }
        }
        assert_eq!(self.names(Query::below(&self.key("f/1"), 100)).await, ["f/1", "f/1/x", "f/10"]);
        let range = |from: &str, to: &str| Query {
            keys: self.key(from)..self.key(to),
            order: Order::Ascending,
            limit: usize::MAX,
        };
        assert_eq!(
            self.names(range("f/1", "f/2")).await,
            ["f/1", "f/1/x", "f/10"],
            "the end is excluded"
        );
        assert_eq!(self.names(range("f/11", "f/2")).await, [""; 0]);
        assert_eq!(self.names(range("f/2", "f/1")).await, [""; 0]);
        assert_eq!(self.names(range("f/2", "f/1").reversed()).await, [""; 0]);
    }

    async fn invalid_keys_are_refused(&self) {
        let long = "k".repeat(MAX_KEY + 1 - self.prefix.len());
        for bad in ["\n", "ä", "a\0b", "\u{7f}", &long] {
            let key = self.key(bad);
            let written = self.store.write(vec![self.put("h", "1"), Change::put(&*key, "x")]).await;
            assert!(matches!(written, Err(WriteError::Failed(_))), "{bad:?}: {written:?}");
            assert!(self.store.get(&key).await.is_err(), "{bad:?}");
        }
        assert!(self.store.get("").await.is_err());
        assert_eq!(self.get("h").await, None);
        let longest = "k".repeat(MAX_KEY - self.prefix.len());
        self.write([self.put(&longest, "1")]).await;
        assert_eq!(self.value(&longest).await.unwrap(), "1");
    }

    async fn large_values_are_kept_up_to_the_limit(&self, limits: Limits) {
        let value: Vec<u8> =
            (0..limits.value).map(|at| u8::try_from(at * 7 % 251).unwrap_or(0)).collect();
        self.write([Change::put(self.key("i"), value.clone())]).await;
        assert!(self.get("i").await.unwrap().value == value);
        let larger = Change::put(self.key("i"), vec![0; limits.value + 1]);
        assert!(matches!(self.store.write(vec![larger]).await, Err(WriteError::Failed(_))));
        let many = limits.batch / limits.value + 1;
        let batch = (0..many).map(|_| Change::put(self.key("i"), vec![0; limits.value])).collect();
        assert!(matches!(self.store.write(batch).await, Err(WriteError::Failed(_))));
        assert!(self.get("i").await.unwrap().value == value);
        self.write([self.remove("i")]).await;
    }

    async fn so_many_changes_are_made_at_once_and_no_more(&self, limits: Limits) {
        assert!(limits.changes >= MAX_CHANGES);
        let (all, key) = (0..limits.changes, |number: usize| format!("many/{number:07}"));
        let below = Query::below(&self.key("many/"), usize::MAX);
        assert_eq!(
            self.write(all.clone().map(|number| self.put(&key(number), "x"))).await.len(),
            all.len()
        );
        let more = (0..=limits.changes).map(|number| self.remove(&key(number)));
        assert!(matches!(self.store.write(more.collect()).await, Err(WriteError::Failed(_))));
        assert_eq!(self.names(below.clone()).await.len(), all.len());
        self.write(all.map(|number| self.remove(&key(number)))).await;
        assert_eq!(self.names(below).await, [] as [&str; 0]);
    }

    async fn of_many_writers_with_one_condition_one_wins(&self) {
        let writers: Vec<_> = (0..64)
            .map(|writer| {
                let store = Arc::clone(&self.store);
                let claim = self.put("j", &writer.to_string()).expecting(Expect::Absent);
                let own = self.put(&format!("j/{writer:02}"), "");
                tokio::spawn(
                    async move { store.write(vec![own, claim]).await.is_ok().then_some(writer) },
                )
            })
            .collect();
        let mut winners = Vec::new();
        for writer in writers {
            winners.extend(writer.await.unwrap());
        }
        let [winner] = winners[..] else { panic!("{winners:?} won") };
        assert_eq!(self.value("j").await.unwrap(), winner.to_string());
        let own = self.names(Query::below(&self.key("j/"), 100)).await;
        assert_eq!(own, [format!("j/{winner:02}")], "the others' changes were not made");
    }

    async fn a_conflict_fails_only_its_own_batch(&self) {
        self.write([self.put("k", "")]).await;
        let writers: Vec<_> = (0..200)
            .map(|writer| {
                let store = Arc::clone(&self.store);
                let own = self.put(&format!("k/{writer:03}"), "");
                let conflict = self.put("k", "x").expecting(Expect::Absent);
                let changes = if writer % 3 == 0 { vec![own, conflict] } else { vec![own] };
                tokio::spawn(async move { store.write(changes).await.is_ok() })
            })
            .collect();
        for (writer, result) in writers.into_iter().enumerate() {
            assert_eq!(result.await.unwrap(), writer % 3 != 0, "writer {writer}");
        }
        assert_eq!(self.names(Query::below(&self.key("k/"), 1000)).await.len(), 133);
    }

    async fn deferred_writes_are_made(&self) {
        let first = self.store.write_later(vec![self.put("l", "1")]).await.unwrap();
        let record = self.get("l").await.unwrap();
        assert_eq!((&*record.value, vec![record.revision]), (&b"1"[..], first.clone()));
        // With any concurrent writes, each write gets its own answer, and of two writes with one
        // condition, one is made.
        let next = |value| self.put("l", value).expecting(Expect::Revision(first[0]));
        let (store, one) = (Arc::clone(&self.store), next("2"));
        let later = tokio::spawn(async move { store.write_later(vec![one]).await });
        let now = self.store.write(vec![next("3")]).await;
        let later = later.await.unwrap();
        let made = match (&now, &later) {
            (Ok(_), Err(WriteError::Conflict { .. })) => "3",
            (Err(WriteError::Conflict { .. }), Ok(_)) => "2",
            other => panic!("expected that one is made, got {other:?}"),
        };
        assert_eq!(self.value("l").await.unwrap(), made);
    }

    async fn no_increment_is_lost(&self) {
        self.write([self.put("l", "0")]).await;
        let writers: Vec<_> = (0..8)
            .map(|_| {
                let (store, key) = (Arc::clone(&self.store), self.key("l"));
                tokio::spawn(async move {
                    let mut made = BTreeSet::new();
                    while made.len() < 20 {
                        let Record { key, value, revision } = store.get(&key).await.unwrap().unwrap();
                        let next: u64 = std::str::from_utf8(&value).unwrap().parse::<u64>().unwrap() + 1;
                        let change =
                            Change::put(key, next.to_string()).expecting(Expect::Revision(revision));
                        match store.write(vec![change]).await {
                            Ok(_) => assert!(made.insert(next)),
                            Err(WriteError::Conflict { .. }) => {}
                            Err(WriteError::Failed(err)) => panic!("{err}"),
                        }
                    }
                    made
                })
            })
            .collect();
        let mut all = BTreeSet::new();
        for writer in writers {
            all.append(&mut writer.await.unwrap());
        }
        assert!(all.into_iter().eq(1..=160), "each number was written once");
        assert_eq!(self.value("l").await.unwrap(), "160");
    }

    async fn readers_see_all_of_a_batch_or_nothing(&self) {
        let batch = |round: u32| {
            (0..10).map(|part| self.put(&format!("m/{part}"), &round.to_string())).collect::<Vec<_>>()
        };
        self.write(batch(0)).await;
        let (store, below) = (Arc::clone(&self.store), Query::below(&self.key("m/"), 100));
        let reader = tokio::spawn(async move {
            let mut last = Vec::new();
            while last.last().is_none_or(|value| value != "50") {
                let records = store.list(below.clone()).await.unwrap();
                let values: BTreeSet<_> = records.iter().map(|record| record.value.clone()).collect();
                assert_eq!((records.len(), values.len()), (10, 1), "{values:?}");
                last = values.into_iter().collect();
            }
        });
        for round in 1..=50 {
            self.write(batch(round)).await;
        }
        reader.await.unwrap();
    }
}
