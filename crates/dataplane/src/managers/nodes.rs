//! Addresses of nodes: all of them, and this one's (`ipset_hosts_mgr.go` and `hostip_mgr.go` in
//! `felix/dataplane/linux`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tortie_ipsets::{Member, SetType};
use tortie_model::desired::HostMetadata;
use tortie_model::{Cidr, Hostname};
use tortie_rules::RulesConfig;
use tortie_rules::names::static_set;

use crate::links::{KnownLinks, is_workload};
use crate::managers::ip_sets::IpSetManager;
use crate::output::Output;
use crate::report::DataplaneProblem;

/// All nodes, this one included.
#[derive(Debug)]
pub(crate) struct Nodes {
    external: Vec<Cidr>,
    nodes: BTreeMap<Hostname, HostMetadata>,
    dirty: bool,
    this_host: BTreeSet<IpAddr>,
    this_host_dirty: bool,
}

impl Nodes {
    pub(crate) fn new(external: Vec<Cidr>) -> Self {
        Self { external, nodes: BTreeMap::new(), dirty: true, this_host: BTreeSet::new(), this_host_dirty: true }
    }

    pub(crate) fn on_update(&mut self, name: Hostname, node: HostMetadata) {
        self.dirty |= self.nodes.get(&name) != Some(&node);
        self.nodes.insert(name, node);
    }

    pub(crate) fn on_remove(&mut self, name: &Hostname) {
        self.dirty |= self.nodes.remove(name).is_some();
    }

    /// Notes that the need for the set of all nodes' addresses may have changed.
    pub(crate) fn refresh(&mut self) {
        self.dirty = true;
    }

    /// Notes that the addresses of an interface of this node changed. Returns whether the addresses
    /// of the node may have changed.
    pub(crate) fn on_addresses(&mut self, old: &BTreeSet<IpAddr>, new: &BTreeSet<IpAddr>) -> bool {
        self.this_host_dirty = true;
        !old.is_subset(new) || !new.is_subset(&self.this_host)
    }

    pub(crate) fn complete(
        &mut self,
        config: &RulesConfig,
        links: &KnownLinks,
        sets: &mut IpSetManager,
        output: &mut Output,
    ) {
        if std::mem::take(&mut self.this_host_dirty) {
            let own = links.addresses().filter(|(name, _)| !is_workload(&config.workload_prefixes, *name));
            let own: BTreeSet<IpAddr> = own.flat_map(|(_, addresses)| addresses.iter().copied()).collect();
            if own != self.this_host {
                let members: Vec<Member> = own.iter().copied().map(Member::from).collect();
                sets.set_static(static_set::THIS_HOST, SetType::HashIp, &members, output);
                self.this_host = own;
            }
        }
        if !std::mem::take(&mut self.dirty) {
            return;
        }
        let external = self.external.iter().copied().map(Member::from);
        let all: Vec<Member> = self.nodes.values().flat_map(addresses).chain(external).collect();
        sets.set_networks(static_set::ALL_HOSTS, &all, config, output);
    }

    /// Returns the addresses of all nodes.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = Cidr> {
        let texts = self.nodes.values().flat_map(|node| [&node.ipv4_addr, &node.ipv6_addr]);
        texts.filter_map(|text| text.parse::<Cidr>().ok()).map(|net| Cidr::host(net.address()))
    }

    pub(crate) fn problems(&self) -> impl Iterator<Item = DataplaneProblem> {
        let texts = self.nodes.values().flat_map(|node| [&node.ipv4_addr, &node.ipv6_addr]);
        let wrong = texts.filter(|text| !text.is_empty() && text.parse::<Cidr>().is_err());
        wrong.map(|text| DataplaneProblem::Network { origin: "address of a node", text: text.to_string() })
    }
}

/// Returns the addresses of a node, without invalid ones.
fn addresses(node: &HostMetadata) -> impl Iterator<Item = Member> {
    let texts = [&node.ipv4_addr, &node.ipv6_addr].into_iter();
    texts.filter_map(|text| text.parse::<Cidr>().ok()).map(|net| Member::from(net.address()))
}
