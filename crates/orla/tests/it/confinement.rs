//! Confined processes: a tool gets exactly its declared permissions. Each probe that is denied an access
//! has a twin that is granted it, so that a denial cannot have another reason.

use std::io::Read as _;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt as _;

use serde_json::{Value, json};

use crate::mcp_script::mcp_script;
use crate::{sh, world};
use orla_e2e::{Server, World, eventually};

/// Returns a tool that tries `code` and reports for each line whether it worked.
fn probe(permissions: &str, code: &str) -> String {
    sh(&format!(
        "# /// orla\n# {permissions}\n# ///\nt() {{ name=$1; shift; if \"$@\" >/dev/null 2>&1; then echo $name=ok; else echo $name=no; fi; }}\n{code}"
    ))
}

fn tried(server: &Server, tool: &str) -> String {
    let called = server.client().call(tool, json!({}));
    assert!(!called.is_error(), "{}", called.json);
    let structured = called.structured();
    structured["stdout"]
        .as_str()
        .expect("standard output is text")
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

pub(crate) fn sandbox(server: &Server, tool: &str) -> Value {
    let status = server.status();
    let rows = status["capabilities"].as_array().expect("capabilities are a list");
    rows.iter().find(|row| row["name"] == tool).expect("the tool is listed")["sandbox"].clone()
}

fn files() -> World {
    world().file("data/in", "inside").file("other/out", "outside").file("work/old", "old")
}

#[test]
fn a_process_reads_and_writes_what_it_declares_and_nothing_else() {
    let code = "t in cat data/in; t out cat other/out; t list ls other; t write sh -c 'echo > other/new'; \
                t new sh -c 'echo > work/new'; t move mv work/old work/moved; t shadow cat /etc/shadow; t hosts cat /etc/hosts";
    let world = files()
        .tool("r", probe("permissions: ['fs:read:../data']", code))
        .tool("w", probe("permissions: ['fs:read:../data', 'fs:write:../work']", code))
        .tool("u", probe("title: Unconfined", code))
        .tool("l", probe("limits: {open_files: 100}", code));
    let server = world.serve();
    assert_eq!(tried(&server, "r"), "in=ok out=no list=no write=no new=no move=no shadow=no hosts=ok");
    assert_eq!(tried(&server, "w"), "in=ok out=no list=no write=no new=ok move=ok shadow=no hosts=ok");
    assert!(tried(&server, "u").starts_with("in=ok out=ok list=ok write=ok new=ok"));
    assert_eq!(sandbox(&server, "r")["level"], "enforced");
    assert_eq!(sandbox(&server, "u"), json!({"level": "unconfined"}));
    for tool in ["u", "l"] {
        let result = server.client().call(tool, json!({}));
        assert_eq!(result.execution()["sandbox"], json!({"level": "unconfined"}), "{tool}");
    }
    assert_eq!(server.status()["sandbox"], "declared");
}

#[test]
fn the_temporary_directory_belongs_to_one_call_and_is_removed_after_it() {
    let code = "echo $TMPDIR $HOME; ls -A $TMPDIR | wc -l; echo x > $TMPDIR/f && stat -c %a $TMPDIR; cp /bin/true $TMPDIR/run; t run $TMPDIR/run";
    let server = world().tool("t", probe("permissions: []", code)).serve();
    let [one, other] = [tried(&server, "t"), tried(&server, "t")];
    let words: Vec<&str> = one.split(' ').collect();
    assert_eq!((words[0], &words[2..]), (words[1], &["0", "700", "run=no"][..]));
    assert_ne!(Some(words[0]), other.split(' ').next());
    assert!(!std::path::Path::new(words[0]).exists());
}

#[test]
fn modes_and_times_can_be_changed_where_a_process_may_write() {
    let code = r#"python3 - <<'END'
import ctypes, os, shutil
tmp, libc = os.environ["TMPDIR"], ctypes.CDLL(None, use_errno=True)
def t(name, run):
    try:
        run()
        print(f"{name}=ok")
    except OSError as err:
        print(f"{name}={err.errno}")
def with_open(path, run):
    fd = os.open(path, os.O_RDONLY)
    try: run(fd)
    finally: os.close(fd)
def call(number, *args):
    if libc.syscall(number, *args) != 0: raise OSError(ctypes.get_errno(), "")
os.symlink(os.path.abspath("other/out"), "work/link")
t("chmod", lambda: os.chmod("work/old", 0o640))
t("fchmod", lambda: with_open("work/old", lambda fd: os.chmod(fd, 0o600)))
t("at", lambda: with_open("work", lambda fd: os.chmod("old", 0o604, dir_fd=fd)))
t("proc", lambda: with_open("work/old", lambda fd: os.chmod(f"/proc/self/fd/{fd}", 0o640)))
t("utime", lambda: os.utime("work/old", (1, 86400)))
t("link_itself", lambda: os.utime("work/link", (2, 2), follow_symlinks=False))
t("temporary", lambda: (open(tmp + "/f", "w").close(), os.chmod(tmp + "/f", 0o700), os.utime(tmp + "/f")))
t("copy", lambda: shutil.copy2("data/in", "work/copy"))
t("stream", lambda: with_open("work/old", lambda fd: os.chmod(f"/dev/fd/{fd}", 0o640)))
t("below", lambda: with_open("work", lambda fd: os.chmod(f"/proc/self/fd/{fd}/old", 0o640)))
t("here", lambda: os.chmod("/proc/self/cwd/work/old", 0o640))
t("owner", lambda: os.chown("work/old", os.getuid(), -1))
t("shared", lambda: (os.mkdir("work/dir"), os.chmod("work/dir", 0o2755)))
t("link", lambda: os.chmod("work/link", 0o777))
t("link_times", lambda: os.utime("work/link", (3, 3)))
t("above", lambda: os.chmod("work/../other/out", 0o777))
t("beside", lambda: os.chmod("workers/x", 0o777))
t("readable", lambda: os.chmod("data/in", 0o777))
t("open", lambda: with_open("data/in", lambda fd: os.chmod(fd, 0o777)))
t("open_times", lambda: with_open("data/in", lambda fd: os.utime(fd)))
t("root", lambda: os.chmod("/proc/self/root" + os.path.abspath("other/out"), 0o777))
t("setuid", lambda: os.chmod("work/old", 0o4755))
t("setgid", lambda: os.chmod("work/old", 0o2755))
t("below_other", lambda: with_open("data", lambda fd: os.chmod(f"/proc/self/fd/{fd}/in", 0o777)))
t("absent", lambda: os.chmod("work/absent", 0o600))
t("padded", lambda: with_open("work/old", lambda fd: os.chmod(f"/dev/fd/0{fd}", 0o640)))
t("closed", lambda: os.chmod(999, 0o600))
t("pipe", lambda: os.chmod(1, 0o777))
t("bad_pointer", lambda: call(90, ctypes.c_void_p(8), 0o777))
t("attribute", lambda: os.setxattr("work/old", "user.orla", b"x"))
t("other_attribute", lambda: os.setxattr("data/in", "user.orla", b"x"))
t("other_owner", lambda: os.chown("work/old", os.getuid() + 1, -1))
t("owner_beside", lambda: os.chown("data/in", os.getuid(), -1))
t("around", lambda: os.chmod(os.path.dirname(tmp), 0o755))
os.symlink("/proc/1", "work/first")
found = set()
for fd in range(64):
    for path in [f"/proc/1/fd/{fd}", f"work/first/fd/{fd}/old", f"/proc/1/../1/fd/{fd}/../work/old"]:
        try:
            os.chmod(path, 0o777)
            found.add("changed")
        except OSError as err:
            found.add(err.errno)
print(f"first={sorted(found)}")
END
cp -p data/in work/kept && install -m 600 data/in work/installed && echo copies=ok"#;
    let world = files()
        .file("workers/x", "beside")
        .tool("w", probe("permissions: ['fs:read:../data', 'fs:write:../work']", code))
        .tool(
            "all",
            probe("permissions: ['fs:write:/']", "t mode chmod 600 work/old; t other chmod 600 data/in"),
        )
        .tool(
            "none",
            probe(
                "permissions: ['fs:read:../work']",
                "t mode chmod 777 work/old; t own sh -c 'echo > $TMPDIR/f && chmod 700 $TMPDIR/f'",
            ),
        );
    let directory = world.path("");
    let modes = || {
        ["other/out", "data/in", "workers/x"].map(|path| {
            let file = std::fs::metadata(directory.join(path)).unwrap();
            (file.mode(), file.mtime(), file.mtime_nsec())
        })
    };
    let before = modes();
    let server = world.serve();
    let tried_one = tried(&server, "w");
    let allowed = "chmod=ok fchmod=ok at=ok proc=ok utime=ok link_itself=ok temporary=ok copy=ok stream=ok below=ok here=ok owner=ok shared=ok";
    let refused = "link=1 link_times=1 above=1 beside=1 readable=1 open=1 open_times=1 root=40 setuid=1 setgid=1 below_other=1";
    let wrong = "absent=2 padded=2 closed=9 pipe=1 bad_pointer=14 attribute=95 other_attribute=1 other_owner=1 owner_beside=1 around=1 first=[2, 40] copies=ok";
    assert_eq!(tried_one, format!("{allowed} {refused} {wrong}"));
    assert_eq!(tried(&server, "none"), "mode=no own=ok");
    assert_eq!(modes(), before);
    let changed = std::fs::metadata(directory.join("work/old")).unwrap();
    assert_eq!((changed.mode() & 0o7777, changed.mtime()), (0o640, 86400));
    assert_eq!(tried(&server, "all"), "mode=ok other=ok");
}

#[test]
fn a_process_without_net_reaches_nobody() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let code = format!(
        "python3 -c \"
import socket
def t(name, f):
    try: f(); print(name + '=ok')
    except OSError: print(name + '=no')
t('tcp', lambda: socket.create_connection(('127.0.0.1', {port}), 2).sendall(b'x'))
t('udp', lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
t('unix', lambda: socket.socket(socket.AF_UNIX))
t('netlink', lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))
t('pair', lambda: socket.socketpair())
t('datagrams', lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))
t('raw', lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_RAW))
\""
    );
    let server = world()
        .tool("none", probe("permissions: []", &code))
        .tool("all", probe("permissions: [net]", &code))
        .serve();
    assert_eq!(tried(&server, "none"), "tcp=no udp=no unix=no netlink=no pair=ok datagrams=no raw=no");
    assert_eq!(tried(&server, "all"), "tcp=ok udp=ok unix=no netlink=ok pair=ok datagrams=no raw=no");
    // The first that came is the one of the second tool.
    let mut said = [0];
    listener.accept().unwrap().0.read_exact(&mut said).unwrap();
}

