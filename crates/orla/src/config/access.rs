//! `policy` and `auth_tokens`: who may use what, and how callers are told apart.

use orla_marketplace::id::Pattern;
use orla_marketplace::{ANONYMOUS, AccessPolicy, Permission, Rule};
use orla_process::document::{Kind as Shape, Node};
use orla_server::BearerToken;
use serde_json::{Value, json};

use super::keys::Own;
use super::read::Reader;
use super::{Config, keys};

/// The key `policy`.
pub(super) const POLICY: Own =
    Own { read: read_policy, schema: policy_schema, expected: "a list of rules", variable: None };

/// The key `auth_tokens`.
pub(super) const TOKENS: Own = Own {
    read: read_tokens,
    schema: tokens_schema,
    expected: "a list of texts, or a mapping from names to texts",
    variable: Some(tokens_of_variable),
};

const RULE_KEYS: [&str; 4] = ["to", "capabilities", "allow", "deny"];

fn read_policy(reader: &mut Reader<'_>, config: &mut Config, path: &'static str, node: &Node) {
    let Shape::List(items) = &node.kind else {
        let problem =
            super::read::unexpected("a list of rules (with to, capabilities, allow, deny)", node);
        return reader.problem(node.at, || format!("{path}{problem}"));
    };
    let rules = items.iter().enumerate();
    let rules = rules.filter_map(|(index, item)| read_rule(reader, &format!("{path}[{index}]"), item));
    config.access = Some(AccessPolicy { rules: rules.collect() });
}

fn read_rule(reader: &mut Reader<'_>, path: &str, node: &Node) -> Option<Rule> {
    let pairs = reader.pairs(path, node, "a mapping with to, capabilities, allow or deny")?;
    let everything = || vec![Pattern::new("*")];
    let mut rule =
        Rule { to: everything(), capabilities: everything(), allow: Vec::new(), deny: Vec::new() };
    for (key, node) in pairs {
        let path = format!("{path}.{}", super::read::excerpt(&key.text));
        match key.text.as_str() {
            "to" => rule.to = reader.patterns(&path, node).unwrap_or_default(),
            "capabilities" => rule.capabilities = reader.patterns(&path, node).unwrap_or_default(),
            "allow" => rule.allow = read_permissions(reader, &path, node),
            "deny" => rule.deny = read_permissions(reader, &path, node),
            other => {
                let prefix = path.strip_suffix(&*super::read::excerpt(other)).unwrap_or_default();
                reader.unknown(key.at, other, prefix, RULE_KEYS);
            }
        }
    }
    Some(rule)
}

fn read_permissions(reader: &mut Reader<'_>, path: &str, node: &Node) -> Vec<Permission> {
    let texts = reader.list(path, node, "a list of permissions, such as net:api.example.com");
    let mut permissions = Vec::new();
    for (index, text) in texts.unwrap_or_default().iter().enumerate() {
        match text.parse() {
            Ok(permission) => permissions.push(permission),
            Err(problem) => reader.problem(node.at, || format!("{path}[{index}]: {problem}")),
        }
    }
    permissions
}

fn tokens_of_variable(config: &mut Config, text: &str) -> Result<(), String> {
    let secrets = keys::listed(text);
    secrets.iter().try_for_each(|secret| keys::token(secret))?;
    let tokens = secrets.into_iter().map(|secret| BearerToken { secret, name: None });
    config.auth_tokens = tokens.collect();
    Ok(())
}

fn read_tokens(reader: &mut Reader<'_>, config: &mut Config, path: &'static str, node: &Node) {
    // Nothing that stands here is ever repeated in a message.
    let (named, tokens): (Vec<Option<&str>>, Vec<&Node>) = match &node.kind {
        Shape::List(items) => items.iter().map(|item| (None, item)).unzip(),
        Shape::Map(pairs) => pairs.iter().map(|(name, item)| (Some(&*name.text), item)).unzip(),
        Shape::Scalar(_) => {
            return reader.problem(node.at, || format!("{path}: expected {}", TOKENS.expected));
        }
    };
    let mut read = Vec::with_capacity(tokens.len());
    for (index, (name, item)) in named.into_iter().zip(tokens).enumerate() {
        let path = match name {
            Some(name) => format!("{path}.{}", super::read::excerpt(name)),
            None => format!("{path}[{index}]"),
        };
        let is_text = matches!(&item.kind, Shape::Scalar(scalar) if scalar.as_text().is_some());
        if !is_text {
            reader.problem(item.at, || format!("{path}: expected text (in quotes, a number is text)"));
            continue;
        }
        let Some(secret) = reader.secret(&path, item) else { continue };
        if let Err(problem) = keys::token(&secret) {
            reader.problem(item.at, || format!("{path}: {problem}"));
            continue;
        }
        if name == Some(ANONYMOUS) {
            let problem = "callers without a token are called that; choose another name";
            reader.problem(item.at, || format!("{path}: {problem}"));
            continue;
        }
        read.push(BearerToken { secret, name: name.map(str::to_owned) });
    }
    config.auth_tokens = read;
}

fn policy_schema() -> Value {
    let texts = json!({"anyOf": [
        {"type": "array", "items": {"type": "string", "minLength": 1}},
        {"type": "string", "minLength": 1},
    ]});
    let described = |about: &str| {
        let mut schema = texts.clone();
        schema["description"] = about.into();
        schema
    };
    json!({
        "type": "array",
        "items": {
            "type": "object",
            "additionalProperties": false,
            "properties": {
                "to": described("Name patterns of callers: names in auth_tokens, or `anonymous`. All where absent."),
                "capabilities": described("Name patterns of capabilities. All where absent."),
                "allow": described("What is granted: permissions such as net:api.example.com, fs:read:./data, exec, mcp:server/*."),
                "deny": described("What is refused, whoever grants it; `*` refuses the capabilities altogether."),
            },
        },
    })
}

fn tokens_schema() -> Value {
    let token = json!({"type": "string", "minLength": 1});
    json!({"anyOf": [
        {"type": "array", "items": token},
        {"type": "object", "additionalProperties": token},
    ]})
}
