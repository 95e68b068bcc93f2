//! Arguments of a tool that a request over HTTP repeats as header fields (`x-mcp-header`, MCP 2026-07-28). Pure.

use http::HeaderName;
use serde_json::Value;

use crate::object::Object;

/// An argument that is repeated in a header field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamHeader {
    /// The field, `mcp-param-NAME`.
    pub header: HeaderName,
    /// The keys that lead to the argument.
    path: Vec<String>,
}

/// The maximum depth to which a schema is searched.
const MAX_DEPTH: usize = 32;

impl ParamHeader {
    /// Returns the headers that an input schema requires. Names that cannot be header fields are left
    /// out.
    pub fn of_schema(schema: &Value) -> Vec<Self> {
        let mut found = Vec::new();
        collect(schema, &mut Vec::new(), &mut found);
        found
    }

    /// Returns the text of the argument, if it is a string, a number or a boolean.
    pub fn value(&self, arguments: &str) -> Option<String> {
        let (last, parents) = self.path.split_last()?;
        let mut text = arguments.to_owned();
        for key in parents {
            text = Object::parse(&text)?.get(key)?.to_owned();
        }
        let object = Object::parse(&text)?;
        let value = object.get(last)?;
        match value.as_bytes().first()? {
            b'"' => object.text(last),
            b'{' | b'[' | b'n' => None,
            _ => Some(value.to_owned()),
        }
    }

    /// Returns the name of the argument in errors, such as `at.region`.
    pub fn argument(&self) -> String {
        self.path.join(".")
    }
}

fn collect(schema: &Value, path: &mut Vec<String>, found: &mut Vec<ParamHeader>) {
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, property) in properties.into_iter().flatten() {
        path.push(name.clone());
        let header = property.get("x-mcp-header").and_then(Value::as_str);
        let header = header
            .filter(|header| !header.is_empty())
            .and_then(|header| HeaderName::try_from(format!("mcp-param-{header}")).ok());
        if let Some(header) = header {
            found.push(ParamHeader { header, path: path.clone() });
        }
        if path.len() < MAX_DEPTH {
            collect(property, path, found);
        }
        path.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_found_for_their_headers() {
        let schema = serde_json::json!({"properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "at": {"properties": {"n": {"type": "integer", "x-mcp-header": "N"}}},
            "odd": {"x-mcp-header": "no such: name"},
            "empty": {"x-mcp-header": ""},
        }});
        let found = ParamHeader::of_schema(&schema);
        let headers: Vec<&str> = found.iter().map(|found| found.header.as_str()).collect();
        assert_eq!(headers, ["mcp-param-region", "mcp-param-n"]);
        assert_eq!(found[1].argument(), "at.n");
        let values = |arguments: &str| [0, 1].map(|at| found[at].value(arguments));
        let texts = |[region, n]: [Option<&str>; 2]| [region, n].map(|text| text.map(str::to_owned));
        assert_eq!(values(r#"{"region":"eu\u0021","at":{"n":1.0}}"#), texts([Some("eu!"), Some("1.0")]));
        assert_eq!(values(r#"{"region":null,"at":{"n":true}}"#), texts([None, Some("true")]));
        assert_eq!(values(r#"{"region":["a"],"at":7}"#), texts([None, None]));
        assert!(ParamHeader::of_schema(&serde_json::json!({"properties": {}})).is_empty());
    }
}
