//! Streams: servers with other protocols, programs that print, and what happens to both when they are no longer read (RTFS capability system §3.2).

use std::path::Path;

use orla_e2e::{Request, Server, World, eventually};
use serde_json::{Value, json};

use crate::confinement::sandbox;
use crate::{sh, world};

fn run(server: &Server, program: &str) -> Value {
    let request = Request::new("POST", "/rtfs").header("content-type", "application/json");
    let body = json!({ "program": program }).to_string();
    server.http().send(&request.body(body)).expect("an answer").json()
}

/// Server-sent events of Python's own HTTP server: ten of them, cut in the middle of every fifth.
const EVENTS: &str = r#"
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        last = int(self.headers.get("Last-Event-ID") or 0)
        with open("asked", "a") as asked:
            asked.write(f"{self.path} {last}\n")
        self.send_response(200 if last < 10 else 204)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.end_headers()
        if last >= 10:
            return
        self.wfile.write(b"retry: 5\n: hello\n\n")
        for n in range(last + 1, min(last + 4, 10) + 1):
            self.wfile.write(f"id: {n}\nevent: tick\ndata: {{\"n\":\ndata: {n}}}\n\n".encode())
        self.wfile.write(b"id: 99\ndata: {\"n\"")
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"#;

/// A hand-written WebSocket server: it returns each message in upper case, and closes without a close
/// frame when it receives "cut".
const SHOUT: &str = r#"
import base64, hashlib, socket, struct, threading
def frame(kind, data):
    return bytes([0x80 | kind, len(data)]) + data
def read(stream, count):
    data = stream.read(count)
    if len(data) < count:
        raise EOFError
    return data
def serve(conn):
    stream = conn.makefile("rb")
    key = ""
    while (line := stream.readline().strip()):
        name, _, value = line.decode().partition(": ")
        if name.lower() == "sec-websocket-key":
            key = value
    accept = hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()
    conn.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: " + base64.b64encode(accept) + b"\r\n\r\n")
    conn.sendall(frame(9, b"ping"))
    try:
        while True:
            kind, length = read(stream, 2)
            length &= 0x7f
            if length == 126:
                length = struct.unpack(">H", read(stream, 2))[0]
            mask = read(stream, 4)
            data = bytes(b ^ mask[i % 4] for i, b in enumerate(read(stream, length)))
            if kind & 15 == 8:
                conn.sendall(frame(8, data))
                break
            if kind & 15 == 1:
                if data == b'cut':
                    break
                conn.sendall(frame(1, data.upper()))
    except (EOFError, OSError):
        pass
    with open("gone", "a") as gone:
        gone.write("x")
    conn.close()
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"#;

/// A Python program that listens and prints its address. It ends with this value.
struct Foreign {
    child: std::process::Child,
    port: String,
    world: World,
}

