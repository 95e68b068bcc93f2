//! A node that gets messages without NATS, so that it can be given any.

use std::sync::Arc;
use std::time::Duration;

use async_nats::{HeaderMap, HeaderValue, Message};
use async_trait::async_trait;
use bytes::Bytes;
use orla_marketplace::{CapabilityMarketplace, Principal, Source as _};

use crate::call::{read_notice, write_notice};
use crate::inquiry::Answerer;
use crate::link::HEADER;
use crate::member::Member;
use crate::presence::{Learned, Lease, Offers};
use crate::{Cluster, ClusterSettings};

/// A node whose own messages go nowhere.
pub struct IsolatedNode {
    cluster: Cluster,
    member: Member,
}

/// Answers inquiries with their question.
struct Echo;

#[async_trait]
impl Answerer for Echo {
    async fn answer(&self, _caller: Option<Principal>, question: Bytes) -> Bytes {
        question
    }
}

impl IsolatedNode {
    /// A node that offers these capabilities. In subjects, their ids are in the place of digests.
    pub fn new(market: &Arc<CapabilityMarketplace>, ids: &[&str]) -> Self {
        let name = |text: &str| text.to_owned();
        let settings =
            ClusterSettings { name: name("t"), node: name("alpha"), ..ClusterSettings::default() };
        let cluster = Cluster::new(settings, market, |_| None);
        cluster.answer_with(Arc::new(Echo));
        let member = cluster.member();
        member.serving.offer(ids.iter().map(|id| (name(id), name(id))).collect());
        Self { cluster, member }
    }

    /// Receives a message. The end of its subject is `call.ID`, `in.TOKEN` or `ask.1`.
    pub fn receive(&self, subject: &str, header: &str, payload: &[u8]) {
        let Ok(header) = header.parse::<HeaderValue>() else { return };
        let mut headers = HeaderMap::new();
        headers.insert(HEADER, header);
        self.member.dispatch(Message {
            subject: subject.into(),
            reply: Some("orla.t.to.beta.0.in.0".into()),
            payload: Bytes::copy_from_slice(payload),
            headers: Some(headers),
            status: None,
            description: None,
            length: payload.len(),
        });
    }

    /// Receives the lease that a node wrote in its place, and the offer that it names.
    pub fn receive_lease(&self, node: &str, lease: &[u8], offer: &[u8]) {
        self.member.apply_lease(node, lease);
        if let (Ok(lease), Ok(offers)) = (Lease::read(lease), Offers::read(offer)) {
            assert_eq!(
                Offers::read(offers.write().as_bytes()),
                Ok(Offers { left_out: 0, ..offers.clone() })
            );
            let learned = Learned { offers, bytes: offer.len(), revision: 1 };
            self.member.shared.change(|registry| registry.learn(&lease, learned).unwrap_or_default());
        }
        drop((self.cluster.registrations(), self.cluster.status()));
    }

    /// Reads a notice of a call. One that is read is written so that it is read the same.
    pub fn receive_notice(&self, payload: &[u8]) {
        if let Some(notice) = read_notice(payload) {
            assert_eq!(read_notice(&write_notice(notice.clone())), Some(notice));
        }
    }

    /// Returns how many calls of other nodes have come.
    pub fn calls(&self) -> u64 {
        let is_arrival = |(word, _): &(&str, u64)| ["taken", "refused"].contains(word);
        self.cluster.events().into_iter().filter(is_arrival).map(|(_, count)| count).sum()
    }

    /// Waits this long for the calls to end, and then ends them.
    pub async fn end(&self, max_wait: Duration) {
        self.cluster.leave(max_wait).await;
        self.cluster.shutdown().await;
    }
}
