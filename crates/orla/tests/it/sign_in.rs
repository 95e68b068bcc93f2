//! Sign-ins at MCP servers behind HTTP, with an authorization server (MCP authorization, OAuth 2.1).

use std::process::Child;

use orla_e2e::{Http, Request, Server, World, eventually, free_port};
use serde_json::{Value, json};

use crate::world;

/// The two servers, on one port.
pub(crate) struct Authority {
    child: Child,
    pub(crate) port: u16,
    _world: World,
}

impl Authority {
    pub(crate) fn start() -> Self {
        Self::with("")
    }

    /// One whose MCP server lists its tools to everyone.
    fn open() -> Self {
        Self::with("1")
    }

    fn with(open: &str) -> Self {
        let world = world().file("authority.py", include_str!("golden/authority.py"));
        let said = std::fs::File::create(world.path("port")).expect("a file");
        let mut command = std::process::Command::new("python3");
        command.arg("authority.py").env("OPEN", open).current_dir(world.dir()).stdout(said);
        let mut authority = Self { child: command.spawn().expect("python3"), port: 0, _world: world };
        authority.port = eventually("it listens", || {
            let said = authority._world.read("port");
            said.strip_suffix('\n').and_then(|port| port.parse().ok())
        });
        authority
    }

    pub(crate) fn get(&self, path: &str) -> Value {
        Http::new(([127, 0, 0, 1], self.port).into()).get(path).json()
    }

    /// Returns the requested grants and tools.
    fn seen(&self) -> Vec<(String, String)> {
        serde_json::from_value(self.get("/seen")).expect("pairs")
    }

    pub(crate) fn count(&self, what: &str) -> usize {
        self.seen().iter().filter(|(kind, grant)| kind == what || grant == what).count()
    }

