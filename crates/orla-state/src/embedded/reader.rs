//! The thread that reads.

use tokio::sync::{mpsc, oneshot};

use super::database::{Connection, Reader};
use crate::{Query, Record, StateError};

/// A read that waits.
pub(super) enum Read {
    /// One record.
    Get { key: String, answer: oneshot::Sender<Result<Option<Record>, StateError>> },
    /// Several records.
    GetAll { keys: Vec<String>, answer: oneshot::Sender<Result<Vec<Option<Record>>, StateError>> },
    /// A range.
    List { query: Query, answer: oneshot::Sender<Result<Vec<Record>, StateError>> },
}

/// Answers reads until their queue is closed.
pub(super) fn run(connection: &Connection, mut reads: mpsc::Receiver<Read>) {
    let mut reader = Reader::new(connection);
    while let Some(read) = reads.blocking_recv() {
        // Requests of callers that have gone away are not read.
        match read {
            Read::Get { answer, .. } if answer.is_closed() => {}
            Read::GetAll { answer, .. } if answer.is_closed() => {}
            Read::List { answer, .. } if answer.is_closed() => {}
            Read::Get { key, answer } => {
                let record = with(&mut reader, |reader| reader.get(&key));
                drop(answer.send(record));
            }
            Read::GetAll { keys, answer } => {
                let records = with(&mut reader, |reader| reader.get_all(&keys));
                drop(answer.send(records));
            }
            Read::List { query, answer } => {
                let records = with(&mut reader, |reader| reader.list(&query));
                drop(answer.send(records));
            }
        }
    }
}

fn with<'c, T>(
    reader: &mut Result<Reader<'c>, super::database::Failure>,
    read: impl FnOnce(&mut Reader<'c>) -> Result<T, super::database::Failure>,
) -> Result<T, StateError> {
    match reader {
        Ok(reader) => read(reader).map_err(|failure| failure.reading()),
        Err(failure) => Err(failure.reading()),
    }
}
