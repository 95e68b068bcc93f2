//! The network of confined processes: `net:HOST`, `net:HOST:PORT`, `net:loopback`, `unix:PATH`. All
//! hosts are on loopback. Permissions to reach it are declared literally.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::confinement::{launchers_of, sandbox};
use crate::world;
use orla_e2e::{Server, eventually};

/// A web server on loopback, and how many connections it has had.
struct Upstream {
    port: u16,
    connections: Arc<AtomicUsize>,
}

impl Upstream {
    fn start() -> Self {
        Self::on("127.0.0.1:0")
    }

    fn on(address: &str) -> Self {
        let listener = TcpListener::bind(address).expect("an address of loopback is free");
        let port = listener.local_addr().expect("it has an address").port();
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&connections);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a connection");
                counted.fetch_add(1, Ordering::SeqCst);
                std::thread::spawn(move || {
                    let mut request = [0; 4096];
                    let length = stream.read(&mut request).unwrap_or(0);
                    let line = String::from_utf8_lossy(&request[..length]);
                    let line = line.lines().next().unwrap_or_default().to_owned();
                    let _ = write!(
                        stream,
                        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{line}",
                        line.len()
                    );
                });
            }
        });
        Self { port, connections }
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

/// The common code of the tools.
const LIBRARY: &str = r#"
import errno, os, socket, sys, threading, time, urllib.error, urllib.request
def t(name, f):
    try: said = f()
    except urllib.error.HTTPError as err: said = str(err.code)
    except OSError as err: said = errno.errorcode.get(err.errno, type(err).__name__)
    print(name + '=' + ('ok' if said is None else said))
def get(host, port): urllib.request.urlopen(f'http://{host}:{port}/x', timeout=5).read()
def tcp(host, port): socket.create_connection((host, port), 5).close()
def proxy(): return socket.create_connection(('127.0.0.1', 3128), 5)
def connect(target):
    s = proxy(); s.sendall(f'CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n'.encode())
    return s, s.recv(4096).decode()
def status(target): return connect(target)[1].split()[1]
def rest(s): return b''.join(iter(lambda: s.recv(4096), b'')).decode().split('\r\n\r\n')[-1].replace(' ', '_')
def socks(host, port):
    s = proxy(); s.sendall(b'\x05\x01\x00'); assert s.recv(2) == b'\x05\x00'
    s.sendall(b'\x05\x01\x00\x03' + bytes([len(host)]) + host.encode() + port.to_bytes(2, 'big'))
    return s, s.recv(10)[1]
"#;

fn tool(permissions: &[String], code: &str) -> String {
    let permissions = json!(permissions);
    format!("#!/usr/bin/env python3\n# /// orla\n# permissions: {permissions}\n# ///\n{LIBRARY}{code}\n")
}

