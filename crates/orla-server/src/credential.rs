//! Ends long activities together with the credential of their caller.
//!
//! # How it works
//!
//! Every request carries the [`Credential`] that identified its caller. While a request and its answer
//! run, they wait for the end of the credential. There is no table of credentials. Sessions, requests
//! that wait for their clients, and tasks of the agent outlive their requests. `Core::end_unknown`
//! searches them when the credentials of the configuration change, and from time to time.
//!
//! A credential is *withdrawn* if its token was revoked or has expired without renewal, or if its issuer
//! or its authority is no longer accepted. A withdrawn credential ends everything. An access token or a
//! certificate that merely *expires* ends streams that only listen, because their clients return with a
//! newer credential. A call that was accepted earlier runs to its end, within its own limits.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{Extensions, HeaderMap, Response, header};
use orla_marketplace::Principal;

use crate::http::body::Body;
use crate::state::Core;
use crate::tls::ClientCertificate;

/// The longest sleep at once until an expiry. The clock may be set in the meantime.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// The credential that identified the caller of a request.
#[derive(Clone)]
pub(crate) struct Credential {
    core: Arc<Core>,
    principal: Principal,
    certificate: Option<ClientCertificate>,
}

/// How the stream of a response ends together with its caller's credential. It is passed in the
/// response's extensions.
#[derive(Clone)]
pub(crate) struct StreamEnd {
    /// The last event.
    pub(crate) last: Bytes,
    /// Whether the stream carries a call. An expiry does not end a call.
    pub(crate) is_call: bool,
}

/// The last event of a stream whose protocol has no message for the end.
const LAST_EVENT: &[u8] = b": the credential of this stream is no longer accepted\n\n";

/// The sentence for clients.
pub(crate) const ENDED: &str =
    "the credential of this request is no longer accepted; authenticate again";

impl Credential {
    /// Returns the credential of a request, or `None` if its caller is anonymous.
    pub(crate) fn of(
        core: &Arc<Core>,
        principal: Option<&Principal>,
        extensions: &Extensions,
    ) -> Option<Self> {
        let principal = principal?.clone();
        let certificate = extensions.get::<ClientCertificate>();
        let certificate = certificate.filter(|certificate| certificate.principal == principal).cloned();
        Some(Self { core: Arc::clone(core), principal, certificate })
    }

    /// Waits until the credential is withdrawn.
    pub(crate) async fn withdrawn(&self) {
        // A token that orla made is not renewed by its caller, so its expiry withdraws it.
        let own = self.principal.fingerprint().and(self.principal.expires_at());
        self.until(own).await;
    }

    /// Waits until the credential is withdrawn or has expired.
    async fn ended(&self) {
        self.until(self.principal.expires_at()).await;
    }

    async fn until(&self, expiry: Option<SystemTime>) {
        let mut changes = self.core.credentials.subscribe();
        loop {
            if !self.is_accepted() {
                return;
            }
            let left = expiry.map(|at| at.duration_since(SystemTime::now()).unwrap_or_default());
            if left == Some(Duration::ZERO) {
                return;
            }
            let changed = changes.changed();
            let is_over = match left {
                Some(left) => match tokio::time::timeout(left.min(LONGEST_SLEEP), changed).await {
                    Ok(changed) => changed.is_err(),
                    Err(_) => false,
                },
                None => changed.await.is_err(),
            };
            // The server has ended.
            if is_over {
                return;
            }
        }
    }

    fn is_accepted(&self) -> bool {
        match &self.certificate {
            Some(certificate) => self.core.tls.trusts(certificate),
            None => self.core.settings.load().auth.still_knows(&self.principal),
        }
    }

    /// Makes the stream of a response end together with the credential.
    pub(crate) fn bound(self, mut response: Response<Body>) -> Response<Body> {
        let end = response.extensions_mut().remove::<StreamEnd>();
        let is_call = end.as_ref().is_some_and(|end| end.is_call);
        let last = end.map_or_else(|| last_event(response.headers()), |end| end.last);
        let ended = async move {
            match is_call {
                true => self.withdrawn().await,
                false => self.ended().await,
            }
        };
        response.map(|body| body.until(ended, last))
    }
}

fn last_event(headers: &HeaderMap) -> Bytes {
    let is_events = headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind == "text/event-stream");
    if is_events { Bytes::from_static(LAST_EVENT) } else { Bytes::new() }
}
