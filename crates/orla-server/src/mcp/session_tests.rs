use bytes::Bytes;

use super::*;
use crate::mcp::notify::notices::Outlet;
use crate::mcp::rpc::{Message, parse};
use orla_marketplace::{CapabilityMarketplace, Limits};

const HOUR: Duration = Duration::from_secs(3600);

fn make(principal: Option<&str>) -> impl FnOnce(SessionId) -> Session {
    let principal = principal.map(Principal::token);
    let newest = CapabilityMarketplace::new(Limits::default()).snapshot();
    move |id| {
        let (notified, parent) = (Lists::default(), CancellationToken::new());
        let declared = Declared { capabilities: None, client: None };
        Session::new(id, Revision::V2025_11_25, principal, declared, newest, notified, &parent)
    }
}

fn id(text: &str) -> Id {
    let body = format!(r#"{{"jsonrpc":"2.0","method":"ping","id":{text}}}"#);
    let Ok(Message::Request(request)) = parse(body.as_bytes()) else { panic!("a request") };
    request.id
}

#[test]
fn a_session_is_found_by_its_id_and_by_its_owner_alone() {
    let sessions = Sessions::new();
    let session = sessions.add(9, make(Some("a"))).unwrap();
    let text = session.id.to_string();
    assert_eq!((text.len(), SessionId::parse(&text)), (32, Some(session.id)));
    let who = Principal::token;
    assert!(sessions.get(session.id, Some(&who("a")), HOUR).is_some());
    assert!(sessions.get(session.id, Some(&who("b")), HOUR).is_none());
    assert!(sessions.get(session.id, None, HOUR).is_none());
    sessions.remove(&session);
    assert!(sessions.get(session.id, Some(&who("a")), HOUR).is_none() && sessions.count() == 0);
    for odd in ["", "0", "G0000000000000000000000000000000", &"0".repeat(33), &"F".repeat(32)] {
        assert_eq!(SessionId::parse(odd), None, "{odd}");
    }
}

#[test]
fn an_idle_session_expires_and_one_in_use_does_not() {
    let sessions = Sessions::new();
    let idle = sessions.add(9, make(None)).unwrap();
    let calling = sessions.add(9, make(None)).unwrap();
    let open = sessions.add(9, make(None)).unwrap();
    let _call = calling.calls.begin(&id("1")).unwrap();
    let _open = open.open();
    while sessions.now() < 2 {
        std::hint::spin_loop();
    }
    assert!(sessions.get(idle.id, None, Duration::ZERO).is_none());
    sessions.sweep(Duration::ZERO);
    assert_eq!(sessions.count(), 2);
    assert!(sessions.get(calling.id, None, Duration::ZERO).is_some());
    assert!(sessions.get(open.id, None, Duration::ZERO).is_some());
}

#[test]
fn at_the_limit_idle_sessions_are_evicted_and_busy_ones_stay() {
    let sessions = Sessions::new();
    let max = 64;
    let all: Vec<_> = (0..max).map(|_| sessions.add(max, make(None)).unwrap()).collect();
    let calls: Vec<_> = all.iter().map(|session| session.calls.begin(&id("1")).unwrap()).collect();
    assert!(sessions.add(max, make(None)).is_err());
    drop(calls);
    for _ in 0..200 {
        sessions.add(max, make(None)).unwrap();
        assert_eq!(sessions.count(), max);
    }
}

#[test]
fn a_request_is_cancelled_by_its_id_and_the_id_is_free_afterwards() {
    let calls = Calls::new(CancellationToken::new());
    let first = calls.begin(&id(r#""a""#)).unwrap();
    assert!(calls.begin(&id(r#""\u0061""#)).is_none(), "the same id, written otherwise");
    let second = calls.begin(&id("1")).unwrap();
    calls.cancel("2");
    calls.cancel(&id(r#""a""#).key());
    assert!(first.token.is_cancelled() && !second.token.is_cancelled());
    drop(first);
    assert!(calls.begin(&id(r#""a""#)).is_some());
    calls.ended.cancel();
    assert!(second.token.is_cancelled());
}

#[test]
fn ended_streams_are_kept_within_bounds() {
    let session = make(None)(SessionId::NONE);
    for size in [10; 100] {
        let stream = session.new_stream();
        session.keep(&stream);
        stream.finish(Some(vec![b'x'; size].into()));
    }
    assert!(session.stream(1).is_none() && session.stream(100).is_some());
    let large = session.new_stream();
    large.finish(Some(vec![b'x'; 2 * MAX_ENDED_BYTES].into()));
    session.keep(&large);
    let live = session.new_stream();
    live.send(Bytes::from_static(b"x"));
    session.keep(&live);
    assert!(session.stream(99).is_none(), "the large one leaves no room for others");
    assert!(session.stream(101).is_some() && session.stream(102).is_some());
}

#[test]
fn a_change_goes_to_one_stream() {
    let session = make(None)(SessionId::NONE);
    assert!(session.changes(Lists::default()).is_empty());
    let now = Lists { tools: 2, ..Lists::default() };
    assert_eq!(session.changes(now), [Change::List("tools")]);
    assert!(session.changes(now).is_empty());
}

#[test]
fn an_idle_session_is_small() {
    let bytes = size_of::<Session>();
    assert!(bytes <= 640, "{bytes} bytes");
}
