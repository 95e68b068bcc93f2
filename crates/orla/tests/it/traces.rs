//! Traces and metrics: the data that a collector gets, and that a bad collector affects no call.

use std::collections::BTreeMap;
use std::net::TcpListener;

use orla_e2e::{Request, Server, World, eventually};
use serde_json::{Value, json};

use crate::mcp_script::mcp_script;
use crate::model::{Scripted, openai};
use crate::upstream::Upstream;
use crate::{sh, world};

/// A span as it came by OTLP.
#[derive(Clone, Debug)]
struct Span {
    trace: String,
    id: String,
    /// Empty if it has none.
    parent: String,
    name: String,
    begin: u64,
    end: u64,
    attributes: BTreeMap<String, String>,
    /// The code of its status; 2 is an error.
    status: u64,
}

/// One field of a message of protocol buffers.
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

fn varint(bytes: &[u8], at: &mut usize) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = bytes[*at];
        *at += 1;
        value |= u64::from(byte & 127) << shift;
        if byte < 128 {
            break;
        }
    }
    value
}

/// Returns the fields of a message, with their numbers.
fn fields(bytes: &[u8]) -> Vec<(u64, Field<'_>)> {
    let (mut at, mut found) = (0, Vec::new());
    while at < bytes.len() {
        let key = varint(bytes, &mut at);
        let field = match key & 7 {
            0 => Field::Number(varint(bytes, &mut at)),
            1 => {
                at += 8;
                Field::Number(u64::from_le_bytes(bytes[at - 8..at].try_into().expect("eight bytes")))
            }
            2 => {
                let length = usize::try_from(varint(bytes, &mut at)).expect("a length");
                at += length;
                Field::Bytes(&bytes[at - length..at])
            }
            kind => panic!("no field of OTLP has the wire type {kind}"),
        };
        found.push((key >> 3, field));
    }
    found
}

/// Returns the messages in the fields with this number.
fn messages(bytes: &[u8], number: u64) -> Vec<&[u8]> {
    let found = fields(bytes).into_iter().filter(|(other, _)| *other == number);
    found
        .filter_map(|(_, field)| match field {
            Field::Bytes(bytes) => Some(bytes),
            Field::Number(_) => None,
        })
        .collect()
}

fn text(bytes: &[u8], number: u64) -> String {
    let found = messages(bytes, number);
    found.first().map(|text| String::from_utf8_lossy(text).into_owned()).unwrap_or_default()
}

fn hex(bytes: &[u8], number: u64) -> String {
    let found = messages(bytes, number);
    found.first().map(|id| id.iter().map(|byte| format!("{byte:02x}")).collect()).unwrap_or_default()
}

fn number(bytes: &[u8], number: u64) -> u64 {
    let found = fields(bytes).into_iter().find(|(other, _)| *other == number);
    match found {
        Some((_, Field::Number(value))) => value,
        _ => 0,
    }
}

fn attributes(bytes: &[u8], at: u64) -> BTreeMap<String, String> {
    let pairs = messages(bytes, at).into_iter().map(|pair| {
        let value = messages(pair, 2).first().copied().unwrap_or_default();
        let is_text = !messages(value, 1).is_empty();
        (text(pair, 1), if is_text { text(value, 1) } else { number(value, 3).to_string() })
    });
    pairs.collect()
}

/// Returns the spans of an `ExportTraceServiceRequest`, and what describes their instance.
fn decoded(request: &[u8]) -> (Vec<Span>, BTreeMap<String, String>) {
    let (mut spans, mut resource) = (Vec::new(), BTreeMap::new());
    for of_resource in messages(request, 1) {
        resource.extend(messages(of_resource, 1).into_iter().flat_map(|one| attributes(one, 1)));
        for of_scope in messages(of_resource, 2) {
            spans.extend(messages(of_scope, 2).into_iter().map(|span| Span {
                trace: hex(span, 1),
                id: hex(span, 2),
                parent: hex(span, 4),
                name: text(span, 5),
                begin: number(span, 7),
                end: number(span, 8),
                attributes: attributes(span, 9),
                status: messages(span, 15).first().map_or(0, |status| number(status, 3)),
            }));
        }
    }
    (spans, resource)
}

