//! An authorization server for tests: metadata, keys, an introspection endpoint, and any token that a test wants.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use parking_lot::Mutex;
use ring::digest::{SHA256, digest};
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256,
    RsaKeyPair,
};
use ring::{hmac, rsa};
use serde_json::{Value, json};

/// The audience of its tokens.
pub const AUDIENCE: &str = "https://orla.test/mcp";

/// Key pairs of one signer, one for each algorithm.
pub struct Signer {
    rsa: RsaKeyPair,
    ec: EcdsaKeyPair,
    ed: Ed25519KeyPair,
}

impl Signer {
    fn new(rsa: &str) -> Self {
        let random = SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let ec = EcdsaKeyPair::generate_pkcs8(algorithm, &random).expect("a key");
        let ed = Ed25519KeyPair::generate_pkcs8(&random).expect("a key");
        Self {
            rsa: RsaKeyPair::from_pkcs8(&BASE64_STANDARD.decode(rsa).expect("base64")).expect("a key"),
            ec: EcdsaKeyPair::from_pkcs8(algorithm, ec.as_ref(), &random).expect("a key"),
            ed: Ed25519KeyPair::from_pkcs8(ed.as_ref()).expect("a key"),
        }
    }

    /// Returns the signature of a message; for HS256, with the public key as a shared secret.
    pub fn sign(&self, algorithm: &str, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match algorithm {
            "RS256" => {
                let mut signature = vec![0; self.rsa.public().modulus_len()];
                self.rsa.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature).expect("a signature");
                signature
            }
            "ES256" => self.ec.sign(&random, message).expect("a signature").as_ref().to_vec(),
            "EdDSA" => self.ed.sign(message).as_ref().to_vec(),
            "HS256" => {
                let key = hmac::Key::new(hmac::HMAC_SHA256, self.rsa.public().as_ref());
                hmac::sign(&key, message).as_ref().to_vec()
            }
            _ => Vec::new(),
        }
    }

    /// Returns the public key for an algorithm as a JWK.
    pub fn jwk(&self, algorithm: &str, id: &str) -> Value {
        let mut jwk = match algorithm {
            "RS256" => {
                let public = rsa::PublicKeyComponents::<Vec<u8>>::from(self.rsa.public());
                json!({"kty": "RSA", "n": encode(&public.n), "e": encode(&public.e)})
            }
            "ES256" => {
                let point = self.ec.public_key().as_ref();
                json!({"kty": "EC", "crv": "P-256", "x": encode(&point[1..33]), "y": encode(&point[33..])})
            }
            _ => json!({"kty": "OKP", "crv": "Ed25519", "x": encode(self.ed.public_key().as_ref())}),
        };
        jwk["kid"] = json!(id);
        jwk["alg"] = json!(algorithm);
        jwk["use"] = json!("sig");
        jwk
    }
}

