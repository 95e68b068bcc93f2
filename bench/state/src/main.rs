//! Measures SQLite and redb on the work of tasks, in one run whose rounds are interleaved.
//!
//! `orla-bench-state DIRECTORY [ROWS]`: the directory is on the disk to be measured.

mod redb_engine;

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use orla_state::{Change, Embedded, Expect, Query, StateStore};
use redb_engine::Redb;

const ROUNDS: usize = 5;

#[tokio::main(worker_threads = 2)]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let directory = Path::new(arguments.get(1).expect("a directory"));
    let rows: usize = arguments.get(2).map_or(1_000_000, |rows| rows.parse().expect("a number"));
    std::fs::create_dir_all(directory).expect("a directory");
    let sync = fsync(directory);
    println!("one fdatasync of 4 KiB: overwritten {:?}, appended {:?}", sync.0, sync.1);
    let names = ["sqlite", "redb"];
    let open = |name: &str| -> Arc<dyn StateStore> {
        let directory = directory.join(name);
        std::fs::create_dir_all(&directory).expect("a directory");
        match name {
            "sqlite" => Arc::new(Embedded::open(&directory).expect("a state")),
            _ => Arc::new(Redb::open(&directory)),
        }
    };
    for name in names {
        let store = open(name);
        let begun = Instant::now();
        fill(&*store, rows).await;
        println!("{name}: {rows} records of 300 bytes written in {:?}", begun.elapsed());
        store.close().await;
    }
    let mut one = [const { Vec::new() }; 2];
    let mut many = [const { Vec::new() }; 2];
    let mut opened = [const { Vec::new() }; 2];
    let mut reads = [const { Vec::new() }; 2];
    let mut refused = [const { Vec::new() }; 2];
    let mut lists = [const { Vec::new() }; 2];
    for round in 0..ROUNDS {
        for (at, name) in names.into_iter().enumerate() {
            let begun = Instant::now();
            let store = open(name);
            assert!(store.get("task/00000001").await.expect("a read").is_some());
            opened[at].push(begun.elapsed());
            for number in 0..400 {
                let begun = Instant::now();
                store.write(task(&format!("one/{round}/{number}"))).await.expect("a write");
                one[at].push(begun.elapsed());
                let begun = Instant::now();
                assert!(store.write(task(&format!("one/{round}/{number}"))).await.is_err());
                refused[at].push(begun.elapsed());
                let begun = Instant::now();
                store.get(&format!("task/{:08}", number * 7919 % rows)).await.expect("a read");
                reads[at].push(begun.elapsed());
            }
            for burst in 0..3 {
                let begun = Instant::now();
                let writes: Vec<_> = (0..1000)
                    .map(|number| {
                        let (store, changes) = (Arc::clone(&store), task(&format!("many/{round}/{burst}/{number}")));
                        tokio::spawn(async move { store.write(changes).await.expect("a write") })
                    })
                    .collect();
                for write in writes {
                    write.await.expect("a write");
                }
                many[at].push(begun.elapsed());
            }
            let begun = Instant::now();
            assert_eq!(store.list(Query::below("task/", 100).reversed()).await.expect("a list").len(), 100.min(rows));
            lists[at].push(begun.elapsed());
            store.close().await;
        }
    }
    let show = |what: &str, times: &mut [Vec<Duration>; 2]| {
        for (times, name) in times.iter_mut().zip(names) {
            times.sort();
            let at = |part: usize| times[(times.len() * part / 100).min(times.len() - 1)];
            println!("{name}: {what}: median {:?}, 95 % {:?}, most {:?}", at(50), at(95), at(100));
        }
    };
    show("one acknowledged task (three records)", &mut one);
    show("one refused task (nothing is synced)", &mut refused);
    show("a thousand tasks at once", &mut many);
    show("opened and read with all rows", &mut opened);
    show("one read", &mut reads);
    show("a list of 100", &mut lists);
    for name in names {
        let files = std::fs::read_dir(directory.join(name)).expect("a directory");
        let bytes: u64 = files.map(|file| file.expect("a file").metadata().expect("its size").len()).sum();
        println!("{name}: {} MB on disk", bytes / 1_000_000);
    }
    let sync = fsync(directory);
    println!("one fdatasync of 4 KiB: overwritten {:?}, appended {:?}", sync.0, sync.1);
}

/// What a new task writes: its record, its input and the index of its owner.
fn task(id: &str) -> Vec<Change> {
    vec![
        Change::put(format!("task/{id}"), vec![b'x'; 300]).expecting(Expect::Absent),
        Change::put(format!("input/{id}"), vec![b'x'; 100]),
        Change::put(format!("owner/0123456789abcdef/{id}"), ""),
    ]
}

async fn fill(store: &dyn StateStore, rows: usize) {
    for from in (0..rows).step_by(10_000) {
        let puts = (from..rows.min(from + 10_000)).map(|row| Change::put(format!("task/{row:08}"), vec![b'x'; 300]));
        store.write(puts.collect()).await.expect("a write");
    }
}

/// The medians of a synced page that is overwritten, and of one that is appended.
fn fsync(directory: &Path) -> (Duration, Duration) {
    let path = directory.join("fsync");
    let file = File::create(&path).expect("a file");
    let median = || {
        let mut times: Vec<_> = (0..300)
            .map(|page| {
                file.write_all_at(&[b'x'; 4096], page * 4096).expect("a write");
                let begun = Instant::now();
                file.sync_data().expect("a sync");
                begun.elapsed()
            })
            .collect();
        times.sort();
        times[150]
    };
    let appended = median();
    let overwritten = median();
    std::fs::remove_file(path).expect("a file");
    (overwritten, appended)
}
