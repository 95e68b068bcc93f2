//! The command line of packages.

use std::path::PathBuf;

use clap::Args;

use super::Settings;

pub(super) const ADD: &str = "\
Sources:
  ./greet                     a folder with tool.yaml, or with executable files
  mcpb:FILE, mcpb:https://…   an .mcpb bundle
  git:URL#REVISION            a folder or a bundle in a git repository; a path is a URL, too
  npm:NAME, pypi:NAME         an MCP server of npm or PyPI; with @VERSION, that version
  cargo:NAME                  an MCP server of a registry of crates, built here; with @VERSION, that version
  https://…, ./openapi.yaml   the operations of an OpenAPI document (.json, .yaml)
  oci:HOST/NAME:TAG           an .mcpb bundle or a folder of tools in an OCI registry; @sha256:… is exact
  io.github.owner/server      a server of the registry; with @VERSION, that version

The command first shows the package, the programs that it runs and the permissions that it wants. orla.lock is for \
version control; `orla sync` installs the packages in it.

Examples:
  orla add ./greet
  orla add mcpb:weather.mcpb --yes --allow net:api.example.com
  orla add npm:@modelcontextprotocol/server-filesystem --allow fs:write:data -- ./data";

pub(super) const PUBLISH: &str = "\
Examples:
  orla publish tools/greet --dry-run
  orla publish greet.sh --name io.github.owner/greet --version 1.0.0 --description 'Greets.' --url https://example.com/greet.mcpb

`orla add` and every program that knows .mcpb bundles can install the bundle; clients other than orla need orla in PATH to run it.";

#[derive(Args, Clone, Debug)]
pub(crate) struct Add {
    /// Where it comes from
    pub(crate) source: String,
    /// Its name here [default: the one that it has itself]
    #[arg(long)]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) from: From,
    #[command(flatten)]
    pub(crate) consent: Consent,
    #[command(flatten)]
    pub(crate) settings: Settings,
    /// Arguments for its program; a path that begins with ./ or ../ is relative to the project
    #[arg(last = true, value_name = "ARGUMENT")]
    pub(crate) arguments: Vec<String>,
}

/// Where names are looked up.
#[derive(Args, Clone, Debug)]
pub(crate) struct From {
    /// The registry in which names are looked up [default: that of the lock, or the official one]
    #[arg(long, value_name = "URL")]
    pub(crate) registry: Option<String>,
}

/// What a person agrees to beforehand.
#[derive(Args, Clone, Debug)]
pub(crate) struct Consent {
    /// Grant a permission, such as net:api.example.com; may be repeated
    #[arg(long, value_name = "PERMISSION")]
    pub(crate) allow: Vec<String>,
    /// Agree without being asked; grants what --allow names, and no more
    #[arg(long)]
    pub(crate) yes: bool,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Sync {
    /// Use only the cache; a missing archive is an error
    #[arg(long)]
    pub(crate) offline: bool,
    /// Give archives of the lock the settings of their sources without asking
    #[arg(long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) settings: Settings,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Publish {
    /// A tool, a folder with tool.yaml, of executables or of a bundle [default: the tools directory]
    pub(crate) path: Option<PathBuf>,
    /// Its name in the registry [default: io.github.OWNER/NAME, from the repository]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Its version [default: that of its manifest]
    #[arg(long)]
    pub(crate) version: Option<String>,
    /// What it does, in up to 100 characters [default: that of its manifest]
    #[arg(long)]
    pub(crate) description: Option<String>,
    /// Where the bundle will be [default: the release of that version on GitHub]
    #[arg(long)]
    pub(crate) url: Option<String>,
    /// Where its source code is [default: the repository on GitHub]
    #[arg(long, value_name = "URL")]
    pub(crate) repository: Option<String>,
    /// The directory for the bundle and server.json [default: the current one]
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) output: Option<PathBuf>,
    /// Make no git tag
    #[arg(long)]
    pub(crate) no_tag: bool,
    /// Pack the files that git ignores, too
    #[arg(long)]
    pub(crate) ignored: bool,
    /// Replace existing files that differ
    #[arg(long)]
    pub(crate) force: bool,
    /// Print server.json, and write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) settings: Settings,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Update {
    /// The package; all of them if absent
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) from: From,
    #[command(flatten)]
    pub(crate) consent: Consent,
    #[command(flatten)]
    pub(crate) settings: Settings,
}