    /// Returns a world whose configuration has the server with this `auth`.
    fn world(&self, auth: &str, more: &str) -> World {
        let port = self.port;
        world().config(&format!(
            "mcpServers:\n  up: {{url: 'http://127.0.0.1:{port}/mcp', auth: {auth}}}\n{more}"
        ))
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Follows the redirects of a link, as a browser does. `as_` is the user that signs in.
pub(crate) fn browse(link: &str, as_: &str) -> String {
    let mut url = format!("{link}&as={as_}");
    for _ in 0..3 {
        let rest = url.strip_prefix("http://").expect("an address").to_owned();
        let (host, path) = rest.split_once('/').expect("a path");
        let response = Http::new(host.parse().expect("an address")).get(&format!("/{path}"));
        match response.header("location") {
            Some(next) => url = next.to_owned(),
            None => return response.text(),
        }
    }
    panic!("too many redirects");
}

/// Runs `orla login` in the world, and signs in at the link that it prints.
fn log_in(world: &World, arguments: &[&str]) -> String {
    let mut child = world.spawn(&[&["login"], arguments].concat(), "login.out");
    let link = eventually("a link is printed", || {
        world.read("login.out").lines().find(|line| line.starts_with("http://")).map(str::to_owned)
    });
    let page = browse(&link, "person");
    let status = eventually("login ends", || child.try_wait().expect("it can be waited for"));
    assert!(status.success(), "{page}: {}", world.read("login.out"));
    page
}

/// Returns the address in a sentence.
pub(crate) fn link_in(sentence: &str) -> String {
    let word = sentence.split_whitespace().find(|word| word.starts_with("http://"));
    word.unwrap_or_else(|| panic!("no link in: {sentence}")).to_owned()
}

/// Asserts that no output contains a token.
fn assert_no_token_is_shown(server: &Server, status: &str) {
    let world: &World = server;
    let written = format!("{}{status}{}", server.log(), world.read(".orla/tokens.json"));
    for secret in ["at-person-", "rt-person-", "at-ada-", "at-bob-", "rt-ada-"] {
        assert!(!written.contains(secret), "{secret}: {written}");
    }
}

#[test]
fn a_person_signs_in_once_and_the_tokens_are_refreshed_by_one_request_at_a_time() {
    let authority = Authority::start();
    let world = authority.world("oauth", "");
    let refused = world.run(&["call", "up__who"]);
    assert!(refused.code == Some(1) && refused.all().contains("orla login up"), "{}", refused.all());
    assert!(log_in(&world, &["up"]).contains("You are signed in"));
    // Another process uses the same sign-in.
    assert_eq!(world.run(&["call", "up__who"]).stdout.trim_end(), "you are person");

    let server = world.serve();
    assert_eq!(server.client().call("up__who", json!({})).text(), "you are person");
    let grants = authority.count("refresh_token");
    authority.get("/revoke");
    let callers: Vec<_> = (0..8)
        .map(|_| {
            let mut client = server.client();
            std::thread::spawn(move || client.call("up__who", json!({})).text())
        })
        .collect();
    for caller in callers {
        assert_eq!(caller.join().expect("an answer"), "you are person");
    }
    assert_eq!(authority.count("refresh_token") - grants, 1);
    assert_no_token_is_shown(&server, &server.status().to_string());

    // Signing out holds for the running server as soon as its token is no longer accepted.
    let out = server.run(&["logout", "up"]);
    assert!(out.code == Some(0) && out.all().contains("signed out"), "{}", out.all());
    authority.get("/revoke");
    let refused = server.client().call("up__who", json!({}));
    assert!(refused.is_error() && refused.sentence().contains("orla login up"), "{}", refused.json);
}

#[test]
fn a_tool_that_needs_more_scopes_reports_them_and_the_next_sign_in_requests_them() {
    let authority = Authority::start();
    let world = authority.world("oauth", "");
    log_in(&world, &["up"]);
    let server = world.serve();
    let mut client = server.client();
    let refused = client.call("up__admin", json!({}));
    assert!(refused.sentence().contains("more scopes (admin)"), "{}", refused.json);
    log_in(&server, &["up"]);
    assert_eq!(client.call("up__admin", json!({})).text(), "you are person");
    // The scopes from before stay.
    assert_eq!(client.call("up__who", json!({})).text(), "you are person");
}

#[test]
fn a_sign_in_without_a_browser_on_this_machine_is_by_a_code() {
    let authority = Authority::start();
    let world = authority.world("oauth", "");
    let mut child = world.spawn(&["login", "--device", "up"], "login.out");
    eventually("a code is printed", || world.read("login.out").contains("AB-CD").then_some(()));
    authority.get("/approve?code=AB-CD");
    let status = eventually("login ends", || child.try_wait().expect("it can be waited for"));
    assert!(status.success(), "{}", world.read("login.out"));
    assert_eq!(world.run(&["call", "up__who"]).stdout.trim_end(), "you are person");
}

#[test]
fn each_caller_signs_in_by_a_link_of_its_own_and_is_itself() {
    const TOKENS: &str = "auth_tokens:\n  ada: ada-token-0123456789\n  bob: bob-token-0123456789\n";
    // The server lists its tools only to callers that have signed in.
    let authority = Authority::start();
    let server = authority.world("{grant: authorization_code, per: caller}", TOKENS).serve();
    let call = |token: &str| {
        let mut client = server.client_as(token);
        client.call("up__who", json!({}))
    };
    for (name, token) in [("ada", "ada-token-0123456789"), ("bob", "bob-token-0123456789")] {
        let refused = call(token);
        assert!(refused.is_error(), "{}", refused.json);
        let link = link_in(refused.sentence());
        // The same call returns the same link while it waits.
        assert_eq!(link_in(call(token).sentence()), link);
        let page = browse(&link, name);
        assert!(page.contains("You are signed in"), "{page}");
        assert_eq!(call(token).text(), format!("you are {name}"));
    }
    assert_eq!(call("ada-token-0123456789").text(), "you are ada");
    assert_no_token_is_shown(&server, "");
}

#[test]
fn a_client_that_opens_links_signs_in_and_its_call_continues() {
    let authority = Authority::open();
    let tokens = "auth_tokens:\n  ada: ada-token-0123456789\n";
    let server = authority.world("{per: caller}", tokens).serve();
    let capabilities = json!({"elicitation": {"url": {}}});
    let mut client = server.client_as("ada-token-0123456789");
    let meta = json!({"io.modelcontextprotocol/clientCapabilities": capabilities});
    let params = json!({"name": "up__who", "arguments": {}, "_meta": meta});
    let asked = client.request("tools/call", params.clone()).expect("a question");
    let (key, question) =
        asked["inputRequests"].as_object().and_then(|all| all.iter().next()).expect("one");
    assert_eq!(question["params"]["mode"], "url", "{asked}");
    browse(question["params"]["url"].as_str().expect("a link"), "ada");
    let mut again = params;
    again["inputResponses"] = json!({key: {"action": "accept"}});
    again["requestState"] = asked["requestState"].clone();
    let result = client.request("tools/call", again).expect("a result");
    assert_eq!(result["content"][0]["text"], "you are ada", "{result}");
}

#[test]
fn a_client_that_opens_links_is_asked_within_its_session_and_its_call_continues() {
    const TOKEN: &str = "ada-token-0123456789";
    let authority = Authority::open();
    let tokens = format!("auth_tokens:\n  ada: {TOKEN}\n");
    let server = authority.world("{per: caller}", &tokens).serve();
    let mut client = server.session_as(TOKEN);
    // A session of a client that opens links.
    let initialize = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {"elicitation": {"url": {}}},
        "clientInfo": {"name": "t", "version": "1"},
    }});
    let request = Request::new("POST", "/mcp")
        .bearer(TOKEN)
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream");
    let opened = server.http().send(&request.body(initialize.to_string())).expect("an answer");
    client.set_session(Some(opened.header("mcp-session-id").expect("a session")));
    assert_eq!(client.notify("notifications/initialized", json!({})), 202);

    let mut call = client.begin_call("up__who", json!({}));
    let question =
        std::iter::from_fn(|| call.next_message()).find(|message| message["id"] != json!(null));
    let question = question.expect("a question");
    assert_eq!(
        (&question["method"], &question["params"]["mode"]),
        (&json!("elicitation/create"), &json!("url"))
    );
    browse(question["params"]["url"].as_str().expect("a link"), "ada");
    let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept"}});
    let sent = server.http().send(&client.post("", None).body(answer.to_string())).expect("an answer");
    assert_eq!(sent.status, 202);
    assert_eq!(client.finish_call(call).expect("a result").text(), "you are ada");
    assert_no_token_is_shown(&server, "");
}

