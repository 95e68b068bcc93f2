//! Push notifications: orla posts the events of a task over a connection that it opens.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use orla_e2e::{Request, Server, eventually};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::a2a_server::{ASKED, agent, ask, calls, message, refusal, send, state, task};

/// A receiver of push notifications. It keeps all requests, with heads in lower case, and answers with given statuses.
#[derive(Clone)]
struct Receiver {
    address: SocketAddr,
    posts: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Receiver {
    /// The first answers are these; all others are 200.
    fn begin(statuses: &'static [u16]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let receiver =
            Self { address: listener.local_addr().expect("an address"), posts: Arc::default() };
        let posts = Arc::clone(&receiver.posts);
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                let Ok(mut stream) = stream else { return };
                let mut bytes = Vec::new();
                let mut piece = [0; 4096];
                let post = loop {
                    let Ok(count @ 1..) = stream.read(&mut piece) else { break None };
                    bytes.extend_from_slice(&piece[..count]);
                    let text = String::from_utf8_lossy(&bytes);
                    if let Some((head, body)) = text.split_once("\r\n\r\n")
                        && let Ok(body) = serde_json::from_str(body)
                    {
                        break Some((head.to_lowercase(), body));
                    }
                };
                let status = statuses.get(number).copied().unwrap_or(200);
                let answer =
                    format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                let _ = stream.write_all(answer.as_bytes());
                posts.lock().extend(post);
            }
        });
        receiver
    }

    fn url(&self) -> String {
        format!("http://{}/told", self.address)
    }

    fn posts(&self) -> Vec<(String, Value)> {
        self.posts.lock().clone()
    }

    /// Returns the posted states.
    fn states(&self) -> Vec<String> {
        let states = self.posts().into_iter().filter_map(|(_, event)| {
            let of = if event["task"].is_object() { &event["task"] } else { &event["statusUpdate"] };
            of.is_object().then(|| state(of).trim_start_matches("TASK_STATE_").to_owned())
        });
        states.collect()
    }
}

fn open() -> Server {
    agent().config(&format!("{ASKED}a2a: {{allow_private_push: true}}\n")).serve()
}

#[test]
fn push_notifications_follow_a_task_to_its_end() {
    let server = open();
    let receiver = Receiver::begin(&[503]);
    let mut asking = calls("asking.ask", &json!({}));
    asking["configuration"] = json!({"taskPushNotificationConfig": {"id": "mine", "url": receiver.url(), "token": "word",
        "authentication": {"scheme": "Bearer", "credentials": "secret"}}});
    let asked = task(&server, &asking);
    eventually("the question is told", || {
        receiver.states().iter().any(|state| state == "INPUT_REQUIRED")
    });
    let mut more = message(&json!({"text": "Ada"}));
    more["message"]["taskId"] = asked["id"].clone();
    task(&server, &more);
    eventually("the end is told", || receiver.states().iter().any(|state| state == "COMPLETED"));
    let posts = receiver.posts();
    for (head, _) in &posts {
        for line in [
            "post /told http/1.1",
            "authorization: bearer secret",
            "x-a2a-notification-token: word",
            "content-type: application/a2a+json",
        ] {
            assert!(head.contains(line), "{head}");
        }
    }
    assert_eq!(posts[0].1, posts[1].1, "what was not taken is posted again");
    assert!(posts.iter().any(|(_, event)| event["artifactUpdate"].is_object()), "{posts:?}");
    assert!(!server.log().contains("secret"));
}

