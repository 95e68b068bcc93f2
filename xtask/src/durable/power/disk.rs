//! A folder on a disk that loses its power: what was synced, and what may or may not be there besides. Pure.
//!
//! What a system guarantees is assumed, and nothing more. A sync of a file keeps what was written to it before, and a sync of a
//! folder keeps the names in it. Any part of the rest may be lost, in units of a sector, and in any order between
//! files. Names change in their order, as in the journal of a file system.

use std::collections::BTreeMap;

use super::trace::Event;

/// What a disk writes whole or not at all.
const SECTOR: usize = 512;

/// A folder. Its files have numbers, because names change.
#[derive(Default)]
pub(super) struct Disk {
    files: Vec<File>,
    /// The names as the process sees them.
    names: Names,
    /// The names that are kept.
    kept_names: Names,
    /// The changes of names since.
    renames: Vec<Names>,
    /// Whether the folder itself is kept.
    is_kept: bool,
    /// The syncs that have begun, by thread, and how many of the changes each includes.
    syncs: BTreeMap<u32, (Target, usize)>,
}

type Names = BTreeMap<String, usize>;

#[derive(Clone, Copy)]
enum Target {
    Folder,
    File(usize),
}

#[derive(Default)]
struct File {
    kept: Vec<u8>,
    changes: Vec<Change>,
    /// How many changes were made and are kept.
    synced: usize,
}

enum Change {
    Write { at: usize, bytes: Vec<u8> },
    Size(usize),
}

/// How much is lost of what was not synced.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Loss {
    Nothing,
    All,
    /// Of each change, whatever a random number says.
    Some,
}

impl Disk {
    pub(super) fn apply(&mut self, event: &Event) {
        match event {
            Event::Created(name) => {
                if !self.names.contains_key(name) {
                    self.names.insert(name.clone(), self.files.len());
                    self.files.push(File::default());
                    self.renames.push(self.names.clone());
                }
            }
            Event::Wrote { file, at, bytes } => {
                self.change(file, Change::Write { at: *at, bytes: bytes.clone() });
            }
            Event::Resized { file, size } => self.change(file, Change::Size(*size)),
            Event::Renamed { from, to } => {
                if let Some(file) = self.names.remove(from) {
                    self.names.insert(to.clone(), file);
                    self.renames.push(self.names.clone());
                }
            }
            Event::Removed(name) => {
                self.names.remove(name);
                self.renames.push(self.names.clone());
            }
            Event::Syncs { thread, file } if file.is_empty() => {
                self.syncs.insert(*thread, (Target::Folder, self.renames.len()));
            }
            Event::Syncs { thread, file } => {
                if let Some(file) = self.names.get(file) {
                    let File { synced, changes, .. } = &self.files[*file];
                    self.syncs.insert(*thread, (Target::File(*file), synced + changes.len()));
                }
            }
            Event::Synced { thread } => match self.syncs.remove(thread) {
                Some((Target::Folder, count)) => {
                    // Only one thread of orla changes names, and it is the one that syncs them.
                    if let Some(names) = self.renames.drain(..count.min(self.renames.len())).next_back()
                    {
                        self.kept_names = names;
                    }
                }
                Some((Target::File(file), count)) => self.files[file].sync(count),
                None => {}
            },
            Event::SyncedAbove => self.is_kept = true,
            Event::Sent(_) => {}
        }
    }

    fn change(&mut self, name: &str, change: Change) {
        // A file without a name is gone with the power.
        if let Some(file) = self.names.get(name) {
            self.files[*file].changes.push(change);
        }
    }

    /// Returns the files that are there after the power was lost, or `None` if the folder is lost. `below` returns a random
    /// number below another one.
    pub(super) fn image(
        &self,
        loss: Loss,
        below: &mut impl FnMut(usize) -> usize,
    ) -> Option<BTreeMap<String, Vec<u8>>> {
        let renames = match loss {
            Loss::Nothing => self.renames.len(),
            Loss::All => 0,
            Loss::Some => below(self.renames.len() + 1),
        };
        let is_there = match loss {
            Loss::Nothing => true,
            Loss::All => self.is_kept,
            Loss::Some => self.is_kept || renames > 0 || below(2) == 0,
        };
        let names = renames.checked_sub(1).map_or(&self.kept_names, |last| &self.renames[last]);
        let files =
            names.iter().map(|(name, file)| (name.clone(), self.files[*file].image(loss, below)));
        is_there.then(|| files.collect())
    }
}

