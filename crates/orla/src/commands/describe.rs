//! `orla describe`: everything about one capability, here or on a server, with a call that can be pasted.

use orla_marketplace::{SandboxStatus, discovery};
use serde_json::{Value, json};

use super::client::Server;
use super::search::ask;
use crate::app::App;
use crate::config::{Config, Source};
use crate::{Failure, cli, render};

pub(crate) fn run(describe: &cli::Describe, source: &Source) -> Result<(), Failure> {
    let config = super::load_local_or_for_client(describe.url.as_deref(), source)?;
    let _log = super::log(&config);
    let described = super::small_runtime()?.block_on(async {
        match &describe.url {
            Some(url) => {
                let arguments = json!({"id": describe.id});
                ask(&Server::at(Some(url), &config)?, discovery::IDS[1], &arguments).await
            }
            None => describe_local(&config, &describe.id).await,
        }
    })?;
    if describe.json {
        return super::print_json(&described);
    }
    render::out(&shown(&described, describe.url.as_deref()));
    Ok(())
}

async fn describe_local(config: &Config, id: &str) -> Result<Value, Failure> {
    let app = App::build(config)?;
    super::wait_until_listed(&app).await;
    let catalog = app.marketplace().snapshot();
    let described = catalog.get(id).map(|entry| {
        let mut described = discovery::description(entry);
        let sandbox = app.marketplace().status(entry).sandbox;
        let is_plain = |sandbox: &SandboxStatus| *sandbox == SandboxStatus::unconfined();
        if let Some(sandbox) = sandbox.filter(|sandbox| !is_plain(sandbox)) {
            described["sandbox"] = json!({"level": sandbox.level.name(), "missing": sandbox.missing});
        }
        described
    });
    let problems = app.marketplace().problems_for(&catalog, None, Some(id));
    app.end_providers().await;
    described.ok_or_else(|| {
        if !problems.is_empty() {
            return Failure::failed(format!("{id} is unavailable: {}", problems.join("; ")));
        }
        if let Some(why) = app.findings().why_not_served(id) {
            return Failure::failed(why);
        }
        let near = catalog.similar(id).into_iter().next();
        Failure::failed(match near {
            Some(near) => format!("{id} is not served; did you mean {near}?"),
            None => format!("{id} is not served; `orla search WORDS` finds served capabilities"),
        })
    })
}

/// Returns the description for people: the capability, how to call it, and all details of its types.
fn shown(described: &Value, url: Option<&str>) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = |value: &Value| {
        let items = value.as_array().into_iter().flatten();
        items.map(text).collect::<Vec<_>>().join(", ")
    };
    let mut out = format!("{}\n", text(&described["id"]));
    for line in text(&described["description"]).trim().lines() {
        out.push_str(&format!("  {line}\n"));
    }
    let from = &described["provenance"];
    let rows = [
        ("MCP tool", text(&described["name"])),
        ("title", text(&described["title"])),
        ("kind", text(&described["kind"])),
        ("version", text(&described["version"])),
        ("route", text(&described["route"])),
        ("providers", list(&described["providers"])),
        ("permissions", list(&described["permissions"])),
        ("sandbox", text(&described["sandbox"]["level"])),
        ("", list(&described["sandbox"]["missing"])),
        ("source", text(&from["source"])),
        ("  version", text(&from["version"])),
        ("  hash", text(&from["content_hash"])),
        ("  through", list(&from["custody_chain"])),
        ("  registered", instant(&from["registered_at"])),
        ("attested by", text(&described["attestation"]["authority"])),
        ("unavailable", text(&described["unavailable"])),
        ("input", text(&described["input"]["type"])),
        ("", text(&described["input"]["enforcement"])),
        ("output", text(&described["output"]["type"])),
        ("", text(&described["output"]["enforcement"])),
    ];
    out.push('\n');
    for (label, value) in rows.iter().filter(|(_, value)| !value.is_empty()) {
        out.push_str(&format!("{label:<12} {value}\n"));
    }
    for (key, value) in described["metadata"].as_object().into_iter().flatten() {
        out.push_str(&format!("{key:<12} {}\n", text(value)));
    }
    let example = &described["example"];
    out.push_str(&format!(
        "\nExample\n  {}\n  {}\n",
        command(&text(&described["id"]), &example["json"]["input"], url),
        text(&example["rtfs"])
    ));
    for (label, key) in [("Input", "input"), ("Output", "output")] {
        let schema = &described[key]["json_schema"];
        if !schema.is_null() {
            let pretty = serde_json::to_string_pretty(schema).unwrap_or_default();
            out.push_str(&format!("\n{label} as JSON Schema\n{}\n", indented(&pretty)));
        }
    }
    out
}

/// Milliseconds since 1970 as RFC 3339 writes them; `None` without a time.
fn instant(ms: &Value) -> String {
    let instant = ms.as_i64().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    instant.map(|instant| instant.to_string()).unwrap_or_default()
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

/// Returns the command that makes the example call.
fn command(id: &str, input: &Value, url: Option<&str>) -> String {
    let mut words = vec!["orla".to_owned(), "call".to_owned(), quoted(id)];
    for (key, value) in input.as_object().into_iter().flatten() {
        let plain = match value {
            // Text that could be read as JSON must be written as JSON.
            Value::String(text) if serde_json::from_str::<Value>(text).is_err() => text.clone(),
            value => value.to_string(),
        };
        words.push(quoted(&format!("{key}={plain}")));
    }
    if let Some(url) = url {
        words.extend(["--url".to_owned(), quoted(url)]);
    }
    words.join(" ")
}

/// Returns a word as a POSIX shell takes it literally.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_can_be_pasted_into_a_shell() {
        let cases = [
            (json!({}), "orla call t"),
            (json!({"city": "Paris", "days": 3}), "orla call t city=Paris days=3"),
            (json!({"q": "it's here"}), r"orla call t 'q=it'\''s here'"),
            (json!({"q": "1"}), r#"orla call t 'q="1"'"#),
            (json!({"l": ["a", 1], "n": null}), r#"orla call t 'l=["a",1]' n=null"#),
        ];
        for (input, expected) in cases {
            assert_eq!(command("t", &input, None), expected);
        }
        let remote = command("odd id", &json!({}), Some("http://127.0.0.1:8080"));
        assert_eq!(remote, "orla call 'odd id' --url http://127.0.0.1:8080");
    }

    #[test]
    fn a_description_says_what_it_is_and_how_it_is_called_first() {
        let described = json!({
            "id": "weather.current", "name": "weather__current", "kind": "http",
            "description": "The weather now\nof a city", "permissions": ["net:a.example", "net:b.example"],
            "provenance": {"source": "git://w", "version": "1.2.0", "custody_chain": ["ann", "bob"]},
            "input": {"type": "[:map [:city :string]]", "json_schema": {"type": "object"}},
            "example": {"json": {"id": "weather.current", "input": {"city": "Paris"}},
                        "rtfs": "(call :weather.current {:city \"Paris\"})"},
        });
        assert_eq!(
            shown(&described, None),
            "weather.current\n  The weather now\n  of a city\n\n\
             MCP tool     weather__current\n\
             kind         http\n\
             permissions  net:a.example, net:b.example\n\
             source       git://w\n\
             \x20 version    1.2.0\n\
             \x20 through    ann, bob\n\
             input        [:map [:city :string]]\n\n\
             Example\n  orla call weather.current city=Paris\n  (call :weather.current {:city \"Paris\"})\n\n\
             Input as JSON Schema\n  {\n    \"type\": \"object\"\n  }\n"
        );
    }
}
