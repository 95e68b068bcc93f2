//! `SHA256SUMS`, and `provenance.json`: from what, and by which command, the artefacts were made.
//!
//! The statement is that of in-toto with the predicate of SLSA. It is not signed: whoever publishes signs it.

use serde_json::{Value, json};

use super::release::{self, Artefact, Release, text};

/// Where the programs come from.
pub(super) enum Origin {
    /// They were built from the commit.
    Built {
        /// What `rustc --version` said, and the compiler of C.
        compiler: Vec<String>,
        profile: String,
    },
    /// They were given, and nothing is known about them.
    Given,
}

pub(super) fn pack(
    release: &Release,
    origin: &Origin,
    artefacts: &[Artefact],
) -> Result<Artefact, String> {
    let subject: Vec<Value> = artefacts
        .iter()
        .map(|artefact| json!({ "name": artefact.name, "digest": { "sha256": artefact.sum() } }))
        .collect();
    let targets: Vec<_> = release.programs.iter().map(|program| program.target.triple).collect();
    let source = json!({
        "uri": format!("git+{}@{}", release.repository, release.commit),
        "digest": { "gitCommit": release.commit },
    });
    let (kind, parameters, mut from) = match origin {
        Origin::Built { compiler, profile } => {
            let lock = text(&release.source.join("Cargo.lock"))?;
            let mut from = vec![
                json!({ "uri": "Cargo.lock", "digest": { "sha256": release::sum(lock.as_bytes()) } }),
            ];
            from.extend(compiler.iter().map(|name| json!({ "name": name })));
            let parameters =
                json!({ "command": "cargo xtask dist", "targets": targets, "profile": profile });
            ("build", parameters, from)
        }
        Origin::Given => {
            let given = release.programs.iter().map(|program| {
                json!({ "name": program.target.triple, "digest": { "sha256": release::sum(&program.bytes) } })
            });
            (
                "pack",
                json!({ "command": "cargo xtask dist --binary", "targets": targets }),
                given.collect(),
            )
        }
    };
    from.insert(0, source);
    let statement = json!({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subject,
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": format!("{}/blob/main/docs/install.md#{kind}", release.repository),
                "externalParameters": parameters,
                "resolvedDependencies": from,
            },
            "runDetails": { "builder": { "id": format!("{}/blob/main/xtask", release.repository) } },
        },
    });
    Ok(Artefact { name: "provenance.json".to_owned(), bytes: release::json(&statement).into_bytes() })
}

/// Returns the checksums of all other artefacts, as `sha256sum --check` reads them.
pub(super) fn sums(artefacts: &[Artefact]) -> Artefact {
    let lines: Vec<String> =
        artefacts.iter().map(|artefact| format!("{}  {}\n", artefact.sum(), artefact.name)).collect();
    Artefact { name: "SHA256SUMS".to_owned(), bytes: lines.concat().into_bytes() }
}
