//! Every file of `cases/` is a row of programs, each followed by what it gives: `;=> ` and the value as
//! `pr-str` prints it, or `;=> error KIND`, or `;=> error KIND LINE:COLUMN MESSAGE`.

use std::path::Path;

use rtfs::eval_pure;

#[test]
fn every_case_has_its_expected_outcome() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() > 10, "{files:?}");
    let mut wrong = Vec::new();
    for file in files {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&file).unwrap();
        let mut program = String::new();
        for (number, line) in text.lines().enumerate() {
            let Some(expected) = line.strip_prefix(";=> ") else {
                program.push_str(line);
                program.push('\n');
                continue;
            };
            let got = outcome(program.trim(), expected);
            if got != expected {
                wrong.push(format!(
                    "{name}:{}: {}\n    expected {expected}\n    got      {got}",
                    number + 1,
                    program.trim()
                ));
            }
            program.clear();
        }
        assert!(program.trim().is_empty(), "{name} ends without saying what its last program gives");
    }
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
}

/// What a program gives, said as far as `expected` does.
fn outcome(program: &str, expected: &str) -> String {
    match eval_pure(program) {
        Ok(value) => value.pr_str(),
        Err(failure) => {
            let short = format!("error {}", failure.kind());
            if expected == short || !expected.starts_with("error ") {
                return if expected == short { short } else { format!("{short} {}", failure.message()) };
            }
            let place =
                failure.position().map_or(String::new(), |at| format!("{}:{} ", at.line, at.column));
            format!("{short} {place}{}", failure.message())
        }
    }
}
