//! HTTP: `CONNECT`, and requests for `http:` URLs (RFC 9110 §9.3.6 and §7.6, RFC 9112 §3.2.2).

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use ::http::header::{CONNECTION, HOST, HeaderMap, HeaderName, HeaderValue};
use ::http::{Method, Request, Response, StatusCode, Uri, Version};
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

use crate::allow::Host;
use crate::gate::{Gate, Refusal};
use crate::meter::Metered;
use crate::{HEAD_TIMEOUT, MAX_HEAD};

type Answer = Response<Either<Full<Bytes>, Forwarded>>;
/// The two ends of a tunnel that a `CONNECT` opens.
type Tunnel = Mutex<Option<(OnUpgrade, TcpStream)>>;

/// Fields that concern one connection and are not passed on (RFC 9110 §7.6.1), besides those that
/// `Connection` lists.
const HOP_BY_HOP: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Serves one connection.
pub(crate) async fn serve(stream: Metered, gate: Arc<Gate>) {
    let tunnel = Arc::new(Tunnel::default());
    let service = {
        let tunnel = Arc::clone(&tunnel);
        service_fn(move |request| {
            let (gate, tunnel) = (Arc::clone(&gate), Arc::clone(&tunnel));
            async move { Ok::<_, Infallible>(answer(request, &gate, &tunnel).await) }
        })
    };
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    if let Err(err) = connection.await {
        tracing::debug!(error = %err, "an HTTP connection ended");
        return;
    }
    let Some((upgrade, mut target)) = tunnel.lock().take() else { return };
    if let Ok(upgraded) = upgrade.await {
        let _ = copy_bidirectional(&mut TokioIo::new(upgraded), &mut target).await;
    }
}

async fn answer(mut request: Request<Incoming>, gate: &Gate, tunnel: &Tunnel) -> Answer {
    let (host, port) = match target(request.method(), request.uri()) {
        Ok(target) => target,
        Err(text) => return text_answer(StatusCode::BAD_REQUEST, text),
    };
    let stream = match gate.open(&host, port).await {
        Ok(stream) => stream,
        Err(refusal) => return text_answer(status(&refusal), &refusal.to_string()),
    };
    if request.method() == Method::CONNECT {
        *tunnel.lock() = Some((hyper::upgrade::on(&mut request), stream));
        return Response::new(Either::Left(Full::default()));
    }
    match forward(request, stream).await {
        Ok(answer) => answer,
        Err(err) => text_answer(StatusCode::BAD_GATEWAY, &format!("{host}:{port}: {err}")),
    }
}

fn status(refusal: &Refusal) -> StatusCode {
    match refusal {
        Refusal::Undeclared(_) | Refusal::NotPublic { .. } => StatusCode::FORBIDDEN,
        Refusal::Unreachable { .. } => StatusCode::BAD_GATEWAY,
    }
}

fn text_answer(status: StatusCode, text: &str) -> Answer {
    let mut answer = Response::new(Either::Left(Full::from(format!("{text}\n"))));
    *answer.status_mut() = status;
    answer
}

/// Returns the host and port of a request.
fn target(method: &Method, uri: &Uri) -> Result<(Host, u16), &'static str> {
    let authority = uri.authority().ok_or("this is a proxy: the request has to name a host")?;
    let default = match uri.scheme_str() {
        _ if method == Method::CONNECT => None,
        Some("http") => Some(80),
        _ => return Err("only http: URLs are forwarded; others need CONNECT"),
    };
    let host = authority.host();
    let has_port = authority.as_str().len() > host.len();
    let port = if has_port { authority.port_u16() } else { default };
    let host = Host::parse(host).filter(|_| !authority.as_str().contains('@'));
    host.zip(port).ok_or("the request has to name a host and a port")
}

/// Passes a request on, and returns its answer.
async fn forward(request: Request<Incoming>, stream: TcpStream) -> hyper::Result<Answer> {
    let (mut head, body) = request.into_parts();
    let host = head.uri.authority().and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
    head.uri = head.uri.path_and_query().cloned().map(Uri::from).unwrap_or_default();
    head.version = Version::HTTP_11;
    strip(&mut head.headers);
    if let Some(host) = host {
        head.headers.insert(HOST, host);
    }
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    #[expect(clippy::disallowed_methods, reason = "it is aborted with the body that it serves")]
    let connection = AbortOnDropHandle::new(tokio::spawn(async move {
        let _ = connection.await;
    }));
    let answer = sender.send_request(Request::from_parts(head, body)).await?;
    let (mut head, body) = answer.into_parts();
    strip(&mut head.headers);
    let body = Forwarded { body, _connection: connection };
    Ok(Response::from_parts(head, Either::Right(body)))
}

fn strip(headers: &mut HeaderMap) {
    let listed = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let listed: Vec<HeaderName> =
        listed.flat_map(|value| value.split(',')).filter_map(|name| name.trim().parse().ok()).collect();
    for name in listed {
        headers.remove(name);
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
}

/// The body of an answer, with the connection that it comes from.
struct Forwarded {
    body: Incoming,
    _connection: AbortOnDropHandle<()>,
}

impl Body for Forwarded {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_target_of_a_request_is_its_authority() {
        let target = |method: &str, uri: &str| {
            let found = target(&method.parse().unwrap(), &uri.parse().unwrap());
            found.ok().map(|(host, port)| format!("{host} {port}"))
        };
        for (method, uri, found) in [
            ("CONNECT", "api.example.com:443", Some("api.example.com 443")),
            ("CONNECT", "[::1]:443", Some("[::1] 443")),
            ("CONNECT", "api.example.com", None),
            ("CONNECT", "api.example.com:99999", None),
            ("CONNECT", "api.example.com@evil.example:443", None),
            ("GET", "http://API.example.com/x", Some("api.example.com 80")),
            ("GET", "http://api.example.com:8080/x", Some("api.example.com 8080")),
            ("GET", "http://api.example.com:99999/x", None),
            ("GET", "http://user@api.example.com/x", None),
            ("GET", "https://api.example.com/x", None),
            ("GET", "/x", None),
        ] {
            assert_eq!(target(method, uri).as_deref(), found, "{method} {uri}");
        }
    }

    #[test]
    fn fields_of_one_connection_are_not_passed_on() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-One"),
            ("x-one", "1"),
            ("x-two", "2"),
            ("proxy-authorization", "secret"),
        ] {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        strip(&mut headers);
        assert_eq!(headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["x-two"]);
    }
}
