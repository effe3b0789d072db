use std::net::IpAddr;
use std::sync::Arc;

use tortie_ebpf::{Learner, NodeSettings};
use tortie_model::desired::{
    IpSetType, IpSetUpdate, Members, Policy, RuleSets, Rules, TierPolicies, WorkloadEndpointState,
};
use tortie_model::{Family, PolicyId, PolicyKind, Rule, RuleAction, TierName, WorkloadEndpoint, WorkloadEndpointId};

use super::*;
use crate::bpf::fake::{FakeEdge, FakeState, lock as state};

type Kernel = Arc<Mutex<FakeState>>;

const NOW: Duration = Duration::from_secs(1);

fn updates() -> Vec<DesiredUpdate> {
    let policy_id = PolicyId::new(PolicyKind::NetworkPolicy, "shop", "names");
    let members = Members::Domains(["a.io".parse().unwrap()].into());
    let set = IpSetUpdate { id: "d:a".into(), set_type: IpSetType::Domains, members };
    let sets = RuleSets { dst_domains: ["d:a".into()].into_iter().collect(), ..RuleSets::default() };
    let outbound = Rules::new([Rule::new(RuleAction::Allow)].into(), [sets].into()).unwrap();
    let policy = Policy { source: Arc::default(), selector: "all()".into(), inbound: Rules::default(), outbound };
    let name = TierName::default_tier();
    let tier = TierPolicies { name, default_action: None, ingress: [].into(), egress: [policy_id.clone()].into() };
    let endpoint = WorkloadEndpoint { iface: Some("cali1".parse().unwrap()), ..WorkloadEndpoint::default() };
    let state = WorkloadEndpointState { endpoint: endpoint.into(), tiers: [tier].into(), computed: None };
    let id = WorkloadEndpointId { orchestrator: "k8s".into(), workload: "shop/web".into(), endpoint: "eth0".into() };
    vec![
        DesiredUpdate::IpSet(set),
        DesiredUpdate::Policy(policy_id, policy.into()),
        DesiredUpdate::WorkloadEndpoint(id, state),
        DesiredUpdate::InSync,
    ]
}

fn programs(kernel: &Kernel) -> SharedPrograms<FakeEdge> {
    let edge = FakeEdge::new(kernel);
    let mut programs =
        SharedPrograms::new(ProgramPolicy::new(NodeSettings::default(), Family::ALL.into(), edge, Some(NOW * 90)));
    programs.on_link(&LinkEvent::Up { name: "cali1".parse().unwrap(), index: 7 });
    updates().iter().for_each(|update| programs.on_update(update));
    programs.on_links_in_sync();
    programs
}

fn member(last: u8) -> LearnedMember {
    let learner = Learner::Workload { interface: "cali1".parse().unwrap(), owner: 7 };
    LearnedMember { learner, set: "d:a".into(), address: IpAddr::from([192, 0, 2, last]) }
}

/// Returns the last bytes of the addresses with an entry in the map in use.
fn entries(kernel: &Kernel) -> Vec<u8> {
    let held = state(kernel);
    let entries = held.learned.last_key_value().map(|(_, entries)| entries.keys().map(|key| key[11]).collect());
    entries.unwrap_or_default()
}

