use orla_marketplace::id::Pattern;
use orla_marketplace::schema::json_schema_of;

use super::super::settings::Location;
use super::*;

const PETS: &str = r##"
openapi: 3.0.3
info: {title: "Swagger Petstore - v3.0", version: 1.2.3}
servers: [{url: "https://pets.example/{v}", variables: {v: {default: v2}}}]
security: [{key: []}]
paths:
  /pets:
    parameters:
      - {name: limit, in: query, schema: {type: integer}}
    get:
      operationId: listPets
      summary: Lists pets
      description: Lists pets, a page at a time.
      tags: [pets, public]
      parameters:
        - {name: limit, in: query, required: true, schema: {type: integer, maximum: 100}}
      responses: {200: {description: ok}}
    post:
      summary: Makes a pet
      tags: [pets]
      requestBody: {content: {application/json: {schema: {type: object, properties: {name: {type: string}}}}}}
  /pets/{petId}:
    get: {operationId: listPets, deprecated: true, parameters: [{name: petId, in: path, schema: {}}]}
    delete: {description: no such parameter}
    put:
      servers: [{url: https://other.example}]
      security: []
      parameters: [{name: petId, in: path, schema: {}}]
components:
  securitySchemes:
    key: {type: apiKey, in: header, name: X-Key}
"##;

fn import(
    text: &str,
    settings: &OpenApiSettings,
    source: &str,
    at: Option<&Url>,
) -> Result<Imported, String> {
    super::import(&Document::parse(text)?, settings, source, at)
}

fn settings() -> OpenApiSettings {
    OpenApiSettings::new(Location::File("pets.yaml".into()))
}

fn imported(settings: &OpenApiSettings) -> Imported {
    import(PETS, settings, "pets.yaml", None).unwrap()
}

fn http(registration: &Registration) -> &HttpCapability {
    registration.manifest.provider.settings().unwrap()
}

fn ids(imported: &Imported) -> Vec<&str> {
    imported.registrations.iter().map(|registration| registration.manifest.id.as_str()).collect()
}

#[test]
fn each_operation_is_a_capability_and_what_cannot_be_one_costs_itself() {
    let mut settings = settings();
    settings.security.insert("key".into(), "s3cret".into());
    settings.headers.insert("X-Trace".into(), "{on}".into());
    settings.timeout = Some(Duration::from_secs(5));
    let imported = imported(&settings);
    assert_eq!(
        ids(&imported),
        [
            "swagger_petstore_v3_0.listPets",
            "swagger_petstore_v3_0.post_pets",
            "swagger_petstore_v3_0.listPets_2",
            "swagger_petstore_v3_0.put_pets_petId",
        ]
    );
    let warnings: Vec<_> = imported.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "#/paths/~1pets~1{petId}/delete: the path's parameter petId is not declared; the operation is left out"
        ]
    );

    let list = &imported.registrations[0];
    assert_eq!(list.manifest.description, "Lists pets, a page at a time.");
    assert_eq!(list.manifest.version, "1.2.3");
    assert_eq!(list.manifest.metadata[TITLE], "Lists pets");
    assert_eq!(list.manifest.metadata[TAGS], "pets, public");
    assert!(list.manifest.is_idempotent());
    let input = json_schema_of(list.manifest.input_schema.as_ref().unwrap());
    assert_eq!(input["properties"]["limit"], json!({"type": "integer", "maximum": 100}));
    assert_eq!(input["required"], json!(["limit"]));
    let provenance = list.manifest.provenance.as_ref().unwrap();
    assert_eq!((provenance.source.as_str(), provenance.content_hash.as_str()), ("pets.yaml", ""));
    assert!(provenance.custody_chain[0].starts_with("OpenAPI document sha256:"));
    assert_eq!(list.policy.upstream.as_deref(), Some("https://pets.example"));
    assert_eq!(list.policy.timeout, Some(Duration::from_secs(5)));
    let sent = http(list);
    assert_eq!((sent.base_url.as_str(), sent.timeout_ms), ("https://pets.example/v2", 5000));
    let secrets: Vec<_> = sent.options.credentials.iter().map(|found| found.value.as_str()).collect();
    assert_eq!(secrets, ["s3cret", "{on}"]);
    assert!(!format!("{:?} {settings:?}", list.manifest).contains("s3cret"));

    assert!(!imported.registrations[1].manifest.is_idempotent());
    assert_eq!(imported.registrations[2].manifest.description, "Deprecated. GET /pets/{petId}");
    let put = http(&imported.registrations[3]);
    assert_eq!(put.base_url, "https://other.example");
    assert_eq!(put.options.credentials.len(), 1, "it needs no key");
}

