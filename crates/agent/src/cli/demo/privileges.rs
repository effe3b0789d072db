//! May this process make and program network namespaces?

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use super::namespace::Namespace;
use crate::cli::Failure;
use crate::exec;

/// Marks a process that was started again inside a user namespace, so that it does not try once more.
const INSIDE: &str = "TORTIE_DEMO_IN_USER_NAMESPACE";
/// `unshare` with what the demo needs: to be root, of a network of its own.
const UNSHARE: [&str; 4] = ["--user", "--map-root-user", "--net", "--"];

/// Sees to the privileges: where this process has none, it becomes one that is root of a new user namespace, and starts
/// again.
pub(super) fn acquire() -> Result<(), Failure> {
    let missing: Vec<_> =
        ["ip", "iptables", "ip6tables", "ipset"].into_iter().filter(|name| !exec::is_installed(name)).collect();
    if !missing.is_empty() {
        return Err(Failure::Failed(format!(
            "not installed: {}; on Debian: apt install iproute2 iptables ipset",
            missing.join(", ")
        )));
    }
    let refusal = match Namespace::new() {
        Ok(_) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => error,
        Err(error) => return Err(Failure::io("cannot create a network namespace")(error)),
    };
    if inside() {
        return Err(denied(&refusal.to_string()));
    }
    match Command::new("unshare").args(UNSHARE).arg("true").output() {
        Err(error) => return Err(denied(&format!("`unshare`: {error}"))),
        Ok(trial) if !trial.status.success() => return Err(denied(String::from_utf8_lossy(&trial.stderr).trim())),
        Ok(_) => {}
    }
    let program = std::env::current_exe().map_err(Failure::io("the path of this program"))?;
    let error =
        Command::new("unshare").args(UNSHARE).arg(program).args(std::env::args_os().skip(1)).env(INSIDE, "1").exec();
    Err(Failure::io("unshare")(error))
}

/// Whether this process was started again inside a user namespace.
pub(super) fn inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

fn denied(why: &str) -> Failure {
    Failure::Failed(format!(
        "no permission to make network namespaces, nor a user namespace to make them in ({why}); run it as root"
    ))
}
