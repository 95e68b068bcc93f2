//! An OpenAPI document gives capabilities that can be called and warnings that say where, or an error.
#![no_main]

use std::collections::HashSet;

use libfuzzer_sys::fuzz_target;
use orla_marketplace::HttpCapability;
use orla_marketplace::schema::Validator;
use orla_providers::http;
use orla_providers::openapi::{Location, OpenApiSettings, import_text};

fuzz_target!(|text: &str| {
    let mut settings =
        OpenApiSettings::new(Location::Url("https://docs.example/openapi.json".to_owned()));
    settings.security.insert("key".to_owned(), "user:password".to_owned());
    let Ok(imported) = import_text(text, &settings) else { return };
    let mut ids = HashSet::new();
    for registration in &imported.registrations {
        let manifest = &registration.manifest;
        assert!(ids.insert(manifest.id.as_str()), "{} comes twice", manifest.id);
        assert!(!manifest.description.is_empty());
        for schema in [&manifest.input_schema, &manifest.output_schema].into_iter().flatten() {
            match Validator::compile(schema) {
                Ok(validator) => drop(validator.check("{}", "input")),
                // Patterns of the document are kept. A schema whose patterns cannot be enforced is only shown.
                Err(error) => assert!(error.problem.contains("regular expression"), "{error}"),
            }
        }
        let endpoint: &HttpCapability = manifest.provider.settings().expect("an endpoint");
        http::check(endpoint).expect("requests can be made");
    }
    for warning in &imported.warnings {
        assert!(warning.place.starts_with('#') && !warning.problem.is_empty());
    }
});
