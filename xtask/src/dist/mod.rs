//! Everything that orla is installed from without a Rust toolchain.
//!
//! Building and packing are apart. [`build`] makes a program for each target from a checkout of the commit; packing
//! takes programs, from there or from anywhere else, and is done in memory by pure functions: [`archive`], [`debian`],
//! [`npm`], [`wheel`] and the rest give a name and bytes. [`check`] installs each of them where nothing else is, and runs it.
//!
//! # Invariants
//!
//! - The bytes of an artefact depend on the commit, the toolchain and the programs, and on nothing else of this machine.
//! - A program is packed for a target only if its header says that it fits (`elf`).

use std::fs;
use std::path::{Path, PathBuf};

use crate::Outcome;
use crate::tally::Tally;

mod archive;
mod build;
mod check;
mod components;
mod debian;
mod elf;
mod files;
mod npm;
mod provenance;
mod release;
mod sbom;
mod tree;
mod wheel;

use components::Components;
use provenance::Origin;
use release::{Artefact, Commit, Program, Release, Target};

/// What is built in beside the default features.
const FEATURES: &str = "wasm";

/// What is asked for.
#[derive(Default)]
struct Wish {
    targets: Vec<&'static Target>,
    /// Programs that are there already.
    binaries: Vec<(&'static Target, PathBuf)>,
    /// Features that those were built with, beside the default ones.
    features: String,
    /// The profile of cargo to build with.
    profile: String,
    is_quick: bool,
    is_twice: bool,
    is_checked: bool,
}

impl Wish {
    fn of(arguments: &[String]) -> Result<Self, String> {
        let mut wish = Self { profile: "dist".to_owned(), ..Self::default() };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "--target" => wish.targets.push(Target::of(value()?)?),
                "--binary" => {
                    let given = value()?;
                    let (triple, path) = given.split_once('=').ok_or("--binary needs TARGET=FILE")?;
                    wish.binaries.push((Target::of(triple)?, path.into()));
                }
                "--features" => value()?.clone_into(&mut wish.features),
                "--profile" => value()?.clone_into(&mut wish.profile),
                "--quick" => wish.is_quick = true,
                "--twice" => wish.is_twice = true,
                "--check" => wish.is_checked = true,
                other => return Err(format!("dist: `{other}` is not known")),
            }
        }
        if wish.is_quick {
            let host = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
            wish.binaries = vec![(Target::of(&host)?, crate::server::binary()?)];
            wish.is_checked = true;
        }
        let architectures: Vec<_> = if wish.binaries.is_empty() {
            wish.targets.iter().map(|target| target.architecture).collect()
        } else {
            wish.binaries.iter().map(|(target, _)| target.architecture).collect()
        };
        let is_twice = |(at, of): (usize, &&str)| architectures[..at].contains(of);
        if let Some(again) = architectures.iter().enumerate().find(|of| is_twice((of.0, of.1))) {
            return Err(format!("dist: two programs for {} would be packed under one name", again.1));
        }
        Ok(wish)
    }

    /// Reads the programs that are there already.
    fn programs(&self) -> Result<Vec<Program>, String> {
        self.binaries.iter().map(|(target, path)| Program::read(target, path)).collect()
    }
}

