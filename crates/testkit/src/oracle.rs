//! Brute-force calculation of a node's desired state from the present datastore. It has no indexes
//! and no increments, and shares only the data model and the evaluation of selectors with the
//! calculation graph.
#![allow(clippy::unwrap_used, reason = "an impossible state fails the test")]

mod computed;
mod passed;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tortie_model::desired::{
    HostEndpointState, IpPortMember, IpSetType, Policy as DesiredPolicy, PortProtocol, Profile as DesiredProfile,
    RuleSets, Rules, TierList, TierPolicies, WorkloadEndpointState,
};
use tortie_model::{
    Cidr, DomainPattern, EndpointPort, EntityMatch, IpSetId, Key, Labels, Node, Policy, PolicyId, PortSpec,
    ProfileName, ProfileRules, Protocol, Rule, RuleAction, TierDefaultAction, TierName, Update, selects_nodes,
};
use tortie_selector::{Expr, Selector, unique_id};

use crate::mock::{MemberSet, MockDataplane};

/// Name of the node whose state is calculated.
pub const HOST: &str = "here";

/// Present objects of the datastore.
pub type Datastore = BTreeMap<Key, Update>;

struct World<'a> {
    datastore: &'a Datastore,
    suppress_overlaps: bool,
    has_mesh: bool,
    policy_members: u64,
    expected: MockDataplane,
    /// Number of members that the selectors of the IP sets of one policy or profile match.
    matched: BTreeMap<IpSetId, u64>,
}

/// Returns the expected state of the node [`HOST`], in a cluster with or without Istio's ambient
/// mesh. Overlapping members of IP sets are optionally suppressed.
///
/// # Panics
/// If the datastore contains an object that no source sends, such as a named port of a protocol
/// without ports.
#[must_use]
pub fn expected(datastore: &Datastore, suppress_overlaps: bool, has_mesh: bool) -> MockDataplane {
    expected_within(datastore, suppress_overlaps, has_mesh, u64::MAX)
}

/// As [`expected`], with a limit on the members that the selectors of one policy or profile match.
///
/// # Panics
/// As [`expected`].
#[must_use]
pub fn expected_within(
    datastore: &Datastore,
    suppress_overlaps: bool,
    has_mesh: bool,
    policy_members: u64,
) -> MockDataplane {
    let (expected, matched) = (MockDataplane::default(), BTreeMap::new());
    let mut world = World { datastore, suppress_overlaps, has_mesh, policy_members, expected, matched };
    world.endpoints();
    if has_mesh {
        let members = world.nets(&Selector::parse(computed::MESH).unwrap());
        world.expected.ip_sets.insert(IpSetId::new("all-istio-weps"), (IpSetType::Ip, MemberSet::Nets(members)));
    }
    passed::expect(world.datastore, &mut world.expected);
    world.expected
}

/// Candidate member of an IP set.
struct Item<'a> {
    labels: BTreeMap<String, String>,
    nets: Vec<Cidr>,
    ports: &'a [EndpointPort],
}

