//! `orla connect CLIENT`: the entry of this server in a client's configuration, printed or written.
//!
//! The entry starts orla on standard input and output with absolute paths: clients start their servers
//! in directories of their own. With `--url`, it names the address of a server that runs elsewhere.

mod clients;
mod json;
mod yaml;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};

use orla_console::Connection;
use reqwest::Url;
use serde_json::Value;
use toml_edit::{Array, DocumentMut, InlineTable, Item, Table, value};

use crate::config::{DEFAULT_FILES, Source, Survey, reason};
use crate::render;
use crate::{Failure, cli};
use clients::{CLIENTS, Client, Entry, Form, Launch, Places, RemoteServer};

/// The largest client's file that is edited.
const MAX_FILE: u64 = 16 * 1024 * 1024;

/// Prints the entry, or writes it into the client's file.
pub(crate) fn run(connect: &cli::Connect, source: &Source) -> Result<(), Failure> {
    let cli::Connect { client, write, name, .. } = connect;
    let Some(client) = CLIENTS.iter().find(|known| known.name == client) else {
        return Err(Failure::usage(format!("unknown client {client}")));
    };
    let proper = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if name.is_empty() || !name.chars().all(proper) {
        return Err(Failure::usage(format!("--name {name:?}: expected letters, digits, `_` and `-`")));
    }
    let places = Places::of_this_system(|name| {
        std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from)
    })
    .ok_or_else(|| Failure::failed("HOME is not set: the client's file cannot be found"))?;
    let path = client.path(&places, Path::exists);
    let to = match &connect.url {
        Some(url) => Entry::Remote(remote_server(client, url, connect.token_env.as_deref(), source)?),
        None => Entry::Here(launch(source)?),
    };
    // The client starts orla with this file, in its own environment.
    let survey = source.survey().filter(|_| matches!(to, Entry::Here(_)));
    if let Some(survey) = &survey {
        notes(survey, client, source).iter().for_each(|text| render::note(text));
    }
    if matches!(to, Entry::Here(_)) {
        let lacking = survey.as_ref().map(|survey| &survey.variables);
        problems(source, lacking).iter().for_each(|problem| render::warning(problem));
    }
    if *write {
        let served = survey.map(|survey| survey.servers).unwrap_or_default();
        return write_entry(client, &path, name, &to, &served);
    }
    render::note(&format!("# {}: add this to {} (--write does it)", client.title, path.display()));
    render::out(&edited(client, "", name, &to).map_err(Failure::failed)?);
    Ok(())
}

/// Returns what prevents the client from starting orla with this configuration.
fn notes(survey: &Survey, client: &Client, source: &Source) -> Vec<String> {
    let file = survey.file.display();
    let mut notes = Vec::new();
    if let Some(first) = survey.variables.first() {
        let names: Vec<&str> = survey.variables.iter().map(String::as_str).collect();
        let secret = first.to_lowercase().replace('_', "-");
        notes.push(format!(
            "{file} needs {}, which {} must have in its environment; or keep the value with `orla secret set \
             {secret}`, and write ${{secret:{secret}}} for ${{{first}}}",
            names.join(", "),
            client.title
        ));
    }
    if survey.has_audit {
        let url = source
            .load_for_client(true)
            .map_or_else(|_| "--url http://HOST:PORT".to_owned(), |config| config.own_url());
        notes.push(format!(
            "{file} has an audit log, which one orla at a time can write: beside a running server, connect the client \
             to it with `orla connect {} {url}`",
            client.name
        ));
    }
    notes
}

/// Returns why orla would not start with this configuration. A variable that the client is to have in its
/// environment has its own note.
fn problems(source: &Source, lacking: Option<&BTreeSet<String>>) -> Vec<String> {
    let problems = source.load().err().unwrap_or_default().into_iter().map(|one| one.to_string());
    let is_noted = |text: &str| lacking.into_iter().flatten().any(|name| text.contains(&**name));
    problems.filter(|text| !is_noted(text)).collect()
}