impl File {
    /// Keeps the first `count` changes of all.
    fn sync(&mut self, count: usize) {
        let more = count.saturating_sub(self.synced);
        for change in self.changes.drain(..more) {
            change.make(&mut self.kept, |_| true);
        }
        self.synced += more;
    }

    fn image(&self, loss: Loss, below: &mut impl FnMut(usize) -> usize) -> Vec<u8> {
        let mut bytes = self.kept.clone();
        for change in &self.changes {
            match (loss, if loss == Loss::Some { below(4) } else { 0 }) {
                (Loss::Nothing, _) | (Loss::Some, 0) => change.make(&mut bytes, |_| true),
                (Loss::All, _) | (Loss::Some, 1) => {}
                // The file has grown and has nothing there yet.
                (Loss::Some, 2) => change.make(&mut bytes, |_| false),
                (Loss::Some, _) => change.make(&mut bytes, |_| below(2) == 0),
            }
        }
        bytes
    }
}

impl Change {
    /// Makes the change, as far as sectors are written.
    fn make(&self, file: &mut Vec<u8>, mut is_written: impl FnMut(usize) -> bool) {
        match self {
            Self::Size(size) => file.resize(*size, 0),
            Self::Write { at, bytes } => {
                file.resize(file.len().max(at + bytes.len()), 0);
                let mut from = *at;
                while from < at + bytes.len() {
                    let sector = from / SECTOR;
                    let to = ((sector + 1) * SECTOR).min(at + bytes.len());
                    if is_written(sector) {
                        file[from..to].copy_from_slice(&bytes[from - at..to - at]);
                    }
                    from = to;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrote(at: usize, byte: u8, count: usize) -> Event {
        Event::Wrote { file: "log".to_owned(), at, bytes: vec![byte; count] }
    }

    fn sync(file: &str) -> [Event; 2] {
        [Event::Syncs { thread: 1, file: file.to_owned() }, Event::Synced { thread: 1 }]
    }

    fn disk(events: &[Event]) -> Disk {
        let mut disk = Disk::default();
        events.iter().for_each(|event| disk.apply(event));
        disk
    }

    fn lost(disk: &Disk) -> Option<Vec<u8>> {
        disk.image(Loss::All, &mut |_| 0)?.remove("log")
    }

    #[test]
    fn what_was_not_synced_is_lost_and_the_rest_is_kept() {
        let created = Event::Created("log".to_owned());
        let [begins, ends] = sync("log");
        let named = [&[created, Event::SyncedAbove][..], &sync("")].concat();
        let of = |more: &[Event]| lost(&disk(&[&named[..], more].concat()));
        assert_eq!(lost(&disk(&named[..1])), None, "the folder was not kept");
        assert_eq!(lost(&disk(&named[..2])), None, "its name was not kept");
        assert_eq!(of(&[wrote(0, 1, 2)]), Some(vec![]));
        assert_eq!(of(&[wrote(0, 1, 2), begins.clone()]), Some(vec![]));
        let late = [wrote(0, 1, 2), begins, wrote(1, 2, 2), ends];
        assert_eq!(of(&late), Some(vec![1, 1]), "a write during the sync is not part of it");
        let all = [&named[..], &late, &sync("log")].concat();
        assert_eq!(lost(&disk(&all)), Some(vec![1, 2, 2]));
        let renamed = Event::Renamed { from: "log".to_owned(), to: "new".to_owned() };
        let renamed = [all, vec![renamed]].concat();
        assert_eq!(lost(&disk(&renamed)), Some(vec![1, 2, 2]));
        assert_eq!(lost(&disk(&[&renamed[..], &sync("")].concat())), None);
    }

    #[test]
    fn sectors_are_lost_one_by_one() {
        let events = [Event::Created("log".to_owned()), wrote(500, 7, 600)];
        let mut numbers = [1, 3, 1, 0, 1].into_iter();
        let image = disk(&events).image(Loss::Some, &mut |_| numbers.next().unwrap_or_default());
        let log = image.and_then(|mut image| image.remove("log"));
        let expected = [&[0; 512][..], &[7; 512], &[0; 76]].concat();
        assert_eq!(log, Some(expected));
    }
}