impl World<'_> {
    fn effective_labels(&self, own: &Labels, profiles: &[ProfileName]) -> BTreeMap<String, String> {
        let mut labels = BTreeMap::new();
        let inherited = profiles.iter().filter_map(|name| match self.datastore.get(&Key::Profile(name.clone())) {
            Some(Update::Profile(_, Some(profile))) => Some(&profile.labels),
            _ => None,
        });
        for source in [own].into_iter().chain(inherited) {
            for (key, value) in source.iter() {
                labels.entry(key.to_owned()).or_insert_with(|| value.to_owned());
            }
        }
        labels
    }

    fn items(&self) -> Vec<Item<'_>> {
        let item = |labels, profiles: &[ProfileName], nets, ports| Item {
            labels: self.effective_labels(labels, profiles),
            nets,
            ports,
        };
        self.datastore
            .values()
            .filter_map(|value| match value {
                Update::WorkloadEndpoint(_, Some(e)) => {
                    Some(item(&e.labels, &e.profiles, e.nets().collect(), &e.ports))
                }
                Update::HostEndpoint(_, Some(e)) => {
                    let nets = e.expected_ipv4.iter().copied().map(Cidr::host).collect();
                    Some(item(&e.labels, &e.profiles, nets, &e.ports))
                }
                Update::NetworkSet(_, Some(s)) => Some(item(&s.labels, &s.profiles, s.nets.iter().collect(), &[])),
                _ => None,
            })
            .collect()
    }

    /// Returns the objects among which a selector picks: nodes, or endpoints and network sets.
    fn candidates(&self, selector: &Selector) -> Vec<Item<'_>> {
        if !selects_nodes(selector) {
            return self.items();
        }
        assert!(!matches_without_node_label(selector), "{selector} can match an endpoint");
        let nodes = self.datastore.values().filter_map(|value| match value {
            Update::Node(_, Some(node)) => Some(node),
            _ => None,
        });
        let item = |node: &Node| {
            let own = node.labels.iter().map(|(name, value)| (format!("pcnode.{name}"), value.to_owned()));
            let mut labels: BTreeMap<String, String> = own.collect();
            labels.insert("pcnode.projectcalico.org/node".to_owned(), String::new());
            Item { labels, nets: node.own_addresses().map(Cidr::host).collect(), ports: &[] }
        };
        nodes.map(|node| item(node)).collect()
    }

    fn policies(&self) -> Vec<(PolicyId, Arc<Policy>)> {
        let policies = self.datastore.values().filter_map(|update| match update {
            Update::Policy(id, Some(policy)) => Some((id.clone(), Arc::clone(policy.as_arc()))),
            _ => None,
        });
        policies.collect()
    }

    fn endpoints(&mut self) {
        for (id, policy) in self.policies() {
            if policy.needed_on_every_node {
                self.activate_policy(&id, &policy);
            }
        }
        for update in self.datastore.values().cloned() {
            match update {
                Update::WorkloadEndpoint(key, Some(endpoint)) if key.host() == HOST => {
                    let [tiers, ..] = self.tier_lists(&endpoint.labels, &endpoint.profiles);
                    let endpoint = endpoint.into_arc();
                    let labels = self.effective_labels(&endpoint.labels, &endpoint.profiles);
                    let computed = computed::expected(self.datastore, &key, &labels, self.has_mesh);
                    let state = WorkloadEndpointState { endpoint, tiers, computed };
                    self.expected.workload_endpoints.insert(key.id(), state);
                }
                Update::HostEndpoint(key, Some(endpoint)) if key.host.as_str() == HOST => {
                    let [tiers, untracked_tiers, pre_dnat_tiers, forward_tiers] =
                        self.tier_lists(&endpoint.labels, &endpoint.profiles);
                    let endpoint = endpoint.into_arc();
                    let state = HostEndpointState {
                        endpoint,
                        tiers,
                        untracked_tiers,
                        pre_dnat_tiers,
                        forward_tiers,
                        qos_policies: [].into(),
                    };
                    self.expected.host_endpoints.insert(key.name, state);
                }
                _ => {}
            }
        }
    }

    /// Returns normal, untracked, pre-DNAT and forward tiers of an endpoint, and activates their
    /// policies and profiles.
    fn tier_lists(&mut self, labels: &Labels, profiles: &[ProfileName]) -> [TierList; 4] {
        for name in profiles {
            self.activate_profile(name);
        }
        let labels = self.effective_labels(labels, profiles);
        let matching: Vec<_> =
            self.policies().into_iter().filter(|(_, policy)| policy.selector.matches(&labels)).collect();
        for (id, policy) in &matching {
            self.activate_policy(id, policy);
        }
        type Belongs = fn(&Policy) -> bool;
        let kinds: [(Belongs, bool, bool); 4] = [
            (|p| !p.untracked && !p.pre_dnat, true, false),
            (|p| p.untracked, true, true),
            (|p| !p.untracked && p.pre_dnat, false, true),
            (|p| !p.untracked && !p.pre_dnat && p.apply_on_forward, true, false),
        ];
        kinds.map(|(belongs, may_govern_egress, always_passes)| {
            let policies: Vec<_> = matching.iter().filter(|(_, policy)| belongs(policy)).collect();
            self.tier_list(&policies, may_govern_egress, always_passes)
        })
    }

    fn tier_list(
        &self,
        policies: &[&(PolicyId, Arc<Policy>)],
        may_govern_egress: bool,
        always_passes: bool,
    ) -> TierList {
        let tiers: BTreeSet<&TierName> = policies.iter().map(|(_, policy)| &policy.tier).collect();
        let value = |name: &TierName| match self.datastore.get(&Key::Tier(name.clone())) {
            Some(Update::Tier(_, tier)) => tier.as_ref(),
            _ => None,
        };
        let mut tiers: Vec<&TierName> = tiers.into_iter().collect();
        tiers.sort_by_key(|name| {
            let order = value(name).and_then(|tier| tier.order);
            (value(name).is_none(), order.is_none(), order, (*name).clone())
        });
        let entry = |name: &TierName| {
            let mut of_tier: Vec<_> = policies.iter().filter(|(_, policy)| policy.tier == *name).collect();
            of_tier.sort_by(|(a, p), (b, q)| {
                let order = |policy: &Policy| policy.order.map_or(f64::INFINITY, tortie_model::Order::get);
                let text = |id: &PolicyId| format!("{}/{}/{}", id.name, id.namespace, id.kind);
                order(p).total_cmp(&order(q)).then_with(|| text(a).cmp(&text(b)))
            });
            let ids = |governs: fn(&Policy) -> bool| -> Arc<[PolicyId]> {
                of_tier.iter().filter(|(_, policy)| governs(policy)).map(|(id, _)| id.clone()).collect()
            };
            let ingress = ids(|p| p.types.ingress);
            let egress = if may_govern_egress { ids(|p| p.types.egress) } else { [].into() };
            let own = value(name).and_then(|tier| tier.default_action);
            let default_action = if always_passes { Some(TierDefaultAction::Pass) } else { own };
            TierPolicies { name: name.clone(), default_action, ingress, egress }
        };
        tiers.into_iter().map(entry).filter(|tier| !tier.ingress.is_empty() || !tier.egress.is_empty()).collect()
    }

    fn activate_policy(&mut self, id: &PolicyId, policy: &Arc<Policy>) {
        let denial = policy.denying(&id.kind, policy.selector.clone()).into_arc();
        let source = if self.is_within(&policy.inbound, &policy.outbound) { policy } else { &denial };
        let compiled = DesiredPolicy {
            source: Arc::clone(source),
            selector: policy.selector.canonical().into(),
            inbound: self.compile(&source.inbound),
            outbound: self.compile_egress(source),
        };
        self.expected.policies.insert(id.clone(), compiled.into());
    }

    fn activate_profile(&mut self, name: &ProfileName) {
        let rules = match self.datastore.get(&Key::ProfileRules(name.clone())) {
            Some(Update::ProfileRules(_, Some(rules))) if self.is_within(&rules.inbound, &rules.outbound) => {
                Arc::clone(rules.as_arc())
            }
            _ => {
                let deny: Arc<[Rule]> = [Rule::new(RuleAction::Deny)].into();
                ProfileRules { inbound: Arc::clone(&deny), outbound: deny }.into()
            }
        };
        let compiled =
            DesiredProfile { inbound: self.compile(&rules.inbound), outbound: self.compile(&rules.outbound) };
        self.expected.profiles.insert(name.clone(), compiled.into());
    }

    /// Reports whether the selectors of rules match no more members than the limit.
    fn is_within(&mut self, inbound: &Arc<[Rule]>, outbound: &Arc<[Rule]>) -> bool {
        let before = self.expected.ip_sets.clone();
        self.matched.clear();
        self.compile(inbound);
        self.compile(outbound);
        self.expected.ip_sets = before;
        self.matched.values().sum::<u64>() <= self.policy_members
    }

    fn note_matched(&mut self, id: &IpSetId, selector: &Selector) {
        let items = self.candidates(selector);
        let nets = items.iter().filter(|item| selector.matches(&item.labels)).map(|item| {
            let nets = item.nets.iter().flat_map(|net| net.masked().split_default_route());
            nets.collect::<BTreeSet<Cidr>>().len() as u64
        });
        let nets = nets.sum();
        self.matched.insert(id.clone(), nets);
    }

    fn compile(&mut self, rules: &Arc<[Rule]>) -> Rules {
        let sets: Vec<RuleSets> = rules
            .iter()
            .map(|rule| {
                let mut sets = RuleSets::default();
                [sets.src, sets.src_named_ports, sets.not_src, sets.not_src_named_ports] =
                    self.side(&rule.source, rule);
                [sets.dst, sets.dst_named_ports, sets.not_dst, sets.not_dst_named_ports] =
                    self.side(&rule.destination, rule);
                sets.src.extend(rule.source.extras.service.as_ref().map(|service| self.service_set(service, false)));
                sets.dst_ip_ports
                    .extend(rule.destination.extras.service.as_ref().map(|service| self.service_set(service, true)));
                if !rule.destination.extras.domains.is_empty() {
                    sets.dst_domains.push(self.domain_set(&rule.destination.extras.domains));
                }
                sets
            })
            .collect();
        Rules::new(Arc::clone(rules), sets.into()).unwrap()
    }

    /// As `compile`, with the domains of the network sets that rules which allow select.
    fn compile_egress(&mut self, policy: &Policy) -> Rules {
        let compiled = self.compile(&policy.outbound);
        if policy.untracked {
            return compiled;
        }
        let mut all: Vec<RuleSets> = compiled.sets().to_vec();
        for (rule, sets) in policy.outbound.iter().zip(&mut all) {
            if rule.action != RuleAction::Allow || sets.dst.is_empty() {
                continue;
            }
            let Some(selector) = &rule.destination.selector else { continue };
            let text = match &rule.destination.extras.not_selector {
                Some(negated) => format!("({}) && (!({}))", selector.text(), negated.text()),
                None => selector.text().to_owned(),
            };
            let selector = Selector::parse(&text).unwrap();
            let domains = self.domains_of_network_sets(&selector);
            if !domains.is_empty() {
                let id = IpSetId::new(unique_id("d", selector.id().as_str()));
                self.expected.ip_sets.insert(id.clone(), (IpSetType::Domains, MemberSet::Domains(domains)));
                sets.dst_domains.push(id);
            }
        }
        Rules::new(Arc::clone(&policy.outbound), all.into()).unwrap()
    }

    fn domains_of_network_sets(&self, selector: &Selector) -> BTreeSet<DomainPattern> {
        let mut domains = BTreeSet::new();
        for value in self.datastore.values() {
            if let Update::NetworkSet(_, Some(set)) = value
                && selector.matches(&self.effective_labels(&set.labels, &set.profiles))
            {
                domains.extend(set.domains.iter().cloned());
            }
        }
        domains
    }

    /// Returns the IP sets of a side: matched, named ports, not matched, not named ports.
    fn side(&mut self, side: &EntityMatch, rule: &Rule) -> [tortie_model::desired::SetIds; 4] {
        let text = |selector: &Option<Selector>| selector.as_ref().map(|selector| selector.text().to_owned());
        let (positive, negated) = match (text(&side.selector), text(&side.extras.not_selector)) {
            (Some(p), Some(n)) => (Some(format!("({p}) && (!({n}))")), None),
            pair => pair,
        };
        let (positive, negated) =
            (positive.map(|t| Selector::parse(&t).unwrap()), negated.map(|t| Selector::parse(&t).unwrap()));
        let filter = positive.clone().unwrap_or_default();
        let mut named = |ports: &[PortSpec]| -> tortie_model::desired::SetIds {
            let names = ports.iter().filter_map(|port| match port {
                PortSpec::Named(name) => Some(name),
                PortSpec::Range { .. } => None,
            });
            names.map(|name| self.port_set(&filter, rule.protocol, name)).collect()
        };
        let (named_ports, not_named_ports) = (named(&side.ports), named(&side.extras.not_ports));
        let has_numeric = side.numeric_ports().next().is_some();
        let positive = positive.filter(|_| has_numeric || named_ports.is_empty());
        let matched = positive.iter().map(|selector| self.net_set(selector)).collect();
        let not_matched = negated.iter().map(|selector| self.net_set(selector)).collect();
        [matched, named_ports, not_matched, not_named_ports]
    }

    fn net_set(&mut self, selector: &Selector) -> IpSetId {
        let id = IpSetId::new(selector.id().as_str());
        self.note_matched(&id, selector);
        let members = self.nets(selector);
        self.expected.ip_sets.insert(id.clone(), (IpSetType::Net, MemberSet::Nets(members)));
        id
    }

    fn nets(&self, selector: &Selector) -> BTreeSet<Cidr> {
        let items = self.candidates(selector);
        let of_matching = items.iter().filter(|item| selector.matches(&item.labels)).flat_map(|item| &item.nets);
        let mut members: BTreeSet<Cidr> = of_matching.flat_map(|net| net.masked().split_default_route()).collect();
        if self.suppress_overlaps {
            let all = members.clone();
            members.retain(|net| {
                !all.iter().any(|other| other.prefix_len() < net.prefix_len() && other.contains(net.address()))
            });
        }
        members
    }

    fn port_set(&mut self, selector: &Selector, protocol: Option<Protocol>, name: &Arc<str>) -> IpSetId {
        let wanted = protocol.map(|protocol| PortProtocol::of(protocol).unwrap());
        let text = wanted.map_or("any", PortProtocol::as_str);
        let id = IpSetId::new(unique_id("n", &format!("{},{text},{name}", selector.id())));
        self.note_matched(&id, selector);
        let mut members = BTreeSet::new();
        for item in self.candidates(selector).iter().filter(|item| selector.matches(&item.labels)) {
            for port in item.ports.iter().filter(|port| port.name == *name) {
                let protocol = PortProtocol::of(port.protocol).unwrap();
                if wanted.is_none_or(|wanted| wanted == protocol) {
                    members.extend(item.nets.iter().map(|net| IpPortMember::new(net.address(), protocol, port.port)));
                }
            }
        }
        self.expected.ip_sets.insert(id.clone(), (IpSetType::IpAndPort, MemberSet::IpPorts(members)));
        id
    }

    fn domain_set(&mut self, domains: &[DomainPattern]) -> IpSetId {
        let texts: Vec<String> = domains.iter().map(ToString::to_string).collect();
        let id = IpSetId::new(unique_id("d", &texts.join(" ")));
        let set = (IpSetType::Domains, MemberSet::Domains(domains.iter().cloned().collect()));
        self.expected.ip_sets.insert(id.clone(), set);
        id
    }

    fn service_set(&mut self, service: &tortie_model::NamespacedName, with_ports: bool) -> IpSetId {
        let id = IpSetId::new(unique_id(if with_ports { "svc" } else { "svcnoport" }, &service.to_string()));
        let slices = self.datastore.values().filter_map(|value| match value {
            Update::EndpointSlice(name, Some(slice)) if slice.service.as_ref() == Some(service) => Some((name, slice)),
            _ => None,
        });
        // Slices that stand for `Endpoints` count while the Service has no other.
        let (of_endpoints, own): (Vec<_>, Vec<_>) = slices.partition(|(name, _)| name.is_slice_of_endpoints());
        let slices = if own.is_empty() { of_endpoints } else { own };
        let (mut nets, mut ports) = (BTreeSet::new(), BTreeSet::new());
        for (_, slice) in slices {
            for address in &slice.addresses {
                nets.insert(Cidr::host(*address));
                let numbers = slice.ports.iter().filter_map(|port| port.port);
                ports.extend(numbers.map(|port| IpPortMember::new(*address, PortProtocol::Tcp, port)));
            }
        }
        let set = if with_ports {
            (IpSetType::IpAndPort, MemberSet::IpPorts(ports))
        } else {
            (IpSetType::Net, MemberSet::Nets(nets))
        };
        self.expected.ip_sets.insert(id.clone(), set);
        id
    }
}

