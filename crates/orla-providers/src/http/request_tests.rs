use orla_marketplace::HttpCredential;
use proptest::prelude::*;

use super::*;

fn endpoint(method: &str, path: &str) -> HttpCapability {
    let mut http = HttpCapability::new("https://api.example.com/base/", None, 0);
    http.options.method = Some(method.to_owned());
    http.options.path = path.to_owned();
    http
}

fn prepared(http: &HttpCapability, input: &str) -> Result<Prepared, String> {
    prepare(http, &JsonText::parse(input.to_owned()).unwrap()).map_err(|invalid| match invalid {
        InvalidRequest::Settings(problem) => problem,
        InvalidRequest::Input(refused) => refused.to_string(),
    })
}

fn text(body: Option<Bytes>) -> String {
    String::from_utf8(body.unwrap_or_default().to_vec()).unwrap()
}

#[test]
fn with_the_documents_fields_alone_the_input_is_posted_as_it_is() {
    let http = HttpCapability::new("http://localhost:1/run?x=1", Some("t0ken".into()), 1000);
    for input in [r#"{"n": 1.10, "url": "http://evil.example"}"#, "[1, 2]", "null", "{}"] {
        let request = prepared(&http, input).unwrap();
        assert_eq!(
            (request.method.as_str(), request.url.as_str()),
            ("POST", "http://localhost:1/run?x=1")
        );
        assert_eq!(text(request.body), input);
        assert_eq!(request.own[CONTENT_TYPE], "application/json");
        assert_eq!(request.own[AUTHORIZATION], "Bearer t0ken");
        assert!(request.own[AUTHORIZATION].is_sensitive());
        assert!(!request.common.contains_key(AUTHORIZATION));
    }
}

