//! Facts about a machine from its network interfaces.

use regex::Regex;

use tortie_linux::kube_proxy::IPVS_INTERFACE;
use tortie_linux::netlink::LinkState;

/// Facts about a machine from its network interfaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MachineFacts {
    /// Whether kube-proxy is in IPVS mode.
    pub has_ipvs: bool,
    /// Whether kube-proxy has nftables tables.
    pub kube_proxy_uses_nftables: bool,
    /// The least MTU of the interfaces that lead outside and are up; `None` if there are none.
    pub mtu: Option<u32>,
}

impl MachineFacts {
    /// Derives the facts from these interfaces. Those whose names match the pattern lead outside.
    #[must_use]
    pub fn of(links: &[LinkState], pattern: Option<&Regex>) -> Self {
        let leads_outside =
            |link: &&LinkState| link.is_running && pattern.is_some_and(|pattern| pattern.is_match(link.name.as_str()));
        Self {
            kube_proxy_uses_nftables: false,
            has_ipvs: links.iter().any(|link| link.name.as_str() == IPVS_INTERFACE),
            mtu: links.iter().filter(leads_outside).map(|link| link.mtu).min(),
        }
    }

    /// Describes the change to the current facts; `None` if there is none.
    #[must_use]
    pub fn change_to(&self, now: &Self) -> Option<String> {
        if self.has_ipvs != now.has_ipvs {
            let mode = if now.has_ipvs { "is now" } else { "is no longer" };
            return Some(format!("kube-proxy {mode} in IPVS mode"));
        }
        if self.kube_proxy_uses_nftables != now.kube_proxy_uses_nftables {
            let has = if now.kube_proxy_uses_nftables { "has" } else { "no longer has" };
            return Some(format!("kube-proxy {has} nftables tables"));
        }
        let mtu = |facts: &Self| facts.mtu.unwrap_or(super::HOST_MTU_IF_UNKNOWN);
        let (old, new) = (mtu(self), mtu(now));
        (old != new).then(|| format!("the MTU of this machine changed from {old} to {new}"))
    }
}
