//! A configuration or a prompt file is used or refused with the place of every mistake.
//!
//! The modules are private to the program, whose only public function is `main`: they are compiled in
//! here from their files.
#![no_main]
#![expect(dead_code, unused_imports, reason = "the program uses what is not used here")]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/orla/src/config/mod.rs"]
mod config;
#[path = "../../crates/orla/src/exposure.rs"]
mod exposure;
#[path = "../../crates/orla/src/extensions.rs"]
mod extensions;
#[path = "../../crates/orla/src/prompts/mod.rs"]
mod prompts;
#[path = "../../crates/orla/src/text.rs"]
mod text;

const COMMAND: &[u8] = b"${command:";

thread_local! {
    static DIRECTORY: tempfile::TempDir = tempfile::tempdir().expect("a temporary directory");
}

fuzz_target!(|bytes: &[u8]| {
    // It would be run.
    if bytes.windows(COMMAND.len()).any(|part| part == COMMAND) {
        return;
    }
    DIRECTORY.with(|directory| {
        let file = directory.path().join("orla.yaml");
        std::fs::write(&file, bytes).expect("a file can be written");
        let source = config::Source { file: Some(file.clone()), ..config::Source::default() };
        if let Err(problems) = source.load() {
            assert!(!problems.is_empty());
            for problem in problems {
                let shown = text::on_one_line(&problem.to_string());
                assert!(!shown.is_empty() && !shown.contains('\n'), "{shown:?}");
            }
        }
        std::fs::rename(&file, directory.path().join("prompt.md")).expect("a file can be renamed");
        let loaded = prompts::load(directory.path(), true);
        for prompt in &loaded.prompts {
            let _ = prompt.render(&serde_json::Map::new());
        }
    });
});
