//! A small client of a running orla: one request, one answer (MCP 2026-07-28, which needs no session).

use std::time::Duration;

use orla_mcp::framing::{Events, TooLarge};
use orla_mcp::object::Object;
use orla_oauth::root_cause;
use orla_providers::mcp::header_value;
use reqwest::{Client, RequestBuilder, Response, StatusCode, Url};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::Failure;
use crate::config::Config;
use crate::http_client;

const REVISION: &str = "2026-07-28";
/// The timeout for a document whose server waits for its providers, which have times of their own.
const LEARNED: Duration = Duration::from_secs(300);
/// The timeout for a document. A call takes as long as the server allows.
const DOCUMENT: Duration = Duration::from_secs(30);
/// Bytes of an answer that are read.
const MAX_ANSWER: usize = 256 * 1024 * 1024;

/// A server, by its address.
pub(crate) struct Server {
    client: Client,
    base: Url,
    token: Option<String>,
}

/// The answer to a request, or the server's refusal.
pub(crate) enum Reply {
    /// The JSON text of `result`.
    Result(String),
    Error(String),
}

/// Paths of a server that do not speak MCP.
const NOT_MCP: [&str; 4] = ["/rtfs", "/status", "/metrics", "/healthz"];

/// The message to a person when a server disappears.
const ENDED: &str = "the connection ended before the answer: the server was stopped, or is gone; \
                     what was asked for may have been done";

/// Returns whether the connection of a request ended before its answer did.
fn has_ended(err: &reqwest::Error) -> bool {
    use std::error::Error;
    use std::io::ErrorKind;
    const ENDS: [ErrorKind; 4] = [
        ErrorKind::UnexpectedEof,
        ErrorKind::ConnectionReset,
        ErrorKind::ConnectionAborted,
        ErrorKind::BrokenPipe,
    ];
    const ENDED_BY: [&str; 4] = [
        "connection closed before message completed",
        "close_notify",
        "connection reset",
        "broken pipe",
    ];
    let mut causes = std::iter::successors(err.source(), |&cause| cause.source());
    causes.any(|cause| match cause.downcast_ref::<std::io::Error>() {
        Some(err) => ENDS.contains(&err.kind()),
        // The errors of hyper and h2 say so only in their text.
        None => {
            let text = cause.to_string().to_lowercase();
            ENDED_BY.iter().any(|words| text.contains(words))
        }
    })
}

/// Returns the advice for a failed connection.
fn remedy(cause: &str) -> String {
    match cause.strip_prefix("invalid peer certificate: ") {
        Some(why) if why.contains("CaUsedAsEndEntity") => {
            "the certificate of the server is one of an authority: make it with basicConstraints CA:FALSE \
             (openssl req … -addext basicConstraints=critical,CA:FALSE)"
                .to_owned()
        }
        Some(why) => format!(
            "the certificate of the server is not trusted: {why}; name the certificate of its authority with --ca"
        ),
        None if cause.starts_with("received corrupt message") => {
            "the server does not speak TLS; write http:// in its address".to_owned()
        }
        None => format!("{cause}; start a server with `orla`, or name one with --url"),
    }
}

impl Server {
    /// Returns a server at a URL, or at the address of the configuration. The token of the configuration
    /// is sent only to that address; `ORLA_TOKEN` is sent to any address, if it is set.
    pub(crate) fn at(url: Option<&str>, config: &Config) -> Result<Self, Failure> {
        let own = config.own_address();
        if url.is_none() && config.port == 0 {
            return Err(Failure::usage(
                "the configured port is 0, any free one: name the server with --url",
            ));
        }
        let text = url.unwrap_or(&own);
        let base: Url = text
            .parse()
            .ok()
            .filter(|url: &Url| matches!(url.scheme(), "http" | "https") && url.has_host())
            .ok_or_else(|| Failure::usage(format!("--url {text}: expected http://HOST:PORT")))?;
        if NOT_MCP.contains(&base.path()) {
            let what = format!("expected http://HOST:PORT, without {}", base.path());
            return Err(Failure::usage(format!("--url {text}: {what}")));
        }
        let token = std::env::var("ORLA_TOKEN").ok().filter(|token| !token.is_empty());
        let is_own = own.parse::<Url>().is_ok_and(|own| own.origin() == base.origin());
        let token = token
            .or_else(|| config.auth_tokens.first().filter(|_| is_own).map(|token| token.secret.clone()));
        Ok(Self { client: http_client::trusting(&config.ca)?, base, token })
    }

    /// Sends one MCP request; `notify` receives the messages before the answer. `name` is the subject of the
    /// request, and the values of `params` are sent unchanged.
    pub(crate) async fn request(
        &self,
        method: &str,
        name: &str,
        params: &[(&str, Box<RawValue>)],
        notify: impl Fn(&Value),
    ) -> Result<Reply, Failure> {
        let mut url = self.base.clone();
        if url.path() == "/" {
            url.set_path("/mcp");
        }
        let request = self
            .client
            .post(url)
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream")
            .header("mcp-protocol-version", REVISION)
            .header("mcp-method", method)
            .header("mcp-name", header_value(name));
        let response = self.send(request.body(body(method, params))).await?;
        self.read_reply(response, notify).await
    }

