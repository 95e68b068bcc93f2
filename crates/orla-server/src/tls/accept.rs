//! The beginning of a connection.

use std::io;
use std::sync::Arc;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::{ClientCertificate, Tls};

/// The first byte of a TLS connection: a record of its handshake.
const HANDSHAKE: u8 = 0x16;
/// The answer to a request in plain HTTP.
const PLAIN: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\n\
content-length: 37\r\nconnection: close\r\n\r\nthis port speaks HTTPS: use https://\n";

/// Makes the TLS handshake of a new connection, and returns the caller that its certificate names. A
/// client that speaks plain HTTP gets an answer that says so.
///
/// # Errors
///
/// Returns an error if the client does not speak TLS, or if the handshake failed.
pub(crate) async fn accept(
    tls: &Arc<Tls>,
    mut stream: TcpStream,
) -> io::Result<(TlsStream<TcpStream>, Option<ClientCertificate>)> {
    let mut first = [0];
    if stream.peek(&mut first).await? == 1 && first[0] != HANDSHAKE {
        stream.write_all(PLAIN).await?;
        // The connection is shut down properly, so that the answer is not lost together with unread
        // data.
        stream.shutdown().await?;
        let mut rest = [0; 1024];
        while stream.try_read(&mut rest).is_ok_and(|read| read > 0) {}
        return Err(io::Error::new(io::ErrorKind::InvalidData, "plain HTTP on a port for HTTPS"));
    }
    let stream = TlsAcceptor::from(Arc::clone(&tls.config)).accept(stream).await?;
    let certificates = stream.get_ref().1.peer_certificates();
    let client = certificates.and_then(|chain| chain.first()).and_then(|own| tls.client(own));
    Ok((stream, client))
}
