use super::*;
use crate::id::Pattern;
use crate::principal::Callers;
use futures_util::FutureExt;
use tokio::sync::watch;

fn quotas(rules: impl IntoIterator<Item = QuotaRule>) -> Arc<Quotas> {
    let quotas = Arc::new(Quotas::default());
    quotas.configure(rules.into_iter().collect());
    quotas
}

fn rule(to: &str, capability: &str, calls: u64, per: Period) -> QuotaRule {
    QuotaRule {
        to: Callers::parse([to]).unwrap(),
        capabilities: vec![Pattern::new(capability)],
        rate: Some(Rate::new(calls, per)),
        ..QuotaRule::new("quotas[0]")
    }
}

fn at_once(to: &str, most: usize) -> QuotaRule {
    QuotaRule { rate: None, concurrent: Some(most), ..rule(to, "*", 1, Period::Second) }
}

fn dev(name: &str) -> Principal {
    Principal::oauth("https://id.example", name).with_groups(["dev"])
}

/// Counts a call in this process, which takes no time.
fn charge(quotas: &Quotas, caller: Option<&Principal>, capability: &str) -> Result<Charge, Refused> {
    quotas.charge(caller, capability, capability, &[]).now_or_never().unwrap()
}

/// Returns how many of so many calls are admitted.
fn admitted(quotas: &Arc<Quotas>, caller: &Principal, capability: &str, calls: usize) -> usize {
    let call = |_: &usize| charge(quotas, Some(caller), capability).is_ok();
    (0..calls).filter(call).count()
}

/// A counter that never answers.
struct SilentPermits(watch::Sender<u64>);

#[async_trait::async_trait]
impl Permits for SilentPermits {
    async fn take(self: Arc<Self>, _: Vec<Claim>) -> Result<Taken, NotTaken> {
        std::future::pending().await
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }

    fn count_of(&self, _: &Claim) -> Count {
        Count::default()
    }

    fn counts_of(&self, _: &CountedRule) -> Vec<(String, Count)> {
        Vec::new()
    }

    fn now(&self) -> Duration {
        Duration::ZERO
    }
}

#[test]
fn a_call_that_is_given_up_while_the_cluster_counts_it_is_counted_nowhere() {
    let of_node = rule("*", "*", 1, Period::Hour);
    let of_cluster = QuotaRule { scope: CountScope::Cluster, ..rule("*", "a", 9, Period::Hour) };
    let quotas = quotas([of_node, of_cluster]);
    quotas.count_in_cluster(Arc::new(SilentPermits(watch::Sender::new(0))));
    let charging = quotas.charge(None, "a", "a", &[]);
    assert!(charging.now_or_never().is_none(), "the cluster does not answer");
    assert!(charge(&quotas, None, "b").is_ok());
    assert!(charge(&quotas, None, "b").is_err());
}

#[tokio::test(start_paused = true)]
async fn a_rule_counts_the_calls_that_it_names_and_no_others() {
    let quotas = quotas([rule("bob", "a*", 3, Period::Minute)]);
    let [ada, bob] = ["ada", "bob"].map(Principal::token);
    assert_eq!(admitted(&quotas, &bob, "ab", 2), 2);
    assert_eq!(admitted(&quotas, &bob, "a", 5), 1, "all of its capabilities count together");
    assert_eq!(admitted(&quotas, &bob, "b", 5), 5);
    assert_eq!(admitted(&quotas, &ada, "a", 5), 5);
    let over = charge(&quotas, Some(&bob), "a").map(drop).unwrap_err().why;
    let wait = Duration::from_secs(20);
    assert_eq!(
        over,
        NotTaken::Over { at: 0, limit: "3 calls per minute".to_owned(), retry_after: wait }
    );
    tokio::time::advance(wait).await;
    assert_eq!(admitted(&quotas, &bob, "a", 5), 1);
    assert_eq!(quotas.refusals(), [("quotas[0]".to_owned(), 9)]);
}

