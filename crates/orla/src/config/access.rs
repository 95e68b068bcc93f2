//! `policy` and `auth_tokens`: the permissions of callers, and how callers are identified.

use std::path::{Path, PathBuf};

use orla_document::{Kind as Shape, Node};
use orla_identity::{BearerToken, IssuerOptions};
use orla_marketplace::id::Pattern;
use orla_marketplace::rtfs::text::nearest;
use orla_marketplace::{ANONYMOUS, AccessPolicy, CallerPattern, Callers, Permission, Rule};
use serde_json::{Value, json};

use super::Config;
use super::forms::{Read, check_token, listed, text_schema, texts_or_text};
use super::keys::{Key, key, object};
use super::read::{Reader, excerpt, unexpected};
use super::subjects::{SERVED, not_empty, places, read_allowed, read_denied};

const RULES: &str = "a list of rules (with to, capabilities, allow, deny)";
/// Where names go that are no permissions.
const NAMES: &str =
    "a tool of an MCP server is `mcp:SERVER/TOOL`, and `capabilities` takes names of capabilities";
const TOKENS: &str = "a list of texts, or a mapping from names to texts";

#[rustfmt::skip] // A table: each key has a line for its value and one for its meaning.
fn rule_keys() -> Vec<Key<Rule>> {
    vec![
        key("to", CALLERS, |r| &mut r.to,
            "callers: name patterns, `group:NAME`, `scope:NAME`, `token:NAME`, `cert:NAME` or `anonymous`; all by default"),
        key("capabilities", SERVED, |r| &mut r.capabilities,
            "name patterns of capabilities; all by default"),
        key("allow", Read(read_allowed, texts_or_text), |r| &mut r.allow,
            "granted permissions, such as `net:api.example.com`, `fs:read:./data`, `exec` or `mcp:server/*`"),
        key("deny", Read(read_denied, texts_or_text), |r| &mut r.deny,
            "denied permissions, which override all grants; `*` denies the capabilities altogether"),
    ]
}

/// A list of callers, or one.
pub(super) const CALLERS: Read<Callers> = Read(read_callers, texts_or_text);

