use super::*;
use crate::testing::{Canned, marketplace};
use crate::{AccessPolicy, Callers, Limits, Notice, NoticeSink, Permission, Rule};
use parking_lot::Mutex;
use rtfs::Value;

/// Returns a marketplace of canned capabilities with the tools of discovery.
fn market(limits: Limits, canned: &[(&str, Canned)]) -> Arc<CapabilityMarketplace> {
    build(limits, canned, |_| {})
}

fn build(
    limits: Limits,
    canned: &[(&str, Canned)],
    change: impl FnOnce(&mut crate::CatalogBuilder),
) -> Arc<CapabilityMarketplace> {
    let market = marketplace(limits.clone(), []);
    market.register_executor(Arc::new(DiscoveryExecutor::new(&market))).unwrap();
    let mut builder = market.builder(limits);
    for (id, canned) in canned {
        builder.capability(canned.clone().manifest(id)).unwrap();
    }
    registrations().into_iter().for_each(|tool| builder.capability(tool).unwrap());
    change(&mut builder);
    market.replace(builder.build());
    market
}

#[test]
fn the_schemas_of_our_own_tools_can_be_enforced() {
    // A schema is compiled by the first call.
    for tool in registrations().into_iter().chain(crate::program::registrations()) {
        let CapabilityManifest { id, input_schema, output_schema, .. } = tool.manifest;
        for schema in input_schema.iter().chain(&output_schema) {
            crate::schema::Validator::compile(schema).unwrap_or_else(|err| panic!("{id}: {err}"));
        }
    }
}

async fn call(market: &CapabilityMarketplace, tool: &str, input: Json) -> RuntimeResult<Outcome> {
    market.call(Call::to(tool).with(Payload::from_json(JsonText::of(&input).unwrap()))).await
}

fn structured(outcome: &Outcome) -> Json {
    serde_json::from_str(outcome.structured.as_ref().unwrap().json().unwrap().as_str()).unwrap()
}

