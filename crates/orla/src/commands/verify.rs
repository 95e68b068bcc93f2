//! `orla verify`: checks whether the attestations of the configured capabilities still hold.

use std::collections::BTreeSet;

use orla_marketplace::Entry;
use orla_marketplace::attestation::{ContentSource, format_instant};
use serde_json::{Value, json};

use crate::app::App;
use crate::config::{Config, Source};
use crate::governance::{Rules, Verdict};
use crate::{Failure, cli, render};

pub(crate) fn run(verify: &cli::Verify, source: &Source) -> Result<(), Failure> {
    let mut config = super::load(source)?;
    let _log = super::log(&config);
    // Capabilities that are refused for their attestation are included.
    let required = std::mem::take(&mut config.governance.require_attestation);
    let rows = super::small_runtime()?.block_on(look(verify, &config))?;
    if verify.json {
        super::print_json(&Value::Array(rows.iter().map(Row::to_json).collect()))?;
    } else if rows.is_empty() {
        render::note("Nothing is served that could be attested.");
    } else {
        render::out(&table(&rows));
    }
    let is_wrong = |row: &Row| match row.verdict {
        Verdict::Broken(_) => true,
        Verdict::Missing => required,
        Verdict::Holds(_) | Verdict::BuiltIn => false,
    };
    match rows.iter().filter(|row| is_wrong(row)).count() {
        0 => Ok(()),
        wrong => {
            let counted = if wrong == 1 {
                "1 capability has".to_owned()
            } else {
                format!("{wrong} capabilities have")
            };
            Err(Failure::failed(format!("{counted} no valid attestation")))
        }
    }
}

async fn look(verify: &cli::Verify, config: &Config) -> Result<Vec<Row>, Failure> {
    let app = App::build(config)?;
    app.marketplace().prepare_listing().await;
    let rows = rows(verify, &app);
    app.end_providers().await;
    rows
}

fn rows(verify: &cli::Verify, app: &App) -> Result<Vec<Row>, Failure> {
    let (catalog, rules) = (app.marketplace().snapshot(), app.rules());
    if !verify.names.is_empty() {
        let row = |name: &String| match catalog.get(name) {
            Some(entry) => Ok(Row::of(entry, rules)),
            None => Err(Failure::failed(format!("{name} is not served"))),
        };
        return verify.names.iter().map(row).collect();
    }
    let all = catalog.entries().iter().map(|entry| Row::of(entry, rules));
    let rows: Vec<Row> = all.filter(|row| row.verdict != Verdict::BuiltIn).collect();
    let served: BTreeSet<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    for id in rules.attested().filter(|id| !served.contains(id)) {
        render::warning(&format!("{id} is attested, and not served"));
    }
    Ok(rows)
}

/// The line of one capability.
struct Row {
    id: String,
    verdict: Verdict,
    content_hash: String,
}

impl Row {
    fn of(entry: &Entry, rules: &Rules) -> Self {
        let id = entry.manifest.id.clone();
        let content_hash =
            entry.provenance().map(|provenance| provenance.content_hash).unwrap_or_default();
        let verdict = if entry.manifest.provider.content() == ContentSource::Program {
            Verdict::BuiltIn
        } else if let Some(attestation) = entry.attestation() {
            Verdict::Holds(attestation.clone())
        } else if let Some(reason) = rules.broken(&id) {
            Verdict::Broken(reason)
        } else {
            Verdict::Missing
        };
        Self { id, verdict, content_hash }
    }

    fn status(&self) -> &'static str {
        match self.verdict {
            Verdict::BuiltIn => "built-in",
            Verdict::Holds(_) => "verified",
            Verdict::Missing => "not attested",
            Verdict::Broken(_) => "broken",
        }
    }

    fn sentence(&self) -> String {
        match &self.verdict {
            Verdict::Holds(attestation) => {
                let until = attestation.expires_at.map(|at| format!(" until {}", format_instant(at)));
                format!("by {}{}", attestation.authority, until.unwrap_or_default())
            }
            Verdict::Broken(reason) => reason.clone(),
            Verdict::Missing | Verdict::BuiltIn => String::new(),
        }
    }

    fn to_json(&self) -> Value {
        let mut row = json!({"id": self.id, "status": self.status()});
        if !self.content_hash.is_empty() {
            row["content_hash"] = json!(self.content_hash);
        }
        match &self.verdict {
            Verdict::Holds(attestation) => {
                row["authority"] = json!(attestation.authority);
                row["created_at"] = json!(format_instant(attestation.created_at));
                if let Some(end) = attestation.expires_at {
                    row["expires_at"] = json!(format_instant(end));
                }
            }
            Verdict::Broken(reason) => row["reason"] = json!(reason),
            Verdict::Missing | Verdict::BuiltIn => {}
        }
        row
    }
}

fn table(rows: &[Row]) -> String {
    let columns = [
        ("ID", rows.iter().map(|row| row.id.clone()).collect()),
        ("ATTESTATION", rows.iter().map(|row| row.status().to_owned()).collect()),
        ("", rows.iter().map(Row::sentence).collect()),
    ];
    super::table_of(&columns, 1000)
}