/// Returns all spans that a collector has got.
fn spans(collector: &Upstream) -> Vec<Span> {
    collector.requests().iter().flat_map(|request| decoded(&request.bytes).0).collect()
}

fn named<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    spans.iter().find(|span| span.name == name).unwrap_or_else(|| panic!("no span {name}: {spans:?}"))
}

const MCP: &str = r#"        result = {"content": [{"type": "text", "text": (p.get("_meta") or {}).get("traceparent", "none")}]}"#;

/// A program that calls a tool, an HTTP endpoint, an MCP server, and another program, which calls a tool.
const WAY: &str = r#"(defn main []
  {:tool (:stdout (call :here {}))
   :http (:n (call :up.number {}))
   :mcp (call :calc.trace {})
   :inner (call :inner {})
   :broken (try (call :broken {}) (catch :failed e "broken"))})
"#;

fn traced(collector: &str, upstream: &Upstream, more: &str) -> World {
    upstream.set("GET /number", 200, r#"{"n": 7}"#);
    let config = format!(
        "telemetry: {{otlp: '{collector}', headers: {{x-team: red}}{more}}}\n\
         mcpServers: {{calc: {{command: python3, args: [calc.py]}}}}\n\
         capabilities:\n- {{id: up.number, provider: {{type: http, base_url: '{}/number', method: GET}}}}\n",
        upstream.url()
    );
    world()
        .tool("here", sh("echo $TRACEPARENT"))
        .tool("broken", sh("exit 3"))
        .file("calc.py", mcp_script("trace", "", MCP))
        .file("tools/way.rtfs", WAY)
        .file("tools/inner.rtfs", "(defn main [] (:stdout (call :here {})))")
        .config(&config)
}

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

#[test]
fn a_program_that_calls_three_kinds_of_providers_is_one_tree() {
    let (collector, upstream) = (Upstream::start(), Upstream::start());
    collector.set("POST /v1/traces", 200, "");
    let server = traced(&collector.url(), &upstream, "").serve();
    eventually("the MCP server is known", || {
        server.client().tool_names().contains(&"calc__trace".to_owned())
    });
    let request = Request::new("POST", "/api/way").header("content-type", "application/json");
    let request = request.header("traceparent", PARENT).body("{}");
    let answer = server.http().send(&request).expect("an answer");
    assert_eq!(answer.status, 200, "{}", answer.text());
    let value = answer.json();

    let got =
        eventually("all spans have come", || Some(spans(&collector)).filter(|got| got.len() >= 11));
    let calls: Vec<&Span> = got.iter().filter(|span| span.name.starts_with("tools/call ")).collect();
    assert_eq!(calls.len(), 7, "{got:#?}");
    let way = named(&got, "tools/call way");
    assert_eq!(way.parent, "00f067aa0ba902b7", "within the caller's span");
    let by_id: BTreeMap<&str, &Span> = got.iter().map(|span| (&*span.id, span)).collect();
    assert_eq!(by_id.len(), got.len(), "each has an id of its own");
    for span in &got {
        assert_eq!(span.trace, "4bf92f3577b34da6a3ce929d0e0e4736", "{span:?}");
        assert!(span.end >= span.begin && span.begin > 0, "{span:?}");
        if span.id != way.id {
            let parent = by_id.get(&*span.parent).unwrap_or_else(|| panic!("an orphan: {span:?}"));
            assert!(parent.begin <= span.begin && span.end <= parent.end, "{parent:?} {span:?}");
        }
    }
    let inner = named(&got, "tools/call inner");
    let (far, mcp) = (named(&got, "tools/call up__number"), named(&got, "tools/call calc__trace"));
    for span in [inner, far, mcp, named(&got, "tools/call broken")] {
        assert_eq!(span.parent, way.id, "{span:?}");
    }
    let here: Vec<&Span> = got.iter().filter(|span| span.name == "tools/call here").collect();
    let parents: Vec<&str> = here.iter().map(|span| &*span.parent).collect();
    assert!(parents.contains(&&*way.id) && parents.contains(&&*inner.id), "{here:?}");

    // Nested requests got the context of the call's own span.
    let context = |span: &Span| format!("00-{}-{}-01", span.trace, span.id);
    let of = |parent: &Span| here.iter().find(|span| span.parent == parent.id).map(|span| context(span));
    assert_eq!(value["tool"].as_str().map(str::trim), of(way).as_deref());
    assert_eq!(value["inner"].as_str().map(str::trim), of(inner).as_deref());
    let requests = upstream.requests();
    assert_eq!(requests[0].headers.get("traceparent"), Some(&context(far)));
    assert!(value["mcp"].to_string().contains(&context(mcp)), "{value}");

    // The content of the spans.
    let broken = named(&got, "tools/call broken");
    assert_eq!((broken.status, way.status), (2, 0));
    assert_eq!(broken.attributes["error.type"], "failed");
    for (name, expected) in [
        ("mcp.method.name", "tools/call"),
        ("gen_ai.operation.name", "execute_tool"),
        ("gen_ai.tool.name", "up__number"),
        ("orla.capability", "up.number"),
        ("orla.provider", "http"),
        ("orla.outcome", "ok"),
    ] {
        assert_eq!(far.attributes.get(name).map(|text| &**text), Some(expected), "{name}");
    }
    let process = named(&got, "broken");
    assert_eq!((&process.parent, process.status), (&broken.id, 2));
    assert_eq!(process.attributes["process.exit.code"], "3");
    let request = named(&got, "GET");
    assert_eq!((&request.parent, request.status), (&far.id, 0));
    for (name, expected) in
        [("http.response.status_code", "200"), ("url.scheme", "http"), ("server.address", "127.0.0.1")]
    {
        assert_eq!(request.attributes.get(name).map(|text| &**text), Some(expected), "{name}");
    }
    let requests = collector.requests();
    assert_eq!(requests[0].headers["content-type"], "application/x-protobuf");
    assert_eq!(requests[0].headers["x-team"], "red");
    assert_eq!(decoded(&requests[0].bytes).1["service.name"], "orla");
    // The history knows the trace too.
    let id = &way.attributes["gen_ai.tool.call.id"];
    let detail = server.http().get(&format!("/calls/{id}")).json();
    assert_eq!(detail["trace"]["span_id"], way.id, "{detail}");
}

#[test]
fn the_calls_of_an_agents_prompt_are_one_tree_below_one_span() {
    let (collector, upstream) = (Upstream::start(), Upstream::start());
    collector.set("POST /v1/traces", 200, "");
    let begun = |more: &str| traced(&collector.url(), &upstream, more);
    let run = |world: &World| {
        let calls = [("way", json!({})), ("here", json!({}))];
        let model = Scripted::new(vec![openai(&[], &calls), openai(&["done"], &[])]);
        let base = model.base();
        let done =
            world.run(&["agent", "--model", "openai::m", "--base-url", &base, "--yes", "find the way"]);
        assert_eq!((done.code, &*done.stdout), (Some(0), "done\n"), "{}", done.stderr);
    };
    run(&begun("").env("TRACEPARENT", PARENT));
    let got = spans(&collector);
    let root = named(&got, "invoke_agent orla");
    assert_eq!((&*root.trace, &*root.parent), (&PARENT[3..35], &PARENT[36..52]));
    let by_id: BTreeMap<&str, &Span> = got.iter().map(|span| (&*span.id, span)).collect();
    for span in got.iter().filter(|span| span.id != root.id) {
        let parent = by_id.get(&*span.parent).unwrap_or_else(|| panic!("an orphan: {span:?}"));
        assert!(span.trace == root.trace && parent.begin <= span.begin, "{parent:?} {span:?}");
        assert!(span.end <= root.end, "{root:?} {span:?}");
    }
    let below = |parent: &Span| {
        let mut names: Vec<&str> = got
            .iter()
            .filter(|span| span.parent == parent.id && span.name.starts_with("tools/call "))
            .map(|span| &*span.name)
            .collect();
        names.sort_unstable();
        names.iter().map(|name| name.trim_start_matches("tools/call ")).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(below(root), "here way");
    assert_eq!(below(named(&got, "tools/call way")), "broken calc__trace here inner up__number");
    for (name, expected) in [
        ("gen_ai.operation.name", "invoke_agent"),
        ("gen_ai.request.model", "m"),
        ("gen_ai.provider.name", "openai"),
    ] {
        assert_eq!(root.attributes.get(name).map(|text| &**text), Some(expected), "{name}");
    }
    assert_eq!(root.status, 0);

    // Each prompt without a caller's context is a trace of its own.
    run(&begun(""));
    let roots: Vec<Span> =
        spans(&collector).into_iter().filter(|span| span.name == "invoke_agent orla").collect();
    assert!(
        roots.len() == 2 && roots[1].parent.is_empty() && roots[1].trace != roots[0].trace,
        "{roots:?}"
    );
    let count = spans(&collector).len();
    run(&begun(", sample_ratio: 0"));
    assert_eq!(spans(&collector).len(), count, "it is not sampled");
}

#[test]
fn requests_for_prompts_and_resources_are_spans_too() {
    let (collector, upstream) = (Upstream::start(), Upstream::start());
    collector.set("POST /v1/traces", 200, "");
    let world = traced(&collector.url(), &upstream, "").file("prompts/plan.md", "Make a plan.");
    let server = world.serve();
    let mut client = server.client();
    let params = json!({"name": "plan", "_meta": {"traceparent": PARENT}});
    client.request("prompts/get", params).expect("the prompt");
    client.request("resources/read", json!({"uri": "orla://none"})).expect_err("no resource");
    let got =
        eventually("both spans have come", || Some(spans(&collector)).filter(|got| got.len() >= 2));
    let prompt = named(&got, "prompts/get plan");
    assert_eq!((&*prompt.trace, &*prompt.parent, prompt.status), (&PARENT[3..35], &PARENT[36..52], 0));
    assert_eq!(prompt.attributes["gen_ai.prompt.name"], "plan");
    let resource = named(&got, "resources/read");
    assert_eq!((resource.status, &*resource.attributes["mcp.resource.uri"]), (2, "orla://none"));
    assert_eq!(resource.attributes["error.type"], "not-found");
}

#[test]
fn the_caller_decides_whether_its_trace_is_sampled() {
    let (collector, upstream) = (Upstream::start(), Upstream::start());
    collector.set("POST /v1/traces", 200, "");
    let server = traced(&collector.url(), &upstream, ", sample_ratio: 0").serve();
    let mut client = server.client();
    let mut call = |traceparent: Option<&str>| {
        let meta = traceparent.map_or(json!({}), |text| json!({ "traceparent": text }));
        let result =
            client.request("tools/call", json!({"name": "here", "arguments": {}, "_meta": meta}));
        let result: Value = result.expect("a result");
        result["content"][0]["text"].as_str().unwrap_or_default().trim().to_owned()
    };
    assert!(call(None).ends_with("-00"));
    assert!(call(Some(&PARENT.replace("-01", "-00"))).ends_with("-00"));
    let sampled = call(Some(PARENT));
    assert!(sampled.starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-") && sampled.ends_with("-01"));
    let got = eventually("a span has come", || Some(spans(&collector)).filter(|got| !got.is_empty()));
    let calls = got.iter().filter(|span| span.name.starts_with("tools/call ")).count();
    assert_eq!(calls, 1, "{got:?}");
    assert_eq!(got[0].parent, "00f067aa0ba902b7");
}

/// Calls many times: all calls succeed, and all are in the history.
fn many(server: &mut Server) {
    let mut client = server.client();
    for _ in 0..100 {
        assert!(!client.call("here", json!({})).is_error());
    }
    assert_eq!(server.http().get("/calls?limit=1000").json().as_array().map(Vec::len), Some(100));
}

#[test]
fn an_unreachable_collector_fails_no_call_and_logs_one_line() {
    let gone = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port");
    let mut server = traced(&format!("http://{gone}"), &Upstream::start(), "").serve();
    many(&mut server);
    server.log_says(&["traces cannot be sent"]);
    many_more(&mut server);
    assert_eq!(server.log().matches("traces cannot be sent").count(), 1);
    assert!(server.terminate().success());
}

fn many_more(server: &mut Server) {
    for _ in 0..20 {
        assert!(!server.client().call("here", json!({})).is_error());
    }
}

#[test]
fn a_collector_that_never_answers_costs_no_call_and_holds_no_end() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("its address");
    let mut server = traced(&format!("http://{address}"), &Upstream::start(), "").serve();
    many(&mut server);
    // The collector accepts the connection, and never answers.
    let (_held, _) = silent.accept().expect("a connection");
    many_more(&mut server);
    assert!(server.terminate().success());
}

#[test]
fn spans_are_sent_when_the_collector_is_back() {
    let collector = Upstream::start();
    collector.set("POST /v1/traces", 503, "");
    let server = traced(&collector.url(), &Upstream::start(), "").serve();
    server.client().call("here", json!({}));
    server.log_says(&["traces cannot be sent"]);
    collector.set("POST /v1/traces", 200, "");
    server.log_says(&["traces are sent again"]);
    let requests = collector.requests();
    assert!(
        requests.len() >= 2 && requests[0].bytes == requests[requests.len() - 1].bytes,
        "the same spans"
    );
}

#[test]
fn buffered_traces_are_sent_at_shutdown() {
    let (collector, upstream) = (Upstream::start(), Upstream::start());
    let mut server = traced(&collector.url(), &upstream, "").serve();
    assert!(!server.client().call("here", json!({})).is_error());
    assert!(server.terminate().success());
    assert_eq!(spans(&collector).iter().filter(|span| span.name == "tools/call here").count(), 1);
    assert!(collector.requests().iter().any(|request| request.line.contains("/v1/metrics")));
}

#[test]
fn metrics_are_sent_at_an_interval() {
    let (collector, upstream) = (Upstream::start(), Upstream::start());
    collector.set("POST /v1/metrics", 200, "");
    let world = traced(&collector.url(), &upstream, "").env("OTEL_METRIC_EXPORT_INTERVAL", "100");
    let server = world.serve();
    assert!(!server.client().call("here", json!({})).is_error());
    // The value of a counter's first point, for the capability.
    let counted = |metric: &[u8]| {
        let points: Vec<&[u8]> =
            messages(metric, 7).into_iter().flat_map(|sum| messages(sum, 1)).collect();
        let point = points.iter().find(|point| attributes(point, 7)["capability"] == "here")?;
        Some((f64::from_bits(number(point, 4)), attributes(point, 7)["outcome"].clone()))
    };
    let found = eventually("the call is counted", || {
        let requests = collector.requests();
        let sent = requests.iter().filter(|request| request.line.contains("/v1/metrics"));
        let metrics =
            sent.flat_map(|request| messages(&request.bytes, 1)).flat_map(|of| messages(of, 2));
        let metrics = metrics.flat_map(|scope| messages(scope, 2));
        // The first ones may have been sent before the call.
        metrics.filter(|metric| text(metric, 1) == "orla_calls").find_map(counted)
    });
    assert_eq!(found, (1.0, "ok".to_owned()));
}

#[test]
fn exports_are_compressed_if_the_environment_sets_it() {
    let (collector, upstream) = (Upstream::start(), Upstream::start());
    collector.set("POST /v1/metrics", 200, "");
    let world = traced(&collector.url(), &upstream, "").env("OTEL_METRIC_EXPORT_INTERVAL", "100");
    let server = world.env("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip").serve();
    assert!(!server.client().call("here", json!({})).is_error());
    let sent = eventually("metrics are sent", || collector.requests().into_iter().next());
    assert_eq!(sent.headers.get("content-encoding").map(String::as_str), Some("gzip"));
    assert!(sent.bytes.starts_with(&[0x1f, 0x8b]), "{:?}", &sent.bytes[..2]);
}
