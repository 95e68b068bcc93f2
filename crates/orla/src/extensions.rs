//! The additions of an embedding program to the server: executors, kinds of provider and capabilities
//! (RTFS capability system §5.2, §8).

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};

use orla_marketplace::rtfs::text::nearest;
use orla_marketplace::{CapabilityExecutor, CustomProvider, Registration};
use parking_lot::Mutex;
use serde_json::Value;

/// Everything that was added. Cloning it shares the kinds.
#[derive(Clone, Default)]
pub(crate) struct Extensions {
    pub(crate) executors: Vec<Arc<dyn CapabilityExecutor>>,
    pub(crate) capabilities: Vec<Registration>,
    kinds: BTreeMap<String, Arc<Kind>>,
}

/// A kind of provider that a configuration can name.
struct Kind {
    factory: Box<Factory>,
    /// The providers in use, by their settings: an unchanged configuration keeps its providers over a reload.
    made: Mutex<HashMap<String, Weak<dyn CustomProvider>>>,
}

type Factory = dyn Fn(Value) -> Result<Arc<dyn CustomProvider>, String> + Send + Sync;

/// The reason why there is no provider.
#[derive(Debug, PartialEq)]
pub(crate) enum Unusable {
    /// No kind has this name.
    Kind(String),
    /// The kind refuses these settings.
    Settings(String),
}

impl Extensions {
    /// Adds a kind of provider. The last one with a name counts.
    pub(crate) fn kind(
        &mut self,
        name: &str,
        factory: impl Fn(Value) -> Result<Arc<dyn CustomProvider>, String> + Send + Sync + 'static,
    ) {
        let kind = Kind { factory: Box::new(factory), made: Mutex::default() };
        self.kinds.insert(name.to_owned(), Arc::new(kind));
    }

    /// Returns the provider of a kind with these settings; the same one as long as it is in use.
    ///
    /// # Errors
    ///
    /// Returns an error if the kind is unknown, or refuses the settings.
    pub(crate) fn provider(
        &self,
        kind: &str,
        settings: Value,
    ) -> Result<Arc<dyn CustomProvider>, Unusable> {
        match self.kinds.get(kind) {
            Some(kind) => kind.provider(settings).map_err(Unusable::Settings),
            None => Err(Unusable::Kind(self.unknown(kind))),
        }
    }

    fn unknown(&self, kind: &str) -> String {
        let names = || self.kinds.keys().map(String::as_str);
        let known: Vec<&str> = names().collect();
        match (nearest(kind, names()), known.as_slice()) {
            (Some(near), _) => format!("unknown kind {kind:?}, did you mean {near}?"),
            (None, []) => format!("unknown kind {kind:?}: this program adds no kinds of its own"),
            (None, known) => format!("unknown kind {kind:?}; this program adds {}", known.join(", ")),
        }
    }
}

impl Kind {
    fn provider(&self, settings: Value) -> Result<Arc<dyn CustomProvider>, String> {
        let key = settings.to_string();
        // Every entry is complete at any moment, so a panic leaves no partial entry.
        let mut made = self.made.lock();
        if let Some(provider) = made.get(&key).and_then(Weak::upgrade) {
            return Ok(provider);
        }
        // A factory that panics refuses its settings; a reload must not end the server.
        let provider = catch_unwind(AssertUnwindSafe(|| (self.factory)(settings)))
            .unwrap_or_else(|_| Err("reading these settings panicked".to_owned()))?;
        made.retain(|_, provider| provider.strong_count() > 0);
        made.insert(key, Arc::downgrade(&provider));
        Ok(provider)
    }
}

impl fmt::Debug for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Extensions")
            .field("executors", &self.executors.len())
            .field("capabilities", &self.capabilities.len())
            .field("kinds", &self.kinds.keys())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::any::Any;

    use serde_json::json;

    use super::*;

    #[derive(Debug)]
    struct Word(String);

    impl CustomProvider for Word {
        fn as_any(&self) -> &dyn Any {
            self
        }

        fn kind(&self) -> &'static str {
            "word"
        }
    }

    fn extensions() -> Extensions {
        let mut extensions = Extensions::default();
        extensions.kind("word", |settings| match settings["word"].as_str() {
            Some(word) => Ok(Arc::new(Word(word.to_owned()))),
            None => Err("word: missing, and required".to_owned()),
        });
        extensions
    }

    #[test]
    fn equal_settings_share_a_provider_while_it_is_used() {
        let extensions = extensions();
        let first = extensions.provider("word", json!({"word": "a"})).unwrap();
        let again = extensions.clone().provider("word", json!({"word": "a"})).unwrap();
        let other = extensions.provider("word", json!({"word": "b"})).unwrap();
        assert!(Arc::ptr_eq(&first, &again) && !Arc::ptr_eq(&first, &other));
        assert_eq!(first.as_any().downcast_ref::<Word>().unwrap().0, "a");
        drop((first, again, other));
        extensions.provider("word", json!({"word": "c"})).unwrap();
        assert_eq!(extensions.kinds["word"].made.lock().len(), 1);
    }

    #[test]
    fn a_factory_that_panics_refuses_the_settings() {
        let mut extensions = extensions();
        extensions.kind("broken", |_| panic!("a mistake of the factory"));
        let refused = extensions.provider("broken", json!({})).unwrap_err();
        assert_eq!(refused, Unusable::Settings("reading these settings panicked".to_owned()));
        assert!(extensions.provider("word", json!({"word": "a"})).is_ok());
    }

    #[test]
    fn an_unknown_kind_and_invalid_settings_are_distinct_errors() {
        let provider = |kind: &str| extensions().provider(kind, json!({})).unwrap_err();
        let unknown = |text: &str| Unusable::Kind(text.to_owned());
        assert_eq!(provider("word"), Unusable::Settings("word: missing, and required".to_owned()));
        assert_eq!(provider("wrod"), unknown("unknown kind \"wrod\", did you mean word?"));
        assert_eq!(provider("queue"), unknown("unknown kind \"queue\"; this program adds word"));
        let none = Extensions::default().provider("word", json!({})).unwrap_err();
        assert_eq!(none, unknown("unknown kind \"word\": this program adds no kinds of its own"));
    }
}
