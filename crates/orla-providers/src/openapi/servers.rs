//! The servers of a document's requests. Pure.

use serde_json::Value as Json;
use url::{Host, Url};

use orla_confine::Reach;

/// Returns the URL of the first of `servers`, with its variables' default values. A relative URL is
/// resolved against the document's address.
///
/// # Errors
/// Why requests cannot be sent to the URL.
pub(super) fn first(servers: Option<&Json>, document: Option<&Url>) -> Result<String, String> {
    // Without servers, the standard's default is `/`.
    let server = servers.and_then(Json::as_array).and_then(|servers| servers.first());
    let template = server.and_then(|server| server.get("url")?.as_str()).unwrap_or("/");
    let variables = server.and_then(|server| server.get("variables"));
    let text = expand(template, variables)?;
    let url = match (Url::parse(&text), document) {
        (Ok(url), _) => url,
        (Err(_), Some(base)) => {
            base.join(&text).map_err(|_| format!("its server {text} is not a URL"))?
        }
        (Err(_), None) => {
            return Err(format!("its server is {text:?}: set base_url to the address for requests"));
        }
    };
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(format!("its server {text} has no http:// or https://"));
    }
    // A complete URL stays unchanged.
    Ok(if Url::parse(&text).is_ok() { text } else { url.into() })
}

/// Returns whether a document from `document` may name `server`. A document on the internet must not
/// send requests to this machine or its local network. Names are not resolved.
pub(super) fn may_name(document: &Url, server: &Url) -> bool {
    is_local(document) || !is_local(server)
}

fn is_local(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(address)) => Reach::of(address.into()) > Reach::Public,
        Some(Host::Ipv6(address)) => Reach::of(address.into()) > Reach::Public,
        Some(Host::Domain(name)) => {
            let name = name.strip_suffix('.').unwrap_or(name);
            name == "localhost" || name.ends_with(".localhost")
        }
        None => false,
    }
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
    fn a_document_from_the_internet_names_no_private_address() {
        let cases = [
            ("https://docs.example/x", "https://api.example", true),
            ("https://docs.example/x", "http://localhost:1", false),
            ("https://docs.example/x", "http://localhost.:1", false),
            ("https://docs.example/x", "http://169.254.169.254/latest", false),
            ("https://1.1.1.1/x", "http://[::1]:1", false),
            ("http://localhost:1/x", "http://127.0.0.1:2", true),
            ("http://10.0.0.1/x", "http://10.0.0.2", true),
        ];
        for (document, server, may) in cases {
            let url = |text| Url::parse(text).unwrap();
            assert_eq!(may_name(&url(document), &url(server)), may, "{document} {server}");
        }
    }

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
            "its server is \"/\": set base_url to the address for requests"
        );
    }
}
