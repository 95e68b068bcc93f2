//! The executor against servers on loopback that do what servers do.

use std::future::Future;
use std::io::Write;
use std::net::IpAddr;
use std::sync::Arc;

use flate2::Compression;
use flate2::write::GzEncoder;
use orla_confine::Reach;
use orla_marketplace::id::Pattern;
use orla_marketplace::testing::eventually;
use orla_marketplace::{
    AccessPolicy, Call, CallContext, Callers, CapabilityExecutor, CapabilityManifest,
    CapabilityMarketplace, CredentialPlace, HttpCapability, HttpCredential, JsonText, Limits, Outcome,
    Payload, ProviderType, Redirects, Rule, RuntimeError, RuntimeResult,
};

use super::client::Clients;
use super::test_server::{self as server, Server, answer, redirect};
use super::{HttpExecutor, HttpLimits};

fn get(server: &Server) -> HttpCapability {
    let mut http = HttpCapability::new(server.url(), None, 10_000);
    http.options.method = Some("GET".into());
    http
}

async fn call_with(
    executor: &HttpExecutor,
    http: &HttpCapability,
    input: &str,
) -> RuntimeResult<Outcome> {
    let ctx = CallContext::for_tests("weather");
    let input = Payload::from_json(JsonText::parse(input.to_owned()).unwrap());
    executor.execute(&ProviderType::Http(http.clone()), &input, &ctx).await
}

async fn call(http: &HttpCapability, input: &str) -> RuntimeResult<Outcome> {
    call_with(&HttpExecutor::new(), http, input).await
}

async fn error_of(http: &HttpCapability) -> RuntimeError {
    call(http, "{}").await.unwrap_err()
}

fn json_of(outcome: Outcome) -> String {
    outcome.structured.unwrap().json().unwrap().as_str().to_owned()
}

#[tokio::test]
async fn numbers_are_posted_and_returned_exactly() {
    let server = Server::start(|request, to| {
        let body = request.body.clone();
        answer(to, "200 OK", "content-type: application/json\r\n", body.as_bytes());
    });
    let http = HttpCapability::new(format!("{}/run", server.url()), Some("t0ken".into()), 10_000);
    let mut ctx = CallContext::for_tests("weather");
    ctx.scope.traceparent = Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into());
    let input = r#"{"n": 1.10, "far": 1e400, "url": "http://elsewhere.example"}"#;
    let payload = Payload::from_json(JsonText::parse(input).unwrap());
    let executor = HttpExecutor::new();
    let provider = ProviderType::Http(http);
    for _ in 0..3 {
        let outcome = executor.execute(&provider, &payload, &ctx).await.unwrap();
        assert_eq!(json_of(outcome), input);
    }
    assert_eq!(executor.status(&provider).source, Some(format!("{}/run", server.url())));
    let requests = server.requests();
    assert_eq!(requests.len(), 3);
    assert!(requests[0].head.starts_with("POST /run HTTP/1.1\r\n"), "{}", requests[0].head);
    for field in [
        "content-type: application/json",
        "authorization: Bearer t0ken",
        "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "accept-encoding: gzip",
        concat!("user-agent: orla/", env!("CARGO_PKG_VERSION")),
    ] {
        assert!(
            requests[0].head.contains(&format!("\r\n{field}\r\n")),
            "{field} in {}",
            requests[0].head
        );
    }
    assert_eq!(server.connections(), 1, "connections are used again");
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_is_unavailable_for_a_reason() {
    // A label of a name has at most 63 characters, so nobody is asked.
    let unknown = HttpCapability::new(format!("http://{}.example", "a".repeat(64)), None, 0);
    let error = error_of(&unknown).await;
    assert_eq!(
        error.to_string(),
        format!(
            "weather is unavailable: no address is known for {}.example; trying again may help",
            "a".repeat(64)
        )
    );
    assert!(error.is_transient());

    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let refused = HttpCapability::new(format!("http://127.0.0.1:{port}"), None, 0);
    assert_eq!(
        error_of(&refused).await.to_string(),
        format!(
            "weather is unavailable: 127.0.0.1:{port} refuses the connection; trying again may help"
        )
    );
}

#[tokio::test]
async fn tls_that_is_not_trusted_or_none_at_all_is_an_error_that_stays() {
    let (address, server) = server::tls();
    let http = HttpCapability::new(format!("https://{address}"), Some("t0ken".into()), 10_000);
    let error = error_of(&http).await;
    let text = error.to_string();
    assert!(
        text.starts_with(&format!("weather failed: the TLS certificate of {address} is not trusted: ")),
        "{text}"
    );
    assert!(text.ends_with("; trying again will not help") && !error.is_transient(), "{text}");
    server.join().unwrap();

    let (address, server) = server::without_tls();
    let http = HttpCapability::new(format!("https://{address}"), None, 10_000);
    let text = error_of(&http).await.to_string();
    assert!(text.starts_with(&format!("weather failed: TLS with {address} failed: ")), "{text}");
    server.join().unwrap();
}

