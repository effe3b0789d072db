//! Rules by domain name and learned addresses, against the evaluator with sets of networks in the
//! place of sets of domains.
#![allow(clippy::unwrap_used, reason = "a failed conversion fails the test")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use proptest::prelude::*;
use tortie_classes::evaluate::{Evaluator, Missing, Packet, Settings, Verdict};
use tortie_classes::{Budget, Classes, Compiled, LearnedId};
use tortie_model::desired::{
    DesiredUpdate, IpSetDelta, IpSetType, IpSetUpdate, Members, Policy, RuleSets, Rules, TierPolicies,
    WorkloadEndpointState,
};
use tortie_model::{
    Cidr, Direction, Family, IpSetId, PolicyId, PolicyKind, Rule, RuleAction, TierName, WorkloadEndpointId,
};

const ADDRESSES: [&str; 5] = ["10.0.0.1", "10.0.0.9", "10.1.0.1", "fd00::1", "fd00:1::1"];
const NETS: [&str; 8] =
    ["0.0.0.0/0", "10.0.0.0/8", "10.0.0.0/28", "10.0.0.1/32", "10.1.0.1/32", "fd00::/8", "fd00::/64", "fd00::1/128"];
/// Numbers of sets of networks, and of sets of domains.
const SETS: u8 = 3;
const OWN: &str = "10.9.9.9";

#[derive(Clone, Debug)]
struct Draft {
    action: RuleAction,
    nets: Vec<usize>,
    not_nets: Vec<usize>,
    set: Option<u8>,
    not_set: Option<u8>,
    domains: BTreeSet<u8>,
}

#[derive(Clone, Debug)]
enum Step {
    Policy(Vec<Draft>),
    Member { set: u8, net: usize, is_added: bool },
    Domains { set: u8, exists: bool },
    Learn(usize, BTreeSet<u8>),
    Forget(usize),
    Flush,
}

fn drafts() -> impl Strategy<Value = Vec<Draft>> {
    let nets = || prop::collection::vec(0..NETS.len(), 0..2);
    let set = || prop::option::weighted(0.3, 0..SETS);
    let action = prop_oneof![
        4 => Just(RuleAction::Allow),
        1 => Just(RuleAction::Deny),
        1 => Just(RuleAction::NextTier),
    ];
    let domains = prop::collection::btree_set(0..SETS, 0..3);
    let draft = (action, nets(), nets(), set(), set(), domains);
    let draft = draft.prop_map(|(action, nets, not_nets, set, not_set, domains)| {
        let domains = if action == RuleAction::Allow { domains } else { BTreeSet::new() };
        Draft { action, nets, not_nets, set, not_set, domains }
    });
    prop::collection::vec(draft, 0..5)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let sets = || prop::collection::btree_set(0..SETS, 1..3);
    let step = prop_oneof![
        2 => drafts().prop_map(Step::Policy),
        3 => (0..SETS, 0..NETS.len(), any::<bool>()).prop_map(|(set, net, is_added)| Step::Member { set, net, is_added }),
        1 => (0..SETS, prop::bool::weighted(0.7)).prop_map(|(set, exists)| Step::Domains { set, exists }),
        4 => (0..ADDRESSES.len(), sets()).prop_map(|(address, sets)| Step::Learn(address, sets)),
        2 => any::<usize>().prop_map(Step::Forget),
        3 => Just(Step::Flush),
    ];
    prop::collection::vec(step, 1..40)
}

fn net(number: usize) -> Cidr {
    NETS[number].parse().unwrap()
}

fn set_id(number: u8) -> IpSetId {
    format!("s:{number}").as_str().into()
}

fn domains_id(number: u8) -> IpSetId {
    format!("d:{number}").as_str().into()
}

fn policy_id() -> PolicyId {
    PolicyId::new(PolicyKind::NetworkPolicy, "shop", "names")
}

fn workload_id() -> WorkloadEndpointId {
    WorkloadEndpointId { orchestrator: "k8s".into(), workload: "shop/web".into(), endpoint: "eth0".into() }
}

fn workload() -> DesiredUpdate {
    let name = TierName::default_tier();
    let tier = TierPolicies { name, default_action: None, ingress: [].into(), egress: [policy_id()].into() };
    let state = WorkloadEndpointState { tiers: [tier].into(), ..WorkloadEndpointState::default() };
    DesiredUpdate::WorkloadEndpoint(workload_id(), state)
}