/// Returns the server at this address, for this client.
fn remote_server(
    client: &Client,
    url: &str,
    token_env: Option<&str>,
    source: &Source,
) -> Result<RemoteServer, Failure> {
    if source.file.is_some() || !source.flags.is_empty() {
        return Err(Failure::usage(
            "--url names a server that runs elsewhere, with a configuration of its own: leave the other options out",
        ));
    }
    let title = client.title;
    if client.remote.is_none() {
        return Err(Failure::failed(format!(
            "{title} takes no addresses from its file: add the server in its settings, under Connectors"
        )));
    }
    let is_name = |name: &str| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        name.chars().all(is_plain) && !name.starts_with(|c: char| c.is_ascii_digit()) && !name.is_empty()
    };
    if let Some(name) = token_env.filter(|name| !is_name(name)) {
        let what = format!("--token-env {name:?}: expected the name of an environment variable");
        return Err(Failure::usage(what));
    }
    if token_env.is_some() && !client.takes_variables {
        render::note(&format!(
            "# {title} takes no token from the environment: sign in when it asks, or add `headers: {{Authorization: Bearer …}}`"
        ));
    }
    Ok(RemoteServer { url: address(url)?, token_env: token_env.map(str::to_owned) })
}

/// Returns the address of a server's endpoint.
fn address(url: &str) -> Result<String, Failure> {
    let what = || Failure::usage(format!("--url {url}: expected an address such as https://host:8080"));
    let mut address = Url::parse(url).map_err(|_| what())?;
    let is_plain = address.username().is_empty() && address.password().is_none();
    if !matches!(address.scheme(), "http" | "https") || !address.has_host() || !is_plain {
        return Err(what());
    }
    if address.path() == "/" {
        address.set_path("/mcp");
    }
    address.set_fragment(None);
    Ok(address.into())
}

/// Returns the entry of this server for each client, with the file that it belongs into.
pub(crate) fn entries(source: &Source) -> Vec<Connection> {
    let places = Places::of_this_system(|name| {
        std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from)
    });
    let (Some(places), Ok(launch)) = (places, launch(source)) else { return Vec::new() };
    let to = Entry::Here(launch);
    let entry = |client: &Client| {
        let text = edited(client, "", "orla", &to).ok()?;
        let file = shown(&client.path(&places, Path::exists));
        Some(Connection { title: client.title, file, text, then: client.then })
    };
    CLIENTS.iter().filter_map(entry).collect()
}

/// Returns how the client starts this program, with the current configuration.
fn launch(source: &Source) -> Result<Launch, Failure> {
    let exe = std::env::current_exe().map_err(|err| {
        Failure::failed(format!("cannot find the path of orla itself: {}", reason(&err)))
    })?;
    let absolute =
        |path: &Path| std::path::absolute(path).map_or_else(|_| path.to_owned(), |path| tidy(&path));
    let mut args = vec!["--stdio".to_owned()];
    let mut env = Vec::new();
    let found = DEFAULT_FILES.iter().map(PathBuf::from).find(|path| path.exists());
    let config = source.file.clone().or(found);
    let has_config = config.is_some();
    if let Some(config) = config {
        args.extend(["--config".to_owned(), shown(&absolute(&config))]);
    }
    let mut tools_dir = None;
    for (flag, key, value) in &source.flags {
        match *key {
            "tools_dir" => tools_dir = Some(PathBuf::from(value)),
            "timeout" | "log_format" | "log_level" => {
                args.extend([(*flag).to_owned(), value.to_string_lossy().into_owned()]);
            }
            _ => {}
        }
    }
    let tools_dir = tools_dir.or_else(|| (!has_config).then(|| PathBuf::from("tools")));
    if let Some(dir) = tools_dir {
        args.extend(["--tools-dir".to_owned(), shown(&absolute(&dir))]);
    }
    if !has_config && Path::new("prompts").is_dir() {
        env.push(("ORLA_PROMPTS_DIR".to_owned(), shown(&absolute(Path::new("prompts")))));
    }
    Ok(Launch { command: shown(&exe), args, env })
}

