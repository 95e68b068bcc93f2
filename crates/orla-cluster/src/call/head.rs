//! The head of a call, which contains everything besides the input, and the wire form of notices.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use orla_marketplace::{
    CallContext, Hops, JsonText, LogLevel, LogText, Notice, Principal, Progress, SentLog, millis_down,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::MAX_BYTES;
use crate::caller::Caller;
use crate::presence::{is_instance, is_name};

/// The version of calls.
const VERSION: u32 = 1;
/// The maximum number of counts that a call is in.
const MAX_COUNTS: usize = 1000;

/// The data of a call besides its input.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct CallHead {
    v: u32,
    /// The node that calls.
    pub(super) from: String,
    /// Which of its instances.
    pub(super) instance: String,
    /// The inbox of the call, at both ends.
    pub(super) token: String,
    /// The time that the caller has left.
    timeout_ms: u64,
    /// The nodes and instances that it has passed through.
    hops: String,
    traceparent: Option<String>,
    principal: Option<Caller>,
    /// The capabilities of the caller's client, if there is a client that can be asked.
    client: Option<Box<RawValue>>,
    /// Whether the caller records the start of the call. In this case, it is notified if the call must
    /// first wait for an approval.
    #[serde(default)]
    pub(super) noted: bool,
    /// Whether the caller wants notices.
    pub(super) notices: bool,
    /// Whether it is the call of a task, or within one.
    pub(super) task: bool,
    /// How many calls it is nested in.
    pub(super) depth: u32,
    /// The counts of the cluster that have the call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    counted: Vec<String>,
    /// The length of the input.
    pub(super) bytes: usize,
}

impl CallHead {
    pub(super) fn new(
        (from, instance): (&str, &str),
        token: &str,
        hops: &Hops,
        ctx: &CallContext,
        deadline: Instant,
        bytes: usize,
    ) -> Self {
        let remaining = deadline.saturating_duration_since(Instant::now());
        let scope = &ctx.scope;
        let client = scope
            .client
            .as_ref()
            .and_then(|client| RawValue::from_string(client.capabilities().as_str().to_owned()).ok());
        Self {
            v: VERSION,
            from: from.to_owned(),
            instance: instance.to_owned(),
            token: token.to_owned(),
            timeout_ms: millis_down(remaining),
            hops: hops.as_str().to_owned(),
            traceparent: scope.traceparent.as_deref().map(str::to_owned),
            principal: scope.principal.as_ref().map(Caller::of),
            client,
            noted: scope.checkpoint.is_some(),
            notices: scope.notices.is_wanted(),
            task: scope.is_task,
            depth: scope.depth,
            counted: scope.counted.iter().map(ToString::to_string).collect(),
            bytes,
        }
    }

    /// Reads a head.
    ///
    /// # Errors
    ///
    /// Returns what is wrong with it, for the log.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let head: Self = serde_json::from_str(text).map_err(|err| format!("no call: {err}"))?;
        if head.v != VERSION {
            return Err(format!("a call of version {}: this is version {VERSION}", head.v));
        }
        let is_token = head.token.len() == 32 && head.token.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_name(&head.from) || !is_instance(&head.instance) || !is_token {
            return Err("a call that cannot be answered".to_owned());
        }
        Ok(head)
    }

    /// Returns the reason to refuse a call, if there is one that the node can answer with.
    pub(super) fn refusal(&self) -> Option<String> {
        if self.principal.as_ref().is_some_and(Caller::is_too_large) {
            return Some("its caller has too many groups, scopes and permissions".to_owned());
        }
        if self.counted.len() > MAX_COUNTS {
            return Some("it is in too many counts".to_owned());
        }
        (self.bytes > MAX_BYTES).then(|| format!("its input has more than {MAX_BYTES} bytes"))
    }

    /// As the text of a header, which has one line.
    pub(super) fn write(&self) -> String {
        // The client's JSON may contain line breaks between its members.
        serde_json::to_string(self).unwrap_or_default().replace(['\r', '\n'], " ")
    }

    /// Returns the token as a number. It has 32 digits, as was checked.
    pub(super) fn token_number(&self) -> u128 {
        u128::from_str_radix(&self.token, 16).unwrap_or_default()
    }

    pub(super) fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }

    /// Returns the nodes that the call has come through.
    ///
    /// # Errors
    ///
    /// Returns an error if there are too many.
    pub(super) fn hops(&self) -> Result<Hops, String> {
        Hops::read(&self.hops)
    }

    pub(super) fn counted(&self) -> Vec<Arc<str>> {
        self.counted.iter().map(|name| name.as_str().into()).collect()
    }

    pub(super) fn traceparent(&self) -> Option<&str> {
        self.traceparent.as_deref()
    }

    /// Returns the caller, if the call has one.
    ///
    /// # Errors
    ///
    /// A permission that cannot be read: without it, the caller would be another one. Or its credential
    /// has expired.
    pub(super) fn principal(&self, now: SystemTime) -> Result<Option<Principal>, String> {
        self.principal.as_ref().map(|caller| caller.principal(now)).transpose()
    }

    pub(super) fn client(&self) -> Option<JsonText> {
        self.client.as_deref().map(|client| JsonText::from(client.to_owned()))
    }
}

/// A notice as it travels.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum WireNotice {
    Progress {
        progress: f64,
        total: Option<f64>,
        message: Option<String>,
    },
    Log {
        level: String,
        message: String,
        /// The data from the server, and the name that the server uses for itself.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        data: Option<Box<RawValue>>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        logger: Option<String>,
    },
    Text(String),
}

