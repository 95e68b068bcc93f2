//! {"name": "Ada", "times": 2} arrives as `--name Ada --times 2`, and as a line of JSON on standard
//! input. Standard output is the result; an exit code other than 0 is an error, and the end of
//! standard error goes with it.

use std::process::ExitCode;

fn main() -> ExitCode {
    let (mut name, mut times) = (String::new(), 1_u32);
    let mut arguments = std::env::args().skip(1);
    while let Some(flag) = arguments.next() {
        let value = arguments.next().unwrap_or_default();
        match (flag.as_str(), value.parse()) {
            ("--name", _) => name = value,
            ("--times", Ok(number)) => times = number,
            _ => {
                eprintln!("unknown argument: {flag} {value}");
                return ExitCode::from(2);
            }
        }
    }
    for number in 1..=times {
        eprintln!("::progress {number}/{times} greeting {number}");
        println!("Hello, {name}!");
    }
    ExitCode::SUCCESS
}
