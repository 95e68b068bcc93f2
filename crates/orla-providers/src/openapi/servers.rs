//! Where a document's requests go. Pure.

use serde_json::Value as Json;
use url::Url;

/// The URL of the first of `servers`, with its variables' default values; a relative one is taken from
/// where the document came from.
///
/// # Errors
/// Why it is no URL that requests can go to.
pub(super) fn first(servers: Option<&Json>, document: Option<&Url>) -> Result<String, String> {
    // Without servers the standard says `/`.
    let server = servers.and_then(Json::as_array).and_then(|servers| servers.first());
    let template = server.and_then(|server| server.get("url")?.as_str()).unwrap_or("/");
    let variables = server.and_then(|server| server.get("variables"));
    let text = expand(template, variables)?;
    let url = match (Url::parse(&text), document) {
        (Ok(url), _) => url,
        (Err(_), Some(base)) => base.join(&text).map_err(|_| format!("its server {text} is no URL"))?,
        (Err(_), None) => {
            return Err(format!("its server is {text:?}: say with base_url where requests go"));
        }
    };
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(format!("its server {text} has no http:// or https://"));
    }
    // As it was written, where it was whole.
    Ok(if Url::parse(&text).is_ok() { text } else { url.into() })
}

fn expand(template: &str, variables: Option<&Json>) -> Result<String, String> {
    let mut text = String::new();
    let mut rest = template;
    while let Some((before, inside)) = rest.split_once('{') {
        let Some((name, after)) = inside.split_once('}') else { break };
        let value = variables.and_then(|variables| variables.get(name)?.get("default"));
        let value = match value {
            Some(Json::String(value)) => value.clone(),
            Some(Json::Number(value)) => value.to_string(),
            _ => return Err(format!("its server {template} has a variable {name} without a default")),
        };
        text.push_str(before);
        text.push_str(&value);
        rest = after;
    }
    text.push_str(rest);
    Ok(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_first_server_is_where_requests_go() {
        let variables = json!({"v": {"default": "2"}, "port": {"default": 8443}});
        let cases = [
            (json!([{"url": "https://a.example/v1"}, {"url": "https://b"}]), Ok("https://a.example/v1")),
            (
                json!([{"url": "https://a.example:{port}/v{v}", "variables": variables}]),
                Ok("https://a.example:8443/v2"),
            ),
            (json!([{"url": "/v1"}]), Ok("https://docs.example/v1")),
            (json!([]), Ok("https://docs.example/")),
            (
                json!([{"url": "https://{x}"}]),
                Err("its server https://{x} has a variable x without a default"),
            ),
            (json!([{"url": "ws://x"}]), Err("its server ws://x has no http:// or https://")),
        ];
        let document = Url::parse("https://docs.example/api/openapi.json").unwrap();
        for (servers, expected) in cases {
            let found = first(Some(&servers), Some(&document));
            assert_eq!(found.as_deref().map_err(String::as_str), expected, "{servers}");
        }
        assert_eq!(
            first(None, None).unwrap_err(),
            "its server is \"/\": say with base_url where requests go"
        );
    }
}
