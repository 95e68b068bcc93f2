//! A relay between a client and a server that cuts connections at arbitrary bytes.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A relay. It ends when dropped, with every connection that has ended by itself.
pub(super) struct Cutter {
    /// `127.0.0.1:PORT`.
    pub(super) address: String,
    cuts: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
}

impl Cutter {
    /// Relays to `server`. The first connection is cut when so many bytes of the server's have gone through as the first
    /// number says, and so on; the rest is left alone.
    pub(super) fn start(server: &str, after: Vec<usize>) -> Result<Self, String> {
        let listener = TcpListener::bind("127.0.0.1:0").map_err(|err| format!("no free port: {err}"))?;
        let address = listener.local_addr().map_err(|err| err.to_string())?.to_string();
        let (cuts, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (server, count, stopped) = (server.to_owned(), Arc::clone(&cuts), Arc::clone(&stop));
        std::thread::spawn(move || {
            let mut after = after.into_iter();
            for client in listener.incoming().flatten() {
                if stopped.load(Ordering::Acquire) {
                    return;
                }
                let (limit, server, count) = (after.next(), server.clone(), Arc::clone(&count));
                std::thread::spawn(move || {
                    if relay(&client, &server, limit).unwrap_or(false) {
                        count.fetch_add(1, Ordering::Release);
                    }
                });
            }
        });
        Ok(Self { address, cuts, stop })
    }

    /// Returns how many connections were cut.
    pub(super) fn cuts(&self) -> usize {
        self.cuts.load(Ordering::Acquire)
    }
}

impl Drop for Cutter {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // The accepting thread checks the flag when a connection comes.
        let _ = TcpStream::connect(&self.address);
    }
}

/// Relays one connection to its end. Whether it was cut.
fn relay(client: &TcpStream, server: &str, limit: Option<usize>) -> std::io::Result<bool> {
    let server = TcpStream::connect(server)?;
    let (mut asks, mut asked) = (client.try_clone()?, server.try_clone()?);
    std::thread::spawn(move || {
        // Either end may go; both go then.
        let _ = std::io::copy(&mut asks, &mut asked);
        let _ = asked.shutdown(Shutdown::Write);
    });
    let (mut left, mut piece) = (limit.unwrap_or(usize::MAX), [0; 512]);
    while left > 0 {
        let count = (&server).read(&mut piece)?;
        if count == 0 {
            break;
        }
        let count = count.min(left);
        (&mut &*client).write_all(&piece[..count])?;
        left -= count;
    }
    let _ = client.shutdown(Shutdown::Both);
    let _ = server.shutdown(Shutdown::Both);
    Ok(left == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_cut_after_so_many_bytes_and_the_next_is_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            for mut client in listener.incoming().flatten() {
                let _ = client.write_all(&[7; 2000]);
            }
        });
        let cutter = Cutter::start(&server, vec![700]).unwrap();
        for expected in [700, 2000] {
            let mut got = Vec::new();
            let _ = TcpStream::connect(&cutter.address).unwrap().read_to_end(&mut got);
            assert_eq!(got.len(), expected);
        }
    }
}
