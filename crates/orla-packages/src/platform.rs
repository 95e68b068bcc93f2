//! The platform that an archive's name implies. It is a hint: the manifest decides.

use std::cmp::Reverse;
use std::fmt;

/// A system and an architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Platform {
    /// The system in the notation of bundle manifests: `linux`, `darwin`, `win32`.
    pub system: &'static str,
    /// The architecture in Rust's notation.
    pub architecture: &'static str,
}

const SYSTEMS: [(&str, &[&str]); 3] = [
    ("linux", &["linux"]),
    ("darwin", &["darwin", "macos", "mac", "osx", "apple"]),
    ("win32", &["win32", "win64", "windows", "win"]),
];
const ARCHITECTURES: [(&str, &[&str]); 4] = [
    ("x86_64", &["x64", "amd64"]),
    ("aarch64", &["arm64", "aarch64"]),
    ("x86", &["x86", "ia32", "i386", "i686"]),
    ("arm", &["arm", "armv6", "armv7", "armhf"]),
];

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}", self.system, self.architecture)
    }
}

impl Platform {
    /// The platform of this program.
    pub const HERE: Self = Self {
        system: if cfg!(target_os = "macos") { "darwin" } else { "linux" },
        architecture: std::env::consts::ARCH,
    };

    /// Returns the archives that may be for this platform, the likeliest first. An archive whose name
    /// contains another system or architecture is left out.
    pub fn likely<T>(self, archives: Vec<T>, name: impl Fn(&T) -> &str) -> Vec<T> {
        let rated = archives.into_iter().filter_map(|one| Some((self.rate(name(&one))?, one)));
        let mut rated: Vec<(usize, T)> = rated.collect();
        rated.sort_by_key(|(rate, _)| Reverse(*rate));
        rated.into_iter().map(|(_, one)| one).collect()
    }

    /// Returns how well the last part of a URL matches this platform; `None` if it names another one.
    fn rate(self, url: &str) -> Option<usize> {
        let name = url.split(['?', '#']).next().unwrap_or_default().rsplit('/').next()?;
        let name = name.to_ascii_lowercase().replace("x86_64", "x64").replace("x86-64", "x64");
        let words: Vec<&str> = name.split(|ch: char| !ch.is_ascii_alphanumeric()).collect();
        let named = |known: &[(&str, &[&str])], own: &str| {
            let mut named =
                known.iter().filter(|(_, names)| names.iter().any(|name| words.contains(name)));
            match (named.clone().any(|(one, _)| *one == own), named.next()) {
                (true, _) => Some(1),
                (false, None) => Some(0),
                (false, Some(_)) => None,
            }
        };
        Some(named(&SYSTEMS, self.system)? + named(&ARCHITECTURES, self.architecture)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_of_other_platforms_are_left_out_and_the_likeliest_is_first() {
        let platform = Platform { system: "linux", architecture: "x86_64" };
        let likely = |names: &[&'static str]| platform.likely(names.to_vec(), |name| name);
        assert_eq!(
            likely(&[
                "https://a.example/linux/s-darwin-arm64.mcpb",
                "s-windows-x86_64.mcpb",
                "s-linux-arm64.mcpb",
                "s.mcpb",
                "s-linux.mcpb",
                "s_Linux_x86_64.mcpb?x=darwin",
            ]),
            ["s_Linux_x86_64.mcpb?x=darwin", "s-linux.mcpb", "s.mcpb"]
        );
        assert_eq!(likely(&["darwin-tools-linux-amd64.mcpb"]).len(), 1, "it names this one, too");
        assert_eq!(likely(&["window-charm64-winner.mcpb"]).len(), 1, "parts of words name nothing");
        assert!(likely(&["s-macos-universal.mcpb", "s-linux-i686.mcpb"]).is_empty());
    }
}
