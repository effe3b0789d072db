//! Encrypted tunnels to other nodes in one family (`felix/wireguard`).
//!
//! Tunnels are not made yet: what they leave when they are switched off is removed.

use std::time::Duration;

use tortie_model::{Family, IfaceName};

use crate::config::DataplaneConfig;
use crate::config::RoutesConfig;
use crate::device::DeviceKind;
use crate::kernel::Kernel;
use crate::links::Links;
use crate::report::DataplaneProblem;
use crate::routes::{Ownership, RouteTable};
use crate::routing_rules::RoutingRules;
use crate::tunnel_device::{TunnelDevice, Wanted};

/// The device of one family, its table of routes, and the rules that lead there.
#[derive(Debug)]
pub(crate) struct Wireguard {
    device: TunnelDevice,
    rules: RoutingRules,
    routes: RouteTable,
    config: RoutesConfig,
}

impl Wireguard {
    /// `None` if there is no table for its routes.
    pub(crate) fn new(family: Family, config: &DataplaneConfig) -> Option<Self> {
        let table = config.wireguard.table?;
        let name = IfaceName::from(config.rules.wireguard.tunnel(family).interface);
        let mut device = TunnelDevice::new(name, family).of_kind(DeviceKind::Other("wireguard".to_owned()));
        device.set(Wanted::Absent);
        let mut rules = RoutingRules::new(family, table);
        rules.set(None);
        Some(Self {
            device,
            rules,
            routes: RouteTable::own(table, family, config.routes.clone()),
            config: config.routes.clone(),
        })
    }

    /// An interface came, went, or changed its state.
    pub(crate) fn on_link(&mut self, interface: &IfaceName) {
        if interface == self.device.name() {
            self.device.on_link();
            self.routes.on_link(interface);
        }
    }

    /// Brings the kernel to what is wanted.
    pub(crate) fn apply(&mut self, kernel: &mut dyn Kernel, links: &Links, problems: &mut Vec<DataplaneProblem>) {
        let refresh = self.config.refresh_interval;
        self.rules.apply(kernel, refresh, problems);
        self.device.apply(kernel, problems);
        let ownership = ownership(&self.config, self.device.name(), links);
        self.routes.apply(kernel, links, &ownership, &std::collections::BTreeSet::new(), problems);
    }

    /// When something has to be done although nothing changes.
    pub(crate) fn next(&self, now: Duration, retry: Duration, links: &Links) -> Option<Duration> {
        let ownership = ownership(&self.config, self.device.name(), links);
        let routes = self.routes.next(now, retry, &ownership);
        let rules = self.rules.next(now, retry, self.config.refresh_interval);
        [routes, rules, self.device.next(now)].into_iter().flatten().min()
    }
}

fn ownership<'a>(config: &'a RoutesConfig, device: &'a IfaceName, links: &'a Links) -> Ownership<'a> {
    Ownership { links, workload_prefixes: &[], config, bgp_peers: [false; 2], device: Some(device) }
}