fn ids(outcome: &Outcome) -> Vec<String> {
    let found = structured(outcome);
    let results = found["results"].as_array().unwrap();
    results.iter().map(|result| result["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_search_returns_the_best_results_and_the_total() {
    let canned =
        [("mail.send", Canned::Echoes), ("mail.list", Canned::Echoes), ("weather", Canned::Echoes)];
    let market = market(Limits::default(), &canned);
    let found =
        call(&market, "capability_search", json!({"query": "sending mail", "limit": 1})).await.unwrap();
    assert_eq!(ids(&found), ["mail.send"]);
    let result = structured(&found);
    assert_eq!(result["total"], 2);
    let first = &result["results"][0];
    assert_eq!((&first["name"], &first["kind"]), (&json!("mail__send"), &json!("canned")));
    assert_eq!(first["description"], "The canned capability mail.send");
    assert!(first["score"].as_f64().unwrap() > 0.0);
    let text = found.last_text().unwrap();
    assert!(
        text.starts_with("mail.send: The canned capability mail.send\n") && text.contains("1 more fit"),
        "{text}"
    );
    // They do not find themselves.
    let none = call(&market, "capability_search", json!({"query": "capability_search"})).await.unwrap();
    assert!(!ids(&none).iter().any(|id| IDS.contains(&&**id)), "{:?}", ids(&none));
    let none = call(&market, "capability_search", json!({"query": "xyzzy"})).await.unwrap();
    assert!(none.last_text().unwrap().starts_with("No capability fits \"xyzzy\""));
}

#[tokio::test]
async fn a_description_has_both_notations_and_an_example() {
    let market = market(Limits::default(), &[]);
    let mut manifest = Canned::Echoes.manifest("weather.current");
    let schema = json!({"type": "object", "properties": {"city": {"type": "string", "examples": ["Paris"]}, "days": {"type": "integer", "minimum": 2}}, "required": ["city", "days"]});
    manifest.input_schema = Some(type_from_json_schema(&schema));
    manifest.permissions = vec!["net:api.example.com".to_owned()];
    market.register_capability(manifest).unwrap();
    for id in ["weather.current", "weather__current"] {
        let outcome = call(&market, "capability_describe", json!({"id": id})).await.unwrap();
        let described = structured(&outcome);
        assert_eq!(described["input"]["type"], "[:map [:city :string] [:days [:and :int [:>= 2]]]]");
        assert_eq!(described["input"]["json_schema"], schema);
        assert_eq!(described["permissions"], json!(["net:api.example.com"]));
        assert_eq!(described["kind"], "canned");
        let input = json!({"city": "Paris", "days": 2});
        assert_eq!(described["example"]["json"], json!({"id": "weather.current", "input": input}));
        assert_eq!(described["example"]["rtfs"], r#"(call :weather.current {:city "Paris", :days 2})"#);
        let text = outcome.last_text().unwrap();
        assert!(
            text.starts_with("weather.current (canned), as MCP tool weather__current\nThe canned"),
            "{text}"
        );
        assert!(
            text.contains("net:api.example.com") && text.contains("(call :weather.current"),
            "{text}"
        );
    }
}

#[tokio::test]
async fn an_unknown_id_is_a_result_with_similar_ids() {
    let market = market(Limits::default(), &[("weather", Canned::Echoes)]);
    for tool in ["capability_describe", "capability_call"] {
        let error = call(&market, tool, json!({"id": "wether"})).await.unwrap_err();
        assert_eq!(
            (error.kind(), &*error.to_string()),
            ("failed", "unknown tool: wether; did you mean weather?")
        );
        let error = call(&market, tool, json!({"id": "zzz"})).await.unwrap_err();
        assert_eq!(error.to_string(), "unknown tool: zzz; capability_search finds what there is");
    }
}

#[tokio::test]
async fn a_call_passes_input_and_result_through_as_they_are() {
    let market =
        market(Limits::default(), &[("echo", Canned::Echoes), ("sad", Canned::Fails("no".into()))]);
    let text = r#"{"id":"echo","input":{"n":1.10,"big":18446744073709551616}}"#;
    let input = Payload::from_json(JsonText::parse(text).unwrap());
    let outcome = market.call(Call::to("capability_call").with(input)).await.unwrap();
    let given = outcome.structured.unwrap();
    assert_eq!(given.json().unwrap().as_str(), r#"{"n":1.10,"big":18446744073709551616}"#);
    let empty = call(&market, "capability_call", json!({"id": "echo"})).await.unwrap();
    assert_eq!(structured(&empty), json!({}));
    let error = call(&market, "capability_call", json!({"id": "sad"})).await.unwrap_err();
    assert_eq!(error.to_string(), "no");
}

#[tokio::test]
async fn a_call_through_another_is_recorded_one_deeper_and_its_notices_arrive() {
    let market = market(Limits::default(), &[("report", Canned::Reports(2))]);
    let records: Arc<Mutex<Vec<(String, u32)>>> = Arc::default();
    let sink = Arc::clone(&records);
    market.on_finished(move |record| sink.lock().push((record.name.to_string(), record.depth)));
    let notices: Arc<Mutex<Vec<Notice>>> = Arc::default();
    let taken = Arc::clone(&notices);
    let input = JsonText::of(&json!({"id": "report"})).unwrap();
    let mut outer = Call::to("capability_call").with(Payload::from_json(input));
    outer.scope.notices = NoticeSink::new(move |notice| taken.lock().push(notice));
    market.call(outer).await.unwrap();
    let expected = [("report".to_owned(), 1), ("capability_call".to_owned(), 0)];
    assert_eq!(*records.lock(), expected);
    assert_eq!(notices.lock().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_call_through_another_takes_as_long_as_the_capability_may() {
    let market = market(Limits::default(), &[("slow", Canned::Hangs)]);
    let error = call(&market, "capability_call", json!({"id": "slow"})).await.unwrap_err();
    assert_eq!(error.to_string(), "slow timed out after 30 s");
    let input = JsonText::of(&json!({"id": "slow"})).unwrap();
    let mut outer = Call::to("capability_call").with(Payload::from_json(input));
    outer.timeout = Some(Duration::from_secs(2));
    let error = market.call(outer).await.unwrap_err();
    assert_eq!(error.kind(), "timeout");
}

#[tokio::test(start_paused = true)]
async fn calls_within_calls_do_not_wait_for_the_places_of_those_they_are_in() {
    let limits = Limits { max_concurrency: 1, ..Limits::default() };
    let market = market(limits, &[("echo", Canned::Echoes)]);
    let deep = json!({"id": "capability_call", "input": {"id": "capability_call", "input": {"id": "echo", "input": {"a": 1}}}});
    let outcomes =
        futures_util::future::join_all((0..8).map(|_| call(&market, "capability_call", deep.clone())));
    for outcome in outcomes.await {
        assert_eq!(structured(&outcome.unwrap()), json!({"a": 1}));
    }
    assert_eq!((market.running(), market.waiting()), (0, 0));
}

#[tokio::test]
async fn calls_within_calls_have_an_end() {
    let limits = Limits { max_depth: 3, ..Limits::default() };
    let market = market(limits, &[("echo", Canned::Echoes)]);
    let mut input = json!({"id": "echo"});
    for _ in 0..5 {
        input = json!({"id": "capability_call", "input": input});
    }
    let error = call(&market, "capability_call", input).await.unwrap_err();
    assert_eq!(error.kind(), "limit");
}

#[tokio::test]
async fn a_session_finds_and_calls_what_is_in_its_snapshot() {
    let market = market(Limits::default(), &[("old", Canned::Answers(Value::from("old")))]);
    let before = market.snapshot();
    market.unregister_capability("old").unwrap();
    market.register_capability(Canned::Echoes.manifest("new")).unwrap();
    let within = |tool: &str, input: Json| {
        let mut call = Call::to(tool).with(Payload::from_json(JsonText::of(&input).unwrap()));
        call.scope.catalog = Some(Arc::clone(&before));
        call
    };
    let found = market.call(within("capability_search", json!({"query": "canned"}))).await.unwrap();
    assert_eq!(ids(&found), ["old"]);
    assert!(market.call(within("capability_call", json!({"id": "old"}))).await.is_ok());
    assert!(market.call(within("capability_call", json!({"id": "new"}))).await.is_err());
    let newest = call(&market, "capability_search", json!({"query": "canned"})).await.unwrap();
    assert_eq!(ids(&newest), ["new"]);
}

#[tokio::test]
async fn denied_capabilities_are_not_found() {
    let everything: Permission = "*".parse().unwrap();
    let any = crate::id::Pattern::new("*");
    let rules = vec![
        Rule {
            to: Callers::everyone(),
            capabilities: vec![any],
            allow: vec![everything.clone()],
            deny: vec![],
        },
        Rule {
            to: Callers::everyone(),
            capabilities: vec![crate::id::Pattern::new("secret")],
            allow: vec![],
            deny: vec![everything],
        },
    ];
    let canned = [("secret", Canned::Echoes), ("secret_open", Canned::Echoes)];
    let market = build(Limits::default(), &canned, |builder| {
        builder.access(AccessPolicy { rules, ..AccessPolicy::default() });
    });
    let found = call(&market, "capability_search", json!({"query": "secret"})).await.unwrap();
    assert_eq!(ids(&found), ["secret_open"]);
    for id in ["secret", "secre"] {
        let error = call(&market, "capability_describe", json!({"id": id})).await.unwrap_err();
        assert!(!error.to_string().contains("mean secret?"), "{error}");
        assert!(error.to_string().starts_with(&format!("unknown tool: {id};")), "{error}");
    }
}

#[test]
fn only_what_is_listed_by_name_is_listed_and_it_is_allowed() {
    let market = marketplace(Limits::default(), []);
    market.register_executor(Arc::new(DiscoveryExecutor::new(&market))).unwrap();
    let mut builder = market.builder(Limits::default());
    ["a", "b"].into_iter().for_each(|id| builder.capability(Canned::Echoes.manifest(id)).unwrap());
    registrations().into_iter().for_each(|tool| builder.capability(tool).unwrap());
    builder.allow(vec![crate::id::Pattern::new("a")]);
    builder.list_only(&IDS);
    let catalog = builder.build();
    let mut listed: Vec<&str> = catalog.listed().map(|entry| &*entry.name).collect();
    listed.sort_unstable();
    assert_eq!(listed, ["capability_call", "capability_describe", "capability_search"]);
    assert!(catalog.get("a").is_some() && catalog.get("b").is_none());
}