    /// Gets a document, such as `/status`.
    pub(crate) async fn get(&self, path: &str) -> Result<String, Failure> {
        self.document(self.client.get(self.url(path))).await
    }

    /// Gets a document for which the server starts and asks its providers.
    pub(crate) async fn get_listed(&self, path: &str) -> Result<String, Failure> {
        self.document_within(self.client.get(self.url(path)), LEARNED).await
    }

    /// Posts a JSON document, and returns the answer.
    pub(crate) async fn post(&self, path: &str, json: String) -> Result<String, Failure> {
        let request = self.client.post(self.url(path)).header("content-type", "application/json");
        self.document(request.body(json)).await
    }

    /// Deletes the resource at this path, and returns the answer.
    pub(crate) async fn delete(&self, path: &str) -> Result<String, Failure> {
        self.document(self.client.delete(self.url(path))).await
    }

    /// Returns the address of a path with its query.
    fn url(&self, path: &str) -> Url {
        let mut url = self.base.clone();
        let (path, query) =
            path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
        url.set_path(path);
        url.set_query(query);
        url
    }

    /// Returns the answer to a request.
    async fn document(&self, request: RequestBuilder) -> Result<String, Failure> {
        self.document_within(request, DOCUMENT).await
    }

    async fn document_within(&self, request: RequestBuilder, time: Duration) -> Result<String, Failure> {
        let response = self.send(request.timeout(time)).await?;
        let status = response.status();
        let body = self.read(response).await?;
        match status.is_success() {
            true => Ok(body),
            false => Err(self.failure(&refusal(&body).unwrap_or_else(|| refused(status, &body)))),
        }
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, Failure> {
        let request = match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        };
        request.send().await.map_err(|err| match err.is_connect() {
            true => self.failure(&format!("cannot connect: {}", remedy(&root_cause(&err)))),
            false => self.broken(&err),
        })
    }

    async fn read(&self, mut response: Response) -> Result<String, Failure> {
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|err| self.broken(&err))? {
            bytes.extend_from_slice(&chunk);
            if bytes.len() > MAX_ANSWER {
                return Err(self.failure("the answer is too large"));
            }
        }
        String::from_utf8(bytes).map_err(|_| self.failure("the answer is not UTF-8"))
    }

    async fn read_reply(
        &self,
        mut response: Response,
        notify: impl Fn(&Value),
    ) -> Result<Reply, Failure> {
        let status = response.status();
        let kind = response.headers().get("content-type").and_then(|kind| kind.to_str().ok());
        if !kind.is_some_and(|kind| kind.starts_with("text/event-stream")) {
            let body = self.read(response).await?;
            return message(body.as_bytes())
                .and_then(|(_, reply)| reply)
                .ok_or_else(|| self.failure(&refused(status, &body)));
        }
        let mut events = Events::with_limit(MAX_ANSWER);
        while let Some(chunk) = response.chunk().await.map_err(|err| self.broken(&err))? {
            events.push(&chunk);
            while let Some(event) =
                events.next().map_err(|TooLarge| self.failure("the answer is too large"))?
            {
                match message(&event.data) {
                    Some((_, Some(reply))) => return Ok(reply),
                    Some((message, None)) => notify(&message),
                    None => {}
                }
            }
        }
        Err(self.failure(ENDED))
    }

    /// Returns whether anything listens there.
    pub(crate) async fn is_reachable(&self) -> bool {
        let host = self.base.host_str().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port = self.base.port_or_known_default().unwrap_or_default();
        TcpStream::connect((host, port)).await.is_ok()
    }

    /// Returns the failure of a request that was sent, or of its answer.
    fn broken(&self, err: &reqwest::Error) -> Failure {
        self.failure(&match has_ended(err) {
            true => ENDED.to_owned(),
            false => root_cause(err),
        })
    }

    fn failure(&self, what: &str) -> Failure {
        Failure::failed(format!("{}: {what}", self.base.as_str().trim_end_matches('/')))
    }
}

