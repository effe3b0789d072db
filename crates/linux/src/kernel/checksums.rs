//! Checksums that some kernels compute wrongly if they offload them to a tunnel device.

use std::time::Duration;

use rustix::io::Errno;
use tortie_dataplane::KernelError;
use tortie_iptables::Version;
use tortie_model::{Cause, InterfaceName};

use crate::exec::{ExecError, Finished, Job};
use crate::netlink::NetlinkError;

/// Last kernel version that Felix considers broken, like any unknown version
/// (`ChecksumOffloadBroken` in `felix/environment/feature_detect_linux.go`).
const LAST_BROKEN: Version = Version(5, 7, 0);
/// Name in `FeatureDetectOverride`.
const NAME: &str = "ChecksumOffloadBroken";

/// Returns the value in a part of `FeatureDetectOverride`, if the part is about checksums.
pub(super) fn overridden(piece: &str) -> Option<bool> {
    let (_, value) = piece.split_once('=').filter(|(name, _)| name.trim() == NAME)?;
    tortie_iptables::parse_override(value)
}

/// Reports whether the running kernel computes wrong checksums of packets through tunnels if it
/// offloads them to the tunnel device. `FeatureDetectOverride` takes precedence.
#[must_use]
pub fn checksum_offload_broken(overrides: &str) -> bool {
    let kernel = std::fs::read_to_string("/proc/version").unwrap_or_default();
    is_broken(Version::find_in(&kernel), overrides)
}

fn is_broken(kernel: Option<Version>, overrides: &str) -> bool {
    let last = overrides.split(',').filter_map(overridden).next_back();
    last.unwrap_or_else(|| kernel.is_none_or(|kernel| kernel <= LAST_BROKEN))
}

/// Disables checksum offload of a device: by `netlink`, or, if the kernel has no such interface,
/// with the `ethtool` program.
pub(super) fn disable_offload(
    device: InterfaceName,
    limit: Duration,
    netlink: impl FnOnce() -> Result<(), NetlinkError>,
    run: impl FnOnce(&Job) -> Result<Finished, ExecError>,
) -> Result<(), KernelError> {
    match netlink() {
        Ok(()) => return Ok(()),
        Err(error) if error.errno() == Some(Errno::NODEV) => return Err(KernelError::NotFound),
        Err(error) if error.is_not_found() || error.is_unsupported() => {}
        Err(error) => return Err(KernelError::Failed(Cause::new(error))),
    }
    let args = ["-K", device.as_str(), "tx", "off"].map(str::to_owned).to_vec();
    let finished = run(&Job { program: "ethtool".to_owned(), args, input: Vec::new(), limit })
        .map_err(|error| KernelError::Failed(Cause::new(error)))?;
    if finished.status.success() {
        return Ok(());
    }
    let output = String::from_utf8_lossy(&finished.stderr);
    Err(KernelError::Failed(format!("ethtool -K {device} tx off: {}: {}", finished.status, output.trim()).into()))
}

#[cfg(test)]
mod tests;
