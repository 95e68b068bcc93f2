use super::*;
use async_trait::async_trait;
use orla_marketplace::testing::Canned;
use orla_marketplace::{Limits, Payload};

use crate::mcp::rpc::{Message, parse};

/// A surface with one prompt per name, listed two a page.
struct Prompts(&'static str, Vec<&'static str>);

#[async_trait]
impl Surface for Prompts {
    fn owner(&self) -> &str {
        self.0
    }

    fn serves(&self, method: &str) -> bool {
        matches!(method, "prompts/list" | "prompts/get" | "resources/read")
    }

    async fn request(
        &self,
        method: &str,
        params: &JsonText,
        ctx: &CallContext,
    ) -> Result<JsonText, SurfaceError> {
        assert_eq!(&*ctx.name, self.0);
        let params: serde_json::Value = serde_json::from_str(params.as_str()).unwrap();
        let text = match method {
            "prompts/list" => {
                let from: usize = params["cursor"].as_str().map_or(0, |cursor| cursor.parse().unwrap());
                let page: Vec<String> = self
                    .1
                    .iter()
                    .skip(from)
                    .take(2)
                    .map(|name| format!(r#"{{"name":"{name}","n":1.10}}"#))
                    .collect();
                let more = from + 2 < self.1.len();
                let next = if more { format!(r#","nextCursor":"{}""#, from + 2) } else { String::new() };
                format!(r#"{{"prompts":[{}]{next}}}"#, page.join(","))
            }
            _ => match params["name"].as_str().or(params["uri"].as_str()) {
                Some(name) if self.1.contains(&name) => {
                    format!(r#"{{"description":"{name} of {}"}}"#, self.0)
                }
                Some("broken") => return Err(SurfaceError::Failed("it broke".into())),
                name => {
                    return Err(SurfaceError::NotFound(format!(
                        "no prompt is named {}",
                        name.unwrap_or("?")
                    )));
                }
            },
        };
        Ok(JsonText::parse(text).unwrap())
    }
}

fn market() -> CapabilityMarketplace {
    let market = CapabilityMarketplace::new(Limits::default());
    market.register_executor(Arc::new(orla_marketplace::testing::MockExecutor)).unwrap();
    let mut builder = market.builder(Limits::default());
    builder.surface(Arc::new(Prompts("one", vec!["d", "b", "a"])));
    builder.surface(Arc::new(Prompts("two", vec!["c", "b"])));
    let mut manifest = Canned::Echoes.manifest("paint");
    let colours = serde_json::json!({"enum": ["red", "rose", "blue", 7]});
    let schema = serde_json::json!({"type": "object", "properties": {"colour": colours}});
    manifest.input_schema = Some(orla_marketplace::schema::type_from_json_schema(&schema));
    builder.capability(manifest).unwrap();
    market.replace(builder.build());
    market
}

fn id() -> Id {
    let Ok(Message::Request(request)) = parse(br#"{"jsonrpc":"2.0","id":7,"method":"x"}"#) else {
        panic!("a request")
    };
    request.id
}

async fn ask(
    market: &CapabilityMarketplace,
    method: &str,
    params: &str,
    is_sessionless: bool,
) -> Result<String, ErrorData> {
    let catalog = market.snapshot();
    let call = Call::to("").with(Payload::empty());
    let cache_hint = is_sessionless.then_some(CacheHint { ttl_ms: 9 });
    let missing_scopes = OnceLock::new();
    let asking =
        SurfaceRequest { market, catalog: &catalog, call, cache_hint, missing_scopes: &missing_scopes };
    let answer = if is_list(method) {
        let cursor = (params != "{}").then(|| JsonText::parse(params.to_owned()).unwrap());
        asking.list(&id(), method, cursor.as_ref()).await
    } else {
        asking.request(&id(), method, &JsonText::parse(params.to_owned()).unwrap()).await
    };
    let text = String::from_utf8(answer?.to_vec()).unwrap();
    Ok(text
        .strip_prefix(r#"{"jsonrpc":"2.0","id":7,"result":"#)
        .unwrap()
        .strip_suffix('}')
        .unwrap()
        .to_owned())
}

#[tokio::test]
async fn lists_are_merged_and_sorted_and_the_first_owner_wins() {
    let market = market();
    let items = ["a", "b", "c", "d"].map(|name| format!(r#"{{"name":"{name}","n":1.10}}"#)).join(",");
    assert_eq!(
        ask(&market, "prompts/list", "{}", false).await.unwrap(),
        format!(r#"{{"prompts":[{items}]}}"#)
    );
    assert_eq!(
        ask(&market, "prompts/list", "{}", true).await.unwrap(),
        format!(r#"{{"resultType":"complete","ttlMs":9,"cacheScope":"private","prompts":[{items}]}}"#)
    );
    let after = format!("\"{}\"", cursor_after("b"));
    assert!(
        ask(&market, "prompts/list", &after, false)
            .await
            .unwrap()
            .starts_with(r#"{"prompts":[{"name":"c""#)
    );
    assert_eq!(ask(&market, "prompts/list", "\"x\"", false).await.unwrap_err().code.0, -32602);
    // No provider serves these: the lists are empty, and there is no error.
    assert_eq!(ask(&market, "resources/list", "{}", false).await.unwrap(), r#"{"resources":[]}"#);
    let templates = ask(&market, "resources/templates/list", "{}", false).await.unwrap();
    assert_eq!(templates, r#"{"resourceTemplates":[]}"#);
}

#[tokio::test]
async fn a_request_goes_to_the_surface_that_has_the_item() {
    let market = market();
    let get = async |params: &'static str, is_sessionless| {
        ask(&market, "prompts/get", params, is_sessionless).await
    };
    assert_eq!(get(r#"{"name":"b"}"#, false).await.unwrap(), r#"{"description":"b of one"}"#);
    assert_eq!(
        get(r#"{"name":"c"}"#, true).await.unwrap(),
        r#"{"description":"c of two","resultType":"complete"}"#
    );
    let unknown = get(r#"{"name":"z"}"#, true).await.unwrap_err();
    assert_eq!((unknown.code.0, &*unknown.message), (-32602, "no prompt is named z"));
    assert_eq!(get(r#"{"name":"broken"}"#, true).await.unwrap_err().code.0, -32603);
    let nobody = ask(&market, "resources/subscribe", "{}", false).await.unwrap_err();
    assert_eq!(nobody.code.0, -32601);
    for (is_sessionless, code) in [(true, -32602), (false, -32002)] {
        let unknown =
            ask(&market, "resources/read", r#"{"uri":"x://y"}"#, is_sessionless).await.unwrap_err();
        assert_eq!((unknown.code.0, unknown.data.unwrap()), (code, serde_json::json!({"uri": "x://y"})));
    }
    assert_eq!(
        ask(&market, "resources/read", r#"{"uri":"a"}"#, true).await.unwrap(),
        r#"{"description":"a of one","resultType":"complete","ttlMs":9,"cacheScope":"private"}"#
    );
}

#[test]
fn an_argument_of_a_tool_is_completed_from_its_enum() {
    let catalog = market().snapshot();
    let complete = |reference: &str, argument: &str| {
        let params = format!(r#"{{"ref":{reference},"argument":{argument}}}"#);
        complete_tool(&catalog, &JsonText::parse(params).unwrap(), None)
    };
    let paint = r#"{"type":"ref/tool","name":"paint"}"#;
    let values = |argument: &str| complete(paint, argument).unwrap().unwrap().completion.values;
    assert_eq!(values(r#"{"name":"colour","value":"r"}"#), ["red", "rose"]);
    assert_eq!(values(r#"{"name":"colour","value":""}"#), ["red", "rose", "blue", "7"]);
    assert!(values(r#"{"name":"other","value":""}"#).is_empty());
    assert!(complete(r#"{"type":"ref/prompt","name":"paint"}"#, "{}").is_none());
    assert!(complete(r#"{"type":"ref/tool","name":"none"}"#, r#"{"name":"a"}"#).unwrap().is_err());
    assert!(complete(paint, "[]").unwrap().is_err());
}
