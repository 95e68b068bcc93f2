//! `kill -9` at random moments: no acknowledged record is lost, and no record exists twice.
//!
//! The killed process is this test, started again as [`child`]. `ORLA_STATE_KILLS` says how often it is
//! killed (`cargo xtask state`).

#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect has failed")]
#![expect(clippy::disallowed_methods, reason = "the tasks end with the process")]

use std::hash::{BuildHasher as _, RandomState};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use orla_state::{Change, Embedded, Expect, Query, StateStore};

/// Names the directory for [`child`].
const DIRECTORY: &str = "ORLA_STATE_DIRECTORY";
const WRITERS: usize = 8;

/// Each writer counts up: a batch moves its counter and leaves one record for each number. A number is printed when it
/// is acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let store = Arc::new(Embedded::open(Path::new(&directory)).unwrap());
    let writers = (0..WRITERS).map(|writer| count_up(Arc::clone(&store), writer));
    let writers: Vec<_> = writers.map(tokio::spawn).collect();
    for writer in writers {
        writer.await.unwrap();
    }
}

async fn count_up(store: Arc<Embedded>, writer: usize) {
    let counter = format!("counter/{writer}");
    let found = store.get(&counter).await.unwrap();
    let mut number = found.as_ref().map_or(0, |record| number(&record.value));
    let mut expect = found.map_or(Expect::Absent, |record| Expect::Revision(record.revision));
    loop {
        number += 1;
        let changes = vec![
            Change::put(&counter, number.to_string()).expecting(expect),
            Change::put(done(writer, number), vec![b'x'; number % 3000]).expecting(Expect::Absent),
        ];
        let revisions = store.write(changes).await.unwrap();
        expect = Expect::Revision(revisions[0]);
        // One system call, so that a line is there or not.
        std::io::stderr().write_all(format!("done {writer} {number}\n").as_bytes()).unwrap();
    }
}

#[tokio::test]
async fn nothing_acknowledged_is_lost_or_doubled_when_the_process_is_killed() {
    let kills: usize = std::env::var("ORLA_STATE_KILLS").map_or(12, |kills| kills.parse().unwrap());
    let directory = tempfile::tempdir().unwrap();
    let random = RandomState::new();
    let mut acknowledged = [0; WRITERS];
    let mut begun = 0;
    let mut range: u64 = 100_000;
    for round in 0..kills {
        // From before the state is open to some hundred transactions later, also where a start takes long.
        if acknowledged == [0; WRITERS] {
            range = 100_000 << round.min(6);
        }
        let moment = Duration::from_micros(random.hash_one(round) % range);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env(DIRECTORY, directory.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stderr.take().unwrap());
        let reading = std::thread::spawn(move || output.lines().map(Result::unwrap).collect::<Vec<_>>());
        std::thread::sleep(moment);
        child.kill().unwrap();
        child.wait().unwrap();
        for line in reading.join().unwrap() {
            let words: Vec<_> = line.split(' ').collect();
            let ["done", writer, number] = words[..] else { panic!("round {round}: {line}") };
            acknowledged[writer.parse::<usize>().unwrap()] = number.parse().unwrap();
            begun = round;
        }
        let store = Embedded::open(directory.path()).unwrap();
        for (writer, acknowledged) in acknowledged.iter_mut().enumerate() {
            let counter = store.get(&format!("counter/{writer}")).await.unwrap();
            let counted = counter.map_or(0, |record| number(&record.value));
            let one_more = *acknowledged..=*acknowledged + 1;
            assert!(
                one_more.contains(&counted),
                "round {round}, writer {writer}: {counted}, not {one_more:?}"
            );
            let last = round + 1 == kills || round % 100 == 0;
            let query = Query::below(&format!("done/{writer}/"), if last { usize::MAX } else { 3 });
            let found = store.list(query.reversed()).await.unwrap();
            assert!(
                !last || found.len() == counted,
                "round {round}, writer {writer}: {} records",
                found.len()
            );
            for (record, number) in found.iter().zip((1..=counted).rev()) {
                assert_eq!(
                    (record.key.as_str(), record.value.len()),
                    (&*done(writer, number), number % 3000)
                );
            }
            *acknowledged = counted;
        }
        store.close().await;
    }
    let writes: usize = acknowledged.iter().sum();
    assert!(writes > kills, "only {writes} writes were made, the last of them in round {begun}");
    println!("{kills} kills, {writes} acknowledged writes: none lost, none doubled");
}

fn done(writer: usize, number: usize) -> String {
    format!("done/{writer}/{number:08}")
}

fn number(value: &[u8]) -> usize {
    std::str::from_utf8(value).unwrap().parse().unwrap()
}