#[test]
fn a_process_sees_no_other_and_its_tree_ends_with_it() {
    let mark = format!("3{:05}", std::process::id() % 100_000);
    let code = format!(
        "setsid sleep {mark} >/dev/null 2>&1 & t all kill -0 {}; ls /proc | grep -c '^[0-9]'",
        std::process::id()
    );
    let server = world().tool("t", probe("permissions: []", &code)).serve();
    let said = tried(&server, "t");
    let (all, count) = said.split_once(' ').unwrap();
    assert!(all == "all=no" && count.parse::<u32>().unwrap() < 10, "{said}");
    let runs = || {
        let cmdlines = std::fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
        cmdlines.into_iter().any(|line| line.ends_with(format!("sleep\0{mark}\0").as_bytes()))
    };
    eventually("the process in a session of its own is gone", || !runs());
}

#[test]
fn a_confined_programs_exit_is_reported_like_any_other() {
    let head = "# /// orla\n# permissions: []\n# ///\n";
    let server = world()
        .tool("seven", sh(&format!("{head}echo out; echo err >&2; exit 7")))
        .tool("killed", sh(&format!("{head}kill -SEGV $$")))
        .tool("slow", sh(&format!("{head}# \nsleep 60")))
        .config("tools: {slow: {timeout: 0.3}}")
        .serve();
    let mut client = server.client();
    let seven = client.call("seven", json!({}));
    assert_eq!(seven.structured(), &json!({"stdout": "out\n", "stderr": "err\n", "exit_code": 7}));
    let meta = &seven.json["_meta"]["orla/execution"]["sandbox"];
    assert!(meta["level"] == "enforced" && meta["profile"].is_string(), "{meta}");
    let killed = client.call("killed", json!({}));
    assert_eq!(killed.sentence(), "killed was killed by SIGSEGV");
    assert!(client.call("slow", json!({})).sentence().contains("timed out"));
}

