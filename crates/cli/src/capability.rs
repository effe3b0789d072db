//! Check of the process's capabilities.

use super::Failure;

/// Linux capability (`linux/capability.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// Network administration.
    NetAdmin = 12,
    /// Raw sockets.
    NetRaw = 13,
    /// Access to processes of other users.
    SysPtrace = 19,
    /// System administration.
    SysAdmin = 21,
}

impl Capability {
    const fn name(self) -> &'static str {
        match self {
            Self::NetAdmin => "CAP_NET_ADMIN to program the kernel",
            Self::NetRaw => "CAP_NET_RAW to send packets of this protocol",
            Self::SysPtrace => "CAP_SYS_PTRACE to look where the processes of pods are",
            Self::SysAdmin => "CAP_SYS_ADMIN to enter the network namespace of a pod",
        }
    }
}

/// Fails unless this process and its child processes have `CAP_NET_ADMIN`.
///
/// # Errors
/// If the process lacks it.
pub fn require_net_admin(command: &str) -> Result<(), Failure> {
    require(command, &[Capability::NetAdmin])
}

/// Fails unless this process has these capabilities; for `CAP_NET_ADMIN`, also its child processes.
///
/// # Errors
/// If the process lacks one of them.
pub fn require(command: &str, capabilities: &[Capability]) -> Result<(), Failure> {
    // Without /proc, much else fails.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let lacks = capabilities.iter().find_map(|of| Some((of.name(), missing(&status, *of)?)));
    match lacks {
        Some((name, why)) => Err(Failure::failed(format!("`{command}` needs {name}, but {why}"))),
        None => Ok(()),
    }
}

/// Returns the reason why a process with this `/proc/self/status` lacks a capability; `None` if it
/// has it.
fn missing(status: &str, capability: Capability) -> Option<String> {
    let field = |name| status.lines().find_map(|line: &str| line.strip_prefix(name)?.strip_prefix(':'));
    let has = |set| {
        let bits = u64::from_str_radix(field(set)?.trim(), 16).ok()?;
        Some(bits & (1 << capability as u32) != 0)
    };
    let user = field("Uid").and_then(|ids| ids.split_whitespace().nth(1)).unwrap_or("?");
    if has("CapEff") == Some(false) {
        return Some(format!("does not have it, running as user {user}"));
    }
    // Programs that are started by users other than root have the ambient capabilities only.
    (capability == Capability::NetAdmin && user != "0" && has("CapAmb") == Some(false)).then(|| {
        format!("the programs that it starts do not inherit it from user {user}: run it as root, or make it ambient")
    })
}

#[cfg(test)]
mod tests;
