//! Programs of a registry of crates: the sparse index, and the source of a crate as an archive, which the
//! installation builds. No I/O except [`Fetch`].
//!
//! The archive has the files of the crate below [`SOURCE`], and the manifest of a bundle that starts the
//! program in [`PROGRAMS`]. Its `Cargo.lock` has the digests of everything that is built into the program.

use semver::Version;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::archive::{Archive, File, MAX_BYTES, read_tgz};
use crate::bundle::MANIFEST;
use crate::environment::{Launch, Requirement, Start, finish, manifest};
use crate::{Fetch, FetchError, sha256};

/// The index of the public registry.
const OFFICIAL: &str = "https://index.crates.io/";
/// How `Cargo.lock` names the public registry.
const OFFICIAL_SOURCES: [&str; 2] =
    ["registry+https://github.com/rust-lang/crates.io-index", "sparse+https://index.crates.io/"];
/// The maximum size of the description of a crate, in bytes.
const MAX_ANSWER: usize = 8 << 20;
/// The maximum length of a name.
const MAX_NAME: usize = 64;
/// The directory of the source in the archive.
pub const SOURCE: &str = "crate";
/// The directory of the built programs in the package.
pub const PROGRAMS: &str = "bin";

/// The sparse index of a registry.
pub struct Index<'a> {
    url: String,
    fetch: &'a dyn Fetch,
}

#[derive(Deserialize)]
struct Configuration {
    dl: String,
}

/// One version of a crate.
#[derive(Deserialize)]
struct Release {
    name: String,
    vers: String,
    cksum: String,
    #[serde(default)]
    yanked: bool,
}

#[derive(Deserialize)]
struct CargoToml {
    package: Package,
    #[serde(default)]
    bin: Vec<Binary>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    #[serde(default)]
    description: String,
    #[serde(default)]
    authors: Vec<String>,
    #[serde(default = "yes")]
    autobins: bool,
}

#[derive(Deserialize)]
struct Binary {
    name: String,
}

#[derive(Deserialize)]
struct CargoLock {
    #[serde(default)]
    package: Vec<Locked>,
}

#[derive(Deserialize)]
struct Locked {
    name: String,
    source: Option<String>,
}

fn yes() -> bool {
    true
}

impl<'a> Index<'a> {
    /// Returns the index that cargo's variables name (`CARGO_REGISTRY_DEFAULT` and
    /// `CARGO_REGISTRIES_NAME_INDEX`), or that of the public registry.
    ///
    /// # Errors
    /// The variables name no sparse index.
    pub fn of_cargo(
        variable: impl Fn(&str) -> Option<String>,
        fetch: &'a dyn Fetch,
    ) -> Result<Self, String> {
        let named = variable("CARGO_REGISTRY_DEFAULT").filter(|name| name != "crates-io");
        let Some(named) = named else { return Ok(Self { url: OFFICIAL.to_owned(), fetch }) };
        let variable_of = format!("CARGO_REGISTRIES_{}_INDEX", named.to_uppercase().replace('-', "_"));
        let url = variable(&variable_of);
        let url = url.as_deref().and_then(|url| url.strip_prefix("sparse+")).ok_or_else(|| {
            format!(
                "CARGO_REGISTRY_DEFAULT is {named}: set {variable_of} to its index, sparse+https://…"
            )
        })?;
        Ok(Self { url: format!("{}/", url.trim_end_matches('/')), fetch })
    }

    /// Returns the version that is installed without a choice, or the wanted one.
    ///
    /// # Errors
    /// There is none, or the index does not answer.
    pub async fn newest(&self, name: &str, version: Option<&str>) -> Result<String, String> {
        self.release(name, version).await.map(|release| release.vers)
    }

