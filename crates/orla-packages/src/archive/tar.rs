//! Tar files of npm's packages: ustar with the long names of pax and GNU.

use std::io::Read;

use flate2::read::MultiGzDecoder;

use super::{ArchiveError, File, MAX_BYTES, refused};

const BLOCK: usize = 512;

/// Returns the files of a tar file that is compressed with gzip. Links and special files are left out,
/// as npm does.
///
/// # Errors
/// It is not an archive, or unpacks to too much.
pub fn read_tgz(bytes: &[u8]) -> Result<Vec<File>, ArchiveError> {
    read(bytes).map(|content| content.files)
}

/// Returns the files of a folder in such a file.
///
/// # Errors
/// Those of [`read_tgz`], and a link or a special file.
pub fn read_folder_tgz(bytes: &[u8]) -> Result<Vec<File>, ArchiveError> {
    let Content { files, others } = read(bytes)?;
    match others.first() {
        Some(other) => {
            Err(refused(format!("{other:?} is a link or a special file, which a package must not have")))
        }
        None => Ok(files),
    }
}

/// The content of a tar file.
#[derive(Default)]
struct Content {
    files: Vec<File>,
    /// The names of members that are neither files nor directories.
    others: Vec<String>,
}

fn read(bytes: &[u8]) -> Result<Content, ArchiveError> {
    let mut tar = Vec::new();
    let read = MultiGzDecoder::new(bytes).take(MAX_BYTES + 1).read_to_end(&mut tar);
    read.map_err(|_| refused("it is not a gzip file, or is cut"))?;
    if tar.len() as u64 > MAX_BYTES {
        return Err(refused(format!("it unpacks to more than {} MiB", MAX_BYTES >> 20)));
    }
    content(&tar).ok_or_else(|| refused("it is not a tar file, or is cut"))
}

fn content(tar: &[u8]) -> Option<Content> {
    let (mut found, mut at) = (Content::default(), 0);
    // Values from a header that precedes this one.
    let (mut long_name, mut long_size) = (None::<String>, None::<usize>);
    while let Some(header) = tar.get(at..at + BLOCK) {
        if header.iter().all(|byte| *byte == 0) {
            break;
        }
        let kind = header[156];
        let is_extension = matches!(kind, b'x' | b'g' | b'L' | b'K');
        let size = number(&header[124..136])?;
        let size = if is_extension { size } else { long_size.take().unwrap_or(size) };
        let content = tar.get(at + BLOCK..(at + BLOCK).checked_add(size)?)?;
        at = (at + BLOCK).checked_add(size.checked_next_multiple_of(BLOCK)?)?;
        match kind {
            b'x' => {
                for (key, value) in pax(content)? {
                    match key {
                        "path" => long_name = Some(value.to_owned()),
                        "size" => long_size = Some(value.parse().ok()?),
                        _ => {}
                    }
                }
            }
            b'L' => long_name = Some(text(content)?.to_owned()),
            _ if is_extension => {}
            _ => {
                let name = match long_name.take() {
                    Some(name) => name,
                    None => named(header)?,
                };
                match kind {
                    b'0' | 0 => {
                        let is_executable = number(&header[100..108])? & 0o111 != 0;
                        found.files.push(File { name, is_executable, content: content.to_vec() });
                    }
                    // A directory.
                    b'5' => {}
                    _ => found.others.push(name),
                }
            }
        }
    }
    Some(found)
}

