//! Compares the hand-written messages with the SDK's own types.

use super::*;
use orla_marketplace::id::Pattern;
use orla_marketplace::rtfs::Value;
use orla_marketplace::testing::Canned;
use orla_marketplace::{
    AccessPolicy, Callers, CapabilityMarketplace, Limits, Payload, Permission, Registration, Rule,
    Violation,
};
use orla_mcp::call_result::call_result_json;
use proptest::prelude::*;
use rmcp::model::{CallToolResult, ListToolsResult};

use crate::mcp::rpc::{Message, parse};

fn id() -> Id {
    let Ok(Message::Request(request)) = parse(br#"{"jsonrpc":"2.0","id":7,"method":"x"}"#) else {
        panic!("a request")
    };
    request.id
}

fn json(text: &str) -> JsonText {
    JsonText::parse(text.to_owned()).unwrap()
}

fn structured(text: &str) -> Option<Payload> {
    Some(Payload::from_json(json(text)))
}

/// Returns the result inside of an answer.
fn result_of(answer: &Bytes) -> &str {
    let text = std::str::from_utf8(answer).unwrap();
    text.strip_prefix(r#"{"jsonrpc":"2.0","id":7,"result":"#).unwrap().strip_suffix('}').unwrap()
}

/// Asserts that the SDK would send the same bytes.
fn same_as_the_sdk<T: serde::Serialize + serde::de::DeserializeOwned>(answer: &Bytes) {
    let result = result_of(answer);
    let theirs: T = serde_json::from_str(result).unwrap();
    assert_eq!(serde_json::to_string(&theirs).unwrap(), result);
}

#[test]
fn an_outcome_becomes_a_result() {
    let text = r#"[{"type":"text","text":"a"}]"#;
    let cases = [
        (None, None, None, r#"{"content":[]}"#.to_owned()),
        (Some(text), None, None, format!(r#"{{"content":{text}}}"#)),
        (
            Some(text),
            Some(r#"{"n":1.10}"#),
            Some(r#"{"k":1}"#),
            format!(r#"{{"content":{text},"structuredContent":{{"n":1.10}},"_meta":{{"k":1}}}}"#),
        ),
        (
            None,
            Some(r#"{"a":"b\n"}"#),
            None,
            r#"{"content":[{"type":"text","text":"{\"a\":\"b\\n\"}"}],"structuredContent":{"a":"b\n"}}"#
                .to_owned(),
        ),
        (
            None,
            Some(r#""é\n""#),
            None,
            r#"{"content":[{"type":"text","text":"é\n"}],"structuredContent":{"result":"é\n"}}"#
                .to_owned(),
        ),
        (
            None,
            Some("[1]"),
            None,
            r#"{"content":[{"type":"text","text":"[1]"}],"structuredContent":{"result":[1]}}"#
                .to_owned(),
        ),
    ];
    for (content, value, meta, expected) in cases {
        let outcome = Outcome {
            content: content.map(json),
            structured: value.and_then(structured),
            meta: meta.map(json),
            ..Outcome::default()
        };
        assert_eq!(result_of(&success(&id(), &outcome, Form::Session)), expected);
    }
    let array = Outcome { structured: structured("[1]"), ..Outcome::default() };
    assert_eq!(
        result_of(&success(&id(), &array, Form::Sessionless)),
        r#"{"resultType":"complete","content":[{"type":"text","text":"[1]"}],"structuredContent":[1]}"#
    );
    let stated = Outcome { is_error: Some(false), ..Outcome::default() };
    assert_eq!(result_of(&success(&id(), &stated, Form::Session)), r#"{"content":[],"isError":false}"#);
}

#[test]
fn a_failure_keeps_the_output_and_appends_the_error() {
    let failed = |outcome| RuntimeError::Failed {
        id: "ls".into(),
        message: "ls exited with code 2".into(),
        outcome,
    };
    let block = r#"{"type":"text","text":"ls exited with code 2"}"#;
    assert_eq!(
        result_of(&failure(&id(), &failed(None), Form::Session)),
        format!(r#"{{"content":[{block}],"isError":true}}"#)
    );
    let outcome = Outcome {
        content: Some(json(r#"[ {"type":"text","text":"]"} ]"#)),
        structured: structured(r#"{"exit_code":2}"#),
        meta: Some(json(r#"{"orla/execution":{}}"#)),
        ..Outcome::default()
    };
    assert_eq!(
        result_of(&failure(&id(), &failed(Some(Box::new(outcome))), Form::Sessionless)),
        format!(
            r#"{{"resultType":"complete","content":[{{"type":"text","text":"]"}},{block}],"structuredContent":{{"exit_code":2}},"isError":true,"_meta":{{"orla/execution":{{}}}}}}"#
        )
    );
    let empty = Outcome { content: Some(json("[ ]")), ..Outcome::default() };
    assert_eq!(
        result_of(&failure(&id(), &failed(Some(Box::new(empty))), Form::Session)),
        format!(r#"{{"content":[{block}],"isError":true}}"#)
    );
    let violations =
        vec![Violation { path: "input.a".into(), expected: ":int".into(), got: "\"x\"".into() }];
    let invalid = RuntimeError::InvalidInput { id: "ls".into(), violations };
    assert!(
        result_of(&failure(&id(), &invalid, Form::Sessionless))
            .contains(r#"input.a: expected an integer, got \"x\""#)
    );
}

fn market(ids: impl IntoIterator<Item = String>) -> CapabilityMarketplace {
    let market = CapabilityMarketplace::new(Limits::default());
    market.register_executor(Arc::new(orla_marketplace::testing::MockExecutor)).unwrap();
    let mut builder = market.builder(Limits::default());
    for id in ids {
        let mut manifest = Canned::Answers(Value::Nil).manifest(&id);
        manifest.metadata.insert(orla_marketplace::TITLE.into(), "A \"title\"".into());
        manifest.metadata.insert(ANNOTATIONS.into(), r#"{"readOnlyHint":true}"#.into());
        builder.capability(manifest).unwrap();
    }
    market.replace(builder.build());
    market
}

fn page_after(
    market: &CapabilityMarketplace,
    cursor: Option<&str>,
    modern: bool,
) -> Result<Bytes, ErrorData> {
    let catalog = market.snapshot();
    let cursor = cursor.map(|cursor| serde_json::value::to_raw_value(cursor).unwrap());
    let hint = modern.then_some(CacheHint { ttl_ms: 5000 });
    let form = hint.map_or(ListForm::Session { has_tasks: false }, ListForm::Sessionless);
    list_page(&id(), &catalog, &Listings::default().of(&catalog), cursor.as_deref(), None, form)
}

fn names(page: &Bytes) -> (Vec<String>, Option<String>) {
    let list: ListToolsResult = serde_json::from_str(result_of(page)).unwrap();
    (list.tools.into_iter().map(|tool| tool.name.into_owned()).collect(), list.next_cursor)
}

#[test]
fn a_list_is_what_the_sdk_would_send() {
    for count in [0, 1, 3] {
        let market = market((0..count).map(|n| format!("tool{n}")));
        for modern in [true, false] {
            let page = page_after(&market, None, modern).unwrap();
            same_as_the_sdk::<ListToolsResult>(&page);
            assert_eq!(names(&page), ((0..count).map(|n| format!("tool{n}")).collect(), None));
            assert_eq!(result_of(&page).contains("ttlMs"), modern);
        }
    }
}

#[test]
fn pages_continue_after_the_last_one_despite_changes() {
    let many = market((0..1200).map(|n| format!("t{n:04}")));
    let mut seen = Vec::new();
    let mut cursor = None;
    loop {
        let (page, next) = names(&page_after(&many, cursor.as_deref(), true).unwrap());
        assert!(page.len() <= PAGE);
        seen.extend(page);
        cursor = next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(seen, (0..1200).map(|n| format!("t{n:04}")).collect::<Vec<_>>());

    // The tool that the cursor names is gone after a reload.
    let (_, cursor) = names(&page_after(&many, None, false).unwrap());
    let fewer = market((0..1200).filter(|n| *n != 499).map(|n| format!("t{n:04}")));
    let (page, _) = names(&page_after(&fewer, cursor.as_deref(), false).unwrap());
    assert_eq!(page.first().map(String::as_str), Some("t0500"));
}

#[test]
fn unlisted_and_denied_tools_are_on_no_page_and_are_not_counted() {
    let market = market([]);
    let everything: Permission = "*".parse().unwrap();
    let rule = |to: &str, capabilities: &str, allow: bool| {
        let (allowed, denied) =
            if allow { (vec![everything.clone()], vec![]) } else { (vec![], vec![everything.clone()]) };
        Rule {
            to: Callers::parse([to]).unwrap(),
            capabilities: vec![Pattern::new(capabilities)],
            allow: allowed,
            deny: denied,
        }
    };
    let mut builder = market.builder(Limits::default());
    for n in 0..1200 {
        let mut registration = Registration::from(Canned::Echoes.manifest(&format!("t{n:04}")));
        if n % 2 == 1 {
            registration.policy.listing = orla_marketplace::Listing::Unlisted;
        }
        builder.capability(registration).unwrap();
    }
    builder.access(AccessPolicy {
        rules: vec![rule("*", "*", true), rule("anonymous", "t0000", false)],
        ..AccessPolicy::default()
    });
    market.replace(builder.build());
    let catalog = market.snapshot();
    let listing = Listings::default().of(&catalog);
    let list = |cursor: Option<&str>, who: Option<&Principal>| {
        let cursor = cursor.map(|cursor| serde_json::value::to_raw_value(cursor).unwrap());
        names(
            &list_page(
                &id(),
                &catalog,
                &listing,
                cursor.as_deref(),
                who,
                ListForm::Session { has_tasks: false },
            )
            .unwrap(),
        )
    };
    let (first, cursor) = list(None, None);
    assert_eq!((first.len(), &*first[0], &*first[PAGE - 1]), (PAGE, "t0002", "t1000"));
    let (second, end) = list(cursor.as_deref(), None);
    assert_eq!((second.len(), &*second[0], end), (99, "t1002", None));
    let bob = Principal::token("bob");
    assert_eq!(list(None, Some(&bob)).0[0], "t0000");
}

#[test]
fn only_tools_of_the_page_are_rendered() {
    let market = market((0..1200).map(|n| format!("t{n:04}")));
    let catalog = market.snapshot();
    let listing = Listings::default().of(&catalog);
    list_page(&id(), &catalog, &listing, None, None, ListForm::Session { has_tasks: false }).unwrap();
    assert_eq!(listing.tools.iter().filter(|tool| tool.get().is_some()).count(), PAGE);
    assert!(
        listing.headers_of(&catalog, "t1199").is_empty() && listing.headers_of(&catalog, "x").is_empty()
    );
}

#[test]
fn a_cursor_of_someone_else_is_refused() {
    let market = market(["a".to_owned()]);
    for cursor in ["", "nonsense", "bm9uc2Vuc2U", "*"] {
        assert_eq!(page_after(&market, Some(cursor), true).unwrap_err().code.0, -32602, "{cursor}");
    }
}

#[test]
fn one_listing_is_made_for_each_snapshot() {
    let market = market(["a".to_owned()]);
    let listings = Listings::default();
    let (first, again) = (listings.of(&market.snapshot()), listings.of(&market.snapshot()));
    assert!(Arc::ptr_eq(&first, &again));
    market.register_capability(Canned::Echoes.manifest("b")).unwrap();
    assert!(!Arc::ptr_eq(&first, &listings.of(&market.snapshot())));
    for n in 0..20 {
        market.register_capability(Canned::Echoes.manifest(&format!("c{n}"))).unwrap();
        listings.of(&market.snapshot());
    }
    assert!(listings.0.lock().len() <= Listings::MAX);
}

#[test]
fn object_schemas_are_recognized() {
    assert!(is_object_schema(r#"{"type":"object"}"#));
    assert!(!is_object_schema(r#"{"type":"array"}"#) && !is_object_schema("true"));
}

proptest! {
    #[test]
    fn results_are_what_the_sdk_would_send(
        texts in proptest::collection::vec("\\PC{0,20}", 0..4),
        value in proptest::option::of("\\PC{0,20}"),
        is_error in any::<bool>(),
        modern in any::<bool>(),
    ) {
        let blocks: Vec<_> = texts.iter().map(|text| serde_json::json!({"type": "text", "text": text})).collect();
        let outcome = Outcome {
            content: Some(JsonText::of(&blocks).unwrap()),
            structured: value.map(|value| Payload::from_json(JsonText::of(&serde_json::json!({"v": value})).unwrap())),
            meta: Some(json(r#"{"k":1}"#)), ..Outcome::default()
        };
        let form = if modern { Form::Sessionless } else { Form::Session };
        let answer = if is_error {
            let outcome = Some(Box::new(outcome));
            failure(&id(), &RuntimeError::Failed { id: "x".into(), message: "why".into(), outcome }, form)
        } else {
            success(&id(), &outcome, form)
        };
        same_as_the_sdk::<CallToolResult>(&answer);
    }

    #[test]
    fn cursors_round_trip(name in "\\PC*") {
        let raw = serde_json::value::to_raw_value(&cursor_after(&name)).unwrap();
        prop_assert_eq!(read_cursor(&raw).unwrap(), name);
    }

    #[test]
    fn any_other_cursor_is_an_error_and_nothing_else(text in "\\PC*") {
        let raw = serde_json::value::to_raw_value(&text).unwrap();
        drop(read_cursor(&raw));
    }
}

#[test]
fn an_internal_result_keeps_every_value_unchanged() {
    let value = Payload::from_json(json(r#"{"n":1.10}"#));
    let outcome = Outcome { structured: Some(value), ..Outcome::default() };
    assert_eq!(
        call_result_json(&Ok(outcome)),
        r#"{"content":[{"type":"text","text":"{\"n\":1.10}"}],"structuredContent":{"n":1.10}}"#
    );
    assert_eq!(call_result_json(&Ok(Outcome::default())), r#"{"content":[]}"#);
    let text = Outcome { structured: Some(Payload::from_json(json(r#""a""#))), ..Outcome::default() };
    assert_eq!(
        call_result_json(&Ok(text)),
        r#"{"content":[{"type":"text","text":"a"}],"structuredContent":"a"}"#
    );
}
