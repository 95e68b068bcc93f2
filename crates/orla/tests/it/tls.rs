//! HTTPS on the listener: certificates are replaced while it runs, and identify clients.

use std::net::SocketAddr;
use std::sync::LazyLock;

use orla_e2e::{Request, Server, World, eventually};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use reqwest::{Certificate, Client, Identity, Response, Version, tls::TlsInfo};
use rustix::process::Signal;
use tokio::runtime::Runtime;

use crate::{sh, world};

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().expect("a runtime"));
const TOKEN: &str = "token-of-ada-0123456789";

/// An authority with its certificate in PEM.
struct Authority(Issuer<'static, KeyPair>, String);

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).expect("a certificate").pem();
        Self(Issuer::new(params, key), certificate)
    }

    /// Returns a certificate of this name for the local machine, and its key, in PEM.
    fn sign(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let mut params =
            CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()]).expect("names");
        params.distinguished_name.push(DnType::CommonName, name);
        (params.signed_by(&key, &self.0).expect("a certificate").pem(), key.serialize_pem())
    }

    fn world(&self, config: &str) -> World {
        let (certificate, key) = self.sign("server");
        let tls = "auth: {tls: {cert: server.pem, key: server.key, client_ca: ca.pem}}\n";
        world()
            .tool("a", sh("echo a"))
            .file("ca.pem", &self.1)
            .file("server.pem", certificate)
            .file("server.key", key)
            .config(&format!("{tls}auth_tokens: {{ada: {TOKEN}}}\n{config}"))
    }

    fn client(&self, identity: Option<&str>) -> Client {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let ca = Certificate::from_pem(self.1.as_bytes()).expect("a certificate");
        let mut client = Client::builder().tls_certs_only([ca]).tls_info(true);
        if let Some(name) = identity {
            let (certificate, key) = self.sign(name);
            client = client
                .identity(Identity::from_pem((certificate + &key).as_bytes()).expect("an identity"));
        }
        client.build().expect("a client")
    }
}

fn status(client: &Client, address: SocketAddr, token: Option<&str>) -> reqwest::Result<Response> {
    let request = client.get(format!("https://localhost:{}/status", address.port()));
    let request = match token {
        Some(token) => request.bearer_auth(token),
        None => request,
    };
    RUNTIME.block_on(request.send())
}

fn text(response: Response) -> String {
    RUNTIME.block_on(response.text()).expect("a body")
}

fn certificate_of(response: &Response) -> Vec<u8> {
    let info = response.extensions().get::<TlsInfo>().expect("a TLS connection");
    info.peer_certificate().expect("a certificate").to_vec()
}

#[test]
fn a_client_is_known_by_its_token_or_its_certificate_and_by_nothing_else() {
    let authority = Authority::new();
    let policy = "policy: [{to: ['cert:carol', ada], allow: ['*']}]\n";
    let server = authority.world(policy).env("ORLA_TOKEN", TOKEN).serve();
    let address = server.address();
    let anonymous = authority.client(None);
    let answer = status(&anonymous, address, Some(TOKEN)).unwrap();
    assert_eq!((answer.status().as_u16(), answer.version()), (200, Version::HTTP_2));
    assert_eq!(status(&anonymous, address, None).unwrap().status(), 401);
    let carol = status(&authority.client(Some("carol")), address, None).unwrap();
    assert_eq!(carol.status(), 200);
    assert!(text(carol).contains(r#""name":"a""#));
    let mallory = status(&authority.client(Some("mallory")), address, None).unwrap();
    assert!(!text(mallory).contains(r#""name":"a""#));
    // A wrong token is not mended by a certificate.
    let wrong = status(&authority.client(Some("carol")), address, Some("wrong")).unwrap();
    assert_eq!(wrong.status(), 401);
    // A certificate of another authority ends the handshake.
    let mut stranger = Authority::new();
    let identity = stranger.sign("carol");
    stranger.1.clone_from(&authority.1);
    let _ = rustls::crypto::ring::default_provider().install_default();
    let stranger = Client::builder()
        .tls_certs_only([Certificate::from_pem(stranger.1.as_bytes()).unwrap()])
        .identity(Identity::from_pem((identity.0 + &identity.1).as_bytes()).unwrap())
        .build()
        .unwrap();
    assert!(status(&stranger, address, None).is_err());
    // The answer to plain HTTP says that the port speaks HTTPS.
    let plain = server.http().send(&Request::new("GET", "/healthz")).unwrap();
    assert_eq!((plain.status, plain.text().contains("https://")), (400, true));
    let url = format!("https://localhost:{}", address.port());
    let list = server.run(&["list", "--url", &url, "--ca", "ca.pem"]);
    assert!(list.code == Some(0) && list.stdout.contains('a'), "{list:?}");
    assert_eq!(server.run(&["list", "--url", &url]).code, Some(1));
}

#[test]
fn a_replaced_certificate_is_used_and_an_unusable_one_is_not() {
    let authority = Authority::new();
    let server = authority.world("").serve();
    let address = server.address();
    let kept = authority.client(None);
    let first = certificate_of(&status(&kept, address, Some(TOKEN)).unwrap());
    let replace = |server: &Server, certificate: &str, key: &str| {
        server.write("server.pem", certificate, 0o644);
        server.write("server.key", key, 0o600);
    };
    let (certificate, key) = authority.sign("second");
    replace(&server, &certificate, &key);
    let now = || certificate_of(&status(&authority.client(None), address, Some(TOKEN)).unwrap());
    // Without a signal.
    let second = eventually("the new certificate is used", || Some(now()).filter(|now| *now != first));
    // The connection from before is still served.
    assert_eq!(certificate_of(&status(&kept, address, Some(TOKEN)).unwrap()), first);
    replace(&server, "no certificate", &key);
    server.signal(Signal::HUP);
    eventually("the log says so", || server.log().contains("the old one stays").then_some(()));
    assert_eq!(now(), second);
    let check = server.run(&["check"]);
    assert!(check.code == Some(1) && check.all().contains("server.pem"), "{check:?}");
}
