//! SOCKS5 without authentication (RFC 1928): the command CONNECT.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, copy_bidirectional};
use tokio::time::timeout;

use crate::HEAD_TIMEOUT;
use crate::allow::Host;
use crate::gate::{Gate, Refusal};
use crate::meter::Metered;

/// The first byte of every message.
pub(crate) const VERSION: u8 = 5;
const NO_AUTHENTICATION: u8 = 0;
const NO_ACCEPTABLE_METHOD: u8 = 0xff;
const CONNECT: u8 = 1;

/// The second byte of a reply (RFC 1928 §6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Reply {
    Succeeded = 0,
    NotAllowed = 2,
    HostUnreachable = 4,
    ConnectionRefused = 5,
    CommandNotSupported = 7,
    AddressNotSupported = 8,
}

impl From<&Refusal> for Reply {
    fn from(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::Undeclared(_) | Refusal::NotPublic { .. } => Self::NotAllowed,
            Refusal::Unreachable { reason, .. } => match reason.kind() {
                io::ErrorKind::ConnectionRefused => Self::ConnectionRefused,
                _ => Self::HostUnreachable,
            },
        }
    }
}

impl Reply {
    async fn send(self, stream: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        // The client has no use for the bound address.
        stream.write_all(&[VERSION, self as u8, 0, 1, 0, 0, 0, 0, 0, 0]).await
    }
}

/// Serves one connection.
pub(crate) async fn serve(mut stream: Metered, gate: &Gate) {
    if let Err(err) = connect(&mut stream, gate).await {
        tracing::debug!(error = %err, "a SOCKS connection ended");
    }
}

async fn connect(stream: &mut Metered, gate: &Gate) -> io::Result<()> {
    let request = timeout(HEAD_TIMEOUT, request(stream)).await;
    let opened = match request.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?? {
        Ok((host, port)) => gate.open(&host, port).await.map_err(|refusal| Reply::from(&refusal)),
        Err(reply) => Err(reply),
    };
    match opened {
        Ok(mut target) => {
            Reply::Succeeded.send(stream).await?;
            copy_bidirectional(stream, &mut target).await.map(drop)
        }
        Err(reply) => reply.send(stream).await,
    }
}

/// Reads the greeting and the request: the host and port to connect to, or the reply to another request.
///
/// # Errors
/// The client speaks another protocol, offers no method without authentication, or ends.
async fn request<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
) -> io::Result<Result<(Host, u16), Reply>> {
    let [version, count] = bytes(stream).await?;
    let mut methods = vec![0; usize::from(count)];
    stream.read_exact(&mut methods).await?;
    if version != VERSION || !methods.contains(&NO_AUTHENTICATION) {
        stream.write_all(&[VERSION, NO_ACCEPTABLE_METHOD]).await?;
        return Err(io::ErrorKind::InvalidData.into());
    }
    stream.write_all(&[VERSION, NO_AUTHENTICATION]).await?;
    let [version, command, _, kind] = bytes(stream).await?;
    if version != VERSION {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let host = match kind {
        1 => Host::parse(&std::net::Ipv4Addr::from(bytes::<4>(stream).await?).to_string()),
        3 => {
            let [length] = bytes(stream).await?;
            let mut name = vec![0; usize::from(length)];
            stream.read_exact(&mut name).await?;
            str::from_utf8(&name).ok().and_then(Host::parse)
        }
        4 => Host::parse(&std::net::Ipv6Addr::from(bytes::<16>(stream).await?).to_string()),
        _ => return Ok(Err(Reply::AddressNotSupported)),
    };
    let port = u16::from_be_bytes(bytes(stream).await?);
    Ok(match (command, host) {
        (CONNECT, Some(host)) => Ok((host, port)),
        (CONNECT, None) => Err(Reply::AddressNotSupported),
        _ => Err(Reply::CommandNotSupported),
    })
}

async fn bytes<const N: usize>(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the request of a client that sends these bytes, and then disconnects.
    fn read(sent: &[u8]) -> Option<Result<(Host, u16), Reply>> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (mut client, mut server) = tokio::io::duplex(1024);
            client.write_all(sent).await.unwrap();
            client.shutdown().await.unwrap();
            request(&mut server).await.ok()
        })
    }

    #[test]
    fn names_and_addresses_are_read() {
        let greeting = [5, 2, 2, 0];
        let asked = |rest: &[u8]| read(&[&greeting[..], rest].concat());
        let host = |text: &str, port| Some(Ok((Host::parse(text).unwrap(), port)));
        assert_eq!(asked(b"\x05\x01\x00\x03\x0bExample.com\x01\xbb"), host("example.com", 443));
        assert_eq!(asked(b"\x05\x01\x00\x03\x09127.0.0.1\x00\x50"), host("127.0.0.1", 80));
        assert_eq!(asked(b"\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50"), host("127.0.0.1", 80));
        let v6 = [&b"\x05\x01\x00\x04"[..], &[0; 15], &[1, 0, 80]].concat();
        assert_eq!(asked(&v6), host("::1", 80));
        assert_eq!(
            asked(b"\x05\x02\x00\x01\x7f\x00\x00\x01\x00\x50"),
            Some(Err(Reply::CommandNotSupported))
        );
        assert_eq!(asked(b"\x05\x01\x00\x03\x01*\x00\x50"), Some(Err(Reply::AddressNotSupported)));
        assert_eq!(asked(b"\x05\x01\x00\x02"), Some(Err(Reply::AddressNotSupported)));
        assert_eq!(read(&[5, 1, 2]), None);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(sent in proptest::collection::vec(any::<u8>(), 0..300), is_greeted: bool) {
            let greeting: &[u8] = if is_greeted { &[5, 1, 0, 5, 1, 0] } else { &[] };
            let _ = read(&[greeting, &sent].concat());
        }
    }
}