#[test]
fn a_link_of_another_sign_in_changes_nothing() {
    let authority = Authority::start();
    let world = authority.world("oauth", "");
    let mut child = world.spawn(&["login", "up"], "login.out");
    let link = eventually("a link is printed", || {
        world.read("login.out").lines().find(|line| line.starts_with("http://")).map(str::to_owned)
    });
    let back =
        link.split("redirect_uri=").nth(1).and_then(|rest| rest.split('&').next()).expect("a redirect");
    let host = back.replace("%3A", ":").replace("%2F", "/");
    let host =
        host.strip_prefix("http://").and_then(|rest| rest.split('/').next()).expect("a host").to_owned();
    let mut http = Http::new(host.parse().expect("an address"));
    let forged = http.send(&Request::new("GET", "/callback?code=x&state=forged")).expect("an answer");
    assert_eq!(forged.status, 400);
    let page = browse(&link, "person");
    assert!(page.contains("You are signed in"), "{page}");
    assert!(eventually("login ends", || child.try_wait().expect("it can be waited for")).success());
}

#[test]
fn the_links_of_several_callers_return_to_one_fixed_port() {
    const TOKENS: &str = "auth_tokens:\n  ada: ada-token-0123456789\n  bob: bob-token-0123456789\n";
    let authority = Authority::start();
    let port = free_port();
    let server = authority.world(&format!("{{per: caller, redirect_port: {port}}}"), TOKENS).serve();
    let call = |token: &str| server.client_as(token).call("up__who", json!({}));
    let people = [("ada", "ada-token-0123456789"), ("bob", "bob-token-0123456789")];
    let links = people.map(|(_, token)| link_in(call(token).sentence()));
    for ((name, token), link) in people.iter().zip(&links).rev() {
        let page = browse(link, name);
        assert!(page.contains("You are signed in"), "{page}");
        assert_eq!(call(token).text(), format!("you are {name}"));
    }
}
