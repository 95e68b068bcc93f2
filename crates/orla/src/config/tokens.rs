//! The tokens that orla makes (`orla token`): a file with their names and the digests of their secrets.
//!
//! A secret is shown once, when it is made. It has 256 random bits, so its plain digest reveals nothing.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::SystemTime;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use orla_identity::{OWN_TOKEN, OwnToken, sha256};
use orla_marketplace::attestation::{format_instant, parse_instant};
use orla_marketplace::json::{JsonError, value_from_json};
use serde::{Deserialize, Serialize};

use super::{FileChange, Readers, read_text};

/// The default name of the file.
pub(crate) const DEFAULT_FILE: &str = "orla.tokens.json";
/// The version of the form.
const VERSION: u32 = 1;
/// The largest file that is read, in bytes.
const MAX_FILE: u64 = 16 * 1024 * 1024;

/// A token without its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) name: String,
    digest: [u8; 32],
    pub(crate) scopes: Vec<String>,
    pub(crate) created_at: SystemTime,
    pub(crate) expires_at: Option<SystemTime>,
}

impl Token {
    /// A new token and its secret.
    ///
    /// # Errors
    ///
    /// Returns an error if the system has no random bytes.
    pub(crate) fn new(
        name: &str,
        scopes: Vec<String>,
        expires_at: Option<SystemTime>,
    ) -> Result<(Self, String), String> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(|err| format!("the system has no random bytes: {err}"))?;
        let secret = format!("{OWN_TOKEN}{}", BASE64_URL_SAFE_NO_PAD.encode(secret));
        let digest = sha256(secret.as_bytes());
        let created_at = SystemTime::now();
        Ok((Self { name: name.to_owned(), digest, scopes, created_at, expires_at }, secret))
    }

    /// Returns the token as the server accepts it.
    pub(crate) fn accepted(&self) -> OwnToken {
        let Self { name, digest, scopes, expires_at, .. } = self.clone();
        OwnToken { name, digest, scopes, expires_at }
    }

    pub(crate) fn has_expired(&self) -> bool {
        self.expires_at.is_some_and(|at| at <= SystemTime::now())
    }
}

/// Reads a file; `None` if it does not exist.
///
/// # Errors
///
/// Returns a sentence with the path if the file cannot be read, or is not a file of tokens.
pub(crate) fn load(path: &Path) -> Result<Option<Vec<Token>>, String> {
    if matches!(fs::symlink_metadata(path), Err(err) if err.kind() == std::io::ErrorKind::NotFound) {
        return Ok(None);
    }
    let text = read_text(path, MAX_FILE)?;
    parse(&text).map(Some).map_err(|problem| {
        format!("{}:{problem}; restore the file, or remove it and make the tokens again", path.display())
    })
}

/// Returns the permissions of a file that other users can read or change.
pub(crate) fn open_to_others(path: &Path) -> Option<u32> {
    let mode = fs::metadata(path).ok()?.permissions().mode() & 0o777;
    (mode & 0o077 != 0).then_some(mode)
}

/// Changes a file, which is created if needed. Other processes wait meanwhile, and a reader sees the old
/// content or the new one.
///
/// # Errors
///
/// Returns the errors of `change`, or a sentence with the path.
pub(crate) fn change<T>(
    path: &Path,
    change: impl FnOnce(&mut Vec<Token>) -> Result<T, String>,
) -> Result<T, String> {
    let file = FileChange::begin(path, Readers::Owner)?;
    let mut tokens = load(path)?.unwrap_or_default();
    let changed = change(&mut tokens)?;
    file.save(&print(&tokens))?;
    Ok(changed)
}

