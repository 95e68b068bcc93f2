//! WebAssembly components as plugins: functions that run inside the orla process, in a sandbox.
//!
//! A component exports two functions of the world in `plugin.wit`. `describe` returns the same text as
//! the `describe` of a plugin's process. `call` maps a function's name and its input as JSON to its
//! value as JSON.
//!
//! # How it works
//!
//! A component is compiled at its first use, and again when its file has changed. Calls run on Tokio's
//! threads. The component yields after every million instructions, so that a call that is dropped, at
//! its deadline or because it was cancelled, stops there. An instance that has answered is kept for the
//! next call; one that has failed or was stopped is not. An instance is only used for calls with the
//! same permissions.
//!
//! # What a component may do
//!
//! A component may compute, within limits of memory and fuel. WASI is available as far as the
//! permissions allow ([`grants`]): files below granted directories, connections to granted hosts. Clocks
//! and random numbers work. Standard output and standard error are discarded, and there are no variables
//! and no arguments.

mod grants;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use orla_marketplace::{CallContext, JsonText, ProviderStatus, millis_down};
use orla_mcp::{Ending, Fault, ServerInfo};
use orla_process::file::FileVersion;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::{Instant, sleep_until, timeout};
use wasmtime::component::{InstancePre, Linker, ResourceTable, TypedFunc};
use wasmtime::{Config, Engine, ResourceLimiter, Store, StoreLimits, StoreLimitsBuilder, Trap};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};

use super::PluginSettings;
use super::protocol::wire::{self, Failure};

/// The number of instructions after which a component yields the thread.
const YIELD: u64 = 1_000_000;
/// The maximum number of instances that are kept for the next calls.
const MAX_IDLE: usize = 64;
/// The maximum memory of all kept instances. An instance that has grown too large is not kept.
const MAX_KEPT: usize = 128 * 1024 * 1024;
/// The maximum size of a component's file: 64 MiB.
const MAX_FILE: u64 = 64 * 1024 * 1024;

/// One component.
pub(crate) struct Component {
    path: PathBuf,
    /// The base of relative paths in permissions.
    base: PathBuf,
    fuel: u64,
    memory: usize,
    startup: Duration,
    may_start: Arc<MayStart>,
    /// Allows one compilation at a time.
    loading: tokio::sync::Mutex<()>,
    state: Mutex<State>,
}

/// Decides whether a component may run. The function may block.
pub(crate) type MayStart = dyn Fn() -> Result<(), String> + Send + Sync;

/// Checks whether components can be run.
///
/// # Errors
/// Why they cannot.
pub(crate) fn check() -> Result<(), String> {
    engine().map(drop)
}

impl fmt::Debug for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Component").field("path", &self.path).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct State {
    loaded: Option<Arc<Loaded>>,
    info: Option<Arc<ServerInfo>>,
    loads: u64,
    failure: Option<String>,
    /// The version of a file that cannot be compiled, and the reason. It is not tried again before it
    /// changes.
    broken: Option<(FileVersion, String)>,
}

/// A compiled component.
struct Loaded {
    version: Option<FileVersion>,
    pre: InstancePre<Host>,
    idle: Mutex<Vec<Instance>>,
}

impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loaded").field("idle", &self.idle.lock().len()).finish_non_exhaustive()
    }
}

/// An instance, with its permissions.
struct Instance {
    permissions: Arc<[String]>,
    store: Store<Host>,
    call: TypedFunc<(String, String), (Result<String, String>,)>,
}

/// The host state of an instance.
struct Host {
    wasi: WasiCtx,
    table: ResourceTable,
    limits: Limits,
}

/// The limits of an instance, and its WASI context.
struct Limits {
    bounds: StoreLimits,
    /// The memory of all modules, in bytes.
    memory: usize,
}

impl ResourceLimiter for Limits {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let may = self.bounds.memory_growing(current, desired, maximum)?;
        if may {
            self.memory += desired.saturating_sub(current);
        }
        Ok(may)
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        self.bounds.table_growing(current, desired, maximum)
    }

    fn instances(&self) -> usize {
        self.bounds.instances()
    }

    fn tables(&self) -> usize {
        self.bounds.tables()
    }

    fn memories(&self) -> usize {
        self.bounds.memories()
    }
}

impl WasiView for Host {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

impl Component {
    /// Creates the component of these settings. Reads nothing yet.
    ///
    /// # Errors
    /// Components cannot be run.
    pub(crate) fn new(settings: &PluginSettings, may_start: Arc<MayStart>) -> Result<Self, String> {
        check()?;
        Ok(Self {
            path: settings.cwd.clone().unwrap_or_default().join(&settings.command),
            base: settings.base.clone(),
            fuel: settings.fuel,
            memory: usize::try_from(settings.memory).unwrap_or(usize::MAX),
            startup: settings.startup_timeout,
            may_start,
            loading: tokio::sync::Mutex::default(),
            state: Mutex::default(),
        })
    }

