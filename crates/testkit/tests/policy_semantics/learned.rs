//! Addresses that endpoints learn are open for these endpoints as rules by domain name say, after
//! each write of any history.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use proptest::collection::{btree_set, vec};
use proptest::prelude::{Just, Strategy, any};
use proptest::prop_oneof;
use proptest::test_runner::TestCaseError;
use tortie_ebpf::layout::{LearnedKey, LearnedRecord, MapKind};
use tortie_ebpf::{Interface, LearnedMember, Learner, Node, NodeSettings};
use tortie_evaluate::{Evaluator, Packet, Settings, Verdict};
use tortie_model::desired::{
    DesiredUpdate, IpSetDelta, IpSetType, IpSetUpdate, Members, Policy, RuleSets, Rules, TierPolicies,
    WorkloadEndpointState,
};
use tortie_model::{
    Cidr, Direction, IpSetId, PolicyId, PolicyKind, Rule, RuleAction, TierName, WorkloadEndpoint, WorkloadEndpointId,
};

use crate::maps::Maps;
use crate::runner;

const ADDRESSES: [&str; 4] = ["10.0.0.1", "10.0.0.9", "fd00::1", "fd00:1::1"];
const NETS: [&str; 5] = ["10.0.0.0/8", "10.0.0.0/28", "10.0.0.1/32", "fd00::/64", "fd00::1/128"];
const INTERFACES: [&str; 2] = ["cali1", "cali2"];

/// A rule: whether it allows, its network, whether it has the set of networks, and its sets of
/// domains.
type Draft = (bool, Option<usize>, bool, BTreeSet<u8>);

#[derive(Clone, Debug)]
enum Event {
    Policy(Vec<Draft>),
    Member(usize, bool),
    Learn {
        pod: usize,
        set: u8,
        address: usize,
        is_present: bool,
    },
    /// The pod's interface is replaced by another of the same name.
    Replace(usize),
    Reclaim,
    Flush,
    Restart,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let draft = (any::<bool>(), proptest::option::of(0..NETS.len()), any::<bool>(), btree_set(0..2_u8, 0..2));
    let draft = draft.prop_map(|(allows, net, has_set, domains)| {
        (allows, net, has_set, if allows { domains } else { BTreeSet::new() })
    });
    let learn = (0..2_usize, 0..2_u8, 0..ADDRESSES.len(), any::<bool>());
    let event = prop_oneof![
        2 => vec(draft, 0..4).prop_map(Event::Policy),
        2 => (0..NETS.len(), any::<bool>()).prop_map(|(net, is_added)| Event::Member(net, is_added)),
        6 => learn.prop_map(|(pod, set, address, is_present)| Event::Learn { pod, set, address, is_present }),
        1 => (0..2_usize).prop_map(Event::Replace),
        2 => Just(Event::Reclaim),
        4 => Just(Event::Flush),
        1 => Just(Event::Restart),
    ];
    vec(event, 1..40)
}

fn domains_id(number: u8) -> IpSetId {
    format!("d:{number}").as_str().into()
}

fn set_id() -> IpSetId {
    "s:0".into()
}

fn policy_id() -> PolicyId {
    PolicyId::new(PolicyKind::NetworkPolicy, "shop", "names")
}

fn pod_id(pod: usize) -> WorkloadEndpointId {
    WorkloadEndpointId { orchestrator: "k8s".into(), workload: format!("shop/{pod}").into(), endpoint: "eth0".into() }
}

fn workload(pod: usize) -> DesiredUpdate {
    let name = TierName::default_tier();
    let tier = TierPolicies { name, default_action: None, ingress: [].into(), egress: [policy_id()].into() };
    let iface = Some(INTERFACES[pod].parse().unwrap());
    let endpoint = Arc::new(WorkloadEndpoint { iface, ..WorkloadEndpoint::default() });
    let state = WorkloadEndpointState { endpoint, tiers: [tier].into(), computed: None };
    DesiredUpdate::WorkloadEndpoint(pod_id(pod), state)
}

fn networks(id: IpSetId, nets: Vec<Cidr>) -> DesiredUpdate {
    DesiredUpdate::IpSet(IpSetUpdate { id, set_type: IpSetType::Net, members: Members::Nets(nets) })
}

/// Returns a rule for each alternative without `is_by_domains`, else one rule.
fn rules_of((allows, net, has_set, domains): &Draft, is_by_domains: bool) -> Vec<(Rule, RuleSets)> {
    let mut rule = Rule::new(if *allows { RuleAction::Allow } else { RuleAction::Deny });
    if domains.is_empty() {
        rule.destination.nets = net.iter().map(|net| NETS[*net].parse().unwrap()).collect();
    }
    let dst = || has_set.then(set_id).into_iter().collect();
    let by = |dst, dst_domains| (rule.clone(), RuleSets { dst, dst_domains, ..RuleSets::default() });
    if is_by_domains {
        return vec![by(dst(), domains.iter().map(|number| domains_id(*number)).collect())];
    }
    let alone = domains.iter().map(|number| by([domains_id(*number)].into_iter().collect(), [].into_iter().collect()));
    let has_others = *has_set || domains.is_empty();
    has_others.then(|| by(dst(), [].into_iter().collect())).into_iter().chain(alone).collect()
}