#[test]
fn a_misspelt_permission_is_an_error_of_the_declaration() {
    let world = world().tool("t", probe("permissions: ['fs:reed:/usr']", "true"));
    let checked = world.run(&["check"]);
    assert_eq!(checked.code, Some(1));
    assert!(checked.all().contains("did you mean read?"), "{}", checked.all());
    let server = world.tool("other", probe("permissions: ['db:prod']", "t true true")).serve();
    assert_eq!(tried(&server, "other"), "true=ok");
    let called = server.client().call("t", json!({}));
    assert!(called.is_error(), "{}", called.json);
}

#[test]
fn a_tool_that_cannot_be_confined_is_unavailable_unless_fallback_is_allowed() {
    let tool = || probe("permissions: ['unix:/run/x.sock']", "t true true");
    let server = world().tool("t", tool()).serve();
    let called = server.client().call("t", json!({}));
    assert!(called.is_error() && called.sentence().contains("unix:/run/x.sock"), "{}", called.json);
    assert_eq!(sandbox(&server, "t")["level"], "unavailable");
    let server = world().tool("t", tool()).config("sandbox_fallback: allow").serve();
    assert_eq!(tried(&server, "t"), "true=ok");
    let shown = sandbox(&server, "t");
    assert!(shown["level"] == "unconfined" && shown["missing"][0].is_string(), "{shown}");
}

