//! The settings of functions of plugins (RTFS capability system §3.3).

use super::Connection;
use super::content::ContentSource;

/// A function of a plugin (RTFS capability system §3.3).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PluginCapability {
    /// The plugin's program.
    pub plugin_path: String,
    /// The function to call.
    pub function_name: String,
    /// Settings beyond the RTFS document.
    pub options: PluginOptions,
}

impl PluginCapability {
    /// Settings with every field of the document, and the options' defaults.
    pub fn new(plugin_path: impl Into<String>, function_name: impl Into<String>) -> Self {
        Self {
            plugin_path: plugin_path.into(),
            function_name: function_name.into(),
            options: PluginOptions::default(),
        }
    }
}

/// Settings of the connection to a plugin beyond the RTFS document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PluginOptions {
    /// The plugin, if the executor already knows it. A capability that holds one keeps its processes,
    /// which end with their last user.
    pub connection: Option<Connection>,
    /// The permissions of the capability, with absolute paths. A program that is named by path, and a
    /// component, are confined to them.
    pub permissions: Vec<String>,
    /// The content, if it is more than the program's file.
    pub content: Option<ContentSource>,
}
