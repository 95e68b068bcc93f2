//! A caller signs in by a link while the server runs.

use std::sync::Arc;
use std::time::Duration;

use super::Listener;
use crate::error::Error;
use crate::link::Link;
use crate::upstream::{Subject, Upstream};

/// How long a link can be used.
const LIFE: Duration = Duration::from_secs(600);

impl Upstream {
    /// A link by which this subject signs in: the one that waits already, or a new one. It returns to this machine and
    /// expires after ten minutes.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn link(self: &Arc<Self>, subject: &Subject) -> Result<Link, Error> {
        let key = subject.link_key();
        if let Some(link) = self.links.open(&key) {
            return Ok(link);
        }
        let registered = self.registered_redirect(subject).await.and_then(|url| url.port());
        let listener = match (self.settings.redirect_port, registered) {
            (None, Some(port)) => match Listener::bind(Some(port)).await {
                Ok(listener) => listener,
                Err(_) => Listener::bind(None).await?,
            },
            (port, _) => Listener::bind(port).await?,
        };
        let sign_in = self.begin(subject, &listener.redirect_uri()).await?;
        let (link, end) = Link::new(sign_in.url()?.to_string());
        if !self.links.add(key, &link) {
            return Err(Error::Failed("too many sign-ins wait for their callers".to_owned()));
        }
        let (upstream, subject) = (Arc::clone(self), subject.clone());
        #[expect(
            clippy::disallowed_methods,
            reason = "nothing waits for a person when the server ends"
        )]
        tokio::spawn(async move {
            let waiting = listener.finish(&upstream, &subject, &sign_in);
            // Without an end, the link has expired.
            if let Ok(result) = tokio::time::timeout(LIFE, waiting).await {
                end.send_replace(Some(result));
            }
        });
        Ok(link)
    }
}
