//! `orla init`: example files for all features, which work unchanged.

use std::fs;
use std::path::Path;

use super::write_new;
use crate::config::DEFAULT_FILES;
use crate::{Failure, render};

struct File {
    path: &'static str,
    text: &'static str,
    executable: bool,
}

const FILES: [File; 3] = [
    File { path: "tools/hello.sh", text: include_str!("hello.sh"), executable: true },
    File { path: "prompts/introduce.md", text: include_str!("introduce.md"), executable: false },
    File { path: "orla.yaml", text: include_str!("orla.yaml"), executable: false },
];

/// Writes the examples that do not exist yet, and prints the next steps.
pub(crate) fn run(dir: &Path) -> Result<(), Failure> {
    let mut report = String::new();
    for file in &FILES {
        let path = dir.join(file.path);
        // Another configuration is one too: `orla.yaml` would take its place.
        let taken = DEFAULT_FILES.iter().find(|name| {
            DEFAULT_FILES.contains(&file.path) && fs::symlink_metadata(dir.join(name)).is_ok()
        });
        let verdict = match taken {
            Some(name) => format!("kept   {}", dir.join(name).display()),
            None if write_new(&path, file.text, file.executable)? => {
                format!("wrote  {}", path.display())
            }
            None => format!("kept   {}", path.display()),
        };
        report.push_str(&verdict);
        report.push('\n');
    }
    let there = if dir == Path::new(".") { String::new() } else { format!("  cd {}\n", dir.display()) };
    render::out(&format!(
        "{report}\nNext:\n{there}  orla call hello name=Ada             call the tool, without a server\n  \
         orla                                 serve it on http://127.0.0.1:8080/mcp\n  \
         orla connect claude-code --write     let a client start it (orla connect --help lists more)\n"
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Source};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_examples_are_good_and_nothing_is_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("prompts")).unwrap();
        fs::write(dir.path().join("prompts/introduce.md"), "mine").unwrap();
        run(dir.path()).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("prompts/introduce.md")).unwrap(), "mine");
        let mode = fs::metadata(dir.path().join("tools/hello.sh")).unwrap().permissions().mode();
        assert_eq!(mode & 0o111, 0o111);
        let source = Source { file: Some(dir.path().join("orla.yaml")), ..Source::default() };
        assert!(source.load().is_ok());
    }

    #[test]
    fn the_example_configuration_shows_the_defaults() {
        let is_key = |key: &str| key.bytes().all(|b| b == b'_' || b.is_ascii_lowercase());
        let setting = |line: &'static str| {
            line.strip_prefix("# ")
                .filter(|rest| rest.split_once(": ").is_some_and(|(key, _)| is_key(key)))
        };
        let shown: String = include_str!("orla.yaml")
            .lines()
            .map(|line| format!("{}\n", setting(line).unwrap_or(line)))
            .collect();
        assert!(shown.contains("\nport: "), "{shown}");
        let config = Config::of(&shown).unwrap_or_else(|problems| panic!("{problems:?}"));
        let defaults = Config::default();
        assert_eq!((config.port, config.timeout), (defaults.port, defaults.timeout));
        assert_eq!(config.max_concurrency, defaults.max_concurrency);
        assert_eq!(config.log_level, defaults.log_level);
    }

    #[test]
    fn the_example_prompt_is_good() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("introduce.md"), include_str!("introduce.md")).unwrap();
        let loaded = crate::prompts::load(dir.path(), true);
        assert!(loaded.problems.is_empty(), "{:?}", loaded.problems);
        assert_eq!(loaded.prompts[0].tools[0].0, "hello");
    }

    #[test]
    fn another_configuration_is_left_in_charge() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("orla.json"), "{}").unwrap();
        run(dir.path()).unwrap();
        assert!(!dir.path().join("orla.yaml").exists());
    }
}