fn parse(text: &str) -> Result<Vec<Token>, String> {
    let file: Document = serde_json::from_str(text).map_err(|err| match value_from_json(text) {
        Err(JsonError { problem, position: Some((line, column)), .. }) => {
            format!("{line}:{column}: {problem}")
        }
        _ => {
            let message = err.to_string();
            let problem = message.split(" at line ").next().unwrap_or(&message);
            format!("{}:{}: {problem}", err.line(), err.column())
        }
    })?;
    if file.version != VERSION {
        return Err(format!(" expected version {VERSION}, got {}", file.version));
    }
    let rows = file.tokens.into_iter().map(Row::read);
    let tokens: Vec<Token> = rows.collect::<Result<_, _>>().map_err(|problem| format!(" {problem}"))?;
    let twice = |at: usize| tokens[..at].iter().any(|other| other.name == tokens[at].name);
    match (0..tokens.len()).find(|at| twice(*at)) {
        Some(at) => Err(format!(" tokens[{at}].name: is there twice")),
        None => Ok(tokens),
    }
}

fn print(tokens: &[Token]) -> String {
    let file = Document { version: VERSION, tokens: tokens.iter().map(Row::of).collect() };
    // Texts can always be written.
    format!("{}\n", serde_json::to_string_pretty(&file).unwrap_or_default())
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u32,
    tokens: Vec<Row>,
}

/// A token in the form of the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: String,
    /// `sha256:HEX`, of the secret.
    hash: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    scopes: Vec<String>,
    created_at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
}

impl Row {
    fn of(token: &Token) -> Self {
        Self {
            name: token.name.clone(),
            hash: format!("sha256:{}", hex::encode(token.digest)),
            scopes: token.scopes.clone(),
            created_at: format_instant(token.created_at),
            expires_at: token.expires_at.map(format_instant),
        }
    }

    fn read(self) -> Result<Token, String> {
        let Self { name, hash, scopes, created_at, expires_at } = self;
        let malformed = |what: &str| format!("the token {name}: {what} is malformed");
        let instant = |text: &str, what| parse_instant(text).ok_or_else(|| malformed(what));
        Ok(Token {
            digest: digest(&hash).ok_or_else(|| malformed("hash"))?,
            created_at: instant(&created_at, "created_at")?,
            expires_at: expires_at.map(|at| instant(&at, "expires_at")).transpose()?,
            scopes,
            name,
        })
    }
}

fn digest(hash: &str) -> Option<[u8; 32]> {
    let hex = hash.strip_prefix("sha256:").filter(|hex| hex.len() == 64 && hex.is_ascii())?;
    let mut digest = [0; 32];
    for (at, byte) in digest.iter_mut().enumerate() {
        *byte = u8::from_str_radix(hex.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(digest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_file_has_digests_alone_and_is_for_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(DEFAULT_FILE);
        assert_eq!(load(&path), Ok(None));
        let expires_at = SystemTime::UNIX_EPOCH + Duration::from_secs(4_000_000_000);
        let (token, secret) = Token::new("ci", vec!["run".to_owned()], Some(expires_at)).unwrap();
        change(&path, |tokens| {
            tokens.push(token.clone());
            Ok(())
        })
        .unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(secret.starts_with(OWN_TOKEN) && secret.len() == 48 && !text.contains(&secret));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let read = load(&path).unwrap().unwrap();
        assert_eq!(read[0].accepted(), token.accepted());
        assert_eq!(read[0].accepted().digest, sha256(secret.as_bytes()));
        assert!(!read[0].has_expired());
    }

    #[test]
    fn a_broken_file_is_named_with_the_place_and_the_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(DEFAULT_FILE);
        fs::write(&path, "{\n").unwrap();
        let shown = path.display();
        assert_eq!(
            load(&path).unwrap_err(),
            format!(
                "{shown}:2:1: expected a key in quotes, got the end of the text; restore the file, or remove it and make the tokens again"
            )
        );
    }

    #[test]
    fn a_file_that_is_not_understood_is_an_error() {
        for text in [
            "",
            "[]",
            r#"{"version":2,"tokens":[]}"#,
            r#"{"version":1,"tokens":[{"name":"a","hash":"sha256:00","created_at":"2026-01-01T00:00:00Z"}]}"#,
            r#"{"version":1,"tokens":[{"name":"a"}]}"#,
            r#"{"version":1,"tokens":[],"more":1}"#,
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        let (token, _) = Token::new("ci", Vec::new(), None).unwrap();
        assert!(parse(&print(std::slice::from_ref(&token))).is_ok());
        assert!(parse(&print(&[token.clone(), token])).is_err());
    }
}