#[test]
fn configurations_are_made_read_listed_and_deleted_over_each_binding() {
    let server = open();
    let card = server.http().get("/.well-known/agent-card.json").json();
    assert_eq!(card["capabilities"]["pushNotifications"], true);
    let over = task(&server, &calls("echo", &json!({})));
    let id = over["id"].as_str().unwrap();
    let config = json!({"taskId": id, "id": "a", "url": "https://example.com/hook"});
    assert_eq!(ask(&server, "CreateTaskPushNotificationConfig", &config), config);
    let path = format!("/a2a/tasks/{id}/pushNotificationConfigs");
    let rest = |method: &str, path: &str| {
        Request::new(method, path)
            .header("a2a-version", "1.0")
            .header("content-type", "application/json")
    };
    let second = rest("POST", &path).body(r#"{"url": "https://example.com/b", "id": "b"}"#);
    assert_eq!(send(&server, &second).json()["taskId"], id);
    assert_eq!(send(&server, &rest("GET", &format!("{path}/a"))).json(), config);
    let listed = ask(&server, "ListTaskPushNotificationConfigs", &json!({"taskId": id}));
    assert_eq!(listed["configs"].as_array().unwrap().len(), 2, "{listed}");
    for _ in 0..2 {
        assert_eq!(send(&server, &rest("DELETE", &format!("{path}/a"))).status, 200);
        ask(&server, "DeleteTaskPushNotificationConfig", &json!({"taskId": id, "id": "b"}));
    }
    assert_eq!(send(&server, &rest("GET", &format!("{path}/a"))).status, 404);
    let gone = json!({"taskId": id, "id": "b"});
    assert_eq!(refusal(&server, "GetTaskPushNotificationConfig", &gone), -32001);
    let nowhere = json!({"taskId": "none", "id": "a", "url": "https://example.com"});
    assert_eq!(refusal(&server, "CreateTaskPushNotificationConfig", &nowhere), -32001);
    for url in ["ftp://example.com", "nothing", "http://user:word@example.com"] {
        let config = json!({"taskId": id, "url": url});
        assert_eq!(refusal(&server, "CreateTaskPushNotificationConfig", &config), -32602, "{url}");
    }
}

#[test]
fn private_addresses_get_no_push_unless_configured() {
    let server = agent().serve();
    let receiver = Receiver::begin(&[]);
    let mut params = calls("echo", &json!({}));
    for url in [
        receiver.url(),
        format!("http://localhost:{}/", receiver.address.port()),
        "http://169.254.169.254/".to_owned(),
    ] {
        params["configuration"] = json!({"taskPushNotificationConfig": {"url": url}});
        assert_eq!(refusal(&server, "SendMessage", &params), -32602, "{url}");
    }
    assert_eq!(ask(&server, "ListTasks", &json!({}))["totalSize"], 0, "nothing was begun");
    assert!(receiver.posts().is_empty());
    // A proxy would look the name up itself, and there it may lead anywhere.
    let server = agent().env("http_proxy", receiver.url()).serve();
    let url = "http://inside.orla.invalid/";
    params["configuration"] = json!({"taskPushNotificationConfig": {"url": url}});
    task(&server, &params);
    eventually("it is given up", || server.log().contains("push notification failed"));
    assert!(receiver.posts().is_empty(), "{:?}", receiver.posts());
}

#[test]
fn push_notifications_report_that_the_server_was_killed() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("state");
    let config =
        format!("{ASKED}state_dir: '{}'\na2a: {{allow_private_push: true}}\n", directory.display());
    let mut first = agent().config(&config).serve();
    let receiver = Receiver::begin(&[]);
    let mut begun = calls("slow", &json!({}));
    begun["configuration"] =
        json!({"returnImmediately": true, "taskPushNotificationConfig": {"url": receiver.url()}});
    let working = task(&first, &begun);
    // The answer to this means that everything before is written.
    let echoed = task(&first, &calls("echo", &json!({})));
    assert_eq!(state(&echoed), "TASK_STATE_COMPLETED");
    first.kill();
    let second = agent().config(&config).serve();
    eventually("the end is told", || receiver.states().iter().any(|state| state == "FAILED"));
    assert_eq!(state(&ask(&second, "GetTask", &json!({"id": working["id"]}))), "TASK_STATE_FAILED");
}

#[test]
fn a_configuration_that_is_set_again_tells_each_event_once() {
    let server = open();
    let receiver = Receiver::begin(&[]);
    let config = json!({"id": "mine", "url": receiver.url()});
    let mut begun = calls("slow", &json!({}));
    begun["configuration"] =
        json!({"returnImmediately": true, "taskPushNotificationConfig": config.clone()});
    let working = task(&server, &begun);
    eventually("the tool runs", || server.path("started").exists());
    for _ in 0..2 {
        let mut again = config.clone();
        again["taskId"] = working["id"].clone();
        ask(&server, "CreateTaskPushNotificationConfig", &again);
    }
    let cancelled = ask(&server, "CancelTask", &json!({"id": working["id"]}));
    assert_eq!(state(&cancelled), "TASK_STATE_CANCELED");
    eventually("the end is told", || receiver.states().iter().any(|state| state == "CANCELED"));
    // Later posts follow after all earlier ones.
    let mut last = calls("echo", &json!({}));
    last["configuration"] = json!({"taskPushNotificationConfig": config});
    task(&server, &last);
    eventually("another end is told", || receiver.states().iter().any(|state| state == "COMPLETED"));
    let ends = receiver.states().iter().filter(|state| *state == "CANCELED").count();
    assert_eq!(ends, 1, "{:?}", receiver.states());
}
