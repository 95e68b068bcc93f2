fn main() -> std::process::ExitCode {
    orla::main()
}
