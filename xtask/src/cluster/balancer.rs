//! A load balancer that gives each request to the next of several servers.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The largest head of a request.
const MAX_HEAD: usize = 64 << 10;

/// A load balancer. It ends when dropped, with every connection that has ended by itself.
pub(super) struct Balancer {
    /// `127.0.0.1:PORT`.
    pub(super) address: String,
    stop: Arc<AtomicBool>,
}

impl Balancer {
    /// Balances over servers in turn.
    pub(super) fn start(servers: Vec<String>) -> Result<Self, String> {
        let listener = TcpListener::bind("127.0.0.1:0").map_err(|err| format!("no free port: {err}"))?;
        let address = listener.local_addr().map_err(|err| err.to_string())?.to_string();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        std::thread::spawn(move || {
            for (client, server) in listener.incoming().flatten().zip(servers.iter().cycle()) {
                if stopped.load(Ordering::Acquire) {
                    return;
                }
                let server = server.clone();
                std::thread::spawn(move || {
                    // An error ends the connection, which the client notices.
                    let _ = relay(&client, &server);
                    let _ = client.shutdown(Shutdown::Both);
                });
            }
        });
        Ok(Self { address, stop })
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // The accepting thread checks the flag when a connection comes.
        let _ = TcpStream::connect(&self.address);
    }
}

/// Relays one request and its answer.
fn relay(mut client: &TcpStream, server: &str) -> std::io::Result<()> {
    let Some((head, rest)) = read_head(client)? else { return Ok(()) };
    let mut server = TcpStream::connect(server)?;
    server.set_nodelay(true)?;
    server.write_all(&[closing(&head), rest].concat())?;
    let (mut asks, mut asked) = (client.try_clone()?, server.try_clone()?);
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut asks, &mut asked);
        // A client that goes away has to be noticed.
        let _ = asked.shutdown(Shutdown::Both);
    });
    let mut piece = vec![0; 64 << 10];
    loop {
        match server.read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(count) => client.write_all(&piece[..count])?,
            Err(err) if err.kind() == ErrorKind::Interrupted => {}
            Err(err) => return Err(err),
        }
    }
}

/// Reads the head of a request, and what came with it. Returns `None` if the client sends nothing.
fn read_head(mut client: &TcpStream) -> std::io::Result<Option<(Vec<u8>, Vec<u8>)>> {
    const END: &[u8] = b"\r\n\r\n";
    let (mut head, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        if let Some(at) = head.windows(END.len()).position(|bytes| bytes == END) {
            let rest = head.split_off(at + END.len());
            return Ok(Some((head, rest)));
        }
        let count = client.read(&mut piece)?;
        if count == 0 || head.len() > MAX_HEAD {
            return Ok(None);
        }
        head.extend_from_slice(&piece[..count]);
    }
}

/// Returns the head of a request after whose answer the server closes the connection, so that the next one comes on
/// another connection.
fn closing(head: &[u8]) -> Vec<u8> {
    let is_other = |line: &&[u8]| !line.to_ascii_lowercase().starts_with(b"connection:");
    let mut lines = head.split_inclusive(|byte| *byte == b'\n').filter(is_other);
    let first = lines.next().unwrap_or_default();
    let mut out = [first, b"connection: close\r\n"].concat();
    lines.for_each(|line| out.extend_from_slice(line));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_goes_to_the_next_server_on_a_connection_of_its_own() {
        let servers: Vec<String> = (0..2)
            .map(|number| {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                let address = listener.local_addr().unwrap().to_string();
                std::thread::spawn(move || {
                    for mut client in listener.incoming().flatten() {
                        let (head, body) = read_head(&client).unwrap().unwrap();
                        let _ = client.write_all(&[&head[..], &body, &[b'0' + number]].concat());
                    }
                });
                address
            })
            .collect();
        let balancer = Balancer::start(servers).unwrap();
        for number in ["0", "1", "0"] {
            let mut client = TcpStream::connect(&balancer.address).unwrap();
            client
                .write_all(b"POST / HTTP/1.1\r\nhost: a\r\nConnection: keep-alive\r\n\r\nbody")
                .unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).unwrap();
            let expected = "POST / HTTP/1.1\r\nconnection: close\r\nhost: a\r\n\r\nbody";
            assert_eq!(answer, format!("{expected}{number}"));
        }
    }
}