    /// Calls a function.
    ///
    /// # Errors
    /// See [`Ending`].
    pub(crate) async fn call(
        &self,
        function: &str,
        input: &JsonText,
        permissions: &Arc<[String]>,
        ctx: &CallContext,
    ) -> Result<JsonText, Ending> {
        tokio::select! {
            biased;
            answer = self.answer(function, input, permissions) => answer,
            () = ctx.scope.cancellation.cancelled() => Err(Ending::Cancelled),
            () = sleep_until(ctx.deadline) => Err(Ending::TimedOut { not_ready: None, wrong_answer: None }),
        }
    }

    async fn answer(
        &self,
        function: &str,
        input: &JsonText,
        permissions: &Arc<[String]>,
    ) -> Result<JsonText, Ending> {
        let gone = |reason| Ending::Fault(Fault::Unavailable(reason));
        let loaded = self.loaded().await.map_err(gone)?;
        let mut instance = match loaded.idle(permissions) {
            Some(instance) => instance,
            None => self.instance(&loaded, permissions).await.map_err(gone)?,
        };
        let refuel = instance.store.set_fuel(self.fuel);
        refuel.map_err(|err| gone(err.to_string()))?;
        let input = (function.to_owned(), input.as_str().to_owned());
        let answer = instance.call.call_async(&mut instance.store, input).await;
        let (answer,) = answer.map_err(|err| gone(self.ended(&err)))?;
        loaded.keep(instance);
        let failed = |kind: &str, message| {
            Ending::Fault(Fault::Failed(Failure {
                kind: kind.to_owned(),
                message,
                ..Failure::default()
            }))
        };
        let value = answer.map_err(|message| failed("", message))?;
        JsonText::parse(value).map_err(|err| failed("no-json", format!("its value is not JSON: {err}")))
    }

    /// Returns what the component serves, as far as that is known.
    pub(crate) fn info(&self) -> Option<Arc<ServerInfo>> {
        self.state().info.clone()
    }

    /// Asks the component for its functions, with these permissions. Returns whether they have changed.
    pub(crate) async fn learn(&self, permissions: &Arc<[String]>) -> bool {
        let before = self.info();
        let learnt = timeout(self.startup, self.describe(permissions)).await;
        let learnt = learnt.unwrap_or_else(|_| Err("it did not describe itself in time".to_owned()));
        let mut state = self.state();
        match learnt {
            Ok(info) => {
                state.failure = None;
                state.info = Some(Arc::new(info));
            }
            Err(reason) => state.failure = Some(reason),
        }
        before.as_deref() != state.info.as_deref()
    }

    async fn describe(&self, permissions: &Arc<[String]>) -> Result<ServerInfo, String> {
        let loaded = self.loaded().await?;
        let mut store = self.store(permissions).await?;
        let instance = loaded.pre.instantiate_async(&mut store).await;
        let instance = instance.map_err(|err| self.ended(&err))?;
        let describe = instance.get_typed_func::<(), (String,)>(&mut store, "describe");
        let describe = describe.map_err(|err| format!("it has no describe: {err}"))?;
        let (text,) = describe.call_async(&mut store, ()).await.map_err(|err| self.ended(&err))?;
        let described =
            JsonText::parse(text).map_err(|err| format!("its description is not JSON: {err}"))?;
        let (functions, _) = wire::functions(&described)
            .map_err(|err| format!("its description has no valid functions: {err}"))?;
        Ok(ServerInfo { tools: Some(functions), ..ServerInfo::default() })
    }

    /// Returns the status, with these permissions.
    pub(crate) fn status(&self, permissions: &[String]) -> ProviderStatus {
        let state = self.state();
        let mut status = ProviderStatus::default();
        status.source = Some(self.path.display().to_string());
        status.state = Some(
            match (&state.loaded, &state.failure) {
                (_, Some(_)) => "CRASHED",
                (Some(_), None) => "READY",
                (None, None) => "CREATED",
            }
            .to_owned(),
        );
        status.restarts = Some(state.loads.saturating_sub(1));
        status.last_failure.clone_from(&state.failure);
        status.sandbox = Some(grants::status(permissions, &self.base));
        status
    }