#[tokio::test(start_paused = true)]
async fn callers_have_counts_of_their_own_and_a_group_shares_one() {
    let each = quotas([rule("*", "*", 2, Period::Hour)]);
    assert_eq!([dev("ada"), dev("bob")].map(|who| admitted(&each, &who, "a", 3)), [2, 2]);
    let group = quotas([rule("group:dev", "*", 2, Period::Hour)]);
    assert_eq!([dev("ada"), dev("bob")].map(|who| admitted(&group, &who, "a", 3)), [2, 0]);
    let members = QuotaRule { count: Counting::Each, ..rule("group:dev", "*", 2, Period::Hour) };
    let members = quotas([members]);
    assert_eq!([dev("ada"), dev("bob")].map(|who| admitted(&members, &who, "a", 3)), [2, 2]);
    let together = QuotaRule { count: Counting::Together, ..rule("*", "*", 3, Period::Hour) };
    let together = quotas([together]);
    assert_eq!([dev("ada"), dev("bob")].map(|who| admitted(&together, &who, "a", 2)), [2, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_one_rule_refuses_counts_for_no_rule() {
    let quotas = quotas([rule("*", "*", 5, Period::Hour), rule("*", "a", 1, Period::Hour)]);
    let bob = Principal::token("bob");
    assert_eq!(admitted(&quotas, &bob, "a", 10), 1);
    assert_eq!(admitted(&quotas, &bob, "b", 10), 4);
}

#[tokio::test(start_paused = true)]
async fn some_capabilities_cost_more() {
    let mut costly = rule("*", "*", 10, Period::Hour);
    let cost = vec![(Pattern::new("gpu.*"), 4), (Pattern::new("free"), 0)];
    costly.rate = Some(Rate { cost, ..Rate::new(10, Period::Hour) });
    let quotas = quotas([costly]);
    let bob = Principal::token("bob");
    assert_eq!(admitted(&quotas, &bob, "gpu.train", 5), 2);
    assert_eq!(admitted(&quotas, &bob, "a", 5), 2);
    assert_eq!(admitted(&quotas, &bob, "free", 5), 5);
}

#[tokio::test(start_paused = true)]
async fn calls_at_once_count_until_they_end() {
    let quotas = quotas([at_once("*", 2)]);
    let bob = Principal::token("bob");
    let charge = || charge(&quotas, Some(&bob), "a");
    let (first, _second) = (charge().unwrap(), charge().unwrap());
    let over = charge().map(drop).unwrap_err().why;
    assert!(matches!(&over, NotTaken::Over { limit, .. } if limit == "2 calls at once"));
    assert!(!over.retry_after().is_zero());
    assert_eq!(quotas.usage()[0].running, 2);
    drop(first);
    assert!(charge().is_ok());
}

#[test]
fn the_boundary_is_exact_for_any_number_of_threads() {
    let quotas = quotas([rule("*", "*", 1_000, Period::Day)]);
    let bob = Principal::token("bob");
    let admitted: usize = std::thread::scope(|scope| {
        let work = || scope.spawn(|| admitted(&quotas, &bob, "a", 200));
        let threads: Vec<_> = (0..16).map(|_| work()).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(admitted, 1_000);
}

#[tokio::test(start_paused = true)]
async fn a_reload_keeps_counts_and_applies_new_bounds() {
    let quotas = quotas([rule("*", "a", 3, Period::Hour), at_once("*", 1)]);
    let bob = Principal::token("bob");
    let running = charge(&quotas, Some(&bob), "a").unwrap();
    quotas.configure(vec![at_once("*", 2), rule("*", "a", 4, Period::Hour)]);
    assert_eq!(admitted(&quotas, &bob, "a", 9), 3);
    drop(running);
    assert_eq!(quotas.usage()[0].running, 0);
    quotas.configure(Vec::new());
    assert_eq!(admitted(&quotas, &bob, "a", 9), 9);
    assert_eq!(quotas.local.counts.lock().by_key.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn days_continue_after_a_restart_and_minutes_do_not() {
    let rules = || [rule("*", "a", 4, Period::Day), rule("*", "b", 4, Period::Minute)];
    let before = quotas(rules());
    let (bob, ada) = (Principal::token("bob"), dev("ada"));
    assert_eq!(admitted(&before, &bob, "a", 3), 3);
    assert_eq!(admitted(&before, &bob, "b", 3), 3);
    assert!(charge(&before, None, "a").is_ok());
    let stored = before.stored();
    let after = quotas(rules());
    after.restore(&stored, Duration::ZERO);
    assert_eq!(admitted(&after, &bob, "a", 9), 1);
    assert_eq!(admitted(&after, &bob, "b", 9), 4);
    assert_eq!(admitted(&after, &ada, "a", 9), 4);
    let later = quotas(rules());
    later.restore(&stored, Duration::from_secs(12 * 3600));
    assert_eq!(admitted(&later, &bob, "a", 9), 3, "half a day has refilled two calls");
    let odd = [StoredCount::new(&*stored[0].rule, "token:bob", f64::NAN)];
    after.restore(&odd, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_shared_count_continues_after_a_restart() {
    let rules = || [rule("group:dev", "*", 4, Period::Day)];
    let before = quotas(rules());
    assert_eq!(admitted(&before, &dev("ada"), "a", 3), 3);
    let after = quotas(rules());
    after.restore(&before.stored(), Duration::ZERO);
    assert_eq!(admitted(&after, &dev("bob"), "a", 9), 1);
}

#[tokio::test(start_paused = true)]
async fn counts_that_no_longer_matter_are_removed() {
    let quotas = quotas([rule("*", "*", 1, Period::Second)]);
    for number in 0..10 * FIRST_SWEEP {
        assert_eq!(admitted(&quotas, &Principal::token(&number.to_string()), "a", 1), 1);
        tokio::time::advance(Duration::from_millis(1)).await;
    }
    assert!(quotas.local.counts.lock().by_key.len() <= 3 * FIRST_SWEEP);
}

#[tokio::test(start_paused = true)]
async fn a_caller_sees_what_it_has_used() {
    let quotas = quotas([rule("bob", "a", 4, Period::Minute), rule("group:dev", "*", 2, Period::Day)]);
    let bob = Principal::token("bob");
    assert_eq!(admitted(&quotas, &bob, "a", 1), 1);
    let own = quotas.usage_of(Some(&bob));
    assert_eq!((own.len(), own[0].remaining, own[0].caller.as_deref()), (1, Some(3), Some("bob")));
    let others = quotas.usage_of(Some(&dev("ada")));
    assert_eq!((others[0].remaining, others[0].caller.as_deref()), (Some(2), Some("group:dev")));
    let all = quotas.usage();
    assert_eq!(all.iter().map(|row| row.caller.as_deref()).collect::<Vec<_>>(), [Some("bob"), None]);
}

#[tokio::test(start_paused = true)]
async fn a_cluster_rule_is_counted_in_the_cluster_or_refuses() {
    let in_cluster = QuotaRule { scope: CountScope::Cluster, ..at_once("*", 1) };
    let quotas = quotas([rule("*", "*", 2, Period::Hour), in_cluster]);
    let bob = Principal::token("bob");
    let alone = charge(&quotas, Some(&bob), "a").map(drop).unwrap_err();
    let alone = alone.of_call("a".to_owned());
    assert_eq!(alone.kind(), "unavailable");
    assert!(alone.to_string().contains("quotas[0] holds in the whole cluster"), "{alone}");
    quotas.count_in_cluster(Arc::new(LocalPermits::default()));
    let first = charge(&quotas, Some(&bob), "a").unwrap();
    assert_eq!(first.counted.len(), 1);
    assert!(charge(&quotas, Some(&bob), "a").is_err());
    assert_eq!(quotas.usage()[0].remaining, Some(1), "what was refused is not counted here");
    let counted = quotas.charge(Some(&bob), "a", "a", &first.counted).await.unwrap();
    assert!(counted.counted.is_empty(), "another node has counted it");
}

#[tokio::test(start_paused = true)]
async fn a_permit_of_the_cluster_is_waited_for() {
    let quotas = quotas([]);
    quotas.count_in_cluster(Arc::new(LocalPermits::default()));
    let first = quotas.enter(ClusterPermit::new("a", 1)).await.unwrap();
    assert_eq!(first.counted, [Arc::clone(ClusterPermit::new("a", 2).name())]);
    let mut second = Box::pin(quotas.enter(ClusterPermit::new("a", 1)));
    assert!(second.as_mut().now_or_never().is_none());
    drop(first);
    assert!(second.await.is_ok());
}
