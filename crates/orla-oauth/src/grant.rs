//! Requests to a token endpoint: their forms, and how the client authenticates (OAuth 2.1 §2.4, §3.2). Pure.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};
use url::form_urlencoded;

use crate::metadata::ServerMetadata;
use crate::scope::Scopes;
use crate::secret::Secret;

const TOKEN_EXCHANGE: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
const DEVICE_CODE: &str = "urn:ietf:params:oauth:grant-type:device_code";
const ACCESS_TOKEN: &str = "urn:ietf:params:oauth:token-type:access_token";

/// The grant of a token request.
#[derive(Clone, Debug)]
pub enum Grant {
    /// The code of a sign-in (OAuth 2.1 §4.1.3).
    Code {
        /// The code.
        code: Secret,
        /// The redirect address of the sign-in.
        redirect_uri: String,
        /// The PKCE verifier of the sign-in.
        verifier: Secret,
    },
    /// A refresh token (OAuth 2.1 §4.3).
    Refresh(Secret),
    /// Client credentials (OAuth 2.1 §4.2).
    ClientCredentials,
    /// The token of a caller, to be exchanged (RFC 8693 §2.1).
    Exchange(Secret),
    /// A device code (RFC 8628 §3.4).
    Device(Secret),
}

impl Grant {
    /// Returns the name in requests.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Code { .. } => "authorization_code",
            Self::Refresh(_) => "refresh_token",
            Self::ClientCredentials => "client_credentials",
            Self::Exchange(_) => TOKEN_EXCHANGE,
            Self::Device(_) => DEVICE_CODE,
        }
    }
}

/// A client that is registered at an authorization server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Client {
    /// Its id.
    pub id: String,
    /// The client secret, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Secret>,
    /// The authentication method, if the server has assigned one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
}

/// How a client authenticates (RFC 7591 §2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// No authentication.
    None,
    /// In the header field `Authorization`.
    Basic,
    /// In the form.
    Post,
}

impl Method {
    /// Returns the name in requests.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Basic => "client_secret_basic",
            Self::Post => "client_secret_post",
        }
    }
}

impl Client {
    /// Returns the authentication method for a server with this metadata: the registered one, else one
    /// that the server offers.
    pub fn method(&self, metadata: Option<&ServerMetadata>) -> Method {
        if self.secret.is_none() {
            return Method::None;
        }
        match self.method.as_deref() {
            Some("none") => return Method::None,
            Some("client_secret_post") => return Method::Post,
            Some("client_secret_basic") => return Method::Basic,
            _ => {}
        }
        let offered = metadata.and_then(|known| known.token_endpoint_auth_methods_supported.as_deref());
        let offers = |method: &str| offered.is_some_and(|all| all.iter().any(|one| one == method));
        // By default, all servers must support the first method (RFC 8414 §2).
        match () {
            () if offered.is_none() || offers("client_secret_basic") => Method::Basic,
            () if offers("client_secret_post") => Method::Post,
            () if offers("none") => Method::None,
            () => Method::Basic,
        }
    }
}

/// A request to a token endpoint.
#[derive(Clone, Debug)]
pub struct TokenRequest<'a> {
    /// The grant.
    pub grant: &'a Grant,
    /// The client.
    pub client: &'a Client,
    /// The authentication method.
    pub method: Method,
    /// The server that the token is for (RFC 8707 §2).
    pub resource: &'a str,
    /// The server's name at the authorization server (RFC 8693 §2.1).
    pub audience: Option<&'a str>,
    /// The scopes; none if empty.
    pub scopes: &'a Scopes,
}

/// A request in its encoded form.
#[derive(Clone, Debug)]
pub struct Form {
    /// The body.
    pub body: Secret,
    /// The value of `Authorization`, if there is one.
    pub authorization: Option<Secret>,
}

impl TokenRequest<'_> {
    /// Returns the secrets in it.
    pub fn secrets(&self) -> Vec<Secret> {
        let mut secrets: Vec<Secret> = self.client.secret.iter().cloned().collect();
        match self.grant {
            Grant::Code { code, verifier, .. } => secrets.extend([code.clone(), verifier.clone()]),
            Grant::Refresh(text) | Grant::Exchange(text) | Grant::Device(text) => {
                secrets.push(text.clone());
            }
            Grant::ClientCredentials => {}
        }
        secrets
    }

    /// Returns the form of the request.
    pub fn form(&self) -> Form {
        let mut fields: Vec<(&str, &str)> = vec![("grant_type", self.grant.name())];
        match self.grant {
            Grant::Code { code, redirect_uri, verifier } => fields.extend([
                ("code", code.expose()),
                ("redirect_uri", redirect_uri),
                ("code_verifier", verifier.expose()),
            ]),
            Grant::Refresh(token) => fields.push(("refresh_token", token.expose())),
            Grant::ClientCredentials => {}
            Grant::Exchange(token) => fields.extend([
                ("subject_token", token.expose()),
                ("subject_token_type", ACCESS_TOKEN),
                ("requested_token_type", ACCESS_TOKEN),
            ]),
            Grant::Device(code) => fields.push(("device_code", code.expose())),
        }
        fields.push(("resource", self.resource));
        fields.extend(self.audience.map(|audience| ("audience", audience)));
        let scopes = self.scopes.to_string();
        // The scopes of a code are those of its request, and a refresh keeps those of the token.
        let names_scopes =
            !matches!(self.grant, Grant::Code { .. } | Grant::Refresh(_) | Grant::Device(_));
        if names_scopes && !scopes.is_empty() {
            fields.push(("scope", &scopes));
        }
        with_client(fields, self.client, self.method)
    }
}

