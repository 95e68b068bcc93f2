//! Images at terminals that support them: the graphics protocols of kitty and of iTerm2.
//!
//! Both take a file in Base64, so nothing is decoded here and nothing of the image can be read as a command. The
//! environment determines the protocol of a terminal: asking the terminal would mean reading its answer from the
//! keyboard.

use std::io::IsTerminal;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use super::{Stream, put};

/// The largest image that is sent to a terminal, in bytes.
const MAX: usize = 32 * 1024 * 1024;
/// Characters of Base64 in one escape sequence of kitty's protocol.
const CHUNK: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    /// <https://sw.kovidgoyal.net/kitty/graphics-protocol/>. It takes PNG.
    Kitty,
    /// <https://iterm2.com/documentation-images.html>. It takes the usual formats.
    ITerm2,
}

/// Shows an image on standard output, if that is a terminal with support for images. Returns whether it did.
pub(crate) fn show(bytes: &[u8]) -> bool {
    if !std::io::stdout().is_terminal() || bytes.len() > MAX {
        return false;
    }
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let sequence = protocol(variable).and_then(|protocol| sequence(protocol, bytes));
    if let Some(sequence) = &sequence {
        put(Stream::Out, sequence.as_bytes());
    }
    sequence.is_some()
}

fn protocol(variable: impl Fn(&str) -> Option<String>) -> Option<Protocol> {
    // A multiplexer filters sequences that it does not know.
    if variable("TMUX").is_some() || variable("STY").is_some() {
        return None;
    }
    let program = variable("TERM_PROGRAM").unwrap_or_default();
    let term = variable("TERM").unwrap_or_default();
    if variable("KITTY_WINDOW_ID").is_some() || term.contains("kitty") || program == "ghostty" {
        return Some(Protocol::Kitty);
    }
    let is_iterm = variable("LC_TERMINAL").is_some_and(|terminal| terminal == "iTerm2");
    let is_like_it = matches!(&*program, "iTerm.app" | "WezTerm" | "mintty" | "rio");
    (is_iterm || is_like_it).then_some(Protocol::ITerm2)
}

/// Returns the escape sequences that show an image, if the protocol has its format.
fn sequence(protocol: Protocol, bytes: &[u8]) -> Option<String> {
    let is_png = bytes.starts_with(b"\x89PNG\r\n\x1a\n");
    let is_known =
        is_png || [&b"\xff\xd8\xff"[..], b"GIF8"].iter().any(|magic| bytes.starts_with(magic));
    let base64 = BASE64_STANDARD.encode(bytes);
    match protocol {
        Protocol::Kitty if is_png => {
            let chunks: Vec<&str> = (0..base64.len())
                .step_by(CHUNK)
                .map(|at| &base64[at..base64.len().min(at + CHUNK)])
                .collect();
            let mut out = String::with_capacity(base64.len() + 16 * chunks.len());
            for (at, chunk) in chunks.iter().enumerate() {
                // `q=2`: the terminal does not answer, as its answer would not be read.
                let head = if at == 0 { "a=T,f=100,q=2," } else { "" };
                let more = u8::from(at + 1 < chunks.len());
                out.push_str(&format!("\x1b_G{head}m={more};{chunk}\x1b\\"));
            }
            out.push('\n');
            Some(out)
        }
        Protocol::ITerm2 if is_known => {
            let size = bytes.len();
            Some(format!("\x1b]1337;File=inline=1;size={size}:{base64}\x07\n"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> Option<Protocol> {
        protocol(|name| {
            let found = pairs.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn terminals_are_known_from_their_environment() {
        assert_eq!(of(&[("TERM", "xterm-256color")]), None);
        assert_eq!(of(&[("TERM", "xterm-kitty")]), Some(Protocol::Kitty));
        assert_eq!(of(&[("TERM_PROGRAM", "ghostty")]), Some(Protocol::Kitty));
        assert_eq!(of(&[("TERM_PROGRAM", "iTerm.app")]), Some(Protocol::ITerm2));
        assert_eq!(of(&[("TERM", "xterm-kitty"), ("TMUX", "/tmp/x")]), None);
    }

    #[test]
    fn a_long_image_is_sent_in_chunks() {
        let mut png = b"\x89PNG\r\n\x1a\n".to_vec();
        png.resize(2 * CHUNK, 7);
        let kitty = sequence(Protocol::Kitty, &png).unwrap();
        assert!(kitty.starts_with("\x1b_Ga=T,f=100,q=2,m=1;iVBORw0KGgo"), "{kitty}");
        assert_eq!(kitty.matches("\x1b_G").count(), 3);
        assert_eq!(kitty.matches("m=0;").count(), 1);
        assert_eq!(sequence(Protocol::Kitty, b"GIF89a"), None);
        assert_eq!(
            sequence(Protocol::ITerm2, b"GIF89a").as_deref(),
            Some("\x1b]1337;File=inline=1;size=6:R0lGODlh\x07\n")
        );
        assert_eq!(sequence(Protocol::ITerm2, b"\x1b]0;x"), None);
    }
}