#[test]
fn a_reload_that_fails_leaves_the_mode_as_it_was() {
    let server = files().tool("u", probe("title: U", "t out cat other/out")).serve();
    for (failed, mode) in [(1, "strict"), (2, "off")] {
        server.write("orla.yaml", format!("sandbox: {mode}\ntools_dir: ./tools/u\n"), 0o644);
        server.signal(rustix::process::Signal::HUP);
        eventually("the reload fails", || {
            server.log_lines().iter().filter(|line| line.says(&["reload failed", "tools_dir"])).count()
                == failed
        });
        assert_eq!(server.status()["sandbox"], "declared");
        assert_eq!(tried(&server, "u"), "out=ok");
    }
}

#[test]
fn strict_confines_what_declares_nothing_and_off_confines_nothing() {
    let code = "t out cat other/out";
    let declared = probe("permissions: []", code);
    let strict = files().tool("u", probe("title: U", code)).config("sandbox: strict").serve();
    assert_eq!(tried(&strict, "u"), "out=no");
    assert_eq!(sandbox(&strict, "u")["level"], "enforced");
    let off = files().tool("d", declared).config("sandbox: off").serve();
    assert_eq!(tried(&off, "d"), "out=ok");
    assert_eq!(
        (&off.status()["sandbox"], &sandbox(&off, "d")["level"]),
        (&json!("off"), &json!("unconfined"))
    );
}

#[test]
fn a_call_over_its_limits_ends_with_an_error_that_names_the_limit() {
    let head = |limits: &str| format!("# /// orla\n# permissions: []\n# limits: {{{limits}}}\n# ///\n");
    let server = world()
        .tool(
            "processes",
            sh(&format!("{}for i in 1 2 3 4 5 6 7 8 9; do sleep 30 & done; wait", head("processes: 4"))),
        )
        .tool("cpu", sh(&format!("{}while :; do :; done", head("cpu_seconds: 1"))))
        .tool("file", sh(&format!("{}head -c 100000 /dev/zero > $TMPDIR/f", head("file_size: 1000"))))
        .tool(
            "fine",
            sh(&format!(
                "{}echo fine",
                head("processes: 4, memory: 64Mi, cpu_seconds: 5, open_files: 20")
            )),
        )
        .serve();
    let mut client = server.client();
    for (tool, limit) in [("processes", "limit of processes"), ("cpu", "limit of cpu_seconds")] {
        let called = client.call(tool, json!({}));
        assert!(called.is_error() && called.sentence().contains(limit), "{}", called.json);
    }
    assert!(client.call("file", json!({})).is_error());
    assert_eq!(client.call("fine", json!({})).structured()["stdout"], "fine\n");
}

#[test]
fn memory_counts_after_the_first_thread_of_a_process_has_ended() {
    let code = "python3 -c \"
import ctypes, os, threading, time
def hold():
    while 'zombie' not in open('/proc/self/status').read(): pass
    held = b'x' * (40 << 20)
    time.sleep(30)
for _ in range(3):
    if os.fork() == 0:
        threading.Thread(target=hold).start()
        ctypes.CDLL(None).pthread_exit(None)
os.wait()
\"";
    let head = "# /// orla\n# permissions: []\n# limits: {memory: 96Mi}\n# ///\n";
    let server = world().tool("t", sh(&format!("{head}{code}"))).serve();
    let called = server.client().call("t", json!({}));
    assert!(called.is_error() && called.sentence().contains("limit of memory"), "{}", called.json);
}

#[test]
fn counts_of_the_machine_and_keys_of_file_systems_are_out_of_reach() {
    let code = "python3 -c \"
import ctypes, fcntl, os
number = {'x86_64': 206, 'aarch64': 0}[os.uname().machine]
context = ctypes.c_ulong(0)
print('io_setup', ctypes.CDLL(None).syscall(number, 8, ctypes.byref(context)))
for request in 0xC0406618, 0xC0406619:
    try: fcntl.ioctl(os.open('/etc/hosts', os.O_RDONLY), request, bytes(64))
    except OSError as error: print(error.strerror)
\"";
    let server = world().tool("t", sh(&format!("# /// orla\n# permissions: []\n# ///\n{code}"))).serve();
    let refused = "Operation not permitted";
    assert_eq!(
        server.client().call("t", json!({})).stdout(),
        format!("io_setup -1\n{refused}\n{refused}\n")
    );
}

#[test]
fn an_option_of_env_does_not_choose_what_a_script_may_read() {
    let world = files().file("other/lib/x", "");
    world.write("other/bin/x", sh("true"), 0o755);
    let x = world.path("other/bin/x");
    let script = |options: &str| {
        format!(
            "#!/usr/bin/env -S {options} {} sh\n# /// orla\n# permissions: []\n# ///\ncat {} || echo refused\n",
            x.display(),
            world.path("other/out").display()
        )
    };
    let (plain, joined) = (script("-u"), script("-iu"));
    let server = world.tool("plain", plain).tool("joined", joined).serve();
    assert_eq!(tried(&server, "plain"), "refused");
    assert_eq!(tried(&server, "joined"), "refused");
}

