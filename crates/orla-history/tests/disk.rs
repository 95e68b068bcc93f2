//! The history in a file.

#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect has failed")]

use std::path::Path;
use std::slice::from_ref;
use std::sync::Arc;
use std::time::Duration;

use orla_history::{History, OpenError, Options, Query, Recorded, ReplayError, Viewer};
use orla_marketplace::testing::{Canned, marketplace};
use orla_marketplace::{
    Call, CallScope, CapabilityMarketplace, JsonText, Limits, Origin, Payload, Principal,
};
use rusqlite::Connection;

fn market() -> Arc<CapabilityMarketplace> {
    let fails = Canned::Fails("the reason".to_owned());
    marketplace(
        Limits::default(),
        [("echo", Canned::Echoes), ("ech.other", Canned::Echoes), ("bad", fails)],
    )
}

async fn called(market: &CapabilityMarketplace, id: &str, input: &str, by: Option<&str>) {
    let input = Payload::from_json(JsonText::parse(input.to_owned()).unwrap());
    let mut call = Call::to(id).with(input);
    call.scope.principal = by.map(Principal::token);
    drop(market.call(call).await);
}

fn open(path: &Path, options: Options) -> (Arc<CapabilityMarketplace>, History) {
    let market = market();
    let history = History::in_file(&market, options, path).unwrap();
    (market, history)
}