/// Builds what is asked for, and writes the artefacts below `target/dist/VERSION`.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    let wish = Wish::of(arguments)?;
    let scratch = crate::target("dist/scratch")?;
    let commit = Commit::checked_out()?;
    let mut tally = Tally::default();

    let (source, programs, features, origin) = if wish.binaries.is_empty() {
        let targets = if wish.targets.is_empty() { build::possible()? } else { wish.targets.clone() };
        let built = build::build(&commit, &targets, &wish.profile, wish.is_twice, &mut tally)?;
        (
            built.source,
            built.programs,
            FEATURES,
            Origin::Built { compiler: built.compiler, profile: wish.profile },
        )
    } else {
        (crate::root(), wish.programs()?, wish.features.as_str(), Origin::Given)
    };

    let triples: Vec<_> = programs.iter().map(|program| program.target.triple).collect();
    let components = Components::read(&source, &triples, features)?;
    let third_party = components.licences()?;
    let release = Release::of(commit, source, programs, third_party, &scratch)?;
    let artefacts = pack(&release, &components, &origin)?;
    if wish.is_checked {
        let again = pack(&release, &components, &origin)?;
        tally.check("packed twice, all bytes are the same", same(&artefacts, &again));
    }

    let folder = crate::target("dist")?.join(&release.version);
    // What an earlier run left is not part of this release.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).map_err(|err| format!("{}: {err}", folder.display()))?;
    for artefact in &artefacts {
        let path = folder.join(&artefact.name);
        fs::write(&path, &artefact.bytes).map_err(|err| format!("{}: {err}", path.display()))?;
        println!("{}  {:>10}  {}", artefact.sum(), artefact.bytes.len(), artefact.name);
    }
    println!("in {}", folder.display());

    if wish.is_checked {
        check::run(&release, &artefacts, &folder, &scratch, &mut tally)?;
    }
    if wish.is_checked || wish.is_twice { Ok(tally.close()) } else { Ok(true) }
}

/// Packs the release binary as a Debian package, and tries its service on a machine of its own.
pub(crate) fn machine() -> Outcome {
    let wish = Wish::of(&["--quick".to_owned()])?;
    let scratch = crate::target("dist/scratch")?;
    let programs = wish.programs()?;
    let triples: Vec<_> = programs.iter().map(|program| program.target.triple).collect();
    let third_party = Components::read(&crate::root(), &triples, &wish.features)?.licences()?;
    let release = Release::of(Commit::checked_out()?, crate::root(), programs, third_party, &scratch)?;
    let mut tally = Tally::default();
    for program in &release.programs {
        let package = debian::pack(&release, program)?;
        check::machine::check(&package, program, &scratch, &mut tally)?;
    }
    Ok(tally.close())
}

/// Returns all artefacts, in the order of their names but for the sums and the provenance, which name
/// the others and come last.
fn pack(release: &Release, components: &Components, origin: &Origin) -> Result<Vec<Artefact>, String> {
    let mut artefacts = Vec::new();
    for program in &release.programs {
        artefacts.push(archive::pack(release, program)?);
        artefacts.push(debian::pack(release, program)?);
        artefacts.push(wheel::pack(release, program)?);
        artefacts.push(sbom::pack(release, program, components)?);
    }
    artefacts.extend(npm::pack(release)?);
    artefacts.extend(files::pack(release, &artefacts)?);
    artefacts.sort_by(|left, right| left.name.cmp(&right.name));
    artefacts.push(provenance::pack(release, origin, &artefacts)?);
    artefacts.push(provenance::sums(&artefacts));
    Ok(artefacts)
}

/// Names the first artefact that differs.
fn same(one: &[Artefact], other: &[Artefact]) -> Result<(), String> {
    if one.len() != other.len() {
        return Err(format!("{} artefacts, and then {}", one.len(), other.len()));
    }
    match one.iter().zip(other).find(|(one, other)| one != other) {
        Some((one, _)) => Err(format!("{} differs", one.name)),
        None => Ok(()),
    }
}

/// Copies the files of a commit into a folder.
fn export(commit: &str, folder: &Path) -> Result<(), String> {
    let _ = fs::remove_dir_all(folder);
    fs::create_dir_all(folder).map_err(|err| format!("{}: {err}", folder.display()))?;
    let archive = folder.with_extension("tar");
    release::succeed(
        std::process::Command::new("git")
            .args(["archive", "--format=tar", "--output"])
            .arg(&archive)
            .arg(commit)
            .current_dir(crate::root()),
    )?;
    release::succeed(std::process::Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(folder))?;
    fs::remove_file(&archive).map_err(|err| format!("{}: {err}", archive.display()))
}
