use std::fs;
use std::path::Path;

use rcgen::{CertificateParams, DnType, Issuer, KeyPair, SanType};

use super::*;

/// An authority, which signs certificates.
struct Authority {
    certificate: rcgen::Certificate,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        Self { certificate, issuer: Issuer::new(params, key) }
    }

    fn sign(&self, change: impl FnOnce(&mut CertificateParams)) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        change(&mut params);
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }

    /// Writes a certificate of this name with its key.
    fn write(&self, dir: &Path, name: &str) {
        let (certificate, key) = self.sign(|params| named(params, name));
        fs::write(dir.join("server.pem"), certificate.pem()).unwrap();
        fs::write(dir.join("server.key"), key.serialize_pem()).unwrap();
    }
}

fn named(params: &mut CertificateParams, name: &str) {
    params.distinguished_name.remove(DnType::CommonName);
    params.distinguished_name.push(DnType::CommonName, name);
}

fn settings(dir: &Path) -> TlsSettings {
    let cert = dir.join("server.pem");
    TlsSettings { cert, key: dir.join("server.key"), ..TlsSettings::default() }
}

#[test]
fn a_certificate_names_its_holder_in_one_way() {
    let authority = Authority::new();
    let name = |part, change: &dyn Fn(&mut CertificateParams)| {
        let (certificate, _) = authority.sign(change);
        Certificate::parse(certificate.der()).unwrap().name(part).map(str::to_owned)
    };
    use CertificateName::{AlternativeName, CommonName};
    assert_eq!(name(CommonName, &|p| named(p, "carol")).as_deref(), Some("carol"));
    for odd in ["", "two\nlines", " carol"] {
        assert_eq!(name(CommonName, &|p| named(p, odd)), None, "{odd:?}");
    }
    let uri = "spiffe://example.org/agent";
    let alternative = |params: &mut CertificateParams| {
        named(params, "carol");
        params.subject_alt_names = vec![
            SanType::IpAddress("127.0.0.1".parse().unwrap()),
            SanType::URI(uri.try_into().unwrap()),
            SanType::DnsName("other.example".try_into().unwrap()),
        ];
    };
    assert_eq!(name(AlternativeName, &alternative).as_deref(), Some(uri));
    assert_eq!(name(AlternativeName, &|p| named(p, "carol")), None);
    assert!(Certificate::parse(b"no certificate").is_none());
}

#[test]
fn files_that_do_not_fit_are_refused_with_their_path() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    authority.write(dir.path(), "server");
    let good = settings(dir.path());
    assert!(Tls::load(&good).unwrap().expires_at() > SystemTime::now());
    let refused = |change: &dyn Fn(&mut TlsSettings)| {
        let mut wrong = good.clone();
        change(&mut wrong);
        Tls::load(&wrong).unwrap_err().to_string()
    };
    let (_, other) = authority.sign(|_| {});
    fs::write(dir.path().join("other.key"), other.serialize_pem()).unwrap();
    let wrong = refused(&|settings| settings.key = dir.path().join("other.key"));
    assert!(wrong.contains("other.key: is not the key of"), "{wrong}");
    assert!(refused(&|settings| settings.key = settings.cert.clone()).contains("no private key"));
    assert!(refused(&|settings| settings.cert = settings.key.clone()).contains("no certificate"));
    assert!(refused(&|settings| settings.cert = dir.path().join("none")).contains("cannot be read"));
    assert!(refused(&|settings| settings.client_ca = Some(settings.key.clone())).contains("server.key"));
    // Opening a fifo would wait for its writer.
    let fifo = dir.path().join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for change in [
        &(|settings: &mut TlsSettings| settings.cert = fifo.clone()) as &dyn Fn(&mut TlsSettings),
        &|settings| settings.key = fifo.clone(),
        &|settings| settings.client_ca = Some(fifo.clone()),
    ] {
        let error = refused(change);
        assert!(error.contains("fifo: is not a regular file"), "{error}");
    }
}

#[test]
fn replaced_files_are_taken_and_unusable_ones_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    authority.write(dir.path(), "first");
    let current = Current::default();
    current.load(Some(&settings(dir.path()))).unwrap();
    let first = current.get().unwrap();
    let mut tried = Vec::new();
    current.refresh(&mut tried);
    assert!(Arc::ptr_eq(&first, &current.get().unwrap()));
    fs::write(dir.path().join("server.pem"), "half of a").unwrap();
    current.refresh(&mut tried);
    assert!(Arc::ptr_eq(&first, &current.get().unwrap()));
    authority.write(dir.path(), "second");
    current.refresh(&mut tried);
    assert!(!Arc::ptr_eq(&first, &current.get().unwrap()));
}

#[test]
fn a_client_is_known_as_long_as_its_authority_is_trusted_and_its_certificate_holds() {
    let dir = tempfile::tempdir().unwrap();
    let (authority, other) = (Authority::new(), Authority::new());
    authority.write(dir.path(), "server");
    let mut settings = settings(dir.path());
    let trust = |authority: &Authority| {
        let path = dir.path().join("ca.pem");
        fs::write(&path, authority.certificate.pem()).unwrap();
        path
    };
    settings.client_ca = Some(trust(&authority));
    let current = Current::default();
    current.load(Some(&settings)).unwrap();
    assert!(current.asks_clients());
    let tls = current.get().unwrap();
    let (certificate, _) = authority.sign(|params| named(params, "carol"));
    let client = tls.client(certificate.der()).unwrap();
    assert_eq!(current.caller(&client), Some(Principal::certificate("carol")));
    let (certificate, _) = authority.sign(|params| {
        named(params, "carol");
        params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    });
    assert_eq!(current.caller(&tls.client(certificate.der()).unwrap()), None);
    trust(&other);
    current.load(Some(&settings)).unwrap();
    assert_eq!(current.caller(&client), None);
}

#[test]
fn a_certificate_that_ends_soon_is_warned_about() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let warning = |left: i64| {
        let (certificate, key) = authority.sign(|params| {
            params.not_after = (SystemTime::now() + Duration::from_secs(60)).into();
            let days = Duration::from_secs(left.unsigned_abs() * 86_400);
            if left < 0 { params.not_after -= days } else { params.not_after += days }
        });
        fs::write(dir.path().join("server.pem"), certificate.pem()).unwrap();
        fs::write(dir.path().join("server.key"), key.serialize_pem()).unwrap();
        Tls::load(&settings(dir.path())).unwrap().expires_soon()
    };
    assert_eq!(warning(30), None);
    assert_eq!(warning(3).as_deref(), Some("expires in 3 days"));
    assert_eq!(warning(-3).as_deref(), Some("has expired"));
}
