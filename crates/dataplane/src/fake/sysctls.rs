//! Sysctls of the fake kernel.

use std::collections::BTreeMap;

use super::FakeKernel;
use crate::kernel::Sysctls;
use crate::kernel_error::KernelError;
use crate::sysctl_path::SysctlPath;

/// Sysctls.
#[derive(Clone, Debug)]
pub struct FakeSysctls {
    /// Sysctls by path; only existing ones can be written.
    pub values: BTreeMap<String, String>,
    /// Sysctls that cannot be written, by a substring of their path.
    pub read_only: Vec<String>,
}

impl Default for FakeSysctls {
    /// Returns the sysctls that do not depend on interfaces, with the kernel's defaults.
    fn default() -> Self {
        let mut sysctls = Self { values: BTreeMap::new(), read_only: Vec::new() };
        for (path, value) in [
            ("net/ipv4/ip_forward", "0"),
            ("net/ipv6/conf/all/forwarding", "0"),
            ("net/netfilter/nf_conntrack_acct", "0"),
            ("net/ipv4/conf/default/rp_filter", "2"),
            ("net/ipv4/conf/all/src_valid_mark", "0"),
        ] {
            sysctls.values.insert(path.to_owned(), value.to_owned());
        }
        sysctls
    }
}

impl FakeKernel {
    /// Adds the sysctls of a new interface.
    pub fn add_interface(&mut self, name: &str) {
        for (path, value) in [
            (format!("net/ipv4/conf/{name}/route_localnet"), "0"),
            (format!("net/ipv4/neigh/{name}/proxy_delay"), "80"),
            (format!("net/ipv4/conf/{name}/proxy_arp"), "0"),
            (format!("net/ipv4/conf/{name}/forwarding"), "0"),
            (format!("net/ipv4/conf/{name}/rp_filter"), "2"),
            (format!("net/ipv6/conf/{name}/accept_ra"), "1"),
            (format!("net/ipv6/conf/{name}/proxy_ndp"), "0"),
            (format!("net/ipv6/conf/{name}/forwarding"), "0"),
        ] {
            self.sysctls.values.insert(path, value.to_owned());
        }
    }
}

impl Sysctls for FakeKernel {
    fn read_sysctl(&mut self, path: &SysctlPath) -> Result<String, KernelError> {
        self.sysctls.values.get(path.as_str()).cloned().ok_or(KernelError::NotFound)
    }

    fn write_sysctl(&mut self, path: &SysctlPath, value: &str) -> Result<(), KernelError> {
        self.writes.sysctls += 1;
        if self.sysctls.read_only.iter().any(|part| path.as_str().contains(part.as_str())) {
            return Err(KernelError::Failed("Read-only file system".into()));
        }
        let entry = self.sysctls.values.get_mut(path.as_str()).ok_or(KernelError::NotFound)?;
        value.clone_into(entry);
        Ok(())
    }
}