/// Tries all values that a selector compares, and one more, for each of its labels that is not one
/// of nodes.
fn matches_without_node_label(selector: &Selector) -> bool {
    let (mut names, mut values) = (BTreeSet::new(), BTreeSet::from([None, Some("neither".to_owned())]));
    selector.expr().visit(&mut |expr| {
        names.extend(expr.label().map(|label| label.as_str().to_owned()));
        match expr {
            Expr::Eq(_, value)
            | Expr::NotEq(_, value)
            | Expr::Contains(_, value)
            | Expr::StartsWith(_, value)
            | Expr::EndsWith(_, value) => {
                values.insert(Some(value.to_string()));
            }
            Expr::In(_, all) | Expr::NotIn(_, all) => values.extend(all.iter().map(|value| Some(value.to_owned()))),
            _ => {}
        }
    });
    names.retain(|name| !name.starts_with("pcnode."));
    let mut candidates = vec![BTreeMap::<String, String>::new()];
    for name in names {
        let with = |labels: &BTreeMap<String, String>, value: &Option<String>| {
            let mut labels = labels.clone();
            labels.extend(value.clone().map(|value| (name.clone(), value)));
            labels
        };
        candidates = candidates.iter().flat_map(|labels| values.iter().map(|value| with(labels, value))).collect();
    }
    candidates.iter().any(|labels| selector.matches(labels))
}
