//! `orla publish`: writes the bundle and the `server.json` of a tool, a folder or a project, and tags
//! its commit. `orla add` reads these files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use orla_packages::archive::{Archive, File, MAX_FILES, assemble, pack_without};
use orla_packages::bundle::{MANIFEST, MAX_MANIFEST};
use orla_packages::lock::PackageKind;
use orla_packages::publish::{Publication, github};
use orla_packages::sha256;
use orla_packages::store::read_bounded;
use orla_providers::capsule::packages::is_package;

use super::helper;
use crate::config::{Config, reason};
use crate::packages::content::{Content, PUBLISHED};
use crate::{Failure, cli, render};

/// The file with the description for a registry.
const SERVER: &str = "server.json";
/// The maximum number of files whose names are shown, because git ignores them.
const MAX_NAMED: usize = 20;
const IGNORED: &str = "git ignores it (--ignored packs it)";
/// The beginnings and the ends of the names of private files.
const PRIVATE: [&str; 7] = [".env", ".npmrc", ".netrc", ".pypirc", "orla.yaml", "orla.yml", "orla.lock"];
const PRIVATE_ENDS: [&str; 8] =
    [".env", ".pem", ".key", ".p12", ".pfx", "id_rsa", "id_ed25519", "orla.tokens.json"];

pub(super) fn publish(publish: &cli::Publish, config: &Config) -> Result<(), Failure> {
    let source = publish.path.clone().unwrap_or_else(|| config.tools_dir.clone());
    let failed = |why: String| Failure::failed(format!("{}: {why}", source.display()));
    let repository = Repository::around(&source);
    let ignored = match &repository {
        Some(repository) if !publish.ignored => repository.ignored().map_err(failed)?,
        _ => BTreeSet::new(),
    };
    let content = content_of(&source, &ignored).map_err(failed)?;
    let publication = described(publish, &source, &content, repository.as_ref()).map_err(failed)?;
    let file = publication.file();
    let bundle = content.bundle(&publication).map_err(failed)?;
    let server = publication.server_json(&sha256(&bundle)).map_err(Failure::failed)?;
    let server = serde_json::to_string_pretty(&server)
        .map_err(|error| Failure::failed(error.to_string()))?
        + "\n";
    let tag = format!("v{}", publication.version);
    let repository = repository.filter(|_| !publish.no_tag);
    let is_tagged = match &repository {
        Some(repository) => repository.is_tagged(&tag, content.names())?,
        None => true,
    };
    let output = publish.output.clone().unwrap_or_default();
    let written = [(output.join(&file), bundle.as_slice()), (output.join(SERVER), server.as_bytes())];
    for (path, text) in &written {
        if !publish.force && std::fs::read(path).is_ok_and(|there| there != *text) {
            return Err(Failure::failed(format!(
                "{} is there already, with other content: pass --force to replace it, or --output DIRECTORY",
                path.display()
            )));
        }
    }
    for name in content.names() {
        render::note(&format!("  {name}"));
    }
    for (name, why) in &content.left_out {
        render::note(&format!("  {name} is left out: {why}"));
    }
    if publish.dry_run {
        render::out(&server);
        render::note(&format!("{file} and {SERVER} would be written; nothing was"));
        return Ok(());
    }
    for (path, text) in &written {
        write(path, text)?;
    }
    if let Some(repository) = repository.filter(|_| !is_tagged) {
        repository.tag(&tag)?;
        render::note(&format!("tagged {tag}; `git push origin {tag}` publishes the tag"));
    }
    render::note(&format!(
        "wrote {file} and {SERVER}: upload the bundle to {}, then give {SERVER} to a registry (`mcp-publisher publish`)",
        publication.url
    ));
    Ok(())
}

/// A package to publish.
struct Published {
    files: Vec<File>,
    /// The version and the description that it has itself.
    version: Option<String>,
    description: String,
    /// Whether it brings the manifest of a bundle along.
    is_bundle: bool,
    /// The files that are not published, with the reasons.
    left_out: Vec<(String, &'static str)>,
}

impl Published {
    fn names(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(|file| file.name.as_str())
    }

