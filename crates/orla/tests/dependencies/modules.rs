//! The modules of a crate as a graph.
//!
//! The graph is read from the sources: `mod` and `use` items, and paths that begin with `crate` or `super`. Tests and the
//! arguments of macros are left out. A name that a module imports leads to its definition, so a re-export hides no arrow.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use syn::visit::{self, Visit};

/// A module's path below the root of its crate, which is empty.
type Name = Vec<String>;

/// A file or folder that names something in another one beside it, such as `mcp/http` in `mcp/session`.
pub(crate) type Arrow = (String, String);

/// The imports of one module, by name, and all paths in it that lead into its crate.
#[derive(Default)]
struct Module {
    imports: BTreeMap<String, Name>,
    paths: BTreeSet<Name>,
}

/// The modules of one crate.
#[derive(Default)]
pub(crate) struct Modules(BTreeMap<Name, Module>);

impl Modules {
    /// Reads a crate whose root is this file.
    pub(crate) fn read(root: &Path) -> Self {
        let mut modules = Self::default();
        modules.file(root, Vec::new());
        modules
    }

    fn file(&mut self, path: &Path, name: Name) {
        let text =
            std::fs::read_to_string(path).unwrap_or_else(|err| panic!("{}: {err}", path.display()));
        let file = syn::parse_file(&text).unwrap_or_else(|err| panic!("{}: {err}", path.display()));
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let parent = path.parent().expect("a source file is in a folder");
        let below =
            if ["lib", "main", "mod"].contains(&stem) { parent.to_owned() } else { parent.join(stem) };
        self.items(&file.items, name, &below);
    }

    fn items(&mut self, items: &[syn::Item], name: Name, below: &Path) {
        let mut reader = Reader { name: name.clone(), module: self.0.remove(&name).unwrap_or_default() };
        for item in items {
            match item {
                syn::Item::Mod(child) if !is_test(&child.attrs) => {
                    let stem = child.ident.to_string();
                    let child_name = [name.as_slice(), std::slice::from_ref(&stem)].concat();
                    let beside = below.join(format!("{stem}.rs"));
                    let folder = below.join(&stem);
                    match &child.content {
                        Some((_, items)) => self.items(items, child_name, &folder),
                        None if beside.exists() => self.file(&beside, child_name),
                        None => self.file(&folder.join("mod.rs"), child_name),
                    }
                }
                syn::Item::Mod(_) => {}
                item => reader.visit_item(item),
            }
        }
        self.0.insert(name, reader.module);
    }

    /// Returns the module that defines the target of a path.
    fn resolve(&self, path: &[String], depth: usize) -> Name {
        let mut at = Name::new();
        for (index, segment) in path.iter().enumerate() {
            let child = [at.as_slice(), std::slice::from_ref(segment)].concat();
            if self.0.contains_key(&child) {
                at = child;
                continue;
            }
            let imported = self.0.get(&at).and_then(|module| module.imports.get(segment));
            if let Some(imported) = imported.filter(|_| depth < 8) {
                return self.resolve(&[imported.as_slice(), &path[index + 1..]].concat(), depth + 1);
            }
            break;
        }
        at
    }

    /// Returns the arrows between sibling files and folders. A folder has all arrows of its modules.
    /// There is no arrow between a module and its own children.
    pub(crate) fn arrows(&self) -> BTreeSet<Arrow> {
        let mut arrows = BTreeSet::new();
        for (from, module) in &self.0 {
            for path in &module.paths {
                let to = self.resolve(path, 0);
                let common = from.iter().zip(&to).take_while(|(from, to)| from == to).count();
                if common < from.len() && common < to.len() {
                    arrows.insert((from[..=common].join("/"), to[..=common].join("/")));
                }
            }
        }
        arrows
    }

    fn is_folder(&self, unit: &str) -> bool {
        let name: Name = unit.split('/').map(str::to_owned).collect();
        self.0.keys().any(|module| module.len() > name.len() && module.starts_with(&name))
    }

    /// Returns the members of each circle of these arrows that has a folder among its members.
    pub(crate) fn circles(&self, arrows: &BTreeSet<Arrow>) -> BTreeSet<BTreeSet<String>> {
        let reach = |from: &str| {
            let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
            while let Some(at) = open.pop() {
                for (_, to) in arrows.iter().filter(|(from, _)| from == at) {
                    if reached.insert(to.as_str()) {
                        open.push(to);
                    }
                }
            }
            reached
        };
        let units: BTreeSet<&str> = arrows.iter().map(|(from, _)| from.as_str()).collect();
        let reached: BTreeMap<&str, _> = units.into_iter().map(|unit| (unit, reach(unit))).collect();
        let circle = |unit: &str| -> BTreeSet<String> {
            let with = reached[unit]
                .iter()
                .filter(|other| reached.get(**other).is_some_and(|back| back.contains(unit)));
            with.map(ToString::to_string).collect()
        };
        let circles = reached.keys().map(|unit| circle(unit));
        circles.filter(|circle| circle.iter().any(|unit| self.is_folder(unit))).collect()
    }
}

/// Collects the paths of one module.
struct Reader {
    name: Name,
    module: Module,
}

impl Reader {
    /// Returns the path from the root of the crate, if it leads into the crate.
    fn absolute(&self, path: &[String]) -> Option<Name> {
        let mut at = match path.first()?.as_str() {
            "crate" => Name::new(),
            "self" | "super" => self.name.clone(),
            _ => return None,
        };
        let mut rest = path;
        while let [first, more @ ..] = rest {
            match first.as_str() {
                "crate" | "self" => {}
                "super" => drop(at.pop()),
                _ => break,
            }
            rest = more;
        }
        at.extend_from_slice(rest);
        Some(at)
    }

    fn import(&mut self, before: &[String], tree: &syn::UseTree) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.import(&with(&path.ident), &path.tree),
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(before, tree)),
            syn::UseTree::Glob(_) => self.name_of(before, None),
            syn::UseTree::Name(name) if name.ident == "self" => {
                self.name_of(before, before.last().cloned());
            }
            syn::UseTree::Name(name) => self.name_of(&with(&name.ident), Some(name.ident.to_string())),
            syn::UseTree::Rename(name) if name.ident == "self" => {
                self.name_of(before, Some(name.rename.to_string()));
            }
            syn::UseTree::Rename(name) => {
                self.name_of(&with(&name.ident), Some(name.rename.to_string()));
            }
        }
    }

    fn name_of(&mut self, path: &[String], name: Option<String>) {
        // Without a prefix, the path leads to another crate or to a child of this module.
        let child = || [self.name.as_slice(), path].concat();
        let target = self.absolute(path).unwrap_or_else(child);
        if let Some(name) = name {
            self.module.imports.insert(name, target.clone());
        }
        self.module.paths.insert(target);
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes = match item {
            syn::Item::Fn(item) => &item.attrs,
            syn::Item::Impl(item) => &item.attrs,
            syn::Item::Use(item) => &item.attrs,
            _ => &Vec::new(),
        };
        if !is_test(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.import(&[], &item.tree);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Name = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if let Some(path) = self.absolute(&segments).filter(|_| segments[0] != "self") {
            self.module.paths.insert(path);
        }
        visit::visit_path(self, path);
    }
}

/// Returns whether it is compiled for tests alone.
fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Path>().is_ok_and(|what| what.is_ident("test"))
    })
}