#[test]
fn addresses_are_written_between_applies_without_pending_updates() {
    let kernel = Kernel::default();
    let mut programs = programs(&kernel);
    let addresses = programs.learned_addresses();
    assert_eq!(addresses.learn(&[(member(1), true)]).unwrap(), [0; 0], "before policy is in force");
    assert_eq!((entries(&kernel), addresses.members()), (vec![], vec![member(1)]));
    assert!(programs.apply(NOW).in_force);
    assert_eq!(entries(&kernel), [1]);

    // Another address of the same kind is one entry and nothing else.
    state(&kernel).writes.clear();
    programs.on_update(&DesiredUpdate::IpSetRemove("d:a".into()));
    assert_eq!(programs.next(NOW), Some(Duration::ZERO));
    assert_eq!(addresses.learn(&[(member(2), true)]).unwrap(), [0; 0]);
    assert_eq!((entries(&kernel), state(&kernel).writes.len()), (vec![1, 2], 0));
    assert_eq!(addresses.learn(&[(member(1), false), (member(3), true)]).unwrap(), [0; 0]);
    assert_eq!((entries(&kernel), state(&kernel).writes.len()), (vec![2, 3], 0));
    let stale =
        LearnedMember { learner: Learner::Workload { interface: "cali1".parse().unwrap(), owner: 6 }, ..member(9) };
    assert_eq!(addresses.learn(&[(stale, true)]).unwrap(), [0; 0]);
    assert_eq!(entries(&kernel), [2, 3], "of a former holder of the interface");

    assert!(programs.apply(NOW).in_force);
    assert!(!state(&kernel).writes.is_empty(), "the updates");
}

#[test]
fn a_full_map_closes_the_new_address_only() {
    let kernel = Kernel::default();
    let mut programs = programs(&kernel);
    let addresses = programs.learned_addresses();
    programs.apply(NOW);
    state(&kernel).room = Some(2);
    let all = [1, 2, 3].map(|last| (member(last), true));
    assert_eq!(addresses.learn(&all).unwrap(), [2]);
    assert_eq!(entries(&kernel), [1, 2]);
    let applied = programs.apply(NOW);
    let [problem] = &applied.problems[..] else { panic!("{applied:?}") };
    assert!(applied.in_force && !problem.is_degraded && problem.why.starts_with("1 addresses"), "{problem:?}");
    // The learner tries again when another one has expired.
    assert_eq!(addresses.learn(&[(member(1), false)]).unwrap(), [0; 0]);
    assert_eq!(addresses.learn(&[(member(3), true)]).unwrap(), [0; 0]);
    assert_eq!((entries(&kernel), programs.apply(NOW).problems), (vec![2, 3], vec![]));
}

#[test]
fn a_write_that_fails_is_made_good() {
    for failing in 1..30 {
        let kernel = Kernel::default();
        let mut programs = programs(&kernel);
        let addresses = programs.learned_addresses();
        programs.apply(NOW);
        let steps = state(&kernel).steps;
        state(&kernel).fail.insert(steps + failing);
        for last in [1, 2] {
            // The learner tries again after an error, and to add what has found no room.
            let is_written = || addresses.learn(&[(member(last), true)]).is_ok_and(|refused| refused.is_empty());
            assert!((0..3).any(|_| is_written()), "step {failing}");
            assert!(entries(&kernel).contains(&last), "step {failing}: an answer passes, its address is closed");
        }
        for second in 1..100 {
            programs.apply(NOW * second);
        }
        assert_eq!((entries(&kernel), programs.apply(NOW * 100).in_force), (vec![1, 2], true), "step {failing}");
        let open = state(&kernel).open.iter().filter(|text| text.contains("nothing at")).count();
        assert_eq!(open, 0, "step {failing}: a place without a program");
    }
}

#[test]
fn the_next_process_knows_the_addresses_and_repairs_foreign_changes() {
    let kernel = Kernel::default();
    let mut first = programs(&kernel);
    first.apply(NOW);
    first.learned_addresses().learn(&[(member(1), true), (member(2), true)]).unwrap();
    drop(first);
    state(&kernel).writes.clear();
    let mut second = programs(&kernel);
    assert!(second.apply(NOW).in_force);
    assert_eq!(second.learned_addresses().members(), [member(1), member(2)]);
    assert_eq!((entries(&kernel), &state(&kernel).writes[..]), (vec![1, 2], &[][..]), "nothing has changed");

    let mut held = state(&kernel);
    held.learned.values_mut().for_each(|entries| drop(entries.pop_first()));
    drop(held);
    assert!(second.apply(NOW * 100).in_force);
    assert_eq!(entries(&kernel), [1, 2]);
}