#[tokio::test]
async fn a_server_that_is_too_slow_runs_into_the_deadline() {
    let silent = Server::start(|_, to| server::wait_for_end(to));
    let mut http = get(&silent);
    http.timeout_ms = 200;
    let error = error_of(&http).await;
    assert_eq!(error.to_string(), "weather timed out after 0.2 s");
    let said = error.outcome().unwrap().last_text().unwrap();
    assert_eq!(said, format!("No answer had begun from {}.", silent.url()));

    let stuck = Server::start(|_, to| {
        to.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n0123456789");
        server::wait_for_end(to);
    });
    let mut http = get(&stuck);
    http.timeout_ms = 500;
    let said = error_of(&http).await.outcome().unwrap().last_text().unwrap();
    assert_eq!(said, format!("10 bytes of the answer from {} had arrived.", stuck.url()));
}

#[tokio::test]
async fn half_an_answer_is_no_answer() {
    let half = Server::start(|_, to| {
        to.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n0123456789");
    });
    let host = half.host();
    assert_eq!(
        error_of(&get(&half)).await.to_string(),
        format!(
            "weather is unavailable: the answer of {host} ended early, after 10 bytes; trying again may help"
        )
    );
    let none = Server::start(|_, _| {});
    let error = call(&HttpCapability::new(none.url(), None, 0), "{}").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "weather is unavailable: {} closed the connection before it answered; trying again may help",
            none.host()
        )
    );
    assert_eq!(none.requests().len(), 1, "a call is sent once");
    let other = Server::start(|_, to| {
        to.send(b"SSH-2.0-OpenSSH_9.9\r\n\r\n");
    });
    assert_eq!(
        error_of(&get(&other)).await.to_string(),
        format!(
            "weather failed: {} answers with something else than HTTP; trying again will not help",
            other.host()
        )
    );
    let chatty = Server::start(|_, to| {
        let fields: String = (0..10_000).map(|at| format!("x-{at}: y\r\n")).collect();
        answer(to, "200 OK", &fields, b"");
    });
    assert_eq!(
        error_of(&get(&chatty)).await.to_string(),
        format!(
            "weather failed: {} answers with more headers than are read; trying again will not help",
            chatty.host()
        )
    );
}

#[tokio::test]
async fn no_answer_takes_more_memory_than_it_may() {
    let endless = Server::start(|_, to| {
        to.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
        let chunk = format!("1000\r\n{}\r\n", "x".repeat(0x1000));
        // Ends when the client hangs up.
        while to.send(chunk.as_bytes()) {}
    });
    let mut http = get(&endless);
    http.options.max_answer_bytes = 100_000;
    let limit = |server: &Server| {
        format!(
            "weather reached a limit: {} answers with more than 100000 bytes (max_answer_bytes)",
            server.host()
        )
    };
    assert_eq!(error_of(&http).await.to_string(), limit(&endless));

    let announced = Server::start(|_, to| {
        to.send(b"HTTP/1.1 200 OK\r\ncontent-length: 10000000000\r\n\r\n");
    });
    let mut http = get(&announced);
    http.options.max_answer_bytes = 100_000;
    assert_eq!(error_of(&http).await.to_string(), limit(&announced));

    let bomb = Server::start(|_, to| {
        answer(to, "200 OK", "content-encoding: gzip\r\n", &gzip(&vec![0; 10_000_000]));
    });
    let mut http = get(&bomb);
    http.options.max_answer_bytes = 100_000;
    assert_eq!(error_of(&http).await.to_string(), limit(&bomb));
}

#[tokio::test]
async fn compressed_answers_are_read_and_broken_ones_are_not() {
    let packed = Server::start(|_, to| {
        let body = gzip(b"[1.10]");
        answer(to, "200 OK", "content-encoding: gzip\r\ncontent-type: application/json\r\n", &body);
    });
    assert_eq!(json_of(call(&get(&packed), "{}").await.unwrap()), "[1.10]");
    let liar =
        Server::start(|_, to| answer(to, "200 OK", "content-encoding: gzip\r\n", b"no gzip at all"));
    assert_eq!(
        error_of(&get(&liar)).await.to_string(),
        format!(
            "weather failed: {} answers with content that cannot be decompressed; trying again will not help",
            liar.host()
        )
    );
}

