//! Nothing outlives its call, and nothing its server, even one that is killed. The test is a program of its own, because the reaper is
//! the server's program with a hidden command: it plays the server, the reaper and the test.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "all of this is a test, without the harness"
)]

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use orla_marketplace::{Call, CapabilityMarketplace, Limits};
use orla_process::{Instance, PoolLimits, init, reaper};
use orla_providers::tool::{Loader, ToolExecutor};
use rustix::process::{Pid, Signal, kill_process};

use orla_marketplace::testing::TEST_TIMEOUT;
const CALLS: usize = 15;

fn main() -> ExitCode {
    if let Some(code) = init::run_if_first() {
        return code;
    }
    if reaper::run_if_asked() {
        return ExitCode::SUCCESS;
    }
    let args: Vec<String> = env::args().collect();
    match args.get(1).map(String::as_str) {
        Some("--play-server") => serve(Path::new(&args[2])),
        Some("--play-container") => return leave_orphans(),
        Some("--play-starved") => starve(),
        // A list is what test runners ask for first.
        Some("--list") => println!("leftovers: test"),
        _ => {
            nothing_outlives_a_call();
            nothing_outlives_a_server(true);
            nothing_outlives_a_server(false);
            a_starved_server_recovers();
            the_first_process_reaps_for_others();
        }
    }
    ExitCode::SUCCESS
}

/// Runs every tool often at once, says its reaper's id, and ends when standard input does.
fn serve(directory: &Path) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let instance = Instance::guarded();
    let market = Arc::new(CapabilityMarketplace::new(Limits::default()));
    let executor = ToolExecutor::new(Arc::clone(&instance), PoolLimits::default());
    market.register_executor(Arc::new(executor)).unwrap();
    for registration in Loader::default()
        .load(
            directory,
            orla_process::Limits::default(),
            &Default::default(),
            Instance::unguarded().sandboxes(),
            &|_, _, asked| asked,
        )
        .unwrap()
        .registrations
    {
        market.register_capability(registration).unwrap();
    }
    let tasks = tokio_util::task::TaskTracker::new();
    for name in ["plain", "escapes", "clears", "cleared"] {
        for _ in 0..CALLS {
            let market = Arc::clone(&market);
            tasks.spawn_on(async move { market.call(Call::to(name)).await }, runtime.handle());
        }
    }
    let reaper = eventually(|| instance.reaper_id());
    println!("{reaper}");
    std::io::stdout().flush().unwrap();
    let mut end = String::new();
    let _ = std::io::stdin().read_line(&mut end);
}

/// Without descriptors a call fails with the system's reason, and the next one works again. Its own
/// process, as the limit is the whole process's.
fn a_starved_server_recovers() {
    assert!(Command::new(env::current_exe().unwrap()).arg("--play-starved").status().unwrap().success());
}

fn starve() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let directory = tempfile::tempdir().unwrap();
    write(&directory.path().join("tool"), "#!/bin/sh\necho ok\n");
    let (runtime, market) = market_of(directory.path());
    let call = || runtime.block_on(market.call(Call::to("tool")));
    call().unwrap();
    let before = getrlimit(Resource::Nofile);
    let held = fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    for spare in 0..8 {
        let mut limit = before;
        limit.current = Some(held + spare);
        setrlimit(Resource::Nofile, limit).unwrap();
        let result = call().map(drop).map_err(|err| err.to_string());
        setrlimit(Resource::Nofile, before).unwrap();
        // With some to spare it works, be it without one to watch the exit by.
        let expected = Err("tool could not start: Too many open files".to_owned());
        assert!(result == expected || (spare > 0 && result.is_ok()), "{spare}: {result:?}");
        call().unwrap();
    }
}

/// As a container's first process, the server has no zombie although its tools leave orphans.
fn the_first_process_reaps_for_others() {
    let namespace = ["--pid", "--fork", "--mount-proc", "--kill-child"];
    let may = Command::new("unshare").args(namespace).arg("true").stderr(Stdio::null()).status();
    if !may.is_ok_and(|status| status.success()) {
        return; // Only a privileged user may have process ids of its own.
    }
    let status = Command::new("unshare")
        .args(namespace)
        .arg(env::current_exe().unwrap())
        .arg("--play-container")
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(7));
}

/// Runs tools that leave processes behind, and gives 7 once none of them is there, not as a zombie.
fn leave_orphans() -> ExitCode {
    let directory = tempfile::tempdir().unwrap();
    write(
        &directory.path().join("tool"),
        "#!/bin/sh\n(sleep 1000 & sleep 1000 &) ; setsid true &\necho ok\n",
    );
    let (runtime, market) = market_of(directory.path());
    for _ in 0..10 {
        runtime.block_on(market.call(Call::to("tool"))).unwrap();
    }
    // Left are the first process and this one; what else there is has to go.
    eventually(|| {
        let is_process =
            |entry: &fs::DirEntry| entry.file_name().to_string_lossy().parse::<u32>().is_ok();
        let count = fs::read_dir("/proc").unwrap().flatten().filter(is_process).count();
        (count == 2).then_some(())
    });
    ExitCode::from(7)
}