impl Draft {
    fn rule(&self) -> (Rule, RuleSets) {
        let mut rule = Rule::new(self.action);
        rule.destination.nets = self.nets.iter().map(|number| net(*number)).collect();
        rule.destination.extras.not_nets = self.not_nets.iter().map(|number| net(*number)).collect();
        let ids = |set: Option<u8>| set.into_iter().map(set_id).collect();
        (rule, RuleSets { dst: ids(self.set), not_dst: ids(self.not_set), ..RuleSets::default() })
    }

    fn by_domains(&self) -> (Rule, RuleSets) {
        let (rule, sets) = self.rule();
        (rule, RuleSets { dst_domains: self.domains.iter().map(|number| domains_id(*number)).collect(), ..sets })
    }

    /// Returns the rules that mean the same without sets of domains.
    fn by_networks(&self) -> Vec<(Rule, RuleSets)> {
        let (rule, sets) = self.rule();
        let by_domains = self.domains.iter().map(|number| {
            let dst = [domains_id(*number)].into_iter().collect();
            (rule.clone(), RuleSets { dst, ..sets.clone() })
        });
        let has_others = self.domains.is_empty() || self.set.is_some();
        has_others.then(|| (rule.clone(), sets.clone())).into_iter().chain(by_domains).collect()
    }
}

fn policy(rules: impl IntoIterator<Item = (Rule, RuleSets)>) -> DesiredUpdate {
    let (rules, sets): (Vec<Rule>, Vec<RuleSets>) = rules.into_iter().unzip();
    let outbound = Rules::new(rules.into(), sets.into()).unwrap();
    let policy = Policy { source: Arc::default(), selector: "all()".into(), inbound: Rules::default(), outbound };
    DesiredUpdate::Policy(policy_id(), policy.into())
}

fn networks(id: IpSetId, nets: impl IntoIterator<Item = Cidr>) -> DesiredUpdate {
    let members = Members::Nets(nets.into_iter().collect());
    DesiredUpdate::IpSet(IpSetUpdate { id, set_type: IpSetType::Net, members })
}

fn domains(number: u8) -> DesiredUpdate {
    let members = Members::Domains(["a.io".parse().unwrap()].into());
    DesiredUpdate::IpSet(IpSetUpdate { id: domains_id(number), set_type: IpSetType::Domains, members })
}

/// The state that the updates so far describe.
#[derive(Default)]
struct Model {
    drafts: Vec<Draft>,
    members: [BTreeSet<usize>; SETS as usize],
    domains: BTreeSet<u8>,
    learned: Vec<(usize, BTreeSet<u8>, LearnedId)>,
}

impl Model {
    /// Returns the verdict on a packet to an address; `None` if an object is missing.
    fn verdict(&self, address: IpAddr, learned_for: &BTreeSet<u8>) -> Option<Verdict> {
        let mut evaluator = Evaluator::new(Settings::default());
        for (number, members) in (0..).zip(&self.members) {
            evaluator.apply(&networks(set_id(number), members.iter().map(|number| net(*number)))).unwrap();
        }
        for number in &self.domains {
            let own = learned_for.contains(number).then(|| Cidr::host(address));
            evaluator.apply(&networks(domains_id(*number), own)).unwrap();
        }
        evaluator.apply(&policy(self.drafts.iter().flat_map(Draft::by_networks))).unwrap();
        evaluator.apply(&workload()).unwrap();
        let answer = evaluator.workload(&workload_id(), Direction::Egress, &packet(address));
        answer.ok().map(|answer| answer.verdict)
    }

