use orla_marketplace::ClientError;
use parking_lot::Mutex;
use serde_json::json;

use super::*;

fn conversation() -> Conversation {
    Conversation::new("cap".into(), Arc::new(AtomicU64::new(1)), Handshake::Hello)
}

fn receive(conversation: &mut Conversation, line: &str) -> Incoming {
    conversation.receive(&Bytes::copy_from_slice(line.as_bytes()))
}

fn written(conversation: &mut Conversation) -> Vec<String> {
    let text = String::from_utf8(conversation.unwritten().to_vec()).unwrap();
    conversation.advance(text.len());
    text.lines().map(str::to_owned).collect()
}

/// Sends a call whose caller is `caller`.
fn send(conversation: &mut Conversation, caller: Caller) -> (u64, oneshot::Receiver<Reply>) {
    let ticket = conversation.tickets.fetch_add(1, Ordering::Relaxed);
    let (reply, answer) = oneshot::channel();
    let ask = Ask::Call { tool: None, arguments: JsonText::parse("{}").unwrap(), more: None };
    conversation.send(ticket, Request { ask, caller, traceparent: None }, reply, only);
    (ticket, answer)
}

fn only() -> String {
    "cap".to_owned()
}

const HELLO: &str =
    r#"{"jsonrpc":"2.0","method":"orla.hello","params":{"name":"cap","version":"1.0.0"}}"#;

fn answer(id: u64, result: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)
}

