//! The product's own `main`, so that the tests find its binary by `CARGO_BIN_EXE_orla_under_test`.
fn main() -> std::process::ExitCode {
    orla::main()
}
