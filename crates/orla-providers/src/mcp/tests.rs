//! Servers as they behave with real processes: a small Python program that speaks MCP.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use orla_marketplace::id::Pattern;
use orla_marketplace::{
    Call, CapabilityManifest, CapabilityMarketplace, Client, ClientError, JsonText, Limits,
    MCPCapability, Notice, NoticeSink, Outcome, Payload, ProviderType, Registration, RuntimeResult,
    Source, SurfaceNotice,
};
use orla_process::Instance;
use orla_process::supervisor::Policy;
use parking_lot::Mutex;

use super::*;

use orla_marketplace::testing::{TEST_TIMEOUT, eventually};
const FAKE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/mcp/fake_server.py");

/// Servers, and a marketplace that serves what they are known to serve.
pub(super) struct World {
    pub(super) servers: Arc<McpServers>,
    pub(super) market: Arc<CapabilityMarketplace>,
}

pub(super) fn fake(name: &str, modes: &[&str]) -> ServerSettings {
    let args = [FAKE].iter().chain(modes).map(|arg| (*arg).to_owned()).collect();
    let env = BTreeMap::from([("LEVEL".to_owned(), "debug".to_owned())]);
    ServerSettings::new(
        name,
        Reach::Process { command: "python3".into(), args, env, pass_env: Vec::new(), cwd: None },
    )
}

pub(super) fn declared(id: &str, server_url: &str, tool: &str) -> Registration {
    let mcp = MCPCapability::new(server_url, tool, 0);
    CapabilityManifest::new(id, "Declared.", ProviderType::MCP(mcp)).into()
}

impl World {
    pub(super) async fn new(
        servers: impl IntoIterator<Item = ServerSettings>,
        capabilities: impl IntoIterator<Item = Registration>,
    ) -> Self {
        let market = Arc::new(CapabilityMarketplace::new(Limits::default()));
        let world = Self {
            servers: Arc::new(McpServers::new(Instance::unguarded(), quick())),
            market: Arc::clone(&market),
        };
        market
            .register_executor(Arc::new(MCPExecutor::with_servers(Arc::clone(&world.servers))))
            .unwrap();
        world.servers.load(servers, capabilities, quick());
        tokio::time::timeout(TEST_TIMEOUT, world.servers.learn()).await.expect("nothing is learnt");
        world.serve();
        world
    }

    /// Puts what is known in force.
    pub(super) fn serve(&self) {
        let mut builder = self.market.builder(Limits::default());
        for registration in self.servers.registrations() {
            builder.capability(registration).unwrap();
        }
        self.market.replace(builder.build());
    }

    pub(super) fn names(&self) -> String {
        let names: Vec<String> = self.market.list().iter().map(|tool| tool.name.to_string()).collect();
        names.join(" ")
    }

    pub(super) async fn call_with(&self, call: Call) -> RuntimeResult<Outcome> {
        tokio::time::timeout(TEST_TIMEOUT, self.market.call(call)).await.expect("the call hangs")
    }

    pub(super) async fn call(&self, target: &str, arguments: &str) -> RuntimeResult<Outcome> {
        self.call_with(call(target, arguments)).await
    }

    pub(super) async fn text(&self, target: &str, arguments: &str) -> String {
        text_of(&self.call(target, arguments).await.unwrap())
    }

    pub(super) async fn error(&self, target: &str, arguments: &str) -> String {
        self.call(target, arguments).await.unwrap_err().to_string()
    }

    async fn pid(&self, target: &str) -> String {
        self.text(target, "{}").await.split(' ').nth(2).unwrap().to_owned()
    }
}

pub(super) fn quick() -> Policy {
    Policy {
        backoff_min: Duration::from_millis(5),
        term_grace: Duration::from_millis(200),
        ..Policy::default()
    }
}

pub(super) fn json(text: &str) -> JsonText {
    JsonText::parse(text.to_owned()).unwrap()
}

