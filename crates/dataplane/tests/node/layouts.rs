//! nftables tables with the layout `Fast`, through random histories.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tortie_dataplane::fake::FakeKernel;
use tortie_dataplane::{Dataplane, DataplaneConfig, NftablesConfig};
use tortie_iptables::{Backend, Layout};
use tortie_model::desired::{DesiredUpdate, IpSetDelta, Members, RuleSets};
use tortie_model::{Cidr, EntityMatch, PortSpec, Protocol, Rule, RuleAction};
use tortie_rules::PacketFilter;

use crate::common::{
    apply_until_in_sync, cidr, config, host, host_endpoint, kernel, pod, policy_id, policy_of, profile, set, up,
    workload, workload_id,
};

const SETS: [&str; 6] = ["s:0", "s:1", "s:2", "s:3", "s:4", "s:5"];
/// The first contains the second.
const MEMBERS: [&str; 5] = ["10.1.0.0/16", "10.1.0.7/32", "10.2.0.1/32", "10.2.0.2/32", "fd00:1::1/128"];
const POLICIES: [&str; 4] = ["p0", "p1", "p2", "p3"];
const INTERFACES: [&str; 3] = ["cali1", "cali2", "cali3"];

/// Whether the rule allows, its port, its set, its network.
type DraftRule = (bool, Option<u16>, Option<usize>, Option<u8>);

#[derive(Clone, Debug)]
enum Change {
    Members(usize, u8),
    /// Sends all members again, as after a restart of the datastore source.
    MembersAnew(usize, u8),
    Policy(usize, bool, Vec<DraftRule>),
    Workload(usize, Option<u8>),
    Host(Option<u8>),
}

fn change() -> impl Strategy<Value = Change> {
    let rule = (
        prop::bool::weighted(0.9),
        prop::option::of(1..5u16),
        prop::option::weighted(0.7, 0..6usize),
        prop::option::weighted(0.2, 0..4u8),
    );
    prop_oneof![
        3 => (0..6usize, 0..32u8).prop_map(|(set, bits)| Change::Members(set, bits)),
        1 => (0..6usize, 0..32u8).prop_map(|(set, bits)| Change::MembersAnew(set, bits)),
        4 => (0..4usize, any::<bool>(), prop::collection::vec(rule, 0..12))
            .prop_map(|(policy, selects_all, rules)| Change::Policy(policy, selects_all, rules)),
        2 => (0..3usize, prop::option::weighted(0.8, 0..16u8)).prop_map(|(place, bits)| Change::Workload(place, bits)),
        1 => prop::option::of(0..16u8).prop_map(Change::Host),
    ]
}

fn members(bits: u8) -> Vec<&'static str> {
    MEMBERS.iter().enumerate().filter(|(place, _)| bits >> place & 1 == 1).map(|(_, member)| *member).collect()
}

fn policies(bits: u8) -> Vec<&'static str> {
    POLICIES.iter().enumerate().filter(|(place, _)| bits >> place & 1 == 1).map(|(_, name)| *name).collect()
}

fn policy(number: usize, selects_all: bool, rules: &[DraftRule]) -> DesiredUpdate {
    let rules = rules.iter().map(|(allows, port, set, net)| {
        let mut rule = Rule::new(if *allows { RuleAction::Allow } else { RuleAction::Deny });
        if let Some(port) = port {
            rule.protocol = Some(Protocol::TCP);
            rule.destination.ports = [PortSpec::single(*port)].into_iter().collect();
        }
        let nets = net.map(|last| Cidr::new([10, 9, 0, last].into(), 32).expect("a host"));
        rule.source = EntityMatch { nets: nets.into_iter().collect(), ..EntityMatch::default() };
        let src = set.map(|set| SETS[set].into()).into_iter().collect();
        (rule, RuleSets { src, ..RuleSets::default() })
    });
    let (rules, sets) = rules.unzip();
    let selector = if selects_all { "all()" } else { "has(a)" };
    DesiredUpdate::Policy(policy_id(POLICIES[number]), policy_of(selector, rules, sets).into())
}

/// The state after some changes.
#[derive(Clone, Debug)]
struct State {
    members: [u8; 6],
    policies: [(bool, Vec<DraftRule>); 4],
    workloads: BTreeMap<usize, u8>,
    host: Option<u8>,
}

impl State {
    fn new() -> Self {
        Self {
            members: [0; 6],
            policies: std::array::from_fn(|_| (true, Vec::new())),
            workloads: BTreeMap::new(),
            host: None,
        }
    }

