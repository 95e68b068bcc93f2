//! Whatever is in a compressed tar file, its files are read or it is refused.
#![no_main]

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use libfuzzer_sys::fuzz_target;
use orla_packages::archive::{read_folder_tgz, read_tgz};

fuzz_target!(|tar: &[u8]| {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::none());
    gzip.write_all(tar).expect("memory takes it");
    let bytes = gzip.finish().expect("memory takes it");
    // A link makes it no folder of tools.
    if let Ok(folder) = read_folder_tgz(&bytes) {
        assert_eq!(read_tgz(&bytes).expect("it was read before"), folder);
    }
});
