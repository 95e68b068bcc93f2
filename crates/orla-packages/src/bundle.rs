//! The manifest of an `.mcpb` bundle (`manifest.json`, 0.1 to 0.4): the command, and the user's
//! settings. No I/O.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// The name of the manifest in a bundle.
pub const MANIFEST: &str = "manifest.json";
/// The maximum size of a manifest, in bytes.
pub const MAX_MANIFEST: usize = 1 << 20;

/// The content of a bundle's manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bundle {
    /// The name.
    pub name: String,
    /// The version.
    pub version: String,
    /// The description.
    pub description: String,
    /// The author.
    pub author: String,
    /// The program: a name in `PATH`, or a path.
    pub command: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Its environment.
    pub env: BTreeMap<String, String>,
    /// The user's settings, by key.
    pub settings: BTreeMap<String, Setting>,
}

/// A user setting (`user_config`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The title.
    pub title: String,
    /// The default value. A list has several.
    pub default: Option<Vec<String>>,
    /// Whether it is required.
    pub is_required: bool,
    /// Whether its value must not appear in results: everything but the directories and files that the
    /// bundle does not mark as sensitive.
    pub is_secret: bool,
    /// Whether it may have several values.
    pub is_multiple: bool,
}

impl Setting {
    /// Returns whether it names files or directories that the bundle does not mark as sensitive.
    pub fn is_path(&self) -> bool {
        !self.is_secret
    }

    /// Splits a text into the setting's values: several are a JSON list, or one on each line.
    pub fn values(&self, text: &str) -> Vec<String> {
        if !self.is_multiple {
            return vec![text.to_owned()];
        }
        let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned);
        serde_json::from_str(text).unwrap_or_else(|_| lines().collect())
    }
}

#[derive(Deserialize)]
struct Raw {
    #[serde(alias = "dxt_version")]
    manifest_version: String,
    name: String,
    version: String,
    #[serde(default)]
    description: String,
    author: Author,
    server: Server,
    #[serde(default)]
    user_config: BTreeMap<String, RawSetting>,
    #[serde(default)]
    compatibility: Value,
}

#[derive(Deserialize)]
struct Author {
    name: String,
}

#[derive(Deserialize)]
struct Server {
    #[serde(rename = "type")]
    kind: String,
    mcp_config: Option<Launch>,
}

#[derive(Deserialize)]
struct Launch {
    command: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    platform_overrides: BTreeMap<String, Override>,
}

