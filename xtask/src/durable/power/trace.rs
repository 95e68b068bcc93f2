//! Reads what a process did to the files of one folder from the record of `strace -f -y -xx`. Pure.
//!
//! Texts and paths are in hexadecimal there, so no byte of theirs looks like a part of a line.

use std::collections::BTreeMap;

/// The system calls that are recorded: all that change a file or its name, and all that answer a client.
pub(super) const CALLS: &str = "trace=openat,write,pwrite64,writev,pwritev,pwritev2,sendto,sendmsg,ftruncate,fallocate,fsync,fdatasync,\
    rename,renameat,renameat2,unlink,unlinkat,link,linkat,copy_file_range,sendfile";

/// One step of the process. A file is named as in the folder; the folder itself has the empty name.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Event {
    Created(String),
    Wrote {
        file: String,
        at: usize,
        bytes: Vec<u8>,
    },
    Resized {
        file: String,
        size: usize,
    },
    Renamed {
        from: String,
        to: String,
    },
    Removed(String),
    /// A thread asks for a file to be synced. What is written from now on is not part of it.
    Syncs {
        thread: u32,
        file: String,
    },
    /// The sync of a thread is done.
    Synced {
        thread: u32,
    },
    /// The folder that has the folder is synced.
    SyncedAbove,
    /// Bytes are sent over a socket.
    Sent(Vec<u8>),
}

/// Reads a record. `folder` is an absolute path without links.
pub(super) fn read(record: &str, folder: &str) -> Result<Vec<Event>, String> {
    let mut reader = Reader { folder, positions: BTreeMap::new(), events: Vec::new() };
    // Calls that have begun, by their threads.
    let mut begun: BTreeMap<u32, String> = BTreeMap::new();
    for line in record.lines() {
        let odd = || format!("a line of strace is not understood: {line:.200}");
        let (thread, rest) = line.split_once(' ').ok_or_else(odd)?;
        let (thread, rest) = (thread.parse().map_err(|_| odd())?, rest.trim_start());
        if rest.starts_with("+++") || rest.starts_with("---") {
            continue;
        }
        if let Some(call) = rest.strip_suffix("<unfinished ...>") {
            reader.begins(thread, call);
            begun.insert(thread, call.to_owned());
        } else if let Some((_, end)) = rest.split_once(" resumed>").filter(|_| rest.starts_with("<..."))
        {
            let call = begun.remove(&thread).ok_or_else(odd)? + end;
            reader.ends(thread, &call).ok_or_else(odd)?;
        } else {
            reader.begins(thread, rest);
            reader.ends(thread, rest).ok_or_else(odd)?;
        }
    }
    Ok(reader.events)
}

struct Reader<'f> {
    folder: &'f str,
    /// Where `write` continues, by descriptor.
    positions: BTreeMap<String, usize>,
    events: Vec<Event>,
}

impl Reader<'_> {
    /// An answer may be with its client, and a file be synced as of now, as soon as the call begins.
    fn begins(&mut self, thread: u32, call: &str) {
        match name(call) {
            "fsync" | "fdatasync" => {
                if let Some(file) = descriptor(call).and_then(|path| self.file(&path)) {
                    self.events.push(Event::Syncs { thread, file });
                }
            }
            "write" | "writev" | "sendto" | "sendmsg"
                if descriptor(call).is_some_and(|path| !path.starts_with('/')) =>
            {
                let sent = quoted(call).flat_map(hexadecimal).collect();
                self.events.push(Event::Sent(sent));
            }
            _ => {}
        }
    }

    /// Takes a whole call. `None` if it concerns the folder and is not understood.
    fn ends(&mut self, thread: u32, call: &str) -> Option<()> {
        let (arguments, result) = call.rsplit_once(" = ")?;
        let Ok(result_number) = result.split([' ', '<']).next()?.parse::<usize>() else {
            return Some(()); // It failed.
        };
        let arguments = arguments.trim_end().strip_suffix(')')?.trim_end();
        let of_descriptor = descriptor(call);
        let file = of_descriptor.as_deref().and_then(|path| self.file(path));
        let mut paths = quoted(arguments).map(text);
        let mut numbers = arguments.rsplit(", ").map_while(|number| number.parse::<usize>().ok());
        match (name(call), file) {
            ("openat", _) => {
                self.positions.insert(result_number.to_string(), 0);
                let opened = self.file(&paths.next()?);
                if let Some(file) = opened.filter(|_| arguments.contains("O_CREAT")) {
                    self.events.push(Event::Created(file.clone()));
                    if arguments.contains("O_TRUNC") {
                        self.events.push(Event::Resized { file, size: 0 });
                    }
                }
            }
            ("fsync" | "fdatasync", Some(_)) => self.events.push(Event::Synced { thread }),
            ("fsync" | "fdatasync", None) => {
                if self.folder.rsplit_once('/').map(|(above, _)| above) == of_descriptor.as_deref() {
                    self.events.push(Event::SyncedAbove);
                }
            }
            ("pwrite64", Some(file)) => {
                let mut bytes: Vec<u8> = quoted(arguments).flat_map(hexadecimal).collect();
                bytes.truncate(result_number);
                self.events.push(Event::Wrote { file, at: numbers.next()?, bytes });
            }
            ("write", Some(file)) => {
                let number = call.split(['(', '<']).nth(1)?.to_owned();
                let position = self.positions.entry(number).or_default();
                let mut bytes: Vec<u8> = quoted(arguments).flat_map(hexadecimal).collect();
                bytes.truncate(result_number);
                let at = *position;
                *position += bytes.len();
                self.events.push(Event::Wrote { file, at, bytes });
            }
            ("ftruncate", Some(file)) => {
                self.events.push(Event::Resized { file, size: numbers.next()? });
            }
            ("rename", _) => match (self.file(&paths.next()?), self.file(&paths.next()?)) {
                (Some(from), Some(to)) => self.events.push(Event::Renamed { from, to }),
                (None, None) => {}
                _ => return None,
            },
            ("unlink", _) => self.events.extend(self.file(&paths.next()?).map(Event::Removed)),
            (_, None) if !paths.any(|path| self.file(&path).is_some()) => {}
            _ => return None,
        }
        Some(())
    }

    /// Returns the name of a path in the folder.
    fn file(&self, path: &str) -> Option<String> {
        let rest = path.strip_prefix(self.folder)?;
        match rest.strip_prefix('/') {
            Some(name) => Some(name.to_owned()),
            None => rest.is_empty().then(String::new),
        }
    }
}

