//! The state of an instance: what is kept in `state_dir`, or in memory.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use orla_state::{
    Change, Embedded, Limits, Memory, OpenError, Query, Record, Revision, StateError, StateStore,
    WriteError,
};
use tokio::sync::OnceCell;

use crate::Failure;
use crate::config::{Config, StateKind, Transport};

/// The state of a server. What exists is opened at once, and what does not exist when it is first written.
///
/// # Errors
/// It exists and cannot be used.
pub(crate) async fn of_server(config: &Config) -> Result<Arc<dyn StateStore>, Failure> {
    match open(config).await {
        Ok(store) => Ok(store),
        // Clients start several servers in one directory, and most of them need no tasks.
        Err(held @ OpenError::Held { .. }) if config.transport == Transport::Stdio => {
            tracing::warn!(state_dir = %config.state_dir.display(), "{held}: this server has no tasks");
            Ok(Arc::new(Unusable(StateError::new(format!("{held}; use the tasks of that one")))))
        }
        Err(error) => Err(Failure::usage(error.to_string())),
    }
}

/// The state for a command that opens it itself.
///
/// # Errors
/// It cannot be used.
pub(crate) async fn of_command(config: &Config) -> Result<Arc<dyn StateStore>, Failure> {
    if config.state == StateKind::Memory {
        let what = "state: memory keeps nothing for a command: name a server with --url";
        return Err(Failure::usage(what));
    }
    open(config).await.map_err(|error| match error {
        held @ OpenError::Held { .. } => {
            Failure::usage(format!("{held}: name that server with --url http://HOST:PORT"))
        }
        error => Failure::usage(error.to_string()),
    })
}

async fn open(config: &Config) -> Result<Arc<dyn StateStore>, OpenError> {
    if config.state == StateKind::Memory {
        return Ok(Arc::new(Memory::new(Limits::default())));
    }
    let lazy = Lazy { dir: config.state_dir.clone(), store: OnceCell::new() };
    if Embedded::exists(&lazy.dir) {
        lazy.opened().await?;
    }
    Ok(Arc::new(lazy))
}

/// A state in a directory. It is made when it is first written, and is empty until then.
struct Lazy {
    dir: PathBuf,
    store: OnceCell<Embedded>,
}

impl Lazy {
    async fn opened(&self) -> Result<&Embedded, OpenError> {
        self.store
            .get_or_try_init(|| async {
                let dir = self.dir.clone();
                let opening = tokio::task::spawn_blocking(move || Embedded::open(&dir));
                opening.await.unwrap_or_else(|broken| Err(broke_down(&self.dir, broken)))
            })
            .await
    }

    /// The state, if it exists.
    async fn existing(&self) -> Result<Option<&Embedded>, StateError> {
        if self.store.initialized() || Embedded::exists(&self.dir) {
            return Ok(Some(self.opened().await.map_err(|error| StateError::new(error.to_string()))?));
        }
        Ok(None)
    }
}

fn broke_down(dir: &Path, broken: tokio::task::JoinError) -> OpenError {
    OpenError::Failed { path: dir.to_owned(), source: std::io::Error::other(broken) }
}

#[async_trait]
impl StateStore for Lazy {
    async fn write(&self, changes: Vec<Change>) -> Result<Vec<Revision>, WriteError> {
        let store = self.opened().await.map_err(|error| StateError::new(error.to_string()))?;
        store.write(changes).await
    }

    async fn get(&self, key: &str) -> Result<Option<Record>, StateError> {
        match self.existing().await? {
            Some(store) => store.get(key).await,
            None => Ok(None),
        }
    }

    async fn list(&self, query: Query) -> Result<Vec<Record>, StateError> {
        match self.existing().await? {
            Some(store) => store.list(query).await,
            None => Ok(Vec::new()),
        }
    }

    async fn close(&self) {
        if let Some(store) = self.store.get() {
            store.close().await;
        }
    }
}

/// A state that another process uses.
struct Unusable(StateError);

#[async_trait]
impl StateStore for Unusable {
    async fn write(&self, _: Vec<Change>) -> Result<Vec<Revision>, WriteError> {
        Err(self.0.clone().into())
    }

    async fn get(&self, _: &str) -> Result<Option<Record>, StateError> {
        Err(self.0.clone())
    }

    async fn list(&self, _: Query) -> Result<Vec<Record>, StateError> {
        Err(self.0.clone())
    }
}
