//! The thread that writes: all batches that wait are one transaction.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use super::checkpoint::Checkpoints;
use super::database::{Failure, Writer};
use super::open::{OpenError, Opened};
use super::reader::{self, Read};
use crate::{Change, Revision, WriteError};

/// A batch that waits to be written.
pub(super) struct Write {
    pub(super) changes: Vec<Change>,
    pub(super) answer: oneshot::Sender<Result<Vec<Revision>, WriteError>>,
    pub(super) _room: OwnedSemaphorePermit,
}

/// The answer to a batch.
pub(super) type Written = oneshot::Receiver<Result<Vec<Revision>, WriteError>>;

/// Batches that are written with the next one.
pub(super) type Later = Arc<Mutex<Vec<Write>>>;

/// Starts the threads of a store. They end when the queues are closed and empty.
pub(super) fn start(
    opened: Opened,
    writes: mpsc::Receiver<Write>,
    later: Later,
    reads: mpsc::Receiver<Read>,
    closing: mpsc::Receiver<()>,
) -> Result<JoinHandle<()>, OpenError> {
    let path = opened.path.clone();
    let threads = || -> io::Result<JoinHandle<()>> {
        let Opened { writer, reader, checkpoints, path, lock } = opened;
        let reader = thread::Builder::new()
            .name("state-read".to_owned())
            .spawn(move || reader::run(&reader, reads))?;
        let (checkpoints, checkpointer) = Checkpoints::start(checkpoints)?;
        thread::Builder::new().name("state-write".to_owned()).spawn(move || {
            run(&writer, writes, &later, checkpoints);
            drop((reader.join(), checkpointer.join()));
            writer.finish();
            drop((writer, lock, path, closing));
        })
    };
    threads().map_err(|source| OpenError::Failed { path, source })
}

fn run(
    connection: &super::database::Connection,
    mut writes: mpsc::Receiver<Write>,
    later: &Mutex<Vec<Write>>,
    mut checkpoints: Checkpoints,
) {
    let mut writer = match Writer::new(connection) {
        Ok(writer) => writer,
        Err(failure) => return refuse(&mut writes, later, &failure),
    };
    while let Some(first) = writes.blocking_recv() {
        let mut group = vec![first];
        // Batches that arrive from now on belong to the next transaction.
        for _ in 0..writes.len() {
            group.extend(writes.try_recv());
        }
        group.append(&mut later.lock());
        commit(&mut writer, group);
        checkpoints.after_commit(connection);
    }
    let rest = std::mem::take(&mut *later.lock());
    if !rest.is_empty() {
        commit(&mut writer, rest);
    }
}

/// Writes a group and answers it.
fn commit(writer: &mut Writer<'_>, group: Vec<Write>) {
    // A caller that has gone away gets no answer; its changes are made all the same.
    match writer.commit(group.iter().map(|write| write.changes.as_slice())) {
        Ok(results) => {
            for (write, result) in group.into_iter().zip(results) {
                drop(write.answer.send(result));
            }
        }
        // There may be room for the smaller ones.
        Err(Failure::NoRoom) if group.len() > 1 => {
            for write in group {
                commit(writer, vec![write]);
            }
        }
        Err(failure) => {
            for write in group {
                drop(write.answer.send(Err(failure.writing().into())));
            }
        }
    }
}

/// Answers everything with an error.
fn refuse(writes: &mut mpsc::Receiver<Write>, later: &Mutex<Vec<Write>>, failure: &Failure) {
    while let Some(write) = writes.blocking_recv() {
        let later = std::mem::take(&mut *later.lock());
        for write in std::iter::once(write).chain(later) {
            drop(write.answer.send(Err(failure.writing().into())));
        }
    }
}