#[test]
fn arguments_go_where_the_templates_say_and_the_rest_into_the_body_or_query() {
    type Row = (&'static str, &'static str, &'static str, &'static str, &'static str);
    let cases: [Row; 9] = [
        ("GET", "/v1/{city}", r#"{"city": "São Paulo"}"#, "/base/v1/S%C3%A3o%20Paulo", ""),
        ("GET", "/v1/{city}", r#"{"city": "../a?b#c"}"#, "/base/v1/..%2Fa%3Fb%23c", ""),
        (
            "GET",
            "/v1/{city}",
            r#"{"city": "x", "days": 3, "t": ["a", "b"]}"#,
            "/base/v1/x?days=3&t=a&t=b",
            "",
        ),
        (
            "DELETE",
            "pets/{id}",
            r#"{"id": 18446744073709551616}"#,
            "/base/pets/18446744073709551616",
            "",
        ),
        ("POST", "/v1/{city}", r#"{"city": "x", "n": 1.10}"#, "/base/v1/x", r#"{"n":1.10}"#),
        (
            "get",
            "/find?name={name}&x=1&y={none}",
            r#"{"name": "a&b", "o": {"k": 1}}"#,
            "/base/find?name=a%26b&x=1&o=%7B%22k%22%3A%201%7D",
            "",
        ),
        ("GET", "", r#"{"url": "http://evil.example"}"#, "/base/?url=http%3A%2F%2Fevil.example", ""),
        ("POST", "/x", "{}", "/base/x", "{}"),
        ("PATCH", "/{a}-{b}", r#"{"a": true, "b": [1, 2]}"#, "/base/true-1,2", "{}"),
    ];
    for (method, path, input, url, body) in cases {
        let request = prepared(&endpoint(method, path), input).unwrap();
        assert_eq!(
            request.url.as_str().strip_prefix("https://api.example.com"),
            Some(url),
            "{path} {input}"
        );
        assert_eq!(text(request.body), body, "{path} {input}");
    }
}

#[test]
fn unsuitable_path_arguments_are_refused() {
    let cases = [
        ("/v1/{city}", r#"{"city": ".."}"#, "input.city: expected the name of something, got \"..\""),
        ("/v1/{city}", r#"{"city": "."}"#, "input.city: expected the name of something, got \".\""),
        ("/v1/.{city}", r#"{"city": "."}"#, "input.city: expected the name of something, got \".\""),
        ("/v1/{city}", r#"{"city": ""}"#, "input.city: expected something, got \"\""),
        ("/v1/{city}", r#"{"city": null}"#, r#"missing required property "city""#),
        ("/v1/{city}", "7", "input: expected an object, got 7"),
    ];
    for (path, input, message) in cases {
        assert_eq!(
            prepared(&endpoint("GET", path), input).err().as_deref(),
            Some(message),
            "{path} {input}"
        );
    }
    let mut http = endpoint("GET", "");
    http.options.headers.insert("X-Name".into(), "n-{name}".into());
    let refused = prepared(&http, r#"{"name": "a\r\nHost: evil"}"#).err().unwrap();
    assert!(refused.starts_with("input.name: expected text without line breaks"), "{refused}");
    assert_eq!(prepared(&http, r#"{"name": "ü"}"#).unwrap().own["x-name"].as_bytes(), "n-ü".as_bytes());
    assert!(!prepared(&http, "{}").unwrap().own.contains_key("x-name"), "an absent header is left out");
}

#[test]
fn credentials_go_where_they_belong() {
    let mut http = endpoint("GET", "/x");
    let credential = |place| HttpCredential { place, value: "s&c".into() };
    http.options.credentials = vec![
        credential(CredentialPlace::Header("X-Key".into())),
        credential(CredentialPlace::Query("key".into())),
        credential(CredentialPlace::Cookie("sid".into())),
    ];
    let cookie = HttpParameter::new("c", "c", ParameterPlace::Cookie);
    http.options.parameters.push(cookie);
    let request = prepared(&http, r#"{"c": 1, "key": "mine"}"#).unwrap();
    assert_eq!(request.url.query(), Some("key=mine&key=s%26c"));
    assert_eq!(request.own["x-key"], "s&c");
    assert_eq!(request.own[COOKIE], "c=1; sid=s&c");

    let http = HttpCapability::new("http://me:p%40ss@localhost:1/x", None, 0);
    let request = prepared(&http, "{}").unwrap();
    assert_eq!(request.url.as_str(), "http://localhost:1/x");
    assert_eq!(request.own[AUTHORIZATION], "Basic bWU6cEBzcw==");
}

#[test]
fn parameters_are_named_apart_from_their_arguments() {
    let mut http = endpoint("POST", "/users/{user-id}");
    let mut filter = HttpParameter::new("filter", "filter", ParameterPlace::Query);
    filter.style = ParameterStyle::DeepObject;
    http.options.parameters = vec![
        HttpParameter::new("user_id", "user-id", ParameterPlace::Path),
        filter,
        HttpParameter::new("trace", "X-Trace", ParameterPlace::Header),
    ];
    http.options.body = BodyMapping::Argument("body".into());
    let input = r#"{"user_id": 7, "filter": {"a": 1}, "trace": "t", "body": null}"#;
    let request = prepared(&http, input).unwrap();
    assert_eq!(request.url.as_str(), "https://api.example.com/base/users/7?filter%5Ba%5D=1");
    assert_eq!(request.own["x-trace"], "t");
    assert_eq!(text(request.body), "null");
    assert!(prepared(&http, r#"{"user_id": 7}"#).unwrap().body.is_none());
}

#[test]
fn settings_that_can_make_no_request_are_found_before_a_call() {
    let mut http = endpoint("GET", "/{city}");
    assert_eq!(check(&http), Ok(()));
    http.options.headers.insert("Host".into(), "evil".into());
    assert_eq!(check(&http).unwrap_err(), "the header \"Host\" cannot be set");
    for (base, problem) in [
        ("ftp://x", "the base URL has to begin with http:// or https://"),
        ("/x", "the base URL is invalid: relative URL without a base"),
    ] {
        assert_eq!(check(&HttpCapability::new(base, None, 0)).unwrap_err(), problem);
    }
    let token = HttpCapability::new("http://x", Some("a\nb".into()), 0);
    assert_eq!(
        check(&token).unwrap_err(),
        "the value of the token has characters that no header can have"
    );
    assert!(check(&endpoint("GET", "/{")).is_err());
    assert!(check(&endpoint("GE T", "/")).is_err());
}

proptest! {
    /// Whatever is given, it stays one segment of the path and one value of the query.
    #[test]
    fn no_argument_leaves_its_place(segment in "\\PC{0,20}|[./%\\\\?#&;2eE]{0,8}", value in "\\PC{0,20}") {
        let mut http = endpoint("GET", "/v1/{segment}/end");
        http.options.query.insert("q".into(), "{value}".into());
        let input = serde_json::json!({"segment": segment, "value": value}).to_string();
        match prepared(&http, &input) {
            Err(_) => prop_assert!(matches!(segment.as_str(), "" | "." | "..")),
            Ok(request) => {
                let segments: Vec<_> = request.url.path_segments().unwrap().collect();
                prop_assert_eq!(segments.len(), 4);
                prop_assert_eq!((segments[0], segments[1], segments[3]), ("base", "v1", "end"));
                let decoded = percent_encoding::percent_decode_str(segments[2]).decode_utf8().unwrap();
                prop_assert_eq!(decoded, segment.as_str());
                let query: Vec<_> = request.url.query_pairs().collect();
                prop_assert_eq!(query, vec![("q".into(), value.as_str().into())]);
                prop_assert_eq!(request.url.origin().ascii_serialization(), "https://api.example.com");
            }
        }
    }
}
