//! The storage of tokens.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::secret::Secret;

/// A function that changes a stored text.
pub type Change<'a> = &'a mut dyn FnMut(Option<Secret>) -> Option<Secret>;

/// Stores texts by name. Each operation is atomic, also between processes. It may block.
pub trait TokenStore: Send + Sync {
    /// Returns the text with this name.
    ///
    /// # Errors
    /// Why the store cannot be read.
    fn get(&self, name: &str) -> Result<Option<Secret>, String>;

    /// Stores a text and replaces the previous one.
    ///
    /// # Errors
    /// Why the store cannot be written.
    fn set(&self, name: &str, value: &Secret) -> Result<(), String>;

    /// Replaces a text by the result of `change`; `None` removes it. No other change happens in between,
    /// so `change` must be short.
    ///
    /// # Errors
    /// Why the store cannot be read or written.
    fn update(&self, name: &str, change: Change<'_>) -> Result<(), String>;

    /// Removes a text; returns whether there was one.
    ///
    /// # Errors
    /// Why the store cannot be written.
    fn remove(&self, name: &str) -> Result<bool, String>;
}

/// A store in memory that ends with the process.
#[derive(Debug, Default)]
pub struct MemoryStore(Mutex<HashMap<String, Secret>>);

impl TokenStore for MemoryStore {
    fn get(&self, name: &str) -> Result<Option<Secret>, String> {
        Ok(self.0.lock().get(name).cloned())
    }

    fn set(&self, name: &str, value: &Secret) -> Result<(), String> {
        self.0.lock().insert(name.to_owned(), value.clone());
        Ok(())
    }

    fn update(&self, name: &str, change: Change<'_>) -> Result<(), String> {
        let mut texts = self.0.lock();
        let old = texts.remove(name);
        if let Some(new) = change(old) {
            texts.insert(name.to_owned(), new);
        }
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<bool, String> {
        Ok(self.0.lock().remove(name).is_some())
    }
}
