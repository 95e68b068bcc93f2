use std::sync::Mutex;

use orla_marketplace::ClientError;

use super::*;

fn talk() -> Conversation {
    Conversation::new("cap".into(), Arc::new(AtomicU64::new(1)), Greeting::Hello)
}

fn hear(talk: &mut Conversation, line: &str) -> Heard {
    talk.hear(&Bytes::copy_from_slice(line.as_bytes()))
}

fn written(talk: &mut Conversation) -> Vec<String> {
    let text = String::from_utf8(talk.unwritten().to_vec()).unwrap();
    talk.wrote(text.len());
    text.lines().map(str::to_owned).collect()
}

/// Sends a call whose caller is `caller`.
fn send(talk: &mut Conversation, caller: Caller) -> (u64, oneshot::Receiver<Reply>) {
    let ticket = talk.tickets.fetch_add(1, Ordering::Relaxed);
    let (reply, answer) = oneshot::channel();
    let ask = Ask::Call { tool: None, arguments: JsonText::parse("{}").unwrap(), more: None };
    talk.send(ticket, Request { ask, caller, traceparent: None }, reply, only);
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
    let mut talk = talk();
    assert!(matches!(hear(&mut talk, HELLO), Heard::Hello(Some(_))));
    assert!(written(&mut talk)[0].starts_with(
        r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25""#
    ));
    assert_eq!(
        hear(&mut talk, &answer(1, r#"{"capabilities":{"tools":{},"prompts":{}}}"#)),
        Heard::Initialized
    );
    assert_eq!(
        written(&mut talk),
        [
            r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
            r#"{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{}}"#
        ]
    );
    assert!(!talk.is_open());
    assert_eq!(
        hear(&mut talk, &answer(2, r#"{"tools":[{"name":"a"}],"nextCursor":"n"}"#)),
        Heard::Nothing
    );
    assert_eq!(
        written(&mut talk),
        [r#"{"jsonrpc":"2.0","id":3,"method":"tools/list","params":{"cursor":"n"}}"#]
    );
    let Heard::Learned(learned) = hear(&mut talk, &answer(3, r#"{"tools":[{"name":"b"}]}"#)) else {
        panic!()
    };
    let names: Vec<String> = learned.tools.unwrap().into_iter().map(|tool| tool.name).collect();
    assert_eq!(
        (names, learned.offers.prompts, learned.offers.resources),
        (vec!["a".into(), "b".into()], true, false)
    );
    assert!(talk.is_open());
    assert_eq!(
        hear(&mut talk, r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#),
        Heard::Nothing
    );
    assert_eq!(written(&mut talk), [r#"{"jsonrpc":"2.0","id":4,"method":"tools/list","params":{}}"#]);
    assert!(matches!(hear(&mut talk, &answer(4, r#"{"tools":[]}"#)), Heard::Learned(_)));
}

#[test]
fn one_that_refuses_mcp_is_a_tool_itself() {
    let mut talk = talk();
    hear(&mut talk, HELLO);
    let heard = hear(&mut talk, r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}"#);
    assert_eq!(heard, Heard::Learned(Learned::default()));
}

#[test]
fn nothing_counts_before_the_hello_and_a_second_one_does_not() {
    let mut talk = talk();
    assert_eq!(hear(&mut talk, &answer(1, "{}")), Heard::Nothing);
    assert_eq!(hear(&mut talk, "starting up"), Heard::Nothing);
    assert!(matches!(hear(&mut talk, r#"{"jsonrpc":"2.0","method":"orla.hello"}"#), Heard::Hello(None)));
    assert_eq!(hear(&mut talk, HELLO), Heard::Nothing);
    assert_eq!(written(&mut talk).len(), 1);
}

#[test]
fn answers_find_their_requests_and_no_others() {
    let mut talk = talk();
    hear(&mut talk, HELLO);
    let (one, mut answer_one) = send(&mut talk, Caller::default());
    let (two, mut answer_two) = send(&mut talk, Caller::default());
    assert_eq!(talk.in_flight(), 2);
    for line in [answer(two, "2"), answer(two, "22"), answer(99, "0"), answer(0, "0"), "{}".into()] {
        assert_eq!(hear(&mut talk, &line), Heard::Nothing);
    }
    assert_eq!(answer_two.try_recv().unwrap().unwrap().as_str(), "2");
    written(&mut talk);
    assert!(talk.cancel(one) && !talk.cancel(one) && !talk.cancel(1));
    assert!(written(&mut talk)[0].contains(r#""method":"notifications/cancelled""#));
    hear(&mut talk, &answer(one, "late"));
    hear(&mut talk, &answer(one, "1"));
    assert!(answer_one.try_recv().is_err());
    assert_eq!(talk.in_flight(), 0);
}

#[test]
fn whoever_waits_is_told_when_no_answer_can_come() {
    let mut talk = talk();
    hear(&mut talk, HELLO);
    let (_, mut answer) = send(&mut talk, Caller::default());
    talk.fail("it exited with code 7");
    assert_eq!(answer.try_recv().unwrap().unwrap_err(), Fault::Gone("it exited with code 7".into()));
    assert_eq!(talk.in_flight(), 0);
}

#[test]
fn notices_go_to_the_call_they_belong_to() {
    let mut talk = talk();
    hear(&mut talk, HELLO);
    let heard = Arc::new(Mutex::new(Vec::new()));
    let sink = |who: &'static str| {
        let heard = Arc::clone(&heard);
        NoticeSink::new(move |notice| heard.lock().unwrap().push((who, notice)))
    };
    let log =
        r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}"#;
    let (one, _answer) = send(&mut talk, Caller { notices: sink("one"), ..Caller::default() });
    hear(&mut talk, log);
    let (_, _other) = send(&mut talk, Caller { notices: sink("two"), ..Caller::default() });
    hear(&mut talk, log);
    hear(
        &mut talk,
        &format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{one},"progress":1}}}}"#
        ),
    );
    let heard = heard.lock().unwrap();
    assert_eq!(heard.len(), 2, "{heard:?}");
    assert!(
        matches!(&heard[0], ("one", Notice::Log { .. }))
            && matches!(&heard[1], ("one", Notice::Progress(_)))
    );
    drop(heard);
    let sent = String::from_utf8(talk.unwritten().to_vec()).unwrap();
    assert!(sent.contains(&format!(r#""_meta":{{"progressToken":{one}}}"#)), "{sent}");
}

#[test]
fn a_capsules_own_requests_are_answered() {
    let mut talk = talk();
    hear(&mut talk, HELLO);
    written(&mut talk);
    hear(&mut talk, r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#);
    hear(&mut talk, r#"{"jsonrpc":"2.0","id":5,"method":"tasks/list"}"#);
    hear(&mut talk, r#"{"jsonrpc":"2.0","id":6,"method":"roots/list"}"#);
    assert_eq!(
        written(&mut talk),
        [
            r#"{"jsonrpc":"2.0","id":"p","result":{}}"#,
            r#"{"jsonrpc":"2.0","id":5,"error":{"code":-32601,"message":"tasks/list: not offered"}}"#,
            r#"{"jsonrpc":"2.0","id":6,"error":{"code":-32602,"message":"roots/list: name the call that asks in _meta[\"orla/call\"]: not exactly one is in flight"}}"#
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
    let mut talk = talk();
    hear(&mut talk, HELLO);
    let sent = |talk: &mut Conversation, capabilities: &'static str| {
        send(talk, Caller { client: Some(Arc::new(Nobody(capabilities))), ..Caller::default() })
    };
    let (_one, _answer_one) = sent(&mut talk, r#"{"one":{}}"#);
    let ask = r#"{"jsonrpc":"2.0","id":"q","method":"sampling/createMessage","params":{"n":1}}"#;
    let Heard::Question(question) = hear(&mut talk, ask) else { panic!() };
    assert_eq!(question.client.capabilities().as_str(), r#"{"one":{}}"#);
    assert_eq!((question.id.as_str(), question.params.as_str()), ("\"q\"", r#"{"n":1}"#));
    let (two, _answer_two) = sent(&mut talk, r#"{"two":{}}"#);
    written(&mut talk);
    assert_eq!(hear(&mut talk, ask), Heard::Nothing);
    assert!(written(&mut talk)[0].contains("not exactly one is in flight"));
    let named = format!(
        r#"{{"jsonrpc":"2.0","id":"q","method":"roots/list","params":{{"_meta":{{"orla/call":{two}}}}}}}"#
    );
    let Heard::Question(question) = hear(&mut talk, &named) else { panic!() };
    assert_eq!(question.client.capabilities().as_str(), r#"{"two":{}}"#);
    talk.answer_question(&question.id, Err(ClientError::Unsupported("roots".into())));
    talk.answer_question(&question.id, Ok(JsonText::parse(r#"{"roots":[]}"#).unwrap()));
    assert_eq!(
        written(&mut talk),
        [
            r#"{"jsonrpc":"2.0","id":"q","error":{"code":-32601,"message":"the client does not support roots"}}"#,
            r#"{"jsonrpc":"2.0","id":"q","result":{"roots":[]}}"#
        ]
    );
}

#[test]
fn a_question_of_a_call_that_was_just_cancelled_reaches_nobody_else() {
    let mut talk = talk();
    hear(&mut talk, HELLO);
    hear(&mut talk, &answer(1, r#"{"capabilities":{}}"#));
    let sent = |talk: &mut Conversation| {
        send(talk, Caller { client: Some(Arc::new(Nobody("{}"))), ..Caller::default() })
    };
    let pinged = |talk: &mut Conversation| {
        let line = written(talk).into_iter().find(|line| line.contains(r#""method":"ping""#))?;
        let message: serde_json::Value = serde_json::from_str(&line).unwrap();
        message["id"].as_u64()
    };
    let ask = r#"{"jsonrpc":"2.0","id":"q","method":"roots/list"}"#;
    let over =
        r#"{"jsonrpc":"2.0","id":"q","method":"roots/list","params":{"_meta":{"orla/call":ONE}}}"#;
    let ((one, _), (two, _), _three) = (sent(&mut talk), sent(&mut talk), sent(&mut talk));
    assert!(talk.cancel(one));
    let first = pinged(&mut talk).unwrap();
    assert!(talk.cancel(two));
    assert_eq!(pinged(&mut talk), None, "one at a time");
    assert_eq!(hear(&mut talk, ask), Heard::Nothing, "it may be of either");
    hear(&mut talk, &answer(first, "{}"));
    let second = pinged(&mut talk).unwrap();
    assert_eq!(hear(&mut talk, ask), Heard::Nothing, "it may be the second's");
    hear(&mut talk, &answer(second, "{}"));
    assert!(matches!(hear(&mut talk, ask), Heard::Question(_)));
    let over = over.replace("ONE", &one.to_string());
    assert_eq!(hear(&mut talk, &over), Heard::Nothing, "it names another");
    assert!(written(&mut talk).last().unwrap().contains("is over"));
}

#[test]
fn tools_that_change_while_they_are_listed_are_listed_again() {
    let mut talk = talk();
    hear(&mut talk, HELLO);
    hear(&mut talk, &answer(1, r#"{"capabilities":{"tools":{}}}"#));
    let changed = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
    hear(&mut talk, changed);
    hear(&mut talk, changed);
    written(&mut talk);
    assert!(matches!(hear(&mut talk, &answer(2, r#"{"tools":[{"name":"a"}]}"#)), Heard::Learned(_)));
    assert_eq!(written(&mut talk), [r#"{"jsonrpc":"2.0","id":3,"method":"tools/list","params":{}}"#]);
    let Heard::Learned(learned) = hear(&mut talk, &answer(3, r#"{"tools":[{"name":"b"}]}"#)) else {
        panic!()
    };
    assert_eq!(learned.tools.unwrap()[0].name, "b");
    assert!(written(&mut talk).is_empty());
}

fn server() -> Conversation {
    Conversation::new("srv".into(), Arc::new(AtomicU64::new(1)), Greeting::Initialize)
}

#[test]
fn a_server_is_asked_to_initialize_at_once_and_is_open_when_it_has() {
    let mut talk = server();
    assert!(written(&mut talk)[0].starts_with(r#"{"jsonrpc":"2.0","id":1,"method":"initialize""#));
    assert_eq!(hear(&mut talk, "starting up"), Heard::Nothing);
    assert_eq!(hear(&mut talk, HELLO), Heard::Nothing, "that is a capsule's word");
    assert!(!talk.is_open());
    let heard = hear(&mut talk, &answer(1, r#"{"capabilities":{"tools":{},"logging":{}}}"#));
    assert_eq!(heard, Heard::Ready(None));
    assert!(talk.is_open(), "calls need not wait for the list");
    assert_eq!(
        written(&mut talk),
        [
            r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
            r#"{"jsonrpc":"2.0","id":2,"method":"logging/setLevel","params":{"level":"debug"}}"#,
            r#"{"jsonrpc":"2.0","id":3,"method":"tools/list","params":{}}"#
        ]
    );
    let broken = r#"{"jsonrpc":"2.0","id":3,"error":{"code":-1,"message":"no list"}}"#;
    let Heard::Learned(learned) = hear(&mut talk, broken) else { panic!() };
    assert_eq!(learned.tools, Some(Vec::new()), "a server is no tool itself");
}

#[test]
fn a_server_without_tools_is_known_at_once() {
    let mut talk = server();
    let heard = hear(&mut talk, &answer(1, r#"{"capabilities":{"prompts":{}}}"#));
    let Heard::Ready(Some(learned)) = heard else { panic!("{heard:?}") };
    assert!(learned.tools == Some(Vec::new()) && learned.offers.prompts && learned.era == Era::Session);
}

#[test]
fn a_server_that_does_not_initialize_is_asked_without_a_session() {
    let refusal =
        |id: u64| format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32601,"message":"no"}}}}"#);
    let mut talk = server();
    written(&mut talk);
    assert_eq!(hear(&mut talk, &refusal(1)), Heard::Nothing);
    let asked = written(&mut talk).remove(0);
    assert!(
        asked.contains(r#""method":"server/discover""#) && asked.contains(r#""2026-07-28""#),
        "{asked}"
    );
    assert_eq!(
        hear(&mut talk, &answer(2, r#"{"capabilities":{"tools":{},"resources":{"subscribe":true}}}"#)),
        Heard::Ready(None)
    );
    let lines = written(&mut talk);
    assert!(lines[0].contains(r#""id":3,"method":"subscriptions/listen""#), "{lines:?}");
    assert!(lines[1].contains(r#""id":4,"method":"tools/list","params":{"_meta":{"#), "{lines:?}");
    talk.subscriptions(&["a:b".to_owned()]);
    let lines = written(&mut talk);
    assert!(lines[0].contains(r#""method":"notifications/cancelled","params":{"requestId":3"#));
    assert!(lines[1].contains(r#""resourceSubscriptions":["a:b"]"#), "{lines:?}");
    let (_, _answer) = send(&mut talk, Caller::default());
    assert!(written(&mut talk)[0].contains(r#"clientCapabilities":{}"#));

    let mut talk = server();
    hear(&mut talk, &refusal(1));
    assert_eq!(
        hear(&mut talk, &refusal(2)),
        Heard::Unusable("it answers neither initialize nor server/discover: no".into())
    );
}

#[test]
fn an_endless_list_of_tools_is_cut() {
    let mut talk = server();
    hear(&mut talk, &answer(1, r#"{"capabilities":{"tools":{}}}"#));
    for id in 2.. {
        let page = format!(r#"{{"tools":[{{"name":"t{id}"}},7],"nextCursor":"{id}"}}"#);
        if let Heard::Learned(learned) = hear(&mut talk, &answer(id, &page)) {
            assert_eq!(learned.tools.unwrap().len(), MAX_PAGES);
            return;
        }
        assert!(id < 1000);
    }
}

proptest::proptest! {
    #[test]
    fn whatever_a_server_says_every_call_has_at_most_one_answer_and_none_is_lost(
        steps in proptest::collection::vec((0..7_u8, 0..12_u64), 0..60)
    ) {
        let mut talk = server();
        let mut open = HashMap::new();
        for (step, number) in steps {
            match step {
                0 | 1 => {
                    let (ticket, reply) = send(&mut talk, Caller::default());
                    open.insert(ticket, reply);
                }
                2 => drop(hear(&mut talk, &answer(number, r#"{"capabilities":{"tools":{}},"tools":[]}"#))),
                3 => drop(hear(&mut talk, &format!(r#"{{"jsonrpc":"2.0","id":{number},"error":{{}}}}"#))),
                4 => drop(hear(&mut talk, r#"{"jsonrpc":"2.0","id":1,"method":"roots/list"}"#)),
                5 => drop(hear(&mut talk, r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#)),
                _ => {
                    if talk.cancel(number) {
                        open.remove(&number);
                    }
                }
            }
            let waiting = open.values_mut().filter(|reply| reply.is_empty()).count();
            proptest::prop_assert_eq!(waiting, talk.in_flight());
        }
        talk.fail("over");
        for reply in open.values_mut() {
            proptest::prop_assert!(reply.try_recv().is_ok());
        }
        proptest::prop_assert_eq!(talk.in_flight(), 0);
    }
}