#[test]
fn a_server_that_goes_over_its_limits_ends_with_an_error_that_names_the_limit() {
    let spin = mcp_script("spin", "", "        while True: pass");
    let config = "mcpServers:\n  s: {command: python3, args: [s.py], cwd: ., permissions: [], limits: {cpu_seconds: 1}}\n";
    let server = world().file("s.py", spin).config(config).serve();
    let called = server.client().call("s__spin", json!({}));
    assert!(called.is_error() && called.sentence().contains("limit of cpu_seconds"), "{}", called.json);
}

#[test]
fn a_killed_launcher_is_restarted() {
    let server = world().tool("t", probe("permissions: []", "t true true")).serve();
    assert_eq!(tried(&server, "t"), "true=ok");
    let launchers = launchers_of(server.id());
    assert!(!launchers.is_empty());
    for pid in launchers {
        std::process::Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
    }
    assert_eq!(tried(&server, "t"), "true=ok");
}

#[test]
fn nothing_that_a_call_leaves_is_visible_to_the_next_one() {
    let code = "python3 -c \"
import ctypes, os, subprocess
libc = ctypes.CDLL(None)
place = os.environ['TMPDIR']
print(len(os.listdir(place)), sum(name.isdigit() for name in os.listdir('/proc')))
print(len(open('/proc/sysvipc/shm').readlines()))
print(libc.mq_open(b'/queue', os.O_CREAT, 0o600, None))
os.makedirs(place + '/a/b'); os.symlink('/', place + '/a/b/link'); open(place + '/a/f', 'w').write('x')
subprocess.Popen(['setsid', 'sleep', '300'], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
libc.shmget(0x1230, 4096, 0o1600)
\"";
    let server = world().tool("t", probe("permissions: []", code)).serve();
    let first = tried(&server, "t");
    assert!(first.starts_with("0 ") && first.ends_with(" 1 -1"), "{first}");
    for _ in 0..3 {
        assert_eq!(tried(&server, "t"), first);
    }
}

#[test]
fn compartments_end_with_the_server() {
    let mut server = world()
        .tool("t", probe("permissions: []", "setsid sleep 300 & sleep 300 & t true true"))
        .serve();
    assert_eq!(tried(&server, "t"), "true=ok");
    let all = descendants_of(server.id());
    assert!(all.len() >= 3, "{all:?}");
    server.kill();
    eventually("none of them is left", || all.iter().all(|pid| !is_running(*pid)));
}

/// Returns the descendants of a process.
fn descendants_of(process: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let children = tasks
        .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok())
        .flat_map(|text| text.split(' ').filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>());
    children.flat_map(|child| [vec![child], descendants_of(child)].concat()).collect()
}

