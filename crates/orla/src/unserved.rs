//! Capsules and MCP servers of which the configuration serves no capability, so that they need not run.
//! No I/O.

use orla_marketplace::ProviderType;
use orla_providers::NameRules;

use crate::config::Config;

/// Returns whether the configuration serves no capability of a capsule or server with this name,
/// regardless of its tools: it is disabled, or `deny` contains its name or all names. In doubt, it is
/// served.
pub(crate) fn is_denied(config: &Config, name: &str, names: &NameRules) -> bool {
    if config.deny.iter().any(|text| text == "*") {
        return true;
    }
    let address = format!("mcp:{name}");
    let is_used_elsewhere = config.capabilities.iter().any(|one| {
        matches!(&one.value.manifest.provider, ProviderType::MCP(tool) if tool.server_url == address)
    });
    if names.prefix.is_some() || is_used_elsewhere {
        return false;
    }
    let mut parts = config.tools.iter().filter(|(tool, _)| names.may_serve(name, tool));
    if parts.any(|(_, change)| change.rename.is_some() || change.enabled == Some(true)) {
        return false;
    }
    let is_disabled = config.tools.get(name).is_some_and(|change| change.enabled == Some(false));
    is_disabled || config.deny.iter().any(|text| text == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_denied_by(text: &str) -> bool {
        let text = format!("mcpServers: {{up: {{command: up}}}}\n{text}\n");
        let config = Config::of(&text).unwrap_or_else(|problems| panic!("{problems:?}"));
        is_denied(&config, "up", &NameRules::default())
    }

    #[test]
    fn a_provider_disabled_or_denied_as_a_whole_is_denied() {
        for text in ["tools: {up: {enabled: false}}", "deny: [up]", "deny: [a, '*']"] {
            assert!(is_denied_by(text), "{text}");
        }
        for text in [
            "",
            "deny: [up.ask]",
            "deny: ['u*']",
            "deny: [uper]",
            "tools: {up.ask: {enabled: false}}",
            "tools: {up: {enabled: false}, up.ask: {enabled: true}}",
            "tools: {up: {enabled: false}, up__ask: {enabled: true}}",
            "deny: [up]\ntools: {up.ask: {rename: ask}}",
            "deny: [up]\ncapabilities: [{id: ask, provider: {MCP: {server_url: 'mcp:up', tool_name: ask}}}]",
        ] {
            assert!(!is_denied_by(text), "{text}");
        }
        let config = Config::of("deny: [up]").unwrap();
        let names = NameRules { prefix: Some(String::new()), ..NameRules::default() };
        assert!(!is_denied(&config, "up", &names), "its tools do not have its name");
    }
}