#[test]
fn mcp_is_opened_after_the_hello() {
    let mut conversation = conversation();
    assert!(matches!(receive(&mut conversation, HELLO), Incoming::Hello(Some(_))));
    assert!(written(&mut conversation)[0].starts_with(
        r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25""#
    ));
    assert_eq!(
        receive(&mut conversation, &answer(1, r#"{"capabilities":{"tools":{},"prompts":{}}}"#)),
        Incoming::Initialized
    );
    assert_eq!(
        written(&mut conversation),
        [
            r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
            r#"{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{}}"#
        ]
    );
    assert!(!conversation.is_open());
    assert_eq!(
        receive(&mut conversation, &answer(2, r#"{"tools":[{"name":"a"}],"nextCursor":"n"}"#)),
        Incoming::Nothing
    );
    assert_eq!(
        written(&mut conversation),
        [r#"{"jsonrpc":"2.0","id":3,"method":"tools/list","params":{"cursor":"n"}}"#]
    );
    let Incoming::Info(info) = receive(&mut conversation, &answer(3, r#"{"tools":[{"name":"b"}]}"#))
    else {
        panic!()
    };
    let names: Vec<String> = info.tools.unwrap().into_iter().map(|tool| tool.name).collect();
    assert_eq!(
        (names, info.offers.prompts, info.offers.resources),
        (vec!["a".into(), "b".into()], true, false)
    );
    assert!(conversation.is_open());
    assert_eq!(
        receive(&mut conversation, r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#),
        Incoming::Nothing
    );
    assert_eq!(
        written(&mut conversation),
        [r#"{"jsonrpc":"2.0","id":4,"method":"tools/list","params":{}}"#]
    );
    assert!(matches!(receive(&mut conversation, &answer(4, r#"{"tools":[]}"#)), Incoming::Info(_)));
}

#[test]
fn a_capsule_that_refuses_mcp_is_a_single_tool() {
    let mut conversation = conversation();
    receive(&mut conversation, HELLO);
    let incoming =
        receive(&mut conversation, r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}"#);
    assert_eq!(incoming, Incoming::Info(ServerInfo::default()));
}

#[test]
fn nothing_counts_before_the_hello_and_a_second_one_does_not() {
    let mut conversation = conversation();
    assert_eq!(receive(&mut conversation, &answer(1, "{}")), Incoming::Nothing);
    assert_eq!(receive(&mut conversation, "starting up"), Incoming::Nothing);
    assert!(matches!(
        receive(&mut conversation, r#"{"jsonrpc":"2.0","method":"orla.hello"}"#),
        Incoming::Hello(None)
    ));
    assert_eq!(receive(&mut conversation, HELLO), Incoming::Nothing);
    assert_eq!(written(&mut conversation).len(), 1);
}

#[test]
fn answers_find_their_requests_and_no_others() {
    let mut conversation = conversation();
    receive(&mut conversation, HELLO);
    let (one, mut answer_one) = send(&mut conversation, Caller::default());
    let (two, mut answer_two) = send(&mut conversation, Caller::default());
    assert_eq!(conversation.in_flight(), 2);
    for line in [answer(two, "2"), answer(two, "22"), answer(99, "0"), answer(0, "0"), "{}".into()] {
        assert_eq!(receive(&mut conversation, &line), Incoming::Nothing);
    }
    assert_eq!(answer_two.try_recv().unwrap().unwrap().as_str(), "2");
    written(&mut conversation);
    assert!(conversation.cancel(one) && !conversation.cancel(one) && !conversation.cancel(1));
    assert!(written(&mut conversation)[0].contains(r#""method":"notifications/cancelled""#));
    receive(&mut conversation, &answer(one, "late"));
    receive(&mut conversation, &answer(one, "1"));
    assert!(answer_one.try_recv().is_err());
    assert_eq!(conversation.in_flight(), 0);
}

#[test]
fn waiters_get_an_error_when_the_process_ends() {
    let mut conversation = conversation();
    receive(&mut conversation, HELLO);
    let (_, mut answer) = send(&mut conversation, Caller::default());
    conversation.fail("it exited with code 7");
    assert_eq!(
        answer.try_recv().unwrap().unwrap_err(),
        Fault::Unavailable("it exited with code 7".into())
    );
    assert_eq!(conversation.in_flight(), 0);
}

#[test]
fn notices_go_to_the_call_they_belong_to() {
    let mut conversation = conversation();
    receive(&mut conversation, HELLO);
    let incoming = Arc::new(Mutex::new(Vec::new()));
    let sink = |who: &'static str| {
        let incoming = Arc::clone(&incoming);
        NoticeSink::new(move |notice| incoming.lock().push((who, notice)))
    };
    let log =
        r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}"#;
    let (one, _answer) = send(&mut conversation, Caller { notices: sink("one"), ..Caller::default() });
    receive(&mut conversation, log);
    let (_, _other) = send(&mut conversation, Caller { notices: sink("two"), ..Caller::default() });
    receive(&mut conversation, log);
    receive(
        &mut conversation,
        &format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{one},"progress":1}}}}"#
        ),
    );
    let incoming = incoming.lock();
    assert_eq!(incoming.len(), 2, "{incoming:?}");
    assert!(
        matches!(&incoming[0], ("one", Notice::Log { .. }))
            && matches!(&incoming[1], ("one", Notice::Progress(_)))
    );
    drop(incoming);
    let sent = String::from_utf8(conversation.unwritten().to_vec()).unwrap();
    assert!(sent.contains(&format!(r#""_meta":{{"progressToken":{one}}}"#)), "{sent}");
}

#[test]
fn a_capsules_own_requests_are_answered() {
    let mut conversation = conversation();
    receive(&mut conversation, HELLO);
    written(&mut conversation);
    receive(&mut conversation, r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#);
    receive(&mut conversation, r#"{"jsonrpc":"2.0","id":5,"method":"tasks/list"}"#);
    receive(&mut conversation, r#"{"jsonrpc":"2.0","id":6,"method":"roots/list"}"#);
    assert_eq!(
        written(&mut conversation),
        [
            r#"{"jsonrpc":"2.0","id":"p","result":{}}"#,
            r#"{"jsonrpc":"2.0","id":5,"error":{"code":-32601,"message":"tasks/list: not offered"}}"#,
            r#"{"jsonrpc":"2.0","id":6,"error":{"code":-32602,"message":"roots/list: there is no client to ask: no call is in flight"}}"#
        ]
    );
}

struct Nobody(&'static str);

#[async_trait::async_trait]
impl Client for Nobody {
    fn capabilities(&self) -> JsonText {
        JsonText::parse(self.0).unwrap()
    }

    async fn request(&self, _method: &str, _params: JsonText) -> Result<JsonText, ClientError> {
        Err(ClientError::Gone)
    }
}

#[test]
fn a_question_goes_to_the_client_of_its_own_call() {
    let mut conversation = conversation();
    receive(&mut conversation, HELLO);
    let sent = |conversation: &mut Conversation, capabilities: &'static str| {
        send(conversation, Caller { client: Some(Arc::new(Nobody(capabilities))), ..Caller::default() })
    };
    let (_one, _answer_one) = sent(&mut conversation, r#"{"one":{}}"#);
    let ask = r#"{"jsonrpc":"2.0","id":"q","method":"sampling/createMessage","params":{"n":1}}"#;
    let Incoming::Question(question) = receive(&mut conversation, ask) else { panic!() };
    assert_eq!(question.client.capabilities().as_str(), r#"{"one":{}}"#);
    assert_eq!((question.id.as_str(), question.params.as_str()), ("\"q\"", r#"{"n":1}"#));
    let (two, _answer_two) = sent(&mut conversation, r#"{"two":{}}"#);
    written(&mut conversation);
    assert_eq!(receive(&mut conversation, ask), Incoming::Nothing);
    assert!(written(&mut conversation)[0].contains("not exactly one is in flight"));
    let named = format!(
        r#"{{"jsonrpc":"2.0","id":"q","method":"roots/list","params":{{"_meta":{{"orla/call":{two}}}}}}}"#
    );
    let Incoming::Question(question) = receive(&mut conversation, &named) else { panic!() };
    assert_eq!(question.client.capabilities().as_str(), r#"{"two":{}}"#);
    conversation.answer_question(&question.id, Err(ClientError::Unsupported("roots".into())));
    conversation.answer_question(&question.id, Ok(JsonText::parse(r#"{"roots":[]}"#).unwrap()));
    assert_eq!(
        written(&mut conversation),
        [
            r#"{"jsonrpc":"2.0","id":"q","error":{"code":-32601,"message":"the client does not support roots"}}"#,
            r#"{"jsonrpc":"2.0","id":"q","result":{"roots":[]}}"#
        ]
    );
}

#[test]
fn a_question_of_a_call_that_was_just_cancelled_reaches_nobody_else() {
    let mut conversation = conversation();
    receive(&mut conversation, HELLO);
    receive(&mut conversation, &answer(1, r#"{"capabilities":{}}"#));
    let sent = |conversation: &mut Conversation| {
        send(conversation, Caller { client: Some(Arc::new(Nobody("{}"))), ..Caller::default() })
    };
    let pinged = |conversation: &mut Conversation| {
        let line = written(conversation).into_iter().find(|line| line.contains(r#""method":"ping""#))?;
        let message: serde_json::Value = serde_json::from_str(&line).unwrap();
        message["id"].as_u64()
    };
    let ask = r#"{"jsonrpc":"2.0","id":"q","method":"roots/list"}"#;
    let over =
        r#"{"jsonrpc":"2.0","id":"q","method":"roots/list","params":{"_meta":{"orla/call":ONE}}}"#;
    let ((one, _), (two, _), _three) =
        (sent(&mut conversation), sent(&mut conversation), sent(&mut conversation));
    assert!(conversation.cancel(one));
    let first = pinged(&mut conversation).unwrap();
    assert!(conversation.cancel(two));
    assert_eq!(pinged(&mut conversation), None, "one at a time");
    assert_eq!(receive(&mut conversation, ask), Incoming::Nothing, "it may be of either");
    receive(&mut conversation, &answer(first, "{}"));
    let second = pinged(&mut conversation).unwrap();
    assert_eq!(receive(&mut conversation, ask), Incoming::Nothing, "it may be the second's");
    receive(&mut conversation, &answer(second, "{}"));
    assert!(matches!(receive(&mut conversation, ask), Incoming::Question(_)));
    let over = over.replace("ONE", &one.to_string());
    assert_eq!(receive(&mut conversation, &over), Incoming::Nothing, "it names another");
    assert!(written(&mut conversation).last().unwrap().contains("is over"));
}

#[test]
fn tools_that_change_while_they_are_listed_are_listed_again() {
    let mut conversation = conversation();
    receive(&mut conversation, HELLO);
    receive(&mut conversation, &answer(1, r#"{"capabilities":{"tools":{}}}"#));
    let changed = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
    receive(&mut conversation, changed);
    receive(&mut conversation, changed);
    written(&mut conversation);
    assert!(matches!(
        receive(&mut conversation, &answer(2, r#"{"tools":[{"name":"a"}]}"#)),
        Incoming::Info(_)
    ));
    assert_eq!(
        written(&mut conversation),
        [r#"{"jsonrpc":"2.0","id":3,"method":"tools/list","params":{}}"#]
    );
    let Incoming::Info(info) = receive(&mut conversation, &answer(3, r#"{"tools":[{"name":"b"}]}"#))
    else {
        panic!()
    };
    assert_eq!(info.tools.unwrap()[0].name, "b");
    assert!(written(&mut conversation).is_empty());
}

fn server() -> Conversation {
    Conversation::new("srv".into(), Arc::new(AtomicU64::new(1)), Handshake::Initialize)
}

#[test]
fn a_hello_that_is_a_request_is_answered() {
    let mut conversation = conversation();
    let request = HELLO.replace(r#""method""#, r#""id":"h","method""#);
    assert!(matches!(receive(&mut conversation, &request), Incoming::Hello(Some(_))));
    let lines = written(&mut conversation);
    assert_eq!(lines[0], r#"{"jsonrpc":"2.0","id":"h","result":{}}"#);
    assert!(lines[1].contains(r#""method":"initialize""#), "{lines:?}");
}

#[test]
fn a_server_is_asked_to_initialize_at_once_and_is_open_when_it_has() {
    let mut conversation = server();
    assert!(
        written(&mut conversation)[0].starts_with(r#"{"jsonrpc":"2.0","id":1,"method":"initialize""#)
    );
    assert_eq!(receive(&mut conversation, "starting up"), Incoming::Nothing);
    assert_eq!(receive(&mut conversation, HELLO), Incoming::Nothing, "that is a capsule's word");
    assert!(!conversation.is_open());
    let incoming =
        receive(&mut conversation, &answer(1, r#"{"capabilities":{"tools":{},"logging":{}}}"#));
    assert_eq!(incoming, Incoming::Ready(None));
    assert!(!conversation.is_open(), "calls wait for the list");
    assert_eq!(
        written(&mut conversation),
        [
            r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
            r#"{"jsonrpc":"2.0","id":2,"method":"logging/setLevel","params":{"level":"debug"}}"#,
            r#"{"jsonrpc":"2.0","id":3,"method":"tools/list","params":{}}"#
        ]
    );
    let broken = r#"{"jsonrpc":"2.0","id":3,"error":{"code":-1,"message":"no list"}}"#;
    let Incoming::Info(info) = receive(&mut conversation, broken) else { panic!() };
    assert_eq!(info.tools, Some(Vec::new()), "a server is no tool itself");
}

#[test]
fn a_server_without_tools_is_known_at_once() {
    let mut conversation = server();
    let incoming = receive(&mut conversation, &answer(1, r#"{"capabilities":{"prompts":{}}}"#));
    let Incoming::Ready(Some(info)) = incoming else { panic!("{incoming:?}") };
    assert!(info.tools == Some(Vec::new()) && info.offers.prompts && info.mode == RequestMode::Session);
}

#[test]
fn a_server_that_does_not_initialize_is_asked_without_a_session() {
    let refusal =
        |id: u64| format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32601,"message":"no"}}}}"#);
    let mut conversation = server();
    written(&mut conversation);
    assert_eq!(receive(&mut conversation, &refusal(1)), Incoming::Nothing);
    let asked = written(&mut conversation).remove(0);
    assert!(
        asked.contains(r#""method":"server/discover""#) && asked.contains(r#""2026-07-28""#),
        "{asked}"
    );
    assert_eq!(
        receive(
            &mut conversation,
            &answer(2, r#"{"capabilities":{"tools":{},"resources":{"subscribe":true}}}"#)
        ),
        Incoming::Ready(None)
    );
    let lines = written(&mut conversation);
    assert!(lines[0].contains(r#""id":3,"method":"subscriptions/listen""#), "{lines:?}");
    assert!(lines[1].contains(r#""id":4,"method":"tools/list","params":{"_meta":{"#), "{lines:?}");
    conversation.subscriptions(&["a:b".to_owned()]);
    let lines = written(&mut conversation);
    assert!(lines[0].contains(r#""method":"notifications/cancelled","params":{"requestId":3"#));
    assert!(lines[1].contains(r#""resourceSubscriptions":["a:b"]"#), "{lines:?}");
    let (_, _answer) = send(&mut conversation, Caller::default());
    assert!(written(&mut conversation)[0].contains(r#"clientCapabilities":{}"#));

    let mut conversation = server();
    receive(&mut conversation, &refusal(1));
    assert_eq!(
        receive(&mut conversation, &refusal(2)),
        Incoming::Unusable("it answers neither initialize nor server/discover: no".into())
    );
}

#[test]
fn an_endless_list_of_tools_is_cut() {
    let mut conversation = server();
    receive(&mut conversation, &answer(1, r#"{"capabilities":{"tools":{}}}"#));
    for id in 2.. {
        let page = format!(r#"{{"tools":[{{"name":"t{id}"}},7],"nextCursor":"{id}"}}"#);
        if let Incoming::Info(info) = receive(&mut conversation, &answer(id, &page)) {
            assert_eq!(info.tools.unwrap().len(), MAX_PAGES);
            return;
        }
        assert!(id < 1000);
    }
}

proptest::proptest! {
    #[test]
    fn with_any_output_every_call_gets_at_most_one_answer_and_none_is_lost(
        steps in proptest::collection::vec((0..7_u8, 0..12_u64), 0..60)
    ) {
        let mut conversation = server();
        let mut open = HashMap::new();
        for (step, number) in steps {
            match step {
                0 | 1 => {
                    let (ticket, reply) = send(&mut conversation, Caller::default());
                    open.insert(ticket, reply);
                }
                2 => drop(receive(&mut conversation, &answer(number, r#"{"capabilities":{"tools":{}},"tools":[]}"#))),
                3 => drop(receive(&mut conversation, &format!(r#"{{"jsonrpc":"2.0","id":{number},"error":{{}}}}"#))),
                4 => drop(receive(&mut conversation, r#"{"jsonrpc":"2.0","id":1,"method":"roots/list"}"#)),
                5 => drop(receive(&mut conversation, r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#)),
                _ => {
                    if conversation.cancel(number) {
                        open.remove(&number);
                    }
                }
            }
            let waiting = open.values_mut().filter(|reply| reply.is_empty()).count();
            proptest::prop_assert_eq!(waiting, conversation.in_flight());
        }
        conversation.fail("over");
        for reply in open.values_mut() {
            proptest::prop_assert!(reply.try_recv().is_ok());
        }
        proptest::prop_assert_eq!(conversation.in_flight(), 0);
    }
}

#[test]
fn tool_descriptions_are_compared_if_they_were_known_before() {
    let info = |tools: Option<&[(&str, &str)]>| {
        let tool = |(name, description): &(&str, &str)| {
            serde_json::from_value(json!({"name": name, "description": description})).unwrap()
        };
        let tools = tools.map(|tools| tools.iter().map(tool).collect());
        ServerInfo { tools, ..ServerInfo::default() }
    };
    let (silent, one) = (info(None), info(Some(&[("a", "A.")])));
    let (more, other) = (info(Some(&[("b", "B."), ("a", "A.")])), info(Some(&[("a", "B.")])));
    let same = |before: Option<&ServerInfo>, now: &ServerInfo, tool: Option<&str>| {
        ServerInfo::has_same_description(before, Some(now), tool)
    };
    assert!(same(Some(&one), &more, Some("a")) && same(None, &one, Some("a")));
    assert!(!same(Some(&one), &other, Some("a")) && !same(Some(&more), &other, Some("b")));
    assert!(same(None, &silent, None) && !same(None, &one, None) && !same(Some(&silent), &one, None));
}
