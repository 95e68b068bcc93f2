//! Tasks: calls that outlive their callers.
