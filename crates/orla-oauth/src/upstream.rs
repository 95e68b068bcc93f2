//! The sign-in at one server: the entry point of this crate.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use parking_lot::Mutex;
use reqwest::{Method, Request, Url};
use tokio_util::task::TaskTracker;

use crate::cache::{Cache, Slot};
use crate::challenge::Challenge;
use crate::discovery::{Discovered, discover};
use crate::error::{Error, SignInNeeded};
use crate::grant::{Client, Grant, TokenRequest};
use crate::http::{Http, Trust, reach_of};
use crate::link::Links;
use crate::metadata;
use crate::record::Record;
use crate::scope::{self, Known, Scopes};
use crate::secret::Secret;
use crate::settings::{AuthSettings, GrantKind, Per};
use crate::store::TokenStore;
use crate::stored::Unsaved;
use crate::token::{self, Refusal, Token};

/// The subject in whose name a request is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// All callers share one token.
    Shared,
    /// orla itself, at a server that distinguishes callers: for requests without a caller, such as the
    /// list of tools.
    Own,
    /// One caller.
    Caller {
        /// The unique id, which stays the same after a restart.
        id: Arc<str>,
        /// Its name, for messages; `None` if it has none.
        name: Option<Arc<str>>,
        /// The caller's access token, for an exchange.
        credential: Option<Secret>,
    },
}

impl Subject {
    /// Returns a text that identifies the subject. An exchanged token belongs to one credential, so
    /// another credential of a caller is another subject.
    pub fn key(&self) -> String {
        match self {
            Self::Shared => "shared".to_owned(),
            Self::Own => "own".to_owned(),
            Self::Caller { id, credential, .. } => {
                let credential = credential.as_ref().map(|credential| hex::encode(credential.digest()));
                format!("caller {} {id}", credential.unwrap_or_default())
            }
        }
    }

    /// Returns the subject's part of the record's name. It is hashed, because the name of a caller can
    /// be any text.
    pub(crate) fn record_key(&self) -> Option<String> {
        match self {
            Self::Shared => None,
            Self::Own => Some("own".to_owned()),
            Self::Caller { id, .. } => Some(hex::encode(&Secret::new(Arc::clone(id)).digest()[..16])),
        }
    }

    /// Returns the key of the subject's link.
    pub(crate) fn link_key(&self) -> String {
        self.record_key().unwrap_or_default()
    }

    fn name(&self) -> Option<String> {
        match self {
            Self::Shared | Self::Own => None,
            Self::Caller { name, .. } => name.as_deref().map(str::to_owned),
        }
    }
}

/// The sign-in at one server.
pub struct Upstream {
    /// The name of the server, for messages and in the store.
    pub(crate) name: String,
    /// The address.
    pub(crate) server: Url,
    pub(crate) settings: AuthSettings,
    pub(crate) http: Arc<Http>,
    pub(crate) store: Arc<dyn TokenStore>,
    pub(crate) cache: Cache,
    /// The refreshed tokens that could not be stored.
    pub(crate) unsaved: Unsaved,
    /// The running renewals.
    tasks: TaskTracker,
    /// The discovered authorization server, until the server rejects its tokens.
    discovered: tokio::sync::Mutex<Option<Arc<Discovered>>>,
    /// The newest challenge of the server.
    challenge: Mutex<Option<Challenge>>,
    /// The first issuer that received the configured client secret.
    issuer: OnceLock<String>,
    /// The sign-ins that wait for their users.
    pub(crate) links: Links,
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Upstream {
    /// Creates the sign-in at `server`, which messages and the store call `name`. Its renewals run in
    /// `tasks`, so that they can be waited for. Sends no request yet.
    pub fn new(
        name: impl Into<String>,
        server: Url,
        settings: AuthSettings,
        http: Arc<Http>,
        store: Arc<dyn TokenStore>,
        tasks: TaskTracker,
    ) -> Self {
        Self {
            name: name.into(),
            server,
            settings,
            http,
            store,
            cache: Cache::default(),
            unsaved: Unsaved::default(),
            tasks,
            discovered: tokio::sync::Mutex::default(),
            challenge: Mutex::default(),
            issuer: OnceLock::new(),
            links: Links::default(),
        }
    }

    /// Returns the settings.
    pub fn settings(&self) -> &AuthSettings {
        &self.settings
    }

    /// Returns whether each caller has its own token.
    pub fn is_per_caller(&self) -> bool {
        self.settings.per() == Per::Caller
    }

    /// Returns the token for the next request: the cached one, or one that can be obtained without a
    /// user. `None` if there is none, or none is known to be needed.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn token(self: &Arc<Self>, subject: &Subject) -> Result<Option<Secret>, Error> {
        if self.settings.grant == GrantKind::TokenExchange
            && matches!(subject, Subject::Caller { credential: None, .. })
        {
            let text = "it is called in the name of the caller, and the call came without a token that can be exchanged";
            return Err(Error::Refused(text.to_owned()));
        }
        let slot = self.cache.slot(&subject.key());
        let token = self.renewed(&slot, subject, None).await?;
        Ok(token.map(|token| token.access.clone()))
    }

