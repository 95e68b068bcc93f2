//! The suite of the seam against the engines of this crate.

#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect has failed")]

use std::sync::Arc;

use orla_state::testing::{Model, conforms, operations};
use orla_state::{Embedded, Limits, MAX_CHANGES, Memory, StateStore};
use proptest::prelude::*;

const LIMITS: Limits = Limits { value: 3 << 20, batch: 8 << 20, changes: MAX_CHANGES };

#[tokio::test(flavor = "multi_thread")]
async fn the_memory_engine_conforms() {
    conforms(Arc::new(Memory::new(LIMITS)), "suite/", LIMITS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_embedded_engine_conforms() {
    let directory = tempfile::tempdir().unwrap();
    let store = Arc::new(Embedded::open_with(directory.path(), LIMITS).unwrap());
    conforms(Arc::<Embedded>::clone(&store), "suite/", LIMITS).await;
    store.close().await;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_memory_engine_is_a_map(operations in operations()) {
        runtime().block_on(async {
            let (store, mut model) = (Memory::default(), Model::default());
            for operation in operations {
                model.compare(&store, operation).await;
            }
            model.compare_all(&store).await;
        });
    }

    #[test]
    fn the_embedded_engine_is_a_map_also_when_it_is_opened_again(operations in operations(), again in 0_usize..40) {
        runtime().block_on(async {
            let directory = tempfile::tempdir().unwrap();
            let (mut store, mut model) = (Embedded::open(directory.path()).unwrap(), Model::default());
            for (at, operation) in operations.into_iter().enumerate() {
                if at == again {
                    store.close().await;
                    store = Embedded::open(directory.path()).unwrap();
                }
                model.compare(&store, operation).await;
            }
            model.compare_all(&store).await;
        });
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}
