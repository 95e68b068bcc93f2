//! What the functions of a plugin are called, and which of them are served. Pure functions.

use super::settings::PluginSettings;
use crate::names::{is_below, is_chosen};

impl PluginSettings {
    /// The id of a function: `PLUGIN.FUNCTION`, or the plugin's name where it is the `only` one. The configured
    /// prefix takes the place of the plugin's name.
    pub(super) fn id_of(&self, function: &str, only: bool) -> String {
        let renamed = self.rename.get(function);
        let shown = renamed.map_or(function, String::as_str);
        match &self.prefix {
            Some(prefix) => format!("{prefix}{shown}"),
            None if only && renamed.is_none() => self.name.clone(),
            None => format!("{}.{shown}", self.name),
        }
    }

    /// Whether a function is served.
    pub(super) fn serves(&self, function: &str) -> bool {
        is_chosen(self.include.as_deref(), &self.exclude, function)
    }

    /// Whether a function of this id or name may turn out to be served.
    pub(super) fn may_serve(&self, name: &str) -> bool {
        match &self.prefix {
            Some(prefix) => name.starts_with(prefix.as_str()),
            None => name == self.name || is_below(&self.name, name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orla_marketplace::id::Pattern;

    #[test]
    fn ids_have_the_plugin_before_them_or_the_prefix() {
        let mut plugin = PluginSettings::new("p", "./p");
        assert_eq!((plugin.id_of("a", false), plugin.id_of("a", true)), ("p.a".into(), "p".into()));
        plugin.rename.insert("a".into(), "z".into());
        assert_eq!((plugin.id_of("a", false), plugin.id_of("a", true)), ("p.z".into(), "p.z".into()));
        plugin.prefix = Some("x_".into());
        assert_eq!((plugin.id_of("a", true), plugin.id_of("b", true)), ("x_z".into(), "x_b".into()));
    }

    #[test]
    fn what_is_included_and_not_excluded_is_served() {
        let mut plugin = PluginSettings::new("p", "./p");
        assert!(plugin.serves("a"));
        plugin.include = Some(vec![Pattern::new("get_*")]);
        plugin.exclude = vec![Pattern::new("*_b")];
        assert!(plugin.serves("get_a") && !plugin.serves("get_b") && !plugin.serves("a"));
    }

    #[test]
    fn what_may_come_is_told_by_its_beginning() {
        let mut plugin = PluginSettings::new("p", "./p");
        for (name, may) in [("p", true), ("p__a", true), ("p.a", true), ("pa", false), ("q__a", false)] {
            assert_eq!(plugin.may_serve(name), may, "{name}");
        }
        plugin.prefix = Some("x_".into());
        assert!(plugin.may_serve("x_a") && !plugin.may_serve("p"));
    }
}
