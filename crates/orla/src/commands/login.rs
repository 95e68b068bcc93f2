//! `orla login` and `orla logout`: a person signs in at a server, an API, an agent or another instance, or out.

use std::sync::Arc;

use orla_oauth::login::{DevicePrompt, Listener};
use orla_oauth::{GrantKind, Subject, Upstream};
use orla_providers::mcp::{self, Reach, ServerSettings};
use orla_providers::sign_in;
use reqwest::Url;
use tokio_util::task::TaskTracker;

use crate::config::{Config, Source};
use crate::signals::Signals;
use crate::{Failure, cli, render, tokens};

/// Signs in.
pub(crate) fn login(login: &cli::Login, source: &Source) -> Result<(), Failure> {
    let config = super::load(source)?;
    let _log = super::log(&config);
    let place = place(&config, &login.name)?;
    let subject = subject(&place.upstream, login.caller.as_deref())?;
    let runtime = super::small_runtime()?;
    let done = runtime.block_on(async {
        let mut signals = Signals::install().map_err(|err| Failure::failed(err.to_string()))?;
        tokio::select! {
            done = enter(&place, &subject, login) => done,
            stop = signals.end() => Err(super::call::stopped(stop)),
        }
    });
    runtime.shutdown_background();
    done?;
    render::note(&format!("signed in at {}; its tokens are in ~/.orla/tokens.json", login.name));
    Ok(())
}

/// Signs out.
pub(crate) fn logout(logout: &cli::Logout, source: &Source) -> Result<(), Failure> {
    let config = super::load(source)?;
    let _log = super::log(&config);
    let Place { upstream, .. } = place(&config, &logout.name)?;
    let subject = subject(&upstream, logout.caller.as_deref())?;
    let removed = super::small_runtime()?.block_on(upstream.sign_out(&subject));
    match removed.map_err(|error| failed(&logout.name, &error))? {
        true => render::note(&format!("signed out of {}", logout.name)),
        false => render::note(&format!("there was no sign-in at {}", logout.name)),
    }
    Ok(())
}

/// A target of sign-ins.
struct Place {
    name: String,
    upstream: Arc<Upstream>,
    /// The server of `mcpServers`, if it is one.
    server: Option<ServerSettings>,
}

/// Returns the target with this name that requires a sign-in by a person.
fn place(config: &Config, name: &str) -> Result<Place, Failure> {
    let servers = config.servers.iter().map(|server| &server.value);
    let server = servers.clone().find(|server| server.name == name);
    let sign_in = config.sign_ins.iter().find(|sign_in| sign_in.name == name);
    let failed = |problem: String| Failure::failed(format!("{name}: {problem}"));
    let (url, auth) = match (server, sign_in) {
        (_, Some(sign_in)) => {
            let url = sign_in.url.clone();
            let url = url
                .ok_or_else(|| failed("give it a base_url, so that its address is known".to_owned()))?;
            (url, sign_in.auth.clone())
        }
        (Some(ServerSettings { reach: Reach::Http { url, .. }, auth, .. }), None) => {
            let auth = auth.clone();
            (
                url.clone(),
                auth.ok_or_else(|| {
                    failed("it has no sign-in; add `auth: oauth` to its entry".to_owned())
                })?,
            )
        }
        (Some(_), None) => {
            let problem = "it is a process; only providers over HTTP have a sign-in";
            return Err(failed(problem.to_owned()));
        }
        (None, None) => {
            let servers = servers.filter(|server| server.auth.is_some());
            let servers = servers.map(|server| server.name.as_str());
            let names: Vec<&str> =
                servers.chain(config.sign_ins.iter().map(|sign_in| sign_in.name.as_str())).collect();
            let known = match names.is_empty() {
                true => "the configuration has none".to_owned(),
                false => format!("there are {}", names.join(", ")),
            };
            return Err(Failure::usage(format!("no server with a sign-in is called {name}; {known}")));
        }
    };
    let url = Url::parse(&url).map_err(|err| failed(format!("its address is invalid: {err}")))?;
    if auth.grant != GrantKind::AuthorizationCode {
        return Err(failed("its grant needs no person; there is nothing to sign in to".to_owned()));
    }
    let upstream = tokens::stored().upstream(name, url, auth, TaskTracker::new());
    Ok(Place { name: name.to_owned(), upstream, server: server.filter(|_| sign_in.is_none()).cloned() })
}

impl Place {
    /// Discovers the authorization that the server requires. A server that requires none may still
    /// declare it in its metadata.
    async fn probe(&self) {
        match &self.server {
            Some(server) => drop(mcp::probe(&self.upstream, server).await),
            None => self.upstream.probe_address().await,
        }
    }
}

/// Returns the principal that signs in.
fn subject(upstream: &Upstream, caller: Option<&str>) -> Result<Subject, Failure> {
    match (upstream.is_per_caller(), caller) {
        (false, None) => Ok(Subject::Shared),
        (true, None) => Ok(Subject::Own),
        (true, Some(caller)) => Ok(sign_in::caller(caller)),
        (false, Some(_)) => Err(Failure::usage(
            "--caller: all callers share one sign-in at this server; its `auth` has no `per: caller`",
        )),
    }
}

async fn enter(place: &Place, subject: &Subject, login: &cli::Login) -> Result<(), Failure> {
    let failed = |error: orla_oauth::Error| failed(&place.name, &error);
    let upstream = &place.upstream;
    place.probe().await;
    if login.device {
        return upstream.sign_in_device(subject, show).await.map_err(failed);
    }
    let listener = listener(upstream, subject).await.map_err(failed)?;
    let begun = upstream.begin(subject, &listener.redirect_uri()).await.map_err(failed)?;
    let url = begun.url().map_err(failed)?;
    render::note("open this address in a browser on this machine to sign in:");
    render::line(url.as_str());
    listener.finish(upstream, subject, &begun).await.map_err(failed)
}

/// Returns the port that the client is registered for, if there is one and it is free.
async fn listener(upstream: &Upstream, subject: &Subject) -> Result<Listener, orla_oauth::Error> {
    if let Some(port) = upstream.settings().redirect_port {
        return Listener::bind(Some(port)).await;
    }
    let registered = upstream.registered_redirect(subject).await.and_then(|url| url.port());
    if let Some(port) = registered
        && let Ok(listener) = Listener::bind(Some(port)).await
    {
        return Ok(listener);
    }
    Listener::bind(None).await
}

fn show(prompt: &DevicePrompt) {
    render::note("open this address in any browser and enter the code:");
    render::line(&prompt.url);
    render::line(&prompt.code);
    if let Some(url) = &prompt.complete_url {
        render::note(&format!("or open this one, which has the code in it: {url}"));
    }
}

fn failed(name: &str, error: &orla_oauth::Error) -> Failure {
    Failure::failed(format!("{name}: {error}"))
}
