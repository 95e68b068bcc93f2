//! The messages between a server and its launchers: lists of byte strings, with descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recv, recvmsg, send, sendmsg,
};

/// The maximum number of descriptors in one message.
pub(super) const MAX_FDS: usize = 6;
/// The maximum length of a message in bytes, larger than the kernel's limit for arguments.
const MAX_BYTES: usize = 8 * 1024 * 1024;

/// A message: lists of byte strings.
#[derive(Debug, Default)]
pub(super) struct Message(Vec<Vec<Vec<u8>>>);

impl Message {
    /// Returns the message with one more list.
    pub(super) fn with(mut self, list: impl IntoIterator<Item = impl Into<Vec<u8>>>) -> Self {
        self.0.push(list.into_iter().map(Into::into).collect());
        self
    }

    /// Returns the lists. Fails unless there are exactly `N`.
    pub(super) fn lists<const N: usize>(self) -> io::Result<[Vec<Vec<u8>>; N]> {
        self.0.try_into().map_err(|_| malformed())
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; 4];
        let number = |bytes: &mut Vec<u8>, number: usize| {
            bytes.extend_from_slice(&u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes());
        };
        number(&mut bytes, self.0.len());
        for list in &self.0 {
            number(&mut bytes, list.len());
            for item in list {
                number(&mut bytes, item.len());
                bytes.extend_from_slice(item);
            }
        }
        let length = u32::try_from(bytes.len() - 4).unwrap_or(u32::MAX);
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        bytes
    }

    fn decode(mut bytes: &[u8]) -> io::Result<Self> {
        fn take<'b>(bytes: &mut &'b [u8], count: usize) -> io::Result<&'b [u8]> {
            let (taken, rest) = bytes.split_at_checked(count).ok_or_else(malformed)?;
            *bytes = rest;
            Ok(taken)
        }
        fn number(bytes: &mut &[u8]) -> io::Result<usize> {
            let number = take(bytes, 4)?.try_into().map_err(|_| malformed())?;
            Ok(u32::from_le_bytes(number) as usize)
        }
        let mut lists = Vec::new();
        for _ in 0..number(&mut bytes)? {
            let mut list = Vec::new();
            for _ in 0..number(&mut bytes)? {
                let length = number(&mut bytes)?;
                list.push(take(&mut bytes, length)?.to_vec());
            }
            lists.push(list);
        }
        Ok(Self(lists))
    }
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a message between server and launcher is malformed")
}

/// Sends a message with descriptors, which accompany its first byte.
pub(super) fn write(
    socket: BorrowedFd<'_>,
    message: &Message,
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let bytes = message.encode();
    if bytes.len() > MAX_BYTES {
        // The kernel's error for arguments that are too long.
        return Err(rustix::io::Errno::TOOBIG.into());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(malformed());
    }
    let mut sent = sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
    while sent < bytes.len() {
        match send(socket, &bytes[sent..], SendFlags::NOSIGNAL) {
            Ok(count) => sent += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(err) => return Err(err.into()),
        }
    }
    Ok(())
}

/// Receives a message with its descriptors; `None` at the end.
pub(super) fn read(socket: BorrowedFd<'_>) -> io::Result<Option<(Message, Vec<OwnedFd>)>> {
    let mut header = [0; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let got = loop {
        let mut buffer = [IoSliceMut::new(&mut header)];
        match recvmsg(socket, &mut buffer, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            got => break got?.bytes,
        }
    };
    if got == 0 {
        return Ok(None);
    }
    let fds = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let fds: Vec<OwnedFd> = fds.flatten().collect();
    fill(socket, &mut header[got..])?;
    let length = u32::from_le_bytes(header) as usize;
    if length > MAX_BYTES {
        return Err(malformed());
    }
    let mut bytes = vec![0; length];
    fill(socket, &mut bytes)?;
    Ok(Some((Message::decode(&bytes)?, fds)))
}

fn fill(socket: BorrowedFd<'_>, mut rest: &mut [u8]) -> io::Result<()> {
    while !rest.is_empty() {
        match recv(socket.as_fd(), &mut *rest, RecvFlags::empty()) {
            Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((count, _)) => rest = &mut rest[count..],
            Err(rustix::io::Errno::INTR) => {}
            Err(err) => return Err(err.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_message_comes_as_it_was_sent_with_its_descriptors() {
        let (one, other) = UnixStream::pair().unwrap();
        let (reader, writer) = io::pipe().unwrap();
        let message = Message::default().with(["a", ""]).with([""; 0]).with(["b\0"]);
        write(one.as_fd(), &message, &[writer.as_fd()]).unwrap();
        let (got, fds) = read(other.as_fd()).unwrap().unwrap();
        let [first, second, third]: [_; 3] = got.lists().unwrap();
        assert_eq!(
            (first, second.len(), third),
            (vec![b"a".to_vec(), vec![]], 0, vec![b"b\0".to_vec()])
        );
        drop(writer);
        rustix::io::write(&fds[0], b"x").unwrap();
        drop(fds);
        assert_eq!(io::read_to_string(reader).unwrap(), "x");
        drop(one);
        assert!(read(other.as_fd()).unwrap().is_none());
    }

    #[test]
    fn a_truncated_message_is_refused() {
        let bytes = Message::default().with(["abc"]).encode();
        for end in 4..bytes.len() {
            assert!(Message::decode(&bytes[4..end]).is_err(), "{end}");
        }
    }
}
