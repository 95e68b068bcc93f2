//! `orla-VERSION-TARGET.cdx.json`: what is built into a program, as a bill of materials in the format of CycloneDX 1.6.

use serde_json::{Value, json};

use super::archive;
use super::components::{Component, Components};
use super::release::{self, Artefact, Program, Release};

pub(super) fn pack(
    release: &Release,
    program: &Program,
    components: &Components,
) -> Result<Artefact, String> {
    let orla = format!("orla {}", release.version);
    let (own, others): (Vec<_>, Vec<_>) =
        components.of(program.target.triple).partition(|(name, _)| **name == orla);
    let (_, own) = own.first().ok_or_else(|| format!("{orla} is no component of its own program"))?;
    let known = |name: &String| components.of(program.target.triple).any(|(known, _)| known == name);
    let dependencies: Vec<Value> = components
        .of(program.target.triple)
        .map(|(name, component)| {
            let needs: Vec<String> =
                component.needs.iter().filter(|need| known(need)).map(|need| address(need)).collect();
            json!({ "ref": address(name), "dependsOn": needs })
        })
        .collect();
    let listed: Vec<Value> = others.iter().map(|(name, component)| described(name, component)).collect();
    let mut subject = described(&orla, own);
    subject["type"] = json!("application");
    subject["hashes"] = json!([{ "alg": "SHA-256", "content": release::sum(&program.bytes) }]);
    subject["properties"] = json!([{ "name": "orla:target", "value": program.target.triple }]);
    let time = i64::try_from(release.time).ok().and_then(|time| jiff::Timestamp::from_second(time).ok());
    let time = time.ok_or_else(|| format!("{} is no time", release.time))?;
    let document = json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": time.to_string(),
            "component": subject,
        },
        "components": listed,
        "dependencies": dependencies,
    });
    let name = format!("{}.cdx.json", archive::name(release, program));
    Ok(Artefact { name, bytes: release::json(&document).into_bytes() })
}

fn described(name: &str, component: &Component) -> Value {
    let mut described = json!({
        "type": "library",
        "bom-ref": address(name),
        "name": component.name,
        "version": component.version,
        "purl": address(name),
    });
    if let Some(licence) = &component.licence {
        described["licenses"] = json!([{ "expression": licence }]);
    }
    if let Some(checksum) = &component.checksum {
        described["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    described
}

/// Returns the package URL of a component (`pkg:cargo/serde@1.0.0`).
fn address(name: &str) -> String {
    let (name, version) = name.split_once(' ').unwrap_or((name, ""));
    format!("pkg:cargo/{name}@{}", version.replace('+', "%2B"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_component_has_an_address() {
        assert_eq!(address("serde 1.0.0"), "pkg:cargo/serde@1.0.0");
        assert_eq!(address("toml 1.1.2+spec-1.1.0"), "pkg:cargo/toml@1.1.2%2Bspec-1.1.0");
    }
}