pub(super) fn call(target: &str, arguments: &str) -> Call {
    Call::to(target).with(Payload::from_json(json(arguments)))
}

pub(super) fn text_of(outcome: &Outcome) -> String {
    outcome.last_text().unwrap()
}

/// A client that answers everything with its name.
pub(super) struct Named(pub(super) &'static str, pub(super) Option<u64>);

#[async_trait]
impl Client for Named {
    fn capabilities(&self) -> JsonText {
        json(r#"{"sampling":{}}"#)
    }

    fn session(&self) -> Option<u64> {
        self.1
    }

    async fn request(&self, method: &str, _params: JsonText) -> Result<JsonText, ClientError> {
        Ok(json(&format!(r#"{{"{}":"{method}"}}"#, self.0)))
    }
}

pub(super) fn with_client(mut call: Call, client: Named) -> Call {
    call.scope.client = Some(Arc::new(client));
    call
}

/// Takes what a call says while it runs.
pub(super) fn listener() -> (NoticeSink, Arc<Mutex<Vec<Notice>>>) {
    let heard: Arc<Mutex<Vec<Notice>>> = Arc::default();
    let into = Arc::clone(&heard);
    (NoticeSink::new(move |notice| into.lock().push(notice)), heard)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tools_of_a_server_are_called_under_its_name() {
    let world = World::new([fake("f", &["noise"])], []).await;
    assert_eq!(world.names(), "f__ask f__change f__die f__echo f__env f__odd f__say f__slow");
    assert_eq!(world.text("f__echo", r#"{"n":1.10,"a":[ 1 ]}"#).await, r#"{"n": 1.1, "a": [1]}"#);
    assert_eq!(world.text("f.echo", "{}").await, "{}", "by its id too");
    let env = world.text("f__env", "{}").await;
    assert!(env.starts_with("debug /") && env.ends_with(" {}"), "{env}");
    let entry = world.market.get("f__echo").unwrap();
    assert_eq!(
        (entry.manifest.description.as_str(), entry.manifest.provider.kind()),
        ("The tool echo.", "mcp")
    );
    let status = world.market.status(&entry);
    assert_eq!((status.state.as_deref(), status.source.as_deref()), (Some("READY"), Some("python3")));
    world.servers.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_comes_out_byte_for_byte() {
    let world = World::new([fake("f", &[])], []).await;
    let outcome = world.call("f__odd", "{}").await.unwrap();
    assert_eq!(
        outcome.content.unwrap().as_str(),
        r#"[ {"type": "text", "text": "\u00e9", "extra": 1.10}, {"type":"hologram","n":1e400} ]"#
    );
    assert_eq!(outcome.structured.unwrap().json().unwrap().as_str(), r#"{"n": 18446744073709551616}"#);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_dies_during_a_call_is_restarted() {
    let world = World::new([fake("f", &[])], []).await;
    let error = world.error("f__die", "{}").await;
    assert!(
        error.starts_with("f__die is unavailable: it ended during the call: it exited with code 3"),
        "{error}"
    );
    assert_eq!(world.text("f__echo", "{}").await, "{}");
    let status = world.market.status(&world.market.get("f__echo").unwrap());
    assert_eq!(status.restarts, Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_are_listed_again_after_list_changed() {
    let world = World::new([fake("f", &[])], []).await;
    let mut changes = world.servers.changes();
    changes.mark_unchanged();
    world.text("f__change", "{}").await;
    tokio::time::timeout(TEST_TIMEOUT, changes.changed()).await.unwrap().unwrap();
    world.serve();
    assert!(world.names().contains("f__new"), "{}", world.names());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endless_tools_list_is_truncated() {
    let world = World::new([fake("f", &["endless"])], []).await;
    assert_eq!(world.market.list().len(), orla_mcp::MAX_PAGES);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_whose_schema_cannot_be_enforced_is_served_with_it() {
    let world = World::new([fake("f", &[])], []).await;
    let entry = world.market.get("f__odd").unwrap();
    assert!(entry.manifest.input_schema.is_some() && entry.input_not_enforced().is_some());
    assert!(world.call("f__odd", r#"{"anything":1}"#).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_reaches_the_callers_client_or_is_refused() {
    let world = World::new([fake("f", &[])], []).await;
    let question = with_client(call("f__ask", "{}"), Named("me", None));
    assert_eq!(
        text_of(&world.call_with(question).await.unwrap()),
        r#"{"me": "sampling/createMessage"}"#
    );
    let refused = world.text("f__ask", "{}").await;
    assert!(refused.contains("this caller's client cannot be asked"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_one_session_are_one_client_and_those_of_others_are_not() {
    let world = World::new([fake("f", &[])], []).await;
    for (other, expected) in
        [(Some(7), r#"{"me": "sampling/createMessage"}"#), (Some(8), "not exactly one")]
    {
        let mut slow = with_client(call("f__slow", "{}"), Named("me", other));
        let (sink, notices) = listener();
        slow.scope.notices = sink;
        let ask = async {
            eventually("the slow call is under way", || !notices.lock().is_empty()).await;
            let question = with_client(call("f__ask", "{}"), Named("me", Some(7)));
            text_of(&world.call_with(question).await.unwrap())
        };
        let (waited, answer) = tokio::join!(world.call_with(slow), ask);
        assert!(answer.contains(expected), "{answer}");
        assert_eq!(text_of(&waited.unwrap()), "waited");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn notices_during_a_call_reach_the_caller() {
    let world = World::new([fake("f", &[])], []).await;
    let (sink, notices) = listener();
    let mut call = call("f__say", "{}");
    call.scope.notices = sink;
    world.call_with(call).await.unwrap();
    let notices = notices.lock();
    assert!(
        matches!(&notices[..], [Notice::Progress(progress), Notice::Log { message, .. }]
            if progress.total == Some(2.0) && &**message == "hello"),
        "{notices:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_the_new_revision_alone_is_spoken_to_in_it() {
    let world = World::new([fake("f", &["modern"])], []).await;
    let env = world.text("f__env", "{}").await;
    assert!(env.contains(r#""io.modelcontextprotocol/protocolVersion": "2026-07-28""#), "{env}");
    let question = with_client(call("f__ask", "{}"), Named("me", None));
    assert_eq!(
        text_of(&world.call_with(question).await.unwrap()),
        r#"[{"q": {"me": "sampling/createMessage"}}, "s1"]"#
    );
    let refused = world.error("f__ask", "{}").await;
    assert_eq!(
        refused,
        "f__ask failed: its request for input has no answer: it requests input, but its caller has no client that can answer"
    );
    let surface = world.servers.surfaces().remove(0);
    let mut notices = surface.notices().unwrap();
    let ctx = world.market.surface_context(&Call::to("f"));
    let uri = json(r#"{"uri":"mem://a"}"#);
    surface.request("resources/subscribe", &uri, &ctx).await.unwrap();
    let notice = tokio::time::timeout(TEST_TIMEOUT, notices.recv()).await.unwrap().unwrap();
    assert_eq!(notice, SurfaceNotice::ResourceUpdated { uri: "mem://a".into() });
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_and_resources_pass_through() {
    let world = World::new([fake("f", &[])], []).await;
    let surface = world.servers.surfaces().remove(0);
    let ctx = world.market.surface_context(&Call::to("f"));
    let ask = async |method: &str, params: &str| {
        surface.request(method, &json(params), &ctx).await.map(|result| result.to_string())
    };
    assert_eq!(
        ask("prompts/list", "{}").await.unwrap(),
        r#"{"prompts":[{"name":"f__greet","extra":1}]}"#
    );
    assert!(ask("prompts/get", r#"{"name":"f__greet"}"#).await.unwrap().contains(r#""text": "greet""#));
    assert_eq!(
        ask("resources/read", r#"{"uri":"mem://a"}"#).await.unwrap(),
        r#"{"contents":[{"uri":"mem://a","text":"x","n":1.10}]}"#
    );
    assert!(ask("resources/read", r#"{"uri":"mem://b"}"#).await.is_err());
    let mut notices = surface.notices().unwrap();
    ask("resources/subscribe", r#"{"uri":"mem://a"}"#).await.unwrap();
    let notice = tokio::time::timeout(TEST_TIMEOUT, notices.recv()).await.unwrap().unwrap();
    assert_eq!(notice, SurfaceNotice::ResourceUpdated { uri: "mem://a".into() });
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_decide_what_is_served_under_which_name() {
    let mut chosen = fake("f", &[]);
    chosen.names.include = Some(vec![Pattern::new("e*"), Pattern::new("say")]);
    chosen.names.exclude = vec![Pattern::new("env")];
    chosen.names.rename.insert("say".into(), "speak".into());
    chosen.timeout = Some(Duration::from_secs(2));
    let world = World::new([chosen.clone()], []).await;
    assert_eq!(world.names(), "f__echo f__speak");
    assert_eq!(world.text("f__speak", "{}").await, "said");
    assert_eq!(world.market.get("f__echo").unwrap().policy.timeout, Some(Duration::from_secs(2)));
    // Names change with the settings, and the process stays.
    let restarts = |target: &str| world.market.status(&world.market.get(target).unwrap()).restarts;
    chosen.names.prefix = Some(String::new());
    world.servers.load([chosen], [], quick());
    world.serve();
    assert_eq!((world.names().as_str(), restarts("echo")), ("echo speak", Some(0)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_carries_over_what_is_unchanged_and_restarts_what_is_not() {
    let world = World::new([fake("a", &[]), fake("b", &[])], []).await;
    let (a, b) = (world.pid("a__env").await, world.pid("b__env").await);
    let old = world.market.snapshot();
    world.servers.load([fake("a", &[]), fake("b", &["noise"])], [], quick());
    world.serve();
    assert_eq!(world.pid("a__env").await, a);
    assert_ne!(world.pid("b__env").await, b);
    drop(old);
    let is_alive = |pid: &str| std::path::Path::new(&format!("/proc/{pid}")).exists();
    assert!(is_alive(&a));
    world.servers.load([fake("b", &["noise"])], [], quick());
    // The snapshot in force still serves it.
    assert_eq!(world.pid("a__env").await, a);
    world.serve();
    eventually("its end", || !is_alive(&a)).await;
    assert!(!world.names().contains("a__"));
}

#[tokio::test(flavor = "multi_thread")]
async fn declared_capabilities_name_a_server_and_a_tool_or_all() {
    let own = format!("stdio:python3 '{FAKE}'");
    let declared = [
        declared("one", "mcp:f", "echo"),
        declared("all", "mcp:f", "*"),
        declared("own", &own, "echo"),
        declared("lost", "mcp:nobody", "echo"),
    ];
    let world = World::new([fake("f", &[])], declared).await;
    assert_eq!(world.text("one", r#"{"tool":"die"}"#).await, r#"{"tool": "die"}"#);
    assert_eq!(world.text("all__echo", "{}").await, "{}");
    assert_eq!(world.text("own", r#"{"x":1}"#).await, r#"{"x": 1}"#);
    assert_eq!(world.error("lost", "{}").await, "lost is unavailable: no MCP server is called nobody");
    assert_eq!(world.market.get("one").unwrap().manifest.description, "Declared.");
    assert_eq!(world.market.get("all__echo").unwrap().manifest.description, "The tool echo.");
    assert!(world.servers.may_serve("all__x") && !world.servers.may_serve("other__x"));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_tool_the_input_names_it_or_all_are_listed() {
    let market = CapabilityMarketplace::new(Limits::default());
    market.register_executor(Arc::new(MCPExecutor::new())).unwrap();
    let server_url = format!("stdio:python3 '{FAKE}'");
    market.register_capability(declared("any", &server_url, "").manifest).unwrap();
    let called = async |arguments: &str| market.call(call("any", arguments)).await;
    let listed = called("{}").await.unwrap().structured.unwrap().json().unwrap().to_string();
    assert!(
        listed.starts_with(
            r#"{"tools":[{"name":"echo","description":"The tool echo.","inputSchema":{"type":"object"}}"#
        ),
        "{listed}"
    );
    let echoed = called(r#"{"tool":"echo","arguments":{"n":1.10}}"#).await.unwrap();
    assert_eq!(text_of(&echoed), r#"{"n": 1.1}"#);
    for (arguments, problem) in [
        (r#"{"tool":7}"#, "any: invalid input: input.tool: expected the name of a tool, got 7"),
        (
            r#"{"tool":"echo","arguments":[]}"#,
            "any: invalid input: input.arguments: expected an object, got []",
        ),
        (r#"{"tool":"none"}"#, "any refused the call: Unknown tool: none (code -32602)"),
    ] {
        assert_eq!(called(arguments).await.unwrap_err().to_string(), problem);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_executor_of_its_own_shares_a_process_and_ends_it_when_it_is_dropped() {
    let market = CapabilityMarketplace::new(Limits::default());
    market.register_executor(Arc::new(MCPExecutor::new())).unwrap();
    let server_url = format!("stdio:python3 '{FAKE}'");
    market.register_capability(declared("one", &server_url, "env").manifest).unwrap();
    market.register_capability(declared("two", &server_url, "env").manifest).unwrap();
    let pid = async |id: &str| {
        let text = text_of(&market.call(call(id, "{}")).await.unwrap());
        text.split(' ').nth(2).unwrap().to_owned()
    };
    let process = std::path::PathBuf::from(format!("/proc/{}", pid("one").await));
    assert_eq!(format!("/proc/{}", pid("two").await), process.display().to_string());
    assert!(process.exists());
    drop(market);
    eventually("its end", || !process.exists()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_start_reports_why_and_blocks_nothing() {
    let mut mute = fake("mute", &["mute"]);
    mute.startup_timeout = Duration::from_millis(200);
    let mut none = fake("none", &[]);
    none.reach = Reach::Process {
        command: "no-such-program".into(),
        args: Vec::new(),
        env: BTreeMap::new(),
        pass_env: Vec::new(),
        cwd: None,
    };
    let capabilities = [declared("m", "mcp:mute", "echo"), declared("n", "mcp:none", "echo")];
    let world = World::new([mute, none, fake("f", &[])], capabilities).await;
    assert!(world.names().contains("f__echo"));
    let error = world.error("m", "{}").await;
    assert!(error.contains("it did not answer initialize within 0.2 s"), "{error}");
    let error = world.error("n", "{}").await;
    assert!(error.contains("no-such-program"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tools_own_failure_is_reported_unchanged() {
    let market = CapabilityMarketplace::new(Limits::default());
    market.register_executor(Arc::new(MCPExecutor::new())).unwrap();
    let server_url = format!("stdio:python3 '{FAKE}'");
    market.register_capability(declared("fail", &server_url, "fail").manifest).unwrap();
    let error = market.call(call("fail", "{}")).await.unwrap_err();
    assert_eq!(error.to_string(), "it failed");
    assert_eq!(error.outcome().unwrap().last_text().as_deref(), Some("it failed"));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_large_calls_at_once_never_stall() {
    let world = World::new([fake("f", &[])], []).await;
    let large = format!(r#"{{"text":"{}"}}"#, "x".repeat(100_000));
    let calls = (0..32).map(|_| async { world.text("f__echo", &large).await.len() });
    let lengths = futures_util::future::join_all(calls).await;
    assert!(lengths.iter().all(|length| *length == large.len() + 1), "{lengths:?}");
}