/// Returns whether it is there and not a zombie.
fn is_running(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"));
    stat.is_ok_and(|stat| !stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z')))
}

#[test]
fn a_link_that_a_program_may_change_widens_nothing() {
    let world = files().file("work/sub/x", "").tool("before", "#!/bin/sh\necho unconfined\n");
    std::os::unix::fs::symlink("work/sub", world.path("current")).unwrap();
    let swap = "[ -L work/sub ] || { rm -r work/sub; ln -s ../other work/sub; }; t out cat other/out";
    let server = world
        .tool("named", probe("permissions: ['fs:write:../work', 'fs:read:../work/sub']", swap))
        .tool("linked", probe("permissions: ['fs:write:../work', 'fs:read:../current']", swap))
        .serve();
    assert_eq!(tried(&server, "named"), "out=no");
    let both_are_refused = || {
        for tool in ["named", "linked"] {
            let result = server.client().call(tool, json!({}));
            let text = result.sentence();
            assert!(result.is_error() && text.contains("a link leads out"), "{text}");
        }
    };
    both_are_refused();
    server.reload();
    both_are_refused();
}

#[test]
fn a_program_does_not_free_itself_by_breaking_its_own_declaration() {
    let declared = "permissions: ['fs:write:../work', 'fs:read:../work/sub']";
    let server = files()
        .file("work/sub/x", "")
        .config("sandbox_fallback: allow")
        .tool("linked", probe(declared, "rm -r work/sub; ln -s ../other work/sub; t out cat other/out"))
        .serve();
    assert_eq!(tried(&server, "linked"), "out=no");
    let is_refused = || {
        server.reload();
        let called = server.client().call("linked", json!({}));
        assert!(called.is_error(), "{}", called.json);
        assert_eq!(sandbox(&server, "linked")["level"], "unavailable");
    };
    is_refused();
    std::fs::remove_file(server.path("work/sub")).unwrap();
    is_refused();
}

#[test]
fn the_fallback_covers_neither_what_another_program_removed_nor_limits_that_leave_no_room() {
    let server = files()
        .file("work/in/x", "")
        .config("sandbox_fallback: allow")
        .tool("removes", probe("permissions: ['fs:write:../work']", "rm -r work/in; t gone true"))
        .tool("reads", probe("permissions: ['fs:read:../work/in']", "t out cat other/out"))
        .tool("tiny", probe("permissions: []\n# limits: {memory: 1Ki}", "t out cat other/out"))
        .serve();
    assert_eq!(sandbox(&server, "tiny")["level"], "unavailable");
    assert_eq!(tried(&server, "reads"), "out=no");
    assert_eq!(tried(&server, "removes"), "gone=ok");
    server.reload();
    assert_eq!(sandbox(&server, "reads")["level"], "unavailable");
    assert!(server.client().call("reads", json!({})).is_error());
}

#[test]
fn links_in_writable_places_do_not_make_each_other_writable() {
    let world = world()
        .file("other/out", "outside")
        .file("home/.cache/uv/x", "")
        .file("home/.local/share/uv/x", "")
        .file("w/a/x", "")
        .file("w/b/x", "");
    let home = world.path("home");
    let link = |name: &str, target: &str| {
        format!("[ -L {name} ] || {{ rm -r {name}; ln -s {target} {name}; }}; ")
    };
    let twice = link("w/a", "../other") + &link("w/b", "../other") + "t new sh -c 'echo > w/a/new'";
    let server = world
        .env("HOME", home)
        .tool(
            "two",
            probe("permissions: ['fs:write:../w', 'fs:write:../w/a', 'fs:write:../w/b']", &twice),
        )
        .tool(
            "system",
            probe(
                "permissions: ['fs:write:../home', 'fs:write:../home/.local']",
                &(link("home/.local", "/usr") + "t new sh -c 'echo > home/.local/new'"),
            ),
        )
        .tool(
            "cache",
            probe(
                "permissions: ['fs:write:~/.cache', 'preset:uvx']",
                &(link("home/.cache/uv", "../../other") + "t out cat other/out"),
            ),
        )
        .serve();
    // The cache comes first, because another tool removes a part of it.
    for tool in ["cache", "two", "system"] {
        assert!(tried(&server, tool).ends_with("=no"), "{tool}");
        let called = server.client().call(tool, json!({}));
        let text = called.sentence();
        assert!(called.is_error() && text.contains("a link leads out"), "{tool}: {text}");
    }
}

#[test]
fn a_call_gets_the_files_to_which_its_declaration_leads_now() {
    let code = "t read cat conf; t in cat data/in; t new sh -c 'echo > data/new'; t moved cat moved/in; \
                t write sh -c 'echo > moved/new'";
    let world = files().file("conf", "one");
    let permissions = "permissions: ['fs:read:../conf', 'fs:write:../data']";
    let world = world.tool("t", probe(permissions, code)).tool(
        "waiting",
        "#!/bin/sh\n# /// orla\n# permissions: ['fs:read:../conf']\n# prestart: 1\n# ///\nread input; cat conf\n",
    );
    let dir = world.dir().to_owned();
    let path = |name: &str| dir.join(name);
    let server = world.serve();
    let replace = |text: &str| {
        std::fs::write(path("conf.new"), text).unwrap();
        std::fs::rename(path("conf.new"), path("conf")).unwrap();
    };
    let waiting = || {
        let called = server.client().call("waiting", json!({}));
        called.structured()["stdout"].as_str().expect("standard output is text").to_owned()
    };
    assert_eq!(tried(&server, "t"), "read=ok in=ok new=ok moved=no write=no");
    assert_eq!(waiting(), "one");
    replace("two");
    std::fs::rename(path("data"), path("moved")).unwrap();
    std::fs::create_dir(path("data")).unwrap();
    assert_eq!(tried(&server, "t"), "read=ok in=no new=ok moved=no write=no");
    assert_eq!(waiting(), "two");
    std::fs::remove_dir_all(path("data")).unwrap();
    let called = server.client().call("t", json!({}));
    assert!(called.is_error() && called.sentence().contains("fs:write:"), "{}", called.json);
    std::fs::rename(path("moved"), path("data")).unwrap();
    assert_eq!(tried(&server, "t"), "read=ok in=ok new=ok moved=no write=no");
}

#[test]
fn a_refusal_is_explained_by_the_files_to_which_links_lead_now() {
    let world = world().file("one/in", "1").file("two/in", "2");
    let (link, dir) = (world.path("current"), std::fs::canonicalize(world.dir()).unwrap());
    std::os::unix::fs::symlink("one", &link).unwrap();
    let code = "#!/bin/sh\n# /// orla\n# permissions: ['fs:read:../current']\n# ///\nread input\ncat \"$PWD/one/in\" \"$PWD/two/in\"\n";
    let server = world.tool("t", code).serve();
    let refused = || {
        let called = server.client().call("t", json!({}));
        called.json["_meta"]["orla/execution"]["sandbox"]["refused"]["permission"].clone()
    };
    let permission = |name: &str| json!(format!("fs:read:{}", dir.join(name).display()));
    assert_eq!(refused(), permission("two"));
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink("two", &link).unwrap();
    assert_eq!(refused(), permission("one"));
}

#[test]
fn a_program_holds_up_no_other_by_a_lease() {
    let code = "python3 -c \"
import fcntl
try: fcntl.fcntl(open('/etc/hosts'), 1024, fcntl.F_RDLCK); print('held')
except OSError: print('refused')
\"";
    let server = world().tool("t", probe("permissions: []", code)).serve();
    assert_eq!(tried(&server, "t"), "refused");
}

#[test]
fn requests_to_a_file_system_create_nothing_where_a_program_may_only_read() {
    // Btrfs makes a subvolume or a snapshot through a descriptor that is open to read, and FAT sets the mode of a file.
    let code = "python3 -c \"
import errno, fcntl, os
def t(name, request):
    try: fcntl.ioctl(os.open('/usr', os.O_RDONLY), request, bytearray(4096)); print(name + '=passed')
    except OSError as err: print(name + ('=refused' if err.errno == errno.EPERM else '=passed'))
t('subvolume', 0x5000940e)
t('snapshot', 0x50009401)
t('fat', 0x40047211)
t('clone', 0x40049409)
\"";
    let server = world()
        .tool("none", probe("permissions: []", code))
        .tool("open", probe("title: Unconfined", code))
        .serve();
    assert_eq!(tried(&server, "none"), "subvolume=refused snapshot=refused fat=refused clone=passed");
    assert_eq!(tried(&server, "open"), "subvolume=passed snapshot=passed fat=passed clone=passed");
}

/// Returns the launchers of a server.
pub(crate) fn launchers_of(server: u32) -> Vec<i32> {
    let all = std::fs::read_dir("/proc")
        .expect("/proc can be read")
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_launcher = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent =
            stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse::<u32>().ok());
        let cmdline = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        parent == Some(server) && cmdline.starts_with(b"tool-launcher")
    };
    all.filter(is_launcher).collect()
}

