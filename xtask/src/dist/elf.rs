//! What the header of a program says: for which machine it is, and what it needs of the system. Pure.

/// A C library that a program is linked with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Linkage {
    /// It needs no library at all.
    Static,
    /// It needs glibc of at least this version.
    Glibc(u32, u32),
}

/// Reads a program in the ELF format.
///
/// # Errors
/// It is not a 64-bit little-endian program for the architecture, or it needs a C library other than glibc.
pub(super) fn linkage(bytes: &[u8], architecture: &str) -> Result<Linkage, String> {
    if bytes.len() < 64 || !bytes.starts_with(b"\x7fELF\x02\x01") {
        return Err("not a 64-bit ELF program".to_owned());
    }
    let machine = match short(bytes, 18) {
        Some(62) => "x86_64",
        Some(183) => "aarch64",
        _ => "another architecture",
    };
    if machine != architecture {
        return Err(format!("a program for {machine}, not for {architecture}"));
    }
    let (Some(start), Some(size), Some(count)) = (long(bytes, 32), short(bytes, 54), short(bytes, 56))
    else {
        return Err("a program without program headers".to_owned());
    };
    let interpreter = (0..usize::from(count)).find_map(|index| {
        let header = usize::try_from(start).ok()?.checked_add(index * usize::from(size))?;
        let kind = bytes.get(header..header.checked_add(4)?)?;
        let (offset, length) =
            (long(bytes, header.checked_add(8)?)?, long(bytes, header.checked_add(32)?)?);
        let offset = usize::try_from(offset).ok()?;
        (kind == [3, 0, 0, 0])
            .then(|| bytes.get(offset..offset.checked_add(usize::try_from(length).ok()?)?))?
    });
    match interpreter {
        None => Ok(Linkage::Static),
        Some(path) if path.windows(8).any(|part| part == b"ld-linux") => {
            let (major, minor) = newest_glibc(bytes).ok_or("names no version of glibc that it needs")?;
            Ok(Linkage::Glibc(major, minor))
        }
        Some(path) => Err(format!("needs {}", String::from_utf8_lossy(path).trim_end_matches('\0'))),
    }
}

/// Returns the newest of the versions `GLIBC_2.N` that a program's symbols ask for.
fn newest_glibc(bytes: &[u8]) -> Option<(u32, u32)> {
    const PREFIX: &[u8] = b"\0GLIBC_";
    let places = bytes.windows(PREFIX.len()).enumerate().filter(|(_, part)| *part == PREFIX);
    places
        .filter_map(|(at, _)| {
            let version = bytes[at + PREFIX.len()..].split(|byte| *byte == 0).next()?;
            let (major, minor) = std::str::from_utf8(version).ok()?.split_once('.')?;
            let minor = minor.split('.').next()?;
            Some((major.parse().ok()?, minor.parse().ok()?))
        })
        .max()
}

fn short(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(machine: u8, interpreter: Option<&[u8]>, rest: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 64 + 56];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[18] = machine;
        bytes[32] = 64;
        bytes[54] = 56;
        bytes[56] = 1;
        bytes[64] = 1;
        if let Some(path) = interpreter {
            bytes[64] = 3;
            bytes[72] = 120;
            bytes[96] = u8::try_from(path.len()).unwrap();
            bytes.extend(path);
        }
        bytes.extend(rest);
        bytes
    }

    #[test]
    fn a_program_says_what_it_needs() {
        let loader = Some(&b"/lib64/ld-linux-x86-64.so.2\0"[..]);
        let versions = b"\0GLIBC_2.9\0GLIBC_2.34\0GLIBC_2.2.5\0GLIBC_PRIVATE\0";
        let cases = [
            ("no loader", program(62, None, b""), Ok(Linkage::Static)),
            ("glibc", program(62, loader, versions), Ok(Linkage::Glibc(2, 34))),
            ("a loader alone", program(62, loader, b""), Err("names no version of glibc that it needs")),
            (
                "musl's loader",
                program(62, Some(b"/lib/ld-musl.so\0"), b""),
                Err("needs /lib/ld-musl.so"),
            ),
            ("another machine", program(183, None, b""), Err("a program for aarch64, not for x86_64")),
            ("a script", b"#!/bin/sh\n".to_vec(), Err("not a 64-bit ELF program")),
        ];
        for (name, bytes, expected) in cases {
            assert_eq!(linkage(&bytes, "x86_64"), expected.map_err(str::to_owned), "{name}");
        }
    }

    #[test]
    fn a_cut_program_is_no_reason_to_panic() {
        let whole = program(62, Some(b"/lib64/ld-linux-x86-64.so.2\0"), b"\0GLIBC_2.34\0");
        for length in 0..whole.len() {
            let _ = linkage(&whole[..length], "x86_64");
        }
    }
}
