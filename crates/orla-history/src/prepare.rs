//! Makes the row of a call that has ended: its data as bounded JSON without secrets. Runs on the writer's thread.

use std::collections::{BTreeSet, HashMap};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use orla_marketplace::catalog::Entry;
use orla_marketplace::{CapabilityMarketplace, JsonText, Outcome, REDACTED, Redactor};
use orla_mcp::call_result::plain_output;
use parking_lot::{Mutex, RwLock};
use serde::Deserialize;
use serde_json::Value;

use crate::Options;
use crate::call::{Body, Call, ClientInfo, Row, Running};
use crate::live::{End, LiveCall, Target};
use crate::redact::{PointerPattern, Rules, may_mark};

/// Schemas that are kept to be used again.
const MAX_SCHEMAS: usize = 1000;
/// Texts that are redacted in one call and looked for in its other texts, and their bytes. With more, none of its other texts
/// is kept.
const MAX_REDACTED: usize = 64;
const MAX_REDACTED_BYTES: usize = 16 << 10;
/// Trees of calls whose secrets are known at once. Beyond, the oldest is forgotten.
const MAX_TREES: usize = 1000;
/// Bytes of standard error that are kept.
const MAX_STDERR: usize = 64 << 10;

/// Bytes of the name of a prompt, of the address of a resource, and of the error of a request for one that are kept.
const MAX_ITEM: usize = 1000;

/// Makes rows.
pub(crate) struct Preparation {
    market: Weak<CapabilityMarketplace>,
    options: Arc<RwLock<Options>>,
    schemas: Mutex<HashMap<usize, Marked>>,
    trees: Mutex<Trees>,
}

/// The schemas of an entry that may mark members as secret.
#[derive(Clone, Default)]
struct Marked {
    entry: Weak<Entry>,
    input: Option<Arc<Value>>,
    output: Option<Arc<Value>>,
}

/// The texts that were redacted in the calls of running trees, by the outermost call.
#[derive(Default)]
struct Trees {
    all: HashMap<Arc<str>, Tree>,
    /// Counts the trees that were added.
    added: u64,
}

#[derive(Default)]
struct Tree {
    number: u64,
    texts: BTreeSet<String>,
}

impl Trees {
    /// Returns the number of the tree of an outermost call; 0 if it has none, because nothing in it was redacted yet.
    fn number_of(&self, root: &Arc<str>) -> u64 {
        self.all.get(root).map_or(0, |tree| tree.number)
    }

    /// Notes texts that were redacted in a tree.
    fn note(&mut self, root: &Arc<str>, texts: &BTreeSet<String>) {
        if !texts.is_empty() {
            self.of(root).add(texts);
        }
    }

    fn of(&mut self, root: &Arc<str>) -> &mut Tree {
        if !self.all.contains_key(root) {
            if self.all.len() >= MAX_TREES {
                let oldest = self.all.iter().min_by_key(|(_, tree)| tree.number);
                if let Some(oldest) = oldest.map(|(id, _)| Arc::clone(id)) {
                    self.all.remove(&oldest);
                }
            }
            self.added += 1;
        }
        let number = self.added;
        self.all.entry(Arc::clone(root)).or_insert_with(|| Tree { number, ..Tree::default() })
    }
}

impl Tree {
    /// Notes texts. Beyond the maximum number, texts are not kept, except for a marker that says so.
    fn add(&mut self, texts: &BTreeSet<String>) {
        for text in texts {
            if self.texts.len() > MAX_REDACTED {
                return;
            }
            self.texts.insert(text.clone());
        }
    }
}

/// The data of a call without what is redacted.
pub(crate) struct Data {
    input: Option<JsonText>,
    output: Option<JsonText>,
    /// The texts that were redacted.
    texts: BTreeSet<String>,
}

/// The replacements in the texts of one call.
struct Secrets {
    of_configuration: Arc<Redactor>,
    of_options: Arc<Redactor>,
    of_call: OfCall,
}

