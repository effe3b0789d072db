//! Detection of kube-proxy in this network namespace.

use std::error::Error;
use std::time::Duration;

use tortie_iptables::{Backend, Programs};
use tortie_model::{Family, with_causes};
use tortie_nftables::TableId;

use crate::exec::{Job, Runner, is_installed};
use crate::iptables_legacy;
use crate::kernel::TimeLimits;
use crate::netlink::former::has_chain;
use crate::netlink::{Netlink, Nftables};

/// Interface with the addresses of Services in IPVS mode.
pub const IPVS_INTERFACE: &str = "kube-ipvs0";
/// Name of the tables in nftables mode, of either family.
const NFTABLES_TABLE: &str = "kube-proxy";
/// Chain in the table `nat` of iptables.
const CHAIN: &str = "KUBE-SERVICES";

/// Reports whether kube-proxy is in its nftables mode. If the tables cannot be read, it is assumed
/// not to be: a kernel without nftables has none.
#[must_use]
pub fn has_nftables_tables(timeout: Duration) -> bool {
    Family::ALL.into_iter().any(|family| {
        let table = TableId::of(family, NFTABLES_TABLE);
        or_none("nftables", Nftables::open(timeout).and_then(|mut nftables| nftables.has_chains(table)))
    })
}

/// Reports whether kube-proxy translates Services in any of its modes. State that cannot be read is
/// assumed to be missing.
#[must_use]
pub fn is_found(runner: &Runner, timeout: Duration) -> bool {
    let has_ipvs = || {
        let device = Netlink::open(timeout).and_then(|mut netlink| netlink.device(IPVS_INTERFACE));
        or_none("IPVS", device.map(|device| device.is_some()))
    };
    let in_iptables = |family| or_none("iptables-nft", has_chain(family, "nat", CHAIN, timeout));
    has_nftables_tables(timeout)
        || has_ipvs()
        || Family::ALL.into_iter().any(in_iptables)
        || Family::ALL.into_iter().any(|family| in_legacy_iptables(family, runner))
}

/// Reports whether the legacy implementation of iptables has kube-proxy's chain. Only its programs
/// can read its tables; they would create a missing one.
fn in_legacy_iptables(family: Family, runner: &Runner) -> bool {
    let program = Programs::specific(Backend::Legacy, family).save;
    if !iptables_legacy::tables(family).lines().any(|table| table == "nat") || !is_installed(&program) {
        return false;
    }
    let args = vec!["-t".to_owned(), "nat".to_owned()];
    let finished = runner.run(&Job { program, args, input: Vec::new(), limit: TimeLimits::default().tables });
    or_none("iptables-legacy", finished.map(|finished| declares_chain(&finished.stdout)))
}

/// Reports whether the output of `iptables-save` contains kube-proxy's chain.
fn declares_chain(saved: &[u8]) -> bool {
    let declaration = format!(":{CHAIN} ");
    String::from_utf8_lossy(saved).lines().any(|line| line.starts_with(&declaration))
}

fn or_none<E: Error>(mode: &str, found: Result<bool, E>) -> bool {
    found.unwrap_or_else(|error| {
        tracing::debug!(mode, error = %with_causes(&error), "state of kube-proxy cannot be read");
        false
    })
}

#[cfg(test)]
mod tests {
    use tortie_lab::kernel_test;
    use tortie_lab::netns::Namespace;

    use super::*;
    use crate::stop::Stop;

    #[test]
    fn only_a_declaration_of_the_chain_counts() {
        assert!(declares_chain(b"*nat\n:PREROUTING ACCEPT [0:0]\n:KUBE-SERVICES - [0:0]\nCOMMIT\n"));
        assert!(!declares_chain(b"*nat\n:KUBE-SERVICES-2 - [0:0]\n-A PREROUTING -j KUBE-SERVICES\nCOMMIT\n"));
    }

    kernel_test! {
        fn kube_proxy_is_found_in_each_mode() {
            let timeout = Duration::from_secs(10);
            for (create, by_nftables) in [
                ("nft add table ip6 kube-proxy; nft add chain ip6 kube-proxy services", true),
                ("ip link add kube-ipvs0 type veth peer name other", false),
                ("ip6tables-nft -t nat -N KUBE-SERVICES", false),
            ] {
                let namespace = Namespace::new().unwrap();
                let found = || {
                    let runner = Runner::new(Stop::new().unwrap());
                    (is_found(&runner, timeout), has_nftables_tables(timeout), iptables_legacy::tables(Family::V4))
                };
                assert_eq!(namespace.run(found).unwrap(), (false, false, String::new()), "{create}");
                namespace.shell(create).unwrap();
                assert_eq!(namespace.run(found).unwrap(), (true, by_nftables, String::new()), "{create}");
            }
        }
    }
}