fn name(call: &str) -> &str {
    call.split('(').next().unwrap_or_default()
}

/// Returns what the descriptor is that is the first argument of a call.
fn descriptor(call: &str) -> Option<String> {
    let (number, rest) = call.split_once('(')?.1.split_once('<')?;
    number.parse::<u32>().ok()?;
    Some(text(rest.split_once('>')?.0))
}

fn quoted(arguments: &str) -> impl Iterator<Item = &str> {
    arguments.split('"').skip(1).step_by(2)
}

fn text(hex: &str) -> String {
    match hex.starts_with("\\x") {
        true => String::from_utf8_lossy(&hexadecimal(hex)).into_owned(),
        false => hex.to_owned(),
    }
}

fn hexadecimal(text: &str) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).unwrap_or_default() as u8;
    text.as_bytes().chunks(4).map(|four| digit(four[2]) << 4 | digit(four[3])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a text as strace writes it.
    fn hex(text: &str) -> String {
        text.bytes().map(|byte| format!("\\x{byte:02x}")).collect()
    }

    #[test]
    fn calls_of_threads_that_overlap_are_steps_in_their_order() {
        let [log, new, folder, other] = ["/s/log", "/s/new", "/s", "/other"].map(hex);
        let [socket, ok] = ["socket:[7]", "ok"].map(hex);
        let record = format!(
            "7 openat(AT_FDCWD<{other}>, \"{new}\", O_WRONLY|O_CREAT|O_TRUNC, 0600) = 4<{new}>\n\
             7 write(4<{new}>, \"{ok}\", 2) = 2\n\
             7 write(4<{new}>, \"{ok}\", 2) = 1\n\
             7 fsync(4<{new}> <unfinished ...>\n\
             8 pwrite64(5<{log}>, \"{ok}\", 2, 4096 <unfinished ...>\n\
             7 <... fsync resumed>)                    = 0\n\
             9 pwrite64(5<{log}>, \"{ok}\", 2, 0) = -1 EIO (Input/output error)\n\
             8 <... pwrite64 resumed>) = 2\n\
             7 rename(\"{new}\", \"{log}\") = 0\n\
             9 writev(9<{socket}>, [{{iov_base=\"{ok}\", iov_len=2}}, {{iov_base=\"{ok}\", iov_len=2}}], 2) = 4\n\
             9 pwrite64(6<{other}>, \"{ok}\", 2, 0) = 2\n\
             7 ftruncate(4<{log}>, 3) = 0\n\
             7 fsync(8<{folder}>) = 0\n\
             7 unlink(\"{log}\") = 0\n\
             7 +++ exited with 0 +++\n"
        );
        let file = |name: &str| name.to_owned();
        let wrote =
            |name: &str, at, bytes: &str| Event::Wrote { file: file(name), at, bytes: bytes.into() };
        let expected = vec![
            Event::Created(file("new")),
            Event::Resized { file: file("new"), size: 0 },
            wrote("new", 0, "ok"),
            wrote("new", 2, "o"),
            Event::Syncs { thread: 7, file: file("new") },
            Event::Synced { thread: 7 },
            wrote("log", 4096, "ok"),
            Event::Renamed { from: file("new"), to: file("log") },
            Event::Sent(b"okok".to_vec()),
            Event::Resized { file: file("log"), size: 3 },
            Event::Syncs { thread: 7, file: String::new() },
            Event::Synced { thread: 7 },
            Event::Removed(file("log")),
        ];
        assert_eq!(read(&record, "/s"), Ok(expected));
    }

    #[test]
    fn a_change_that_is_not_understood_is_an_error() {
        let [log, other] = ["/s/log", "/other"].map(hex);
        assert!(read(&format!("7 fallocate(4<{log}>, 0, 0, 9) = 0\n"), "/s").is_err());
        assert!(
            read(&format!("7 linkat(3<{other}>, \"{other}\", 3<{other}>, \"{log}\", 0) = 0\n"), "/s")
                .is_err()
        );
        assert_eq!(read(&format!("7 fallocate(4<{other}>, 0, 0, 9) = 0\n"), "/s"), Ok(vec![]));
    }
}
