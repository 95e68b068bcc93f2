//! Signs a user in: by an authorization code with PKCE that returns to this machine (OAuth 2.1 §4.1, RFC
//! 8252), or by a device code (RFC 8628).

mod by_link;
mod device;
mod listener;

use std::sync::Arc;

use reqwest::Url;
use subtle::ConstantTimeEq;
use url::form_urlencoded;

use crate::discovery::Discovered;
use crate::error::Error;
use crate::grant::{Client, Grant, TokenRequest};
use crate::metadata;
use crate::pkce::{self, Pkce};
use crate::record::Record;
use crate::registration;
use crate::scope::{self, Known, Scopes};
use crate::secret::Secret;
use crate::token::{Token, refusal};
use crate::upstream::{ANOTHER_ISSUER, Subject, Upstream};

pub use device::DevicePrompt;
pub use listener::Listener;

/// A sign-in that waits for its user.
#[derive(Clone, Debug)]
pub struct SignIn {
    found: Arc<Discovered>,
    client: Client,
    redirect_uri: String,
    scopes: Scopes,
    pkce: Pkce,
    state: Secret,
}

/// The reason why an authorization response is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// The response belongs to another sign-in. This one still waits.
    Foreign,
    /// The sign-in has failed.
    Failed(Error),
}

impl SignIn {
    /// Returns the address where the user signs in.
    ///
    /// # Errors
    /// The authorization server has no such place.
    pub fn url(&self) -> Result<Url, Error> {
        let address = self.found.metadata.authorization_endpoint.as_ref();
        let mut url = self.found.endpoint("authorization endpoint", address)?;
        let scopes = self.scopes.to_string();
        let mut query = url.query_pairs_mut();
        query
            .append_pair("response_type", "code")
            .append_pair("client_id", &self.client.id)
            .append_pair("redirect_uri", &self.redirect_uri)
            .append_pair("state", self.state.expose())
            .append_pair("code_challenge", &self.pkce.challenge)
            .append_pair("code_challenge_method", "S256")
            .append_pair("resource", &self.found.resource);
        if !scopes.is_empty() {
            query.append_pair("scope", &scopes);
        }
        if self.scopes.contains(scope::OFFLINE_ACCESS) {
            // Without this parameter, OpenID providers ignore that scope (OpenID Connect Core §11).
            query.append_pair("prompt", "consent");
        }
        drop(query);
        Ok(url)
    }

    /// Returns the code in the query of an authorization response, after checking its state and its
    /// issuer (OAuth 2.1 §4.1.2, RFC 9207 §2.4).
    ///
    /// # Errors
    /// See [`Rejected`].
    pub fn code(&self, query: &str) -> Result<Secret, Rejected> {
        let one = |name: &str| {
            let mut found = form_urlencoded::parse(query.as_bytes()).filter(|(known, _)| known == name);
            found.next().map(|(_, value)| value.into_owned())
        };
        let failed = |text: &str| Rejected::Failed(Error::Refused(text.to_owned()));
        let state = one("state").unwrap_or_default();
        if !bool::from(state.as_bytes().ct_eq(self.state.expose().as_bytes())) {
            return Err(Rejected::Foreign);
        }
        let metadata = &self.found.metadata;
        match one("iss") {
            Some(issuer) if issuer != metadata.issuer => {
                return Err(failed(
                    "the answer came from another authorization server than the one that was asked",
                ));
            }
            None if metadata.authorization_response_iss_parameter_supported => {
                return Err(failed("the answer does not say which authorization server it is from"));
            }
            Some(_) | None => {}
        }
        if let Some(code) = one("error") {
            let refusal = refusal(&code, one("error_description").as_deref(), &[]);
            return Err(Rejected::Failed(refusal.into()));
        }
        match one("code").filter(|code| !code.is_empty()) {
            Some(code) => Ok(Secret::new(code)),
            None => Err(failed("the answer of the authorization server has no code")),
        }
    }
}

impl Upstream {
    /// Returns the redirect address of the last sign-in of a subject, if its client was registered for
    /// that.
    pub async fn registered_redirect(&self, subject: &Subject) -> Option<Url> {
        let record = self.load(subject).await.ok()??;
        if self.settings.client_id.is_some() { None } else { Url::parse(&record.redirect_uri).ok() }
    }