impl Signer {
    /// Returns the thumbprint of its key for ES256 (RFC 7638), to which a token can be bound (RFC 9449).
    pub fn thumbprint(&self) -> String {
        let jwk = self.jwk("ES256", "");
        let (x, y) = (&jwk["x"], &jwk["y"]);
        let canonical = format!(r#"{{"crv":"P-256","kty":"EC","x":{x},"y":{y}}}"#);
        encode(digest(&SHA256, canonical.as_bytes()).as_ref())
    }

    /// Returns a new proof that a request to `url` with this token comes from the owner of its key for
    /// ES256 (RFC 9449 §4.2).
    pub fn proof(&self, method: &str, url: &str, token: &str) -> String {
        static PROOFS: AtomicUsize = AtomicUsize::new(0);
        let id = PROOFS.fetch_add(1, Ordering::Relaxed).to_string();
        let header = json!({"typ": "dpop+jwt", "alg": "ES256", "jwk": self.jwk("ES256", "own")});
        let ath = encode(digest(&SHA256, token.as_bytes()).as_ref());
        let claims = json!({"jti": id, "htm": method, "htu": url, "iat": now(), "ath": ath});
        let message = format!("{}.{}", part(&header), part(&claims));
        let signature = encode(&self.sign("ES256", message.as_bytes()));
        format!("{message}.{signature}")
    }
}

/// An authorization server. Its thread ends with the process.
pub struct Issuer {
    /// Its identifier.
    pub url: String,
    /// Its keys.
    pub own: Signer,
    /// Keys that it does not have.
    pub other: Signer,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    keys: Mutex<Vec<Value>>,
    key_requests: AtomicUsize,
    is_gone: AtomicBool,
}

impl Issuer {
    /// One with a key for each algorithm, `k-RS256` and so on.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let (own, other) = (Signer::new(RSA), Signer::new(OTHER_RSA));
        let state = Arc::new(State::default());
        *state.keys.lock() =
            ["RS256", "ES256", "EdDSA"].map(|name| own.jwk(name, &format!("k-{name}"))).into();
        let (shared, base) = (Arc::clone(&state), url.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
                while !is_whole(&bytes) {
                    let Ok(count @ 1..) = stream.read(&mut piece) else { break };
                    bytes.extend_from_slice(&piece[..count]);
                }
                let (status, body) = shared.answer(&base, &String::from_utf8_lossy(&bytes));
                let head = format!(
                    "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                    body.len()
                );
                let _ = stream.write_all((head + &body).as_bytes());
            }
        });
        Self { url, own, other, state }
    }

    /// Returns a configuration that accepts its tokens, with more lines and these `scopes`.
    pub fn config(&self, scopes: &str, more: &str) -> String {
        format!(
            "auth: {{oauth: {{issuer: '{0}', audience: '{AUDIENCE}', jwks_uri: '{0}/jwks', scopes: {scopes}}}}}\n{more}",
            self.url
        )
    }

    /// Returns how often its keys were requested.
    pub fn key_requests(&self) -> usize {
        self.state.key_requests.load(Ordering::Relaxed)
    }

    /// Adds a key that signs with the other signer's RSA key.
    pub fn add_other_key(&self, id: &str) {
        self.state.keys.lock().push(self.other.jwk("RS256", id));
    }

    /// Answers no more.
    pub fn go(&self) {
        self.state.is_gone.store(true, Ordering::Relaxed);
    }

    /// Returns a token whose header and claims were changed after they were made.
    pub fn token(&self, algorithm: &str, change: impl FnOnce(&mut Value, &mut Value)) -> String {
        self.signed_by(&self.own, algorithm, change)
    }

    /// Returns a token that this signer has signed.
    pub fn signed_by(
        &self,
        signer: &Signer,
        algorithm: &str,
        change: impl FnOnce(&mut Value, &mut Value),
    ) -> String {
        let now = now();
        let mut header = json!({"alg": algorithm, "kid": format!("k-{algorithm}"), "typ": "at+jwt"});
        let mut claims = json!({
            "iss": self.url, "aud": AUDIENCE, "sub": "ada", "exp": now + 600, "iat": now, "nbf": now,
            "groups": ["dev"], "scope": "tools:read", "client_id": "c", "jti": "1",
        });
        change(&mut header, &mut claims);
        let message = format!("{}.{}", part(&header), part(&claims));
        let signature = encode(&signer.sign(algorithm, message.as_bytes()));
        format!("{message}.{signature}")
    }

    /// Returns a token of this person.
    pub fn token_of(&self, subject: &str, groups: &[&str], scope: &str) -> String {
        self.token("ES256", |_, claims| {
            claims["sub"] = json!(subject);
            claims["groups"] = json!(groups);
            claims["scope"] = json!(scope);
        })
    }
}

impl State {
    fn answer(&self, base: &str, request: &str) -> (u16, String) {
        let path = request.split(' ').nth(1).unwrap_or_default();
        if path == "/jwks" {
            self.key_requests.fetch_add(1, Ordering::Relaxed);
        }
        if self.is_gone.load(Ordering::Relaxed) {
            return (503, "{}".to_owned());
        }
        match path {
            "/jwks" => (200, json!({"keys": *self.keys.lock()}).to_string()),
            "/.well-known/oauth-authorization-server" => {
                (200, json!({"issuer": base, "jwks_uri": format!("{base}/jwks")}).to_string())
            }
            "/introspect" => {
                let is_active = request.contains("token=opaque-and-active");
                let answer =
                    json!({"active": is_active, "sub": "eve", "aud": AUDIENCE, "scope": "tools:read"});
                (200, answer.to_string())
            }
            _ => (404, "{}".to_owned()),
        }
    }
}