fn shown(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Returns the path without `.` in it.
fn tidy(path: &Path) -> PathBuf {
    path.components().collect()
}

/// Returns a client's file with the entry in it.
fn edited(client: &Client, text: &str, name: &str, to: &Entry) -> Result<String, String> {
    let entry = client.entry(to).ok_or("it has no entries of servers elsewhere")?;
    match &client.form {
        Form::Json { below, .. } => json::set(text, below, name, &entry),
        Form::Yaml => yaml::set(text, name, &entry),
        Form::Toml => set_toml(text, name, &entry),
    }
}

/// Returns whether a client's file has an entry of this name.
fn has_entry(client: &Client, text: &str, name: &str) -> bool {
    match &client.form {
        Form::Json { below, .. } => json::has(text, below, name),
        Form::Yaml => yaml::has(text, name),
        Form::Toml => text.parse::<DocumentMut>().is_ok_and(|document| {
            let servers = document.get("mcp_servers").and_then(Item::as_table_like);
            servers.is_some_and(|servers| servers.contains_key(name))
        }),
    }
}

fn set_toml(text: &str, name: &str, own: &Value) -> Result<String, String> {
    let mut document: DocumentMut = text.parse().map_err(|err: toml_edit::TomlError| {
        err.to_string().lines().next().unwrap_or("not TOML").to_owned()
    })?;
    let servers = document.entry("mcp_servers").or_insert_with(|| {
        let mut servers = Table::new();
        servers.set_implicit(true);
        Item::Table(servers)
    });
    let servers = servers.as_table_like_mut().ok_or("mcp_servers is not a table")?;
    let mut entry = Table::new();
    for (key, own) in own.as_object().into_iter().flatten() {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let item = match own {
            Value::Array(items) => value(items.iter().map(text).collect::<Array>()),
            Value::Object(members) => {
                value(members.iter().map(|(name, own)| (name, text(own))).collect::<InlineTable>())
            }
            own => value(text(own)),
        };
        entry.insert(key, item);
    }
    if let Some(old) = servers.get_mut(name).and_then(Item::as_table_like_mut) {
        // The text around the old values is kept, including comments.
        let stale: Vec<String> =
            ["command", "args", "env", "url", "bearer_token_env_var"].map(str::to_owned).into();
        for key in stale {
            match entry.remove(&key) {
                Some(item) => old.insert(&key, item),
                None => old.remove(&key),
            };
        }
    } else {
        servers.insert(name, Item::Table(entry));
    }
    Ok(document.to_string())
}

/// Writes the entry. `served` are the servers that orla serves too.
fn write_entry(
    client: &Client,
    path: &Path,
    name: &str,
    to: &Entry,
    served: &[String],
) -> Result<(), Failure> {
    let failed = |what: &str, err: &std::io::Error| {
        Failure::failed(format!("{} cannot be {what}: {}", path.display(), reason(err)))
    };
    let target = followed(path);
    let old = match fs::metadata(&target) {
        // A pipe would be read without an end.
        Ok(metadata) if !metadata.is_file() => {
            return Err(Failure::failed(format!("{} is not a regular file", path.display())));
        }
        Ok(metadata) if metadata.len() > MAX_FILE => {
            return Err(Failure::failed(format!("{} is larger than {MAX_FILE} bytes", path.display())));
        }
        Ok(_) => Some(fs::read_to_string(&target).map_err(|err| failed("read", &err))?),
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => None,
        Err(err) => return Err(failed("read", &err)),
    };
    let text = old.as_deref().unwrap_or_default();
    let new = edited(client, text, name, to)
        .map_err(|problem| Failure::failed(format!("{} is not touched: {problem}", path.display())))?;
    if old.as_deref() == Some(new.as_str()) {
        render::line(&format!("{} has this entry already: {}", client.title, path.display()));
        return Ok(());
    }
    if let Some(dir) = target.parent() {
        fs::create_dir_all(dir).map_err(|err| failed("written", &err))?;
    }
    if old.is_some() {
        let backup = backup_of(&target);
        fs::copy(&target, &backup).map_err(|err| failed("backed up", &err))?;
        render::line(&format!("Backup: {}", backup.display()));
    }
    replace(&target, &new).map_err(|err| failed("written", &err))?;
    let done = match has_entry(client, text, name) {
        true => format!("Replaced {name} in"),
        false => format!("Wrote {name} to"),
    };
    render::line(&format!("{done} {}. {}", path.display(), client.then));
    let is_there = |served: &&str| *served != name && has_entry(client, text, served);
    let doubled: Vec<&str> = served.iter().map(String::as_str).filter(is_there).collect();
    if !doubled.is_empty() {
        let names = doubled.join(", ");
        render::note(&format!(
            "The file still has {names}, which orla serves too: remove what you do not want twice."
        ));
    }
    Ok(())
}

/// Returns the file that keeps the content from before. The first backup, of the file without orla,
/// stays.
fn backup_of(path: &Path) -> PathBuf {
    let first = with_suffix(path, ".orla-backup");
    let numbered = (2_u32..).map(|number| with_suffix(&first, &format!("-{number}")));
    std::iter::once(first.clone()).chain(numbered).find(|backup| !backup.exists()).unwrap_or(first)
}

/// Returns the target of a path, through links, even if it does not exist: the target of a link is
/// written, and the link stays.
fn followed(path: &Path) -> PathBuf {
    /// More than the kernel follows.
    const LINKS: usize = 40;
    let mut target = path.to_owned();
    for _ in 0..LINKS {
        let Ok(next) = fs::read_link(&target) else { break };
        target = target.parent().unwrap_or(Path::new("")).join(next);
    }
    target
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Puts a whole new file in the place of an old one, with the old one's permissions: readers see one or
/// the other, never a part.
fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    let temporary = with_suffix(path, &format!(".orla-{}", std::process::id()));
    let written = (|| {
        let mut file = fs::OpenOptions::new().write(true).create_new(true).open(&temporary)?;
        if let Ok(metadata) = fs::metadata(path) {
            // Only root can, and root should: the file is its user's.
            let _ = fchown(&file, Some(metadata.uid()), Some(metadata.gid()));
            file.set_permissions(metadata.permissions())?;
        }
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(command: &str) -> Entry {
        Entry::Here(Launch {
            command: command.into(),
            args: vec!["--stdio".into(), "--config".into(), "/srv/a b.yaml".into()],
            env: Vec::new(),
        })
    }

    fn remote_server() -> Entry {
        Entry::Remote(RemoteServer {
            url: "https://o.example/mcp".into(),
            token_env: Some("TOKEN".into()),
        })
    }

    #[test]
    fn codex_gets_a_table_and_keeps_its_comments() {
        let text = "# mine\nmodel = \"x\" # yes\n\n[mcp_servers.other]\ncommand = \"y\"\n";
        let client = CLIENTS.iter().find(|client| client.name == "codex").unwrap();
        let once = edited(client, text, "orla", &launch("/bin/orla")).unwrap();
        let expected = format!(
            "{text}\n[mcp_servers.orla]\ncommand = \"/bin/orla\"\nargs = [\"--stdio\", \"--config\", \"/srv/a b.yaml\"]\n"
        );
        assert_eq!(once, expected);
        let twice = edited(client, &once, "orla", &launch("/usr/bin/orla")).unwrap();
        assert_eq!(twice, expected.replace("/bin/orla", "/usr/bin/orla"));
        let remote = edited(client, &once, "orla", &remote_server()).unwrap();
        let entry =
            "\n[mcp_servers.orla]\nurl = \"https://o.example/mcp\"\nbearer_token_env_var = \"TOKEN\"\n";
        assert_eq!(remote, format!("{text}{entry}"));
        assert_eq!(edited(client, &remote, "orla", &launch("/bin/orla")).unwrap(), once);
    }

    #[test]
    fn the_command_line_knows_every_client() {
        let names: Vec<&str> = CLIENTS.iter().map(|client| client.name).collect();
        assert_eq!(names, cli::CLIENTS);
    }

    #[test]
    fn every_client_takes_the_entry_twice_and_stays_the_same() {
        for client in CLIENTS {
            let once = edited(client, "", "orla", &launch("/bin/orla")).unwrap();
            assert!(has_entry(client, &once, "orla"), "{}", client.name);
            assert!(!has_entry(client, &once, "other") && !has_entry(client, "", "orla"));
            assert!(once.contains("/bin/orla") && once.contains("--stdio"), "{once}");
            assert_eq!(
                edited(client, &once, "orla", &launch("/bin/orla")).unwrap(),
                once,
                "{}",
                client.name
            );
        }
    }

    #[test]
    fn every_capable_client_takes_the_address_of_a_remote_server() {
        for client in CLIENTS.iter().filter(|client| client.remote.is_some()) {
            let before = edited(client, "", "orla", &launch("/bin/orla")).unwrap();
            let once = edited(client, &before, "orla", &remote_server()).unwrap();
            assert!(has_entry(client, &once, "orla") && !once.contains("/bin/orla"), "{once}");
            assert!(once.contains("https://o.example/mcp"), "{once}");
            assert_eq!(once.contains("TOKEN"), client.takes_variables, "{once}");
            assert_eq!(
                edited(client, &once, "orla", &remote_server()).unwrap(),
                once,
                "{}",
                client.name
            );
        }
    }

    #[test]
    fn an_address_leads_to_the_endpoint_and_has_no_password() {
        for (given, address) in [
            ("http://h:8080", Some("http://h:8080/mcp")),
            ("https://h/", Some("https://h/mcp")),
            ("https://h/orla/mcp", Some("https://h/orla/mcp")),
            ("h:8080", None),
            ("ftp://h", None),
            ("https://u:p@h", None),
        ] {
            assert_eq!(super::address(given).ok().as_deref(), address, "{given}");
        }
    }

    #[test]
    fn a_written_file_has_a_backup_and_keeps_its_permissions() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/settings.json");
        let client = CLIENTS.iter().find(|client| client.name == "gemini").unwrap();
        write_entry(client, &path, "orla", &launch("/bin/orla"), &[]).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let first = fs::read_to_string(&path).unwrap();
        write_entry(client, &path, "orla", &launch("/bin/other"), &[]).unwrap();
        write_entry(client, &path, "orla", &launch("/bin/third"), &[]).unwrap();
        write_entry(client, &path, "orla", &launch("/bin/other"), &[]).unwrap();
        assert_eq!(fs::read_to_string(with_suffix(&path, ".orla-backup")).unwrap(), first);
        let last = fs::read_to_string(with_suffix(&path, ".orla-backup-3")).unwrap();
        assert!(last.contains("/bin/third"), "{last}");
        assert!(fs::read_to_string(&path).unwrap().contains("/bin/other"));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        // A link is followed, even to a missing file.
        let link = dir.path().join("link.json");
        for to in ["deep/settings.json", "deep/new.json"] {
            std::os::unix::fs::symlink(to, &link).unwrap();
            write_entry(client, &link, "orla", &launch("/bin/linked"), &[]).unwrap();
            assert_eq!(fs::read_link(&link).unwrap(), Path::new(to));
            assert!(fs::read_to_string(dir.path().join(to)).unwrap().contains("/bin/linked"));
            fs::remove_file(&link).unwrap();
        }
        fs::write(&path, "{ not json").unwrap();
        assert!(write_entry(client, &path, "orla", &launch("/bin/orla"), &[]).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "{ not json");
    }
}