    /// Begins a sign-in that returns to `redirect_uri`. The server is [probed](Self::probe) first, to
    /// learn its requirements.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn begin(&self, subject: &Subject, redirect_uri: &str) -> Result<SignIn, Error> {
        let found = self.discovered().await?;
        if !found.metadata.has_s256() {
            let text = "the authorization server does not support PKCE with S256, without which orla signs in nowhere";
            return Err(Error::Refused(text.to_owned()));
        }
        let (client, scopes) = self.client_and_scopes(subject, &found, redirect_uri).await?;
        Ok(SignIn {
            found,
            client,
            redirect_uri: redirect_uri.to_owned(),
            scopes,
            pkce: Pkce::new()?,
            state: pkce::random()?,
        })
    }

    /// Returns the client and the scopes of a new sign-in.
    async fn client_and_scopes(
        &self,
        subject: &Subject,
        found: &Discovered,
        redirect_uri: &str,
    ) -> Result<(Client, Scopes), Error> {
        let before = self.load(subject).await?;
        let is_elsewhere = before.as_ref().is_some_and(|before| before.issuer != found.metadata.issuer);
        let settings = &self.settings;
        if is_elsewhere && settings.client_secret.is_some() && settings.issuer.is_none() {
            return Err(Error::Refused(ANOTHER_ISSUER.to_owned()));
        }
        // No data of one authorization server is used at another (SEP-2352).
        let before = before.filter(|_| !is_elsewhere);
        let registered = before
            .as_ref()
            .filter(|before| settings.client_id.is_none() && before.redirect_uri == redirect_uri);
        let client = match registered {
            Some(before) => before.client.clone(),
            None => registration::client(&self.http, found, settings, redirect_uri).await?,
        };
        let granted = before.map(|before| before.scopes.union(&before.missing));
        let (challenged, of_server) = (self.challenged_scopes(), found.metadata.scopes());
        let scopes = scope::select(Known {
            configured: settings.scopes.as_ref(),
            challenged: challenged.as_ref(),
            of_resource: found.scopes.as_ref(),
            before: granted.as_ref(),
            of_server: of_server.as_ref(),
            offline: true,
        });
        Ok((client, scopes))
    }

    /// Completes a sign-in with the query of the authorization response, and stores its tokens.
    ///
    /// # Errors
    /// See [`Rejected`].
    pub async fn finish(
        &self,
        subject: &Subject,
        sign_in: &SignIn,
        query: &str,
    ) -> Result<(), Rejected> {
        let grant = Grant::Code {
            code: sign_in.code(query)?,
            redirect_uri: sign_in.redirect_uri.clone(),
            verifier: sign_in.pkce.verifier.clone(),
        };
        self.complete(subject, sign_in, &grant).await.map_err(Rejected::Failed)
    }

    async fn complete(&self, subject: &Subject, sign_in: &SignIn, grant: &Grant) -> Result<(), Error> {
        let endpoint = sign_in.found.token_endpoint()?;
        let request = self.token_request(sign_in, grant);
        let token = self.request(&request, endpoint, sign_in.found.trust, None).await?;
        self.keep(subject, sign_in, &token).await
    }

    fn token_request<'a>(&'a self, sign_in: &'a SignIn, grant: &'a Grant) -> TokenRequest<'a> {
        TokenRequest {
            grant,
            client: &sign_in.client,
            method: sign_in.client.method(Some(&sign_in.found.metadata)),
            resource: &sign_in.found.resource,
            audience: self.settings.audience.as_deref(),
            scopes: &sign_in.scopes,
        }
    }

    /// Stores the tokens of a sign-in.
    async fn keep(&self, subject: &Subject, sign_in: &SignIn, token: &Token) -> Result<(), Error> {
        let metadata = &sign_in.found.metadata;
        let method = sign_in.client.method(Some(metadata));
        let client = Client { method: Some(method.name().to_owned()), ..sign_in.client.clone() };
        let record = Record {
            resource: sign_in.found.resource.clone(),
            issuer: metadata.issuer.clone(),
            token_endpoint: sign_in.found.token_endpoint()?.to_string(),
            client,
            redirect_uri: sign_in.redirect_uri.clone(),
            access_token: token.access.clone(),
            refresh_token: None,
            renew_at: None,
            scopes: Scopes::default(),
            missing: Scopes::default(),
        };
        self.save(subject, record.with(token)).await?;
        self.forget_cached();
        Ok(())
    }

    /// Signs out: removes the sign-in, and revokes its tokens if the authorization server supports that
    /// (RFC 7009). Returns whether there was a sign-in.
    ///
    /// # Errors
    /// The store cannot be changed.
    pub async fn sign_out(&self, subject: &Subject) -> Result<bool, Error> {
        let record = self.load(subject).await?;
        let removed = self.forget(subject).await?;
        if let Some(record) = record {
            // The tokens are removed here in any case, and expire at the server.
            if let Err(error) = self.revoke(&record).await {
                tracing::debug!(server = self.name, %error, "the tokens are not revoked");
            }
        }
        Ok(removed)
    }

    async fn revoke(&self, record: &Record) -> Result<(), Error> {
        let found = self.discovered().await?;
        if found.metadata.issuer != record.issuer {
            return Ok(());
        }
        let Some(endpoint) = &found.metadata.revocation_endpoint else { return Ok(()) };
        let url = metadata::endpoint("the revocation endpoint", endpoint).map_err(Error::Refused)?;
        let (token, hint) = match &record.refresh_token {
            Some(refresh) => (refresh, "refresh_token"),
            None => (&record.access_token, "access_token"),
        };
        let fields = vec![("token", token.expose()), ("token_type_hint", hint)];
        let method = record.client.method(Some(&found.metadata));
        let form = crate::grant::with_client(fields, &record.client, method);
        self.http.post(url, found.trust, &form).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::Trust;
    use crate::metadata::ServerMetadata;

    fn sign_in(advertised: bool) -> SignIn {
        let metadata = ServerMetadata {
            issuer: "https://as.example".into(),
            authorization_endpoint: Some("https://as.example/authorize?tenant=1".into()),
            authorization_response_iss_parameter_supported: advertised,
            ..ServerMetadata::default()
        };
        let found = Discovered {
            resource: "https://a.example/mcp".into(),
            scopes: None,
            metadata,
            trust: Trust::Configured,
        };
        SignIn {
            found: Arc::new(found),
            client: Client { id: "orla".into(), secret: None, method: None },
            redirect_uri: "http://127.0.0.1:7/callback".into(),
            scopes: Scopes::parse("a offline_access"),
            pkce: Pkce::of(Secret::new("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk")),
            state: Secret::new("st"),
        }
    }

    #[test]
    fn the_request_has_all_that_the_specification_asks_for() {
        let url = sign_in(false).url().unwrap();
        assert_eq!(
            url.as_str(),
            "https://as.example/authorize?tenant=1&response_type=code&client_id=orla&redirect_uri=http%3A%2F%2F127.0.0.1%3A7%2Fcallback&state=st&code_challenge=E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM&code_challenge_method=S256&resource=https%3A%2F%2Fa.example%2Fmcp&scope=a+offline_access&prompt=consent"
        );
        assert!(!url.as_str().contains("dBjft"));
    }

    #[test]
    fn a_response_counts_for_its_own_request_and_issuer_alone() {
        let failed = |query: &str, advertised: bool| match sign_in(advertised).code(query) {
            Err(Rejected::Failed(error)) => error.to_string(),
            other => panic!("{query}: {other:?}"),
        };
        let ours = "iss=https%3A%2F%2Fas.example";
        assert_eq!(sign_in(true).code(&format!("code=c&state=st&{ours}")).unwrap().expose(), "c");
        assert_eq!(sign_in(false).code("code=c&state=st").unwrap().expose(), "c");
        for foreign in ["code=c", "code=c&state=other", "", "state=st2&code=c", "state=&code=c"] {
            assert_eq!(sign_in(false).code(foreign), Err(Rejected::Foreign), "{foreign}");
        }
        assert!(failed("code=c&state=st", true).contains("does not say"));
        for issuer in
            ["https%3A%2F%2Fevil.example", "https%3A%2F%2Fas.example%2F", "HTTPS%3A%2F%2Fas.example", ""]
        {
            for advertised in [true, false] {
                for response in ["code=c", "error=access_denied&error_description=Sign+in+at+evil"] {
                    let error = failed(&format!("{response}&state=st&iss={issuer}"), advertised);
                    assert!(error.contains("another authorization server"), "{error}");
                    assert!(!error.contains("evil"), "nothing of the answer is shown: {error}");
                }
            }
        }
        assert!(failed("error=access_denied&state=st", false).contains("access_denied"));
        assert!(failed("error=access_denied&state=st", true).contains("does not say"));
        assert!(failed(&format!("error=x&state=st&{ours}"), true).contains("refused: x"));
        assert!(failed("state=st&code=", false).contains("no code"));
    }
}
