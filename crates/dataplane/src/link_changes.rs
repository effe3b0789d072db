//! Changes of interfaces: each manager notes those that it may depend on, and reports whether it
//! does.

use std::collections::BTreeSet;
use std::net::IpAddr;

use tortie_iptables::InterfaceName;

use crate::dataplane::Dataplane;
use crate::links::{LinkChange, LinkEvent, is_workload};

impl Dataplane {
    /// Takes a change of an interface. Cheap. A change that nothing depends on causes no apply; the
    /// next one takes it into account.
    pub fn on_link(&mut self, event: LinkEvent) {
        for change in self.links.apply(event) {
            let is_concerned = match change {
                LinkChange::State(name) => self.on_link_state(name),
                LinkChange::Addresses { name, old } => self.on_link_addresses(name, &old),
            };
            self.timers.dirty |= is_concerned;
        }
    }

    /// Notes that all existing interfaces have been reported; opens the other gate. If that gate is
    /// open already, the reporter has restarted: interfaces may have gone down and up unnoticed,
    /// and the kernel may have dropped their routes, neighbour entries and sysctls.
    pub fn on_links_in_sync(&mut self) {
        self.timers.dirty = true;
        if self.gates.links {
            let names: Vec<InterfaceName> = self.links.iter().map(|(name, _)| name).collect();
            for name in names {
                self.on_link_state(name);
            }
        }
        self.gates.links = true;
    }

    /// Notes that an interface appeared, disappeared or changed its state. Returns whether anything
    /// depends on it. Every manager must be told, so `|` instead of `||`.
    fn on_link_state(&mut self, name: InterfaceName) -> bool {
        let Self { links, managers, connectivity, .. } = self;
        let is_workload = is_workload(&self.config.rules.workload_prefixes, name);
        managers.domains.on_link(name);
        let is_hosts = !is_workload && managers.hosts.on_link(name, links);
        is_workload
            | is_hosts
            | managers.workloads.owner(name).is_some()
            | managers.workload_addresses.on_link(name)
            | managers.flow_offload.as_mut().is_some_and(|flows| flows.on_link(name))
            | connectivity.on_link(name, links)
    }

    /// The same for changed addresses; `old` are those before.
    fn on_link_addresses(&mut self, name: InterfaceName, old: &BTreeSet<IpAddr>) -> bool {
        let Self { links, managers, connectivity, .. } = self;
        let is_concerned = connectivity.on_addresses(name, links);
        if is_workload(&self.config.rules.workload_prefixes, name) {
            return is_concerned;
        }
        // Only these rules compare an address with those of this node.
        let has_readers = self.config.rules.ipvs.is_some() || managers.dscp.is_used();
        let is_nodes = managers.nodes.on_addresses(old, &links.addresses_of(name)) && has_readers;
        is_concerned | is_nodes | managers.hosts.on_link(name, links)
    }
}
