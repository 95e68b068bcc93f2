//! The Debian package in a virtual machine: a real systemd on a kernel of Debian, with control groups that systemd delegates.
//!
//! The disk of the machine is made once. A second disk is an archive with the package and the script, and a second serial
//! line takes what the script prints.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::debian::{bare, fixture};
use crate::dist::release::{Artefact, Program, succeed};
use crate::process;
use crate::tally::Tally;

/// The release of Debian on the machine. Its kernel must have Landlock ABI 3 (Linux 6.2).
const SUITE: &str = "trixie";
/// What is installed on the machine beside a minimal system and its kernel.
const PACKAGES: [&str; 6] = ["systemd", "systemd-sysv", "dbus", "curl", "procps", "initramfs-tools"];
/// How long the machine may run. Without hardware virtualization, it is some ten times as slow.
const LIMIT: Duration = Duration::from_secs(900);
/// Bytes of its disk, most of which are never written.
const DISK: &str = "1500M";

/// Runs the script on the machine once it has started, and turns the machine off.
const UNIT: &str = "\
[Unit]
Description=what the machine is for
After=network.target

[Service]
Type=oneshot
TimeoutStartSec=900
ExecStart=/bin/sh -c 'mkdir /run/check && tar -xf /dev/vdb -C /run/check && sh /run/check/machine.sh /run/check/orla.deb'
ExecStopPost=/bin/systemctl --no-block poweroff
StandardOutput=file:/dev/ttyS1
StandardError=inherit
";

pub(in crate::dist) fn check(
    package: &Artefact,
    program: &Program,
    scratch: &Path,
    tally: &mut Tally,
) -> Result<(), String> {
    let emulator = format!("qemu-system-{}", program.target.architecture);
    let has = |name: &str| {
        Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success())
    };
    if program.target.architecture != "x86_64"
        || !rustix::process::geteuid().is_root()
        || !has(&emulator)
    {
        println!("      left out: no machine is started, which needs root and {emulator}, on x86_64");
        return Ok(());
    }
    let Some(machine) = Machine::made(program.target.debian)? else { return Ok(()) };
    let folder = scratch.join("machine");
    let _ = fs::remove_dir_all(&folder);
    let write = |name: &str, content: &[u8]| {
        let path = folder.join(name);
        fs::write(&path, content).map_err(|err| format!("{}: {err}", path.display()))
    };
    fs::create_dir_all(&folder).map_err(|err| format!("{}: {err}", folder.display()))?;
    write("orla.deb", &package.bytes)?;
    for name in ["machine.sh", "checks.sh"] {
        fs::copy(fixture(name), folder.join(name)).map_err(|err| format!("{name}: {err}"))?;
    }
    let given = scratch.join("machine.tar");
    succeed(Command::new("tar").arg("-cf").arg(&given).arg("-C").arg(&folder).arg("."))?;

    let (console, printed) = (folder.join("console.txt"), folder.join("printed.txt"));
    let drive =
        |file: &Path, options: &str| format!("file={},format=raw,if=virtio,{options}", file.display());
    let mut command = Command::new(emulator);
    command
        .args(["-machine", "q35", "-accel", accelerator(), "-cpu", "max", "-smp", "2", "-m", "1536"])
        .args(["-nodefaults", "-display", "none", "-no-reboot"])
        .arg("-kernel")
        .arg(machine.file("vmlinuz"))
        .arg("-initrd")
        .arg(machine.file("initrd"))
        .args(["-append", "root=/dev/vda rw console=ttyS0 quiet panic=-1"])
        .args(["-drive", &drive(&machine.file("disk"), "snapshot=on")])
        .args(["-drive", &drive(&given, "readonly=on")])
        .args(["-serial", &format!("file:{}", console.display())])
        .args(["-serial", &format!("file:{}", printed.display())]);
    let mut finished = process::run(&mut command, scratch, LIMIT)?;
    let read = |path: &Path| fs::read(path).map(|text| String::from_utf8_lossy(&text).replace('\r', ""));
    finished.stdout = read(&printed).unwrap_or_default();
    finished.stderr.push_str(&read(&console).unwrap_or_default());
    tally.judge("machine:", &finished);
    Ok(())
}

/// Returns how the emulator runs the machine: by KVM if this processor says that it can.
fn accelerator() -> &'static str {
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let has = |name: &str| processor.split_whitespace().any(|flag| flag == name);
    let can = (has("vmx") || has("svm")) && fs::File::options().write(true).open("/dev/kvm").is_ok();
    if can { "kvm" } else { "tcg,thread=multi" }
}

/// A kernel, its initial file system and a disk, in a folder.
struct Machine(PathBuf);

impl Machine {
    /// Makes the machine if it is not there; `None` where it cannot be made.
    fn made(architecture: &str) -> Result<Option<Self>, String> {
        let folder = crate::target("dist")?.join(format!("machine-{SUITE}"));
        let machine = Self(folder.clone());
        if folder.exists() {
            return Ok(Some(machine));
        }
        let kernel = format!("linux-image-cloud-{architecture}");
        let packages: Vec<&str> = PACKAGES.into_iter().chain([kernel.as_str()]).collect();
        let Some(archive) = bare(SUITE, "machine", &packages)? else { return Ok(None) };
        let half = Self(folder.with_extension("half"));
        let _ = fs::remove_dir_all(&half.0);
        let root = half.file("root");
        let units = root.join("etc/systemd/system");
        let problem = |err: std::io::Error| format!("{}: {err}", half.0.display());
        fs::create_dir_all(&root).map_err(problem)?;
        succeed(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(&root))?;
        let wants = units.join("multi-user.target.wants");
        fs::create_dir_all(&wants).map_err(problem)?;
        fs::write(units.join("check.service"), UNIT).map_err(problem)?;
        std::os::unix::fs::symlink("../check.service", wants.join("check.service")).map_err(problem)?;
        for (start, name) in [("vmlinuz-", "vmlinuz"), ("initrd.img-", "initrd")] {
            let files = fs::read_dir(root.join("boot")).map_err(problem)?.flatten();
            let mut files = files.filter(|file| file.file_name().to_string_lossy().starts_with(start));
            let file = files.next().ok_or_else(|| format!("the machine has no {start}"))?;
            fs::copy(file.path(), half.file(name)).map_err(problem)?;
        }
        let mut disk = Command::new("mke2fs");
        disk.args(["-q", "-F", "-t", "ext4", "-d"]).arg(&root).arg(half.file("disk")).arg(DISK);
        succeed(&mut disk)?;
        fs::remove_dir_all(&root).and_then(|()| fs::rename(&half.0, &folder)).map_err(problem)?;
        Ok(Some(machine))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}
