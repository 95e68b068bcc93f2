//! Compiles text to code.
//!
//! Forms are lowered to a small tree in which names are resolved and macros expanded ([`lower`] and its
//! neighbours). The last use of each local is determined ([`liveness`]), and code for the register
//! machine is generated ([`generate`]). Macros run on the machine while the text is compiled.

mod annotations;
mod bind;
mod calls;
mod control;
mod flow;
mod functions;
mod generate;
mod inline;
pub(crate) mod ir;
mod liveness;
mod lower;
mod macros;
mod matching;
mod modules;
mod operands;
mod special;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use crate::builtins::{self, Builtin};
use crate::check;
use crate::limits::Limits;
use crate::machine::program::{Global, Program, Proto};
use crate::syntax::{Diagnostic, Diagnostics, NodeId, Source, Span, Tree};
use crate::types::Definitions;
pub(crate) use lower::wrong_arity;
use lower::{Frame, Lower};

/// The maximum nesting of code; data may be deeper.
pub(crate) const MAX_CODE_DEPTH: usize = 1_000;

/// A function that returns the text of a module by name.
pub type Modules = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// The options of compilation.
#[derive(Clone)]
pub struct Options {
    /// The source of modules for `import`.
    pub modules: Option<Modules>,
    /// A program whose definitions this one can use and replace, as in an interactive session. Run the
    /// new program with the values of the old one: [`Run::continuing`](crate::Run::continuing).
    pub base: Option<Arc<Program>>,
    /// Whether a later program may replace definitions. Calls then look them up each time.
    pub open: bool,
    /// Names whose values are passed to the run.
    pub inputs: Vec<String>,
    /// The maximum number of steps of all macros of the text together, including each form that they
    /// write. A text that needs more gets a diagnostic of kind `limit`.
    pub macro_steps: u64,
}

impl Default for Options {
    fn default() -> Self {
        let macro_steps = Limits::default().steps;
        Self { modules: None, base: None, open: false, inputs: Vec::new(), macro_steps }
    }
}

/// Compiles a text.
///
/// # Errors
/// All that is wrong with it, up to 20. What a program does wrong when it runs (an unknown name, a
/// wrong number of arguments) is found by the run, where `catch` sees it, or by the checker.
pub fn compile(source: &Source, options: &Options) -> Result<Arc<Program>, Diagnostics> {
    compile_without(source, options, None)
}

/// What makes code faster and nothing else. Tests leave it out and compare.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Optimization {
    /// The last read of a local takes its value: see [`liveness`].
    Moves,
    /// Functions of the library are loops in place: see [`inline`].
    Inlining,
}

fn compile_without(
    source: &Source,
    options: &Options,
    left_out: Option<Optimization>,
) -> Result<Arc<Program>, Diagnostics> {
    let tree = Tree::read(source.clone())?;
    let mut session = Session::new(options.base.as_deref(), options.clone());
    session.left_out = left_out;
    let roots = tree.roots.clone();
    let mut unit = Unit::new(&mut session, tree);
    if let Some(base) = &options.base {
        unit.lower.enter((*base.scope).clone());
    }
    let entry = unit.compile(&roots);
    let Lower { errors, aliases, imported, macros, .. } = unit.lower;
    if !errors.is_empty() {
        return Err(Diagnostics(errors));
    }
    let of_modules = std::mem::take(&mut session.macros);
    let mut program = session.finish(entry);
    program.scope = Arc::new(Scope { aliases, imported, macros, of_modules });
    Ok(Arc::new(program))
}

