use std::process::ExitStatus;

use super::*;
use serde_json::{Value, json};

fn context(form: OutputForm, has_schema: bool) -> Context<'static> {
    Context {
        name: "ls",
        call_id: "call-1",
        timeout: Duration::from_secs(30),
        form,
        has_schema,
        sandbox: None,
    }
}

fn ended(stdout: &[u8], raw_status: i32) -> Ended {
    Ended {
        cause: Cause::Itself,
        status: Status::Exited(ExitStatus::from_raw(raw_status)),
        stdout: Captured { bytes: stdout.to_vec(), dropped: 0 },
        stderr: Captured::default(),
        breach: None,
        duration: Duration::from_millis(12),
    }
}

fn value(json: Option<&JsonText>) -> Value {
    json.map_or(Value::Null, |json| serde_json::from_str(json.as_str()).unwrap())
}

fn structured(outcome: &Outcome) -> Option<String> {
    outcome.structured.as_ref().map(|payload| payload.json().unwrap().as_str().to_owned())
}

fn content(outcome: &Outcome) -> Value {
    value(outcome.content.as_ref())
}

fn execution(outcome: &Outcome) -> Value {
    value(outcome.meta.as_ref())["orla/execution"].clone()
}

#[test]
fn plain_output_is_text_and_the_three_streams() {
    let mut run = ended(b"out\n", 0);
    run.stderr.bytes = b"err\n".to_vec();
    let outcome = of_ended(&context(OutputForm::Text, false), run).unwrap();
    assert_eq!(content(&outcome), json!([{"type": "text", "text": "out\n"}]));
    assert_eq!(structured(&outcome).unwrap(), r#"{"stdout":"out\n","stderr":"err\n","exit_code":0}"#);
    assert_eq!(
        execution(&outcome),
        json!({"exit_code": 0, "stderr": "err\n", "duration_ms": 12, "timed_out": false, "sandbox": {"level": "unconfined"}})
    );
}

#[test]
fn an_end_that_is_no_success_is_one_sentence_and_keeps_the_output() {
    let cases = [
        (2 << 8, "", "ls exited with code 2", 2, None),
        (2 << 8, " no such file\n\n", "ls exited with code 2: no such file", 2, None),
        (255 << 8, "", "ls exited with code 255", 255, None),
        (11, "ignored", "ls was killed by SIGSEGV", 139, Some("SIGSEGV")),
        (9, "", "ls was killed by SIGKILL", 137, Some("SIGKILL")),
        (15, "", "ls was killed by SIGTERM", 143, Some("SIGTERM")),
        (40, "", "ls was killed by SIGRTMIN+6", 168, Some("SIGRTMIN+6")),
    ];
    for (status, stderr, message, code, signal) in cases {
        let mut run = ended(b"partial", status);
        run.stderr.bytes = stderr.into();
        let error = of_ended(&context(OutputForm::Text, false), run).unwrap_err();
        assert_eq!(error.to_string(), message);
        let outcome = error.outcome().unwrap();
        assert_eq!(content(outcome)[0]["text"], "partial");
        assert_eq!(execution(outcome)["exit_code"], code);
        assert_eq!(execution(outcome).get("signal").and_then(Value::as_str), signal);
        assert!(structured(outcome).unwrap().ends_with(&format!(r#""exit_code":{code}}}"#)));
    }
}

#[test]
fn only_the_end_of_a_long_standard_error_is_in_the_sentence() {
    let mut run = ended(b"", 1 << 8);
    run.stderr.bytes = "é".repeat(5000).into_bytes();
    let error = of_ended(&context(OutputForm::Text, false), run).unwrap_err();
    assert_eq!(error.to_string(), format!("ls exited with code 1: {}", "é".repeat(1000)));
}

#[test]
fn a_timeout_says_so_and_keeps_what_was_written() {
    let mut run = ended(b"started\n", 15);
    run.cause = Cause::Deadline;
    let error = of_ended(&context(OutputForm::Text, true), run).unwrap_err();
    assert_eq!(error.to_string(), "ls timed out after 30 s");
    let outcome = error.outcome().unwrap();
    assert_eq!(content(outcome)[0]["text"], "started\n");
    assert_eq!(
        (execution(outcome)["timed_out"].clone(), execution(outcome)["exit_code"].clone()),
        (json!(true), json!(143))
    );
    assert_eq!(structured(outcome), None);
}

#[test]
fn a_program_that_could_not_start_has_a_code_too() {
    let reason = "interpreter python9 not found".to_owned();
    let failure = StartFailure { exit_code: 127, reason, detail: None };
    let error = of_start_failure(&context(OutputForm::Text, false), &failure, None);
    assert_eq!(error.to_string(), "ls could not start: interpreter python9 not found");
    assert_eq!(execution(error.outcome().unwrap())["exit_code"], 127);
}

#[test]
fn dropped_bytes_are_counted() {
    let mut run = ended(b"abc", 0);
    (run.stdout.dropped, run.stderr.dropped) = (7, 0);
    let outcome = of_ended(&context(OutputForm::Text, false), run).unwrap();
    assert_eq!(execution(&outcome)["truncated"], json!({"stdout": 7, "stderr": 0}));
}

#[test]
fn bytes_that_are_no_text_are_lossless() {
    let png: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\xff";
    let wav: &[u8] = b"RIFF\xff\xff\0\0WAVEfmt ";
    let other: &[u8] = b"abc\xff\0";
    for (bytes, expected) in [
        (png, json!([{"type": "image", "data": BASE64.encode(png), "mimeType": "image/png"}])),
        (wav, json!([{"type": "audio", "data": BASE64.encode(wav), "mimeType": "audio/wav"}])),
        (
            other,
            json!([{"type": "resource", "resource": {
                "uri": "orla://call/call-1/stdout",
                "mimeType": "application/octet-stream",
                "blob": BASE64.encode(other),
            }}]),
        ),
    ] {
        let outcome = of_ended(&context(OutputForm::Text, false), ended(bytes, 0)).unwrap();
        assert_eq!(content(&outcome), expected);
        assert!(structured(&outcome).unwrap().contains('\u{fffd}'));
    }
    let outcome = of_ended(&context(OutputForm::Text, false), ended(b"\x1b[31mred\0", 0)).unwrap();
    assert_eq!(content(&outcome)[0]["text"], "\u{1b}[31mred\0");
}

#[test]
fn declared_output_is_parsed_and_keeps_its_numbers() {
    let run = ended(b"\n {\"n\": 1.10, \"big\": 18446744073709551617} \n", 0);
    let outcome = of_ended(&context(OutputForm::Text, true), run).unwrap();
    assert_eq!(structured(&outcome).unwrap(), r#"{"n": 1.10, "big": 18446744073709551617}"#);
}

#[test]
fn output_that_is_not_what_was_declared_is_an_error_that_keeps_it() {
    let cases: &[(&[u8], &str)] = &[
        (b"oops", "text that is not JSON at line 1 column 1: oops"),
        (b"", "nothing"),
        (b"{} {}", "a value followed by something else at line 1 column 4"),
        (b"{\"a\":", "text that is not JSON at line 1 column 5: {\"a\":"),
    ];
    for (stdout, got) in cases {
        let error = of_ended(&context(OutputForm::Text, true), ended(stdout, 0)).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("ls: invalid output: output: expected one JSON value, got {got}")
        );
        let outcome = error.outcome().unwrap();
        assert_eq!(content(outcome)[0]["text"], String::from_utf8_lossy(stdout).into_owned());
        assert_eq!(structured(outcome), None);
        let error = of_ended(&context(OutputForm::Json, false), ended(stdout, 0)).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("ls declares that it writes one JSON value, and wrote {got}")
        );
    }
}

#[test]
fn json_without_a_schema_is_passed_on_as_it_is() {
    for (stdout, expected) in [("{\"a\": 1}", "{\"a\": 1}"), ("[1.0]\n", "[1.0]")] {
        let outcome = of_ended(&context(OutputForm::Json, false), ended(stdout.as_bytes(), 0)).unwrap();
        assert_eq!(structured(&outcome).unwrap(), expected);
    }
}

#[test]
fn a_whole_mcp_result_goes_out_as_it_is() {
    let result = br#"{"content": [{"type": "image", "data": "eA==", "mimeType": "image/png"}, {"type": "text", "text": "x", "annotations": {}}],
        "structuredContent": {"n": 1.10}, "_meta": {"mine": 1}}"#;
    let outcome = of_ended(&context(OutputForm::Mcp, false), ended(result, 0)).unwrap();
    let expected = r#"[{"type": "image", "data": "eA==", "mimeType": "image/png"}, {"type": "text", "text": "x", "annotations": {}}]"#;
    assert_eq!(outcome.content.as_ref().unwrap().as_str(), expected);
    assert_eq!(structured(&outcome).unwrap(), "{\"n\": 1.10}");
    assert_eq!(value(outcome.meta.as_ref())["mine"], 1);
    assert_eq!(execution(&outcome)["exit_code"], 0);
}

#[test]
fn an_mcp_result_that_is_an_error_goes_out_as_it_is_and_its_last_text_is_the_message() {
    let image = r#"{"type": "image", "data": "eA==", "mimeType": "image/png"}"#;
    let text = r#"{"type":"text","text":"no such city","annotations":{}}"#;
    let cases = [
        (text.to_owned(), "no such city"),
        (format!("{image}, {text}"), "no such city"),
        (format!("{text}, {image}"), "no such city"),
        (image.to_owned(), "ls reported an error"),
        (String::new(), "ls reported an error"),
    ];
    for (blocks, message) in cases {
        let result = format!(r#"{{"content": [{blocks}], "isError": true}}"#);
        let run = ended(result.as_bytes(), 0);
        let error = of_ended(&context(OutputForm::Mcp, false), run).unwrap_err();
        assert_eq!(error.to_string(), message);
        assert_eq!(error.outcome().unwrap().content.as_ref().unwrap().as_str(), format!("[{blocks}]"));
    }
}

#[test]
fn an_invalid_mcp_result_is_an_error_that_keeps_the_output() {
    for stdout in ["[1]", "{\"content\": {}}", "{\"content\": [1]}", "x"] {
        let error = of_ended(&context(OutputForm::Mcp, false), ended(stdout.as_bytes(), 0)).unwrap_err();
        assert!(
            error.to_string().starts_with("ls declares that it writes one MCP tool result, and wrote"),
            "{error}"
        );
        assert_eq!(content(error.outcome().unwrap())[0]["text"], stdout);
    }
}

#[test]
fn a_call_that_never_ran_reports_no_signal() {
    let error = of_ended(&context(OutputForm::Text, false), Ended::never(Cause::Deadline)).unwrap_err();
    assert_eq!(error.to_string(), "ls timed out after 30 s");
    let execution = execution(error.outcome().unwrap());
    assert_eq!((&execution["exit_code"], execution.get("signal")), (&json!(126), None));
    assert_eq!(exit_code(Status::Lost), 137);
}
