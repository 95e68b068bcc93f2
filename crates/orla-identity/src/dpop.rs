//! Proof of possession (RFC 9449): a token that is bound to a key is accepted only with a fresh proof of that key.

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::digest::{SHA256, digest};
use serde_json::Value;

use crate::algorithm::PublicKey;
use crate::json::Object;
use crate::jws::Signed;
use crate::remembered::RememberedDigests;

/// The maximum difference between the time of a proof and the current time.
const FRESH: Duration = Duration::from_secs(60);

/// The request that a proof must match.
pub(crate) struct Request<'a> {
    pub(crate) method: &'a str,
    /// The address, without query and fragment.
    pub(crate) address: &'a str,
    pub(crate) token: &'a str,
}

/// Checks a proof (RFC 9449 §4.3).
///
/// # Errors
/// What is wrong with it, for the log.
pub(crate) fn check(
    proof: &str,
    request: &Request<'_>,
    thumbprint: &str,
    used: &RememberedDigests,
    now: SystemTime,
) -> Result<(), &'static str> {
    let signed = Signed::parse(proof).map_err(|_| "the DPoP proof is malformed")?;
    if signed.media_type().as_deref() != Some("dpop+jwt") {
        return Err("the DPoP proof has another type");
    }
    let jwk = signed.header.get("jwk").and_then(Value::as_object);
    let jwk = jwk.filter(|jwk| !jwk.contains_key("d")).ok_or("the DPoP proof has no public key")?;
    if thumbprint_of(jwk).as_deref() != Some(thumbprint) {
        return Err("the DPoP proof is of another key");
    }
    let claim = |name: &str| signed.claims.get(name).and_then(Value::as_str);
    if claim("htm") != Some(request.method)
        || !claim("htu").is_some_and(|htu| same(htu, request.address))
    {
        return Err("the DPoP proof is for another request");
    }
    if claim("ath") != Some(&*sha256(request.token.as_bytes())) {
        return Err("the DPoP proof is for another token");
    }
    let issued = signed.claims.get("iat").and_then(Value::as_f64).filter(|seconds| *seconds >= 0.0);
    let issued = issued.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let issued = issued.and_then(|since| SystemTime::UNIX_EPOCH.checked_add(since));
    let is_fresh = |issued: SystemTime| match now.duration_since(issued) {
        Ok(age) => age <= FRESH,
        Err(ahead) => ahead.duration() <= FRESH,
    };
    if !issued.is_some_and(is_fresh) {
        return Err("the DPoP proof is not fresh");
    }
    let key = PublicKey::from_jwk(jwk).ok_or("the key of the DPoP proof is not supported")?;
    if !key.verifies(signed.algorithm, signed.message, &signed.signature) {
        return Err("the signature of the DPoP proof is wrong");
    }
    let id =
        claim("jti").filter(|id| (1..=256).contains(&id.len())).ok_or("the DPoP proof has no id")?;
    let id = digest(&SHA256, format!("{thumbprint} {id}").as_bytes());
    let id = id.as_ref().try_into().map_err(|_| "the DPoP proof has no id")?;
    // The id is remembered for as long as the proof is fresh, before or after the current time.
    if used.add(id, 2 * FRESH) { Ok(()) } else { Err("the DPoP proof was used before") }
}

/// Returns the thumbprint of a public key (RFC 7638).
fn thumbprint_of(jwk: &Object) -> Option<String> {
    let members: &[&str] = match jwk.get("kty")?.as_str()? {
        "RSA" => &["e", "kty", "n"],
        "EC" => &["crv", "kty", "x", "y"],
        "OKP" => &["crv", "kty", "x"],
        _ => return None,
    };
    let required: Option<Vec<String>> = members
        .iter()
        .map(|name| Some(format!("{}:{}", Value::from(*name), Value::from(jwk.get(*name)?.as_str()?))))
        .collect();
    Some(sha256(format!("{{{}}}", required?.join(",")).as_bytes()))
}

fn sha256(bytes: &[u8]) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(digest(&SHA256, bytes))
}

/// Returns whether two addresses are equal except for query and fragment, the case of the host, and the
/// port that the scheme implies (RFC 9449 §4.3).
fn same(claimed: &str, address: &str) -> bool {
    match (normal(claimed), normal(address)) {
        (Some(claimed), Some(address)) => claimed == address,
        _ => false,
    }
}