    /// Handles a refusal of the server (401 or 403) of a request that carried the token `sent`. On
    /// success, the request may be repeated once.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn challenged(
        self: &Arc<Self>,
        subject: &Subject,
        sent: Option<&Secret>,
        status: u16,
        challenge: Option<Challenge>,
    ) -> Result<(), Error> {
        let slot = self.cache.slot(&subject.key());
        let challenge = challenge.unwrap_or_default();
        if status == 403 {
            return self.step_up(&slot, subject, sent, challenge).await;
        }
        let scopes = challenge.scopes.clone().unwrap_or_default();
        *self.challenge.lock() = Some(challenge);
        if sent.is_some() {
            // The server may use another authorization server now.
            *self.discovered.lock().await = None;
        }
        match self.renewed(&slot, subject, sent).await? {
            Some(token) if Some(&token.access) != sent => Ok(()),
            Some(_) => Err(Error::Refused("it rejects the token that it was given".to_owned())),
            None => {
                let ended = sent.is_some();
                let why = if ended { "its sign-in has ended" } else { "it needs a sign-in" };
                Err(self.sign_in_needed(subject, why, scopes))
            }
        }
    }

    /// Obtains a token with the scopes of the challenge in addition to the previous ones (SEP-2350).
    async fn step_up(
        self: &Arc<Self>,
        slot: &Arc<Slot>,
        subject: &Subject,
        sent: Option<&Secret>,
        challenge: Challenge,
    ) -> Result<(), Error> {
        let refused = |text: &str| Err(Error::Refused(text.to_owned()));
        let (Some(sent), true) = (sent, challenge.is_step_up()) else {
            return refused("it refuses the request (HTTP 403)");
        };
        let missing = challenge.scopes.unwrap_or_default();
        let granted = slot.token().map(|token| token.scopes.clone()).unwrap_or_default();
        if missing.is_empty() || granted.covers(&missing) {
            return refused(
                "it refuses the request, although its token has all scopes that it asks for (HTTP 403)",
            );
        }
        if self.settings.grant == GrantKind::AuthorizationCode {
            let record = self.load(subject).await?;
            let is_newer =
                |record: &Record| record.access_token != *sent && record.scopes.covers(&missing);
            if record.as_ref().is_some_and(is_newer) {
                // The user has signed in again since.
                return self.renewed(slot, subject, Some(sent)).await.map(drop);
            }
            self.note_missing(subject, &missing).await?;
            let why = format!("it needs a sign-in with more scopes ({missing})");
            return Err(self.sign_in_needed(subject, &why, missing));
        }
        slot.request(&granted.union(&missing));
        match self.renewed(slot, subject, Some(sent)).await? {
            Some(token) if token.scopes.covers(&missing) => Ok(()),
            _ => refused("it needs scopes that the authorization server does not grant (HTTP 403)"),
        }
    }

    fn sign_in_needed(&self, subject: &Subject, why: &str, scopes: Scopes) -> Error {
        if self.settings.grant != GrantKind::AuthorizationCode {
            let text = "it asks for a token, and none could be obtained for this caller";
            return Error::Refused(text.to_owned());
        }
        let (server, caller) = (self.name.clone(), subject.name());
        Error::SignIn(SignInNeeded { server, caller, why: why.to_owned(), scopes })
    }

    async fn renewed(
        self: &Arc<Self>,
        slot: &Arc<Slot>,
        subject: &Subject,
        rejected: Option<&Secret>,
    ) -> Result<Option<Arc<Token>>, Error> {
        let obtain = || {
            let (upstream, subject) = (Arc::clone(self), subject.clone());
            let (wanted, rejected) = (slot.wanted(), rejected.cloned());
            async move { upstream.obtain(&subject, &wanted, rejected.as_ref()).await }
        };
        slot.renewed(rejected, &self.tasks, obtain).await
    }

    /// Obtains a new token with the configured grant.
    async fn obtain(
        &self,
        subject: &Subject,
        wanted: &Scopes,
        rejected: Option<&Secret>,
    ) -> Result<Option<Token>, Error> {
        let is_challenged = self.challenge.lock().is_some();
        let grant = match (self.settings.grant, subject) {
            (GrantKind::AuthorizationCode, _) => return self.of_record(subject, rejected).await,
            (GrantKind::TokenExchange, Subject::Caller { credential: Some(credential), .. }) => {
                Grant::Exchange(credential.clone())
            }
            (GrantKind::TokenExchange, Subject::Caller { .. } | Subject::Shared) => return Ok(None),
            // Without a caller, orla makes requests as itself, and only if the server requires it.
            (GrantKind::TokenExchange, Subject::Own) if !is_challenged => return Ok(None),
            (GrantKind::TokenExchange, Subject::Own) | (GrantKind::ClientCredentials, _) => {
                Grant::ClientCredentials
            }
        };
        if !is_challenged && !self.settings.knows_its_issuer() {
            return Ok(None);
        }
        let found = self.discovered().await?;
        let client = self.configured_client(&found)?;
        let challenged = self.challenge.lock().as_ref().and_then(|challenge| challenge.scopes.clone());
        let known = Known {
            configured: self.settings.scopes.as_ref(),
            challenged: challenged.as_ref(),
            of_resource: found.scopes.as_ref(),
            before: Some(wanted).filter(|wanted| !wanted.is_empty()),
            ..Known::default()
        };
        let scopes = scope::select(known);
        let (endpoint, method) = (found.token_endpoint()?, client.method(Some(&found.metadata)));
        let request = TokenRequest {
            grant: &grant,
            client: &client,
            method,
            resource: &found.resource,
            audience: self.settings.audience.as_deref(),
            scopes: &scopes,
        };
        let token = self.request(&request, endpoint, found.trust, None).await?;
        Ok(Some(token))
    }

    /// Returns the configured client. Its secret is sent to one authorization server only.
    fn configured_client(&self, found: &Discovered) -> Result<Client, Error> {
        let id = self.settings.client_id.clone();
        let id = id.ok_or_else(|| Error::Refused("`client_id` is not configured".to_owned()))?;
        let first = self.issuer.get_or_init(|| found.metadata.issuer.clone());
        if *first != found.metadata.issuer {
            return Err(Error::Refused(ANOTHER_ISSUER.to_owned()));
        }
        Ok(Client { id, secret: self.settings.client_secret.clone(), method: None })
    }

    /// Returns the token of the stored sign-in, refreshed if necessary; `None` if a user must sign in.
    async fn of_record(
        &self,
        subject: &Subject,
        rejected: Option<&Secret>,
    ) -> Result<Option<Token>, Error> {
        let Some(stored) = self.load(subject).await? else { return Ok(None) };
        let record = self.newest(subject, &stored);
        let token = record.token();
        if token.is_fresh(SystemTime::now()) && Some(&token.access) != rejected {
            return Ok(Some(token));
        }
        let Some(refresh) = token.refresh.clone() else { return Ok(None) };
        let grant = Grant::Refresh(refresh.clone());
        let request = TokenRequest {
            grant: &grant,
            client: &record.client,
            method: record.client.method(None),
            resource: &record.resource,
            audience: self.settings.audience.as_deref(),
            scopes: &record.scopes,
        };
        let endpoint = metadata::endpoint("the token endpoint", &record.token_endpoint);
        let endpoint = endpoint.map_err(Error::Refused)?;
        match self.request(&request, endpoint, self.trust().await, Some(&refresh)).await {
            Ok(token) => Ok(self.save_refreshed(subject, &stored, record.with(&token)).await),
            Err(refusal) if refusal.is_final() => self.after_refusal(subject, &stored).await,
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// Sends a request for a token.
    pub(crate) async fn request(
        &self,
        request: &TokenRequest<'_>,
        endpoint: Url,
        trust: Trust,
        refresh: Option<&Secret>,
    ) -> Result<Token, Refusal> {
        let response = self.http.post(endpoint, trust, &request.form()).await;
        let response = response.map_err(|error| Refusal::Unreadable(error.to_string()))?;
        let now = SystemTime::now();
        let (status, secrets) = (response.status, request.secrets());
        let token = token::read(status, &response.body, request.scopes, refresh, &secrets, now);
        let outcome = if token.is_ok() { "token obtained" } else { "no token obtained" };
        tracing::debug!(server = self.name, grant = request.grant.name(), status, "{outcome}");
        token
    }

    /// Returns the authorization server that the newest challenge leads to.
    pub(crate) async fn discovered(&self) -> Result<Arc<Discovered>, Error> {
        let mut discovered = self.discovered.lock().await;
        if let Some(found) = &*discovered {
            return Ok(Arc::clone(found));
        }
        let challenge = self.challenge.lock().clone();
        let found = discover(&self.http, &self.server, &self.settings, challenge.as_ref()).await?;
        Ok(Arc::clone(discovered.insert(Arc::new(found))))
    }

    /// Learns the server's requirements from the answer to a request without a token.
    pub async fn probe(&self, request: Request) -> Option<Challenge> {
        let challenge = self.http.challenge(request).await;
        if challenge.is_some() {
            self.challenge.lock().clone_from(&challenge);
        }
        challenge
    }

    /// Learns the server's requirements from a `GET` of its address without a token.
    pub async fn probe_address(&self) {
        drop(self.probe(Request::new(Method::GET, self.server.clone())).await);
    }

    /// Returns who provided the endpoints of a stored sign-in.
    async fn trust(&self) -> Trust {
        match self.settings.knows_its_issuer() {
            true => Trust::Configured,
            false => Trust::Named(reach_of(&self.server).await),
        }
    }

    /// Makes the next use read the tokens from the store again.
    pub(crate) fn forget_cached(&self) {
        self.cache.clear();
    }

    /// Returns the scopes of the newest challenge.
    pub(crate) fn challenged_scopes(&self) -> Option<Scopes> {
        self.challenge.lock().as_ref()?.scopes.clone()
    }
}

/// The reason why the client secret is not sent.
pub(crate) const ANOTHER_ISSUER: &str = "it names another authorization server than before, which does not get the client's password; set `issuer` if that is right";
