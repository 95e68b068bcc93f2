//! The documents of registries about signatures, with any content: each is read or refused, and no archive is signed by them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use orla_packages::environment::Requirement;
use orla_packages::signature::{Verifier, npm_bundles, pypi_bundles, pypi_provenance};

thread_local! {
    static VERIFIER: Verifier = Verifier::new(None).expect("the root of trust");
}

fuzz_target!(|bytes: &[u8]| {
    let digest = "0".repeat(64);
    let archive = Requirement::parse(&format!("tool@1.0.0 {digest}")).expect("a requirement");
    for bundles in [npm_bundles(bytes), pypi_bundles(bytes)] {
        let Ok(bundles) = bundles else { continue };
        let signer = VERIFIER.with(|verifier| verifier.verify(&bundles, &archive));
        assert!(!matches!(signer, Ok(Some(_))));
    }
    let _ = pypi_provenance(bytes, &digest);
});
