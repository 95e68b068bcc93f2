//! `orla token`: makes, lists and revokes bearer tokens. A running server that watches its files follows at once.

use std::time::{Duration, SystemTime};

use orla_marketplace::CallerPattern;
use orla_marketplace::attestation::format_instant;
use orla_oauth::scope::is_scope;
use serde_json::json;

use super::table_of;
use crate::config::tokens::{self, Token};
use crate::config::{Config, Source};
use crate::{Failure, cli, render};

pub(crate) fn create(create: &cli::TokenCreate, source: &Source) -> Result<(), Failure> {
    let config = load(source)?;
    let name = check_name(&create.name, &config).map_err(Failure::usage)?;
    if let Some(scope) = create.scopes.iter().find(|scope| !is_scope(scope)) {
        return Err(Failure::usage(format!(
            "--scope {scope:?}: expected a text without spaces and quotes"
        )));
    }
    let expires_at = create.expires.map(|after| SystemTime::now() + after);
    let (mut token, secret) =
        Token::new(name, create.scopes.clone(), expires_at).map_err(Failure::failed)?;
    let file = config.tokens_file();
    tokens::change(&file, |tokens| {
        let known = tokens.iter().position(|known| known.name == token.name);
        match known {
            // A new secret belongs to the same caller, and changes no rights.
            Some(at) if create.replace && !tokens[at].has_expired() => {
                let known = &tokens[at];
                if create.scopes.is_empty() {
                    token.scopes.clone_from(&known.scopes);
                }
                token.expires_at = token.expires_at.or(known.expires_at);
                tokens[at] = token;
            }
            Some(at) if tokens[at].has_expired() => tokens[at] = token,
            Some(_) => {
                return Err(format!(
                    "there is a token named {name}: revoke it first, or use --replace to give it a new secret"
                ));
            }
            None => tokens.push(token),
        }
        Ok(())
    })
    .map_err(Failure::failed)?;
    render::line(&secret);
    render::note(&format!(
        "{} keeps its hash; this is the only time that the token is shown",
        file.display()
    ));
    note_reload(&config, "refuses it");
    Ok(())
}

/// Says what a running server does until it reloads, if it does not reload by itself.
fn note_reload(config: &Config, until_then: &str) {
    if !config.watch {
        render::note(&format!(
            "`watch` is off: a server that runs with this configuration {until_then} until it gets SIGHUP"
        ));
    }
}

pub(crate) fn list(as_json: bool, source: &Source) -> Result<(), Failure> {
    let config = load(source)?;
    let tokens = tokens::load(&config.tokens_file()).map_err(Failure::failed)?.unwrap_or_default();
    let state = |token: &Token| if token.has_expired() { "expired" } else { "valid" };
    if as_json {
        let row = |token: &Token| {
            json!({
                "name": token.name,
                "state": state(token),
                "scopes": token.scopes,
                "created_at": format_instant(token.created_at),
                "expires_at": token.expires_at.map(format_instant),
            })
        };
        return super::print_json(&tokens.iter().map(row).collect::<Vec<_>>());
    }
    if tokens.is_empty() {
        render::note("no tokens; `orla token create --name NAME` makes one");
        return Ok(());
    }
    let column = |of: &dyn Fn(&Token) -> String| tokens.iter().map(of).collect::<Vec<_>>();
    let columns = [
        ("NAME", column(&|token| token.name.clone())),
        ("STATE", column(&|token| state(token).to_owned())),
        ("SCOPES", column(&|token| token.scopes.join(" "))),
        ("CREATED", column(&|token| format_instant(token.created_at))),
        (
            "EXPIRES",
            column(&|token| token.expires_at.map_or_else(|| "never".to_owned(), format_instant)),
        ),
    ];
    render::out(&table_of(&columns, render::width()));
    Ok(())
}

pub(crate) fn revoke(name: &str, source: &Source) -> Result<(), Failure> {
    let config = load(source)?;
    let file = config.tokens_file();
    let revoked = tokens::change(&file, |tokens| {
        let before = tokens.len();
        tokens.retain(|token| token.name != name);
        match tokens.len() < before {
            true => Ok(()),
            false => Err(format!("{} has no token named {name}", file.display())),
        }
    });
    revoked.map_err(Failure::failed)?;
    render::note(&format!("{name} is revoked"));
    note_reload(&config, "still accepts it");
    Ok(())
}

fn load(source: &Source) -> Result<Config, Failure> {
    source.load_for_tokens().map_err(|problems| Failure::configuration(&problems))
}

/// Returns a name that rules can mean: none that is a kind of caller, or a pattern.
fn check_name<'n>(name: &'n str, config: &Config) -> Result<&'n str, String> {
    let is_name = matches!(name.parse(), Ok(CallerPattern::Named(_)))
        && name.len() <= 255
        && !name.contains('*')
        && !name.chars().any(char::is_control);
    if !is_name {
        return Err(format!(
            "--name {name:?}: expected a name without `*`, and not `anonymous` nor `group:`, `scope:`, `token:` or `cert:` in front"
        ));
    }
    match config.auth_tokens.iter().any(|token| token.name.as_deref() == Some(name)) {
        true => Err(format!("--name {name}: auth_tokens has a token of this name; choose another one")),
        false => Ok(name),
    }
}

/// Parses a duration: a whole number and `s`, `m`, `h`, `d` or `w`.
///
/// # Errors
///
/// Returns the expected form.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let expected =
        || "expected a number and its unit, such as 30d, 12h or 15m (s, m, h, d, w)".to_owned();
    let unit_at = text.len().checked_sub(1).ok_or_else(expected)?;
    let (number, unit) = text.split_at_checked(unit_at).ok_or_else(expected)?;
    let seconds: u64 = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        "w" => 604_800,
        _ => return Err(expected()),
    };
    let number: u64 = number.parse().ok().filter(|number| *number > 0).ok_or_else(expected)?;
    let total = number.checked_mul(seconds).filter(|total| *total <= 100 * 366 * 86_400);
    total.map(Duration::from_secs).ok_or_else(|| "expected at most a hundred years".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_a_unit() {
        for (text, seconds) in [
            ("30d", Some(2_592_000)),
            ("1s", Some(1)),
            ("2w", Some(1_209_600)),
            ("30", None),
            ("d", None),
            ("", None),
            ("0d", None),
            ("-1d", None),
            ("1ü", None),
            ("99999999999999999999d", None),
            ("999999d", None),
        ] {
            assert_eq!(parse_duration(text).ok(), seconds.map(Duration::from_secs), "{text:?}");
        }
    }

    #[test]
    fn a_name_that_rules_cannot_mean_is_refused() {
        let config = Config { auth_tokens: vec![], ..Config::default() };
        for (name, is_name) in [
            ("ci", true),
            ("a:b", true),
            ("anonymous", false),
            ("group:x", false),
            ("c*", false),
            ("", false),
        ] {
            assert_eq!(check_name(name, &config).is_ok(), is_name, "{name}");
        }
    }
}
