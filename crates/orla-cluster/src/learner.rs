//! Reads the offers of the other nodes. A separate task does so, because it waits for JetStream.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use ring::digest::{SHA256, digest};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};

use crate::link::Buckets;
use crate::presence::{Learned, Lease, MAX_OFFER, Offers, ReadQueue, is_name};
use crate::shared::Shared;

/// How long one offer may take to be read.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum number of entries of the bucket of leases that are looked at.
const MAX_LISTED: usize = 1024;

/// Reads the offers of the other nodes.
pub(crate) struct Learner {
    shared: Arc<Shared>,
    queue: Mutex<ReadQueue>,
    is_list_requested: AtomicBool,
    woken: Notify,
}

impl Learner {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        Self {
            shared: Arc::clone(shared),
            queue: Mutex::default(),
            is_list_requested: AtomicBool::new(false),
            woken: Notify::new(),
        }
    }

    /// Has the offer read that this lease names.
    pub(crate) fn request(&self, lease: Lease) {
        self.queue.lock().request(lease, Instant::now());
        self.woken.notify_one();
    }

    /// Has all leases read that there are.
    pub(crate) fn request_list(&self) {
        self.is_list_requested.store(true, Ordering::Relaxed);
        self.woken.notify_one();
    }

    /// Reads the wanted offers, until it is dropped. `take` receives each lease of the list with the
    /// name of its node.
    pub(crate) async fn learn(&self, buckets: &Buckets, take: impl Fn(&str, &[u8])) {
        let (mut reads, mut lists) = (FuturesUnordered::new(), FuturesUnordered::new());
        let mut is_listed = false;
        loop {
            while let Some(lease) = self.next() {
                reads.push(async move {
                    let read = timeout(READ_TIMEOUT, read_offer(buckets, &lease)).await;
                    (lease, read.unwrap_or_else(|_| Err("it takes too long".to_owned())))
                });
            }
            if lists.is_empty() && self.is_list_requested.swap(false, Ordering::Relaxed) {
                lists.push(list(buckets, &take));
            }
            if is_listed && self.queue.lock().is_idle() {
                self.shared.learned();
            }
            let due = self.queue.lock().due();
            tokio::select! {
                () = self.woken.notified() => {}
                () = async { sleep_until(due.unwrap_or_else(Instant::now)).await }, if due.is_some() => {}
                Some((lease, read)) = reads.next(), if !reads.is_empty() => self.finish(&lease, read),
                Some(listed) = lists.next(), if !lists.is_empty() => {
                    is_listed = true;
                    if let Err(problem) = listed {
                        tracing::debug!(problem, "the nodes cannot be listed");
                    }
                }
            }
        }
    }

    fn next(&self) -> Option<Lease> {
        self.queue.lock().next(Instant::now())
    }

    fn finish(&self, lease: &Lease, read: Result<Learned, String>) {
        self.queue.lock().done(&lease.node, read.is_ok(), Instant::now());
        let node = &lease.node;
        let learned = match read {
            Ok(learned) => learned,
            // It may just be written. It is read again with the next lease.
            Err(problem) => return tracing::debug!(node, problem, "an offer cannot be read"),
        };
        let left_out = learned.offers.left_out;
        if left_out > 0 {
            tracing::warn!(node, left_out, "capabilities of a node cannot be served");
        }
        let capabilities = learned.offers.capabilities.len();
        tracing::info!(node, capabilities, "a node of the cluster offers its capabilities");
        self.shared.change(|registry| {
            registry.learn(lease, learned).unwrap_or_else(|problem| {
                tracing::warn!(node, problem, "the capabilities of a node are not served");
                false
            })
        });
    }
}

/// Takes every lease that there is.
async fn list(buckets: &Buckets, take: &impl Fn(&str, &[u8])) -> Result<(), String> {
    let leases = &buckets.leases;
    let subjects = leases.stream.info_with_subjects(format!("{}>", leases.prefix)).await;
    let mut subjects = subjects.map_err(|err| err.to_string())?.take(MAX_LISTED);
    while let Some(subject) = subjects.next().await {
        let (subject, _) = subject.map_err(|err| err.to_string())?;
        let Some(node) = subject.strip_prefix(&leases.prefix).filter(|node| is_name(node)) else {
            continue;
        };
        if let Some(lease) = leases.get(node).await.map_err(|err| err.to_string())? {
            take(node, &lease);
        }
    }
    Ok(())
}

/// Reads the offer that a lease names.
async fn read_offer(buckets: &Buckets, lease: &Lease) -> Result<Learned, String> {
    let (mut text, mut revision) = (BytesMut::new(), 0);
    for part in 0..lease.parts {
        let entry = buckets.offers.entry(part_key(&lease.node, part)).await;
        let entry = entry.map_err(|err| err.to_string())?.ok_or("a part is missing")?;
        if text.len() + entry.value.len() > MAX_OFFER {
            return Err(format!("it has more than {MAX_OFFER} bytes"));
        }
        text.extend_from_slice(&entry.value);
        revision = entry.revision;
    }
    if hex::encode(digest(&SHA256, &text).as_ref()) != lease.offer {
        return Err("it is not the one that the lease names".to_owned());
    }
    Ok(Learned { offers: Offers::read(&text)?, bytes: text.len(), revision })
}

/// Returns the key of a part of a node's offer.
pub(crate) fn part_key(node: &str, part: u32) -> String {
    format!("{node}.{part}")
}