fn policy(drafts: &[Draft], is_by_domains: bool) -> DesiredUpdate {
    let rules = drafts.iter().flat_map(|draft| rules_of(draft, is_by_domains));
    let (rules, sets): (Vec<Rule>, Vec<RuleSets>) = rules.unzip();
    let outbound = Rules::new(rules.into(), sets.into()).unwrap();
    let policy = Policy { source: Arc::default(), selector: "all()".into(), inbound: Rules::default(), outbound };
    DesiredUpdate::Policy(policy_id(), policy.into())
}

fn packet(to: &str) -> Packet {
    let to: IpAddr = to.parse().unwrap();
    let from: IpAddr = if to.is_ipv4() { "10.9.9.9".parse().unwrap() } else { "fd09::9".parse().unwrap() };
    Packet::tcp((from, 1024), (to, 80)).unwrap()
}

/// Verdicts of each pod for each address.
type Verdicts = BTreeMap<(usize, &'static str), Option<Verdict>>;

#[derive(Default)]
struct World {
    drafts: Vec<Draft>,
    nets: BTreeSet<usize>,
    learned: BTreeSet<(usize, u32, u8, usize)>,
    indexes: [u32; 2],
    maps: Maps,
    entries: BTreeMap<LearnedKey, LearnedRecord>,
    /// Addresses that were learned or forgotten since the last flush.
    touched: BTreeSet<IpAddr>,
}

impl World {
    fn updates(&self) -> Vec<DesiredUpdate> {
        let domains = |number| {
            let members = Members::Domains(["a.io".parse().unwrap()].into());
            DesiredUpdate::IpSet(IpSetUpdate { id: domains_id(number), set_type: IpSetType::Domains, members })
        };
        let nets = self.nets.iter().map(|net| NETS[*net].parse().unwrap()).collect();
        let first = [networks(set_id(), nets), domains(0), domains(1), policy(&self.drafts, true)];
        first.into_iter().chain([workload(0), workload(1), DesiredUpdate::InSync]).collect()
    }

    fn node(&self) -> Node {
        let mut node = Node::new(NodeSettings::default());
        self.updates().iter().for_each(|update| node.on_update(update).unwrap());
        (0..2).for_each(|pod| node.on_interface(self.interface(pod)));
        node
    }

    fn interface(&self, pod: usize) -> Interface {
        Interface { name: INTERFACES[pod].parse().unwrap(), index: self.indexes[pod], addresses: Vec::new() }
    }

    /// Returns the verdict of the evaluator, with networks in place of learned addresses.
    fn verdict(&self, pod: usize, to: &str) -> Verdict {
        let mut evaluator = Evaluator::new(Settings::default());
        let nets = self.nets.iter().map(|net| NETS[*net].parse().unwrap()).collect();
        evaluator.apply(&networks(set_id(), nets)).unwrap();
        for number in 0..2 {
            let own = self
                .learned
                .iter()
                .filter(|(of, index, set, _)| (*of, *index, *set) == (pod, self.indexes[pod], number));
            let own = own.map(|(.., address)| Cidr::host(ADDRESSES[*address].parse().unwrap())).collect();
            evaluator.apply(&networks(domains_id(number), own)).unwrap();
        }
        evaluator.apply(&policy(&self.drafts, false)).unwrap();
        evaluator.apply(&workload(pod)).unwrap();
        evaluator.workload(&pod_id(pod), Direction::Egress, &packet(to)).unwrap().verdict
    }

    /// Returns the verdicts of programs.
    fn found(&self) -> Verdicts {
        let all = (0..2).flat_map(|pod| ADDRESSES.map(|address| (pod, address)));
        let verdict = |pod: usize, address: &str| {
            let endpoint = self.maps.endpoint_at(self.indexes[pod]);
            let cell = self.maps.ask_learned(endpoint, &packet(address), |key| self.entries.get(&key).copied());
            cell.map(|cell| if cell & 3 == 1 { Verdict::Allow } else { Verdict::Deny })
        };
        all.map(|(pod, address)| ((pod, address), verdict(pod, address))).collect()
    }

    fn flush(&mut self, node: &mut Node) -> Result<(), TestCaseError> {
        let mut flush = node.flush();
        if flush.needs_reclaim() {
            assert!(flush.is_empty());
            node.reclaim();
            flush = node.flush();
        }
        let (learned, writes) = (flush.learned().to_vec(), flush.writes().collect::<Vec<_>>());
        let before = self.found();
        let mut removed = std::mem::take(&mut self.touched);
        for write in &learned {
            match write.value {
                Some(value) => drop(self.entries.insert(write.key, value)),
                None => drop(self.entries.remove(&write.key)),
            }
            if write.value.is_none() {
                removed.insert(write.key.address);
            }
            self.expect_unchanged(&before, &removed)?;
        }
        for write in &writes {
            self.maps.write(write.map, write.index, &write.value);
            if write.map != MapKind::Current {
                self.expect_unchanged(&before, &removed)?;
            }
        }
        let all = (0..2).flat_map(|pod| ADDRESSES.map(|address| (pod, address)));
        let expected: Verdicts = all.map(|(pod, to)| ((pod, to), Some(self.verdict(pod, to)))).collect();
        if self.found() != expected {
            return Err(TestCaseError::fail(format!("{:?}, not {expected:?}", self.found())));
        }
        assert!(node.flush().is_empty(), "nothing has changed since");
        assert_eq!(node.all_learned().collect::<BTreeMap<_, _>>(), self.entries);
        Ok(())
    }

    /// Checks that no address has another verdict, except those whose entries are written at once.
    fn expect_unchanged(&self, before: &Verdicts, changed: &BTreeSet<IpAddr>) -> Result<(), TestCaseError> {
        for ((pod, address), verdict) in self.found() {
            if verdict != before[&(pod, address)] && !changed.contains(&address.parse().unwrap()) {
                return Err(TestCaseError::fail(format!("{address} takes effect for pod {pod}: {verdict:?}")));
            }
        }
        Ok(())
    }

    fn restarted(&self, decisions: u32) -> Node {
        let mut node = self.node();
        let entries: Vec<_> =
            self.entries.iter().map(|(key, value)| (key.to_bytes().to_vec(), value.to_bytes().to_vec())).collect();
        node.adopt_learned::<()>(&entries).unwrap();
        let read = |map: MapKind, index| {
            let value = self.maps.get((map, index));
            Ok::<_, ()>(value.map_or_else(|| vec![0; map.value_size()], <[u8]>::to_vec))
        };
        node.adopt(decisions, read).unwrap();
        node
    }

    fn learn(&mut self, node: &mut Node, (pod, set, address): (usize, u8, usize), is_present: bool) {
        let index = self.indexes[pod];
        let member = (pod, index, set, address);
        let is_other = if is_present { self.learned.insert(member) } else { self.learned.remove(&member) };
        let interface = INTERFACES[pod].parse().unwrap();
        let member = LearnedMember {
            learner: Learner::Workload { interface, owner: index.into() },
            set: domains_id(set),
            address: ADDRESSES[address].parse().unwrap(),
        };
        if is_other || is_present {
            self.touched.insert(member.address);
            node.learn(&[(member, is_present)]);
        }
    }

    fn step(&mut self, node: &mut Node, event: Event) -> Result<(), TestCaseError> {
        match event {
            Event::Policy(drafts) => {
                node.on_update(&policy(&drafts, true)).unwrap();
                self.drafts = drafts;
            }
            Event::Member(net, is_added) => {
                let is_other = if is_added { self.nets.insert(net) } else { self.nets.remove(&net) };
                let of = |wanted: bool| {
                    Members::Nets(if is_other && wanted { vec![NETS[net].parse().unwrap()] } else { vec![] })
                };
                let delta = IpSetDelta { id: set_id(), added: of(is_added), removed: of(!is_added) };
                node.on_update(&DesiredUpdate::IpSetDelta(delta)).unwrap();
            }
            Event::Learn { pod, set, address, is_present } => self.learn(node, (pod, set, address), is_present),
            Event::Replace(pod) => {
                node.on_interface_gone(self.indexes[pod]);
                self.indexes[pod] += 2;
                node.on_interface(self.interface(pod));
            }
            Event::Reclaim => {
                self.flush(node)?;
                node.reclaim();
            }
            Event::Flush => self.flush(node)?,
            Event::Restart => {
                self.flush(node)?;
                *node = self.restarted(node.sizes().get(MapKind::Decisions));
                // Members of interfaces that are gone are not in the maps.
                let indexes = self.indexes;
                self.learned.retain(|(pod, index, ..)| indexes[*pod] == *index);
                self.flush(node)?;
            }
        }
        Ok(())
    }
}

#[test]
fn learned_addresses_are_open_as_rules_say_after_each_write() {
    runner(300, 2_000)
        .run(&events(), |events| {
            let mut world = World { indexes: [1, 2], ..World::default() };
            let mut node = world.node();
            for event in events.into_iter().chain([Event::Flush]) {
                world.step(&mut node, event)?;
            }
            Ok(())
        })
        .unwrap();
}
