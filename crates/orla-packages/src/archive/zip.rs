//! Zip files of bundles (APPNOTE.TXT): stored and deflated members, one disk, no encryption, no zip64.
//!
//! The central directory is authoritative. A reader that uses the local headers would see the same,
//! because both must agree. Members must not overlap, so that few bytes cannot expand to many files.

use std::io::{Read, Write};

use flate2::Crc;
use flate2::read::DeflateDecoder;

use super::{ArchiveError, MAX_FILES, refused};

/// The kinds of a Unix mode.
const KIND: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;

/// The system that wrote a member, if it is Unix.
const UNIX: u8 = 3;

/// A file or a directory of an archive.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) name: String,
    pub(super) is_directory: bool,
    pub(super) is_executable: bool,
    /// The unpacked size in bytes, according to the archive.
    pub(super) size: u64,
    is_deflated: bool,
    crc: u32,
    /// The offset of its data in the archive.
    start: usize,
    end: usize,
}

/// Returns the members of an archive.
///
/// # Errors
/// What is wrong with it.
pub(super) fn members(bytes: &[u8]) -> Result<Vec<Member>, String> {
    let end = end_of_directory(bytes).ok_or("it is not a zip file")?;
    let record = Fields(&bytes[end..]);
    let (disk, start_disk) = (record.u16(4), record.u16(6));
    let (here, count) = (record.u16(8), record.u16(10));
    let (size, offset) = (record.u32(12), record.u32(16));
    let broken = || "its directory is broken".to_owned();
    let (Some(0), Some(0), Some(here), Some(count), Some(size), Some(offset)) =
        (disk, start_disk, here, count, size, offset)
    else {
        return Err(broken());
    };
    if here != count || count == u16::MAX || size == u32::MAX || offset == u32::MAX {
        return Err(
            "it is in several parts or of the large form of zip, which is not supported".to_owned()
        );
    }
    if usize::from(count) > 2 * MAX_FILES {
        return Err(format!("it has more than {MAX_FILES} files or directories"));
    }
    let offset = offset as usize;
    if offset.checked_add(size as usize) != Some(end) {
        return Err(broken());
    }
    let mut at = offset;
    let mut members = Vec::with_capacity(count.into());
    for _ in 0..count {
        let (member, next) = member(bytes, at, offset)?;
        members.push(member);
        at = next;
    }
    if at != end {
        return Err(broken());
    }
    let mut places: Vec<(usize, usize)> =
        members.iter().map(|member| (member.start, member.end)).collect();
    places.sort_unstable();
    if places.windows(2).any(|pair| pair[1].0 < pair[0].1) {
        return Err("its files overlap".to_owned());
    }
    Ok(members)
}

/// Returns the offset of the end of the central directory. Only its comment follows.
fn end_of_directory(bytes: &[u8]) -> Option<usize> {
    const RECORD: usize = 22;
    let last = bytes.len().checked_sub(RECORD)?;
    let first = last.saturating_sub(usize::from(u16::MAX));
    (first..=last).rev().find(|at| {
        let fields = Fields(&bytes[*at..]);
        fields.u32(0) == Some(0x0605_4b50)
            && fields.u16(20).is_some_and(|comment| at + RECORD + usize::from(comment) == bytes.len())
    })
}