    fn check(&self, compiled: &Compiled<'_>) -> Result<(), TestCaseError> {
        let group = compiled.workload_group(&workload_id(), Direction::Egress).unwrap();
        let is_by_domains = self.drafts.iter().any(|draft| !draft.domains.is_empty());
        let is_missing = self.drafts.iter().flat_map(|draft| &draft.domains).any(|set| !self.domains.contains(set));
        let table = match compiled.table(group).unwrap() {
            Ok(table) => table,
            Err(why) => {
                prop_assert!(is_missing, "{}", why);
                return Ok(());
            }
        };
        prop_assert!(!is_missing && (is_by_domains || !table.learns()));
        for (address, sets, id) in &self.learned {
            let address: IpAddr = ADDRESSES[*address].parse().unwrap();
            let class = compiled.learned_class(*id).unwrap();
            prop_assert_eq!(compiled.family_of(class), Some(Family::of(address)));
            let own = table.own_row(compiled.class_of(packet(address).source())).unwrap();
            let l4 = table.l4_column(compiled.l4_class_of(&packet(address)));
            let verdict = table.cell(own, table.peer_row(class).unwrap(), l4, 0).map(|(verdict, _)| verdict);
            prop_assert_eq!(verdict, self.verdict(address, sets), "{} in {:?}", address, sets);
            prop_assert!(table.learns() || verdict == self.verdict(address, &BTreeSet::new()));
        }
        for address in ADDRESSES.map(|address| address.parse().unwrap()) {
            let answer = compiled.workload(&workload_id(), Direction::Egress, &packet(address));
            prop_assert_eq!(answer.ok().map(|answer| answer.verdict), self.verdict(address, &BTreeSet::new()));
        }
        Ok(())
    }
}

fn packet(to: IpAddr) -> Packet {
    let from: IpAddr = if to.is_ipv4() { OWN.parse().unwrap() } else { "fd09::9".parse().unwrap() };
    Packet::tcp((from, 1024), (to, 80)).unwrap()
}

