//! Streams of servers and programs of other projects: whole, and cut in the middle.
//!
//! Between orla and the servers stands a relay that cuts connections at arbitrary bytes, also within an item. What a
//! protocol can take up is taken up: server-sent events by their ids. Where it cannot, the stream fails and says after
//! how many items, and a program opens it behind them. A program that is ended is started again, and what it has
//! not read is still there.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::cutter::Cutter;
use super::upstream::fixtures;
use crate::install::Foreign;
use crate::process;
use crate::server::Server;
use crate::tally::Tally;
use orla_e2e::free_port;

/// How long one command may take.
const TIMEOUT: Duration = Duration::from_secs(60);
/// After how many bytes connections are cut: the heads of answers are shorter than the least, and hardly one ends an item.
const CUTS: [usize; 5] = [700, 1501, 902, 2003, 1204];
/// The same for WebSockets, whose messages are small.
const SOCKET_CUTS: [usize; 5] = [401, 552, 453, 504, 475];

/// Whether what a stream gives are the numbers from 1 to 200, each once.
const ALL: &str = "(= (vec (range 1 201)) (vec (map :n (stream :ticks {:from 0}))))";

/// Opens a stream again behind the items that came, each time that it breaks.
const AGAIN: &str = "
(loop [got [] s (stream :ticks {:from 0}) cuts 0]
  (let [next (try (vec (take 1 s)) (catch :unavailable e :cut))]
    (cond (= next :cut) (recur got (stream :ticks {:from (count got)}) (inc cuts))
          (empty? next) [(= got (vec (range 1 201))) cuts]
          :else (recur (conj got (:n (first next))) (rest s) cuts))))";

/// Reads streams of each kind.
pub(super) fn run(binary: &Path, foreign: &Foreign, tally: &mut Tally) -> Result<(), String> {
    let folder = foreign.folder.join("streams");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(folder.join("tools")).map_err(|err| format!("{}: {err}", folder.display()))?;
    let reader = Reader { binary, folder: &folder };
    events(&reader, foreign, tally)?;
    sockets(&reader, foreign, tally)?;
    lines(&reader, foreign, tally)
}

fn events(reader: &Reader<'_>, foreign: &Foreign, tally: &mut Tally) -> Result<(), String> {
    let server = reader.serve(foreign, "sse_server.py", "Uvicorn running on")?;
    for (path, after, title) in [
        ("ticks", &[][..], "server-sent events of sse-starlette"),
        (
            "ticks",
            &CUTS,
            "server-sent events of sse-starlette, cut five times: none is lost, none doubled",
        ),
        ("anew", &CUTS, "server-sent events of sse-starlette that begin anew after each cut"),
    ] {
        let cutter = Cutter::start(&server.address, after.to_vec())?;
        let stream = json!({"url": format!("http://{}/{path}", cutter.address)});
        let verdict = reader.run(&stream, ALL, "true").and_then(|()| was_cut(&cutter, after.len()));
        tally.check(title, verdict);
    }
    Ok(())
}

fn sockets(reader: &Reader<'_>, foreign: &Foreign, tally: &mut Tally) -> Result<(), String> {
    let server = reader.serve(foreign, "websocket_server.py", "listening")?;
    let at = |cutter: &Cutter| json!({"url": format!("ws://{}/ticks", cutter.address), "query": {"from": "{from}"}});
    let whole = Cutter::start(&server.address, Vec::new())?;
    tally.check("a WebSocket of the package websockets", reader.run(&at(&whole), ALL, "true"));
    let shout =
        json!({"url": format!("ws://{}/shout", whole.address), "direction": "duplex", "items": "text"});
    let both = r#"(let [s (stream :ticks {})] (send! s "a") (send! s "b") (let [both (vec (take 2 s))] (close! s) both))"#;
    tally.check("the same, in both directions", reader.run(&shout, both, r#"["A" "B"]"#));
    let cutter = Cutter::start(&server.address, SOCKET_CUTS.to_vec())?;
    let verdict = reader.run(&at(&cutter), AGAIN, "[true 5]").and_then(|()| was_cut(&cutter, 5));
    tally.check("the same, cut five times: a program opens it behind what came", verdict);
    Ok(())
}

/// Starts a reader of a fifo and ends it after half a second. Lines that it has not read stay in
/// the fifo.
fn lines(reader: &Reader<'_>, foreign: &Foreign, tally: &mut Tally) -> Result<(), String> {
    let fifo = reader.folder.join("fifo");
    let mut make = Command::new("mkfifo");
    make.arg(&fifo);
    process::run(&mut make, reader.folder, TIMEOUT)?.stdout_of_success()?;
    // Held open for both, it is never at its end, and opening it does not block.
    let mut lines = fs::File::options()
        .read(true)
        .write(true)
        .open(&fifo)
        .map_err(|err| format!("{}: {err}", fifo.display()))?;
    let writing = std::thread::spawn(move || {
        for n in 1..=60 {
            // In one write: a reader that ends between two would leave half a line.
            lines.write_all(format!("{{\"n\": {n}}}\n").as_bytes())?;
            std::thread::sleep(Duration::from_millis(30));
        }
        Ok::<_, std::io::Error>(lines)
    });
    let program = fixtures().join("fifo_reader.py");
    let args = json!(["0.5", foreign.python, "-S", program, fifo]);
    let stream = json!({"command": "timeout", "args": args, "reconnect": true});
    let all = "(= (vec (range 1 61)) (vec (take 60 (map :n (stream :ticks {:from 0})))))";
    let verdict = reader.run(&stream, all, "true");
    let written = writing.join().map_err(|_| "the writer panicked".to_owned())?;
    drop(written.map_err(|err| err.to_string())?);
    tally.check(
        "lines of a program, ended every half second and started again: none is lost, none doubled",
        verdict,
    );
    Ok(())
}

fn was_cut(cutter: &Cutter, times: usize) -> Result<(), String> {
    match cutter.cuts() {
        cuts if cuts == times => Ok(()),
        cuts => Err(format!("it was cut {cuts} times instead of {times}")),
    }
}

struct Reader<'a> {
    binary: &'a Path,
    folder: &'a Path,
}

impl Reader<'_> {
    /// Starts a foreign server, which says when it listens.
    fn serve(&self, foreign: &Foreign, script: &str, says: &str) -> Result<Server, String> {
        let port = free_port();
        let mut command = Command::new(&foreign.python);
        command.arg(fixtures().join(script)).arg(port.to_string()).current_dir(self.folder);
        let log = self.folder.join(format!("{script}.log"));
        Server::listening(command, &log, |line| line.contains(says).then(|| format!("127.0.0.1:{port}")))
    }

    /// Runs a program with this stream as `ticks`.
    fn run(&self, stream: &Value, program: &str, expected: &str) -> Result<(), String> {
        let config = json!({"builtins": false, "capabilities": [{"id": "ticks", "provider": {"stream": stream}}]});
        let file = self.folder.join("orla.yaml");
        fs::write(&file, config.to_string()).map_err(|err| format!("{}: {err}", file.display()))?;
        let mut command = Command::new(self.binary);
        command.args(["rtfs", "-e", program, "--config"]).arg(&file).current_dir(self.folder);
        let printed = process::run(&mut command, self.folder, TIMEOUT)?.stdout_of_success()?;
        match printed.trim() == expected {
            true => Ok(()),
            false => Err(format!("it printed {}", printed.trim())),
        }
    }
}