    /// Returns the archive, with an additional manifest with which other programs start the package.
    fn bundle(&self, publication: &Publication) -> Result<Vec<u8>, String> {
        let mut files = self.files.clone();
        if !self.is_bundle {
            let text = serde_json::to_string_pretty(&publication.manifest(PUBLISHED));
            let content = text.map_err(|error| error.to_string())?.into_bytes();
            files.push(File { name: MANIFEST.to_owned(), is_executable: false, content });
            files.sort_by(|a, b| a.name.cmp(&b.name));
        }
        assemble(&files).map_err(|error| error.to_string())
    }
}

/// Reads a tool, a folder, or the tools of a project, without the files that are `ignored`.
fn content_of(source: &Path, ignored: &BTreeSet<String>) -> Result<Published, String> {
    let text = |error: std::io::Error| reason(&error);
    let mut left_out = Vec::new();
    let bytes = if source.is_dir() {
        let inner = std::fs::read_dir(source).map_err(text)?.filter_map(Result::ok);
        let inner = inner.map(|entry| entry.path()).find(|path| path.is_dir() && is_package(path));
        if let Some(inner) = inner.filter(|_| !is_package(source)) {
            return Err(format!(
                "{0} is a package: publish it by itself, `orla publish {0}`",
                inner.display()
            ));
        }
        let named = ignored.iter().take(MAX_NAMED).map(|name| (name.clone(), IGNORED));
        left_out.extend(named);
        if let Some(more) = ignored.len().checked_sub(MAX_NAMED + 1) {
            left_out.push((format!("{} more", more + 1), IGNORED));
        }
        // Of a repository in the folder, git gives the directory.
        let is_ignored = |name: &str| ignored.contains(name) || ignored.contains(&format!("{name}/"));
        pack_without(source, is_ignored).map_err(|error| error.to_string())?
    } else {
        let name = source.file_name().and_then(|name| name.to_str()).ok_or("it has no name")?;
        let content = read_bounded(source).map_err(text)?;
        let mut files = vec![File { name: name.to_owned(), is_executable: true, content }];
        // The file beside a tool that cannot have a header.
        let stem = Path::new(name).file_stem().and_then(|stem| stem.to_str()).unwrap_or(name);
        let beside = [name, stem].map(|name| format!("{name}.orla.yaml"));
        let beside = beside.iter().find_map(|name| {
            let content = read_bounded(&source.with_file_name(name)).ok()?;
            Some(File { name: name.clone(), is_executable: false, content })
        });
        files.extend(beside);
        assemble(&files).map_err(|error| error.to_string())?
    };
    let archive = Archive::read(&bytes).map_err(|error| error.to_string())?;
    // A manifest that an earlier publication left is made anew.
    let manifest = archive.file(MANIFEST, MAX_MANIFEST).map_err(|error| error.to_string())?;
    let content = Content::read(&archive, "tools")?;
    let is_bundle = content.kind == PackageKind::Bundle;
    let mut files = archive.contents().map_err(|error| error.to_string())?;
    files.retain(|file| {
        let why = match &*file.name {
            SERVER if is_server_json(&file.content) => "it describes a publication",
            name if name.ends_with(".mcpb") && !name.contains('/') => "it is a bundle itself",
            MANIFEST if !is_bundle && manifest.is_some() => return false,
            _ => return true,
        };
        left_out.push((file.name.clone(), why));
        false
    });
    let private = |file: &&File| {
        let name = file.name.rsplit('/').next().unwrap_or_default().to_lowercase();
        PRIVATE.iter().any(|start| name.starts_with(start))
            || PRIVATE_ENDS.iter().any(|end| name.ends_with(end))
    };
    if let Some(file) = files.iter().find(private) {
        return Err(format!(
            "{} looks private: move it elsewhere, so that it is not published",
            file.name
        ));
    }
    let max_files = MAX_FILES - usize::from(!is_bundle);
    if files.len() > max_files {
        return Err(format!("it has more than {max_files} files"));
    }
    // Executables have no version of their own.
    let version = (content.kind != PackageKind::Tools).then_some(content.version);
    Ok(Published { files, version, description: content.description, is_bundle, left_out })
}

/// Returns whether a file is a registry description, rather than a file of the package with the same
/// name.
fn is_server_json(content: &[u8]) -> bool {
    let json = serde_json::from_slice::<serde_json::Value>(content).unwrap_or_default();
    json["$schema"].as_str().is_some_and(|schema| schema.ends_with("/server.schema.json"))
}

/// Returns the registry description, from the command line, or else from the package and its repository.
fn described(
    publish: &cli::Publish,
    source: &Path,
    content: &Published,
    repository: Option<&Repository>,
) -> Result<Publication, String> {
    let remote = repository.and_then(|repository| repository.remote.as_deref());
    let on_github = remote.and_then(github);
    let stem = std::path::absolute(source).unwrap_or_else(|_| source.to_owned());
    let stem = stem.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let name = publish.name.clone();
    let name = name.or_else(|| on_github.map(|(owner, _)| format!("io.github.{owner}/{stem}")));
    let name = name.ok_or("it needs a name in the registry: pass --name io.github.owner/server")?;
    let version = match (&content.version, &publish.version) {
        (Some(own), Some(given)) if own != given => {
            return Err(format!("its manifest says version {own}, and --version {given}"));
        }
        (Some(version), _) | (None, Some(version)) => version.clone(),
        (None, None) => return Err("it has no version: pass --version 1.0.0".to_owned()),
    };
    let repository_url = on_github.map(|(owner, name)| format!("https://github.com/{owner}/{name}"));
    let released =
        repository_url.as_ref().map(|url| format!("{url}/releases/download/v{version}/{{file}}"));
    let url = publish.url.clone().or(released);
    let mut publication = Publication {
        description: publish.description.clone().unwrap_or_else(|| content.description.clone()),
        repository: publish.repository.clone().or(repository_url),
        url: url.ok_or("its bundle needs a place: pass --url https://…, where it will be")?,
        name,
        version,
    };
    publication.url = publication.url.replace("{file}", &publication.file());
    Ok(publication)
}

/// The git repository that contains the published package.
struct Repository {
    directory: PathBuf,
    /// The URL of `origin`.
    remote: Option<String>,
}

impl Repository {
    /// `None` if there is none, or no git.
    fn around(source: &Path) -> Option<Self> {
        let directory = if source.is_dir() { source } else { source.parent()? };
        // The parent of a bare name is empty.
        let directory = std::path::absolute(directory.join(".")).ok()?;
        let mut repository = Self { directory, remote: None };
        repository.git(&["rev-parse", "--git-dir"]).ok()?;
        repository.remote = repository.git(&["remote", "get-url", "origin"]).ok();
        Some(repository)
    }