#[tokio::test]
async fn calls_survive_a_restart_and_match_every_filter() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new/h.db");
    let (first, history) = open(&path, Options::default());
    assert!(history.list(&Query::default(), &Viewer::All).await.unwrap().is_empty());
    assert!(!path.exists(), "it is made with the first call");
    called(&first, "echo", r#"{"n":1e400}"#, Some("ada")).await;
    called(&first, "bad", "{}", None).await;
    let before = history.list(&Query::default(), &Viewer::All).await.unwrap();
    history.close().await;

    let (market, history) = open(&path, Options::default());
    called(&market, "ech.other", "{}", Some("bob")).await;
    let all = history.list(&Query::default(), &Viewer::All).await.unwrap();
    let names: Vec<_> = all.iter().map(|call| &*call.capability).collect();
    assert_eq!(names, ["ech.other", "bad", "echo"]);
    assert_eq!(
        all[1..].iter().map(|call| &call.id).collect::<Vec<_>>(),
        before.iter().map(|call| &call.id).collect::<Vec<_>>()
    );
    let listed = async |change: &dyn Fn(&mut Query)| {
        let mut query = Query::default();
        change(&mut query);
        let calls = history.list(&query, &Viewer::All).await.unwrap();
        calls.into_iter().map(|call| call.capability).collect::<Vec<_>>()
    };
    assert_eq!(listed(&|query| query.failed = true).await, ["bad"]);
    assert_eq!(listed(&|query| query.limit = 1).await, ["ech.other"]);
    assert_eq!(listed(&|query| query.before = Some(all[1].id.clone())).await, ["echo"]);
    assert_eq!(listed(&|query| query.principal = Some("ada".into())).await, ["echo"]);
    for (pattern, expected) in [
        ("ech*", &["ech.other", "echo"][..]),
        ("ech?", &[]),
        ("[e]cho", &[]),
        ("*.other", &["ech.other"]),
    ] {
        let pattern = orla_marketplace::id::Pattern::new(pattern);
        assert_eq!(listed(&|query| query.capability = Some(pattern.clone())).await, expected);
    }
    let later = std::time::SystemTime::now() + Duration::from_secs(60);
    assert!(listed(&|query| query.since = Some(later)).await.is_empty());
    let own = Viewer::Own(Some(Principal::token("bob").id().to_string()));
    assert_eq!(history.list(&Query::default(), &own).await.unwrap(), all[..1]);
    assert_eq!(history.list(&Query::default(), &Viewer::Own(None)).await.unwrap(), all[1..2]);

    let detail = Recorded::open(&path).unwrap().detail(&all[2].id).unwrap().unwrap();
    assert_eq!(detail.row.input.unwrap().text, r#"{"n":1e400}"#);
    let sqlite = Connection::open(&path).unwrap();
    let rows: i64 = sqlite
        .query_row(
            "SELECT count(*) FROM calls WHERE principal = 'ada' AND duration_ms >= 0",
            [],
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(rows, 1);
}

#[tokio::test]
async fn the_oldest_calls_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = Options::default();
    options.max_rows = 2;
    let (market, history) = open(&dir.path().join("h.db"), options.clone());
    for n in 0..5 {
        called(&market, "echo", &format!(r#"{{"n":{n}}}"#), None).await;
    }
    let kept = history.list(&Query::default(), &Viewer::All).await.unwrap();
    assert_eq!(kept.len(), 2);
    options.keep = Duration::ZERO;
    history.configure(options);
    called(&market, "echo", "{}", None).await;
    assert!(history.list(&Query::default(), &Viewer::All).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_call_with_a_wrong_clock_takes_no_newer_ones_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("h.db");
    let (market, history) = open(&path, Options::default());
    for _ in 0..3 {
        called(&market, "echo", r#"{"n":1}"#, None).await;
    }
    let calls = history.list(&Query::default(), &Viewer::All).await.unwrap();
    let file = Connection::open(&path).unwrap();
    let in_1971 = "UPDATE calls SET started_at = '1971-01-01T00:00:00.000000Z' WHERE id = ?1";
    assert_eq!(file.execute(in_1971, [&calls[0].id]).unwrap(), 1);
    called(&market, "echo", "{}", None).await;
    let kept = history.list(&Query::default(), &Viewer::All).await.unwrap();
    let ids: Vec<&str> = kept.iter().skip(1).map(|call| &*call.id).collect();
    assert_eq!(ids, [&*calls[1].id, &*calls[2].id]);
    let bodies: i64 = file.query_row("SELECT count(*) FROM bodies", [], |row| row.get(0)).unwrap();
    assert_eq!(bodies, 3);
}

#[tokio::test]
async fn a_foreign_file_is_refused_and_left_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("h.db");
    let refused = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let error = History::in_file(&market(), Options::default(), &path).err().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
        assert!(!error.to_string().contains('\n') && error.to_string().contains("h.db"));
        error
    };
    assert!(matches!(refused(b"a letter"), OpenError::NotHistory { .. }));
    assert!(matches!(refused(b""), OpenError::NotHistory { .. }));
    std::fs::remove_file(&path).unwrap();
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE t (x)").unwrap();
    let foreign = std::fs::read(&path).unwrap();
    assert!(matches!(refused(&foreign), OpenError::NotHistory { .. }));
    std::fs::remove_file(&path).unwrap();
    // Opening a fifo would wait for its writer.
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let error = History::in_file(&market(), Options::default(), &path).err().unwrap();
    assert!(matches!(error, OpenError::NotHistory { .. }), "{error}");
    std::fs::remove_file(&path).unwrap();
    let (market, history) = open(&path, Options::default());
    called(&market, "echo", "{}", None).await;
    history.close().await;
    drop((market, history));
    let sqlite = Connection::open(&path).unwrap();
    sqlite.pragma_update(None, "user_version", 7).unwrap();
    drop(sqlite);
    let newer = std::fs::read(&path).unwrap();
    assert!(matches!(refused(&newer), OpenError::Version { found: 7, .. }));
}

#[tokio::test]
async fn a_file_without_the_later_columns_is_read_and_gets_them_when_it_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("h.db");
    let (market, history) = open(&path, Options::default());
    called(&market, "echo", r#"{"n":1}"#, None).await;
    history.close().await;
    drop((market, history));
    let sqlite = Connection::open(&path).unwrap();
    sqlite.execute_batch("DROP INDEX calls_of_session; DROP INDEX calls_of_client;").unwrap();
    let recorded = Recorded::open(&path).unwrap();
    let first = || recorded.list(&Query::default()).unwrap().remove(0);
    assert!(first().executed.is_some() && first().validated.is_some());
    sqlite.execute_batch("ALTER TABLE calls DROP COLUMN validated_ms").unwrap();
    assert!(first().executed.is_some() && first().validated.is_none(), "of the version between");
    for column in ["client", "client_version", "session", "executed_ms", "spans"] {
        sqlite.execute_batch(&format!("ALTER TABLE calls DROP COLUMN {column}")).unwrap();
    }
    let has_columns =
        || sqlite.prepare("SELECT client, executed_ms, validated_ms, spans FROM calls").is_ok();
    assert!(first().executed.is_none());
    let mut of_client = Query::default();
    of_client.client = Some("a-client".to_owned());
    assert!(recorded.list(&of_client).unwrap().is_empty() && !has_columns(), "a reader changes nothing");

    let (market, history) = open(&path, Options::default());
    let mut call = Call::to("bad");
    let client = r#"{"name":"a-client","version":"1.2"}"#;
    call.scope.origin = Origin::new(Some("a-session".into()), Some(client.into()));
    market.call(call).await.unwrap_err();
    let listed = async |change: &dyn Fn(&mut Query)| {
        let mut query = Query::default();
        change(&mut query);
        let calls = history.list(&query, &Viewer::All).await.unwrap();
        calls
            .into_iter()
            .map(|call| (call.capability, call.client.map(|client| client.to_string())))
            .collect::<Vec<_>>()
    };
    let new = ("bad".to_owned(), Some("a-client 1.2".to_owned()));
    assert_eq!(listed(&|_| {}).await, [new.clone(), ("echo".to_owned(), None)]);
    assert_eq!(listed(&|query| query.session = Some("a-session".to_owned())).await, from_ref(&new));
    assert_eq!(listed(&|query| query.client = Some("a-client".to_owned())).await, from_ref(&new));
    for other in ["a-clien", "a-client 1.2", "a-*"] {
        assert_eq!(listed(&|query| query.client = Some(other.to_owned())).await, []);
    }
    // An earlier version, which knows nothing of the columns, goes on.
    let columns = "id, root, depth, capability, name, kind, outcome, started_at, duration_ms, queued_ms";
    let values = "'z-1', 'z-1', 0, 'old', 'old', 'tool', 'ok', '2999-01-01T00:00:00.000000Z', 1.0, 0.0";
    sqlite.execute_batch(&format!("INSERT INTO calls ({columns}) VALUES ({values})")).unwrap();
    assert_eq!(listed(&|_| {}).await[0], ("old".to_owned(), None));
}

#[tokio::test]
async fn a_locked_file_delays_no_call_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("h.db");
    let (market, history) = open(&path, Options::default());
    called(&market, "echo", r#"{"n":1}"#, None).await;
    assert_eq!(history.list(&Query::default(), &Viewer::All).await.unwrap().len(), 1);
    let sqlite = Connection::open(&path).unwrap();
    sqlite.execute_batch("BEGIN IMMEDIATE").unwrap();
    called(&market, "echo", r#"{"n":2}"#, None).await;
    let seen = history.list(&Query::default(), &Viewer::All).await.unwrap();
    assert_eq!(seen.len(), 1, "the second call waits, and what was written is there");
    sqlite.execute_batch("COMMIT").unwrap();
    assert_eq!(history.list(&Query::default(), &Viewer::All).await.unwrap().len(), 2);
    sqlite.execute_batch("BEGIN IMMEDIATE").unwrap();
    called(&market, "echo", r#"{"n":3}"#, None).await;
    assert_eq!(history.list(&Query::default(), &Viewer::All).await.unwrap().len(), 2);
    sqlite.execute_batch("COMMIT").unwrap();
    history.close().await;
    assert_eq!(Recorded::open(&path).unwrap().list(&Query::default()).unwrap().len(), 3);
}

#[tokio::test]
async fn expired_calls_are_not_shown_even_without_new_calls() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = Options::default();
    let (market, history) = open(&dir.path().join("h.db"), options.clone());
    called(&market, "echo", "{}", None).await;
    let calls = history.list(&Query::default(), &Viewer::All).await.unwrap();
    assert_eq!(calls.len(), 1);
    options.keep = Duration::ZERO;
    history.configure(options);
    assert!(history.list(&Query::default(), &Viewer::All).await.unwrap().is_empty());
    assert!(history.detail(&calls[0].id, &Viewer::All).await.unwrap().is_none());
}

#[tokio::test]
async fn a_call_whose_input_had_a_secret_is_made_again_only_with_an_input() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = Options::default();
    options.redact = vec!["/pin".parse().unwrap()];
    let (market, history) = open(&dir.path().join("h.db"), options);
    called(&market, "echo", r#"{"pin":"1234-5678"}"#, None).await;
    let id = history.list(&Query::default(), &Viewer::All).await.unwrap()[0].id.clone();
    let again = history.replay(&id, &Viewer::All, None, CallScope::default()).await;
    assert!(matches!(again, Err(ReplayError::NoInput)), "{again:?}");
    let input = JsonText::parse(r#"{"pin":"1234-5678"}"#.to_owned()).unwrap();
    history.replay(&id, &Viewer::All, Some(input), CallScope::default()).await.unwrap();
    let detail = history.detail(&id, &Viewer::All).await.unwrap().unwrap();
    let case = orla_history::case(&detail.row, &[]);
    assert!(case.unwrap_err().contains("secret"));
}

#[tokio::test]
async fn a_call_with_too_many_secrets_is_stored_without_texts() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = Options::default();
    options.redact = vec!["/pins".parse().unwrap()];
    let (market, history) = open(&dir.path().join("h.db"), options);
    let pins: Vec<String> = (0..1000).map(|n| format!("\"pin-{n}\"")).collect();
    called(&market, "bad", &format!(r#"{{"pins":[{}],"other":"visible"}}"#, pins.join(",")), None).await;
    let id = history.list(&Query::default(), &Viewer::All).await.unwrap()[0].id.clone();
    let detail = history.detail(&id, &Viewer::All).await.unwrap().unwrap();
    assert_eq!(detail.row.input.unwrap().text, r#""[redacted]""#);
    assert_eq!(detail.row.error.as_deref(), Some("[redacted]"));
}

#[tokio::test]
async fn secrets_are_redacted_before_they_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("h.db");
    let mut options = Options::default();
    options.redact = vec!["/card/number".parse().unwrap()];
    options.secrets = Arc::new(orla_marketplace::Redactor::new(["configured-secret"]));
    options.max_body_bytes = 200;
    let (market, history) = open(&path, options);
    let input = format!(
        r#"{{"card":{{"number":"4111-2222","kind":"visa"}},"again":"it is 4111-2222","t":"configured-secret","Authorization":"Bearer abcdef","long":"{}"}}"#,
        "x".repeat(1000)
    );
    called(&market, "echo", &input, None).await;
    let calls = history.list(&Query::default(), &Viewer::All).await.unwrap();
    let detail = history.detail(&calls[0].id, &Viewer::All).await.unwrap().unwrap();
    let body = detail.row.input.clone().unwrap();
    assert!(body.is_cut() && body.text.len() == 200 && body.bytes > 1000);
    history.close().await;
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        for secret in ["4111-2222", "configured-secret", "abcdef"] {
            assert!(!text.contains(secret), "{secret}");
        }
    }
    let shown = serde_json::to_string(&detail).unwrap();
    assert!(shown.contains("visa") && shown.contains(r#""truncated":{"input":"#), "{shown}");
}
