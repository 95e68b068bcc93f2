//! What a tool inherits from the server, and what it does not.

use orla_e2e::eventually;
use serde_json::json;

use crate::{sh, world};

/// The server may have been started by something that left descriptors open.
#[test]
fn a_tool_has_three_descriptors_and_no_others() {
    let server = world()
        .tool("fds", sh("exec ls -l /proc/self/fd"))
        .file("inherited", "")
        .through(&["sh", "-c", "exec 7<inherited 8<inherited; exec \"$@\"", "--"])
        .serve();
    let mut clients: Vec<_> = (0..8).map(|_| server.client()).collect();
    let pending: Vec<_> = clients.iter_mut().map(|client| client.begin_call("fds", json!({}))).collect();
    for (client, pending) in clients.iter_mut().zip(pending) {
        let result = client.finish_call(pending).unwrap();
        let target = |line: &str| Some(line.split_once(" -> ")?.1.to_owned());
        let mut open: Vec<_> = result.stdout().lines().filter_map(target).collect();
        // The directory that `ls` reads.
        open.retain(|target| !target.starts_with("/proc/"));
        assert!(open.len() == 3 && open.iter().all(|target| target.starts_with("pipe:")), "{open:?}");
    }
}

/// `nohup` and background shells leave signals ignored; a tool that relies on them would hang.
#[test]
fn a_tool_starts_with_no_signal_ignored_or_blocked() {
    let server = world()
        .tool("signals", sh("exec grep -E 'Sig(Ign|Blk)' /proc/self/status"))
        .through(&["sh", "-c", "trap '' INT QUIT PIPE USR1; exec \"$@\"", "--"])
        .serve();
    let result = server.client().call("signals", json!({}));
    for line in result.stdout().lines() {
        let mask = line.split_whitespace().last().unwrap();
        // The C library keeps signals 32 and 33 to itself: no program can reset what it inherits of them.
        let mask = u64::from_str_radix(mask, 16).unwrap() & !(0b11 << 31);
        assert_eq!(mask, 0, "{}", result.stdout());
    }
}

/// `nohup orla &` must still reload: the signal's meaning is the server's own.
#[test]
fn a_server_that_was_started_with_hangups_ignored_still_reloads() {
    let server =
        world().tool("a", sh("echo a")).through(&["sh", "-c", "trap '' HUP; exec \"$@\"", "--"]).serve();
    server.write("tools/b", sh("echo b"), 0o755);
    server.reload();
    assert_eq!(server.client().tool_names(), ["a", "b"]);
}

#[test]
fn each_tool_is_the_leader_of_a_process_group_of_its_own() {
    let server =
        world().tool("group", sh("read -r _ _ _ _ group rest < /proc/$$/stat; echo $$ $group")).serve();
    let result = server.client().call("group", json!({}));
    let ids: Vec<_> = result.stdout().split_whitespace().collect();
    assert_eq!(ids[0], ids[1], "{}", result.stdout());
    assert_ne!(ids[0], server.id().to_string());
}

/// A relative `tools_dir` is found wherever the tools are run.
#[test]
fn tools_run_with_a_relative_directory_and_in_deep_ones() {
    let world = world().config("tools_dir: a/b/../c d/tools\n");
    std::fs::create_dir_all(world.path("a/b")).unwrap();
    world.write("a/c d/tools/it's.sh", sh("echo \"$0\"; pwd -P"), 0o755);
    let server = world.serve();
    let result = server.client().call("it_s", json!({}));
    assert!(!result.is_error(), "{}", result.json);
    let here = server.dir().canonicalize().unwrap();
    assert_eq!(result.stdout().lines().last(), here.to_str());
}

/// A script may find itself by `$0`, and its neighbours from there.
#[test]
fn a_script_finds_its_neighbours() {
    let server = world()
        .tool("t.sh", sh("cat \"$(dirname \"$0\")/data.txt\""))
        .file("tools/data.txt", "found\n")
        .serve();
    assert_eq!(server.client().call("t", json!({})).stdout(), "found\n");
}

/// What a tool does to its own limits and its own directory is its own business.
#[test]
fn a_tool_changes_nothing_for_the_next_call() {
    let server = world()
        .tool("t", sh("pwd -P; umask; ulimit -n; cd /; umask 777; ulimit -n 10; export ORLA_TOOL=x"))
        .serve();
    let mut client = server.client();
    let first = client.call("t", json!({})).stdout().to_owned();
    assert_eq!(client.call("t", json!({})).stdout(), first);
}

/// On a terminal, a tool that asks for a password would wait for ever: it gets an error instead, or ends
/// at its timeout. `script` gives the server a terminal.
#[test]
fn a_tool_that_reads_the_terminal_ends_at_its_timeout_at_the_latest() {
    let world = world()
        .tool("ask", sh("read -r answer < /dev/tty && echo \"got $answer\""))
        .config("timeout: 1\n");
    let probe = std::process::Command::new("script").arg("--version").output();
    if probe.is_err() {
        return;
    }
    let server = world
        .through(&["sh", "-c", "exec script -qec \"$* 2>log\" /dev/null >/dev/null", "--"])
        .serve_quietly();
    let result = server.client().call("ask", json!({}));
    assert!(result.is_error(), "{}", result.json);
    eventually("nothing is left of it", || server.tool_processes().is_empty());
}
