//! `orla login` and `orla logout`: a person signs in at a server of `mcpServers`, or out.

use std::sync::Arc;

use orla_oauth::login::{DevicePrompt, Listener};
use orla_oauth::{Subject, Upstream};
use orla_providers::mcp::{self, ServerSettings};

use crate::config::{Config, Source};
use crate::signals::Signals;
use crate::{Failure, cli, render, tokens};

/// Signs in.
pub(crate) fn login(login: &cli::Login, source: &Source) -> Result<(), Failure> {
    let config = source.load().map_err(|problems| Failure::configuration(&problems))?;
    let _log = super::log(&config);
    let settings = server(&config, &login.name)?;
    let upstream = upstream(settings)?;
    let subject = subject(&upstream, login.caller.as_deref())?;
    let runtime = super::small_runtime()?;
    let done = runtime.block_on(async {
        let mut signals = Signals::install().map_err(|err| Failure::failed(err.to_string()))?;
        tokio::select! {
            done = sign_in(&upstream, settings, &subject, login) => done,
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
    let config = source.load().map_err(|problems| Failure::configuration(&problems))?;
    let _log = super::log(&config);
    let upstream = upstream(server(&config, &logout.name)?)?;
    let subject = subject(&upstream, logout.caller.as_deref())?;
    let removed = super::small_runtime()?.block_on(upstream.sign_out(&subject));
    match removed.map_err(|error| failed(&logout.name, &error))? {
        true => render::note(&format!("signed out of {}", logout.name)),
        false => render::note(&format!("there was no sign-in at {}", logout.name)),
    }
    Ok(())
}

/// The server of `mcpServers` with this name.
fn server<'c>(config: &'c Config, name: &str) -> Result<&'c ServerSettings, Failure> {
    let found = config.servers.iter().find(|server| server.value.name == name);
    found.map(|server| &server.value).ok_or_else(|| {
        let names: Vec<&str> = config.servers.iter().map(|server| &*server.value.name).collect();
        let known = match names.is_empty() {
            true => "the configuration has no mcpServers".to_owned(),
            false => format!("there are {}", names.join(", ")),
        };
        Failure::usage(format!("no server of mcpServers is called {name}; {known}"))
    })
}

fn upstream(settings: &ServerSettings) -> Result<Arc<Upstream>, Failure> {
    let sign_in = tokens::stored().sign_in(settings);
    let upstream =
        sign_in.map_err(|problem| Failure::failed(format!("{}: {problem}", settings.name)))?;
    match upstream.settings().grant {
        orla_oauth::GrantKind::AuthorizationCode => Ok(upstream),
        _ => Err(Failure::failed(format!(
            "{}: its grant needs no person; there is nothing to sign in to",
            settings.name
        ))),
    }
}

/// Who signs in.
fn subject(upstream: &Upstream, caller: Option<&str>) -> Result<Subject, Failure> {
    match (upstream.is_per_caller(), caller) {
        (false, None) => Ok(Subject::Shared),
        (true, None) => Ok(Subject::Own),
        (true, Some(caller)) => Ok(mcp::caller(caller)),
        (false, Some(_)) => Err(Failure::usage(
            "--caller: all callers share one sign-in at this server; its `auth` has no `per: caller`",
        )),
    }
}

async fn sign_in(
    upstream: &Arc<Upstream>,
    settings: &ServerSettings,
    subject: &Subject,
    login: &cli::Login,
) -> Result<(), Failure> {
    let failed = |error: orla_oauth::Error| failed(&login.name, &error);
    // What the server asks for. One that asks for nothing may still say so in its metadata.
    mcp::probe(upstream, settings).await;
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

/// The port that the client is registered for, if there is one and it is free.
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
