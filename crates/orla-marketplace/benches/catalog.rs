//! What a catalogue of 10,000 capabilities costs: `cargo bench -p orla-marketplace --features testing --bench catalog`.
//!
//! Every capability has a schema of its own, as an import of API descriptions gives it: four parameters,
//! described.

#![expect(clippy::print_stdout, reason = "a bench prints its table")]
#![expect(clippy::unwrap_used, reason = "a bench that fails should stop")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use orla_marketplace::schema::type_from_json_schema;
use orla_marketplace::testing::{Canned, marketplace};
use orla_marketplace::{CapabilityManifest, CapabilityMarketplace, Catalog, Limits};
use serde_json::json;

const COUNT: usize = 10_000;
const SEARCHES: u32 = 200;
const NOUNS: [&str; 20] = [
    "issue",
    "pull request",
    "invoice",
    "customer",
    "message",
    "calendar",
    "event",
    "file",
    "folder",
    "user",
    "team",
    "project",
    "ticket",
    "payment",
    "order",
    "product",
    "report",
    "document",
    "contact",
    "webhook",
];
const VERBS: [&str; 10] =
    ["create", "list", "get", "update", "delete", "search", "archive", "export", "share", "assign"];

fn main() {
    let market = marketplace(Limits::default(), []);
    let manifests: Vec<CapabilityManifest> = (0..COUNT).map(manifest).collect();
    let (catalog, registered) = register(&market, manifests.clone());
    row("registration of all", registered);
    row("the same again, after a reload", {
        market.replace(catalog);
        register(&market, manifests).1
    });
    let catalog = market.snapshot();
    let ids: Vec<&str> = catalog.entries().iter().map(|entry| entry.manifest.id.as_str()).collect();
    let began = Instant::now();
    for id in &ids {
        black_box(catalog.get(id).unwrap());
    }
    row("look-up of one", began.elapsed() / u32::try_from(ids.len()).unwrap());
    row("first search (makes the index)", search(&catalog, "create invoice"));
    let mut worst = Duration::ZERO;
    let began = Instant::now();
    for n in 0..SEARCHES {
        let (noun, verb) = (NOUNS[n as usize % NOUNS.len()], VERBS[n as usize % VERBS.len()]);
        worst = worst.max(search(&catalog, &format!("{verb} a {noun} of service {n}")));
    }
    row("search, mean", began.elapsed() / SEARCHES);
    row("search, worst", worst);
    row("search for the beginning of words", search(&catalog, "s"));
    row("search for a misspelt word", search(&catalog, "calandar"));
    let began = Instant::now();
    black_box(catalog.similar("service77_creat_invoice"));
    row("names near to one that is not there", began.elapsed());
}

fn manifest(n: usize) -> CapabilityManifest {
    let (noun, verb) = (NOUNS[n % NOUNS.len()], VERBS[n / NOUNS.len() % VERBS.len()]);
    let id = format!("service{}.{verb}_{}_{n}", n / 200, noun.replace(' ', "_"));
    let mut manifest = Canned::Echoes.manifest(&id);
    manifest.description =
        format!("{verb}s one {noun} of service {}, with all that belongs to it, number {n}.", n / 200);
    let schema = json!({
        "type": "object",
        "properties": {
            "id": {"type": "string", "minLength": 1, "description": format!("The {noun}'s id, field {n}.")},
            "page": {"type": "integer", "minimum": 1, "description": "Which page of results."},
            "state": {"enum": ["open", "closed", "all"], "description": format!("Only such {noun}s.")},
            "labels": {"type": "array", "items": {"type": "string"}, "description": "Labels that it has."},
        },
        "required": ["id"],
    });
    manifest.input_schema = Some(type_from_json_schema(&schema));
    manifest
}

fn register(market: &CapabilityMarketplace, manifests: Vec<CapabilityManifest>) -> (Catalog, Duration) {
    let began = Instant::now();
    let mut builder = market.builder(Limits::default());
    for manifest in manifests {
        builder.capability(manifest).unwrap();
    }
    let catalog = builder.build();
    (catalog, began.elapsed())
}

fn search(catalog: &Catalog, words: &str) -> Duration {
    let began = Instant::now();
    black_box(catalog.search(words, 10));
    began.elapsed()
}

fn row(what: &str, time: Duration) {
    println!("{what:<38} {:>10.3} ms", time.as_secs_f64() * 1e3);
}