/// The texts that were redacted in the input or the output of a call.
enum OfCall {
    Nothing,
    /// It is looked for in all texts of the call.
    Known(Redactor),
    /// It is too much to be looked for: each text of the call is replaced as a whole.
    TooMuch,
}

impl OfCall {
    fn new(redacted: BTreeSet<String>) -> Self {
        let bytes: usize = redacted.iter().map(String::len).sum();
        match redacted.len() {
            0 => Self::Nothing,
            texts if texts > MAX_REDACTED || bytes > MAX_REDACTED_BYTES => Self::TooMuch,
            _ => Self::Known(Redactor::new(redacted)),
        }
    }
}

impl Secrets {
    fn json(&self, json: JsonText) -> JsonText {
        let json = self.of_options.json(self.of_configuration.json(json));
        match &self.of_call {
            OfCall::Nothing => json,
            OfCall::Known(redactor) => redactor.json(json),
            OfCall::TooMuch => JsonText::of(&Value::from(REDACTED)).unwrap_or_default(),
        }
    }

    /// Redacts the texts of a call that are not its data. The name of a prompt and the address of a resource are cut too, because
    /// the client has chosen them.
    fn call(&self, call: &mut Call) {
        if call.is_request() {
            for text in [&mut call.capability, &mut call.name] {
                self.text(text);
                text.truncate(text.floor_char_boundary(MAX_ITEM));
            }
        }
        self.client(&mut call.client);
        call.spans.iter_mut().for_each(|span| self.text(&mut span.name));
    }

    fn client(&self, client: &mut Option<ClientInfo>) {
        if let Some(client) = client {
            client.change(|text| self.text(text));
        }
    }

    fn text(&self, text: &mut String) {
        let of_call = match &self.of_call {
            OfCall::Nothing => None,
            OfCall::Known(redactor) => Some(redactor),
            OfCall::TooMuch => {
                REDACTED.clone_into(text);
                return;
            }
        };
        for redactor in [&*self.of_configuration, &*self.of_options].into_iter().chain(of_call) {
            if redactor.finds(text) {
                *text = redactor.text(text).into_owned();
            }
        }
    }
}

impl Preparation {
    pub(crate) fn new(market: &Arc<CapabilityMarketplace>, options: Arc<RwLock<Options>>) -> Self {
        Self {
            market: Arc::downgrade(market),
            options,
            schemas: Mutex::default(),
            trees: Mutex::default(),
        }
    }

    /// Redacts the data of calls that have ended. Notes the texts that were redacted in nested calls and in their parents:
    /// all rows of the tree are searched for them.
    ///
    /// Returns `None` for a call that `is_wanted` has no use for, if no other row depends on it either.
    pub(crate) fn redact(&self, ended: &[Arc<LiveCall>], is_wanted: &[bool]) -> Vec<Option<Data>> {
        let options = self.options.read();
        let data_of = |call: &LiveCall| attempt(|| self.data(call, &options.redact));
        let calls = ended.iter().zip(is_wanted);
        let mut data: Vec<Option<Data>> = calls
            .map(|(call, is_wanted)| {
                (*is_wanted || call.root.is_some()).then(|| data_of(call)).flatten()
            })
            .collect();
        let mut trees = self.trees.lock();
        for (call, data) in ended.iter().zip(&mut data) {
            let Some(root) = &call.root else {
                if let Some(data) = data
                    && call.has_calls.load(Ordering::Relaxed)
                {
                    trees.note(&call.id, &data.texts);
                }
                continue;
            };
            let outer = call.outer();
            if outer.clone().any(|call| call.is_forgotten.load(Ordering::Relaxed)) {
                // The call ends after its outermost one. Its row alone needs what the others had.
                let texts = outer.filter_map(|call| data_of(call)).flat_map(|data| data.texts);
                if let Some(data) = data {
                    data.texts.extend(texts);
                }
                continue;
            }
            data.iter().for_each(|data| trees.note(root, &data.texts));
            let known = trees.number_of(root);
            let unknown = |call: &&Arc<LiveCall>| call.searched_for.load(Ordering::Relaxed) != known;
            let unknown: Vec<&Arc<LiveCall>> = outer.take_while(unknown).collect();
            for data in unknown.iter().filter_map(|call| data_of(call)) {
                trees.note(root, &data.texts);
            }
            let number = trees.number_of(root);
            unknown.iter().for_each(|call| call.searched_for.store(number, Ordering::Relaxed));
        }
        data
    }