fn tried(server: &Server, tool: &str) -> String {
    let called = server.client().call(tool, json!({}));
    assert!(!called.is_error(), "{}", called.json);
    let structured = called.structured();
    let text = structured["stdout"].as_str().expect("standard output is text");
    assert!(structured["stderr"].as_str().unwrap_or_default().is_empty(), "{structured}");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn literal(upstream: &Upstream) -> Vec<String> {
    vec![format!("net:127.0.0.1:{}", upstream.port)]
}

#[test]
fn a_process_reaches_the_host_and_port_that_it_declares_and_no_other() {
    let (declared, other) = (Upstream::start(), Upstream::start());
    let beside = Upstream::on(&format!("127.0.0.2:{}", declared.port));
    let (p, q) = (declared.port, other.port);
    let code = format!(
        r"
t('http', lambda: get('127.0.0.1', {p}))
t('port', lambda: get('127.0.0.1', {q}))
t('host', lambda: get('127.0.0.2', {p}))
t('name', lambda: get('localhost', {p}))
def tunnel():
    s, said = connect('127.0.0.1:{p}')
    assert said.startswith('HTTP/1.1 200'), said
    s.sendall(b'GET /through HTTP/1.1\r\nHost: x\r\n\r\n'); return rest(s)
t('tunnel', tunnel)
for target in ('127.0.0.1:{q}', '127.0.0.2:{p}', '[::ffff:127.0.0.2]:{p}', '2130706433:{p}', 'x@127.0.0.1:{p}', '127.0.0.1'): t('connect', lambda: status(target))
def socksed():
    s, said = socks('127.0.0.1', {p}); assert said == 0, said
    s.sendall(b'GET /socks HTTP/1.1\r\nHost: x\r\n\r\n'); return rest(s)
t('socks', socksed)
t('socks', lambda: str(socks('127.0.0.1', {q})[1]))
t('socks', lambda: str(socks('example.com', 443)[1]))
t('text', lambda: connect('example.com:443')[1].split('\r\n\r\n')[1].strip().replace(' ', '_'))
"
    );
    let server = world().tool("t", tool(&literal(&declared), &code)).serve();
    assert_eq!(
        tried(&server, "t"),
        "http=ok port=403 host=403 name=403 tunnel=GET_/through_HTTP/1.1 connect=403 connect=403 connect=403 \
         connect=403 connect=400 connect=400 socks=GET_/socks_HTTP/1.1 socks=2 socks=2 \
         text=net:example.com:443_is_not_among_the_permissions"
    );
    assert_eq!(sandbox(&server, "t")["level"], "enforced");
    assert_eq!((declared.connections(), other.connections(), beside.connections()), (3, 0, 0));
    // Once for each host and port, although each was tried in several ways.
    let refusals: Vec<(Value, Value)> = server
        .logged("warn")
        .into_iter()
        .filter(|line| line.message() == "a confined process was refused a connection")
        .map(|line| (line.field("permission").clone(), line.field("capabilities").clone()))
        .collect();
    let count = |permission: String| {
        refusals.iter().filter(|known| **known == (json!(permission), json!("t"))).count()
    };
    assert_eq!(count(format!("net:127.0.0.1:{q}")), 1, "{refusals:?}");
    assert_eq!(count("net:example.com:443".to_owned()), 1, "{refusals:?}");
    assert_eq!(sandbox(&server, "t")["refused_connections"], 10);
    let metrics = server.http().get("/metrics").text();
    for line in [
        r#"orla_sandboxed_capabilities{level="enforced"} 1"#,
        "orla_sandbox_profiles 1",
        "orla_sandbox_refused_connections 10",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
}

#[test]
fn a_process_with_hosts_has_no_way_out_but_the_broker() {
    let upstream = Upstream::start();
    let p = upstream.port;
    let code = format!(
        r"
t('direct', lambda: tcp('127.0.0.1', {p}))
t('direct6', lambda: tcp('::1', {p}))
t('mapped', lambda: tcp('::ffff:127.0.0.1', {p}))
t('far', lambda: tcp('192.0.2.1', 3128))
def socket_of(*kind): socket.socket(*kind).close()
t('udp', lambda: socket_of(socket.AF_INET, socket.SOCK_DGRAM))
t('raw', lambda: socket_of(socket.AF_INET, socket.SOCK_RAW, 1))
t('unix', lambda: socket_of(socket.AF_UNIX))
t('netlink', lambda: socket_of(socket.AF_NETLINK, socket.SOCK_RAW))
t('mptcp', lambda: socket_of(socket.AF_INET, socket.SOCK_STREAM, 262))
t('bind', lambda: socket.socket().bind(('127.0.0.1', 0)))
t('listen', lambda: socket.socket().listen())
t('fastopen', lambda: socket.socket().sendto(b'x', 0x20000000, ('127.0.0.1', {p})) and None)
t('device', lambda: socket.socket().setsockopt(socket.SOL_SOCKET, 25, b'lo\0'))
"
    );
    let server = world().tool("t", tool(&literal(&upstream), &code)).serve();
    assert_eq!(
        tried(&server, "t"),
        "direct=EACCES direct6=EACCES mapped=EACCES far=ENETUNREACH udp=EPERM raw=EPERM unix=EPERM netlink=EPERM \
         mptcp=EPERM bind=EPERM listen=EPERM fastopen=EPERM device=EPERM"
    );
    assert_eq!(upstream.connections(), 0);
}

#[test]
fn a_name_that_leads_to_a_private_address_is_refused() {
    let upstream = Upstream::start();
    let p = upstream.port;
    // The resolver reads these names as 127.0.0.1.
    let code = format!(
        "t('one', lambda: status('127.1:{p}'))\nt('other', lambda: status('2130706433:{p}'))\nt('localhost', lambda: status('localhost:{p}'))"
    );
    let names = [format!("net:127.1:{p}"), "net:2130706433".to_owned()];
    let both = [&names[..], &literal(&upstream)].concat();
    let server = world()
        .tool("names", tool(&names, &code))
        .tool("both", tool(&both, &code))
        .tool("localhost", tool(&[format!("net:localhost:{p}")], &code))
        .serve();
    assert_eq!(tried(&server, "names"), "one=403 other=403 localhost=403");
    assert_eq!(upstream.connections(), 0);
    assert_eq!(tried(&server, "both"), "one=200 other=200 localhost=403");
    assert_eq!(tried(&server, "localhost"), "one=403 other=403 localhost=200");
}

#[test]
fn profiles_have_brokers_of_their_own() {
    let (one, other) = (Upstream::start(), Upstream::start());
    let code = format!(
        "t('one', lambda: get('127.0.0.1', {}))\nt('other', lambda: get('127.0.0.1', {}))",
        one.port, other.port
    );
    let server = world()
        .tool("one", tool(&literal(&one), &code))
        .tool("other", tool(&literal(&other), &code))
        .tool("none", tool(&[], "t('proxy', lambda: proxy().close())\nt('variable', lambda: os.environ.get('HTTP_PROXY', 'unset'))"))
        .serve();
    assert_eq!(tried(&server, "one"), "one=ok other=403");
    assert_eq!(tried(&server, "other"), "one=403 other=ok");
    assert_eq!(tried(&server, "none"), "proxy=EPERM variable=unset");
}

#[test]
fn the_broker_is_back_after_its_launcher_was_killed() {
    let upstream = Upstream::start();
    let code = format!("t('get', lambda: get('127.0.0.1', {}))", upstream.port);
    let server = world().tool("t", tool(&literal(&upstream), &code)).serve();
    for _ in 0..7 {
        assert_eq!(tried(&server, "t"), "get=ok");
        for pid in launchers_of(server.id()) {
            std::process::Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
        }
    }
}

#[test]
fn heads_and_connections_without_end_are_bounded() {
    let upstream = Upstream::start();
    let p = upstream.port;
    let code = format!(
        r"
def large():
    s = proxy(); s.sendall(b'GET http://127.0.0.1:{p}/ HTTP/1.1\r\nHost: x\r\n')
    try:
        for i in range(100): s.sendall(b'x-%d: ' % i + b'a' * 4000 + b'\r\n')
        return s.recv(100).decode().split()[1]
    except ConnectionError: return 'closed'
t('large', large)
many = [proxy() for _ in range(200)]
for s in many: s.close()
t('after', lambda: get('127.0.0.1', {p}))
"
    );
    let server = world().tool("t", tool(&literal(&upstream), &code)).serve();
    let said = tried(&server, "t");
    assert!(["large=431 after=ok", "large=closed after=ok"].contains(&said.as_str()), "{said}");
    assert_eq!(upstream.connections(), 1);
    eventually("the connections are gone", || server.descriptors().is_none_or(|count| count < 200));
}

#[test]
fn a_pattern_of_hosts_is_unavailable() {
    let server = world().tool("t", tool(&["net:*.example.com".to_owned()], "print('ran')")).serve();
    let called = server.client().call("t", json!({}));
    assert!(called.is_error() && called.sentence().contains("net:*.example.com"), "{}", called.json);
    assert_eq!(sandbox(&server, "t")["level"], "unavailable");
}

#[test]
fn loopback_is_tcp_to_the_hosts_own_addresses_and_nothing_else() {
    let upstream = Upstream::start();
    let p = upstream.port;
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let code = format!(
        r"
t('get', lambda: get('127.0.0.1', {p}))
t('name', lambda: tcp('localhost', {p}))
t('mapped', lambda: tcp('::ffff:127.0.0.1', {p}))
t('closed', lambda: tcp('127.0.0.1', {closed}))
def blocking():
    s = socket.socket(); s.connect(('127.0.0.1', {p})); s.sendall(b'GET / HTTP/1.1\r\n\r\n'); assert s.recv(12) == b'HTTP/1.1 200'
t('blocking', blocking)
def many():
    def one(): [blocking() for _ in range(5)]
    all = [threading.Thread(target=one) for _ in range(20)]; [x.start() for x in all]; [x.join() for x in all]
t('many', many)
for address in ('192.0.2.1', '0.0.0.0', '::', '::ffff:192.0.2.1', 'fe80::1'):
    f = socket.AF_INET6 if ':' in address else socket.AF_INET
    t('far', lambda: socket.socket(f).connect((address, {p})))
    def later():
        s = socket.socket(f); s.setblocking(False); s.connect((address, {p}))
    t('later', later)
def socket_of(*kind): socket.socket(*kind).close()
t('udp', lambda: socket_of(socket.AF_INET, socket.SOCK_DGRAM))
t('unix', lambda: socket_of(socket.AF_UNIX))
t('bind', lambda: socket.socket().bind(('127.0.0.1', 0)))
t('listen', lambda: socket.socket().listen())
t('fastopen', lambda: socket.socket().sendto(b'x', 0x20000000, ('192.0.2.1', {p})) and None)
t('device', lambda: socket.socket().setsockopt(socket.SOL_SOCKET, 25, b'lo\0'))
t('descriptor', lambda: os.fdopen(socket.socket().detach(), 'rb').close())
"
    );
    let server = world().tool("t", tool(&["net:loopback".to_owned()], &code)).serve();
    assert_eq!(
        tried(&server, "t"),
        format!(
            "get=ok name=ok mapped=ok closed=ECONNREFUSED blocking=ok many=ok{} udp=EPERM unix=EPERM bind=EPERM listen=EPERM \
             fastopen=EPERM device=EPERM descriptor=ok",
            " far=EACCES later=EACCES".repeat(5)
        )
    );
    assert_eq!(sandbox(&server, "t")["level"], "enforced");
    assert_eq!(upstream.connections(), 104);
}

#[test]
fn an_address_that_changes_while_it_is_checked_leads_nowhere_else() {
    let upstream = Upstream::start();
    let code = format!(
        r"
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def raw(address): return socket.AF_INET.to_bytes(2, sys.byteorder) + ({}).to_bytes(2, 'big') + socket.inet_aton(address) + bytes(8)
here, far = raw('127.0.0.1'), raw('192.0.2.1')
shared = ctypes.create_string_buffer(here, 16)
done = False
def change():
    while not done:
        ctypes.memmove(shared, far, 16); ctypes.memmove(shared, here, 16)
changer = threading.Thread(target=change); changer.start()
seen = set()
for _ in range(400):
    s = socket.socket(); s.settimeout(5)
    if libc.connect(s.fileno(), shared, 16) == 0 or ctypes.get_errno() == errno.EINPROGRESS:
        s.send(b'x'); seen.add(s.getpeername()[0])
    else: seen.add(errno.errorcode[ctypes.get_errno()])
    s.close()
done = True; changer.join()
print(' '.join(sorted(seen)))
",
        upstream.port
    );
    let server = world().tool("t", tool(&["net:loopback".to_owned()], &code)).serve();
    let said = tried(&server, "t");
    assert!(said.split(' ').all(|seen| ["127.0.0.1", "EACCES"].contains(&seen)), "{said}");
}

#[test]
fn one_unix_socket_is_that_of_its_path() {
    let world = world().file("run/.keep", "");
    let sockets: Vec<_> = ["run/allowed.sock", "run/other.sock"]
        .map(|path| std::os::unix::net::UnixListener::bind(world.path(path)).unwrap())
        .into();
    std::os::unix::fs::symlink("allowed.sock", world.path("run/link.sock")).unwrap();
    std::os::unix::fs::symlink("other.sock", world.path("run/trap.sock")).unwrap();
    let upstream = Upstream::start();
    let code = format!(
        r"
def unix(path):
    s = socket.socket(socket.AF_UNIX); s.settimeout(5); s.connect(path); s.sendall(b'x')
for name in ('allowed', 'link', 'other', 'trap', 'none'): t(name, lambda: unix('{}/' + name + '.sock'))
os.chdir('/'); t('relative', lambda: unix('{}/allowed.sock'))
t('abstract', lambda: unix('\0{}'))
t('datagrams', lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).close())
t('listen', lambda: socket.socket(socket.AF_UNIX).bind(os.environ['TMPDIR'] + '/s'))
t('tcp', lambda: tcp('127.0.0.1', {}))
t('far', lambda: tcp('192.0.2.1', 80))
t('web', lambda: get('127.0.0.1', {}))
",
        world.path("run").display(),
        world.path("run").display().to_string().trim_start_matches('/'),
        world.path("run").display(),
        upstream.port,
        upstream.port
    );
    let unix = "unix:../run/allowed.sock".to_owned();
    let with = |word: String| tool(&[unix.clone(), word], &code);
    let server = world
        .tool("alone", tool(std::slice::from_ref(&unix), &code))
        .tool("loopback", with("net:loopback".to_owned()))
        .tool("host", with(format!("net:127.0.0.1:{}", upstream.port)))
        .tool("all", with("net".to_owned()))
        .serve();
    let common = "allowed=ok link=ok other=EACCES trap=EACCES none=EACCES relative=ok abstract=EACCES datagrams=EPERM";
    assert_eq!(
        tried(&server, "alone"),
        format!("{common} listen=EPERM tcp=EPERM far=EPERM web=URLError")
    );
    assert_eq!(tried(&server, "loopback"), format!("{common} listen=EPERM tcp=ok far=EACCES web=ok"));
    assert_eq!(tried(&server, "host"), format!("{common} listen=EPERM tcp=EACCES far=EACCES web=ok"));
    let all = tried(&server, "all");
    assert!(all.starts_with(common) && all.contains(" tcp=ok") && all.ends_with("web=ok"), "{all}");
    drop(sockets);
}

#[test]
fn each_request_of_a_connection_is_checked() {
    let (declared, other) = (Upstream::start(), Upstream::start());
    let code = format!(
        r"
import http.client
connection = http.client.HTTPConnection('127.0.0.1', 3128)
def ask(port):
    connection.request('GET', 'http://127.0.0.1:%d/x' % port, headers={{'Proxy-Authorization': 'secret'}})
    answer = connection.getresponse(); return '%d_%d' % (answer.status, len(answer.read()))
for port in ({0}, {1}, {0}): t('asked', lambda: ask(port))
",
        declared.port, other.port
    );
    let server = world().tool("t", tool(&literal(&declared), &code)).serve();
    let length = format!("net:127.0.0.1:{} is not among the permissions\n", other.port).len();
    assert_eq!(tried(&server, "t"), format!("asked=200_15 asked=403_{length} asked=200_15"));
    assert_eq!((declared.connections(), other.connections()), (2, 0));
}

#[test]
fn connects_that_block_do_not_stay_for_the_next_call() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // Its queue takes one connection; the others wait.
    rustix::net::listen(&listener, 0).unwrap();
    let code = format!(
        "
failed = []
def go():
    try: socket.create_connection(('127.0.0.1', {}))
    except OSError as e: failed.append(errno.errorcode[e.errno])
for _ in range(30): threading.Thread(target=go, daemon=True).start()
time.sleep(0.2)
print('failed=' + str(failed), flush=True)
os._exit(0)
",
        listener.local_addr().unwrap().port()
    );
    let server = world().tool("t", tool(&["net:loopback".to_owned()], &code)).serve();
    // 64 may block at a time in one compartment.
    for _ in 0..4 {
        assert_eq!(tried(&server, "t"), "failed=[]");
    }
}
