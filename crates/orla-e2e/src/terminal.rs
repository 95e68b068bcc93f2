//! A command at a terminal, with typed input.
//!
//! The effect of a key depends on the terminal's mode when it is typed. While an editor shows its
//! prompt, it reads every key as a byte. While a program runs, the terminal itself turns Ctrl-C into a
//! signal and Ctrl-D into the end of the input, and an editor that starts later reads neither. Wait for
//! the prompt before typing Ctrl-D, and use [`Terminal::interrupts`] for a running program.

use std::fs::File;
use std::io::{Read, Write};
use std::ops::Deref;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::wait::eventually;
use crate::world::{World, spawn};

/// A command that reads and writes a terminal. It ends when this is dropped.
#[derive(Debug)]
pub struct Terminal {
    child: Child,
    keys: File,
    shown: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
    world: World,
}

impl Terminal {
    pub(crate) fn start(world: World, mut command: Command) -> Self {
        let ours =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
        grantpt(&ours).and_then(|()| unlockpt(&ours)).expect("a terminal that can be used");
        let name = ptsname(&ours, Vec::new()).expect("the terminal's name");
        let theirs =
            open(name.as_c_str(), OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())
                .expect("the other side of the terminal");
        let size = Winsize { ws_row: 40, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&ours, size).expect("a size can be set");
        let side = || theirs.try_clone().expect("a descriptor");
        command.stdin(side()).stdout(side()).stderr(side());
        let child = spawn(&mut command);
        drop((command, theirs));
        let keys = File::from(ours);
        let mut screen = keys.try_clone().expect("a descriptor");
        let shown: Arc<Mutex<Vec<u8>>> = Arc::default();
        let taking = Arc::clone(&shown);
        // It ends when the other side is closed.
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = screen.read(&mut bytes) {
                taking.lock().extend(&bytes[..count]);
            }
        });
        Self { child, keys, shown, reader, world }
    }

    /// Types this; control characters are keys (`\u{3}` is Ctrl-C, `\t` is Tab).
    pub fn types(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("a terminal takes keys");
    }

    /// Types a line.
    pub fn enters(&mut self, line: &str) {
        self.types(&format!("{line}\r"));
    }

    /// Types Ctrl-C once the terminal turns it into a signal, because the editor has handed the terminal
    /// over to the running program.
    pub fn interrupts(&mut self) {
        let keys = &self.keys;
        eventually("an entry runs", || {
            tcgetattr(keys).expect("a terminal's mode").local_modes.contains(LocalModes::ISIG)
        });
        self.types("\u{3}");
    }

    /// Everything that was shown so far, as it came.
    pub fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock()).into_owned()
    }

    /// Waits until this text has been shown since the mark, and returns the position after it, which is
    /// the next mark.
    pub fn shows(&self, since: usize, text: &str) -> usize {
        let found = || {
            let shown = self.shown();
            let at = shown.get(since..)?.find(text)?;
            Some(since + at + text.len())
        };
        let deadline = std::time::Instant::now() + crate::wait::TEST_TIMEOUT;
        loop {
            if let Some(place) = found() {
                return place;
            }
            assert!(
                std::time::Instant::now() < deadline,
                "{text:?} was not shown; this was: {:?}",
                self.shown().get(since..)
            );
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    /// Waits for the end, and returns all output until then.
    pub fn shows_to_its_end(&mut self) -> String {
        self.ends();
        eventually("its last words are read", || self.reader.is_finished());
        self.shown()
    }

    /// Waits for the end.
    pub fn ends(&mut self) -> ExitStatus {
        let child = &mut self.child;
        eventually("the command ends", || child.try_wait().expect("a child can be waited for"))
    }
}

impl Deref for Terminal {
    type Target = World;

    fn deref(&self) -> &World {
        &self.world
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
