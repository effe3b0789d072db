//! Whether this process may program the kernel.

use super::Failure;

/// The number of `CAP_NET_ADMIN` (`linux/capability.h`).
const NET_ADMIN: u32 = 12;

/// Fails unless this process, and the programs that it starts, have `CAP_NET_ADMIN`.
pub(super) fn require_net_admin(command: &str) -> Result<(), Failure> {
    // Where there is no /proc, much else will be missed.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    match missing(&status) {
        Some(why) => Err(Failure::Failed(format!("`{command}` needs CAP_NET_ADMIN to program the kernel, but {why}"))),
        None => Ok(()),
    }
}

/// Why the network cannot be changed, by what `/proc/self/status` says.
fn missing(status: &str) -> Option<String> {
    let field = |name| status.lines().find_map(|line: &str| line.strip_prefix(name)?.strip_prefix(':'));
    let has = |set| {
        let bits = u64::from_str_radix(field(set)?.trim(), 16).ok()?;
        Some(bits & (1 << NET_ADMIN) != 0)
    };
    let user = field("Uid").and_then(|ids| ids.split_whitespace().nth(1)).unwrap_or("?");
    if has("CapEff") == Some(false) {
        return Some(format!("does not have it, running as user {user}"));
    }
    // Programs that are started by anybody but root have the ambient capabilities only.
    (user != "0" && has("CapAmb") == Some(false)).then(|| {
        format!("the programs that it starts do not inherit it from user {user}: run it as root, or make it ambient")
    })
}

#[cfg(test)]
mod tests {
    use super::missing;

    fn status(user: &str, effective: &str, ambient: &str) -> String {
        format!(
            "Name:\ttortie\nUid:\t1\t{user}\t1\t1\nCapEff:\t{effective}\nCapBnd:\t000001ffffffffff\nCapAmb:\t{ambient}\n"
        )
    }

    #[test]
    fn root_needs_the_capability_and_others_must_pass_it_on() {
        let (none, all, net_admin) = ("0000000000000000", "000001ffffffffff", "0000000000001000");
        assert_eq!(missing(&status("0", all, none)), None);
        assert_eq!(missing(&status("0", net_admin, none)), None);
        assert_eq!(missing(&status("0", "000001ffffffefff", none)).unwrap(), "does not have it, running as user 0");
        assert_eq!(missing(&status("7", none, none)).unwrap(), "does not have it, running as user 7");
        assert!(missing(&status("7", net_admin, none)).unwrap().contains("do not inherit it from user 7"));
        assert_eq!(missing(&status("7", net_admin, net_admin)), None);
        assert_eq!(missing(""), None);
    }
}