    /// Returns the archive of a crate, and what the lock requires for it. `locked` is the requirement of the
    /// lock, if there is one.
    ///
    /// # Errors
    /// It cannot be fetched, has another digest, or is not a program.
    pub async fn archive(
        &self,
        name: &str,
        version: Option<&str>,
        locked: Option<Requirement>,
        launch: &Launch,
    ) -> Result<(Vec<u8>, Requirement), String> {
        let wanted = match locked {
            Some(locked) => locked,
            None => {
                let release = self.release(name, version).await?;
                let text = format!("{}@{} {}", release.name, release.vers, release.cksum);
                Requirement::parse(&text)
                    .ok_or_else(|| format!("the index says what cannot be locked: {text}"))?
            }
        };
        let bytes = self.get(&format!("{}config.json", self.url)).await;
        let bytes = bytes.map_err(|error| error.to_string())?;
        let configuration: Configuration = serde_json::from_slice(&bytes)
            .map_err(|error| format!("the config.json of the index {}: {error}", self.url))?;
        let url = download(&configuration.dl, &wanted);
        let max = usize::try_from(MAX_BYTES).unwrap_or(usize::MAX);
        let bytes =
            self.fetch.get(&url, Some(&self.url), max).await.map_err(|error| error.to_string())?;
        if !wanted.is_met_by(&bytes) {
            return Err(format!(
                "{} {} has the SHA-256 {}, and not {}: it is not installed",
                wanted.name,
                wanted.version,
                sha256(&bytes),
                wanted.digest
            ));
        }
        Ok((self.packed(&wanted, &bytes, launch)?, wanted))
    }

    /// Checks that an archive has nothing else than what [`archive`](Self::archive) returns.
    ///
    /// # Errors
    /// It has other files, or needs what is not of a registry of crates.
    pub fn check_packed(&self, archive: &Archive<'_>) -> Result<(), String> {
        let is_packed = |name: &&str| match name.strip_prefix(SOURCE) {
            Some(below) => below.starts_with('/') && !below.starts_with("/.cargo/"),
            None => *name == MANIFEST,
        };
        if let Some(name) = archive.names().find(|name| !is_packed(name)) {
            return Err(format!("its archive has the file {name}, so it is not that of a crate"));
        }
        let text = |file: &str| {
            let text = archive.file(&format!("{SOURCE}/{file}"), MAX_ANSWER);
            text.map_err(|error| error.to_string())
        };
        self.manifest(text).map(|_| ())
    }

    async fn get(&self, url: &str) -> Result<Vec<u8>, FetchError> {
        self.fetch.get(url, None, MAX_ANSWER).await
    }

    async fn release(&self, name: &str, version: Option<&str>) -> Result<Release, String> {
        let answer = match self.get(&format!("{}{}", self.url, place(name))).await {
            Ok(answer) => answer,
            Err(FetchError::Missing(_)) => {
                return Err(format!("the index {} has no crate of this name", self.url));
            }
            Err(error) => return Err(error.to_string()),
        };
        let answer = String::from_utf8_lossy(&answer);
        // A release of a newer format does not hide the others.
        let all = answer.lines().filter_map(|line| serde_json::from_str::<Release>(line).ok());
        let mut all: Vec<(Version, Release)> = all
            .filter(|release| release.name == name)
            .filter_map(|release| Some((Version::parse(&release.vers).ok()?, release)))
            .collect();
        let Some(version) = version else {
            all.retain(|(version, release)| version.pre.is_empty() && !release.yanked);
            let newest = all.into_iter().max_by(|(a, _), (b, _)| a.cmp(b));
            return newest.map(|(_, release)| release).ok_or_else(|| {
                format!("it has no usable version: choose a pre-release with cargo:{name}@VERSION")
            });
        };
        match all.into_iter().find(|(_, release)| release.vers == version) {
            Some((_, release)) if release.yanked => {
                Err(format!("its authors withdrew {version} (yanked): choose another version"))
            }
            Some((_, release)) => Ok(release),
            None => Err(format!("the index {} has no version {version} of it", self.url)),
        }
    }

