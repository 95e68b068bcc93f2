//! Sessions of signed-in visitors, and CSRF tokens.
//!
//! A session has a random id, in a cookie that no script can read, and a bearer token, which stays in
//! this process. The token is checked with each request as if the request had carried it. A form needs a
//! CSRF token, which only our pages know: a MAC of the session, or of the caller if it has no session.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::header;
use http::request::Parts;
use http::uri::Authority;
use orla_marketplace::Principal;
use parking_lot::Mutex;
use ring::hmac;

/// How long a session lasts without a request.
const IDLE: Duration = Duration::from_secs(12 * 3600);
/// How long a session lasts at most.
const MAX_AGE: Duration = Duration::from_secs(7 * 24 * 3600);
/// The maximum number of sessions of one token; beyond it, the one of them that was idle longest ends.
const MAX_OWN: usize = 20;
/// The maximum number of sessions. Beyond it, the session that was idle longest ends.
const MAX_SESSIONS: usize = 1_000;

/// The sessions of one server.
pub(crate) struct Sessions {
    key: hmac::Key,
    all: Mutex<HashMap<Box<str>, Session>>,
}

struct Session {
    token: Arc<str>,
    begun: Instant,
    used: Instant,
}

impl Session {
    fn is_alive(&self, now: Instant) -> bool {
        now.duration_since(self.used) < IDLE && now.duration_since(self.begun) < MAX_AGE
    }
}

impl Sessions {
    pub(crate) fn new() -> Self {
        Self { key: hmac::Key::new(hmac::HMAC_SHA256, &random()), all: Mutex::default() }
    }

    /// Begins a session for a bearer token. Returns its id.
    pub(crate) fn begin(&self, token: &str, now: Instant) -> String {
        let id = hex::encode(random());
        let mut all = self.all.lock();
        all.retain(|_, session| session.is_alive(now));
        let is_own = |session: &Session| &*session.token == token;
        let has_many = all.values().filter(|session| is_own(session)).count() >= MAX_OWN;
        if has_many || all.len() >= MAX_SESSIONS {
            let candidates = all.iter().filter(|(_, session)| !has_many || is_own(session));
            let oldest = candidates.min_by_key(|(_, session)| session.used).map(|(id, _)| id.clone());
            oldest.map(|oldest| all.remove(&oldest));
        }
        all.insert(id.as_str().into(), Session { token: token.into(), begun: now, used: now });
        id
    }

    /// Returns the token of the session that a request's cookie names.
    pub(crate) fn token(&self, head: &Parts, now: Instant) -> Option<Arc<str>> {
        let id = session_id(head)?;
        let mut all = self.all.lock();
        let session = all.get_mut(id).filter(|session| session.is_alive(now))?;
        session.used = now;
        Some(Arc::clone(&session.token))
    }

    /// Ends the session of a request.
    pub(crate) fn end(&self, head: &Parts) {
        if let Some(id) = session_id(head) {
            self.all.lock().remove(id);
        }
    }

    /// Returns the CSRF token of this session or caller.
    pub(crate) fn csrf_token(&self, head: &Parts, principal: Option<&Principal>) -> String {
        hex::encode(hmac::sign(&self.key, csrf_subject(head, principal).as_bytes()))
    }

    /// Returns whether `token` is the CSRF token of this session or caller.
    pub(crate) fn verify_csrf(&self, token: &str, head: &Parts, principal: Option<&Principal>) -> bool {
        let subject = csrf_subject(head, principal);
        let mac = hex::decode(token).ok().unwrap_or_default();
        hmac::verify(&self.key, subject.as_bytes(), &mac).is_ok()
    }
}

/// Returns the subject of a CSRF token: the session, or the caller if it has no session.
fn csrf_subject(head: &Parts, principal: Option<&Principal>) -> String {
    match (principal, session_id(head)) {
        (None, _) => "anonymous".to_owned(),
        (Some(_), Some(id)) => format!("session {id}"),
        (Some(principal), None) => format!("caller {}", principal.id()),
    }
}

/// Returns the host that a request is for: HTTP/2 names it in the target.
pub(crate) fn host(head: &Parts) -> &str {
    let header = head.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    header.or_else(|| head.uri.authority().map(Authority::as_str)).unwrap_or_default()
}