fn read_callers(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<Callers> {
    let texts = reader.list(path, node, "a list of callers, such as ada or group:dev")?;
    not_empty(reader, path, node, "callers")?;
    for (text, at) in texts.iter().zip(places(node)) {
        if let Some(meant) = meant_callers(text) {
            reader.warning(at, || {
                format!("{path}: `{}` is the name of a caller; did you mean {meant}?", excerpt(text))
            });
        }
    }
    let callers = Callers::parse(texts).map_err(|problem| format!(": {problem}"));
    reader.noted(path, node, callers)
}

/// Returns the entry that the name of a caller is probably meant to be. A misspelt kind is a name, which
/// no caller has.
fn meant_callers(text: &str) -> Option<String> {
    const KINDS: [&str; 4] = ["group", "scope", "token", "cert"];
    if !matches!(text.parse(), Ok(CallerPattern::Named(_))) {
        return None;
    }
    match text.split_once(':') {
        Some((kind, name)) => nearest(kind, KINDS).map(|meant| format!("{meant}:{name}")),
        None => nearest(text, [ANONYMOUS]).map(str::to_owned),
    }
}

/// Returns a rule without permissions, for all callers and capabilities.
fn rule() -> Rule {
    let capabilities = vec![Pattern::new("*")];
    Rule { to: Callers::everyone(), capabilities, allow: Vec::new(), deny: Vec::new() }
}

pub(super) fn read_policy(reader: &mut Reader<'_>, config: &mut Config, path: &str, node: &Node) {
    let Shape::List(items) = &node.kind else {
        return reader.problem(node.at, || format!("{path}{}", unexpected(RULES, node)));
    };
    let (keys, mut rules) = (rule_keys(), Vec::new());
    for (index, item) in items.iter().enumerate() {
        let (path, mut rule) = (format!("{path}[{index}]"), rule());
        let expected = "a mapping with to, capabilities, allow or deny";
        let Some(pairs) = reader.pairs(&path, item, expected) else { continue };
        if reader.mapping(&path, item.at, pairs, &keys, &mut rule).is_some() {
            rules.push(rule);
        }
    }
    config.access = Some(AccessPolicy { rules, ..AccessPolicy::default() });
}

pub(super) fn read_permissions(
    reader: &mut Reader<'_>,
    path: &str,
    node: &Node,
) -> Option<Vec<Permission>> {
    let texts = reader.list(path, node, "a list of permissions, such as net:api.example.com")?;
    let mut permissions = Vec::new();
    for ((index, text), at) in texts.iter().enumerate().zip(places(node)) {
        match text.parse() {
            Ok(permission) => permissions.push(permission),
            Err(problem) if text.contains(':') => {
                reader.problem(at, || format!("{path}[{index}]: {problem}"));
            }
            Err(problem) => reader.problem(at, || format!("{path}[{index}]: {problem}; {NAMES}")),
        }
    }
    Some(permissions)
}

pub(super) fn tokens_of_variable(config: &mut Config, text: &str) -> Result<(), String> {
    let secrets = listed(text);
    secrets.iter().try_for_each(|secret| check_token(secret))?;
    if (1..secrets.len()).any(|at| secrets[..at].contains(&secrets[at])) {
        return Err("two tokens are the same; every caller needs its own".to_owned());
    }
    let tokens = secrets.into_iter().map(|secret| BearerToken { secret, name: None });
    config.auth_tokens = tokens.collect();
    Ok(())
}

pub(super) fn read_tokens(reader: &mut Reader<'_>, config: &mut Config, path: &str, node: &Node) {
    // No message repeats a value from here.
    let (named, tokens): (Vec<Option<&str>>, Vec<&Node>) = match &node.kind {
        Shape::List(items) => items.iter().map(|item| (None, item)).unzip(),
        Shape::Map(pairs) => pairs.iter().map(|(name, item)| (Some(&*name.text), item)).unzip(),
        Shape::Scalar(_) => {
            return reader.problem(node.at, || format!("{path}: expected {TOKENS}"));
        }
    };
    if tokens.is_empty() {
        reader.warning(node.at, || format!("{path}: is empty, and identifies nobody"));
    }
    // `auth.tokens` adds to `auth_tokens`.
    let mut read = std::mem::take(&mut config.auth_tokens);
    for (index, (name, item)) in named.into_iter().zip(tokens).enumerate() {
        let path = match name {
            Some(name) => format!("{path}.{}", excerpt(name)),
            None => format!("{path}[{index}]"),
        };
        let is_text = matches!(&item.kind, Shape::Scalar(scalar) if scalar.as_text().is_some());
        if !is_text {
            reader.problem(item.at, || format!("{path}: expected text (in quotes, a number is text)"));
            continue;
        }
        let Some(secret) = reader.secret(&path, item) else { continue };
        if let Err(problem) = check_token(&secret) {
            reader.problem(item.at, || format!("{path}: {problem}"));
            continue;
        }
        if name == Some(ANONYMOUS) {
            let problem = "callers without a token are called that; choose another name";
            reader.problem(item.at, || format!("{path}: {problem}"));
            continue;
        }
        if let Some(name) = name
            && !matches!(name.parse(), Ok(CallerPattern::Named(_)))
        {
            let problem = "a rule would take this name for a kind of caller; choose another name";
            reader.problem(item.at, || format!("{path}: {problem}"));
            continue;
        }
        if name.is_some_and(|name| {
            read.iter().any(|token: &BearerToken| token.name.as_deref() == Some(name))
        }) {
            reader
                .problem(item.at, || format!("{path}: is there twice, in auth_tokens and auth.tokens"));
            continue;
        }
        if let Some(other) = read.iter().position(|token: &BearerToken| token.secret == secret) {
            let other = match &read[other].name {
                Some(name) => format!("auth_tokens.{}", excerpt(name)),
                None => format!("auth_tokens[{other}]"),
            };
            let problem = "is the same token; every caller needs its own";
            reader.problem(item.at, || format!("{path}: {other} {problem}"));
            continue;
        }
        read.push(BearerToken { secret, name: name.map(str::to_owned) });
    }
    config.auth_tokens = read;
}

impl Config {
    /// Returns the policy with its permissions for programs as patterns of paths, which capabilities
    /// need:
    ///
    /// - A word that begins with `/` or `*` is such a pattern already.
    /// - A path is relative to the configuration's file.
    /// - A name alone, where it is allowed, is a file directly in the tools directory, or a program that
    ///   is looked for in `PATH`. Where it is denied, it means every program of that name.
    pub(crate) fn with_program_paths(&self, policy: &AccessPolicy) -> AccessPolicy {
        let base = self.file.as_deref().and_then(Path::parent).unwrap_or(Path::new(""));
        let mut policy = policy.clone();
        for rule in &mut policy.rules {
            let allow = rule
                .allow
                .drain(..)
                .flat_map(|one| program_paths(one, base, &[self.tools_dir.as_path()]));
            rule.allow = allow.collect();
            let deny = rule.deny.drain(..).flat_map(|one| program_paths(one, base, &[Path::new("*")]));
            rule.deny = deny.collect();
        }
        policy
    }

    /// Returns the permissions that each scope of access tokens grants, with patterns of paths as in
    /// [`with_program_paths`](Self::with_program_paths).
    pub(crate) fn scope_grants(&self) -> Vec<(String, Vec<Permission>)> {
        self.identifying().into_iter().flat_map(|issuer| issuer.scopes).collect()
    }

    /// Returns the authorization servers, with patterns of paths in the permissions of their scopes.
    pub(super) fn identifying(&self) -> Vec<IssuerOptions> {
        let base = self.file.as_deref().and_then(Path::parent).unwrap_or(Path::new(""));
        let mut issuers = self.issuers.clone();
        for (_, granted) in issuers.iter_mut().flat_map(|issuer| &mut issuer.scopes) {
            let words = std::mem::take(granted).into_iter();
            *granted = words.flat_map(|one| program_paths(one, base, &[&*self.tools_dir])).collect();
        }
        issuers
    }
}

/// Returns the path patterns for a permission of a policy. A name alone also means a file in each of
/// `directories`.
fn program_paths(permission: Permission, base: &Path, directories: &[&Path]) -> Vec<Permission> {
    let text = permission.as_str().to_owned();
    let Some(program) = text.strip_prefix("exec:").filter(|program| !program.starts_with(['/', '*']))
    else {
        return vec![permission];
    };
    let absolute = |path: PathBuf| {
        // A pattern is not a path of this machine.
        let path = if path.starts_with("*") { path } else { std::path::absolute(&path).unwrap_or(path) };
        format!("exec:{}", path.display()).parse().ok()
    };
    if program.contains('/') {
        // A path that cannot be expressed allows nothing, and is denied in its written form.
        return absolute(base.join(program)).into_iter().chain([permission]).collect();
    }
    let below = directories.iter().filter_map(|directory| absolute(directory.join(program)));
    below.chain([permission.clone()]).collect()
}

pub(super) fn policy_schema() -> Value {
    json!({"type": "array", "items": object(&rule_keys(), &mut rule())})
}

pub(super) fn tokens_schema() -> Value {
    json!({"anyOf": [
        {"type": "array", "items": text_schema()},
        {"type": "object", "additionalProperties": text_schema()},
    ]})
}

#[cfg(test)]
mod tests {
    use super::*;
    use orla_marketplace::Principal;

    fn read(policy: &str) -> AccessPolicy {
        let config = Config::of(&format!("tools_dir: /srv/tools\npolicy: [{policy}]\n")).unwrap();
        config.with_program_paths(config.access.as_ref().unwrap())
    }

    fn permits(policy: &str, program: &str) -> bool {
        let need = [format!("exec:{program}").parse().unwrap()];
        read(policy).missing(None, "x", "x", &need).is_none()
    }

    #[test]
    fn a_scope_grants_programs_as_a_rule_does() {
        for word in ["exec:run.sh", "exec:/srv/tools/run.sh", "exec:*run.sh", "exec"] {
            let issuer = "issuer: 'https://id.example', audience: 'https://orla.example/mcp'";
            let text = format!(
                "tools_dir: /srv/tools\npolicy: []\nauth: {{oauth: {{{issuer}, scopes: {{run: ['{word}']}}}}}}\n"
            );
            let config = Config::of(&text).unwrap();
            let policy = config.policy_with_scopes(config.access.as_ref().unwrap());
            let need = ["exec:/srv/tools/run.sh".parse().unwrap()];
            assert_eq!(
                policy.helpful_scopes(&Principal::token("eve"), "x", "x", &need),
                ["run"],
                "{word}"
            );
        }
    }

    #[test]
    fn a_misspelt_kind_of_caller_is_a_warning_at_its_place() {
        let warnings = |text: &str| -> Vec<String> {
            let config = Config::of(text).unwrap();
            config.warnings.iter().map(ToString::to_string).collect()
        };
        for (wrong, meant) in [
            ("grop:interns", "group:interns"),
            ("Groups:interns", "group:interns"),
            ("scop:x", "scope:x"),
            ("anonymus", "anonymous"),
        ] {
            for rules in [
                "policy: [{to: [ada, '?'], deny: ['*']}]",
                "quotas: [{to: [ada, '?'], concurrent: 1}]",
                "approve: [{by: [ada, '?']}]",
            ] {
                let found = warnings(&rules.replace('?', wrong));
                let told =
                    format!("`{wrong}` is the name of a caller; did you mean {meant}? at orla.yaml:1:");
                assert!(found.iter().any(|one| one.contains(&told)), "{rules} {wrong}: {found:?}");
            }
        }
        let plain = "policy: [{to: [ada, 'https://id.example:7', 'group:dev', anonymous, 'auth0:eve']}]";
        assert_eq!(warnings(plain), Vec::<String>::new());
    }

    #[test]
    fn a_program_is_allowed_by_its_path_and_denied_by_its_name() {
        let here = std::env::current_dir().unwrap();
        let beside = here.join("bin/run.sh").display().to_string();
        for (policy, program, is_permitted) in [
            ("{allow: [exec]}", "/srv/tools/run.sh", true),
            ("{allow: ['exec:*']}", "/srv/tools/a/run.sh", true),
            ("{allow: ['exec:run.sh']}", "/srv/tools/run.sh", true),
            ("{allow: ['exec:run.sh']}", "/srv/tools/a/run.sh", false),
            ("{allow: ['exec:run.sh']}", "/elsewhere/run.sh", false),
            ("{allow: ['exec:npx']}", "npx", true),
            ("{allow: ['exec:/srv/tools/a/*']}", "/srv/tools/a/run.sh", true),
            ("{allow: ['exec:/srv/tools/a/*']}", "/srv/tools/b/run.sh", false),
            ("{allow: ['exec:./bin/run.sh']}", &beside, true),
            ("{allow: ['exec:./bin/run.sh']}", "/other/bin/run.sh", false),
            ("{allow: ['*'], deny: ['exec:run.sh']}", "/srv/tools/a/run.sh", false),
            ("{allow: ['*'], deny: ['exec:run.sh']}", "/srv/tools/other.sh", true),
            ("{allow: ['*'], deny: ['exec:bin/run.sh']}", &beside, false),
        ] {
            assert_eq!(permits(policy, program), is_permitted, "{policy} {program}");
        }
    }
}