    /// Returns the archive that orla makes of a crate.
    fn packed(&self, wanted: &Requirement, bytes: &[u8], launch: &Launch) -> Result<Vec<u8>, String> {
        let Requirement { name, version, .. } = wanted;
        let top = format!("{name}-{version}/");
        let files = read_tgz(bytes).map_err(|error| error.to_string())?;
        let files: Vec<File> = files
            .into_iter()
            .filter_map(|file| Some(File { name: file.name.strip_prefix(&top)?.to_owned(), ..file }))
            // Cargo reads the settings of a crate only from the user.
            .filter(|file| !file.name.starts_with(".cargo/"))
            .collect();
        let crate_toml = self.manifest(|file| {
            let found = files.iter().find(|one| one.name == file);
            Ok(found.map(|found| found.content.clone()))
        })?;
        if crate_toml.package.name != *name {
            return Err(format!("its Cargo.toml is that of {}", crate_toml.package.name));
        }
        let program = crate_toml.program(name, &files)?;
        let start = Start {
            kind: "binary",
            command: &format!("${{__dirname}}/{PROGRAMS}/{program}"),
            args: Vec::new(),
            env: Vec::new(),
        };
        let package = &crate_toml.package;
        let author = package.authors.first().map(String::as_str).unwrap_or_default();
        let manifest = manifest(&start, launch, [name, version, &package.description, author]);
        let below = |file: File| File { name: format!("{SOURCE}/{}", file.name), ..file };
        finish(files.into_iter().map(below).collect(), &manifest)
    }

    /// Returns the manifest of a crate, of which `file` returns the files.
    ///
    /// # Errors
    /// It cannot be read, or something that is built into the crate comes neither from this registry nor from
    /// the public one.
    fn manifest(
        &self,
        file: impl Fn(&str) -> Result<Option<Vec<u8>>, String>,
    ) -> Result<CargoToml, String> {
        let lock = file("Cargo.lock")?.ok_or(
            "it has no Cargo.lock, which names what is built into it: ask its authors to publish one",
        )?;
        let lock: CargoLock = parse("Cargo.lock", &lock)?;
        let crate_toml = file("Cargo.toml")?.ok_or("it has no Cargo.toml")?;
        let crate_toml: CargoToml = parse("Cargo.toml", &crate_toml)?;
        let here = format!("sparse+{}", self.url);
        let is_known = |locked: &&Locked| match &locked.source {
            Some(source) => *source == here || OFFICIAL_SOURCES.contains(&&**source),
            None => locked.name == crate_toml.package.name,
        };
        match lock.package.iter().find(|locked| !is_known(locked)) {
            Some(Locked { name, source }) => {
                let source = source.as_deref().unwrap_or("a path");
                Err(format!("it needs {name} from {source}, which is not a registry of crates"))
            }
            None => Ok(crate_toml),
        }
    }
}

/// Returns the value of a TOML file.
fn parse<T: DeserializeOwned>(name: &str, content: &[u8]) -> Result<T, String> {
    let text = std::str::from_utf8(content).map_err(|_| format!("{name}: it is not UTF-8"))?;
    toml::from_str(text).map_err(|error| format!("{name}: {}", error.message()))
}

impl CargoToml {
    /// Returns the program of the crate: the one of its name, or the only one.
    fn program(&self, name: &str, files: &[File]) -> Result<String, String> {
        let mut all: Vec<&str> = self.bin.iter().map(|bin| bin.name.as_str()).collect();
        if self.package.autobins {
            all.extend(files.iter().filter_map(|file| match file.name.strip_prefix("src/")? {
                "main.rs" => Some(name),
                file => {
                    let file = file.strip_prefix("bin/")?;
                    let only = file.strip_suffix("/main.rs").or_else(|| file.strip_suffix(".rs"))?;
                    (!only.contains('/')).then_some(only)
                }
            }));
        }
        all.sort_unstable();
        all.dedup();
        let program = match *all {
            [] => return Err("it is not a program: it is a library without a binary".to_owned()),
            [only] => only,
            _ if all.contains(&name) => name,
            _ => {
                let all = all.join(", ");
                return Err(format!("it has several programs, and none of its name: {all}"));
            }
        };
        match is_name(program) {
            true => Ok(program.to_owned()),
            false => Err(format!("{program:?} is not the name of a program")),
        }
    }
}

