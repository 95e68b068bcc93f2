//! The built-in capabilities: trusted functions on values that cannot do I/O
//! (RTFS capability system §2.3).
//!
//! A [`Builtin`] is a total function from named arguments to a value, with a name, a description,
//! types and examples. The [`CapabilityRegistry`] finds it by its name.
//!
//! # How it works
//!
//! Each group of functions is a file with a static table, sorted by name; `groups` is the sorted table
//! of groups. Nothing is built at startup, and a lookup consists of two binary searches without
//! allocation. A function reads its arguments through `arguments`, whose errors name the argument.
//!
//! # Bounds
//!
//! An input contains at most [`MAX_ITEMS`] values, [`MAX_DEPTH`] deep, and [`MAX_TEXT`] bytes of text,
//! and an output about as much. A function that multiplies (a power, a repetition, an alias of YAML, a
//! product of sets) computes the size of its result first. A function that searches has a budget of
//! steps. See `limits`.
//!
//! # What is deliberately absent
//!
//! Nothing here knows the marketplace, a clock, a source of randomness, a file or a socket: a function
//! takes such data (an instant, a seed) as an argument. `clippy.toml` forbids the corresponding parts of
//! the standard library, a test pins every crate below this one, and another test runs each function
//! under a filter that ends the process at its first system call.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod arguments;
mod builtin;
mod error;
mod groups;
mod limits;
mod number;
mod pattern;
mod schema;

pub use builtin::{Builtin, Example, Parameter};
pub use error::BuiltinError;
pub use limits::{MAX_DEPTH, MAX_ITEMS, MAX_TEXT};

use rtfs::Value;

/// Finds the built-in capabilities (RTFS capability system §2.3).
#[derive(Clone, Copy, Debug, Default)]
pub struct CapabilityRegistry;

impl CapabilityRegistry {
    /// Returns the built-in with this name, such as `math.add`. Allocates nothing.
    pub fn get(&self, name: &str) -> Option<&'static Builtin> {
        let (group, _) = name.split_once('.')?;
        let at = groups::ALL.binary_search_by_key(&group, |(group, _)| group).ok()?;
        let (_, builtins) = groups::ALL.get(at)?;
        let at = builtins.binary_search_by_key(&name, |builtin| builtin.name).ok()?;
        builtins.get(at)
    }

    /// Returns every built-in, in the order of their names.
    pub fn builtins(&self) -> impl Iterator<Item = &'static Builtin> {
        groups::ALL.iter().flat_map(|(_, builtins)| *builtins)
    }

    /// Returns whether an input is so small that any built-in processes it in negligible time.
    pub fn is_quick(&self, input: &Value) -> bool {
        limits::depth_fits(input).is_ok() && limits::Budget::small().weigh(input).is_ok()
    }

    /// Returns the version of the functions: that of this crate.
    pub fn version(&self) -> &'static str {
        env!("CARGO_PKG_VERSION")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_builtin_is_found_by_its_name_and_nothing_else_is() {
        let names: Vec<_> = CapabilityRegistry.builtins().map(|builtin| builtin.name).collect();
        assert!(names.is_sorted_by(|a, b| a < b), "the tables are sorted: {names:?}");
        for name in names {
            assert_eq!(CapabilityRegistry.get(name).map(|builtin| builtin.name), Some(name));
        }
        for name in ["", ".", "math", "math.", ".add", "math.add.", "math.addd", "zzz.zzz", "add"] {
            assert!(CapabilityRegistry.get(name).is_none(), "{name}");
        }
    }
}