/// Compiles a text for the checker. Returns all errors, the checker's findings, and the top-level forms
/// that have mistakes, in order.
///
/// # Errors
/// The text cannot be read.
pub(crate) fn compile_checked(
    source: &Source,
    options: &Options,
    state: check::State,
) -> Result<(Vec<Diagnostic>, check::State, Vec<Span>), Diagnostics> {
    let tree = Tree::read(source.clone())?;
    let mut session = Session::new(options.base.as_deref(), options.clone());
    session.checking = Some(Box::new(state));
    let roots = tree.roots.clone();
    let mut broken: Vec<_> = roots.iter().map(|&root| tree.span(root)).collect();
    let mut unit = Unit::new(&mut session, tree);
    if let Some(base) = &options.base {
        unit.lower.enter((*base.scope).clone());
    }
    unit.compile(&roots);
    let Lower { errors, .. } = unit.lower;
    broken.retain(|form| {
        errors.iter().any(|error| form.start <= error.span.start && error.span.start < form.end)
    });
    let state = session.checking.take().map(|state| *state).unwrap_or_default();
    Ok((errors, state, broken))
}

/// Returns the names of the modules that a text imports, so that a host can fetch them beforehand.
pub fn imports(source: &Source) -> Vec<String> {
    let Ok(tree) = Tree::read(source.clone()) else { return Vec::new() };
    if !tree.has_name("import") {
        return Vec::new();
    }
    let mut open = tree.roots.clone();
    let mut names = Vec::new();
    while let Some(node) = open.pop() {
        if let [head, name, ..] = tree.kids(node)
            && tree.is_symbol(*head, "import")
            && let Some(name) = tree.symbol(*name).or(tree.keyword(*name))
            && !names.iter().any(|known| known == name)
        {
            names.push(name.to_owned());
        }
        open.extend(tree.kids(node));
    }
    names
}

/// Returns the names of the special forms, which are not functions.
pub fn special_forms() -> &'static [&'static str] {
    special::NAMES
}

/// Returns the part of the standard library that is written in RTFS. It is compiled once.
pub(crate) fn prelude() -> &'static Arc<Program> {
    static PRELUDE: OnceLock<Arc<Program>> = OnceLock::new();
    PRELUDE.get_or_init(|| {
        let source = Source::new(builtins::PRELUDE_NAME, builtins::PRELUDE);
        let tree =
            Tree::read(source).unwrap_or_else(|errors| panic!("the prelude does not read: {errors}"));
        let mut session = Session::with(&[], None, Options::default());
        session.is_prelude = true;
        let roots = tree.roots.clone();
        let mut unit = Unit::new(&mut session, tree);
        unit.lower.is_prelude = true;
        let entry = unit.compile(&roots);
        let (_, _, errors) = unit.take_back();
        assert!(errors.is_empty(), "the prelude does not compile: {}", Diagnostics(errors));
        Arc::new(session.finish(entry))
    })
}

/// Returns the functions of the prelude by name.
pub(crate) fn prelude_functions() -> &'static HashMap<&'static str, u32> {
    static FUNCTIONS: OnceLock<HashMap<&'static str, u32>> = OnceLock::new();
    FUNCTIONS.get_or_init(|| {
        let globals = prelude().globals.iter();
        globals.filter_map(|global| Some((&*global.name, global.code?))).collect()
    })
}

/// The state of compilation, which all texts of a program share.
pub(crate) struct Session {
    /// The functions of the prelude.
    shared: &'static [Arc<Proto>],
    /// The functions that are being compiled, whose numbers follow.
    protos: Vec<Option<Arc<Proto>>>,
    globals: Vec<Global>,
    by_name: HashMap<String, u32>,
    /// The number of definitions of each global in this program.
    definitions: Vec<u32>,
    modules: HashMap<String, Module>,
    /// The macros of modules, by `module/name`.
    macros: HashMap<String, macros::Macro>,
    /// The definitions of the module whose macro is compiled: names in the macro's forms refer to these
    /// at every use.
    home: std::collections::HashSet<String>,
    loading: Vec<String>,
    types: Definitions,
    /// Counts generated names.
    fresh: u32,
    /// The remaining steps of macros; `None` once expansion has ended.
    macro_steps: Option<u64>,
    options: Options,
    is_prelude: bool,
    /// For tests.
    left_out: Option<Optimization>,
    /// The state of the checker, if it is active.
    checking: Option<Box<check::State>>,
    /// The number of initially known names: those of an interactive session so far, and inputs.
    predefined: usize,
}