pub(crate) fn write_notice(notice: Notice) -> Vec<u8> {
    let wire = match notice {
        Notice::Progress(Progress { progress, total, message }) => {
            WireNotice::Progress { progress, total, message }
        }
        Notice::Log { level, message } => {
            let (logger, data) = match message.as_sent().cloned() {
                Some(SentLog { logger, data }) => {
                    (logger, RawValue::from_string(data.as_str().to_owned()).ok())
                }
                None => (None, None),
            };
            WireNotice::Log {
                level: level.as_str().to_owned(),
                message: message.into_text(),
                data,
                logger,
            }
        }
        Notice::Text(text) => WireNotice::Text(text),
    };
    serde_json::to_vec(&wire).unwrap_or_default()
}

/// Reads a notice; `None` for a text of another form.
pub(crate) fn read_notice(text: &[u8]) -> Option<Notice> {
    Some(match serde_json::from_slice(text).ok()? {
        WireNotice::Progress { progress, total, message } => {
            Notice::Progress(Progress { progress, total, message })
        }
        WireNotice::Log { level, message, data, logger } => {
            let message = match data {
                Some(data) => LogText::sent(logger, JsonText::from(data)),
                None => message.into(),
            };
            Notice::Log { level: level.parse::<LogLevel>().ok()?, message }
        }
        WireNotice::Text(text) => Notice::Text(text),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TOKEN: &str = "00112233445566778899aabbccddeeff";
    const INSTANCE: &str = "0011223344556677";

    #[test]
    fn a_call_carries_its_caller_and_its_time() {
        let mut ctx = CallContext::for_tests("x");
        let principal = Principal::oauth("https://issuer", "ann\n")
            .with_groups(["g"])
            .with_scopes(["s"])
            .with_permissions(vec!["net:h".parse().unwrap()])
            .with_credential("secret")
            .with_expiry(SystemTime::UNIX_EPOCH + Duration::from_millis(1_234_567));
        ctx.scope.principal = Some(principal.clone());
        ctx.scope.traceparent = Some("00-x-y-01".into());
        (ctx.scope.is_task, ctx.scope.depth) = (true, 4);
        ctx.scope.counted = vec!["c".into()];
        let hops = Hops::default().through("beta").unwrap();
        let text = CallHead::new(("beta", INSTANCE), TOKEN, &hops, &ctx, ctx.deadline, 3).write();
        assert!(!text.contains('\n') && !text.contains("secret"));
        let head = CallHead::read(&text).unwrap();
        assert_eq!((head.from.as_str(), head.bytes, head.task, head.notices), ("beta", 3, true, false));
        assert_eq!((head.instance.as_str(), head.depth), (INSTANCE, 4));
        assert_eq!(head.counted(), ["c".into()]);
        assert_eq!((head.hops().unwrap(), head.traceparent()), (hops, Some("00-x-y-01")));
        assert!(head.timeout() > Duration::from_secs(29) && head.client().is_none());
        let decoded = head.principal(SystemTime::UNIX_EPOCH).unwrap().unwrap();
        assert_eq!((decoded.id(), decoded.expires_at()), (principal.id(), principal.expires_at()));
        assert!(
            decoded.groups().eq(["g"]) && decoded.scopes().eq(["s"]) && decoded.credential().is_none()
        );
        assert_eq!(decoded.permissions(), principal.permissions());
        let end = principal.expires_at().unwrap();
        assert!(head.principal(end).is_err(), "its credential has expired");
        assert!(head.refusal().is_none());
    }

    #[test]
    fn an_invalid_head_is_refused() {
        let ctx = CallContext::for_tests("x");
        let head = |from: &str, token: &str, bytes| {
            CallHead::new((from, INSTANCE), token, &Hops::default(), &ctx, ctx.deadline, bytes)
        };
        assert!(CallHead::read(&head("a.b", TOKEN, 1).write()).is_err());
        assert!(CallHead::read(&head("a", "*", 1).write()).is_err());
        assert!(CallHead::read("7").is_err());
        assert!(head("a", TOKEN, MAX_BYTES + 1).refusal().is_some());
        let caller = Caller {
            id: "token:a".to_owned(),
            groups: Vec::new(),
            scopes: Vec::new(),
            permissions: vec!["?".to_owned()],
            expires_ms: None,
        };
        let head = CallHead { principal: Some(caller), ..head("a", TOKEN, 1) };
        assert!(
            head.principal(SystemTime::UNIX_EPOCH).is_err(),
            "a caller does not lose what limits it"
        );
    }

    #[test]
    fn notices_arrive_unchanged() {
        for notice in [
            Notice::Progress(Progress { progress: 0.5, total: None, message: Some("m".to_owned()) }),
            Notice::Log { level: LogLevel::Warning, message: "w".into() },
            Notice::Text("t".to_owned()),
        ] {
            assert_eq!(read_notice(&write_notice(notice.clone())), Some(notice));
        }
        assert_eq!(read_notice(b"{}"), None);
    }

    proptest! {
        #[test]
        fn any_head_can_be_read(text in r#"[\{\}\[\]",:a-z0-9 ]{0,80}"#) {
            let _ = CallHead::read(&text);
            let _ = read_notice(text.as_bytes());
        }
    }
}
