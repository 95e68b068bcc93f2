//! The first bytes of any file have an interpreter, a description and remarks, or have not.
#![no_main]

use libfuzzer_sys::fuzz_target;
use orla_process::shebang::FileKind;
use orla_providers::tool::header::{read, wanted};
use orla_providers::tool::metadata::{Subject, read_block, read_file};

fuzz_target!(|bytes: &[u8]| {
    let _ = FileKind::of(bytes).interpreter();
    if let Some(more) = wanted(bytes) {
        assert!(more > bytes.len(), "reading on asks for more than there is");
    }
    let header = read(bytes);
    for subject in [Subject::Executable, Subject::Program] {
        if let Some(Ok(block)) = &header.block {
            let (metadata, remarks) = read_block(block, subject);
            for remark in &remarks {
                assert!(!remark.message.is_empty() && remark.at.line >= 1);
            }
            assert!(metadata.timeout.is_none_or(|timeout| !timeout.is_zero()));
        }
        let _ = read_file(bytes, subject);
    }
});