fn market_of(directory: &Path) -> (tokio::runtime::Runtime, CapabilityMarketplace) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let market = CapabilityMarketplace::new(Limits::default());
    let executor =
        ToolExecutor::new(Instance::unguarded(), PoolLimits { max_threads: 1, ..PoolLimits::default() });
    market.register_executor(Arc::new(executor)).unwrap();
    for registration in Loader::default()
        .load(
            directory,
            orla_process::Limits::default(),
            &Default::default(),
            Instance::unguarded().sandboxes(),
            &|_, _, asked| asked,
        )
        .unwrap()
        .registrations
    {
        market.register_capability(registration).unwrap();
    }
    (runtime, market)
}

/// Descriptors, threads and children are as many after a hundred calls as after the first.
fn nothing_outlives_a_call() {
    let directory = tempfile::tempdir().unwrap();
    for (name, script) in
        [("fails", "echo out; echo err >&2; exit 3"), ("leaves", "sleep 1000 & exit 0"), ("cannot", "")]
    {
        let first = if name == "cannot" { "#!/opt/none/python9" } else { "#!/bin/sh" };
        write(&directory.path().join(name), &format!("{first}\n{script}\n"));
    }
    let (runtime, market) = market_of(directory.path());
    let call_all = || {
        for name in ["fails", "leaves", "cannot"] {
            let _ = runtime.block_on(market.call(Call::to(name)));
        }
    };
    let held = || {
        let entries = |path: &str| fs::read_dir(path).unwrap().count();
        let children = fs::read_to_string(format!("/proc/self/task/{}/children", std::process::id()))
            .unwrap_or_default();
        (entries("/proc/self/fd"), entries("/proc/self/task"), children)
    };
    call_all();
    let before = held();
    for _ in 0..100 {
        call_all();
    }
    assert_eq!(held(), before);
}

fn write(path: &Path, script: &str) {
    fs::write(path, script).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn nothing_outlives_a_server(by_sigkill: bool) {
    let (directory, tools) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let marker = format!("leftover-{}-{by_sigkill}", std::process::id());
    let scripts = [
        ("plain", format!("#!/bin/bash\nexec -a {marker} sleep 1000\n")),
        ("escapes", format!("#!/bin/bash\nsetsid bash -c 'exec -a {marker} sleep 1000' & wait\n")),
        ("clears", format!("#!/bin/bash\nenv -i bash -c 'exec -a {marker} sleep 1000' & wait\n")),
        ("cleared", format!("#!/bin/bash\nexec -c -a {marker} sleep 1000\n")),
    ];
    for (name, script) in scripts {
        write(&tools.path().join(name), &script);
    }
    // The file of the server is called like the product.
    let program = directory.path().join("orla");
    fs::copy(env::current_exe().unwrap(), &program).unwrap();
    let mut server = Command::new(&program)
        .arg("--play-server")
        .arg(tools.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let reaper: i32 = line.trim().parse().unwrap();
    eventually(|| (count(&marker) == 4 * CALLS).then_some(()));

    // What is meant for the server does not hit the reaper, which is not found by its name either.
    for file in ["comm", "cmdline"] {
        let said = fs::read(format!("/proc/{reaper}/{file}")).unwrap();
        assert!(
            !String::from_utf8_lossy(&said).contains("orla"),
            "{file}: {}",
            String::from_utf8_lossy(&said)
        );
    }
    for signal in [Signal::HUP, Signal::INT, Signal::TERM] {
        kill_process(Pid::from_raw(reaper).unwrap(), signal).unwrap();
    }
    // The reaper's last look after a start comes a second later. Nothing shows when it looks.
    thread::sleep(Duration::from_millis(1100));
    end(&mut server, by_sigkill);
    eventually(|| (count(&marker) == 0).then_some(()));
    eventually(|| is_gone(reaper).then_some(()));
}

fn end(server: &mut Child, by_sigkill: bool) {
    if by_sigkill {
        server.kill().unwrap();
    } else {
        drop(server.stdin.take());
    }
    server.wait().unwrap();
}

/// Returns how many processes are called `marker`.
fn count(marker: &str) -> usize {
    let is_it = |process: &fs::DirEntry| {
        fs::read(process.path().join("cmdline")).is_ok_and(|line| line.starts_with(marker.as_bytes()))
    };
    fs::read_dir("/proc").unwrap().flatten().filter(is_it).count()
}

fn is_gone(pid: i32) -> bool {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Err(_) => true,
        Ok(stat) => {
            stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(['Z', 'X']))
        }
    }
}

fn eventually<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + TEST_TIMEOUT;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "it never happened");
        thread::yield_now();
    }
}
