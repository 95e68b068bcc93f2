//! Signs a caller in by a link while the server runs.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::listener::Port;
use crate::error::Error;
use crate::link::Link;
use crate::upstream::{Subject, Upstream};

/// How long a link can be used.
const LIFE: Duration = Duration::from_secs(600);

impl Upstream {
    /// Returns a link by which this subject signs in: the open one, or a new one. It returns to this
    /// machine and expires after ten minutes.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn link(self: &Arc<Self>, subject: &Subject) -> Result<Link, Error> {
        let key = subject.link_key();
        if let Some(link) = self.links.open(&key) {
            return Ok(link);
        }
        let port = self.port(subject).await?;
        let sign_in = self.begin(subject, &port.redirect_uri()).await?;
        let (link, end) = Link::new(sign_in.url()?.to_string());
        // Added before anyone knows the link, because another sign-in may serve the port already.
        let result = port.add(self, subject, &sign_in);
        if !self.links.add(key, &link) {
            return Err(Error::Failed("too many sign-ins wait for their callers".to_owned()));
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "nothing waits for a person when the server ends"
        )]
        tokio::spawn(async move {
            let waiting = port.finish(result);
            // Without a result, the link has expired.
            if let Ok(result) = tokio::time::timeout(LIFE, waiting).await {
                end.send_replace(Some(result));
            }
        });
        Ok(link)
    }

    /// Returns the port that the browser of a new sign-in returns to: the shared fixed port, or a
    /// separate one.
    async fn port(&self, subject: &Subject) -> Result<Arc<Port>, Error> {
        if let Some(port) = self.settings.redirect_port {
            let mut shared = self.links.port.lock().await;
            if let Some(Ok(known)) = shared.upgrade().map(Arc::downcast::<Port>) {
                return Ok(known);
            }
            let bound = Arc::new(Port::bind(port).await?);
            let weak: Weak<Port> = Arc::downgrade(&bound);
            *shared = weak;
            return Ok(bound);
        }
        let registered = self.registered_redirect(subject).await.and_then(|url| url.port());
        let free = match registered {
            Some(port) => match Port::bind(port).await {
                Ok(port) => port,
                Err(_) => Port::bind(0).await?,
            },
            None => Port::bind(0).await?,
        };
        Ok(Arc::new(free))
    }
}