/// Returns the member whose directory entry is at this offset, and the offset after the entry.
fn member(bytes: &[u8], at: usize, directory: usize) -> Result<(Member, usize), String> {
    let broken = || "its directory is broken".to_owned();
    let entry = Fields(bytes.get(at..).ok_or_else(broken)?);
    let read = || {
        Some((
            (entry.u32(0)? == 0x0201_4b50).then_some(())?,
            entry.u8(5)?,
            entry.u16(8)?,
            entry.u16(10)?,
            entry.u32(16)?,
            (entry.u32(20)?, entry.u32(24)?),
            (usize::from(entry.u16(28)?), usize::from(entry.u16(30)?), usize::from(entry.u16(32)?)),
            entry.u32(38)?,
            entry.u32(42)? as usize,
        ))
    };
    let ((), system, flags, method, crc, (packed, size), (name, extra, comment), attributes, local) =
        read().ok_or_else(broken)?;
    let text = bytes.get(at + 46..at + 46 + name).ok_or_else(broken)?;
    let name = std::str::from_utf8(text).map_err(|_| "a name in it is not UTF-8".to_owned())?;
    if flags & 0x2041 != 0 {
        return Err(format!("{name:?} is encrypted"));
    }
    if packed == u32::MAX || size == u32::MAX {
        return Err(format!("{name:?} is of the large form of zip, which is not supported"));
    }
    let is_deflated = match method {
        0 => false,
        8 => true,
        _ => return Err(format!("{name:?} is compressed by method {method}, which is not supported")),
    };
    let mode = if system == UNIX { attributes >> 16 } else { 0 };
    let is_directory = name.ends_with('/');
    match mode & KIND {
        0 => {}
        REGULAR if !is_directory => {}
        DIRECTORY if is_directory => {}
        _ => return Err(format!("{name:?} is a link or a special file, which a bundle must not have")),
    }
    let header = Fields(bytes.get(local..directory).ok_or_else(broken)?);
    let local_name = || {
        let length = usize::from(header.u16(26)?);
        let start = local.checked_add(30 + length + usize::from(header.u16(28)?))?;
        (header.u32(0)? == 0x0403_4b50 && header.u16(8)? == method).then_some(())?;
        Some((bytes.get(local + 30..local + 30 + length)?, start))
    };
    let (local_name, start) = local_name().ok_or_else(broken)?;
    if local_name != text {
        return Err(format!("{name:?} has another name before its content"));
    }
    let end = start.checked_add(packed as usize).filter(|end| *end <= directory).ok_or_else(broken)?;
    if (!is_deflated && packed != size) || (is_directory && size != 0) {
        return Err(broken());
    }
    let member = Member {
        name: name.to_owned(),
        is_directory,
        is_executable: mode & 0o111 != 0,
        size: size.into(),
        is_deflated,
        crc,
        start,
        end,
    };
    Ok((member, at + 46 + text.len() + extra + comment))
}

/// Writes the content of a member.
///
/// # Errors
/// It has another size or another checksum than the archive says, or cannot be written.
pub(super) fn unpack(bytes: &[u8], member: &Member, to: &mut impl Write) -> Result<(), ArchiveError> {
    let packed = bytes.get(member.start..member.end).unwrap_or_default();
    let wrong = |what: &str| refused(format!("{:?} {what}", member.name));
    let mut reader: Box<dyn Read> =
        if member.is_deflated { Box::new(DeflateDecoder::new(packed)) } else { Box::new(packed) };
    let (mut crc, mut left) = (Crc::new(), member.size);
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let count = reader.read(&mut buffer).map_err(|_| wrong("is broken"))?;
        if count == 0 {
            break;
        }
        left = left.checked_sub(count as u64).ok_or_else(|| wrong("is larger than the bundle says"))?;
        crc.update(&buffer[..count]);
        to.write_all(&buffer[..count])?;
    }
    match left == 0 && crc.sum() == member.crc {
        true => Ok(()),
        false => Err(wrong("is not what the bundle says: it is cut, or its checksum differs")),
    }
}

/// Reads numbers in zip's little-endian order.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn u8(&self, at: usize) -> Option<u8> {
        self.0.get(at).copied()
    }

    fn u16(&self, at: usize) -> Option<u16> {
        Some(u16::from_le_bytes(self.0.get(at..at + 2)?.try_into().ok()?))
    }

    fn u32(&self, at: usize) -> Option<u32> {
        Some(u32::from_le_bytes(self.0.get(at..at + 4)?.try_into().ok()?))
    }
}