    /// Applies a change to the state, and returns its update.
    fn change(&mut self, change: &Change) -> Option<DesiredUpdate> {
        match change {
            Change::Members(place, bits) => {
                let old = std::mem::replace(&mut self.members[*place], *bits);
                let nets = |bits| Members::Nets(members(bits).into_iter().map(cidr).collect());
                let (added, removed) = (nets(bits & !old), nets(old & !bits));
                Some(DesiredUpdate::IpSetDelta(IpSetDelta { id: SETS[*place].into(), added, removed }))
            }
            Change::MembersAnew(place, bits) => {
                self.members[*place] = *bits;
                Some(set(SETS[*place], &members(*bits)))
            }
            Change::Policy(number, selects_all, rules) => {
                self.policies[*number] = (*selects_all, rules.clone());
                Some(policy(*number, *selects_all, rules))
            }
            Change::Workload(place, Some(bits)) => {
                self.workloads.insert(*place, *bits);
                Some(self.workload(*place, *bits))
            }
            Change::Workload(place, None) => {
                self.workloads.remove(place)?;
                Some(DesiredUpdate::WorkloadEndpointRemove(workload_id(INTERFACES[*place])))
            }
            Change::Host(Some(bits)) => {
                self.host = Some(*bits);
                Some(host("h", host_endpoint(Some("eth0"), &[]), &policies(*bits)))
            }
            Change::Host(None) => {
                self.host.take()?;
                Some(DesiredUpdate::HostEndpointRemove("h".into()))
            }
        }
    }

    fn workload(&self, place: usize, bits: u8) -> DesiredUpdate {
        let number = u8::try_from(place + 1).expect("few places");
        workload(INTERFACES[place], pod(INTERFACES[place], number), &policies(bits))
    }

    fn all(&self) -> Vec<DesiredUpdate> {
        let sets = (0..6).map(|place| set(SETS[place], &members(self.members[place])));
        let policies_of = self.policies.iter().enumerate();
        let policies_of = policies_of.map(|(number, (selects_all, rules))| policy(number, *selects_all, rules));
        let workloads = self.workloads.iter().map(|(place, bits)| self.workload(*place, *bits));
        let host = self.host.map(|bits| host("h", host_endpoint(Some("eth0"), &[]), &policies(bits)));
        let first = sets.chain(policies_of).chain([profile("kns.default")]);
        first.chain(workloads).chain(host).collect()
    }
}

fn laid_out(layout: Layout) -> DataplaneConfig {
    let mut config = config(Backend::Nft);
    config.rules.packet_filter = PacketFilter::Nftables(tortie_rules::NftablesConfig { layout, offload_flows: false });
    config.nftables = Some(NftablesConfig::default());
    config
}

fn start(layout: Layout, state: &State, kernel: &mut FakeKernel) -> Dataplane {
    let mut dataplane = Dataplane::new(laid_out(layout));
    state.all().into_iter().for_each(|update| dataplane.on_update(update));
    for (name, index) in INTERFACES.into_iter().chain(["eth0"]).zip(7..) {
        dataplane.on_link(up(name, index));
    }
    dataplane.on_update(DesiredUpdate::InSync);
    dataplane.on_links_in_sync();
    let report = apply_until_in_sync(&mut dataplane, kernel);
    assert!(report.is_complete(), "{report:?}");
    dataplane
}

fn dump(kernel: &FakeKernel) -> Vec<String> {
    kernel.netfilter.nftables.values().flat_map(tortie_nftables::fake::FakeKernel::dump).collect()
}

fn transactions(kernel: &FakeKernel) -> usize {
    kernel.netfilter.nftables.values().map(|kernel| kernel.transactions.len()).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn the_layout_is_independent_of_history(changes in prop::collection::vec((change(), any::<bool>()), 1..40)) {
        let (mut state, mut kernel) = (State::new(), kernel(Backend::Nft));
        let mut dataplane = start(Layout::Fast, &state, &mut kernel);
        for (change, is_applied) in &changes {
            state.change(change).into_iter().for_each(|update| dataplane.on_update(update));
            if *is_applied {
                let report = apply_until_in_sync(&mut dataplane, &mut kernel);
                prop_assert!(report.is_complete(), "{:?}: {:?}", change, report);
            }
        }
        prop_assert!(apply_until_in_sync(&mut dataplane, &mut kernel).is_complete());

        let mut fresh = crate::common::kernel(Backend::Nft);
        start(Layout::Fast, &state, &mut fresh);
        prop_assert_eq!(dump(&kernel), dump(&fresh));

        let before = transactions(&kernel);
        start(Layout::Fast, &state, &mut kernel);
        prop_assert_eq!(transactions(&kernel), before, "a restart writes nothing");

        // A switch to the other layout and one back take one transaction of each family each, and
        // one before if there are new sets.
        let mut felix = crate::common::kernel(Backend::Nft);
        start(Layout::Felix, &state, &mut felix);
        start(Layout::Felix, &state, &mut kernel);
        prop_assert_eq!(dump(&kernel), dump(&felix));
        start(Layout::Fast, &state, &mut kernel);
        prop_assert_eq!(dump(&kernel), dump(&fresh));
        prop_assert!((before + 4..=before + 8).contains(&transactions(&kernel)));
    }
}
