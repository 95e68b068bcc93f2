//! Every example of the reference gives what it says it gives.

use rtfs::eval_pure;

#[test]
fn every_example_of_the_reference_is_right() {
    let text = include_str!("../../../docs/rtfs.md");
    let blocks = text.split("```rtfs\n").skip(1).filter_map(|rest| rest.split("```").next());
    let mut wrong = Vec::new();
    let mut count = 0;
    for line in blocks.flat_map(str::lines) {
        let Some((program, expected)) = line.rsplit_once(" => ") else {
            wrong.push(format!("no value: {line}"));
            continue;
        };
        count += 1;
        match eval_pure(program) {
            Ok(value) if value.pr_str() == expected => {}
            Ok(value) => wrong.push(format!("{program}: {expected} expected, got {}", value.pr_str())),
            Err(failure) => wrong.push(format!("{program}: {failure}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count >= 40, "{count} examples");
}