#[tokio::test]
async fn redirects_are_followed_as_far_as_they_may() {
    let server = Server::start(|request, to| match request.path() {
        "/" => redirect(to, 302, "/a"),
        "/a" => redirect(to, 308, "b?x=1"),
        "/b?x=1" => answer(to, "200 OK", "content-type: application/json\r\n", b"7"),
        "/loop" => redirect(to, 302, "/loop"),
        "/again" => redirect(to, 307, "/again"),
        "/file" => redirect(to, 302, "file:///etc/passwd"),
        path => redirect(to, 302, &format!("{path}x")),
    });
    let mut http = get(&server);
    assert_eq!(json_of(call(&http, "{}").await.unwrap()), "7");
    let host = server.host();
    let refused = |why: String| {
        format!("weather failed: {host} redirects: the redirect {why}; trying again will not help")
    };
    let cases = [
        ("/loop", refused(format!("leads in a circle at {host}"))),
        ("/more", refused(format!("to {host} follows 5 others, the most there may be"))),
        ("/file", refused("leads to a URL of the scheme file".to_owned())),
    ];
    for (path, message) in &cases {
        http.options.path = (*path).to_owned();
        assert_eq!(error_of(&http).await.to_string(), *message);
    }
    let before = server.requests().len();
    let post = HttpCapability::new(format!("{}/again", server.url()), None, 10_000);
    assert_eq!(error_of(&post).await.to_string(), refused(format!("leads in a circle at {host}")));
    assert_eq!(server.requests().len(), before + 1, "nothing is posted twice in a circle");
    http.options.path = String::new();
    http.options.redirects = Redirects::None;
    assert_eq!(
        error_of(&http).await.to_string(),
        format!("weather failed: {host} answers 302 Found; this redirect is not followed")
    );
}

