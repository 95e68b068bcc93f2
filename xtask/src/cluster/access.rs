//! Who may join over NATS: users, credentials, certificates and permissions.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use data_encoding::BASE64URL_NOPAD;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer};
use serde_json::{Value, json};

use super::{Nats, TIMEOUT, WHERE, World, eventually, same, write};
use crate::process;

impl World {
    /// Each node has a certificate and credentials: a JWT and its NKey.
    pub(super) fn encrypted(&self) -> Result<(), String> {
        let (guard, nats) = self.guarded_nats()?;
        let node = |name: &str, tools: &[(&str, &str)]| {
            let trust = guard.trust("nodes", Some("node"), "node");
            let address = format!("nats: \"nats://127.0.0.1:{}\"", nats.port);
            self.instance(
                name,
                &format!("cluster: {{{trust} {address}, name: t, node: {name}}}\n"),
                tools,
            )
        };
        let (alpha, beta) = (node("alpha", &[("where", WHERE)])?, node("beta", &[])?);
        eventually("beta lists `where`", || beta.lists("where"))?;
        same(&beta.call("where", &json!({}))?, &alpha.folder_value())
    }

    /// A node that cannot join says why, and ends.
    pub(super) fn refused(&self) -> Result<(), String> {
        let plain = Nats::with(self, &[])?;
        let user = Nats::with(self, &["-js", "--user", "a", "--pass", "b"])?;
        let (guard, guarded) = self.guarded_nats()?;
        let none = self.folder.join("none.creds");
        for (port, more, words) in [
            (plain.port, String::new(), "no JetStream"),
            (user.port, String::new(), "refuses the credentials"),
            (user.port, format!("credentials: {},", none.display()), "none.creds"),
            (guarded.port, guard.trust("nodes", Some("node"), "stranger"), "refuses the credentials"),
            (guarded.port, guard.trust("others", Some("node"), "node"), "certificate is not trusted"),
            (guarded.port, guard.trust("nodes", None, "node"), "CertificateRequired"),
        ] {
            let config = format!("cluster: {{{more} nats: \"nats://127.0.0.1:{port}\", name: t}}\n");
            let folder = self.folder_of("refused", &config, &[])?;
            let mut command = Command::new(&self.binary);
            command.args(["--port", "0"]).current_dir(&folder);
            let ended = process::run(&mut command, &folder, TIMEOUT)?;
            let lines: Vec<&str> = ended.stderr.lines().collect();
            if ended.status.code() != Some(2) || lines.len() != 1 || !lines[0].contains(words) {
                return Err(format!("{words}: {} {lines:?}", ended.status));
            }
        }
        let config = format!("cluster: {{nats: \"nats://a:b@127.0.0.1:{}\", name: t}}\n", user.port);
        self.instance("user", &config, &[]).map(drop)
    }

