//! `cargo xtask try-package`: test the Debian package on a separate machine with systemd.
//!
//! The machine is a container of `systemd-nspawn` with the kernel of this one and a separate
//! network, created once by `debootstrap` from Debian's mirror. Files written in it are lost when
//! it ends.

mod initramfs;
mod kernel;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use xtask::files::failed;

use crate::needs;
use crate::shell::{output, root, run};

pub(crate) use kernel::try_kernel;

const DISTRIBUTION: &str = "bookworm";
/// Packages of the machine beyond the minimal system.
const PACKAGES: &str = "systemd-sysv,dbus,iptables,ipset,conntrack,nftables,iproute2,procps,netcat-openbsd";
/// Time limit of its boot.
const PATIENCE: Duration = Duration::from_secs(60);

/// Tests a package.
pub(crate) fn try_package(args: &[String]) -> Result<(), String> {
    let [package] = args else { return Err("cargo xtask try-package FILE.deb".into()) };
    let package = fs::canonicalize(package).map_err(failed(Path::new(package)))?;
    needs::to_try_packages()?;
    let machine = Machine::boot(&system()?, &package)?;
    run(&mut machine.shell(include_str!("steps.sh"))?).map_err(|_| "a step failed; its output is above".to_owned())
}

/// Returns an unmodified root directory.
fn system() -> Result<PathBuf, String> {
    let folder = root().join("target").join(DISTRIBUTION);
    if !folder.is_dir() {
        println!("making {}", folder.display());
        let new = folder.with_extension("new");
        let mut debootstrap = Command::new("debootstrap");
        debootstrap.args(["--variant=minbase", &format!("--include={PACKAGES}"), DISTRIBUTION]).arg(&new);
        output(&mut debootstrap)?;
        fs::rename(&new, &folder).map_err(failed(&new))?;
    }
    Ok(folder)
}

/// A running machine.
struct Machine(Child);

impl Machine {
    fn boot(system: &Path, package: &Path) -> Result<Self, String> {
        let mut boot = Command::new("unshare");
        boot.args(["--mount", "--propagation=private", "sh", "-euc", include_str!("boot.sh"), "boot"]);
        boot.args([system, package, &root().join("examples/demo")]).stdin(Stdio::null()).stdout(Stdio::null());
        let mut machine = Self(boot.spawn().map_err(|error| format!("unshare: {error}"))?);
        let deadline = Instant::now() + PATIENCE;
        while !machine.is_running() {
            if let Some(status) = machine.0.try_wait().map_err(|error| error.to_string())? {
                return Err(format!("the machine has ended: {status}"));
            }
            if Instant::now() > deadline {
                return Err(format!("the machine does not run after {} s", PATIENCE.as_secs()));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(machine)
    }

    fn is_running(&self) -> bool {
        let result = self.shell("systemctl is-system-running").map(|mut shell| shell.output());
        result.is_ok_and(|output| output.is_ok_and(|output| output.status.success()))
    }

    /// Returns a command that runs a script as root in the machine.
    fn shell(&self, script: &str) -> Result<Command, String> {
        let path = format!("/proc/{0}/task/{0}/children", self.0.id());
        let children = fs::read_to_string(&path).map_err(failed(Path::new(&path)))?;
        let init = children.split_whitespace().next().ok_or("the machine has not begun")?;
        let mut shell = Command::new("nsenter");
        shell.args(["--all", "--root", "--wd", "--target", init, "env", "--ignore-environment", "--chdir=/"]);
        shell.args(["PATH=/usr/sbin:/usr/bin", "LC_ALL=C", "sh", "-uc", script]).stdin(Stdio::null());
        Ok(shell)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // An error means that the machine has already ended, or never ran.
        let _ = self.shell("systemctl poweroff --force --force").map(|mut shell| shell.output());
        let deadline = Instant::now() + Duration::from_secs(10);
        while matches!(self.0.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
        let groups = "find /sys/fs/cgroup -depth -type d -path '*/tortie-trial*' -exec rmdir {} +";
        let _ = Command::new("sh").args(["-c", groups]).output();
    }
}
