//! The listener with TLS: `sslyze` finds nothing to object to, and certificates change under clients that call.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::install;
use crate::process;
use crate::tally::Tally;

use super::world::{TIMEOUT, World};

/// The token of the clients.
const TOKEN: &str = "token-of-ada-0123456789";
/// Writes a report with its huge numbers, such as the modulus of an RSA key, as texts.
const PLAIN_NUMBERS: &str = "
import json, sys
number = lambda text: int(text) if len(text) < 16 else text
print(json.dumps(json.load(open(sys.argv[1]), parse_int=number)))
";
/// Scans whose result says which cipher suites are accepted.
const VERSIONS: &[&str] = &["ssl_2_0", "ssl_3_0", "tls_1_0", "tls_1_1", "tls_1_2", "tls_1_3"];
/// What a result must say, by the name of the scan and the field.
const EXPECTED: &[(&str, &str, bool)] = &[
    ("tls_compression", "supports_compression", false),
    ("tls_1_3_early_data", "supports_early_data", false),
    ("openssl_ccs_injection", "is_vulnerable_to_ccs_injection", false),
    ("heartbleed", "is_vulnerable_to_heartbleed", false),
    ("session_renegotiation", "is_vulnerable_to_client_renegotiation_dos", false),
    ("session_renegotiation", "supports_secure_renegotiation", true),
    ("tls_fallback_scsv", "supports_fallback_scsv", true),
    ("tls_extended_master_secret", "supports_ems_extension", true),
];

pub(super) fn run(world: &World<'_>, is_short: bool, tally: &mut Tally) -> Result<(), String> {
    let python =
        install::python(&world.foreign.folder, &install::pins("identity").join("sslyze.txt"), "sslyze")?;
    let replacements = if is_short { 5 } else { 20 };
    let folder = world.folder("tls")?;
    let mut command = Command::new(&python);
    command.arg(world.foreign.folder.join("certificates.py")).arg(&folder);
    command.arg((replacements + 1).to_string());
    process::run(&mut command, &world.folder("scratch")?, TIMEOUT)?.stdout_of_success()?;
    // The certificates alternate between keys of P-256 and of RSA, and the last scan is of a listener that asks for
    // the certificates of clients.
    let scans = [("P-256", 0, ""), ("RSA", 1, ""), ("P-256, with client_ca", 0, ", client_ca: ca.pem")];
    for (name, number, more) in scans.into_iter().take(if is_short { 1 } else { scans.len() }) {
        put(&folder, number)?;
        let orla = world.orla("tls", &config(more), &[("run", "ran")])?;
        let scanned = scan(world, &python, &folder, &orla.address)?;
        tally.check(&format!("tls: sslyze finds nothing ({name})"), scanned);
    }
    put(&folder, 0)?;
    let orla = world.orla("tls", &config(""), &[("run", "ran")])?;
    let port = orla.address.rsplit(':').next().unwrap_or_default();
    let (pid, count) = (orla.pid().to_string(), replacements.to_string());
    let arguments = [port, &folder.to_string_lossy(), &pid, TOKEN, &count];
    tally.judge("tls:", &world.script("certificate_clients.mjs", &arguments)?);
    Ok(())
}

fn config(more: &str) -> String {
    format!(
        "port: 0\nauth: {{tls: {{cert: server.pem, key: server.key{more}}}}}\nauth_tokens: {{ada: {TOKEN}}}\n"
    )
}

/// Makes one of the certificates that of the server.
fn put(folder: &Path, number: usize) -> Result<(), String> {
    for kind in ["pem", "key"] {
        let from = folder.join(format!("{number}.{kind}"));
        std::fs::copy(&from, folder.join(format!("server.{kind}")))
            .map_err(|err| format!("{}: {err}", from.display()))?;
    }
    Ok(())
}

/// Lets `sslyze` scan a listener, and says what it found.
fn scan(
    world: &World<'_>,
    python: &Path,
    folder: &Path,
    address: &str,
) -> Result<Result<(), String>, String> {
    let target = format!("{}{{127.0.0.1}}", address.replace("127.0.0.1", "localhost"));
    let report = folder.join("sslyze.json");
    let _ = std::fs::remove_file(&report);
    let mut command = Command::new(python);
    // The check against Mozilla's recommendation needs most of the scans, and asks for them.
    command.args(["-m", "sslyze", "--mozilla_config", "intermediate", "--certinfo_ca_file"]);
    command.arg(folder.join("ca.pem")).arg("--json_out").arg(&report);
    command.args(["--sslv2", "--sslv3", "--tlsv1", "--tlsv1_1", "--tlsv1_2", "--tlsv1_3", "--certinfo"]);
    command.args(["--robot", "--heartbleed", "--openssl_ccs", "--compression", "--reneg", "--fallback"]);
    command.args(["--early_data", "--ems", "--elliptic_curves", "--slow_connection", &target]);
    let finished = process::run(&mut command, &world.folder("scratch")?, TIMEOUT)?;
    let said = format!("{}{}", finished.stdout, finished.stderr);
    let mut command = Command::new(python);
    command.args(["-c", PLAIN_NUMBERS]).arg(&report);
    let text = process::run(&mut command, &world.folder("scratch")?, TIMEOUT)?
        .stdout_of_success()
        .map_err(|err| format!("sslyze: {err}: {said}"))?;
    let report: Value = serde_json::from_str(&text).map_err(|err| format!("sslyze: {err}"))?;
    let mut found = findings(&report);
    if !finished.status.success() || !finished.stdout.contains("OK - Compliant") {
        let from = finished.stdout.find("COMPLIANCE").unwrap_or_default();
        found.push(format!("Mozilla's check: {}", finished.stdout[from..].replace('\n', " ")));
    }
    Ok(if found.is_empty() { Ok(()) } else { Err(found.join(", ")) })
}