/// Returns whether a request has come to its end.
fn is_whole(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes).to_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length =
        head.lines().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse().ok());
    body.len() >= length.unwrap_or(0)
}

/// Seconds since the epoch.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_secs()
}

/// Bytes in base64url.
pub fn encode(bytes: &[u8]) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

/// Returns a part of a token.
pub fn part(value: &Value) -> String {
    encode(value.to_string().as_bytes())
}

/// RSA keys, made for these tests.
const RSA: &str = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC4o0s+RK593mRsSg9IYUQpJpNYu2cJlNMvtI9UMMGESVLmpJbL\
LJr3aKG7erXa3eWcKJy4KnQED2SihJaR7s0UdT+Ov7g+Y49pm6f6XlehIBYP15oZoTWLuYnLHas2+nwVxGnE40L1rNRfPWJ4rAOs\
eVgMg1wA+2chauqP7HtNJpiEfeBijXWnwNeSfJvLxSgdHXXUFGuV0urdTNSJ7O/BugP4IOcaykmnWZ7UUu5Dx2lphC3pqx6nkOZx\
MGhWeHO4N8rmewCEmRInMAjP9cnIhLJfHhHcAHSikRMNylgPTR9t2rah/fvoMlGvc6Thj4pl5/AWp0ZYYk6oh3YnO7RxAgMBAAEC\
ggEABLB9Cj1TUzYRReDRp4x03ziwGFpWIRurC3SiCUjduV7lYJ9AhzOAUhVRukHBGah2GvO7G0BUxv+fFjOY4Wb3xXO+5ADBjLAZ\
pdyCtSytPBXlCYz3yHvcMMrLEaIUxaYx/ZmJ+Cqvei7kC/EyrY7s3vYMAvFZJls8QNCG2ZXvgcOUneKP/u4aU9lTqH7YFtT7oP4E\
Imbh8fyN7sZBCf+HwjqOz60asGE67Ziy9Hor0UVOXqpbxPKnapW7v4lcnOjptn3RVWU08q8zpNY3EwS8hHauuMDkOkQZYrPVdEL/\
NSSZ3FhO/sL+WECzg60VOIgppbG3shHQLkylcSNPbJY3eQKBgQDoDuQLrbsZGAQpsYZI6dXQG1giExLuJDfaD5FhPUPjDv71eojP\
J2IL//sjQqvrV+fMQdx/JHQ9RJCF+r1rxNRHUKc91/S38AbHxayUs9ha/Cw1c5hNkmgRywhLV2+Td7k18Vkxg/v6MKfIzIARRm0Z\
fsjRJr8IatFCkTQ01mAwZQKBgQDLr/C/BY0wWfXQloXOW1lRZbftVfVdAxm7eJNCqO39R0Cz3c8ZB6Txx7lyi2dyW75yyZI81Zsa\
Gid3uMwDhmjxDW7lTh1W0tZfmXEC4IvuuqC+1UfxLD8BSVAA/PTNpRCQ+5h19QWayXOngvchPPMyZ7gXgrU3/Ufg1GIqB+9FHQKB\
gBnQHjnWV2uRKlVg8+kEac4+XG1d5csrqDLPbIJ+iCCnuGCiArnYTaW8Ebl4XxtMqfIkmVxjN7Lg/5qHq65jNKHCLPhKH2SehIKQ\
UIQyBS0Jw/kmJJjsYjsodIG89iJXPPjtIdjKL6tC4kcJyG0jgltFqRzqzHEpQKHA+SeveP+pAoGBALCKz0yR4D0PS+q9/D3OmUze\
sBtKjL9QZ6ZArMpzJsuHTYJYdx7HrGRPauHoCAJrmFdfdJu7vJJUJu8ywckwX5bGwN6I5Q8S8PGtSfFndIG3Son8zD0xz24q/+fL\
V9dCAWjYWN2sQG5XuyFudwpdDKEcmsft52oe4oTxMCAj/nPVAoGARC44boxxxP8g4txBEGIC3LB7aibC89BKfRt+ouL6bTuDquxW\
fLvbe6+AZAdeAdISO3i91ZXzmHYTI4jU5CVjs876jEJFThS6qFcNiwJkTq+3+2d/5awF7idZ1S63dVF6IibSrAf24oYiFUbfdJ0M\
2xhiJ52RXEJyvlYfhBC3M3w=";
const OTHER_RSA: &str = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7++32z5ZG+Jy46W5PsGbZtGVRQmbzOm/0h+LxOzgAC2sh/WIR\
qJnD4jkvpbdhv/NV/aXqfyUkSyxuBxg9bOJN03kiJ793ARaZhaC0rjp3f5bzykiYjUIJOy1gqatCloCe7xEJ5AOcKCtp/TPEaJPO\
beqVIpD7bFLwehj1ChvhzlYH8HMe+YRsrjBg2x1Zq45nAnjrCWsQEzrCO63VQ+nGuany+IiP5Io8kkUQdVT8nRfBq4u3hAb8Lmtc\
feKt6+xDNye5Y9mLO0Xou1Q0S8HQwLWmTfLBqX+NmiKALK5FTtKPuWZWLGWEFGrxpbg8gpgVta3YzAFAMk+sJqkXfX8rAgMBAAEC\
ggEADOFhuEAYCWvefTMNamtpWLBqIsu8dx0Bb81hyOqoVyRxJkaQ0intw0S8a13c91cqKrGzDSLCHj8CX9WfnRHZXcDIM4VqspJC\
BKnpzYeEnQyCgNjS6ZUAOdaysMVfZTQfwwQZdEaJ0sjT1LLTObl6qzHP2YEhUwDkm/KZxCx5pZqaLWKSQM4C9Jf+esBs2KMEDCY6\
Y4BHuU1zxOdSrSN2pBKIkWNXXyrPoCAPFpykRW457HMQQGNAPwzM7NwuDDN8o4ObHz10jojb8uhvIn10vf5tjgFYIeMPeHvvH4Kk\
7zmiAE4bPylCN1DFHhWz4F26GNYDzMNuvQ7R+jmQAQrYBQKBgQDcYDb+gVr+FGD7o/h9/DaZLvnAWa+K1jrc22FaR8Mo6zH7v5kY\
TXkRon4CVdr6vQ7kaUrd544G3BR2LQjsDDnLwUjUmdws4+gzMPBXiJqHh68KX8/+YiFyRGejb0FoRgkLg5iPMbaMQvlJGrC3Eyd8\
IVX8jYWou5vSJBhPlA0PxwKBgQDaX0BjdoY5WRL3hj9QYA8DzcgZTKUzZdFZv5F2yWIYTsOlbPxewdM2E2JhMMxpzsNI0+OPixCs\
VUnRhFZwsfhQgl+CQAVVmeAHh2YUBTEOwwCI9aieP14EBPZuVki29+ofTRzYx8qg3jIcWLhn6rJkd30aARBi7DLkqJsmQZLdfQKB\
gQDFAXJIRKVufBNTAfuTzNOWT0tPrB1ktSz74VZ/WaXav574Wgjnk+KGZEfXmJ7hBf/5KzOVenoaIcZc+td+BVPplYmhHUaaDse2\
c6p35hOW0zIkyRBsbZdOyl4H2d6T9AAD/gl1AVEaxIiL1MNjdkkXC8oNswpolAaxbjkZctXWYwKBgHvonn2RrHnv/B4ts9FkoEB1\
TLxmTDsM5Cy70cuIW7wVPViprc4Kx1Eg0Kr7aJIFO7QgXzh9HVncD0XuhKnvokn0oEMlFqHK7V74SkjD5WFN7wjH9ATPSgaX1kkn\
dp0zsUpPlDXBsE11pxOEmCaG+vCdCIRv5B9tjTdIILklbjN1AoGAYLdpwm40d+O5F4FWkCc7ZdFAe6sYAFbjelWty+bMuZT6zlYr\
r03cMK2bJM8hiMzsrvsjlDag2AYVw+LyYZdIfcPHuzt5WyMKYngFdjcTnWO1DeeuqgIQ1gMJD0IvaSrAWTabYz10phlCTV4wMDZD\
rORqhz2it4+YhgU6y81nBgg=";