/// Returns a JSON-RPC request with the metadata that a sessionless client sends every time.
fn body(method: &str, params: &[(&str, Box<RawValue>)]) -> String {
    let mut meta = json!({
        "io.modelcontextprotocol/protocolVersion": REVISION,
        "io.modelcontextprotocol/clientInfo": {"name": "orla-call", "version": env!("CARGO_PKG_VERSION")},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let mut members = Vec::new();
    for (key, value) in params {
        if *key == "_meta" {
            if let (Value::Object(meta), Ok(Value::Object(more))) =
                (&mut meta, serde_json::from_str(value.get()))
            {
                meta.extend(more);
            }
        } else {
            members.push(format!("{}:{value}", Value::from(*key)));
        }
    }
    members.push(format!("\"_meta\":{meta}"));
    let (method, params) = (Value::from(method), members.join(","));
    format!(r#"{{"jsonrpc":"2.0","id":1,"method":{method},"params":{{{params}}}}}"#)
}

/// Returns a JSON-RPC message, and its reply if it is a response.
fn message(text: &[u8]) -> Option<(Value, Option<Reply>)> {
    #[derive(serde::Deserialize)]
    struct Response<'a> {
        #[serde(borrow, default)]
        result: Option<&'a RawValue>,
    }
    let response: Response<'_> = serde_json::from_slice(text).ok()?;
    // A result may have data that no value can hold.
    if let Some(result) = response.result {
        return Some((Value::Null, Some(Reply::Result(result.get().to_owned()))));
    }
    let message = readable(std::str::from_utf8(text).ok()?)?;
    let error = message
        .get("error")
        .map(|error| Reply::Error(error["message"].as_str().unwrap_or("unknown error").to_owned()));
    Some((message, error))
}

/// Parses JSON into a value for people. JSON that no value can hold (1e400, a lone surrogate, 128
/// levels) becomes its text.
pub(super) fn readable(text: &str) -> Option<Value> {
    const LEVELS: usize = 32;
    fn below(raw: &RawValue, levels: usize) -> Value {
        let text = raw.get();
        if let Ok(value) = serde_json::from_str(text) {
            return value;
        }
        let deeper = levels.checked_sub(1);
        if let Some((levels, object)) = deeper.zip(Object::parse(text)) {
            let member = |(name, text): (&str, &str)| {
                let value =
                    serde_json::from_str(text).map_or_else(|_| text.into(), |raw| below(raw, levels));
                (name.to_owned(), value)
            };
            return object.members().map(member).collect();
        }
        if let Some((levels, items)) = deeper.zip(serde_json::from_str::<Vec<&RawValue>>(text).ok()) {
            return items.into_iter().map(|raw| below(raw, levels)).collect();
        }
        Value::from(text)
    }
    serde_json::from_str(text).ok().map(|raw| below(raw, LEVELS))
}

/// Returns the message of an error that the server describes.
fn refusal(body: &str) -> Option<String> {
    let body: Value = serde_json::from_str(body).ok()?;
    body["error"]["message"].as_str().map(str::to_owned)
}

/// Returns the failure for an answer of the server other than the expected one.
fn refused(status: StatusCode, body: &str) -> String {
    let hint = match status {
        StatusCode::UNAUTHORIZED => "; set ORLA_TOKEN to a token that the server accepts",
        _ => "",
    };
    format!("the server answered {status}{}{hint}", quoted(body))
}

fn quoted(body: &str) -> String {
    match body.trim() {
        "" => String::new(),
        text => format!(": {}", crate::render::cut(text, 200)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_distinguished_from_notifications() {
        let reply = |text: &str| message(text.as_bytes()).and_then(|(_, reply)| reply);
        assert!(
            matches!(reply(r#"{"id":1,"result":{"n":1.10}}"#), Some(Reply::Result(text)) if text == r#"{"n":1.10}"#)
        );
        assert!(matches!(
            reply(r#"{"id":1,"error":{"code":-32602,"message":"unknown tool: x"}}"#),
            Some(Reply::Error(message)) if message == "unknown tool: x"
        ));
        assert!(reply(r#"{"method":"notifications/progress","params":{}}"#).is_none());
        assert!(message(b"no json").is_none());
    }

    #[test]
    fn a_server_without_tls_is_explained_in_plain_words() {
        assert_eq!(
            remedy("received corrupt message of type InvalidContentType"),
            "the server does not speak TLS; write http:// in its address"
        );
    }

    #[test]
    fn a_refusal_without_a_token_explains_where_to_set_it() {
        assert_eq!(
            refused(StatusCode::UNAUTHORIZED, "a valid bearer token is required\n"),
            "the server answered 401 Unauthorized: a valid bearer token is required; set ORLA_TOKEN to a token that the server accepts"
        );
        assert_eq!(refused(StatusCode::NOT_FOUND, ""), "the server answered 404 Not Found");
    }

    #[test]
    fn arguments_go_out_as_they_were_written() {
        let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
        let body = body(
            "tools/call",
            &[("arguments", raw("{\"n\":1.10}")), ("_meta", raw("{\"progressToken\":1}"))],
        );
        assert!(body.contains(r#""arguments":{"n":1.10}"#), "{body}");
        let message: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(message["params"]["_meta"]["progressToken"], 1);
        assert_eq!(message["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"], REVISION);
    }

    #[test]
    fn the_configured_token_goes_to_the_configured_address_alone() {
        let config = Config { auth_tokens: vec!["secret".into()], ..Config::default() };
        let token = |url| Server::at(url, &config).unwrap().token;
        assert_eq!(token(None).as_deref(), Some("secret"));
        assert_eq!(token(Some("http://127.0.0.1:8080/mcp")).as_deref(), Some("secret"));
        assert_eq!(token(Some("http://127.0.0.1:8081")), None);
        assert!(Server::at(Some("ftp://x"), &config).is_err());
    }
}