fn normal(address: &str) -> Option<(String, String, u16, String)> {
    let uri: http::Uri = address.split('#').next()?.parse().ok()?;
    let scheme = uri.scheme_str()?.to_ascii_lowercase();
    let implied = if scheme == "https" { 443 } else { 80 };
    let path = if uri.path().is_empty() { "/" } else { uri.path() };
    Some((scheme, uri.host()?.to_ascii_lowercase(), uri.port_u16().unwrap_or(implied), path.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring::signature::{Ed25519KeyPair, KeyPair as _};
    use serde_json::json;

    /// Changes the header and the claims of a proof.
    type Change = fn(&mut Value, &mut Value);

    const TOKEN: &str = "the-token";
    const ADDRESS: &str = "https://orla.example/mcp";

    fn pair(seed: u8) -> Ed25519KeyPair {
        Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap()
    }

    fn jwk(pair: &Ed25519KeyPair) -> Value {
        let x = BASE64_URL_SAFE_NO_PAD.encode(pair.public_key());
        json!({"kty": "OKP", "crv": "Ed25519", "x": x})
    }

    fn proof(change: impl FnOnce(&mut Value, &mut Value)) -> String {
        let pair = pair(1);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let mut header = json!({"typ": "dpop+jwt", "alg": "EdDSA", "jwk": jwk(&pair)});
        let mut claims = json!({"htm": "POST", "htu": ADDRESS, "iat": now, "jti": "1", "ath": sha256(TOKEN.as_bytes())});
        change(&mut header, &mut claims);
        let encode = |value: Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
        let message = format!("{}.{}", encode(header), encode(claims));
        let signature = BASE64_URL_SAFE_NO_PAD.encode(pair.sign(message.as_bytes()));
        format!("{message}.{signature}")
    }

    fn check_with(proof: &str, used: &RememberedDigests) -> Result<(), &'static str> {
        let thumbprint = thumbprint_of(jwk(&pair(1)).as_object().unwrap()).unwrap();
        let request = Request { method: "POST", address: ADDRESS, token: TOKEN };
        check(proof, &request, &thumbprint, used, SystemTime::now())
    }

    #[test]
    fn a_proof_is_for_one_request_one_token_and_one_use() {
        let used = RememberedDigests::default();
        let good = proof(|_, _| {});
        assert_eq!(check_with(&good, &used), Ok(()));
        assert_eq!(check_with(&good, &used), Err("the DPoP proof was used before"));
        let variants: [(&str, Change); 12] = [
            ("method", |_, claims| claims["htm"] = json!("GET")),
            ("address", |_, claims| claims["htu"] = json!("https://evil.example/mcp")),
            ("path", |_, claims| claims["htu"] = json!("https://orla.example/other")),
            ("scheme", |_, claims| claims["htu"] = json!("http://orla.example/mcp")),
            ("token", |_, claims| claims["ath"] = json!("x")),
            ("old", |_, claims| claims["iat"] = json!(1_700_000_000)),
            ("no time", |_, claims| claims["iat"] = json!(null)),
            ("no id", |_, claims| claims["jti"] = json!("")),
            ("type", |header, _| header["typ"] = json!("at+jwt")),
            ("key", |header, _| header["jwk"] = jwk(&pair(2))),
            ("private key", |header, _| header["jwk"]["d"] = json!("x")),
            ("algorithm", |header, _| header["alg"] = json!("ES256")),
        ];
        for (name, change) in variants {
            assert!(check_with(&proof(change), &RememberedDigests::default()).is_err(), "{name}");
        }
        let equal = proof(|_, claims| claims["htu"] = json!("https://ORLA.example:443/mcp?x#y"));
        assert_eq!(check_with(&equal, &RememberedDigests::default()), Ok(()));
    }

    #[test]
    fn a_thumbprint_is_that_of_the_specification() {
        // RFC 7638 §3.1.
        let jwk = json!({
            "kty": "RSA", "alg": "RS256", "kid": "2011-04-29", "e": "AQAB",
            "n": "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw"
        });
        let thumbprint = thumbprint_of(jwk.as_object().unwrap());
        assert_eq!(thumbprint.as_deref(), Some("NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs"));
    }
}