/// Returns the name in a header.
fn named(header: &[u8]) -> Option<String> {
    let name = text(&header[..100])?;
    let is_ustar = header[257..262] == *b"ustar" && header[262] == 0;
    let prefix = if is_ustar { text(&header[345..500])? } else { "" };
    Some(if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") })
}

/// Returns a text that ends at the first NUL.
fn text(field: &[u8]) -> Option<&str> {
    std::str::from_utf8(field.split(|byte| *byte == 0).next()?).ok()
}

/// Returns a number in octal digits.
fn number(field: &[u8]) -> Option<usize> {
    let digits = text(field)?.trim_matches(' ');
    if digits.is_empty() { Some(0) } else { usize::from_str_radix(digits, 8).ok() }
}

/// Returns the records of a pax header: `LENGTH KEY=VALUE\n` each.
fn pax(mut content: &[u8]) -> Option<Vec<(&str, &str)>> {
    let mut records = Vec::new();
    while !content.is_empty() {
        let space = content.iter().position(|byte| *byte == b' ')?;
        let length: usize = std::str::from_utf8(&content[..space]).ok()?.parse().ok()?;
        let (record, rest) = content.split_at_checked(length)?;
        let record = record.get(space + 1..length.checked_sub(1)?)?;
        // Values of irrelevant keys need not be text.
        if let Some(record) = std::str::from_utf8(record).ok().and_then(|text| text.split_once('=')) {
            records.push(record);
        }
        content = rest;
    }
    Some(records)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use std::io::Write;

    fn header(name: &str, kind: u8, content: &[u8]) -> Vec<u8> {
        let mut block = vec![0; BLOCK];
        block[..name.len()].copy_from_slice(name.as_bytes());
        block[100..107].copy_from_slice(b"0000755");
        block[124..135].copy_from_slice(format!("{:011o}", content.len()).as_bytes());
        block[156] = kind;
        block[257..262].copy_from_slice(b"ustar");
        block.extend_from_slice(content);
        block.resize(block.len().next_multiple_of(BLOCK), 0);
        block
    }

    fn packed(tar: &[u8]) -> Vec<u8> {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(tar).unwrap();
        gzip.finish().unwrap()
    }

    #[test]
    fn files_have_their_long_names_and_links_are_left_out() {
        let long = format!("package/{}", "n".repeat(150));
        let tar = [
            header("package/a", b'0', b"one"),
            header("pax", b'x', format!("{} path={long}\n", long.len() + 10).as_bytes()),
            header("cut", b'0', b"two"),
            header("link", b'2', b""),
            header("long", b'L', b"package/gnu\0"),
            header("cut", b'0', b""),
            vec![0; 2 * BLOCK],
        ];
        let files = read_tgz(&packed(&tar.concat())).unwrap();
        let files: Vec<(&str, &[u8])> =
            files.iter().map(|file| (file.name.as_str(), &file.content[..])).collect();
        assert_eq!(files, [("package/a", &b"one"[..]), (&long, b"two"), ("package/gnu", b"")]);
        let Err(refused) = read_folder_tgz(&packed(&tar.concat())) else { panic!("it has a link") };
        assert!(refused.to_string().contains("\"link\" is a link"), "{refused}");
        let folder = [header("d/", b'5', b""), header("d/a", b'0', b"one"), vec![0; 2 * BLOCK]];
        assert_eq!(read_folder_tgz(&packed(&folder.concat())).unwrap().len(), 1);
    }

    #[test]
    fn a_pax_record_that_is_longer_than_its_header_is_refused() {
        for record in ["6 a=b", "5 a=b", "0 a=b", "1 a=b", "2 ", "18446744073709551615 a=b\n"] {
            let tar = [header("pax", b'x', record.as_bytes()), vec![0; 2 * BLOCK]].concat();
            let refused = read_tgz(&packed(&tar)).map(|files| files.len());
            match record {
                "5 a=b" => assert!(refused.is_ok(), "{record:?}: {refused:?}"),
                _ => assert!(refused.unwrap_err().to_string().contains("not a tar file"), "{record:?}"),
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn no_pax_records_are_fatal(records in "([0-9]{1,2} [a-c=\n]{0,12}){0,4}") {
            drop(pax(records.as_bytes()));
        }

        #[test]
        fn no_bytes_are_fatal(mut bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..1200), kind in 0_usize..6) {
            drop(content(&bytes));
            if bytes.len() >= BLOCK {
                bytes[124..136].fill(b'0');
                bytes[156] = b"0xLg52"[kind];
                drop(content(&bytes));
            }
        }
    }
}
