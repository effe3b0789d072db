//! Options of commands that enforce policy on this machine.

use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use tortie_node::MachineOptions;
use tortie_rules::WorkloadDispatch;

/// Options of enforcement in the kernel of this machine.
#[derive(Debug, clap::Args)]
pub(super) struct MachineArgs {
    /// File for the MTU of workloads, for CNI plugins; an empty path for none
    #[arg(long, value_name = "FILE", default_value = "/var/lib/calico/mtu", value_parser = path_or_none())]
    mtu_file: PathBuf,
    /// Distinction of workloads. by-name: by the names of their interfaces, as Calico's CNI plugin
    /// makes them. by-address: by their addresses, on separate veths or behind a bridge, as other
    /// CNI plugins (flannel, kindnet, ptp, bridge) leave them; InterfacePrefix then names the
    /// interfaces that are closed to unknown workloads, veth,cni by default instead of cali
    #[arg(long, value_enum, value_name = "HOW", default_value_t)]
    workloads: Workloads,
    /// Directory of the kernel's settings. In an unprivileged container /proc/sys is read-only:
    /// mount that of the host, writable, elsewhere
    #[arg(long, value_name = "DIR", env = "TORTIE_PROC_SYS", default_value = "/proc/sys")]
    proc_sys: PathBuf,
    /// Remove eBPF programs of Calico although no kube-proxy is found: Services fail until one runs
    #[arg(long)]
    without_services: bool,
}

/// Parser of paths that accepts the empty path.
fn path_or_none() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

impl MachineArgs {
    pub(super) fn options(&self) -> MachineOptions {
        let mut options = MachineOptions::default();
        options.mtu_file = (!self.mtu_file.as_os_str().is_empty()).then(|| self.mtu_file.clone());
        options.workloads = match self.workloads {
            Workloads::ByName => WorkloadDispatch::Name,
            Workloads::ByAddress => WorkloadDispatch::Address,
        };
        options.proc_sys.clone_from(&self.proc_sys);
        options.without_services = self.without_services;
        options
    }
}

/// Distinction of workloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Workloads {
    /// By the names of their interfaces.
    #[default]
    ByName,
    /// By their addresses.
    ByAddress,
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Only {
        #[command(flatten)]
        machine: MachineArgs,
    }

    #[test]
    fn the_empty_path_writes_the_mtu_nowhere() {
        let path = |args: &[&str]| Only::try_parse_from(args).unwrap().machine.options().mtu_file;
        assert_eq!(path(&["only"]), Some("/var/lib/calico/mtu".into()));
        for args in [&["only", "--mtu-file", ""][..], &["only", "--mtu-file="]] {
            assert_eq!(path(args), None, "{args:?}");
        }
    }
}