    /// Two nodes whose users may do what `docs/cluster.md` says, and nothing else.
    pub(super) fn permitted(&self) -> Result<(), String> {
        // Beta finds the buckets that alpha makes.
        let user = |node: &str, api: &str| {
            let publish = format!(
                r#""orla.t.to.>", "orla.t.state.>", "orla.t.values.>", "$KV.orla-t-leases.{node}", "$KV.orla-t-offers.{node}.>", {api}"#
            );
            let subscribe = format!(
                r#""orla.t.to.{node}.>", "orla.t.drain.{node}", "$KV.orla-t-leases.>", "_INBOX.{node}.>""#
            );
            format!(
                "{{user: {node}, password: p, permissions: {{publish: [{publish}], subscribe: [{subscribe}]}}}}"
            )
        };
        let api = ["leases", "offers"].map(|bucket| {
            format!(
                r#""$JS.API.STREAM.INFO.KV_orla-t-{bucket}", "$JS.API.DIRECT.GET.KV_orla-t-{bucket}.>""#
            )
        });
        let store = [
            "$JS.API.STREAM.INFO.orla-t-state",
            "$JS.API.STREAM.INFO.orla-t-values",
            "$JS.API.STREAM.MSG.GET.orla-t-state",
            "$JS.API.STREAM.MSG.GET.orla-t-values",
            "$JS.API.STREAM.PURGE.orla-t-values",
            "$JS.API.CONSUMER.CREATE.orla-t-state",
            "$JS.API.CONSUMER.MSG.NEXT.orla-t-state.>",
        ];
        let store = store.map(|subject| format!("\"{subject}\""));
        let little = format!(r#""$JS.API.INFO", {}, {}"#, api.join(", "), store.join(", "));
        let users = [user("alpha", r#""$JS.API.>""#), user("beta", &little)].join(", ");
        let config = self.fresh("permissions")?.join("nats.conf");
        write(&config, &format!("authorization: {{users: [{users}]}}\n"))?;
        let nats = Nats::with(self, &["-js", "-c", &config.display().to_string()])?;
        let node = |name: &str, tools: &[(&str, &str)]| {
            let address = format!("nats://{name}:p@127.0.0.1:{}", nats.port);
            self.instance(
                name,
                &format!("cluster: {{nats: \"{address}\", name: t, node: {name}}}\n"),
                tools,
            )
        };
        let (alpha, beta) = (node("alpha", &[("where", WHERE)])?, node("beta", &[])?);
        eventually("beta lists `where`", || beta.lists("where"))?;
        same(&beta.call("where", &json!({}))?, &alpha.folder_value())?;
        let log = fs::read_to_string(nats.folder.join("nats.log")).map_err(|err| err.to_string())?;
        match log.lines().find(|line| line.contains("Violation")) {
            Some(violation) => Err(violation.to_owned()),
            None => Ok(()),
        }
    }

    /// Starts a NATS server that asks for certificates and credentials.
    fn guarded_nats(&self) -> Result<(Guard, Nats), String> {
        let guard = Guard::new(self.fresh("guard")?)?;
        let nats =
            Nats::with(self, &["-js", "-c", &guard.folder.join("nats.conf").display().to_string()])?;
        Ok((guard, nats))
    }
}

/// What a NATS server and its users need: authorities and certificates, accounts and credentials.
struct Guard {
    folder: PathBuf,
}

impl Guard {
    fn new(folder: PathBuf) -> Result<Self, String> {
        certify(&folder, "nodes", &["server", "node"])?;
        certify(&folder, "others", &[])?;
        let (operator, account) = (nkeys::KeyPair::new_operator(), nkeys::KeyPair::new_account());
        for (name, account) in [("node", &account), ("stranger", &nkeys::KeyPair::new_account())] {
            let user = nkeys::KeyPair::new_user();
            let everything = json!({"pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1});
            let token = token(account, &user, "user", everything)?;
            let seed = user.seed().map_err(|err| err.to_string())?;
            let text = format!(
                "-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n\
                 -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
            );
            write(&folder.join(format!("{name}.creds")), &text)?;
        }
        let system = nkeys::KeyPair::new_account();
        let limits = json!({"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true,
            "conn": -1, "leaf": -1});
        let mut with_jetstream = limits.clone();
        for name in ["mem_storage", "disk_storage", "streams", "consumer"] {
            with_jetstream[name] = json!(-1);
        }
        let account_token = token(&operator, &account, "account", json!({"limits": with_jetstream}))?;
        let system_token = token(&operator, &system, "account", json!({ "limits": limits }))?;
        let operator_token = token(&operator, &operator, "operator", json!({}))?;
        let (account, system) = (account.public_key(), system.public_key());
        let at = folder.display();
        let config = format!(
            "operator: \"{operator_token}\"\nsystem_account: {system}\nresolver: MEMORY\n\
             resolver_preload: {{{account}: \"{account_token}\", {system}: \"{system_token}\"}}\n\
             tls: {{cert_file: \"{at}/server.pem\", key_file: \"{at}/server.key\", ca_file: \"{at}/nodes.pem\", verify: true}}\n"
        );
        write(&folder.join("nats.conf"), &config)?;
        Ok(Self { folder })
    }

    /// The part of a node's configuration that names an authority, a certificate and credentials.
    fn trust(&self, authority: &str, certificate: Option<&str>, user: &str) -> String {
        let at = self.folder.display();
        let own =
            certificate.map(|name| format!(", certificate: {at}/{name}.pem, key: {at}/{name}.key"));
        format!(
            "credentials: {at}/{user}.creds, tls: {{ca: {at}/{authority}.pem{}}},",
            own.unwrap_or_default()
        )
    }
}

/// Makes an authority, and certificates of it for this machine.
fn certify(folder: &Path, authority: &str, names: &[&str]) -> Result<(), String> {
    let problem = |err: rcgen::Error| err.to_string();
    let key = rcgen::KeyPair::generate().map_err(problem)?;
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = params.self_signed(&key).map_err(problem)?;
    write(&folder.join(format!("{authority}.pem")), &certificate.pem())?;
    let issuer = Issuer::new(params, key);
    for name in names {
        let key = rcgen::KeyPair::generate().map_err(problem)?;
        let params = CertificateParams::new(["127.0.0.1".to_owned()]).map_err(problem)?;
        let certificate = params.signed_by(&key, &issuer).map_err(problem)?;
        write(&folder.join(format!("{name}.pem")), &certificate.pem())?;
        write(&folder.join(format!("{name}.key")), &key.serialize_pem())?;
    }
    Ok(())
}

/// Returns a JWT of NATS, in which the issuer says what the subject is.
fn token(
    issuer: &nkeys::KeyPair,
    subject: &nkeys::KeyPair,
    kind: &str,
    mut claims: Value,
) -> Result<String, String> {
    let part = |value: &Value| BASE64URL_NOPAD.encode(value.to_string().as_bytes());
    (claims["type"], claims["version"]) = (json!(kind), json!(2));
    let (issued_by, id) = (issuer.public_key(), subject.public_key());
    let head = part(&json!({"typ": "JWT", "alg": "ed25519-nkey"}));
    let body =
        part(&json!({"jti": id, "iat": 1, "iss": issued_by, "name": kind, "sub": id, "nats": claims}));
    let signed = format!("{head}.{body}");
    let signature = issuer.sign(signed.as_bytes()).map_err(|err| err.to_string())?;
    Ok(format!("{signed}.{}", BASE64URL_NOPAD.encode(&signature)))
}
