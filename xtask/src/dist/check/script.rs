//! `install.sh` against a server of HTTP that gives what it should, or something else.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use super::Place;
use crate::dist::archive;
use crate::dist::release::{Artefact, Program, Target};
use crate::process;
use crate::tally::Tally;

/// What a server answers to a path: so many bytes as it says, or fewer.
#[derive(Clone)]
struct Answer {
    bytes: Vec<u8>,
    sent: usize,
}

impl Answer {
    fn whole(bytes: Vec<u8>) -> Self {
        Self { sent: bytes.len(), bytes }
    }
}

/// The answers of a server: the archive and the checksums.
#[derive(Clone)]
struct Served {
    archive: Option<Answer>,
    sums: Option<Answer>,
}

/// One try of the script: what differs from a good release, and the part of the error that tells it.
struct Case {
    what: &'static str,
    change: fn(&mut Served),
    /// What `uname -m` says, if not the truth.
    machine: Option<&'static str>,
    error: &'static str,
}

const BAD: [Case; 6] = [
    Case {
        what: "refuses an archive with another checksum",
        change: |served| served.archive.iter_mut().for_each(|answer| answer.bytes[20] ^= 1),
        machine: None,
        error: "nothing is installed",
    },
    Case {
        what: "refuses a release without checksums",
        change: |served| served.sums = None,
        machine: None,
        error: "SHA256SUMS cannot be downloaded",
    },
    Case {
        what: "refuses an archive without a checksum",
        change: |served| served.sums = Some(Answer::whole(b"0  other.tar.gz\n".to_vec())),
        machine: None,
        error: "has no checksum of",
    },
    Case {
        what: "refuses a download that was cut off",
        change: |served| served.archive.iter_mut().for_each(|answer| answer.sent /= 2),
        machine: None,
        error: "cannot be downloaded",
    },
    Case {
        what: "refuses a release without this archive",
        change: |served| served.archive = None,
        machine: None,
        error: "cannot be downloaded",
    },
    Case {
        what: "knows a machine that orla is not built for",
        change: |_| {},
        machine: Some("riscv64"),
        error: "there is no binary for riscv64",
    },
];

pub(super) fn check(place: &Place<'_>, tally: &mut Tally) -> Result<(), String> {
    let Some(program) = place.release.programs.iter().find(|program| program.target.is_native()) else {
        return Ok(());
    };
    // The script installs static programs, so the one at hand stands for such a one.
    let target = Target::of(&format!("{}-unknown-linux-musl", program.target.architecture))?;
    let program = Program {
        target,
        linkage: program.linkage,
        path: program.path.clone(),
        bytes: program.bytes.clone(),
    };
    let archive = archive::pack(place.release, &program)?;
    let sums = format!("{}  {}\n", archive.sum(), archive.name);
    let good = Served {
        archive: Some(Answer::whole(archive.bytes.clone())),
        sums: Some(Answer::whole(sums.into_bytes())),
    };

    tally.check("install.sh: installs what it downloads, and it runs", {
        let home = place.empty("home")?;
        try_script(place, &archive, good.clone(), None).and_then(|()| {
            let man = home.join(".local/share/man/man1/orla.1");
            if !man.is_file() {
                return Err(format!("{} is missing", man.display()));
            }
            place.serves(&home.join(".local/bin/orla"), &[])
        })
    });
    for case in BAD {
        let mut served = good.clone();
        (case.change)(&mut served);
        let home = place.empty("home")?;
        let verdict = match try_script(place, &archive, served, case.machine) {
            Ok(()) => Err("it installed".to_owned()),
            Err(why) if !why.contains(case.error) => Err(format!("says `{why}`, not `{}`", case.error)),
            Err(_) if home.join(".local").exists() => Err("something was installed".to_owned()),
            Err(_) => Ok(()),
        };
        tally.check(&format!("install.sh: {}", case.what), verdict);
    }
    Ok(())
}

/// Runs the script with an empty home directory, against a server on this machine.
fn try_script(
    place: &Place<'_>,
    archive: &Artefact,
    served: Served,
    machine: Option<&str>,
) -> Result<(), String> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|err| format!("listen: {err}"))?;
    let address = listener.local_addr().map_err(|err| format!("listen: {err}"))?;
    let Served { archive: packed, sums } = served;
    let answers: BTreeMap<String, Answer> =
        [(format!("/{}", archive.name), packed), ("/SHA256SUMS".into(), sums)]
            .into_iter()
            .filter_map(|(path, answer)| Some((path, answer?)))
            .collect();
    // It ends with this process: the listener has no other use.
    std::thread::spawn(move || serve(&listener, &answers));

    let tools = place.empty("tools")?;
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    if let Some(machine) = machine {
        let uname = tools.join("uname");
        fs::write(
            &uname,
            format!("#!/bin/sh\ncase $1 in -m) echo {machine} ;; *) echo Linux ;; esac\n"),
        )
        .and_then(|()| fs::set_permissions(&uname, fs::Permissions::from_mode(0o755)))
        .map_err(|err| format!("{}: {err}", uname.display()))?;
        let mut own = tools.into_os_string();
        own.push(":");
        own.push(path);
        path = own;
    }
    let finished = process::run(
        Command::new("sh")
            .arg(place.folder.join("install.sh"))
            .env_clear()
            .env("PATH", path)
            .env("HOME", place.scratch.join("home"))
            .env("TMPDIR", place.scratch)
            .env("ORLA_BASE_URL", format!("http://{address}")),
        place.scratch,
        super::LIMIT,
    )?;
    if finished.status.success() { Ok(()) } else { Err(finished.stderr.trim().to_owned()) }
}

fn serve(listener: &TcpListener, answers: &BTreeMap<String, Answer>) {
    for stream in listener.incoming().flatten() {
        // A client that goes away is no fault of the server.
        let _ = answer(&stream, answers);
    }
}

fn answer(mut stream: &TcpStream, answers: &BTreeMap<String, Answer>) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    match request.split(' ').nth(1).and_then(|path| answers.get(path)) {
        Some(Answer { bytes, sent }) => {
            let length = bytes.len();
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n")?;
            stream.write_all(&bytes[..*sent])
        }
        None => {
            write!(stream, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        }
    }
}
