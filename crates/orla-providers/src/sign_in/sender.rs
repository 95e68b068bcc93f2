//! Sends requests to one server, with the token of the caller in whose name they are made.

use std::fmt;
use std::sync::Arc;

use orla_marketplace::{CallContext, NoticeSink};
use orla_oauth::{Challenge, Secret, SignInNeeded, Subject, Upstream, root_cause};
use parking_lot::Mutex;
use reqwest::header::{AUTHORIZATION, HeaderValue, WWW_AUTHENTICATE};
use reqwest::{Client, Request, Response, StatusCode};

use crate::span::span_of;

/// The maximum number of attempts of one request: with the current token, with a renewed one, and with
/// one that has more scopes.
const MAX_ATTEMPTS: usize = 3;

/// Sends the requests of one connection.
#[derive(Clone, Debug)]
pub(crate) struct Sender {
    client: Client,
    credentials: Option<Arc<Credentials>>,
    /// The call whose spans the requests are, if there is one.
    notices: NoticeSink,
}

/// The subject in whose name requests are made, and its tokens.
#[derive(Debug)]
pub(crate) struct Credentials {
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) subject: Subject,
    /// The sign-in without which requests fail, until a request with a token is answered.
    needed: Mutex<Option<SignInNeeded>>,
}

impl Credentials {
    pub(crate) fn new(upstream: Arc<Upstream>, subject: Subject) -> Self {
        Self { upstream, subject, needed: Mutex::default() }
    }

    /// Returns the sign-in without which requests currently fail.
    pub(crate) fn needed(&self) -> Option<SignInNeeded> {
        self.needed.lock().clone()
    }
}

/// The reason why a request has no response.
#[derive(Debug)]
pub(crate) enum Unanswered {
    /// The connection failed.
    Http(reqwest::Error),
    /// There is no token that the server accepts.
    Token(orla_oauth::Error),
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(err) => f.write_str(&root_cause(err).to_lowercase()),
            Self::Token(error) => error.fmt(f),
        }
    }
}

impl Sender {
    pub(crate) fn new(client: Client, credentials: Option<Credentials>) -> Self {
        let credentials = credentials.map(Arc::new);
        Self { client, credentials, notices: NoticeSink::default() }
    }

    /// Returns the same sender for the requests of a call, which are spans of it.
    pub(crate) fn within(&self, notices: &NoticeSink) -> Self {
        Self { notices: notices.clone(), ..self.clone() }
    }

    /// Returns the subject's credentials, if the server has a sign-in.
    pub(crate) fn credentials(&self) -> Option<&Arc<Credentials>> {
        self.credentials.as_ref()
    }

    /// Sends a request of a call. If the request needs a sign-in of its caller, the caller signs in,
    /// while the call's time is paused. The request is then repeated once: it has not run.
    pub(crate) async fn execute_for(
        &self,
        ctx: &CallContext,
        request: Request,
    ) -> Result<Response, Unanswered> {
        let Some(credentials) = &self.credentials else { return self.execute(request).await };
        let again = request.try_clone();
        let sent = self.execute(request).await;
        let (Err(Unanswered::Token(_)), Some(again)) = (&sent, again) else { return sent };
        let recovered = {
            let _paused = ctx.pause();
            credentials.recover(ctx.scope.client.as_ref()).await
        };
        match recovered {
            None => sent,
            Some(Ok(())) => self.execute(again).await,
            Some(Err(why)) => Err(Unanswered::Token(orla_oauth::Error::Failed(why))),
        }
    }

    /// Sends a request. If the server refuses the token, the token is renewed and the request repeated:
    /// it has not run.
    pub(crate) async fn execute(&self, request: Request) -> Result<Response, Unanswered> {
        let Some(credentials) = &self.credentials else {
            return self.send(request).await;
        };
        // Boxed, to keep the future of a request without a token small.
        let sent = Box::pin(self.execute_as(credentials, request)).await;
        match &sent {
            Ok((_, true)) => *credentials.needed.lock() = None,
            Err(Unanswered::Token(orla_oauth::Error::SignIn(needed))) => {
                *credentials.needed.lock() = Some(needed.clone());
            }
            Ok((_, false)) | Err(_) => {}
        }
        sent.map(|(response, _)| response)
    }

    async fn send(&self, request: Request) -> Result<Response, Unanswered> {
        let mut span = span_of(&self.notices, &request);
        let response = self.client.execute(request).await.map_err(Unanswered::Http)?;
        span.set_code(response.status().as_u16().into());
        Ok(response)
    }

    /// Returns the response, and whether the request carried a token.
    async fn execute_as(
        &self,
        Credentials { upstream, subject, .. }: &Credentials,
        request: Request,
    ) -> Result<(Response, bool), Unanswered> {
        let mut request = request;
        for attempt in 1.. {
            let token = upstream.token(subject).await.map_err(Unanswered::Token)?;
            match &token {
                Some(token) => request.headers_mut().insert(AUTHORIZATION, bearer(token)),
                None => request.headers_mut().remove(AUTHORIZATION),
            };
            // A body that is a stream cannot be repeated. No request has one.
            let again = request.try_clone().filter(|_| attempt < MAX_ATTEMPTS);
            let response = self.send(request).await?;
            let challenge = challenge(&response);
            let is_refused = match response.status() {
                StatusCode::UNAUTHORIZED => true,
                StatusCode::FORBIDDEN => challenge.as_ref().is_some_and(Challenge::is_step_up),
                _ => false,
            };
            if !is_refused {
                return Ok((response, token.is_some()));
            }
            let status = response.status().as_u16();
            drop(response);
            let renewed = upstream.challenged(subject, token.as_ref(), status, challenge).await;
            renewed.map_err(Unanswered::Token)?;
            let Some(again) = again else { break };
            request = again;
        }
        let text = "it refuses every token that it is given".to_owned();
        Err(Unanswered::Token(orla_oauth::Error::Refused(text)))
    }
}

/// Returns the header field of a token, which consists of visible ASCII.
fn bearer(token: &Secret) -> HeaderValue {
    let mut value = HeaderValue::from_str(&format!("Bearer {}", token.expose()))
        .unwrap_or_else(|_| HeaderValue::from_static("Bearer"));
    value.set_sensitive(true);
    value
}

/// Returns the server's requirements for a token.
pub(crate) fn challenge(response: &Response) -> Option<Challenge> {
    let values = response.headers().get_all(WWW_AUTHENTICATE).iter();
    Challenge::of(values.filter_map(|value| value.to_str().ok()))
}