    /// Forgets the trees whose outermost call has ended.
    pub(crate) fn forget(&self, ended: &[Arc<LiveCall>]) {
        let mut trees = self.trees.lock();
        for call in ended.iter().filter(|call| call.root.is_none()) {
            trees.all.remove(&call.id);
            call.is_forgotten.store(true, Ordering::Relaxed);
        }
    }

    /// Returns what a call that runs tells of itself.
    pub(crate) fn running(&self, live: &LiveCall) -> Running {
        let mut running = live.running();
        let message = running.progress.as_mut().and_then(|progress| progress.message.as_mut());
        let is_item = matches!(live.target, Target::Item { .. });
        // Only its message and the name of an item may have texts of its data.
        let may_have_data = message.is_some() || is_item;
        let texts = if may_have_data { self.texts_so_far(live) } else { BTreeSet::new() };
        let secrets = self.secrets(&self.options.read(), texts);
        message.into_iter().for_each(|text| secrets.text(text));
        secrets.call(&mut running.call);
        running
    }

    /// Returns the texts that are redacted in a call that runs: those of its own data, and of the calls around it.
    fn texts_so_far(&self, live: &LiveCall) -> BTreeSet<String> {
        let patterns = self.options.read().redact.clone();
        let outer = live.outer().map(|call| &**call);
        std::iter::once(live).chain(outer).flat_map(|call| self.data(call, &patterns).texts).collect()
    }

    fn secrets(&self, options: &Options, of_call: BTreeSet<String>) -> Secrets {
        Secrets {
            of_configuration: self.market.upgrade().map(|market| market.redaction()).unwrap_or_default(),
            of_options: Arc::clone(&options.secrets),
            of_call: OfCall::new(of_call),
        }
    }

    /// Returns the row of a call that runs.
    pub(crate) fn row_so_far(&self, live: &LiveCall) -> Row {
        let patterns = self.options.read().redact.clone();
        let mut data = self.data(live, &patterns);
        data.texts.extend(live.outer().flat_map(|call| self.data(call, &patterns).texts));
        self.row(live, data)
    }

    /// Returns the data of a call without what is redacted.
    fn data(&self, live: &LiveCall, patterns: &[PointerPattern]) -> Data {
        let outcome = live.end.get().and_then(|End { output, .. }| output.as_ref());
        let marked = match &live.target {
            Target::Capability(entry) => self.marked(entry),
            Target::Item { .. } => Marked::default(),
        };
        let mut texts = BTreeSet::new();
        let mut redact = |json: Option<JsonText>, schema: &Option<Arc<Value>>| {
            let json = json?;
            let rules = Rules { schema: schema.as_deref(), patterns };
            let Some(done) = rules.apply(json.as_str()) else { return Some(json) };
            texts.extend(done.texts);
            JsonText::parse(done.json).ok()
        };
        let input = redact(live.input.json().ok().cloned(), &marked.input);
        let output = outcome.and_then(|outcome| plain_output(outcome).ok());
        let output = redact(output, &marked.output);
        Data { input, output, texts }
    }