#[derive(Deserialize)]
struct Override {
    command: Option<String>,
    args: Option<Vec<String>>,
    env: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct RawSetting {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    title: String,
    #[serde(default)]
    sensitive: bool,
    #[serde(default)]
    multiple: bool,
    #[serde(default)]
    required: bool,
    #[serde(default)]
    default: Option<Value>,
}

/// Reads a manifest for the system with this name (`linux`, `darwin`, `win32`).
///
/// # Errors
/// It is not a manifest that is known here.
pub fn read(text: &[u8], system: &str) -> Result<Bundle, String> {
    // A byte order mark is ignored.
    let text = text.strip_prefix("\u{feff}".as_bytes()).unwrap_or(text);
    let raw: Raw = serde_json::from_slice(text).map_err(|error| format!("{MANIFEST}: {error}"))?;
    let version = raw.manifest_version.as_str();
    if !["0.1", "0.2", "0.3", "0.4"].contains(&version.strip_suffix(".0").unwrap_or(version)) {
        return Err(format!(
            "{MANIFEST}: the version of the manifest (manifest_version, before dxt_version) is {version:?}, which is \
             not known; 0.1 to 0.4 are"
        ));
    }
    if !["node", "python", "binary", "uv"].contains(&raw.server.kind.as_str()) {
        return Err(format!("{MANIFEST}: server.type {:?} is not known", raw.server.kind));
    }
    // A value that is not a list of texts is ignored.
    let platforms = raw.compatibility.get("platforms").and_then(Value::as_array);
    let platforms =
        platforms.and_then(|list| list.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
    let platforms = platforms.unwrap_or_default();
    if !platforms.is_empty() && !platforms.contains(&system) {
        let platforms = platforms.join(", ");
        return Err(format!(
            "{MANIFEST}: it is for {platforms} (compatibility.platforms), and this is {system}"
        ));
    }
    let Some(mut launch) = raw.server.mcp_config else {
        return Err(format!("{MANIFEST}: server.mcp_config is missing: it says what to start"));
    };
    for (what, text) in
        [("name", &raw.name), ("version", &raw.version), ("mcp_config.command", &launch.command)]
    {
        if text.is_empty() || text.len() > 4096 || text.chars().any(char::is_control) {
            return Err(format!("{MANIFEST}: {what} is empty, too long, or has control characters"));
        }
    }
    if let Some(changed) = launch.platform_overrides.remove(system) {
        launch.command = changed.command.unwrap_or(launch.command);
        launch.args = changed.args.unwrap_or(launch.args);
        launch.env.extend(changed.env.unwrap_or_default());
    }
    let settings = raw.user_config.into_iter().map(|(key, setting)| {
        let is_key = !key.is_empty()
            && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
        if !is_key {
            return Err(format!(
                "{MANIFEST}: user_config.{key:?}: a key has letters, digits, `_` and `-`"
            ));
        }
        let default = setting.default.filter(|default| !default.is_null());
        let default = default.as_ref().map(values);
        let title = if setting.title.is_empty() { key.clone() } else { setting.title };
        let is_secret = setting.sensitive || !["directory", "file"].contains(&setting.kind.as_str());
        let (is_required, is_multiple) = (setting.required, setting.multiple);
        Ok((key, Setting { title, default, is_required, is_secret, is_multiple }))
    });
    let settings = settings.collect::<Result<_, _>>()?;
    Ok(Bundle {
        name: raw.name,
        version: raw.version,
        description: raw.description,
        author: raw.author.name,
        command: launch.command,
        args: launch.args,
        env: launch.env,
        settings,
    })
}

/// The command to start.
#[derive(Clone, PartialEq, Eq)]
pub struct Command {
    /// The program.
    pub command: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Its environment.
    pub env: BTreeMap<String, String>,
}

impl Bundle {
    /// Returns the permissions that follow from the settings: reading the paths that the user sets.
    pub fn grants(&self) -> impl Iterator<Item = String> {
        let paths = self.settings.iter().filter(|(_, setting)| setting.is_path());
        paths.map(|(key, _)| format!("fs:read:{BEGIN}{key}}}"))
    }

    /// Returns the command if the bundle is in `directory`, with the values that `set` gives for keys of
    /// [`settings`](Self::settings). A variable or an argument whose setting has no value is left out,
    /// and so is the option before such an argument.
    ///
    /// # Errors
    /// The keys of required settings without a value.
    pub fn command(
        &self,
        directory: &str,
        home: &str,
        set: impl Fn(&str) -> Option<Vec<String>>,
    ) -> Result<Command, Vec<String>> {
        let values = chosen(&self.settings, set, |text| self.place(text, directory, home))?;
        let filled = |text: &str| filled(&self.place(text, directory, home), &values);
        let mut args: Vec<String> = Vec::new();
        let mut is_option = false;
        for arg in &self.args {
            // An argument that consists of one setting expands to all of its values.
            match setting_in(arg)
                .and_then(|key| values.get(key))
                .cloned()
                .unwrap_or_else(|| filled(arg).map(|one| vec![one]))
            {
                Some(values) if !values.is_empty() => args.extend(values),
                // `--key` would take the next argument as its value.
                _ if is_option && !arg.starts_with('-') => drop(args.pop()),
                _ => {}
            }
            is_option = arg.starts_with('-') && arg != "--" && !arg.contains(['=', '$']);
        }
        let env = self.env.iter().filter_map(|(name, value)| Some((name.clone(), filled(value)?)));
        let env = env.collect();
        let command = filled(&self.command).unwrap_or_default();
        let command = match command.strip_prefix("./") {
            Some(rest) => format!("{directory}/{rest}"),
            None => command,
        };
        Ok(Command { command, args, env })
    }

    fn place(&self, text: &str, directory: &str, home: &str) -> String {
        let replaced = text.replace("${__dirname}", directory).replace("${HOME}", home);
        let replaced = replaced.replace("${/}", "/").replace("${pathSeparator}", "/");
        ["DESKTOP", "DOCUMENTS", "DOWNLOADS"].iter().fold(replaced, |text, name| {
            let folder = format!("{}{}", &name[..1], name[1..].to_lowercase());
            text.replace(&format!("${{{name}}}"), &format!("{home}/{folder}"))
        })
    }
}

/// The values of settings, by their keys.
pub(crate) type Values = BTreeMap<String, Option<Vec<String>>>;

/// Returns the set value of each setting, or else its default as `default` gives it.
///
/// # Errors
/// The keys of required settings without a value.
pub(crate) fn chosen(
    settings: &BTreeMap<String, Setting>,
    set: impl Fn(&str) -> Option<Vec<String>>,
    default: impl Fn(&str) -> String,
) -> Result<Values, Vec<String>> {
    let (mut values, mut missing) = (Values::new(), Vec::new());
    for (key, setting) in settings {
        let by_default = || {
            let texts = setting.default.as_ref()?;
            Some(texts.iter().map(|text| default(text)).collect())
        };
        let value = set(key).or_else(by_default);
        if setting.is_required && value.is_none() {
            missing.push(key.clone());
        }
        values.insert(key.clone(), value);
    }
    if missing.is_empty() { Ok(values) } else { Err(missing) }
}

/// The beginning of a reference to a setting.
const BEGIN: &str = "${user_config.";

/// Returns the key of the setting, if a text consists of one reference.
pub fn setting_in(text: &str) -> Option<&str> {
    text.strip_prefix(BEGIN)?.strip_suffix('}')
}

/// Returns the text with the values of settings. `None` if one of them has no value.
pub(crate) fn filled(text: &str, values: &Values) -> Option<String> {
    let (mut out, mut rest) = (String::new(), text);
    while let Some(at) = rest.find(BEGIN) {
        let after = &rest[at + BEGIN.len()..];
        let Some(end) = after.find('}') else { break };
        out.push_str(&rest[..at]);
        // An undeclared key has no value.
        out.push_str(&values.get(&after[..end])?.as_ref()?.join(","));
        rest = &after[end + 1..];
    }
    out.push_str(rest);
    Some(out)
}

fn values(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => vec![text.clone()],
        Value::Array(items) => items.iter().flat_map(values).collect(),
        other => vec![other.to_string()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn manifest(change: impl Fn(&mut Value)) -> Result<Bundle, String> {
        let mut manifest = json!({
            "manifest_version": "0.3", "name": "w", "version": "1.0.0", "description": "W.",
            "author": {"name": "Acme"},
            "server": {"type": "node", "entry_point": "s.js", "mcp_config": {
                "command": "node", "args": ["${__dirname}/s.js", "${user_config.dirs}"],
                "env": {"KEY": "${user_config.key}", "HOME_DIR": "${HOME}", "X": "${user_config.none}"},
                "platform_overrides": {"win32": {"command": "node.exe"}},
            }},
            "user_config": {
                "key": {"type": "string", "title": "Key", "sensitive": true, "required": true},
                "dirs": {"type": "directory", "multiple": true, "default": ["${HOME}/a", "${DESKTOP}"]},
                "none": {"type": "string"},
            },
        });
        change(&mut manifest);
        let plain = read(manifest.to_string().as_bytes(), "linux");
        let marked = read(format!("\u{feff}{manifest}").as_bytes(), "linux");
        assert_eq!(marked.is_ok(), plain.is_ok());
        plain
    }

    #[test]
    fn the_command_has_the_values_of_a_person() {
        let bundle = manifest(|_| {}).unwrap();
        let secret = bundle.settings.iter().filter(|(_, setting)| setting.is_secret);
        assert_eq!(secret.map(|(key, _)| key.as_str()).collect::<Vec<_>>(), ["key", "none"]);
        let command = bundle
            .command("/b", "/home/x", |key| (key == "key").then(|| vec!["s3".to_owned()]))
            .unwrap();
        assert_eq!(command.args, ["/b/s.js", "/home/x/a", "/home/x/Desktop"]);
        let env = [("HOME_DIR", "/home/x"), ("KEY", "s3")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        assert_eq!(command.env, BTreeMap::from(env));
        assert_eq!(bundle.command("/b", "/h", |_| None).err(), Some(vec!["key".to_owned()]));
    }

    #[test]
    fn several_values_are_a_list_or_lines() {
        let bundle = manifest(|_| {}).unwrap();
        let values = |key: &str, text: &str| bundle.settings[key].values(text);
        for text in [r#"["/a b", "/c"]"#, "/a b\n\n /c\n"] {
            assert_eq!(values("dirs", text), ["/a b", "/c"]);
        }
        assert_eq!(values("key", "a\nb"), ["a\nb"]);
        assert_eq!(bundle.grants().collect::<Vec<_>>(), ["fs:read:${user_config.dirs}"]);
        let sensitive = manifest(|json| json["user_config"]["dirs"]["sensitive"] = json!(true));
        assert_eq!(sensitive.unwrap().grants().count(), 0);
    }

    #[test]
    fn an_option_without_its_value_is_left_out() {
        let args =
            json!(["s.js", "--key", "${user_config.none}", "-v", "--to=${user_config.none}", "x"]);
        let bundle = manifest(|json| {
            json["server"]["mcp_config"]["args"] = args.clone();
            json["user_config"] = json!({"none": {"type": "string"}});
        });
        assert_eq!(
            bundle.unwrap().command("/b", "/h", |_| None).ok().unwrap().args,
            ["s.js", "-v", "x"]
        );
    }

    #[test]
    fn the_end_of_options_stays() {
        let bundle = manifest(|json| {
            json["server"]["mcp_config"]["args"] =
                json!(["--", "${user_config.none}", "${user_config.set}"]);
            json["user_config"] = json!({"none": {"type": "string"}, "set": {"type": "string"}});
        });
        let command =
            bundle.unwrap().command("/b", "/h", |key| (key == "set").then(|| vec!["-x".to_owned()]));
        assert_eq!(command.ok().unwrap().args, ["--", "-x"]);
    }

    #[test]
    fn a_bundle_without_platforms_fits_all() {
        for compatibility in
            [json!(null), json!({}), json!({"platforms": null}), json!({"platforms": "all"})]
        {
            let bundle = manifest(|json| json["compatibility"] = compatibility.clone());
            assert!(bundle.is_ok(), "{compatibility}");
        }
    }

    #[test]
    fn unsupported_manifests_are_refused() {
        let elsewhere = manifest(|json| json["compatibility"] = json!({"platforms": ["darwin"]}));
        assert!(elsewhere.unwrap_err().contains("darwin"));
        assert!(manifest(|json| json["manifest_version"] = json!("9")).is_err());
        assert!(manifest(|json| json["manifest_version"] = json!("0.1.0")).is_ok());
        let uv = manifest(|json| json["server"] = json!({"type": "uv", "entry_point": "s.py"}));
        assert!(uv.unwrap_err().contains("mcp_config is missing"));
        assert!(manifest(|json| json["server"]["type"] = json!("exe")).is_err());
        assert!(manifest(|json| json["name"] = json!("")).is_err());
        assert!(manifest(|json| json["server"]["mcp_config"] = json!({})).is_err());
        assert!(read(b"[]", "linux").is_err());
    }
}
