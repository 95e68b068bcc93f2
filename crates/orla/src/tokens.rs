//! Where the tokens of sign-ins at servers are kept: in the store of tokens.

use std::sync::Arc;

use orla_oauth::{Change, Secret, TokenStore};
use orla_providers::sign_in::Tokens;
use orla_secrets::SecretStore;

/// Returns the user's store; without a home directory, tokens end with the process.
pub(crate) fn stored() -> Tokens {
    match SecretStore::tokens_of_user() {
        Some(store) => Tokens::new(Arc::new(Store(store))),
        None => Tokens::default(),
    }
}

struct Store(SecretStore);

impl TokenStore for Store {
    fn get(&self, name: &str) -> Result<Option<Secret>, String> {
        let value = self.0.get(name).map_err(|err| err.to_string())?;
        Ok(value.map(|value| Secret::new(value.expose())))
    }

    fn set(&self, name: &str, value: &Secret) -> Result<(), String> {
        self.0.set(name, value.expose()).map(drop).map_err(|err| err.to_string())
    }

    fn update(&self, name: &str, change: Change<'_>) -> Result<(), String> {
        let changed = self.0.update(name, |old| {
            let new = change(old.map(|old| Secret::new(old.expose())));
            new.map(|new| new.expose().into())
        });
        changed.map_err(|err| err.to_string())
    }

    fn remove(&self, name: &str) -> Result<bool, String> {
        self.0.remove(name).map_err(|err| err.to_string())
    }
}