#[tokio::test]
async fn to_another_origin_go_neither_credentials_nor_input() {
    let other = Server::start(|_, to| answer(to, "200 OK", "content-type: application/json\r\n", b"7"));
    let target = format!("{}/x", other.url());
    let server = Server::start(move |request, to| {
        let status = request.path().trim_start_matches('/').parse().unwrap();
        redirect(to, status, &target);
    });
    let mut http = HttpCapability::new(server.url(), Some("t0ken".into()), 10_000);
    http.options.headers.insert("X-Api-Key".into(), "k3y".into());
    let place = CredentialPlace::Cookie("sid".into());
    http.options.credentials.push(HttpCredential { place, value: "c00kie".into() });

    http.options.path = "/303".into();
    assert_eq!(json_of(call(&http, r#"{"n": 1}"#).await.unwrap()), "7");
    let requests = other.requests();
    assert!(requests[0].head.starts_with("GET /x HTTP/1.1\r\n"), "{}", requests[0].head);
    for secret in ["t0ken", "k3y", "c00kie", "application/json; "] {
        assert!(!requests[0].head.contains(secret), "{secret} in {}", requests[0].head);
    }
    assert!(server.requests()[0].head.contains("x-api-key: k3y"));

    http.options.path = "/307".into();
    assert_eq!(
        error_of(&http).await.to_string(),
        format!(
            "weather failed: {} redirects: the redirect would send the input to another origin, {}; trying again will not help",
            server.host(),
            other.host()
        )
    );
    http.options.path = "/303".into();
    http.options.redirects = Redirects::SameOrigin;
    assert_eq!(
        error_of(&http).await.to_string(),
        format!(
            "weather failed: {} redirects: the redirect leads to another origin, {}; trying again will not help",
            server.host(),
            other.host()
        )
    );
    assert_eq!(other.requests().len(), 1);
}

#[tokio::test]
async fn no_redirect_leads_where_the_policy_does_not_let_the_caller() {
    let other = Server::start(|_, to| answer(to, "200 OK", "content-type: application/json\r\n", b"7"));
    let target = format!("{}/x", other.url());
    let server = Server::start(move |_, to| redirect(to, 302, &target));
    let market = CapabilityMarketplace::new(Limits::default());
    market.register_executor(Arc::new(HttpExecutor::new())).unwrap();
    for (deny, may) in [(vec![], true), (vec![format!("net:{}", other.host()).parse().unwrap()], false)]
    {
        let mut builder = market.builder(Limits::default());
        let provider = ProviderType::Http(get(&server));
        builder.capability(CapabilityManifest::new("weather", "Tells it.", provider)).unwrap();
        let everything = Rule {
            to: Callers::parse(["*"]).unwrap(),
            capabilities: vec![Pattern::new("*")],
            allow: vec!["*".parse().unwrap()],
            deny,
        };
        builder.access(AccessPolicy { rules: vec![everything], ..AccessPolicy::default() });
        market.replace(builder.build());
        let called = market.call(Call::to("weather")).await;
        assert_eq!(called.is_ok(), may, "{called:?}");
        if let Err(error) = called {
            assert!(error.to_string().contains("the policy does not permit net:"), "{error}");
        }
    }
    assert_eq!(other.requests().len(), 1);
}

#[tokio::test]
async fn no_redirect_leads_to_a_more_private_address() {
    // What tests have is loopback: addresses of it stand for others.
    fn classify(address: IpAddr) -> Reach {
        match address {
            IpAddr::V4(address) => match address.octets() {
                [127, 0, 0, 2] => Reach::Public,
                [127, 0, 0, 3] => Reach::Private,
                [127, 0, 0, 4] => Reach::LinkLocal,
                _ => Reach::Loopback,
            },
            IpAddr::V6(_) => Reach::Loopback,
        }
    }
    let executor = HttpExecutor::with_clients(Clients::with_classes(HttpLimits::default(), classify));
    let target = |last: u8| Server::at([127, 0, 0, last], |_, to| answer(to, "200 OK", "", b"reached"));
    let (public, private, loopback, link) = (target(2), target(3), target(1), target(4));
    // Each answers `/URL` with a redirect to URL.
    let from = |last: u8| {
        Server::at([127, 0, 0, last], |request, to| {
            redirect(to, 302, request.path().trim_start_matches('/'));
        })
    };
    let named = format!("http://localhost:{}", loopback.port());
    let all = [public.url(), private.url(), loopback.url(), named.clone(), link.url()];
    for (from, allowed) in [(from(2), 1), (from(3), 2), (from(1), 4), (from(4), 5)] {
        for (at, url) in all.iter().enumerate() {
            let mut http = get(&from);
            http.options.path = format!("/{url}/");
            let outcome = call_with(&executor, &http, "{}").await;
            if at < allowed {
                assert_eq!(outcome.unwrap().last_text().unwrap(), "reached", "{url}");
                continue;
            }
            let host = url.strip_prefix("http://").unwrap();
            assert_eq!(
                outcome.unwrap_err().to_string(),
                format!(
                    "weather failed: a redirect leads to {host}, which has a more private address than the server \
                     that sent it (allow_private_redirects would permit it); trying again will not help"
                )
            );
        }
    }
    assert_eq!(link.requests().len(), 1, "only a link-local server led there");

    // A public server on the way decides for the rest of it.
    let (first, between) = (from(3), from(2));
    let mut http = get(&first);
    http.options.path = format!("/{}/{}/", between.url(), private.url());
    let error = call_with(&executor, &http, "{}").await.unwrap_err().to_string();
    assert!(error.contains("more private address"), "{error}");

    http.base_url = between.url();
    http.options.path = format!("/{named}/");
    http.options.allow_private_redirects = true;
    let outcome = call_with(&executor, &http, "{}").await.unwrap();
    assert_eq!(outcome.last_text().unwrap(), "reached");
}

#[tokio::test]
async fn a_call_that_nobody_waits_for_ends_its_request() {
    let server = Server::start(|_, to| server::wait_for_end(to));
    let executor = HttpExecutor::new();
    let provider = ProviderType::Http(get(&server));
    let ctx = CallContext::for_tests("weather");
    let input = Payload::empty();
    tokio::select! {
        outcome = executor.execute(&provider, &input, &ctx) => panic!("nobody answered: {outcome:?}"),
        // Dropping the call ends its request.
        () = eventually("the call is under way", || server.requests().len() == 1) => {}
    }
    server.eventually_ended(1).await;

    let cancelled = Arc::new(CallContext::for_tests("weather"));
    let (error, ()) = futures_util::future::join(
        executor.execute(&provider, &input, &cancelled),
        cancel_when(&cancelled, || server.requests().len() == 2),
    )
    .await;
    assert_eq!(error.unwrap_err().to_string(), "weather was cancelled");
    server.eventually_ended(2).await;
}

fn cancel_when(ctx: &CallContext, condition: impl Fn() -> bool) -> impl Future<Output = ()> {
    let token = ctx.scope.cancellation.clone();
    async move {
        eventually("the call is under way", condition).await;
        token.cancel();
    }
}

#[tokio::test]
async fn an_error_contains_the_message_of_the_server() {
    let server = Server::start(|_, to| {
        answer(
            to,
            "422 Unprocessable Content",
            "content-type: application/json\r\n",
            br#"{"message": "too cold"}"#,
        );
    });
    let error = error_of(&get(&server)).await;
    assert_eq!(
        error.to_string(),
        format!(
            "weather failed: {} answers 422 Unprocessable Entity: too cold; the same call will fail again",
            server.host()
        )
    );
    assert_eq!(json_of(error.outcome().unwrap().clone()), r#"{"message": "too cold"}"#);
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}
