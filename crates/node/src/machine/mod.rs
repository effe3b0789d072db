//! Facts from the network interfaces of this machine: whether kube-proxy is in IPVS mode, and the
//! MTU.
//!
//! [`MachineFacts`] and [`Mtus`] are pure; [`Machine`] reads the interfaces, detects changes, and
//! keeps the file from which CNI plugins take the MTU of workloads.

mod facts;
mod mtu_file;

use std::time::Duration;

use regex::Regex;
use tortie_dataplane::{RouteProtocol, RouteTableIndex};
use tortie_model::desired::Encapsulation;
use tortie_model::{Family, Hostname, with_causes};

pub use facts::MachineFacts;
pub use mtu_file::MtuFile;

use tortie_config::{Config, HOST_MTU_IF_UNKNOWN, Mtus, NftablesMode, Tunnels};
use tortie_linux::kube_proxy::{self, IPVS_INTERFACE};
use tortie_linux::leftovers::{self, Leftovers};
use tortie_linux::netlink::{Netlink, NetlinkError};

/// Interval between readings of the interfaces (`monitorHostMTU` of
/// `felix/dataplane/linux/int_dataplane.go`).
const LOOK_EVERY: Duration = Duration::from_secs(15);

/// This machine, as it was when the dataplane was set up and as it is.
#[derive(Debug)]
pub struct Machine {
    pattern: Option<Regex>,
    netlink_timeout: Duration,
    /// Whether kube-proxy's nftables tables make a difference.
    asks_for_nftables: bool,
    /// Whether routes of BIRD make a difference; there were none at the setup.
    asks_for_bird: bool,
    facts: MachineFacts,
    mtus: Mtus,
    tunnels: Tunnels,
    /// The tunnels are known.
    is_told: bool,
    file: Option<MtuFile>,
    is_file_required: bool,
    problem: Option<String>,
    next_look: Duration,
    outdated: Option<String>,
}

impl Machine {
    /// Looks at the interfaces. The MTU of workloads goes into `file`, if there is one.
    #[must_use]
    pub fn find(config: &Config, file: Option<MtuFile>) -> Self {
        let pattern = config.mtu_iface_pattern.as_ref().map(|pattern| pattern.0.clone());
        let asks_for_nftables = config.nftables_mode == NftablesMode::Auto;
        let facts = look(config.netlink_timeout, pattern.as_ref(), asks_for_nftables).unwrap_or_else(|error| {
            // The next look retries.
            tracing::error!(error = %with_causes(&error), "the interfaces of this machine cannot be listed");
            MachineFacts::default()
        });
        if facts.mtu.is_none() {
            let mtu = HOST_MTU_IF_UNKNOWN;
            tracing::warn!(mtu, "no interface that is up matches MTUIfacePattern; a usual MTU is assumed");
        }
        if facts.has_ipvs {
            tracing::info!(interface = IPVS_INTERFACE, "kube-proxy is in IPVS mode; marks identify forwarded traffic");
        }
        let tunnels = Tunnels {
            wireguard_v4: config.wireguard_enabled,
            wireguard_v6: config.wireguard_enabled_v6,
            ..Tunnels::default()
        };
        Self {
            mtus: Mtus::new(config, facts.mtu.unwrap_or(HOST_MTU_IF_UNKNOWN)),
            pattern,
            netlink_timeout: config.netlink_timeout,
            asks_for_nftables,
            asks_for_bird: false,
            facts,
            tunnels,
            is_told: false,
            file,
            is_file_required: config.require_mtu_file,
            problem: None,
            next_look: Duration::ZERO,
            outdated: None,
        }
    }

    /// Becomes outdated when BIRD programs routes by `tunl0`, if `asks_for_bird`.
    #[must_use]
    pub(crate) fn asking_for_bird(self, asks_for_bird: bool) -> Self {
        Self { asks_for_bird, ..self }
    }

    /// Returns the facts of the setup.
    #[must_use]
    pub fn facts(&self) -> &MachineFacts {
        &self.facts
    }

    /// Returns the MTUs.
    #[must_use]
    pub fn mtus(&self) -> &Mtus {
        &self.mtus
    }

