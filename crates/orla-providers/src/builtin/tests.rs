use std::sync::{Arc, LazyLock};

use serde_json::{Map, Value as Json, json};

use orla_marketplace::rtfs::{self, TypeExpr};
use orla_marketplace::schema::{Validator, type_from_json_schema};
use orla_marketplace::{
    Call, CapabilityManifest, CapabilityMarketplace, JsonText, Limits, LocalCapability, Payload,
    ProviderType,
};
use orla_registry::{Builtin, CapabilityRegistry};

use super::source::registration;
use super::{LocalExecutor, registration_of, registrations};

fn market() -> CapabilityMarketplace {
    let market = CapabilityMarketplace::new(Limits::default());
    market.register_executor(Arc::new(LocalExecutor)).unwrap();
    let mut builder = market.builder(Limits::default());
    for registration in registrations() {
        builder.capability(registration.clone()).unwrap();
    }
    market.replace(builder.build());
    market
}

async fn call(market: &CapabilityMarketplace, id: &str, input: &str) -> Result<String, String> {
    let input = Payload::from_json(JsonText::parse(input.to_owned()).unwrap());
    let outcome = market.call(Call::to(id).with(input)).await.map_err(|error| error.to_string())?;
    Ok(outcome.structured.unwrap().json().unwrap().to_string())
}

#[tokio::test]
async fn a_builtin_is_called_like_anything_else() {
    let market = market();
    assert_eq!(call(&market, "math.add", r#"{"a":1,"b":2}"#).await.unwrap(), "3");
    assert_eq!(call(&market, "math__add", r#"{"b":2.5,"a":1}"#).await.unwrap(), "3.5");
    // Beside the threads that serve.
    let long = format!(r#"{{"text":"{}"}}"#, "ab ".repeat(20_000));
    assert_eq!(call(&market, "text.length", &long).await.unwrap(), "60000");
    // Integers stay exact all the way.
    let exact = r#"{"a":18446744073709551616,"b":1}"#;
    assert_eq!(call(&market, "math.add", exact).await.unwrap(), "18446744073709551617");
}

#[tokio::test]
async fn an_error_says_everything_that_is_wrong_with_the_arguments() {
    let market = market();
    let cases = [
        (
            "math.add",
            r#"{"a":"x","c":1}"#,
            "math__add: invalid input: missing required property \"b\"; input.a: \
             expected a number, got \"x\"; unknown property \"c\" (there are a, b)",
        ),
        ("math.divide", r#"{"a":1,"b":0}"#, "math__divide failed: a quotient by zero has no value"),
        (
            "math.power",
            r#"{"base":10,"exponent":1000000}"#,
            "math__power reached a limit: the number would be more than 10000 digits",
        ),
        (
            "json.parse",
            r#"{"text":"[1,]"}"#,
            "json__parse failed: text: $[1]: expected a value, got ']' (line 1, column 4)",
        ),
    ];
    for (id, input, expected) in cases {
        assert_eq!(call(&market, id, input).await.unwrap_err(), expected);
    }
}

#[tokio::test]
async fn an_unknown_builtin_is_reported_as_missing() {
    let market = CapabilityMarketplace::new(Limits::default());
    market.register_executor(Arc::new(LocalExecutor)).unwrap();
    let provider = ProviderType::Local(LocalCapability::new("math.ad"));
    market.register_capability(CapabilityManifest::new("sum", "Adds.", provider)).unwrap();
    assert_eq!(call(&market, "sum", "{}").await.unwrap_err(), "there is no built-in named math.ad");
}

#[tokio::test]
async fn a_type_of_ones_own_is_held_to() {
    let market = CapabilityMarketplace::new(Limits::default());
    market.register_executor(Arc::new(LocalExecutor)).unwrap();
    let mut registration = registration_of("math.add").unwrap().clone();
    registration.manifest.id = "small.add".to_owned();
    let schema = json!({"type": "object", "properties": {"a": {"maximum": 9}}});
    registration.manifest.input_schema = Some(type_from_json_schema(&schema));
    market.register_capability(registration).unwrap();
    assert_eq!(call(&market, "small.add", r#"{"a":9,"b":1}"#).await.unwrap(), "10");
    let error = call(&market, "small.add", r#"{"a":10,"b":1}"#).await.unwrap_err();
    assert_eq!(error, "small__add: invalid input: input.a: expected at most 9, got 10");
}

/// Returns a schema of a built-in, compiled once.
fn validators() -> &'static [(&'static Builtin, Validator, Validator)] {
    static ALL: LazyLock<Vec<(&'static Builtin, Validator, Validator)>> = LazyLock::new(|| {
        let compiled = |schema: Option<TypeExpr>| Validator::compile(&schema.unwrap()).unwrap();
        let of = |builtin: &'static Builtin| {
            let manifest = registration(builtin).manifest;
            (builtin, compiled(manifest.input_schema), compiled(manifest.output_schema))
        };
        CapabilityRegistry.builtins().map(of).collect()
    });
    &ALL
}

#[test]
fn every_schema_is_one_and_fits_the_examples() {
    for (builtin, input, output) in validators() {
        for example in builtin.examples {
            assert_eq!(input.check(example.input, builtin.name), Ok(()));
            assert_eq!(output.check(example.output, builtin.name), Ok(()));
        }
        assert!(registration(builtin).manifest.is_idempotent(), "{}", builtin.name);
    }
}

/// What [`CapabilityExecutor::checks_types`] promises, with any one argument other than in the examples.
#[test]
fn inputs_and_outputs_conform_to_the_declared_types() {
    let values = [
        json!(null),
        json!(true),
        json!(0),
        json!(-1),
        json!(3),
        json!(3.0),
        json!(2.5),
        json!(1e300),
        json!(""),
        json!("a"),
        json!("days"),
        json!("2026-11-20"),
        json!([]),
        json!([1, 2]),
        json!(["a", "b"]),
        json!([[1], ["a"]]),
        json!([{"a": 1}]),
        json!({}),
        json!({"a": 1}),
        json!({"a": "b"}),
    ];
    let mut wrong = Vec::new();
    for (builtin, input_type, output_type) in validators() {
        for (example, parameter) in builtin
            .examples
            .iter()
            .flat_map(|example| builtin.parameters.iter().map(move |p| (example, p)))
        {
            let example: Map<String, Json> = serde_json::from_str(example.input).unwrap();
            for value in &values {
                let mut arguments = example.clone();
                arguments.insert(parameter.name.to_owned(), value.clone());
                let input = Json::Object(arguments).to_string();
                let result = builtin.call(&rtfs::json::value_from_json(&input).unwrap());
                let admitted = input_type.check(&input, "input");
                if admitted.is_err() && result.is_ok() {
                    wrong.push(format!("{} takes {input}: {admitted:?}", builtin.name));
                }
                if let Ok(value) = result {
                    let output = rtfs::json::value_to_json(&value).unwrap();
                    if let Err(violations) = output_type.check(&output, "output") {
                        wrong.push(format!("{} gives of {input}: {violations:?}", builtin.name));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
