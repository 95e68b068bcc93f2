//! What the tools of a server are called, and which of them are served. Pure functions.

use std::time::Duration;

use orla_mcp::answer::ListedTool;

use super::settings::ServerSettings;
use crate::names::{is_below, is_chosen};

impl ServerSettings {
    /// The id of a tool: `SERVER.TOOL`, also where there is only one; the configured prefix takes the place
    /// of the server's name. So an id never changes because a tool or a server is added.
    pub(super) fn id_of(&self, tool: &str) -> String {
        let tool = self.rename.get(tool).map_or(tool, String::as_str);
        match &self.prefix {
            Some(prefix) => format!("{prefix}{tool}"),
            None => format!("{}.{tool}", self.name),
        }
    }

    /// Whether a tool is served.
    pub(super) fn serves(&self, tool: &str) -> bool {
        is_chosen(self.include.as_deref(), &self.exclude, tool)
    }

    /// How long a call of a tool may take.
    pub(super) fn timeout_of(&self, tool: &str) -> Option<Duration> {
        self.tool_timeouts.get(tool).copied().or(self.timeout)
    }

    /// Whether a tool of this id or name may turn out to be served.
    pub(super) fn may_serve(&self, name: &str) -> bool {
        match &self.prefix {
            Some(prefix) => name.starts_with(prefix.as_str()),
            None => is_below(&self.name, name),
        }
    }
}

/// The tools without those that were listed before under the same name.
pub(super) fn unique<'a>(server: &str, tools: &'a [ListedTool]) -> Vec<&'a ListedTool> {
    let mut seen = std::collections::HashSet::new();
    let (unique, again): (Vec<_>, Vec<_>) =
        tools.iter().partition(|tool| seen.insert(tool.name.as_str()));
    if let Some(tool) = again.first() {
        let (tool, more) = (&tool.name, again.len() - 1);
        tracing::warn!(server, tool, more, "a tool is listed twice, and counts once");
    }
    unique
}

#[cfg(test)]
mod tests {
    use super::super::settings::Reach;
    use super::*;
    use orla_marketplace::id::{Pattern, mcp_name};

    fn settings() -> ServerSettings {
        let reach = Reach::Http { url: "http://localhost".into(), headers: Default::default() };
        ServerSettings::new("s", reach)
    }

    #[test]
    fn ids_have_the_server_before_them_or_the_prefix() {
        let plain = settings();
        assert_eq!(
            (plain.id_of("a").as_str(), mcp_name(&plain.id_of("a.b")).as_str()),
            ("s.a", "s__a_b")
        );
        let mut renamed = settings();
        renamed.rename.insert("a".into(), "z".into());
        assert_eq!((renamed.id_of("a"), renamed.id_of("b")), ("s.z".into(), "s.b".into()));
        renamed.prefix = Some(String::new());
        assert_eq!((renamed.id_of("a"), renamed.id_of("b")), ("z".into(), "b".into()));
        renamed.prefix = Some("x_".into());
        assert_eq!(renamed.id_of("a"), "x_z");
    }

    #[test]
    fn what_is_included_and_not_excluded_is_served() {
        let patterns = |names: &[&str]| names.iter().map(|name| Pattern::new(*name)).collect();
        let mut chosen = settings();
        assert!(chosen.serves("get_a"));
        chosen.exclude = patterns(&["*_b"]);
        assert!(chosen.serves("get_a") && !chosen.serves("get_b"));
        chosen.include = Some(patterns(&["get_*"]));
        assert!(chosen.serves("get_a") && !chosen.serves("get_b") && !chosen.serves("set_a"));
        chosen.include = Some(Vec::new());
        assert!(!chosen.serves("get_a"));
    }

    #[test]
    fn single_tools_may_have_a_time_of_their_own() {
        let mut timed = settings();
        assert_eq!(timed.timeout_of("a"), None);
        timed.timeout = Some(Duration::from_secs(2));
        timed.tool_timeouts.insert("a".into(), Duration::from_secs(9));
        assert_eq!(
            (timed.timeout_of("a"), timed.timeout_of("b")),
            (Some(Duration::from_secs(9)), Some(Duration::from_secs(2)))
        );
    }

    #[test]
    fn what_may_come_is_told_by_its_beginning() {
        let mut server = settings();
        for (name, may) in [("s__a", true), ("s.a", true), ("sa", false), ("t__a", false), ("s", false)]
        {
            assert_eq!(server.may_serve(name), may, "{name}");
        }
        server.prefix = Some("x_".into());
        assert!(server.may_serve("x_a") && !server.may_serve("s__a"));
    }
}