    fn git(&self, arguments: &[&str]) -> Result<String, String> {
        let mut git = helper::program("git", &self.directory);
        let said = helper::output(git.args(arguments))?;
        Ok(String::from_utf8_lossy(&said).trim().to_owned())
    }

    /// Returns the files below its directory that git ignores. A repository in it is a directory, with a slash at the end.
    fn ignored(&self) -> Result<BTreeSet<String>, String> {
        self.list(&["--others", "--ignored", "--exclude-standard"])
    }

    /// Returns the files below its directory that `git ls-files` lists with these options.
    fn list(&self, options: &[&str]) -> Result<BTreeSet<String>, String> {
        let mut git = helper::program("git", &self.directory);
        git.args(["ls-files", "-z"]).args(options).args(["--", "."]);
        let listed = helper::output(&mut git)?;
        let names = String::from_utf8_lossy(&listed);
        Ok(names.split('\0').filter(|name| !name.is_empty()).map(str::to_owned).collect())
    }

    /// Returns whether the tag is already at this commit.
    ///
    /// # Errors
    ///
    /// Returns an error if the tag is at another commit, or if the published files are not in this
    /// commit.
    fn is_tagged<'n>(
        &self,
        tag: &str,
        mut names: impl Iterator<Item = &'n str>,
    ) -> Result<bool, Failure> {
        let known = self.list(&[]).map_err(Failure::failed)?;
        if let Some(name) = names.find(|name| !known.contains(*name)) {
            return Err(Failure::failed(format!(
                "{name} is not in the repository, and {tag} would not have it: commit it, or pass --no-tag"
            )));
        }
        let changed = self.git(&["status", "--porcelain", "--untracked-files=no", "--", "."]);
        if !changed.map_err(Failure::failed)?.is_empty() {
            return Err(Failure::failed(format!(
                "{} has changes that are not committed, and {tag} would not have them: commit them, or pass --no-tag",
                self.directory.display()
            )));
        }
        let Ok(tagged) =
            self.git(&["rev-parse", "--verify", "--quiet", &format!("refs/tags/{tag}^{{commit}}")])
        else {
            return Ok(false);
        };
        match self.git(&["rev-parse", "HEAD"]).map_err(Failure::failed)? == tagged {
            true => Ok(true),
            false => Err(Failure::failed(format!(
                "the tag {tag} is at another commit: choose another version, or pass --no-tag"
            ))),
        }
    }

    fn tag(&self, tag: &str) -> Result<(), Failure> {
        self.git(&["tag", tag]).map(drop).map_err(Failure::failed)
    }
}

/// Writes a file as a whole.
fn write(path: &Path, content: &[u8]) -> Result<(), Failure> {
    let failed =
        |error: std::io::Error| Failure::failed(format!("{}: {}", path.display(), reason(&error)));
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new("."));
    std::fs::create_dir_all(directory).map_err(failed)?;
    let mut half = tempfile::NamedTempFile::new_in(directory).map_err(failed)?;
    std::io::Write::write_all(&mut half, content).map_err(failed)?;
    half.persist(path).map_err(|error| failed(error.error))?;
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(path, mode).map_err(failed)
}