/// The names of a text that are not values. A later entry of an interactive session continues with them.
#[derive(Clone, Default)]
pub(crate) struct Scope {
    /// The aliases of modules.
    aliases: HashMap<String, String>,
    /// The imported names.
    imported: HashMap<String, u32>,
    macros: HashMap<String, macros::Macro>,
    /// The macros of modules, by `module/name`.
    of_modules: HashMap<String, macros::Macro>,
}

impl Scope {
    pub(crate) fn macro_names(&self) -> impl Iterator<Item = &str> {
        self.macros.keys().chain(self.of_modules.keys()).map(String::as_str)
    }
}

struct Module {
    /// The exported names; `None` exports all.
    exports: Option<Vec<String>>,
}

impl Session {
    fn new(base: Option<&Program>, options: Options) -> Self {
        Self::with(&prelude().own, base, options)
    }

    fn with(shared: &'static [Arc<Proto>], base: Option<&Program>, options: Options) -> Self {
        let globals = base.map_or_else(Vec::new, |base| base.globals.clone());
        let by_name =
            globals.iter().enumerate().map(|(at, global)| (global.name.to_string(), at as u32));
        let by_name = by_name.collect();
        let inputs = options.inputs.clone();
        let modules = base.map_or(&[][..], |base| &base.modules).iter();
        let modules = modules.map(|name| (name.clone(), Module { exports: None }));
        let protos = base.map_or(&[][..], |base| &base.own);
        let mut session = Self {
            shared,
            protos: protos.iter().cloned().map(Some).collect(),
            by_name,
            definitions: vec![0; globals.len()],
            globals,
            modules: modules.collect(),
            macros: base.map_or_else(HashMap::new, |base| base.scope.of_modules.clone()),
            home: std::collections::HashSet::new(),
            loading: Vec::new(),
            types: base.map_or_else(Definitions::default, |base| (*base.types).clone()),
            fresh: 0,
            macro_steps: Some(options.macro_steps),
            options,
            is_prelude: false,
            left_out: None,
            checking: None,
            predefined: 0,
        };
        for name in inputs {
            session.global(&name);
        }
        session.predefined = session.globals.len();
        session
    }

    /// Reserves the number of a function.
    fn reserve(&mut self) -> u32 {
        self.protos.push(None);
        (self.shared.len() + self.protos.len() - 1) as u32
    }

    /// Defines the function of a reserved number.
    fn define(&mut self, p: u32, proto: Proto) {
        self.protos[p as usize - self.shared.len()] = Some(Arc::new(proto));
    }

    /// Returns the global of this name.
    fn global(&mut self, name: &str) -> u32 {
        if let Some(&known) = self.by_name.get(name) {
            return known;
        }
        let at = self.globals.len() as u32;
        self.by_name.insert(name.to_owned(), at);
        self.globals.push(Global { name: name.into(), doc: None, params: Vec::new(), code: None });
        self.definitions.push(0);
        at
    }

    /// Records that a definition was lowered; `code` if it is a function that captures nothing.
    fn defined(&mut self, global: u32, code: Option<u32>) {
        let at = global as usize;
        self.definitions[at] += 1;
        let once = self.definitions[at] == 1 && !self.options.open;
        self.globals[at].code = if once { code } else { None };
    }

    fn export(&self, module: &str, name: &str) -> Option<u32> {
        let global = self.by_name.get(&format!("{module}/{name}")).copied();
        global.filter(|_| self.exports(module, name))
    }

    /// Returns the macro that a module exports by this name.
    fn exported_macro(&self, module: &str, name: &str) -> Option<&macros::Macro> {
        self.macros.get(&format!("{module}/{name}")).filter(|_| self.exports(module, name))
    }

    fn exports(&self, module: &str, name: &str) -> bool {
        let Some(Module { exports }) = self.modules.get(module) else { return false };
        exports.as_ref().is_none_or(|exports| exports.iter().any(|export| export == name))
    }