    /// Returns the row of a call with this data.
    pub(crate) fn row(&self, live: &LiveCall, data: Data) -> Row {
        let options = self.options.read();
        let (notices, end) = (live.notices(), live.end.get());
        let outcome = end.and_then(|End { output, .. }| output.as_ref());
        let Data { input, output, texts: mut redacted } = data;
        let root = live.root.as_ref().unwrap_or(&live.id);
        if let Some(tree) = self.trees.lock().all.get(root) {
            redacted.extend(tree.texts.iter().cloned());
        }
        let is_redacted = !redacted.is_empty();
        let secrets = self.secrets(&options, redacted);
        let mut row = Row {
            call: live.call(),
            input: None,
            output: None,
            error: end.and_then(|end| end.error.clone()),
            notices: notices.lines,
            more_notices: notices.more,
            stderr: None,
            trace: live.trace.as_ref().map(|context| context.trace.clone()),
            replaces: live.goes_on,
        };
        // It quotes values, cut where no secret would be found any more.
        let is_item = matches!(live.target, Target::Item { .. });
        let quotes = row.call.outcome.starts_with("invalid-") || (is_item && row.call.is_failed());
        if is_redacted && quotes {
            row.error =
                Some(format!("{}: its data are not valid; some of them are secret", row.call.name));
        }
        if options.bodies {
            let body = |json: JsonText| body(&secrets.json(json), options.max_body_bytes);
            row.input = input.map(body);
            row.output = output.map(body);
            row.stderr = outcome.and_then(stderr_of);
        } else {
            (row.notices, row.more_notices) = Default::default();
        }
        let messages = row.notices.iter_mut().filter_map(|line| line.message.as_mut());
        for text in messages.chain(&mut row.error).chain(&mut row.stderr) {
            secrets.text(text);
        }
        secrets.call(&mut row.call);
        // That of a request may quote the name.
        if let Some(error) = row.error.as_mut().filter(|_| is_item) {
            error.truncate(error.floor_char_boundary(MAX_ITEM));
        }
        if let Some(stderr) = &mut row.stderr {
            stderr.truncate(stderr.floor_char_boundary(MAX_STDERR));
        }
        row
    }

    /// Returns the schemas of an entry that may mark something.
    fn marked(&self, entry: &Arc<Entry>) -> Marked {
        let mut schemas = self.schemas.lock();
        let key = Arc::as_ptr(entry) as usize;
        if let Some(known) = schemas.get(&key)
            && std::ptr::eq(known.entry.as_ptr(), Arc::as_ptr(entry))
            && known.entry.strong_count() > 0
        {
            return known.clone();
        }
        let read = |schema: JsonText| {
            let text = schema.as_str();
            may_mark(text).then(|| serde_json::from_str(text).map(Arc::new).ok()).flatten()
        };
        let made = Marked {
            entry: Arc::downgrade(entry),
            input: read(entry.input_schema()),
            output: entry.output_schema().and_then(read),
        };
        if schemas.len() >= MAX_SCHEMAS {
            schemas.clear();
        }
        schemas.insert(key, made.clone());
        made
    }
}

/// A panic costs the row of one call alone.
pub(crate) fn attempt<T>(make: impl FnOnce() -> T) -> Option<T> {
    let made = std::panic::catch_unwind(AssertUnwindSafe(make));
    if made.is_err() {
        tracing::error!("a call is left out of the history: its row could not be made");
    }
    made.ok()
}

/// Returns a JSON text within the bound.
fn body(json: &JsonText, max_bytes: usize) -> Body {
    let text = json.as_str();
    Body { text: text[..text.floor_char_boundary(max_bytes)].to_owned(), bytes: text.len() as u64 }
}

/// Returns the standard error of a call's process.
fn stderr_of(outcome: &Outcome) -> Option<String> {
    #[derive(Deserialize)]
    struct Meta {
        #[serde(rename = "orla/execution")]
        execution: Execution,
    }
    #[derive(Deserialize)]
    struct Execution {
        stderr: String,
    }
    let meta: Meta = serde_json::from_str(outcome.meta.as_ref()?.as_str()).ok()?;
    Some(meta.execution.stderr).filter(|text| !text.is_empty())
}