fn step(classes: &mut Classes, model: &mut Model, step: Step) -> Result<(), TestCaseError> {
    match step {
        Step::Policy(drafts) => {
            classes.apply(&policy(drafts.iter().map(Draft::by_domains))).unwrap();
            model.drafts = drafts;
        }
        Step::Member { set, net: number, is_added } => {
            let members = &mut model.members[set as usize];
            let is_changed = if is_added { members.insert(number) } else { members.remove(&number) };
            let change = |wanted: bool| Members::Nets(if is_changed && wanted { vec![net(number)] } else { vec![] });
            let (added, removed) = (change(is_added), change(!is_added));
            classes.apply(&DesiredUpdate::IpSetDelta(IpSetDelta { id: set_id(set), added, removed })).unwrap();
        }
        Step::Domains { set, exists } => {
            if exists {
                classes.apply(&domains(set)).unwrap();
                model.domains.insert(set);
            } else {
                classes.apply(&DesiredUpdate::IpSetRemove(domains_id(set))).unwrap();
                model.domains.remove(&set);
            }
        }
        Step::Learn(address, sets) => {
            let ids = sets.iter().map(|number| domains_id(*number)).collect();
            let id = classes.learn(ADDRESSES[address].parse().unwrap(), &ids);
            model.learned.push((address, sets, id));
        }
        Step::Forget(number) if !model.learned.is_empty() => {
            let (.., id) = model.learned.swap_remove(number % model.learned.len());
            classes.forget(id);
        }
        Step::Forget(_) => {}
        Step::Flush => {
            // A class that is known before the flush is the same afterwards, unless updates follow.
            let at_once: BTreeMap<LearnedId, _> =
                model.learned.iter().filter_map(|(.., id)| Some((*id, classes.learned_class(*id)?))).collect();
            let before = classes.clone();
            model.check(&classes.flush())?;
            let mut quiet = before;
            let quiet = quiet.flush();
            for (id, class) in at_once.into_iter().filter(|_| quiet.changed_networks().is_empty()) {
                prop_assert_eq!(quiet.learned_class(id), Some(class));
            }
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn learned_addresses_have_the_verdicts_of_members_of_their_sets(steps in steps()) {
        let mut classes = Classes::new(Settings::default());
        classes.set_learns();
        let mut model = Model::default();
        for number in 0..SETS {
            classes.apply(&networks(set_id(number), [])).unwrap();
        }
        classes.apply(&policy([])).unwrap();
        classes.apply(&workload()).unwrap();
        for each in steps.into_iter().chain([Step::Flush]) {
            step(&mut classes, &mut model, each)?;
        }
        for (.., id) in model.learned.drain(..) {
            classes.forget(id);
        }
        let all = [DesiredUpdate::WorkloadEndpointRemove(workload_id()), DesiredUpdate::PolicyRemove(policy_id())];
        let sets = (0..SETS).flat_map(|number| [set_id(number), domains_id(number)]).map(DesiredUpdate::IpSetRemove);
        for update in all.into_iter().chain(sets) {
            classes.apply(&update).unwrap();
        }
        let _ = classes.flush();
        prop_assert!(classes.is_empty(), "{classes:?}");
    }
}

#[test]
fn an_address_of_a_known_kind_has_a_class_at_once() {
    let mut classes = Classes::new(Settings::default());
    classes.set_learns();
    let names = |number| [domains_id(number)].into();
    let draft = Draft {
        action: RuleAction::Allow,
        nets: vec![],
        not_nets: vec![],
        set: None,
        not_set: None,
        domains: [0].into(),
    };
    for update in [domains(0), policy([draft.by_domains()]), workload()] {
        classes.apply(&update).unwrap();
    }
    let _ = classes.flush();
    let first = classes.learn("10.0.0.1".parse().unwrap(), &names(0));
    assert_eq!(classes.learned_class(first), None, "no other address has this class");
    let class = classes.flush().learned_class(first);
    let second = classes.learn("10.0.0.2".parse().unwrap(), &names(0));
    assert!(class.is_some() && classes.learned_class(second) == class);
    assert_eq!(classes.learn("10.0.0.2".parse().unwrap(), &names(0)), second, "it is shared");
    classes.forget(first);
    classes.forget(second);
    assert_eq!(classes.learned_class(second), class, "one user is left");
    let patterns = domains(0);
    classes.apply(&patterns).unwrap();
    assert_eq!(classes.learned_class(second), class, "patterns make no difference");
}

/// Learned addresses in many sets below wide networks: their classes inherit without bound unless
/// they are counted. Only the policies of that namespace are refused.
#[test]
fn classes_of_learned_addresses_do_not_inherit_without_bound() {
    const NAMES: u8 = 14;
    let budget = Budget { group: 8 << 20, node: 32 << 20 };
    let mut classes = Classes::new(Settings::default());
    classes.set_learns();
    classes.set_budget(budget);
    let by_name = |number: u8| {
        let sets = RuleSets { dst_domains: [domains_id(number)].into_iter().collect(), ..RuleSets::default() };
        (Rule::new(RuleAction::Allow), sets)
    };
    let wide = |number: u32| {
        let mut rule = Rule::new(RuleAction::Allow);
        let own = IpAddr::from(std::net::Ipv4Addr::from_bits(0xc000_0000 + number));
        rule.destination.nets = ["10.0.0.0/8".parse().unwrap(), Cidr::host(own)].into();
        (rule, RuleSets::default())
    };
    let attack = || (0..200).map(wide).chain((0..NAMES).map(by_name));
    (0..=NAMES).for_each(|number| classes.apply(&domains(number)).unwrap());
    let quiet = PolicyId::new(PolicyKind::NetworkPolicy, "quiet", "names");
    let DesiredUpdate::Policy(_, of_quiet) = policy([by_name(NAMES)]) else { panic!("it is a policy") };
    for update in [policy(attack()), DesiredUpdate::Policy(quiet, of_quiet), workload()] {
        classes.apply(&update).unwrap();
    }
    let _ = classes.flush();
    let learn = |classes: &mut Classes, number: u32| {
        let names = (0..NAMES).filter(|name| number & (1 << name) != 0).map(domains_id).collect();
        classes.learn(std::net::Ipv4Addr::from_bits(0x0a00_0000 + number).into(), &names)
    };
    let all: Vec<LearnedId> = (1..1 << NAMES).map(|number| learn(&mut classes, number)).collect();
    let other = classes.learn("10.0.0.1".parse().unwrap(), &[domains_id(NAMES)].into());
    let compiled = classes.flush();
    let refusal = |compiled: &Compiled<'_>| {
        let group = compiled.workload_group(&workload_id(), Direction::Egress).unwrap();
        compiled.table(group).unwrap().err()
    };
    let why = Missing::TableBudget { limit: budget.group, policies: vec![policy_id()] };
    assert_eq!(refusal(&compiled), Some(why));
    let kinds: BTreeSet<_> = all.iter().map(|id| compiled.learned_class(*id)).collect();
    assert_eq!(kinds.len(), 1, "the sets of the refused policy are gone");
    assert!(compiled.learned_class(other).is_some_and(|class| !kinds.contains(&Some(class))));
    // With fewer addresses the policy is in force.
    all[1 << 10..].iter().for_each(|id| classes.forget(*id));
    classes.apply(&policy(attack().take(213))).unwrap();
    assert_eq!(refusal(&classes.flush()), None);
}