    fn builtin(&self, name: &str) -> Option<Builtin> {
        if self.is_prelude {
            return builtins::native_named(name).map(Builtin::Native);
        }
        if name.starts_with('%') {
            return None;
        }
        builtins::lookup(name)
    }

    fn proto(&self, p: u32) -> Option<&Proto> {
        match (p as usize).checked_sub(self.shared.len()) {
            Some(own) => self.protos.get(own)?.as_deref(),
            None => Some(&self.shared[p as usize]),
        }
    }

    pub(crate) fn select(&self, p: u32, n: usize) -> Option<u32> {
        let proto = self.proto(p)?;
        if proto.arities.is_empty() {
            return proto.accepts(n).then_some(p);
        }
        let exact = proto.arities.iter().find(|(arity, rest, _)| !rest && usize::from(*arity) == n);
        exact
            .or(proto.arities.iter().find(|(arity, rest, _)| *rest && n >= usize::from(*arity)))
            .map(|entry| entry.2)
    }

    fn has_rest(&self, p: u32) -> bool {
        self.proto(p).is_none_or(|proto| proto.rest)
    }

    pub(crate) fn arity_text(&self, p: u32) -> String {
        prelude().arity_text(p)
    }

    /// Returns whether a top-level name has a value before the program begins.
    pub(crate) fn is_predefined(&self, global: u32) -> bool {
        (global as usize) < self.predefined
    }

    /// Returns whether a top-level name has one definition, which nothing replaces.
    pub(crate) fn is_defined_once(&self, global: u32) -> bool {
        !self.options.open
            && !self.is_predefined(global)
            && self.definitions.get(global as usize) == Some(&1)
    }

    pub(crate) fn global_name(&self, global: u32) -> &str {
        &self.globals[global as usize].name
    }

    pub(crate) fn types(&self) -> &Definitions {
        &self.types
    }

    /// Returns the name of a function of the standard library that is written in RTFS.
    pub(crate) fn name_of_code(&self, code: u32) -> Option<&str> {
        if code as usize >= self.shared.len() {
            return None;
        }
        self.proto(code).map(|proto| &*proto.name).filter(|name| !name.is_empty())
    }

    fn finish(self, entry: u32) -> Program {
        let left = self.macro_steps.unwrap_or_default();
        Program {
            macro_steps: self.options.macro_steps.saturating_sub(left),
            prelude: self.shared.len() as u32,
            shared: self.shared,
            own: self.protos.into_iter().flatten().collect(),
            globals: self.globals,
            entry,
            modules: self.modules.into_keys().collect(),
            types: Arc::new(self.types),
            scope: Arc::default(),
            fingerprint: OnceLock::new(),
        }
    }
}

/// One text that is being compiled.
struct Unit<'s> {
    lower: Lower<'s>,
}

impl<'s> Unit<'s> {
    fn new(session: &'s mut Session, tree: Tree) -> Self {
        let lower = Lower {
            session,
            tree,
            arena: ir::Arena::default(),
            functions: Vec::new(),
            checks: Vec::new(),
            errors: Vec::new(),
            scope: Vec::new(),
            frames: vec![Frame::default()],
            recur: None,
            depth: 0,
            prefix: String::new(),
            aliases: HashMap::new(),
            imported: HashMap::new(),
            definitions: HashMap::new(),
            macros: HashMap::new(),
            is_prelude: false,
            fresh: Vec::new(),
            faults: Vec::new(),
            matches: Vec::new(),
            unknown: 0,
            is_param: false,
            inlined: 0,
        };
        Self { lower }
    }

