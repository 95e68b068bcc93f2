//! Bundles a document of several files into one tree. Pure: the caller reads the files.
//!
//! Every file that a reference leads to becomes a member of [`FILES`] in the document's root. Every
//! reference between files becomes one within that tree, so that the rest of the import handles a single
//! document. A file that cannot be read, or must not be, affects only the operations that refer to it.
//!
//! # Bounds
//!
//! The number of files, their bytes, and their weight once aliases of YAML are expanded. Files are below
//! the document's directory, or have its origin if it has an address. No other file is ever read.

use std::collections::{BTreeMap, HashSet};

use percent_encoding::{CONTROLS, percent_decode_str, utf8_percent_encode};
use serde_json::{Map, Value as Json};
use sha2::{Digest, Sha256};
use url::Url;

use super::document::{Document, FILES, step, tree};

/// The maximum number of files of one document.
const MAX_FILES: usize = 10_000;
/// The maximum total size of a document and its files.
pub(super) const MAX_BYTES: usize = 64 * 1024 * 1024;
/// The maximum total weight of the trees: the bytes of their texts, and 64 for each node.
const MAX_WEIGHT: usize = 256 * 1024 * 1024;

/// A document, some of whose files may not have been read yet.
pub(super) struct Bundle {
    /// The address of the document; without one, no file is read.
    at: Option<Url>,
    root: Json,
    files: Map<String, Json>,
    /// The reasons why other files are missing.
    refused: BTreeMap<String, String>,
    /// The files that have to be read next, by their names.
    waiting: Vec<(String, Url)>,
    /// The names of all files, read or not.
    known: HashSet<String>,
    bytes: usize,
    weight: usize,
    /// The hash of the texts, in the order in which they were read.
    digest: Sha256,
}

impl Bundle {
    /// Parses the document itself.
    ///
    /// # Errors
    /// What is wrong with its text.
    pub(super) fn new(text: &str, at: Option<&Url>) -> Result<Self, String> {
        let mut bundle = Self {
            at: at.cloned(),
            root: Json::Null,
            files: Map::new(),
            refused: BTreeMap::new(),
            waiting: Vec::new(),
            known: HashSet::new(),
            bytes: text.len(),
            weight: 0,
            digest: Sha256::new_with_prefix(text),
        };
        let mut root = tree(text, MAX_WEIGHT)?;
        if let Some(at) = at {
            bundle.rewrite(&mut root, at, "", false);
        }
        bundle.root = root;
        Ok(bundle)
    }

    /// Returns the files to read next, by their names and with their addresses.
    pub(super) fn take_waiting(&mut self) -> Vec<(String, Url)> {
        std::mem::take(&mut self.waiting)
    }

    /// Puts back files that were taken but not read.
    pub(super) fn wait_for(&mut self, files: Vec<(String, Url)>) {
        self.waiting.splice(0..0, files);
    }

    /// Returns how many more bytes may be read.
    pub(super) fn remaining(&self) -> usize {
        MAX_BYTES.saturating_sub(self.bytes)
    }

    /// Adds a file, or the reason why it was not read.
    pub(super) fn add(&mut self, name: String, at: &Url, text: Result<String, String>) {
        let read = text.and_then(|text| {
            self.bytes += text.len();
            self.digest.update(&text);
            tree(&text, MAX_WEIGHT.saturating_sub(self.weight))
        });
        match read {
            Ok(mut file) => {
                let prefix = format!("/{FILES}/{}", step(&name));
                self.rewrite(&mut file, at, &prefix, false);
                self.files.insert(name, file);
            }
            Err(problem) => {
                self.refused.insert(name, problem);
            }
        }
    }

    /// Returns the document.
    ///
    /// # Errors
    /// It is not an OpenAPI document.
    pub(super) fn finish(mut self) -> Result<Document, String> {
        if let Json::Object(root) = &mut self.root
            && !self.files.is_empty()
        {
            root.insert(FILES.to_owned(), self.files.into());
        }
        let digest = hex::encode(self.digest.finalize());
        Document::of(self.root, self.refused, digest)
    }

    /// Rewrites the references of a file at `at` as references within the bundle, where the file has the place
    /// `prefix`. The members of a value with `names` are not keywords.
    fn rewrite(&mut self, value: &mut Json, at: &Url, prefix: &str, names: bool) {
        self.weight += 64;
        match value {
            Json::Object(members) => {
                for (key, value) in members {
                    self.weight += key.len();
                    match value {
                        Json::String(reference) if key == "$ref" && !names => {
                            *reference = self.reference(reference, at, prefix);
                        }
                        _ if !names && is_data(key) => {}
                        _ => self.rewrite(value, at, prefix, !names && has_names(key)),
                    }
                }
            }
            Json::Array(items) => {
                items.iter_mut().for_each(|item| self.rewrite(item, at, prefix, false));
            }
            Json::String(text) => self.weight += text.len(),
            Json::Null | Json::Bool(_) | Json::Number(_) => {}
        }
    }