/// Returns whether a text can be the name of a crate, or of one of its programs.
pub(crate) fn is_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    let is_word = text.bytes().all(fits) && text.len() <= MAX_NAME;
    is_word && text.starts_with(|first: char| first.is_ascii_alphabetic())
}

/// Returns the directories above the description of a crate in an index, for a name as it is given.
fn prefix(name: &str) -> String {
    match name.len() {
        1 | 2 => name.len().to_string(),
        3 => format!("3/{}", &name[..1]),
        _ => format!("{}/{}", &name[..2], &name[2..4]),
    }
}

/// Returns where an index describes a crate.
fn place(name: &str) -> String {
    let name = name.to_ascii_lowercase();
    format!("{}/{name}", prefix(&name))
}

/// Returns the URL of a crate: cargo's markers in the template are replaced, or the usual path is appended.
fn download(template: &str, wanted: &Requirement) -> String {
    let Requirement { name, version, digest, .. } = wanted;
    let markers = [
        ("{crate}", name.clone()),
        ("{version}", version.clone()),
        ("{prefix}", prefix(name)),
        ("{lowerprefix}", prefix(&name.to_ascii_lowercase())),
        ("{sha256-checksum}", digest.clone()),
    ];
    match markers.iter().any(|(marker, _)| template.contains(marker)) {
        true => {
            markers.iter().fold(template.to_owned(), |url, (marker, text)| url.replace(marker, text))
        }
        false => format!("{template}/{name}/{version}/download"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Wanted;
    use async_trait::async_trait;

    struct Says(&'static str);

    #[async_trait]
    impl Fetch for Says {
        async fn get_with(&self, _: Wanted<'_>) -> Result<Vec<u8>, FetchError> {
            Ok(self.0.as_bytes().to_vec())
        }
    }

    fn index(says: &'static Says) -> Index<'static> {
        Index { url: "https://index.example/".to_owned(), fetch: says }
    }

    #[tokio::test]
    async fn the_newest_version_is_none_that_was_withdrawn_or_is_not_finished() {
        static SAYS: Says = Says(
            r#"{"name": "a", "vers": "1.9.0", "cksum": "00"}
{"name": "a", "vers": "1.10.0", "cksum": "00", "deps": []}
{"name": "a", "vers": "2.0.0", "cksum": "00", "yanked": true}
{"name": "a", "vers": "3.0.0-rc.1", "cksum": "00"}
{"name": "A", "vers": "4.0.0", "cksum": "00"}
{"of": "a newer format"}"#,
        );
        let index = index(&SAYS);
        assert_eq!(index.newest("a", None).await.unwrap(), "1.10.0");
        assert_eq!(index.newest("a", Some("3.0.0-rc.1")).await.unwrap(), "3.0.0-rc.1");
        assert!(index.newest("a", Some("2.0.0")).await.unwrap_err().contains("yanked"));
        assert!(index.newest("a", Some("1.0.0")).await.unwrap_err().contains("no version 1.0.0"));
        assert!(index.newest("b", None).await.unwrap_err().contains("no usable version"));
        // No digest could be locked.
        let archive = index.archive("a", None, None, &Launch::default()).await;
        assert!(archive.unwrap_err().contains("cannot be locked"));
    }

    #[test]
    fn the_index_is_that_of_cargos_variables() {
        let of = |variables: &'static [(&str, &str)]| {
            let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
            let value = |name: &str| find(name).map(|(_, value)| (*value).to_owned());
            Index::of_cargo(value, &Says("")).map(|index| index.url)
        };
        assert_eq!(of(&[]).unwrap(), OFFICIAL);
        let own = ("CARGO_REGISTRIES_MY_OWN_INDEX", "sparse+https://a.example/i");
        let variables: &[_] = &[("CARGO_REGISTRY_DEFAULT", "my-own"), own];
        assert_eq!(of(Box::leak(variables.into())).unwrap(), "https://a.example/i/");
        let error = of(&[("CARGO_REGISTRY_DEFAULT", "my-own")]).unwrap_err();
        assert!(error.contains("CARGO_REGISTRIES_MY_OWN_INDEX"), "{error}");
    }

    #[test]
    fn a_crate_has_its_place_and_its_url() {
        for (name, at) in
            [("a", "1/a"), ("Ab", "2/ab"), ("abc", "3/a/abc"), ("Weather-mcp", "we/at/weather-mcp")]
        {
            assert_eq!(place(name), at);
        }
        let digest = "ab".repeat(32);
        let wanted = Requirement::parse(&format!("Abcde@1.0.0 {digest}")).unwrap();
        assert_eq!(download("https://d.example", &wanted), "https://d.example/Abcde/1.0.0/download");
        let template = "https://d.example/{lowerprefix}/{prefix}/{crate}-{version}.{sha256-checksum}";
        let url = format!("https://d.example/ab/cd/Ab/cd/Abcde-1.0.0.{digest}");
        assert_eq!(download(template, &wanted), url);
    }

    #[test]
    fn the_program_of_a_crate_has_its_name_or_is_the_only_one() {
        let program = |toml: &str, files: &[&str]| {
            let file = |name: &&str| File {
                name: (*name).to_owned(),
                is_executable: false,
                content: Vec::new(),
            };
            let files: Vec<File> = files.iter().map(file).collect();
            toml::from_str::<CargoToml>(toml).unwrap().program("a", &files)
        };
        let package = "[package]\nname = 'a'\n";
        let bin = |name: &str| format!("[[bin]]\nname = '{name}'\n");
        assert_eq!(program(package, &["src/main.rs", "src/bin/b.rs"]).unwrap(), "a");
        assert_eq!(program(package, &["src/lib.rs", "src/bin/b/main.rs"]).unwrap(), "b");
        assert_eq!(program(&format!("{package}{}", bin("c")), &["src/lib.rs"]).unwrap(), "c");
        let explicit = format!("{package}autobins = false\n{}", bin("c"));
        assert_eq!(program(&explicit, &["src/bin/b.rs"]).unwrap(), "c");
        let several = program(&format!("{package}{}{}", bin("b"), bin("c")), &[]).unwrap_err();
        assert!(several.contains("b, c"), "{several}");
        assert!(program(package, &["src/lib.rs"]).unwrap_err().contains("without a binary"));
        assert!(program(&format!("{package}{}", bin("../c")), &[]).is_err());
    }

    #[test]
    fn everything_that_is_built_is_of_a_registry_of_crates() {
        let check = |lock: &str| {
            static SAYS: Says = Says("");
            let file = |name: &str| match name {
                "Cargo.lock" => Ok(Some(lock.as_bytes().to_vec())),
                _ => Ok(Some(b"[package]\nname = 'a'".to_vec())),
            };
            index(&SAYS).manifest(file).map(|_| ())
        };
        let package = |name: &str, source: &str| format!("[[package]]\nname = '{name}'\n{source}\n");
        let of = |source: &str| package("b", &format!("source = '{source}'"));
        for good in OFFICIAL_SOURCES.into_iter().chain(["sparse+https://index.example/"]) {
            assert_eq!(check(&format!("{}{}", package("a", ""), of(good))), Ok(()), "{good}");
        }
        for bad in ["git+https://b.example/b#0", "sparse+https://other.example/", "path+file:///b"] {
            assert!(check(&of(bad)).unwrap_err().contains("not a registry"), "{bad}");
        }
        assert!(check(&package("b", "")).unwrap_err().contains("a path"));
    }
}
