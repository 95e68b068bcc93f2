use orla_marketplace::{CredentialPlace, HttpCredential};
use reqwest::header::HeaderName;

use super::*;

fn answered(
    http: &HttpCapability,
    status: u16,
    headers: &[(&'static str, &'static str)],
    body: &'static [u8],
) -> RuntimeResult<Outcome> {
    let context = Context { name: "weather", call_id: "c1", host: "api.example.com", http };
    let headers = headers
        .iter()
        .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
        .collect();
    read(context, StatusCode::from_u16(status).unwrap(), &headers, &Bytes::from_static(body))
}

fn plain() -> HttpCapability {
    HttpCapability::new("https://api.example.com", None, 0)
}

#[test]
fn json_passes_through_as_it_came() {
    let body = br#"{"price": 1.10, "big": 18446744073709551616, "far": 1e400}"#;
    for media_type in ["application/json", "application/hal+json; charset=utf-8", "Text/JSON"] {
        let outcome = answered(&plain(), 200, &[("content-type", media_type)], body).unwrap();
        let json = outcome.structured.unwrap();
        assert_eq!(json.json().unwrap().bytes(), &Bytes::from_static(body), "{media_type}");
        assert!(outcome.content.is_none());
    }
}

#[test]
fn other_answers_become_content() {
    let cases: [(&str, &'static [u8], &str); 8] = [
        ("text/plain", b"hi", r#"[{"type":"text","text":"hi"}]"#),
        ("text/html; charset=utf-8", "<p>ü".as_bytes(), r#"[{"type":"text","text":"<p>ü"}]"#),
        ("text/plain; charset=ISO-8859-1", b"\xfc", r#"[{"type":"text","text":"ü"}]"#),
        ("image/png", b"\x89PNG", r#"[{"type":"image","data":"iVBORw==","mimeType":"image/png"}]"#),
        ("audio/mpeg", b"\xff", r#"[{"type":"audio","data":"/w==","mimeType":"audio/mpeg"}]"#),
        (
            "application/pdf",
            b"%PDF",
            r#"[{"type":"resource","resource":{"uri":"orla://call/c1/body","mimeType":"application/pdf","blob":"JVBERg=="}}]"#,
        ),
        (
            "application/octet-stream",
            b"GIF89a\x00\x01",
            r#"[{"type":"image","data":"R0lGODlhAAE=","mimeType":"image/gif"}]"#,
        ),
        ("", b"no type", r#"[{"type":"text","text":"no type"}]"#),
    ];
    for (media_type, body, content) in cases {
        let headers: &[(&str, &str)] =
            if media_type.is_empty() { &[] } else { &[("content-type", media_type)] };
        let outcome = answered(&plain(), 200, headers, body).unwrap();
        assert_eq!(outcome.content.unwrap().as_str(), content, "{media_type}");
        assert!(outcome.structured.is_none(), "{media_type}");
    }
}

#[test]
fn an_empty_answer_is_no_value_and_the_meta_says_what_it_was() {
    let headers = [("location", "/pets/7"), ("set-cookie", "secret=1"), ("etag", "\"x\"")];
    let outcome = answered(&plain(), 204, &headers, b"").unwrap();
    assert!(outcome.structured.is_none() && outcome.content.is_none());
    assert_eq!(
        outcome.meta.unwrap().as_str(),
        r#"{"orla/http":{"status":204,"headers":{"location":"/pets/7","etag":"\"x\""}}}"#
    );
}

#[test]
fn an_answer_of_another_kind_than_asked_for_is_an_error_that_keeps_it() {
    let mut http = plain();
    http.options.accept = vec!["application/json".into()];
    let html: &[(&str, &str)] = &[("content-type", "text/html")];
    let error = answered(&http, 200, html, b"<p>log in").unwrap_err();
    assert_eq!(
        error.to_string(),
        "weather failed: api.example.com answers with text/html instead of application/json; trying again will not help"
    );
    let kept = error.outcome().unwrap().content.as_ref().unwrap();
    assert_eq!(kept.as_str(), r#"[{"type":"text","text":"<p>log in"}]"#);
    // What says nothing of its kind is looked at.
    let vague: &[(&str, &str)] = &[("content-type", "text/plain")];
    assert_eq!(
        answered(&http, 200, vague, b"[1]").unwrap().structured.unwrap().json().unwrap().as_str(),
        "[1]"
    );
    assert!(answered(&http, 200, vague, b"hello").is_err());
    let json: &[(&str, &str)] = &[("content-type", "application/json")];
    assert_eq!(
        answered(&plain(), 200, json, b"{oops").unwrap_err().to_string(),
        "weather failed: api.example.com answers with application/json that is not JSON instead of JSON; trying again will not help"
    );
}

#[test]
fn a_status_says_what_happened_and_whether_to_try_again() {
    let json = ("content-type", "application/json");
    let text = ("content-type", "text/plain");
    type Row = (u16, &'static [(&'static str, &'static str)], &'static [u8], &'static str);
    let cases: [Row; 11] = [
        (
            404,
            &[],
            b"",
            "weather failed: api.example.com answers 404 Not Found; the same call will fail again",
        ),
        (
            404,
            &[("content-type", "application/problem+json")],
            br#"{"type":"x","title":"t","detail":"no such city"}"#,
            "weather failed: api.example.com answers 404 Not Found: no such city; the same call will fail again",
        ),
        (
            422,
            &[("content-type", "application/json")],
            br#"{"errors":[{"message":"bad\nunit"}]}"#,
            "weather failed: api.example.com answers 422 Unprocessable Entity: bad unit; the same call will fail again",
        ),
        (
            401,
            &[],
            b"",
            "weather failed: api.example.com answers 401 Unauthorized; it needs credentials, and none are configured",
        ),
        (
            403,
            &[],
            b"",
            "weather failed: api.example.com answers 403 Forbidden; it may need credentials, and none are configured",
        ),
        (
            500,
            &[("content-type", "text/html")],
            b"<html>",
            "weather failed: api.example.com answers 500 Internal Server Error; the fault is at its side, so trying again may help",
        ),
        (
            304,
            &[],
            b"",
            "weather failed: api.example.com answers 304 Not Modified; this redirect is not followed",
        ),
        (
            429,
            &[("retry-after", "30")],
            b"",
            "weather is unavailable: api.example.com answers 429 Too Many Requests; try again after 30 s",
        ),
        (
            503,
            &[("retry-after", "Wed, 21 Oct 2026 07:28:00 GMT"), ("content-type", "text/plain")],
            b"down",
            "weather is unavailable: api.example.com answers 503 Service Unavailable: down; try again after Wed, 21 Oct 2026 07:28:00 GMT",
        ),
        (
            502,
            &[],
            b"",
            "weather is unavailable: api.example.com answers 502 Bad Gateway; trying again may help",
        ),
        (
            599,
            &[],
            b"",
            "weather failed: api.example.com answers 599; the fault is at its side, so trying again may help",
        ),
    ];
    for (status, headers, body, message) in cases {
        assert_eq!(answered(&plain(), status, headers, body).unwrap_err().to_string(), message);
    }
    let body = |error: &RuntimeError| {
        let outcome = error.outcome().unwrap();
        assert!(outcome.meta.is_some());
        outcome.structured.as_ref().unwrap().json().unwrap().as_str().to_owned()
    };
    let error = answered(&plain(), 409, &[json], br#"{"code": 1.0}"#).unwrap_err();
    assert_eq!(body(&error), r#"{"code": 1.0}"#);
    let busy = answered(&plain(), 429, &[json], br#"{"code": 2.0}"#).unwrap_err();
    assert_eq!((busy.kind(), &*body(&busy)), ("unavailable", r#"{"code": 2.0}"#));
    let transient = answered(&plain(), 503, &[text], b"").unwrap_err();
    assert!(transient.is_transient() && !error.is_transient());
}

#[test]
fn secrets_that_a_server_repeats_are_not_repeated() {
    let mut http = HttpCapability::new("https://api.example.com", Some("t0ken".into()), 0);
    let place = CredentialPlace::Header("X".into());
    http.options.credentials.push(HttpCredential { place, value: "k3y-value".into() });
    http.options.headers.insert("X-Api-Key".into(), "configured".into());
    let text: &[(&str, &str)] = &[("content-type", "text/plain")];
    let error = answered(&http, 401, text, b"t0ken, k3y-value and configured are unknown").unwrap_err();
    assert_eq!(
        error.to_string(),
        "weather failed: api.example.com answers 401 Unauthorized: ***, *** and *** are unknown; the configured credentials are not accepted"
    );
    let kept = error.outcome().unwrap().last_text().unwrap();
    assert_eq!(kept, "***, *** and *** are unknown");
}