/// Returns a form of these fields, with the client's authentication.
pub fn with_client(fields: Vec<(&str, &str)>, client: &Client, method: Method) -> Form {
    let mut fields = fields;
    let secret = client.secret.as_ref().map(Secret::expose).unwrap_or_default();
    let authorization = (method == Method::Basic).then(|| {
        // Both are form-encoded first (OAuth 2.1 §2.4.1).
        let encode = |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
        let pair = format!("{}:{}", encode(&client.id), encode(secret));
        Secret::new(format!("Basic {}", BASE64_STANDARD.encode(pair)))
    });
    if method != Method::Basic {
        fields.push(("client_id", &client.id));
    }
    if method == Method::Post {
        fields.push(("client_secret", secret));
    }
    let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
    Form { body: Secret::new(body), authorization }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(secret: Option<&str>) -> Client {
        Client { id: "o rla".into(), secret: secret.map(Secret::new), method: None }
    }

    fn form(grant: &Grant, client: &Client, method: Method) -> (String, Option<String>) {
        let scopes = Scopes::parse("a b");
        let request = TokenRequest {
            grant,
            client,
            method,
            resource: "https://a.example/mcp",
            audience: Some("up"),
            scopes: &scopes,
        };
        let form = request.form();
        (
            form.body.expose().to_owned(),
            form.authorization.map(|authorization| authorization.expose().to_owned()),
        )
    }

    #[test]
    fn each_grant_has_its_form() {
        let own = client(None);
        let of = |grant: Grant| form(&grant, &own, Method::None).0;
        let rest = "resource=https%3A%2F%2Fa.example%2Fmcp&audience=up";
        assert_eq!(
            of(Grant::ClientCredentials),
            format!("grant_type=client_credentials&{rest}&scope=a+b&client_id=o+rla")
        );
        assert_eq!(
            of(Grant::Refresh(Secret::new("r+"))),
            format!("grant_type=refresh_token&refresh_token=r%2B&{rest}&client_id=o+rla")
        );
        assert_eq!(
            of(Grant::Exchange(Secret::new("t"))),
            format!(
                "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Atoken-exchange&subject_token=t&subject_token_type=urn%3Aietf%3Aparams%3Aoauth%3Atoken-type%3Aaccess_token&requested_token_type=urn%3Aietf%3Aparams%3Aoauth%3Atoken-type%3Aaccess_token&{rest}&scope=a+b&client_id=o+rla"
            )
        );
        let code = Grant::Code {
            code: Secret::new("c"),
            redirect_uri: "http://127.0.0.1:1/callback".into(),
            verifier: Secret::new("v"),
        };
        assert_eq!(
            of(code),
            format!(
                "grant_type=authorization_code&code=c&redirect_uri=http%3A%2F%2F127.0.0.1%3A1%2Fcallback&code_verifier=v&{rest}&client_id=o+rla"
            )
        );
    }

    #[test]
    fn a_client_authenticates_as_the_server_offers() {
        let (body, authorization) = form(&Grant::ClientCredentials, &client(Some("p:w")), Method::Basic);
        assert!(!body.contains("client_id") && !body.contains("p%3Aw"), "{body}");
        assert_eq!(authorization.unwrap(), format!("Basic {}", BASE64_STANDARD.encode("o+rla:p%3Aw")));
        let (body, authorization) = form(&Grant::ClientCredentials, &client(Some("p")), Method::Post);
        assert!(body.ends_with("client_id=o+rla&client_secret=p") && authorization.is_none(), "{body}");

        let metadata = |methods: &[&str]| ServerMetadata {
            token_endpoint_auth_methods_supported: Some(methods.iter().map(|m| (*m).into()).collect()),
            ..ServerMetadata::default()
        };
        let own = client(Some("p"));
        assert_eq!(own.method(None), Method::Basic);
        assert_eq!(own.method(Some(&metadata(&["client_secret_post"]))), Method::Post);
        assert_eq!(
            own.method(Some(&metadata(&["client_secret_post", "client_secret_basic"]))),
            Method::Basic
        );
        assert_eq!(own.method(Some(&metadata(&["none"]))), Method::None);
        assert_eq!(own.method(Some(&metadata(&["private_key_jwt"]))), Method::Basic);
        assert_eq!(client(None).method(Some(&metadata(&["client_secret_post"]))), Method::None);
        let registered = Client { method: Some("none".into()), ..own };
        assert_eq!(registered.method(None), Method::None);
    }

    #[test]
    fn no_secret_of_a_request_is_shown() {
        let grant = Grant::Exchange(Secret::new("s3cret"));
        let own = client(Some("s3cret"));
        let scopes = Scopes::default();
        let request = TokenRequest {
            grant: &grant,
            client: &own,
            method: Method::Post,
            resource: "r",
            audience: None,
            scopes: &scopes,
        };
        assert!(!format!("{request:?} {:?}", request.form()).contains("s3cret"));
    }
}