    /// Compiles the forms, which become the body of a function; returns its number.
    fn compile(&mut self, roots: &[NodeId]) -> u32 {
        let lower = &mut self.lower;
        lower.scan(roots);
        let span = Span { start: 0, end: lower.tree.source.text().len() as u32 };
        let body = lower.body(roots, span);
        let proto = lower.session.reserve();
        let vars = lower.frames.last().map_or(0, |frame| frame.vars);
        let arity = ir::Arity { params: Vec::new(), rest: false, body, proto, vars, span };
        let name = String::new();
        lower.functions.push(ir::Function { name, captures: Vec::new(), arities: vec![arity], proto });
        if let Some(mut checking) = lower.session.checking.take() {
            lower.matches.sort_unstable();
            let view = check::View {
                arena: &lower.arena,
                functions: &lower.functions,
                checks: &lower.checks,
                faults: &lower.faults,
                matches: &lower.matches,
                session: lower.session,
                source: &lower.tree.source,
            };
            checking.walk(&view, body, vars);
            lower.session.checking = Some(checking);
        }
        if lower.errors.is_empty() {
            generate::all(lower);
        }
        lower.errors.sort_by_key(|error| error.span.start);
        lower.errors.truncate(crate::syntax::MAX_ERRORS);
        proto
    }

    fn take_back(self) -> (Tree, HashMap<String, macros::Macro>, Vec<Diagnostic>) {
        (self.lower.tree, self.lower.macros, self.lower.errors)
    }
}

impl Lower<'_> {
    /// Continues with the names of earlier texts.
    fn enter(&mut self, scope: Scope) {
        (self.aliases, self.imported, self.macros) = (scope.aliases, scope.imported, scope.macros);
    }

    /// Declares the names that these forms define, so that the forms can refer to each other.
    fn scan(&mut self, roots: &[NodeId]) {
        let mut open = roots.to_vec();
        open.reverse();
        while let Some(node) = open.pop() {
            let kids = self.tree.kids(node);
            let head = kids.first().and_then(|&head| self.tree.symbol(head));
            match head {
                Some("def" | "defn" | "defstruct" | "defmacro") => {
                    let Some(name) = kids.get(1).and_then(|&name| self.tree.symbol(name)) else {
                        continue;
                    };
                    let (name, head) = (name.to_owned(), head.unwrap_or_default().to_owned());
                    let details = self.details(node);
                    self.definitions.entry(name.clone()).or_default().push(node);
                    if self.prefix.is_empty() {
                        // The name has a new meaning from here on.
                        self.imported.remove(&name);
                        self.macros.remove(&name);
                    }
                    if head != "defmacro" {
                        let global = self.session.global(&format!("{}{name}", self.prefix)) as usize;
                        self.session.globals[global].doc = details.0;
                        self.session.globals[global].params = details.1;
                        self.session.globals[global].code = None;
                    }
                    if head == "def" {
                        let kids = self.tree.kids(node);
                        open.extend(kids[2..].iter().rev());
                    }
                }
                Some("fn" | "quote" | "quasiquote" | "module") => {}
                _ => open.extend(self.tree.kids(node).iter().rev()),
            }
        }
    }

    /// Returns the documentation and the parameters of a definition.
    fn details(&self, node: NodeId) -> (Option<Arc<str>>, Vec<Arc<str>>) {
        let kids = self.tree.kids(node);
        let mut doc =
            kids.get(2).and_then(|&doc| self.tree.string(doc)).filter(|_| kids.len() > 3).map(Arc::from);
        let metadata =
            kids.get(1).and_then(|&name| self.tree.metadata(name)).or(self.tree.metadata(node));
        if let Some(metadata) = metadata {
            for pair in self.tree.forms(metadata).chunks_exact(2) {
                if self.tree.keyword(pair[0]) == Some("doc") {
                    doc = self.tree.string(pair[1]).map(Arc::from).or(doc);
                }
            }
        }
        let is_params = |&&kid: &&NodeId| self.tree.kind(kid) == crate::syntax::Kind::Vector;
        let params = match kids.iter().skip(2).find(is_params) {
            Some(&params) if self.tree.is_symbol(kids[0], "defn") => {
                self.tree.kids(params).iter().map(|&param| Arc::from(self.text(param))).collect()
            }
            _ => Vec::new(),
        };
        (doc, params)
    }
}