    pub(crate) fn on_encapsulation(&mut self, encapsulation: Encapsulation) {
        let Encapsulation { ipip, vxlan, vxlan_v6, .. } = encapsulation;
        self.tunnels = Tunnels { ipip, vxlan_v4: vxlan, vxlan_v6, ..self.tunnels };
        self.is_told = true;
        self.write();
    }

    pub(crate) fn on_interface(&mut self, name: &str) {
        if name == IPVS_INTERFACE {
            self.next_look = Duration::ZERO;
        }
    }

    pub(crate) fn look(&mut self, now: Duration) -> Duration {
        if now < self.next_look {
            return self.next_look - now;
        }
        self.next_look = now + LOOK_EVERY;
        match look(self.netlink_timeout, self.pattern.as_ref(), self.asks_for_nftables) {
            Ok(facts) => self.outdated = self.facts.change_to(&facts),
            Err(error) => {
                tracing::error!(error = %with_causes(&error), "the interfaces of this machine cannot be listed");
            }
        }
        if self.asks_for_bird && has_bird_routes(self.netlink_timeout) {
            self.outdated = Some("BIRD programs routes by tunl0".to_owned());
        }
        if self.is_told {
            self.write();
        }
        LOOK_EVERY
    }

    pub(crate) fn outdated(&self) -> Option<&str> {
        self.outdated.as_deref()
    }

    pub(crate) fn problem(&self) -> Option<&str> {
        self.problem.as_deref().filter(|_| self.is_file_required)
    }

    fn write(&mut self) {
        let Some(file) = &self.file else { return };
        let mtu = self.mtus.of_workloads(self.tunnels);
        let problem = file.hold(mtu).err().map(|error| format!("{} cannot be written: {error}", file.path().display()));
        match (&self.problem, &problem) {
            (None, Some(problem)) => tracing::error!(problem, "the MTU of workloads cannot be written; trying again"),
            (Some(_), None) => tracing::info!(path = %file.path().display(), mtu, "the MTU of workloads is written"),
            _ => {}
        }
        self.problem = problem;
    }
}

/// Reports whether BIRD programs routes to other nodes by IP-in-IP. If routes cannot be read, it is
/// assumed to: its routes then stay.
pub(crate) fn has_bird_routes(timeout: Duration) -> bool {
    let routes = Netlink::open(timeout).and_then(|mut netlink| match netlink.device("tunl0")? {
        Some(device) => netlink.routes_of(Family::V4, RouteTableIndex::MAIN, device.index),
        None => Ok(Vec::new()),
    });
    match routes {
        Ok(routes) => routes.iter().any(|route| route.target.protocol == RouteProtocol::BIRD),
        Err(error) => {
            tracing::warn!(error = %with_causes(&error), "the routes by tunl0 cannot be read; they are left to BIRD");
            true
        }
    }
}

fn look(timeout: Duration, pattern: Option<&Regex>, asks_for_nftables: bool) -> Result<MachineFacts, NetlinkError> {
    let links = Netlink::open(timeout)?.links()?;
    let facts = MachineFacts::of(&links, pattern);
    let kube_proxy_uses_nftables = asks_for_nftables && kube_proxy::has_nftables_tables(timeout);
    Ok(MachineFacts { kube_proxy_uses_nftables, ..facts })
}

/// Name of this node: the given one, `FelixHostname`, or that of the machine.
#[must_use]
pub fn hostname(given: Option<&str>, config: &Config) -> Hostname {
    match (given, config.felix_hostname.as_str()) {
        (Some(node), _) => Hostname::new(node),
        (None, "") => Hostname::new(rustix::system::uname().nodename().to_string_lossy().as_ref()),
        (None, name) => Hostname::new(name),
    }
}

/// Remains of Felix that this configuration can find.
#[must_use]
pub fn leftovers(config: &Config) -> Leftovers {
    Leftovers {
        bpf_directory: leftovers::bpf_directory(),
        workload_prefixes: config.interface_prefix.clone(),
        rule_priority: config.wireguard_routing_rule_priority,
        wireguard_devices: [config.wireguard_interface_name, config.wireguard_interface_name_v6],
        route_protocol: RouteProtocol(config.device_route_protocol),
    }
}

#[cfg(test)]
mod tests;
