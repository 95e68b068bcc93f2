use orla_marketplace::schema::{Validator, type_from_json_schema};

use super::*;

fn read_with(version: &str, path: &str, method: &str, operation: &Json) -> Result<Operation, String> {
    let document = json!({"openapi": version, "components": {"schemas": {
        "Pet": {"type": "object", "required": ["name"], "properties": {
            "id": {"type": "integer", "readOnly": true}, "name": {"type": "string"},
            "friends": {"type": "array", "items": {"$ref": "#/components/schemas/Pet"}}}},
    }, "parameters": {"limit": {"name": "limit", "in": "query", "schema": {"type": "integer"}}}}});
    let document = Document::parse(&document.to_string()).unwrap();
    read(&document, path, method, operation, &Json::Null, true)
}

fn read_one(path: &str, method: &str, operation: &Json) -> Operation {
    read_with("3.0.3", path, method, operation).unwrap()
}

#[test]
fn parameters_become_arguments_that_every_client_can_name() {
    let operation = read_one(
        "/users/{user-id}",
        "get",
        &json!({"parameters": [
            {"name": "user-id", "in": "path", "required": true, "schema": {"type": "integer"}, "description": "Who."},
            {"name": "filter[status]", "in": "query", "style": "deepObject", "schema": {"type": "object"}},
            {"name": "tags", "in": "query", "explode": false, "schema": {"type": "array", "items": {"type": "string"}}},
            {"name": "user-id", "in": "header", "schema": {"type": "string"}},
            {"name": "Authorization", "in": "header", "schema": {"type": "string"}},
            {"name": "where", "in": "query", "required": true, "content": {"application/json": {"schema": {"type": "object"}}}},
            {"$ref": "#/components/parameters/limit"},
        ]}),
    );
    assert_eq!(
        operation.input,
        json!({
            "type": "object",
            "properties": {
                "user-id": {"type": "integer", "description": "Who."},
                "filter_status": {"type": "object"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "user-id_header": {"type": "string"},
                "where": {"type": "object"},
                "limit": {"type": "integer"},
            },
            "required": ["user-id", "where"],
            "additionalProperties": false,
        })
    );
    let written: Vec<_> = operation
        .options
        .parameters
        .iter()
        .map(|p| (p.argument.as_str(), p.name.as_str(), p.style, p.explode))
        .collect();
    assert_eq!(
        written,
        [
            ("user-id", "user-id", Style::Simple, false),
            ("filter_status", "filter[status]", Style::DeepObject, false),
            ("tags", "tags", Style::Form, false),
            ("user-id_header", "user-id", Style::Simple, false),
            ("where", "where", Style::Json, true),
            ("limit", "limit", Style::Form, true),
        ]
    );
    assert_eq!(operation.options.body, BodyMapping::None);
}

#[test]
fn a_body_that_is_a_plain_object_is_merged_and_any_other_is_an_argument() {
    let json_body =
        |schema: Json| json!({"required": true, "content": {"application/json": {"schema": schema}}});
    let pet = json!({"$ref": "#/components/schemas/Pet"});

    let merged = read_one("/pets", "post", &json!({"requestBody": json_body(pet.clone())}));
    assert_eq!(merged.options.body, BodyMapping::Rest);
    assert_eq!(merged.input["required"], json!(["name"]));
    assert!(
        merged.input["properties"].get("id").is_none(),
        "an id that the server makes is not asked for"
    );
    assert_eq!(merged.input["properties"]["friends"]["items"]["$ref"], "#/$defs/Pet");
    assert!(merged.input.get("additionalProperties").is_none());
    let validator = Validator::compile(&type_from_json_schema(&merged.input)).unwrap();
    assert!(validator.check(r#"{"name": "a", "friends": [{"name": "b"}]}"#, "input").is_ok());
    assert!(validator.check(r#"{"name": "a", "friends": [{}]}"#, "input").is_err());

    let clash = json!({"requestBody": json_body(pet.clone()),
        "parameters": [{"name": "name", "in": "query", "schema": {}}]});
    let optional = json!({"requestBody": {"content": {"application/json": {"schema": pet}}}});
    let list = json!({"requestBody": json_body(json!({"type": "array", "items": {}}))});
    let either =
        json!({"requestBody": json_body(json!({"oneOf": [{"type": "object"}], "properties": {}}))});
    for operation in [clash, optional, list, either] {
        let operation = read_one("/pets", "post", &operation);
        assert_eq!(operation.options.body, BodyMapping::Argument("body".into()));
        assert!(operation.input["properties"].get("body").is_some());
    }
}

#[test]
fn bodies_of_other_kinds_are_written_as_such() {
    let body = |content: Json| json!({"requestBody": {"required": true, "content": content}});
    let file = json!({"type": "object", "properties": {
        "file": {"type": "string", "format": "binary"}, "meta": {"type": "object"}, "note": {"type": "string"}}});
    let upload = read_one(
        "/x",
        "post",
        &body(
            json!({"multipart/form-data": {"schema": file, "encoding": {"file": {"contentType": "image/png, image/gif"}}}}),
        ),
    );
    assert_eq!(upload.options.media_type.as_deref(), Some("multipart/form-data"));
    assert_eq!(upload.options.body, BodyMapping::Rest);
    let part = HttpPart { media_type: Some("image/png".into()), is_file: true };
    assert_eq!(upload.options.parts.into_iter().collect::<Vec<_>>(), [("file".to_owned(), part)]);
    assert_eq!(
        upload.input["properties"]["file"],
        json!({"type": "string", "contentEncoding": "base64"})
    );

    let cases = [
        (
            json!({"text/plain": {}}),
            "text/plain",
            json!({"type": "string", "description": "The body, as text/plain."}),
        ),
        (
            json!({"*/*": {"schema": {"type": "string", "format": "binary"}}}),
            "application/octet-stream",
            json!({"type": "string", "contentEncoding": "base64", "description": "The body, as application/octet-stream."}),
        ),
        (
            json!({"text/plain": {}, "application/vnd.api+json": {"schema": {"type": "array"}}}),
            "application/vnd.api+json",
            json!({"type": "array", "description": "The body, as application/vnd.api+json."}),
        ),
    ];
    for (content, media_type, schema) in cases {
        let operation = read_one("/x", "post", &body(content));
        assert_eq!(operation.options.media_type.as_deref(), Some(media_type));
        assert_eq!(operation.input["properties"]["body"], schema, "{media_type}");
    }
}

#[test]
fn the_output_is_the_schema_of_the_success_responses() {
    let json_answer = |schema: Json| json!({"content": {"application/json": {"schema": schema}}});
    let pet = json!({"$ref": "#/components/schemas/Pet"});
    let one = read_one(
        "/x",
        "get",
        &json!({"responses": {"200": json_answer(pet.clone()), "404": json_answer(json!({"type": "string"}))}}),
    );
    assert_eq!(one.options.accept, ["application/json"]);
    let output = one.output.unwrap();
    assert_eq!((&output["type"], output.get("required")), (&json!("object"), None));
    assert!(output["$defs"]["Pet"].is_object());

    let two = read_one(
        "/x",
        "get",
        &json!({"responses": {"200": json_answer(json!({"type": "array"})), "202": json_answer(json!({"type": "object"})),
            "204": {"description": "nothing"}}}),
    );
    assert_eq!(two.output.unwrap(), json!({"anyOf": [{"type": "array"}, {"type": "object"}]}));

    let image = read_one("/x", "get", &json!({"responses": {"200": {"content": {"image/png": {}}}}}));
    assert_eq!((image.options.accept, image.output), (vec!["image/png".to_owned()], None));
    let unknown =
        read_one("/x", "get", &json!({"responses": {"200": {"content": {"application/json": {}}}}}));
    assert_eq!(unknown.output, None);
}

#[test]
fn operations_that_cannot_be_imported_have_a_reason() {
    let parameter = |value: Json| json!({"parameters": [value]});
    let cases = [
        ("/x/{id}", json!({}), "the path's parameter id is not declared"),
        ("/x/{id", json!({}), "the path /x/{id has a brace that is not closed"),
        ("/x", parameter(json!({"name": "a"})), "a parameter has no name or no `in`"),
        ("/x", parameter(json!({"name": "a", "in": "body"})), "the parameter a is in \"body\""),
        (
            "/x",
            parameter(json!({"name": "a", "in": "query", "style": "matrix"})),
            "the parameter a has the style \"matrix\"",
        ),
        ("/x", parameter(json!({"$ref": "#/components/nope"})), "#/components/nope leads nowhere"),
        (
            "/x",
            json!({"requestBody": {"content": {"application/json": {"schema": {"$ref": "x.yaml"}}}}}),
            "x.yaml leads out of the document's directory or origin, and is not followed",
        ),
    ];
    for (path, operation, problem) in cases {
        assert_eq!(read_with("3.1.0", path, "post", &operation).err().as_deref(), Some(problem));
    }
}