#[test]
fn operations_are_chosen_by_tag_id_and_path() {
    use Selection::{Operation, Path, Tag};
    let cases: [(Vec<Selection>, Vec<Selection>, &[&str]); 5] = [
        (vec![Tag(Pattern::new("pub*"))], vec![], &["p.listPets"]),
        (vec![Operation(Pattern::new("post_*"))], vec![], &["p.post_pets"]),
        (vec![Path(Pattern::new("GET /pets/*"))], vec![], &["p.listPets"]),
        (vec![], vec![Path(Pattern::new("/pets/*")), Tag(Pattern::new("public"))], &["p.post_pets"]),
        (vec![Tag(Pattern::new("none"))], vec![], &[]),
    ];
    for (include, exclude, expected) in cases {
        let settings = OpenApiSettings { name: Some("P".into()), include, exclude, ..settings() };
        assert_eq!(ids(&imported(&settings)), expected, "{settings:?}");
    }
}

#[test]
fn a_configured_address_replaces_the_documents_and_missing_credentials_are_reported() {
    let mut settings = settings();
    settings.base_url = Some("http://localhost:9/api".into());
    let imported = imported(&settings);
    assert!(imported.registrations.iter().all(|found| http(found).base_url == "http://localhost:9/api"));
    assert_eq!(
        imported.warnings.last().unwrap().to_string(),
        "#/components/securitySchemes/key: operations need it, and no credential is configured for it: calls go out without one"
    );
    let nothing = import("openapi: 3.1.0", &settings, "x", None).unwrap();
    assert_eq!(
        nothing.warnings[0].to_string(),
        "#/paths: no operation is here, or none that is included"
    );
}

#[test]
fn a_document_from_elsewhere_does_not_decide_alone_where_credentials_go() {
    let mut settings = settings();
    settings.security.insert("key".into(), "s3cret".into());
    let warnings = |settings: &OpenApiSettings, at: &str, text: &str| {
        let imported = import(text, settings, "x", Some(&Url::parse(at).unwrap())).unwrap();
        imported.warnings.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let told = "#/servers: credentials go to https://pets.example, which the document names; set base_url to be sure where they go";
    assert!(warnings(&settings, "https://docs.example/x", PETS).contains(&told.to_owned()));
    assert!(!warnings(&settings, "https://pets.example/x", PETS).contains(&told.to_owned()));
    let private = PETS.replace("https://pets.example/{v}", "http://10.0.0.1/{v}");
    assert!(warnings(&settings, "https://docs.example/x", &private).contains(
        &"#/paths/~1pets/get: its server http://10.0.0.1 is a private address; set base_url to it if that is intended; the operation is left out".to_owned()
    ));
    settings.base_url = Some("http://10.0.0.1".into());
    assert_eq!(
        warnings(&settings, "https://docs.example/x", &private).len(),
        1,
        "an operation without its parameter"
    );
}

#[test]
fn there_is_a_bound_for_operations() {
    let item = json!({"get": {}, "put": {}});
    let paths: serde_json::Map<_, _> = (0..6_000).map(|at| (format!("/p{at}"), item.clone())).collect();
    let document = json!({"openapi": "3.1.0", "servers": [{"url": "http://x"}], "paths": paths});
    let imported = import(&document.to_string(), &settings(), "x", None).unwrap();
    assert_eq!(imported.registrations.len(), MAX_OPERATIONS);
    assert_eq!(
        imported.warnings[0].to_string(),
        "#/paths/~1p5000/get: from here on all is left out: 10000 operations are imported at most"
    );
}

#[test]
fn names_are_made_of_titles() {
    let cases = [
        ("GitHub v3 REST API", "github_v3_rest_api"),
        ("Ünïcode & Co.", "ünïcode_co"),
        ("a title that is far too long for the beginning of an id", "a_title_that_is_far_too_long_for"),
        ("!!!", ""),
        ("my-api", "my-api"),
    ];
    for (title, name) in cases {
        assert_eq!(provider_name(title), name);
    }
}
