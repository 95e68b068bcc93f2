//! How flags become sources of the configuration, and that the help is consistent.

use super::*;
use clap::CommandFactory;

fn source(words: &[&str]) -> Source {
    let cli = Cli::try_parse_from(words).unwrap();
    match cli.command {
        Some(Command::Serve(after)) => Cli::serve_source(cli.serve, Some(after)),
        Some(Command::Call(call)) => Cli::source(cli.serve, call.settings),
        _ => Cli::serve_source(cli.serve, None),
    }
}

#[test]
fn help_can_be_asked_for_as_a_command() {
    for words in [&["orla", "help"][..], &["orla", "help", "call"]] {
        let help = Cli::try_parse_from(words).unwrap_err();
        assert_eq!(help.kind(), clap::error::ErrorKind::DisplayHelp, "{words:?}");
    }
}

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn flags_win_over_what_the_program_was_built_with() {
    let set = |value: &str| ("port", "port", OsString::from(value));
    let base = Source { file: Some("built.yaml".into()), flags: vec![set("1")], ..Source::default() };
    for (words, file) in
        [(&["orla", "--port", "2"][..], "built.yaml"), (&["orla", "--port=2", "--config=c"], "c")]
    {
        let mut cli = Cli::try_parse_from(words).unwrap();
        cli.serve.base = base.clone();
        let source = Cli::serve_source(cli.serve, None);
        assert_eq!(source.file, Some(file.into()));
        assert_eq!(source.flags, [set("1"), ("--port", "port", "2".into())]);
    }
}

#[test]
fn flags_work_before_and_after_every_form_of_serve() {
    for words in [
        &["orla", "--port", "0", "--stdio"][..],
        &["orla", "serve", "--port", "0", "--stdio"],
        &["orla", "run", "--stdio", "--port=0"],
        &["orla", "--port", "0", "run", "--stdio"],
    ] {
        let flags = source(words).flags;
        let keys: Vec<_> = flags.iter().map(|(_, key, value)| (*key, value.to_str().unwrap())).collect();
        assert!(keys.contains(&("port", "0")) && keys.contains(&("transport", "stdio")), "{words:?}");
    }
}

#[test]
fn a_flag_after_the_command_wins() {
    let source = source(&["orla", "--timeout", "1", "--config", "a", "call", "ls", "--timeout", "2"]);
    assert_eq!(source.flags.last().unwrap().2, "2");
    assert_eq!(source.file, Some("a".into()));
}

#[test]
fn a_negative_value_reaches_the_check_that_explains_it() {
    assert_eq!(source(&["orla", "--timeout", "-1"]).flags[0].2, "-1");
}
