//! Attestations and the audit log.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use orla_marketplace::attestation::PublicKey;

use super::Settings;

#[derive(Args, Clone, Debug)]
pub(crate) struct Attest {
    /// Names or ids of capabilities; everything that is served if there are none
    pub(crate) names: Vec<String>,
    /// The secret key to sign with
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// The authority of the key [default: its name in trusted_keys]
    #[arg(long, value_name = "NAME")]
    pub(crate) authority: Option<String>,
    /// After how many days the attestations expire [default: never]
    #[arg(long, value_name = "DAYS", value_parser = days)]
    pub(crate) expires: Option<u32>,
    /// Where to write them [default: `attestations` of the configuration, orla.attestations.json]
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Make a key, write it to FILE for its owner alone, and print the lines that trust it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["names", "key", "expires", "out"])]
    pub(crate) new_key: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) settings: Settings,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Verify {
    /// Names or ids of capabilities; everything but built-ins if there are none
    pub(crate) names: Vec<String>,
    /// Print a JSON array: id, status, authority, created_at, expires_at, reason, content_hash
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) settings: Settings,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Audit {
    /// Check that no line was changed, removed, added or moved
    #[command(after_help = AUDIT)]
    Verify {
        /// The log [default: `audit` of the configuration]; several if it was moved, the oldest first
        #[arg(value_name = "FILE")]
        files: Vec<PathBuf>,
        /// A public key, ed25519:BASE64, that must have signed the log; several if the key has changed
        #[arg(long, value_name = "KEY", value_parser = public_key)]
        key: Vec<PublicKey>,
        /// Heads of the log, in the form of `audit_heads`
        #[arg(long, value_name = "FILE")]
        heads: Option<PathBuf>,
        #[command(flatten)]
        settings: Settings,
    },
}

pub(super) const ATTEST: &str = "\
orla writes attestations to orla.attestations.json beside the configuration. An attestation is valid if the \
configuration trusts its key, and until the capability's manifest or content changes. With \
`require_attestation: true`, orla serves only capabilities with a valid attestation.

Examples:
  orla attest --new-key ops.pem --authority ops   make a key; paste what it prints into orla.yaml
  orla attest --key ops.pem                       attest everything that is served
  orla attest deploy --key ops.pem --expires 90   attest one capability, for 90 days
  orla verify                                     show which attestations are valid";

const AUDIT: &str = "\
Exits 1 at the first line that was changed, removed, added or moved, and says which and why. Only --key finds a \
log that was replaced as a whole (`audit_key` signs it). Only --heads finds a missing end (`audit_heads` keeps heads \
elsewhere). The command says what it could not check.

Examples:
  orla audit verify                the file that `audit` in orla.yaml names
  orla audit verify audit.jsonl --key ed25519:… --heads /mnt/other/heads.jsonl";

/// Parses a number of days; `90d` is one, too, as for `orla token create`.
fn days(text: &str) -> Result<u32, String> {
    let days = text.strip_suffix('d').unwrap_or(text).parse().ok();
    days.filter(|days| (1..=36_500).contains(days))
        .ok_or_else(|| "expected a number of days from 1 to 36500, such as 90".to_owned())
}

fn public_key(text: &str) -> Result<PublicKey, String> {
    PublicKey::parse(text).map_err(|err| err.to_string())
}

#[cfg(test)]
mod tests {
    use super::days;

    #[test]
    fn days_may_have_their_unit() {
        let read = ["90", "90d", "0", "90h", "soon", "36501"].map(|text| days(text).ok());
        assert_eq!(read, [Some(90), Some(90), None, None, None, None]);
    }
}