/// Returns the name of the cookie. Browsers send a cookie to all ports of a host, so that the port is
/// part of the name.
fn cookie_name(head: &Parts) -> String {
    let port = host(head).rsplit_once(':').map(|(_, port)| port);
    let port = port.filter(|port| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()));
    port.map_or_else(|| "orla_console".to_owned(), |port| format!("orla_console_{port}"))
}

/// Returns the session's id in the cookies of a request.
fn session_id(head: &Parts) -> Option<&str> {
    let name = cookie_name(head);
    let cookies = head.headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs =
        cookies.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(own, _)| *own == name).map(|(_, id)| id)
}

/// Returns the cookie that begins a session, or ends it if there is no id.
pub(crate) fn cookie(head: &Parts, id: Option<&str>, is_tls: bool) -> String {
    let name = cookie_name(head);
    let secure = if is_tls { "; Secure" } else { "" };
    let (value, end) = id.map_or(("", "; Max-Age=0"), |id| (id, ""));
    format!("{name}={value}; Path=/console; HttpOnly; SameSite=Strict{secure}{end}")
}

fn random() -> [u8; 32] {
    let mut bytes = [0; 32];
    // Without random numbers no session can be safe; the system has them from its start on.
    getrandom::fill(&mut bytes).expect("the system gives random numbers");
    bytes
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn request(cookie: &str) -> Parts {
        let request = Request::get("/console").header("host", "127.0.0.1:8080").header("cookie", cookie);
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn a_token_ends_its_own_sessions_alone_and_a_session_its_age() {
        let (sessions, now) = (Sessions::new(), Instant::now());
        let of = |number: &str| request(&format!("orla_console_8080={number}"));
        let other = sessions.begin("other", now);
        let numbers: Vec<String> = (0..=MAX_OWN as u64)
            .map(|at| sessions.begin("own", now + Duration::from_secs(at)))
            .collect();
        let later = now + Duration::from_secs(100);
        assert!(sessions.token(&of(&other), later).is_some());
        let alive: Vec<bool> =
            numbers.iter().map(|number| sessions.token(&of(number), later).is_some()).collect();
        assert!(!alive[0] && alive[1..].iter().all(|is| *is), "{alive:?}");
        let mut at = later;
        while at < now + MAX_AGE - IDLE {
            at += IDLE / 2;
            assert!(sessions.token(&of(&other), at).is_some());
        }
        assert!(sessions.token(&of(&other), now + MAX_AGE).is_none());
    }

    #[test]
    fn a_session_provides_its_token_until_it_ends() {
        let (sessions, now) = (Sessions::new(), Instant::now());
        let number = sessions.begin("secret", now);
        let own = request(&format!("a=b; orla_console_8080={number}"));
        assert_eq!(sessions.token(&own, now).as_deref(), Some("secret"));
        assert_eq!(sessions.token(&request("orla_console_8080=0"), now), None);
        assert_eq!(sessions.token(&request(&format!("orla_console_9={number}")), now), None);
        assert_eq!(sessions.token(&own, now + IDLE), None);
        sessions.end(&own);
        assert_eq!(sessions.token(&own, now), None);
    }

    #[test]
    fn a_change_needs_the_token_of_its_own_session() {
        let sessions = Sessions::new();
        let ada = Principal::token("ada");
        let (first, second) = (request("orla_console_8080=1"), request("orla_console_8080=2"));
        let token = sessions.csrf_token(&first, Some(&ada));
        assert!(sessions.verify_csrf(&token, &first, Some(&ada)));
        for (head, principal) in [(&second, Some(&ada)), (&first, None)] {
            assert!(!sessions.verify_csrf(&token, head, principal));
        }
        for wrong in ["", "0", "zz", &token[1..], &Sessions::new().csrf_token(&first, Some(&ada))] {
            assert!(!sessions.verify_csrf(wrong, &first, Some(&ada)), "{wrong}");
        }
    }

    #[test]
    fn sessions_are_bounded() {
        let (sessions, now) = (Sessions::new(), Instant::now());
        for number in 0..MAX_SESSIONS + 10 {
            sessions.begin(&format!("token {number}"), now);
        }
        assert_eq!(sessions.all.lock().len(), MAX_SESSIONS);
    }
}
