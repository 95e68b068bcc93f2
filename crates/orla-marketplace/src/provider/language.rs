//! The provider of the capabilities `rtfs` and `rtfs_check`.

use std::any::Any;

use super::{ContentSource, CustomProvider};

/// The provider of a language capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// `rtfs`
    Run,
    /// `rtfs_check`
    Check,
}

impl CustomProvider for Language {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn kind(&self) -> &'static str {
        "rtfs"
    }

    fn is_internal(&self) -> bool {
        true
    }

    fn is_pure(&self) -> bool {
        *self == Self::Check
    }

    fn is_journaled(&self) -> bool {
        *self == Self::Run
    }

    fn reaches_others(&self) -> bool {
        true
    }

    fn content(&self) -> ContentSource {
        ContentSource::Program
    }
}
