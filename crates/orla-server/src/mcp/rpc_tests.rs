use super::*;
use proptest::prelude::*;
use rmcp::model::ErrorCode;

fn code(body: &str) -> (i32, Option<String>) {
    let malformed = parse(body.as_bytes()).unwrap_err();
    (malformed.error.code.0, malformed.id.map(|id| id.as_str().to_owned()))
}

#[test]
fn invalid_messages_get_the_matching_error() {
    let cases: [(&str, i32, Option<&str>); 19] = [
        ("", -32700, None),
        ("nonsense", -32700, None),
        ("{", -32700, None),
        (r#"{"jsonrpc":"2.0","id":1,"method":"ping"}}"#, -32700, None),
        (r#"[{"jsonrpc":"2.0""#, -32700, None),
        ("[]", -32600, None),
        (r#"["2.0",7,"ping"]"#, -32600, None),
        (r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#, -32600, None),
        ("1", -32600, None),
        (r#""ping""#, -32600, None),
        ("{}", -32600, None),
        (r#"{"id":7,"method":"ping"}"#, -32600, Some("7")),
        (r#"{"jsonrpc":"1.0","id":"a","method":"ping"}"#, -32600, Some(r#""a""#)),
        (r#"{"jsonrpc":"2.0","id":1}"#, -32600, Some("1")),
        (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, -32600, None),
        (r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#, -32600, None),
        (r#"{"jsonrpc":"2.0","id":1,"method":3}"#, -32600, Some("1")),
        (r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}"#, -32600, None),
        (r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":[1]}"#, -32602, Some("1")),
    ];
    for (body, expected, id) in cases {
        assert_eq!(code(body), (expected, id.map(str::to_owned)), "{body}");
    }
}

#[test]
fn a_call_is_cut_out_without_touching_its_arguments() {
    let body = br#"{"jsonrpc":"2.0","id":"a\u0062","method":"tools/call","params":
        {"name":"echo","arguments": {"n": 1.10, "b": 1e400, "n": [18446744073709551616]},
         "_meta":{"progressToken":"t","io.modelcontextprotocol/logLevel":"warning",
                  "io.modelcontextprotocol/clientCapabilities":{}}}}"#;
    let Message::Request(request) = parse(body).unwrap() else { panic!("a request") };
    assert_eq!(request.id.as_str(), r#""a\u0062""#);
    assert_eq!(&*request.id.key(), r#""ab""#);
    assert_eq!(
        request.params.arguments.unwrap().get(),
        r#"{"n": 1.10, "b": 1e400, "n": [18446744073709551616]}"#
    );
    let meta = request.params.meta();
    assert_eq!(meta.progress_token.as_deref(), Some(r#""t""#));
    assert_eq!(meta.log_level, Some(LogLevel::Warning));
    assert!(meta.has_capabilities && meta.protocol_version.is_none());
}

#[test]
fn the_node_of_a_call_is_never_left_out() {
    for (member, node) in
        [(r#""beta""#, "beta"), ("7", "7"), ("null", "null"), (r#"["beta"]"#, r#"["beta"]"#)]
    {
        let text = format!(r#"{{"_meta": {{"orla/node": {member}}}}}"#);
        let params: Params<'_> = serde_json::from_str(&text).unwrap();
        assert_eq!(params.meta().node.as_deref(), Some(node));
    }
    assert_eq!(Params::default().meta().node, None);
}

#[test]
fn deep_nesting_uses_no_stack() {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    for body in [
        deep.clone(),
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"x","params":{deep}}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":{deep},"method":"x"}}"#),
    ] {
        assert!(parse(body.as_bytes()).is_err());
    }
    let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"x","params":{{"arguments":{deep}}}}}"#);
    assert!(parse(body.as_bytes()).is_ok());
}

#[test]
fn answers_are_what_the_sdk_would_write() {
    let id = Id("7".into());
    let data = ErrorData::new(ErrorCode::INVALID_PARAMS, "no \"such\" thing", None);
    let theirs = rmcp::model::JsonRpcError::new(Some(rmcp::model::RequestId::Number(7)), data.clone());
    assert_eq!(error(Some(&id), &data), serde_json::to_vec(&theirs).unwrap());
    assert_eq!(result(&id, b"{}"), r#"{"jsonrpc":"2.0","id":7,"result":{}}"#);
}

#[test]
fn an_answer_can_be_readdressed() {
    let (old, new) = (Id("7".into()), Id(r#""b""#.into()));
    let moved = readdressed(result(&old, b"{}"), &old, &new);
    assert_eq!(moved, r#"{"jsonrpc":"2.0","id":"b","result":{}}"#);
    let refused = ErrorData::invalid_params("no", None);
    assert_eq!(readdressed(error(Some(&old), &refused), &old, &new), error(Some(&new), &refused));
    assert_eq!(readdressed(result(&old, b"{}"), &old, &old), result(&old, b"{}"));
}

#[test]
fn an_answer_of_the_client_is_cut_out() {
    let cases = [
        (r#"{"jsonrpc":"2.0","id":7,"result":{"n": 1.10}}"#, Some("7"), Some(r#"{"n": 1.10}"#), false),
        (r#"{"jsonrpc":"2.0","id":7,"error":{"code":1}}"#, Some("7"), None, true),
        (r#"{"jsonrpc":"2.0","error":{}}"#, None, None, true),
    ];
    for (body, id, result, refused) in cases {
        let Message::Response(answer) = parse(body.as_bytes()).unwrap() else { panic!("{body}") };
        assert_eq!(answer.id.as_ref().map(Id::as_str), id);
        assert_eq!((answer.result.map(RawValue::get), answer.error.is_some()), (result, refused));
    }
    assert_eq!(
        to_client(Some(7), "roots/list", "{}"),
        r#"{"jsonrpc":"2.0","id":7,"method":"roots/list","params":{}}"#
    );
}

#[test]
fn a_message_can_be_put_on_one_line() {
    assert_eq!(one_line(Bytes::from_static(b"{\r\n\"a\": 1}")), "{  \"a\": 1}");
}

proptest! {
    #[test]
    fn never_panics_on_any_bytes(body in proptest::collection::vec(any::<u8>(), 0..300)) {
        drop(parse(&body));
    }

    #[test]
    fn never_panics_on_mutated_messages(
        id in "(null|-?[0-9]{1,30}|\"[a-z\\\\]{0,4}\"|[0-9]\\.5|\\[\\])",
        method in "(\"tools/call\"|\"\"|1|null)",
        params in "(\\{\\}|\\[\\]|null|1|\\{\"name\":[01]\\}|\\{\"_meta\":[{1])",
        cut in 0_usize..80,
    ) {
        let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":{method},"params":{params}}}"#);
        drop(parse(body.as_bytes()));
        drop(parse(&body.as_bytes()[..cut.min(body.len())]));
    }

    #[test]
    fn an_id_is_returned_unchanged(number in any::<i128>(), string in "\\PC*") {
        for id in [number.to_string(), serde_json::to_string(&string).unwrap()] {
            let body = format!(r#"{{"jsonrpc":"2.0","method":"ping","id":{id}}}"#);
            let Message::Request(request) = parse(body.as_bytes()).unwrap() else { panic!("a request") };
            prop_assert_eq!(request.id.as_str(), id);
        }
    }
}