/// Returns everything in a report of `sslyze` that is worse than information.
fn findings(report: &Value) -> Vec<String> {
    let servers = report["server_scan_results"].as_array().map_or(&[][..], Vec::as_slice);
    let [server] = servers else { return vec![format!("{} servers", servers.len())] };
    let mut found = Vec::new();
    if server["scan_status"] != "COMPLETED" {
        found.push(format!("the scan: {}", server["connectivity_error_trace"]));
    }
    let result = |scan: &str| &server["scan_result"][scan]["result"];
    for version in VERSIONS {
        let result = result(&format!("{version}_cipher_suites"));
        let is_new = matches!(*version, "tls_1_2" | "tls_1_3");
        if result["is_tls_version_supported"] != is_new {
            found.push(format!("{version}: {}", result["is_tls_version_supported"]));
        }
        for accepted in result["accepted_cipher_suites"].as_array().into_iter().flatten() {
            let name = accepted["cipher_suite"]["name"].as_str().unwrap_or_default();
            if !is_strong(name) {
                found.push(format!("{version}: {name}"));
            }
        }
    }
    for (scan, field, expected) in EXPECTED {
        let value = &result(scan)[field];
        if value != expected {
            found.push(format!("{scan}: {field} is {value}"));
        }
    }
    let robot = result("robot")["robot_result"].as_str().unwrap_or("no result").to_owned();
    if !robot.starts_with("NOT_VULNERABLE") {
        found.push(format!("robot: {robot}"));
    }
    let deployments = result("certificate_info")["certificate_deployments"].as_array();
    for deployment in deployments.into_iter().flatten() {
        let paths = deployment["path_validation_results"].as_array();
        // That of our own authority is among those of the stores that systems and browsers have.
        let is_trusted = paths
            .into_iter()
            .flatten()
            .any(|path| path["verified_certificate_chain"].as_array().is_some_and(|it| !it.is_empty()));
        if !is_trusted {
            found.push("the certificate is not trusted".to_owned());
        }
    }
    if deployments.is_none_or(Vec::is_empty) {
        found.push("no certificate was scanned".to_owned());
    }
    found
}

/// Whether a cipher suite has forward secrecy and authenticates what it encrypts.
fn is_strong(name: &str) -> bool {
    let is_of_1_3 = !name.contains("_WITH_");
    let has_secrecy = is_of_1_3 || name.starts_with("TLS_ECDHE_");
    has_secrecy && (name.contains("_GCM_") || name.contains("_CHACHA20_POLY1305_"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A report of a listener without a fault.
    fn report() -> Value {
        let version = |is_supported: bool, suites: &[&str]| {
            let suites: Vec<Value> =
                suites.iter().map(|name| json!({"cipher_suite": {"name": name}})).collect();
            json!({"result": {"is_tls_version_supported": is_supported, "accepted_cipher_suites": suites}})
        };
        let mut scans = json!({
            "robot": {"result": {"robot_result": "NOT_VULNERABLE_RSA_NOT_SUPPORTED"}},
            "certificate_info": {"result": {"certificate_deployments":
                [{"path_validation_results": [{"verified_certificate_chain": []}, {"verified_certificate_chain": [1]}]}]}},
        });
        for old in ["ssl_2_0", "ssl_3_0", "tls_1_0", "tls_1_1"] {
            scans[format!("{old}_cipher_suites")] = version(false, &[]);
        }
        scans["tls_1_2_cipher_suites"] = version(true, &["TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"]);
        scans["tls_1_3_cipher_suites"] = version(true, &["TLS_CHACHA20_POLY1305_SHA256"]);
        for (scan, field, expected) in EXPECTED {
            scans[scan]["result"][field] = (*expected).into();
        }
        json!({"server_scan_results": [{"scan_status": "COMPLETED", "scan_result": scans}]})
    }

    #[test]
    fn what_is_worse_than_information_is_found() {
        assert_eq!(findings(&report()), Vec::<String>::new());
        let suites = "tls_1_2_cipher_suites/result/accepted_cipher_suites/0/cipher_suite/name";
        let certificates = "certificate_info/result/certificate_deployments";
        let cases = [
            ("an old version", "tls_1_1_cipher_suites/result/is_tls_version_supported", json!(true)),
            ("no new version", "tls_1_3_cipher_suites/result/is_tls_version_supported", json!(false)),
            ("no forward secrecy", suites, json!("TLS_RSA_WITH_AES_128_GCM_SHA256")),
            ("no authenticated cipher", suites, json!("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA")),
            ("a known fault", "heartbleed/result/is_vulnerable_to_heartbleed", json!(true)),
            ("a scan without a result", "openssl_ccs_injection/result", Value::Null),
            ("a weak oracle", "robot/result/robot_result", json!("VULNERABLE_WEAK_ORACLE")),
            ("an unknown authority", certificates, json!([{"path_validation_results": []}])),
            ("no certificate", certificates, json!([])),
        ];
        for (name, path, value) in cases {
            let mut report = report();
            *report
                .pointer_mut(&format!("/server_scan_results/0/scan_result/{path}"))
                .expect("a field") = value;
            assert_eq!(findings(&report).len(), 1, "{name}");
        }
        assert_eq!(findings(&json!({})), ["0 servers"]);
    }
}
