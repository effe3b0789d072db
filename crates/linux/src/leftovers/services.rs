//! Services that Felix's eBPF programs translate, and kube-proxy, which could do so instead.

use std::path::Path;
use std::time::Duration;

use tortie_iptables::{Backend, Programs};
use tortie_model::Family;
use tortie_nftables::TableId;

use super::pins;
use crate::exec::{Job, Runner, is_installed};
use crate::netlink::former::has_chain;
use crate::netlink::{Netlink, Nftables};

/// Name of kube-proxy's nftables tables.
const NFTABLES_TABLE: &str = "kube-proxy";
/// Chain of kube-proxy in the table `nat` of iptables.
const CHAIN: &str = "KUBE-SERVICES";
/// Interface with the addresses of Services in IPVS mode.
const IPVS_INTERFACE: &str = "kube-ipvs0";

/// Returns the reason why Felix's eBPF programs must stay: they translate the addresses of
/// Services, and no kube-proxy is found that would continue to do so.
pub(super) fn depend_on_felix(pins: &Path, runner: &Runner, timeout: Duration) -> Option<String> {
    let map = pins::nat_map(pins)?;
    (!has_kube_proxy(runner, timeout)).then(|| {
        format!(
            "eBPF programs of Calico translate Services ({}), and no kube-proxy is found: start kube-proxy, or run \
             tortie with --without-services",
            map.display()
        )
    })
}

/// Reports whether kube-proxy has rules in this network namespace. If they cannot be read, it is
/// assumed to have none.
fn has_kube_proxy(runner: &Runner, timeout: Duration) -> bool {
    let in_nftables = |family| {
        let table = TableId::of(family, NFTABLES_TABLE);
        Nftables::open(timeout).and_then(|mut nftables| nftables.has_chains(table)).unwrap_or(false)
    };
    let has_ipvs = || {
        let device = Netlink::open(timeout).and_then(|mut netlink| netlink.device(IPVS_INTERFACE));
        device.is_ok_and(|device| device.is_some())
    };
    Family::ALL.into_iter().any(in_nftables)
        || has_ipvs()
        || Family::ALL.into_iter().any(|family| has_chain(family, "nat", CHAIN, timeout).unwrap_or(false))
        || Family::ALL.into_iter().any(|family| in_legacy_iptables(family, runner, timeout))
}

/// Reports whether the legacy implementation of iptables has kube-proxy's chain. Only its programs
/// can read its tables.
fn in_legacy_iptables(family: Family, runner: &Runner, timeout: Duration) -> bool {
    let program = Programs::specific(Backend::Legacy, family).save;
    if !is_installed(&program) {
        return false;
    }
    let args = vec!["-t".to_owned(), "nat".to_owned()];
    let finished = runner.run(&Job { program, args, input: Vec::new(), limit: timeout });
    let declaration = format!(":{CHAIN} ");
    finished
        .is_ok_and(|finished| String::from_utf8_lossy(&finished.stdout).lines().any(|l| l.starts_with(&declaration)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    #[test]
    fn programs_without_nat_maps_translate_nothing() {
        let pins = TempDir::new().unwrap();
        let globals = pins.path().join("tc/globals");
        fs::create_dir_all(&globals).unwrap();
        fs::write(globals.join("cali_v4_ip_sets2"), "").unwrap();
        assert_eq!(pins::nat_map(pins.path()), None);
        fs::write(globals.join("cali_v6_nat_fe3"), "").unwrap();
        assert_eq!(pins::nat_map(pins.path()), Some(globals.join("cali_v6_nat_fe3")));
    }
}