#[test]
fn doctor_reports_what_is_in_force() {
    let world = world()
        .tool("t", probe("permissions: ['fs:read:/usr/share']", "true"))
        .tool("u", probe("title: U", "true"));
    let output = world.run(&["doctor", "--json"]);
    let report: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!(output.code, Some(0), "{}", output.all());
    let rows = report["capabilities"].as_array().unwrap();
    let row = |name: &str| rows.iter().find(|row| row["name"] == name).unwrap();
    assert_eq!(row("t")["sandbox"], "enforced");
    assert_eq!(row("t")["permissions"], json!(["fs:read:/usr/share"]));
    assert_eq!((&row("u")["sandbox"], &row("u")["missing"]), (&json!("unconfined"), &json!([])));
    let world = world.tool("n", probe("permissions: ['fs:read:/no/such/path']", "true"));
    let output = world.run(&["doctor"]);
    assert_eq!(output.code, Some(1), "{}", output.all());
    assert!(
        output.stdout.contains("Landlock") && output.stdout.contains("/no/such/path"),
        "{}",
        output.stdout
    );
}

#[test]
fn an_interpreter_gives_no_more_than_its_real_installation() {
    let code = "#!/tmp/../bin/sh\n# /// orla\n# permissions: []\n# ///\ncat other/out || echo refused\n";
    let server = files().tool("dots", code).serve();
    assert_eq!(tried(&server, "dots"), "refused");
}

#[test]
fn a_program_of_path_may_be_a_script_that_starts_the_chosen_version() {
    let world = world().file("env/libexec/note", "").file("env/secret", "x").file("secret", "x");
    let chosen = world.path("env/versions/1/bin/chosen");
    world.write("env/shims/chosen", sh(&format!("exec {}", chosen.display())), 0o755);
    world.write("env/versions/1/bin/chosen", sh("echo version 1; cat secret || echo refused"), 0o755);
    let path = std::env::var("PATH").expect("there is a PATH");
    let world = world.env("PATH", format!("{}:{path}", chosen.with_file_name("none").display()));
    let run = |path: &str| world.run(&["sandbox", "run", "--", path]);
    assert_eq!(run("chosen").code, Some(127));
    let shims = world.path("env/shims").display().to_string();
    let world = world.env("PATH", format!("{shims}:{path}"));
    let found = world.run(&["sandbox", "run", "--", "chosen"]);
    assert_eq!(found.stdout, "version 1\nrefused\n", "{}", found.all());
    // By its path it is a file alone.
    assert_ne!(world.run(&["sandbox", "run", "--", "env/shims/chosen"]).code, Some(0));
}