impl Foreign {
    fn start(script: &str) -> Self {
        let world = world().file("server.py", script);
        let log = std::fs::File::create(world.path("port")).expect("a file");
        let child = std::process::Command::new("python3")
            .arg("server.py")
            .current_dir(world.dir())
            .stdout(log)
            .spawn()
            .expect("python3");
        let mut foreign = Self { child, port: String::new(), world };
        foreign.port = eventually("it listens", || {
            let said = foreign.world.read("port");
            said.strip_suffix('\n').map(str::to_owned)
        });
        foreign
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_foreign_event_stream_that_is_cut_loses_and_doubles_nothing() {
    let foreign = Foreign::start(EVENTS);
    let config = format!(
        "capabilities:\n- id: ticks\n  description: Counts.\n  input_schema: '[:map [:of :string ?]]'\n  provider: {{stream: {{url: 'http://127.0.0.1:{}/events', query: {{of: '{{of}}'}}, output_schema: '[:map [:n :int]]'}}}}\n",
        foreign.port
    );
    let server = world().config(&config).serve();
    let all: Vec<u32> = (1..=10).collect();
    assert_eq!(run(&server, "(vec (map :n (stream :ticks {:of \"a\"})))"), json!({ "value": all }));
    let asked = foreign.world.read("asked");
    assert_eq!(asked, "/events?of=a 0\n/events?of=a 4\n/events?of=a 8\n/events?of=a 10\n");
    let some = "(vec (take 2 (filter even? (map :n (stream :ticks {})))))";
    assert_eq!(run(&server, some), json!({"value": [2, 4]}));
    for mut client in server.clients() {
        let tool = client.tool("ticks");
        assert_eq!(tool["inputSchema"]["properties"]["limit"]["type"], "integer", "{tool}");
        let result = client.call("ticks", json!({"input": {"of": "b"}, "limit": 6}));
        let items: Vec<Value> = (1..=6).map(|n| json!({ "n": n })).collect();
        assert_eq!(
            result.structured(),
            &json!({"items": items, "ended_by": "limit"}),
            "{}",
            result.json
        );
        let whole = client.call("ticks", json!({}));
        assert_eq!(whole.structured()["ended_by"], "end", "{}", whole.json);
        assert_eq!(whole.structured()["items"].as_array().map(Vec::len), Some(10));
        let refused = client.call("ticks", json!({"input": {"of": 7}}));
        assert!(refused.is_error() && refused.sentence().contains("input.of"), "{}", refused.json);
        let refused = client.call("ticks", json!({"limits": 7}));
        assert!(refused.is_error() && refused.sentence().contains("limits"), "{}", refused.json);
    }
}

#[test]
fn a_foreign_web_socket_is_a_stream_in_both_directions() {
    let foreign = Foreign::start(SHOUT);
    let config = format!(
        "capabilities:\n- id: shout\n  provider: {{stream: {{url: 'ws://127.0.0.1:{port}/', direction: duplex}}}}\n- id: again\n  provider: {{stream: {{url: 'ws://127.0.0.1:{port}/', direction: transform, reconnect: true}}}}\n- id: quoted\n  provider: {{stream: {{url: 'ws://127.0.0.1:{port}/', direction: duplex, items: text, send_as: json}}}}\n",
        port = foreign.port
    );
    let server = world().config(&config).serve();
    let both = r#"(let [s (stream :shout {})] (send! s "a") (let [a (first s)] (send! s "b") [a (first (rest s))]))"#;
    assert_eq!(run(&server, both), json!({"value": ["A", "B"]}));
    let rest = r#"(let [s (stream :shout {})] (send! s "a") (send! s "b") (close! s) (vec s))"#;
    assert_eq!(run(&server, rest), json!({"value": ["A", "B"]}), "what was under way");
    let result = server.client().call("again", json!({"send": ["x", {"y": 1}]}));
    assert_eq!(result.structured()["items"], json!(["X", {"Y": 1}]), "{}", result.json);
    let json = r#"(let [s (stream :quoted {})] (send! s "a") (first s))"#;
    assert_eq!(run(&server, json), json!({"value": "\"A\""}), "a text is sent in quotes");
    let lines = r#"(let [s (stream :shout {})] (send! s "a\n\"b\"") (first s))"#;
    assert_eq!(run(&server, lines), json!({"value": "A\n\"B\""}), "a text is sent as it is");
    let cut = r#"(let [s (stream :shout {})] (send! s "a") (send! s "cut")
        (try (vec s) (catch :unavailable e (:message e))))"#;
    let said = run(&server, cut)["value"].as_str().expect("a message").to_owned();
    assert!(said.contains("after one item: the connection"), "{said}");
    eventually("every connection is gone", || foreign.world.read("gone").len() == 6);
}

/// Returns whether a program that wrote its number to a file still runs.
fn runs(world: &World, file: &str) -> bool {
    let number = world.read(file);
    !number.trim().is_empty() && Path::new("/proc").join(number.trim()).exists()
}

const ENDLESS: &str = "echo $$ > pid; exec yes '{\"text\": \"and again\"}'";

#[test]
fn v5_programs_are_streams_that_end_when_they_are_no_longer_read() {
    let config = "capabilities:\n- id: endless\n  provider: {stream: {command: ./endless}}\n- id: sorted\n  provider: {stream: {command: sort, direction: transform}}\n- id: cut\n  provider: {stream: {command: ./cut, reconnect: true}}\n- id: kept\n  provider: {stream: {command: sh, args: [-c, 'cat >> kept'], direction: sink}}\n- id: broken\n  provider: {stream: {command: sh, args: [-c, 'echo 1; echo 2; echo no $API_KEY >&2; exit 3'], env: {API_KEY: hunter22}}}\n- id: odd\n  provider: {stream: {command: sh, args: [-c, 'echo 1; echo 2; echo x; echo 4'], output_schema: int}}\n";
    let server = world()
        .config(config)
        .tool("../endless", sh(ENDLESS))
        // It continues where it stopped when it is started again.
        .tool("../cut", sh("n=$(cat at 2>/dev/null || echo 0); for i in 1 2 3; do n=$((n+1)); echo $n; done; echo $n > at; [ $n -ge 9 ] || exit 1"))
        .serve();
    assert_eq!(run(&server, "(:text (first (stream :endless {})))"), json!({"value": "and again"}));
    eventually("it ends with the program", || !runs(&server, "pid"));
    let called = server.client().call("endless", json!({"limit": 1000}));
    assert_eq!(called.structured()["items"].as_array().map(Vec::len), Some(1000), "bounded");
    eventually("it ends with the call", || !runs(&server, "pid"));
    assert_eq!(run(&server, "(vec (stream :sorted [\"b\" \"a\"]))"), json!({"value": ["a", "b"]}));
    let closed = r#"(let [s (stream :sorted {})] (send! s "b") (send! s "a") (close! s) (vec s))"#;
    assert_eq!(run(&server, closed), json!({"value": ["a", "b"]}));
    let broken = server.client().call("broken", json!({}));
    assert!(
        broken.is_error() && broken.sentence().contains("exited with code 3: no ***"),
        "{}",
        broken.json
    );
    assert_eq!(broken.structured(), &json!({"items": [1, 2], "ended_by": "error"}));
    let odd = server.client().call("odd", json!({}));
    assert!(
        odd.is_error() && odd.sentence().contains("items[2]: expected an integer, got \"x\""),
        "{}",
        odd.json
    );
    assert_eq!(odd.structured(), &json!({"items": [1, 2], "ended_by": "error"}));
    assert_eq!(run(&server, "(vec (stream :cut {}))"), json!({"value": [1, 2, 3, 4, 5, 6, 7, 8, 9]}));
    assert_eq!(
        run(&server, "(let [s (stream :kept {})] (send! s {:a 1}) (send! s 2) (close! s))"),
        json!({"value": null})
    );
    assert_eq!(server.read("kept"), "{\"a\":1}\n2\n");

    server.remove("pid");
    let program = json!({"program": "(count (stream :endless {}))"}).to_string();
    let request = Request::new("POST", "/rtfs").header("content-type", "application/json").body(program);
    let asked = server.http().write(&request).expect("a connection");
    eventually("it runs", || runs(&server, "pid"));
    drop(asked);
    eventually("it ends with its client", || !runs(&server, "pid"));
    assert!(server.resident_kib() < 300 * 1024, "{} KiB", server.resident_kib());
}

#[test]
fn a_source_is_a_resource_that_can_be_subscribed_to() {
    let config = "auth_tokens: {one: t0ken-of-one, two: t0ken-of-two}\npolicy:\n- {to: [one], allow: ['*']}\n- {to: [two], capabilities: [nothing], allow: ['*']}\ncapabilities:\n- id: news\n  provider: {stream: {command: ./news}}\n";
    let server = world()
        .config(config)
        .tool("../news", sh("echo $$ > pid; while :; do n=$((n+1)); echo $n; sleep 0.05; done"))
        .serve_quietly();
    let connect = |token| server.session_as(token);
    let mut client = connect("t0ken-of-one");
    let listed = client.request("resources/list", json!({})).expect("a list");
    assert_eq!(listed["resources"][0]["uri"], "stream://news", "{listed}");
    let news = json!({"uri": "stream://news"});
    client.request("resources/subscribe", news.clone()).expect("a subscription");
    let mut notifications = client.notification_stream(server.address());
    for _ in 0..2 {
        let event = notifications.next_event().expect("a stream").expect("an event");
        assert!(
            event.contains("notifications/resources/updated") && event.contains("stream://news"),
            "{event}"
        );
    }
    let read = client.request("resources/read", news.clone()).expect("its items");
    let text = read["contents"][0]["text"].as_str().expect("a text");
    assert!(text.starts_with(r#"{"items":[1,2"#), "{text}");
    let mut other = connect("t0ken-of-two");
    assert_eq!(other.request("resources/list", json!({})).expect("a list")["resources"], json!([]));
    assert!(
        other.request("resources/read", news.clone()).is_err(),
        "who may not call it cannot read it"
    );
    assert!(
        other.request("resources/subscribe", news.clone()).is_err(),
        "and is not notified, although another client is"
    );
    assert!(runs(&server, "pid"));
    client.request("resources/unsubscribe", news.clone()).expect("an end");
    eventually("it is no longer read", || !runs(&server, "pid"));
    let once = client.request("resources/read", news).expect("some items");
    assert!(once["contents"][0]["text"].as_str().is_some_and(|text| text.contains("[1,2")), "{once}");
    eventually("it was read, and closed", || !runs(&server, "pid"));
}

/// Two events, and then the end: in good order, or within the third event.
const BROKEN: &str = r#"
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write(b"data: 1\n\ndata: 2\n\n")
        if self.path == "/cut":
            self.wfile.write(b"data: 3")
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"#;

#[test]
fn a_stream_that_is_cut_and_one_that_ends_differ_for_every_reader() {
    let foreign = Foreign::start(BROKEN);
    let endpoint = |id: &str| {
        let port = &foreign.port;
        format!("- id: {id}\n  provider: {{stream: {{url: 'http://127.0.0.1:{port}/{id}'}}}}\n")
    };
    let config = format!("capabilities:\n{}{}", endpoint("whole"), endpoint("cut"));
    let server = world().config(&config).serve();
    let mut client = server.client();
    let whole = client.call("whole", json!({}));
    assert_eq!(whole.structured(), &json!({"items": [1, 2], "ended_by": "end"}), "{}", whole.json);
    let cut = client.call("cut", json!({}));
    assert!(cut.is_error() && cut.text().contains("after 2 items"), "{}", cut.json);
    assert_eq!(cut.structured(), &json!({"items": [1, 2], "ended_by": "error"}), "{}", cut.json);

    assert_eq!(run(&server, "(vec (stream :whole {}))"), json!({"value": [1, 2]}));
    assert_eq!(run(&server, "(vec (stream :cut {}))")["error"]["kind"], "unavailable");

    let mut read = |id: &str| -> Value {
        let params = json!({"uri": format!("stream://{id}")});
        let read = client.request("resources/read", params).expect("its items");
        serde_json::from_str(read["contents"][0]["text"].as_str().expect("a text")).expect("JSON")
    };
    assert_eq!(read("whole"), json!({"items": [1, 2], "ended_by": "end"}));
    let cut = read("cut");
    assert_eq!((&cut["items"], &cut["ended_by"]), (&json!([1, 2]), &json!("error")), "{cut}");
    assert!(cut["error"].as_str().is_some_and(|error| error.contains("after 2 items")), "{cut}");
}

#[test]
fn the_program_of_a_stream_has_the_permissions_of_its_declaration() {
    let feed = "import json\ndef may(path):\n    try:\n        return open(path).read()\n    except OSError:\n        return 'refused'\nprint(json.dumps({'own': may('own/a'), 'other': may('other/b')}), flush=True)\n";
    let files = || world().file("feed.py", feed).file("own/a", "ours").file("other/b", "of others");
    let stream = |permissions: &str| {
        format!(
            "- id: feed\n{permissions}  provider: {{stream: {{command: python3, args: [feed.py], cwd: .}}}}\n"
        )
    };
    let items = |server: &Server| {
        let called = server.client().call("feed", json!({}));
        assert!(!called.is_error(), "{}", called.json);
        called.structured()["items"][0].clone()
    };
    for (config, own, other, level) in [
        (stream(""), "ours", "of others", "unconfined"),
        (stream("  permissions: ['fs:read:own']\n"), "ours", "refused", "enforced"),
    ] {
        let server = files().config(&format!("capabilities:\n{config}")).serve();
        assert_eq!(items(&server), json!({"own": own, "other": other}), "{config}");
        assert_eq!(sandbox(&server, "feed")["level"], level, "{config}");
    }
    let strict = files().config(&format!("sandbox: strict\ncapabilities:\n{}", stream(""))).serve();
    assert_eq!(items(&strict), json!({"own": "refused", "other": "refused"}));

    let unenforceable = stream("  permissions: ['fs:read:/no/such/path']\n");
    let server = files().config(&format!("capabilities:\n{unenforceable}")).serve();
    let called = server.client().call("feed", json!({}));
    assert!(called.is_error() && called.sentence().contains("/no/such/path"), "{}", called.json);
    assert_eq!(sandbox(&server, "feed")["level"], "unavailable");
}