    /// Returns the compiled component of the current file.
    async fn loaded(&self) -> Result<Arc<Loaded>, String> {
        let current = || {
            let loaded = self.state().loaded.clone();
            loaded.filter(|loaded| {
                loaded.version.is_some() && loaded.version == FileVersion::of(&self.path)
            })
        };
        if let Some(loaded) = current() {
            return Ok(loaded);
        }
        // Later callers wait for the first one to compile.
        let _loading = self.loading.lock().await;
        if let Some(loaded) = current() {
            return Ok(loaded);
        }
        let version = FileVersion::of(&self.path);
        let broken = self.state().broken.clone().filter(|broken| Some(&broken.0) == version.as_ref());
        if let Some((_, reason)) = broken {
            return Err(reason);
        }
        let (path, may_start) = (self.path.clone(), Arc::clone(&self.may_start));
        let compiled = tokio::task::spawn_blocking(move || -> Result<Result<Loaded, String>, String> {
            may_start()?;
            Ok(compile(&path))
        });
        let compiled = match compiled.await {
            Ok(Ok(compiled)) => compiled,
            // The gate is asked again each time.
            Ok(Err(refused)) => {
                self.state().failure = Some(refused.clone());
                return Err(refused);
            }
            Err(_) => Err("its compilation failed".to_owned()),
        };
        let mut state = self.state();
        state.broken = None;
        match compiled {
            Ok(loaded) => {
                let loaded = Arc::new(loaded);
                state.loads += 1;
                (state.failure, state.loaded) = (None, Some(Arc::clone(&loaded)));
                Ok(loaded)
            }
            Err(reason) => {
                state.failure = Some(reason.clone());
                state.broken = version.map(|version| (version, reason.clone()));
                Err(reason)
            }
        }
    }

    async fn instance(&self, loaded: &Loaded, permissions: &Arc<[String]>) -> Result<Instance, String> {
        let mut store = self.store(permissions).await?;
        let instance = loaded.pre.instantiate_async(&mut store).await;
        let instance = instance.map_err(|err| self.ended(&err))?;
        let call = instance.get_typed_func(&mut store, "call");
        let call = call.map_err(|err| format!("it has no call: {err}"))?;
        Ok(Instance { permissions: Arc::clone(permissions), store, call })
    }

    async fn store(&self, permissions: &[String]) -> Result<Store<Host>, String> {
        let wasi = grants::wasi(permissions, &self.base).await?;
        // One component may consist of several modules.
        let bounds =
            StoreLimitsBuilder::new().memory_size(self.memory).memories(16).tables(64).instances(64);
        let limits = Limits { bounds: bounds.build(), memory: 0 };
        let host = Host { wasi, table: ResourceTable::new(), limits };
        let mut store = Store::new(engine()?, host);
        store.limiter(|host| &mut host.limits);
        let metered =
            store.set_fuel(self.fuel).and_then(|()| store.fuel_async_yield_interval(Some(YIELD)));
        metered.map_err(|err| err.to_string())?;
        Ok(store)
    }

    /// Returns why a call ended, in one line.
    fn ended(&self, err: &wasmtime::Error) -> String {
        match err.downcast_ref::<Trap>() {
            Some(Trap::OutOfFuel) => format!("it used up its fuel, {}", self.fuel),
            Some(trap) => format!("it ended: {trap}"),
            None => format!("it ended: {}", err.root_cause()),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl Loaded {
    fn idle(&self, permissions: &Arc<[String]>) -> Option<Instance> {
        let mut idle = self.idle.lock();
        let at = idle.iter().rposition(|instance| instance.permissions == *permissions)?;
        Some(idle.swap_remove(at))
    }

    fn keep(&self, instance: Instance) {
        let mut idle = self.idle.lock();
        let all = idle.iter().chain([&instance]);
        let memory: usize = all.map(|instance| instance.store.data().limits.memory).sum();
        if idle.len() < MAX_IDLE && memory <= MAX_KEPT {
            idle.push(instance);
        }
    }
}

/// Compiles a component, which takes a long time.
fn compile(path: &Path) -> Result<Loaded, String> {
    let version = FileVersion::of(path);
    let size = path.metadata().map_err(|err| format!("its file cannot be read: {err}"))?.len();
    if size > MAX_FILE {
        return Err(format!("its file has more than {} MiB", MAX_FILE >> 20));
    }
    let bytes = std::fs::read(path).map_err(|err| format!("its file cannot be read: {err}"))?;
    let since = Instant::now();
    let engine = engine()?;
    let component = wasmtime::component::Component::from_binary(engine, &bytes)
        .map_err(|err| format!("it is not a component: {}", err.root_cause()))?;
    let mut linker = Linker::new(engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker).map_err(|err| err.to_string())?;
    let pre = linker.instantiate_pre(&component);
    let pre =
        pre.map_err(|err| format!("it imports something that is not provided: {}", err.root_cause()))?;
    let ms = millis_down(since.elapsed());
    tracing::debug!(path = %path.display(), ms, "a component was compiled");
    Ok(Loaded { version, pre, idle: Mutex::default() })
}

/// Returns the engine, which all components share.
fn engine() -> Result<&'static Engine, String> {
    static ENGINE: OnceLock<Result<Engine, String>> = OnceLock::new();
    let made = ENGINE.get_or_init(|| {
        let mut config = Config::new();
        config.wasm_component_model(true).consume_fuel(true);
        Engine::new(&config).map_err(|err| err.to_string())
    });
    made.as_ref().map_err(Clone::clone)
}

#[cfg(test)]
mod tests;