    fn reference(&mut self, reference: &str, at: &Url, prefix: &str) -> String {
        let (file, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let within = |prefix: &str| format!("#{}{fragment}", utf8_percent_encode(prefix, ENCODED));
        let is_pointer = fragment.is_empty() || fragment.starts_with('/');
        if !is_pointer {
            return reference.to_owned();
        }
        if file.is_empty() {
            return within(prefix);
        }
        let Some((document, Ok(mut target))) = self.at.as_ref().map(|own| (own, at.join(file))) else {
            return reference.to_owned();
        };
        target.set_fragment(None);
        if target == *document {
            return within("");
        }
        let Some(name) = name(document, &target) else { return reference.to_owned() };
        let place = within(&format!("/{FILES}/{}", step(&name)));
        if self.known.len() < MAX_FILES {
            if self.known.insert(name.clone()) {
                self.waiting.push((name, target));
            }
        } else if !self.known.contains(&name) {
            let problem = format!("the document refers to more than {MAX_FILES} files");
            self.refused.insert(name, problem);
        }
        place
    }
}

/// Characters that a percent-encoded fragment cannot contain.
const ENCODED: &percent_encoding::AsciiSet = &CONTROLS.add(b'%');

/// Returns the name of a file: its path from the document's directory, or its path if the document has
/// an address. `None` for a file that must not be read.
fn name(document: &Url, target: &Url) -> Option<String> {
    if document.scheme() != target.scheme() || target.query().is_some() {
        return None;
    }
    let path = match document.scheme() {
        "file" => {
            let directory = document.path().rsplit_once('/')?.0;
            target.path().strip_prefix(directory)?.strip_prefix('/')?
        }
        _ if document.origin() == target.origin() => target.path(),
        _ => return None,
    };
    percent_decode_str(path).decode_utf8().ok().map(Into::into)
}

/// Returns whether the member of this name holds data or extensions, in which `$ref` is not a reference.
fn is_data(key: &str) -> bool {
    matches!(key, "example" | "examples" | "default" | "enum" | "const") || key.starts_with("x-")
}

/// Returns whether the document's author chooses the names of the members of this member.
fn has_names(key: &str) -> bool {
    matches!(
        key,
        "properties"
            | "patternProperties"
            | "dependentSchemas"
            | "$defs"
            | "definitions"
            | "schemas"
            | "parameters"
            | "responses"
            | "requestBodies"
            | "headers"
            | "pathItems"
            | "securitySchemes"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns the names of the files that a document needs, and its references within the bundle.
    fn bundled(root: &Json) -> (Vec<String>, Json) {
        let at = Url::parse("file:///api/v1/root.yml").unwrap();
        let mut bundle = Bundle::new(&root.to_string(), Some(&at)).unwrap();
        let wanted = bundle.take_waiting().into_iter().map(|(name, _)| name).collect();
        (wanted, bundle.root)
    }

    #[test]
    fn references_between_files_become_references_within_the_document() {
        let files = "#/x-orla-files";
        for (reference, becomes, wanted) in [
            ("#/a", "#/a".to_owned(), ""),
            ("root.yml#/a", "#/a".to_owned(), ""),
            ("x.yml", format!("{files}/x.yml"), "x.yml"),
            ("./o/x%20y.yml#/p~1q", format!("{files}/o~1x y.yml/p~1q"), "o/x y.yml"),
            ("o/../x.yml#/", format!("{files}/x.yml/"), "x.yml"),
            ("../x.yml", "../x.yml".to_owned(), ""),
            ("/etc/passwd", "/etc/passwd".to_owned(), ""),
            ("file:///api/v10/x.yml", "file:///api/v10/x.yml".to_owned(), ""),
            ("https://a.example/x.yml", "https://a.example/x.yml".to_owned(), ""),
            ("x.yml#anchor", "x.yml#anchor".to_owned(), ""),
        ] {
            let (names, root) = bundled(&json!({"openapi": "3.1.0", "paths": {"$ref": reference}}));
            assert_eq!(root["paths"]["$ref"], becomes, "{reference}");
            assert_eq!(names.join(","), wanted, "{reference}");
        }
    }

    #[test]
    fn references_in_data_are_ignored() {
        let reference = json!({"$ref": "x.yml"});
        let (names, _) = bundled(&json!({
            "example": reference, "examples": {"a": reference}, "default": reference, "x-code": [reference],
            "enum": [reference], "properties": {"$ref": {"type": "string"}},
        }));
        assert!(names.is_empty(), "{names:?}");
        let (names, _) = bundled(&json!({"properties": {"example": reference, "enum": reference}}));
        assert_eq!(names, ["x.yml"]);
    }

    #[test]
    fn files_may_refer_to_each_other_and_each_is_read_once() {
        let at = Url::parse("file:///api/root.yml").unwrap();
        let root = r#"{"openapi": "3.1.0", "paths": {"$ref": "a.yml#/p"}}"#;
        let mut bundle = Bundle::new(root, Some(&at)).unwrap();
        let mut read = Vec::new();
        loop {
            let waiting = bundle.take_waiting();
            if waiting.is_empty() {
                break;
            }
            for (name, url) in waiting {
                let other = if name == "a.yml" { "b.yml" } else { "a.yml" };
                let text =
                    format!("p: {{/x: {{$ref: '{other}#/p'}}, /own: {{$ref: '#/q'}}}}\nq: {name}");
                bundle.add(name.clone(), &url, Ok(text));
                read.push(name);
            }
        }
        assert_eq!(read, ["a.yml", "b.yml"]);
        let document = bundle.finish().unwrap();
        let (paths, _) = document.resolve(&document.root["paths"]).unwrap();
        let own = document.resolve(&paths["/own"]).unwrap();
        assert_eq!(own, (&json!("a.yml"), Some("/x-orla-files/a.yml/q".to_owned())));
        let (other, _) = document.resolve(&paths["/x"]).unwrap();
        assert_eq!(document.resolve(&other["/x"]).unwrap().0, paths);
    }
}
