//! Logger of packets that iptables-legacy traces (`net.netfilter.nf_log`).

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tortie_model::Family;

use super::super::super::Failure;

const NFLOG: &str = "nfnetlink_log";

/// Sends the traced packets of a family to NFLOG group 0 until it is dropped.
#[derive(Debug)]
pub(super) struct NfLog {
    /// Process that restores the previous logger when its standard input ends, even if this process
    /// is killed.
    guard: Option<Child>,
}

impl NfLog {
    pub(super) fn set(family: Family, settings: &Path) -> Result<Self, Failure> {
        let number = match family {
            Family::V4 => "2",
            Family::V6 => "10",
        };
        let path = settings.join("net/netfilter/nf_log").join(number);
        let failed = |error: io::Error| Failure::io(path.display().to_string())(error);
        let before = fs::read_to_string(&path).map_err(failed)?;
        if before.trim() == NFLOG {
            return Ok(Self { guard: None });
        }
        let mut guard = Command::new("sh");
        guard.args(["-c", "read -r _; echo \"$1\" >\"$2\"", "sh", before.trim()]).arg(&path);
        // Ctrl-C must end this process only.
        guard.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let guard = Self { guard: Some(guard.spawn().map_err(Failure::io("sh"))?) };
        fs::write(&path, NFLOG).map_err(failed)?;
        Ok(guard)
    }
}

impl Drop for NfLog {
    fn drop(&mut self) {
        if let Some(guard) = &mut self.guard {
            drop(guard.stdin.take());
            if let Err(error) = guard.wait() {
                eprintln!("net.netfilter.nf_log may still be {NFLOG}: {error}");
            }
        }
    }
}