#[test]
fn with_its_preset_python_named_by_its_path_belongs_to_the_installation_around_it() {
    let world =
        world().file("env/pyvenv.cfg", "").file("env/lib/module", "imported").file("secret", "x");
    std::fs::create_dir_all(world.path("env/bin")).unwrap();
    std::fs::copy("/bin/sh", world.path("env/bin/python")).unwrap();
    let run = |permission: &str| {
        let script = "cat env/lib/module || echo refused; cat secret || echo refused";
        let words = ["sandbox", "run", "--permission", permission, "--", "env/bin/python", "-c", script];
        world.run(&words).stdout
    };
    assert_eq!(run("preset:python"), "importedrefused\n");
    assert_eq!(run("preset:node"), "refused\nrefused\n");
}

#[test]
fn an_interpreter_below_a_writable_directory_cannot_be_exchanged_for_a_link() {
    let world = files().file("work/venv/lib/x", "").tool("before", "#!/bin/sh\necho unconfined\n");
    std::fs::create_dir_all(world.path("work/venv/bin")).unwrap();
    std::fs::copy("/bin/sh", world.path("work/venv/bin/sh")).unwrap();
    // The link that the program could put there leads to a directory that looks like an installation too.
    std::fs::create_dir_all(world.path("other/bin")).unwrap();
    std::fs::create_dir_all(world.path("other/lib")).unwrap();
    std::fs::copy("/bin/sh", world.path("other/bin/sh")).unwrap();
    let interpreter = world.path("work/venv/bin/sh");
    let code = format!(
        "#!{}\n# /// orla\n# permissions: ['fs:write:../work']\n# ///\ncat other/out || echo refused\n\
         [ -L work/venv ] || {{ mv work/venv work/old-venv && ln -s ../other work/venv; }}\n",
        interpreter.display()
    );
    let server = world.tool("swap", &code).serve();
    assert_eq!(tried(&server, "swap"), "refused");
    let result = server.client().call("swap", json!({}));
    assert!(
        result.is_error() && result.sentence().contains("a link leads out"),
        "{}",
        result.sentence()
    );
}

#[test]
fn a_process_cannot_blind_what_watches_over_its_limits() {
    let code = "python3 -c \"
import mmap, resource
try: resource.prlimit(1, resource.RLIMIT_NOFILE, (1, 1)); print('blinded')
except OSError: print('refused')
import os
try: os.memfd_create('x'); print('hidden')
except OSError: print('refused')
try: mmap.mmap(-1, 4096); print('hidden')
except OSError: print('refused')
try: open('/dev/zero', 'r+b'); print('hidden')
except OSError: print('refused')
\"";
    let server = world().tool("t", probe("permissions: []\n# limits: {memory: 256Mi}", code)).serve();
    assert_eq!(tried(&server, "t"), "refused refused refused refused");
}

#[test]
fn the_processor_time_of_a_call_counts_for_no_later_one() {
    // The time of a process that has lost its parent is counted by the first process, which stays.
    let code = "python3 -c \"
import os, time
reader, writer = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        os.close(reader)
        while time.process_time() < 0.7: pass
    os._exit(0)
os.close(writer)
os.read(reader, 1)
\"
echo done";
    let server = world().tool("t", probe("permissions: []\n# limits: {cpu_seconds: 2}", code)).serve();
    for _ in 0..4 {
        assert_eq!(tried(&server, "t"), "done");
    }
}

#[test]
fn a_process_runs_no_program_out_of_memory() {
    let code = "python3 -c \"
import os
def t(name, flags):
    try: os.memfd_create('x', flags); print(name + '=ok')
    except OSError: print(name + '=no')
t('program', os.MFD_CLOEXEC)
t('data', os.MFD_CLOEXEC | 8)
\"";
    let server = world()
        .tool("none", probe("permissions: []", code))
        .tool("open", probe("title: Unconfined", code))
        .serve();
    assert_eq!(tried(&server, "none"), "program=no data=ok");
    assert_eq!(tried(&server, "open"), "program=ok data=ok");
}

#[test]
fn permissions_of_tools_that_are_no_tool_or_package_make_the_capability_unavailable() {
    let config = "tools: {math.add: {permissions: []}, several: {permissions: []}}\ncapabilities:\n\
        - {id: several, providers: [{type: local, function: math.add}, {type: local, function: math.add}]}\n";
    let server = world().config(config).serve();
    for (name, input) in [("math__add", json!({"a": 1, "b": 2})), ("several", json!({}))] {
        let result = server.client().call(name, input);
        assert!(
            result.is_error() && result.sentence().contains("confine tools and packages alone"),
            "{name}: {}",
            result.sentence()
        );
    }
}
