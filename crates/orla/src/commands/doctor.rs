//! `orla doctor`: the mechanisms of this system for confining processes, and the actual confinement of
//! each capability's processes.

use orla_marketplace::SandboxStatus;
use orla_marketplace::attestation::format_instant;
use orla_process::confinement::{Support, use_control_groups};
use orla_server::{Tls, TlsError};
use serde::Serialize;

use crate::app::App;
use crate::config::{Config, Source};
use crate::{Failure, cli, render};

/// The whole answer.
#[derive(Serialize)]
struct Report {
    kernel: String,
    landlock_abi: i32,
    seccomp: bool,
    namespaces: bool,
    /// The reason why processes cannot have user namespaces here.
    #[serde(skip_serializing_if = "Option::is_none")]
    namespaces_missing: Option<String>,
    cgroup: &'static str,
    /// Whether a control group is delegated to this process, so that control groups enforce limits.
    cgroup_delegated: bool,
    /// The reason why control groups do not enforce limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    cgroup_missing: Option<String>,
    /// Which changes of modes, owners, times and attributes of files are refused.
    metadata: &'static str,
    sandbox: &'static str,
    capabilities: Vec<Row>,
    /// The certificate of the listener.
    #[serde(skip_serializing_if = "Option::is_none")]
    tls: Option<Certificate>,
    /// The processes that may change declarations, and a certificate that expires.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// A capability whose calls run in a process, or a provider of such capabilities that serves nothing.
#[derive(Serialize)]
struct Row {
    name: String,
    sandbox: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<String>,
    permissions: Vec<String>,
    missing: Vec<String>,
}

/// The listener's certificate.
#[derive(Serialize)]
struct Certificate {
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
    /// The reason why it cannot be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

impl Certificate {
    fn of(loaded: &Result<Tls, TlsError>) -> Self {
        match loaded {
            Ok(tls) => Self { expires_at: Some(format_instant(tls.expires_at())), problem: None },
            Err(err) => Self { expires_at: None, problem: Some(err.to_string()) },
        }
    }
}

pub(crate) fn run(doctor: &cli::Doctor, source: &Source) -> Result<(), Failure> {
    let config = super::load(source)?;
    let _log = super::log(&config);
    let report = super::small_runtime()?.block_on(examine(&config))?;
    if doctor.json {
        super::print_json(&report)?;
    } else {
        render::out(&report.text());
        report.warnings.iter().for_each(|warning| render::warning(warning));
    }
    match report.capabilities.iter().filter(|row| !row.missing.is_empty()).count() {
        0 => Ok(()),
        1 => Err(Failure::failed("the confinement that a capability declares is not in force")),
        count => Err(Failure::failed(format!(
            "the confinement that {count} capabilities declare is not in force"
        ))),
    }
}

async fn examine(config: &Config) -> Result<Report, Failure> {
    // As a server would.
    use_control_groups();
    let app = App::build_local(config)?;
    super::wait_until_listed(&app).await;
    let market = app.marketplace();
    let snapshot = market.snapshot();
    let rows = snapshot
        .entries()
        .iter()
        .filter_map(|entry| Some(Row::of(&entry.name, market.status(entry).sandbox?)));
    // A provider that does not run has not reported its capabilities.
    let silent = market.provider_problems(None);
    let is_confined = |sandbox: &SandboxStatus| sandbox.missing.is_empty();
    let failed = silent.iter().filter(|one| one.sandbox.as_ref().is_none_or(is_confined)).count();
    let silent = silent.into_iter();
    let silent = silent.filter_map(|provider| Some(Row::of(&provider.name, provider.sandbox?)));
    let capabilities = rows.chain(silent).collect();
    let tls = config.tls().map(Tls::load);
    let mut warnings = app.exposed().to_vec();
    if let Some(loaded) = &tls {
        warnings.extend(loaded.as_ref().map_or_else(|err| Some(err.to_string()), Tls::expiry_warning));
    }
    match failed {
        0 => {}
        1 => warnings.push("a provider serves nothing: `orla list` says why".to_owned()),
        count => warnings.push(format!("{count} providers serve nothing: `orla list` says why")),
    }
    app.end_providers().await;
    let support = Support::detect();
    Ok(Report {
        kernel: support.kernel,
        landlock_abi: support.landlock_abi,
        seccomp: support.seccomp,
        namespaces: support.namespaces.is_ok(),
        namespaces_missing: support.namespaces.err(),
        cgroup: support.cgroup,
        cgroup_delegated: support.cgroup_limits.is_ok(),
        cgroup_missing: support.cgroup_limits.err(),
        metadata: match support.metadata {
            Ok(()) => {
                "modes and times can be changed where a confined process may write; all else is refused"
            }
            Err(_) => "refused everywhere in confined processes",
        },
        sandbox: config.sandbox.mode.name(),
        capabilities,
        tls: tls.as_ref().map(Certificate::of),
        warnings,
    })
}

impl Row {
    fn of(name: &str, status: SandboxStatus) -> Self {
        Self {
            name: name.to_owned(),
            sandbox: status.level.name(),
            profile: status.profile,
            permissions: status.permissions,
            missing: status.missing,
        }
    }
}

impl Report {
    fn text(&self) -> String {
        let landlock = match self.landlock_abi {
            0 => "none: no process can be confined".to_owned(),
            abi => format!("ABI {abi}"),
        };
        let namespaces = match &self.namespaces_missing {
            None => "available".to_owned(),
            Some(why) => format!("none: {why}"),
        };
        let limits = match &self.cgroup_missing {
            None => "they limit memory and processes of a call, and count its processor time".to_owned(),
            Some(why) => format!("limits are measured instead: {why}"),
        };
        let mut text = format!(
            "Kernel       {}\nLandlock     {landlock}\nseccomp      {}\nNamespaces   {namespaces}\nCgroups      {}; {limits}\nMetadata     {}\nsandbox      {}\n",
            self.kernel,
            if self.seccomp { "available" } else { "none" },
            self.cgroup,
            self.metadata,
            self.sandbox,
        );
        if let Some(Certificate { expires_at: Some(at), .. }) = &self.tls {
            text += &format!("Certificate  expires {at}\n");
        }
        let width = self.capabilities.iter().map(|row| row.name.len()).max().unwrap_or_default();
        for Row { name, sandbox, permissions, missing, .. } in &self.capabilities {
            text += &format!("\n{name:width$}  {sandbox:11}  {}", permissions.join(", "));
            for problem in missing {
                text += &format!("\n{:width$}  missing: {problem}", "");
            }
        }
        if !self.capabilities.is_empty() {
            text.push('\n');
        }
        text
    }
}
