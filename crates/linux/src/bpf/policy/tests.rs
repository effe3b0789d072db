use std::sync::{Arc, Mutex};

use tortie_ebpf::hooks::Hook;
use tortie_model::desired::{IpSetDelta, Members, Profile, RuleSets, Rules, WorkloadEndpointState};
use tortie_model::{Rule, WorkloadEndpoint, WorkloadEndpointId};

use super::*;
use crate::bpf::edge::AttachPoint;
use crate::bpf::fake::{FakeEdge, FakeState, lock};

type Kernel = Arc<Mutex<FakeState>>;

const SECOND: Duration = Duration::from_secs(1);
const CHECK: Duration = Duration::from_secs(90);

fn policy(kernel: &Kernel) -> ProgramPolicy<FakeEdge> {
    ProgramPolicy::new(NodeSettings::default(), Family::ALL.into(), FakeEdge::new(kernel), Some(CHECK))
}

/// Returns programs that have received the complete state.
fn with_complete_state(kernel: &Kernel) -> ProgramPolicy<FakeEdge> {
    let mut policy = policy(kernel);
    policy.on_link(&LinkEvent::Up { name: "cali1".parse().unwrap(), index: 7 });
    add_workload(&mut policy, "cali1");
    policy.on_update(&DesiredUpdate::InSync);
    policy.on_links_in_sync();
    policy
}

fn add_workload(policy: &mut ProgramPolicy<FakeEdge>, interface: &str) {
    let id = WorkloadEndpointId {
        orchestrator: "k8s".into(),
        workload: format!("default/{interface}").into(),
        endpoint: "eth0".into(),
    };
    let endpoint = WorkloadEndpoint { iface: Some(interface.parse().unwrap()), ..WorkloadEndpoint::default() };
    let state = WorkloadEndpointState { endpoint: endpoint.into(), ..WorkloadEndpointState::default() };
    policy.on_update(&DesiredUpdate::WorkloadEndpoint(id, state));
}

fn attached(kernel: &Kernel) -> usize {
    let places = Family::ALL.into_iter().flat_map(|family| Hook::ALL.map(|hook| AttachPoint { hook, family }));
    places.map(|place| lock(kernel).attached(place)).sum()
}

#[test]
fn nothing_is_applied_before_the_state_is_complete() {
    let kernel = Kernel::default();
    let mut policy = policy(&kernel);
    assert_eq!((policy.apply(SECOND), policy.next(SECOND)), (PolicyState::default(), None));
    policy.on_update(&DesiredUpdate::InSync);
    assert_eq!((policy.apply(SECOND), policy.next(SECOND)), (PolicyState::default(), None));
    policy.on_links_in_sync();
    assert_eq!(policy.next(SECOND), Some(Duration::ZERO));
    assert_eq!(policy.apply(SECOND), PolicyState { in_force: true, problems: Vec::new() });
    assert_eq!(attached(&kernel), 8);
    assert_eq!(policy.next(SECOND), Some(CHECK));
}

#[test]
fn failures_are_reported_and_retried_after_growing_pauses() {
    let kernel = Kernel::default();
    let mut policy = with_complete_state(&kernel);
    lock(&kernel).fail.extend(0..10_000);
    let mut now = SECOND;
    for pause in [1, 2, 4, 8, 16, 30, 30].map(Duration::from_secs) {
        let steps = lock(&kernel).steps;
        let state = policy.apply(now);
        assert!(!state.in_force && state.problems.len() == 1 && state.problems[0].is_degraded, "{state:?}");
        assert!(state.problems[0].to_string().contains("reading which programs are attached"), "{state:?}");
        assert!(lock(&kernel).steps > steps);
        assert_eq!(policy.next(now), Some(pause));
        // Not before that time.
        let steps = lock(&kernel).steps;
        add_workload(&mut policy, "cali1");
        assert_eq!(policy.apply(now + pause - SECOND / 2), state);
        assert_eq!(lock(&kernel).steps, steps);
        now += pause;
    }
    lock(&kernel).fail.clear();
    assert_eq!(policy.apply(now), PolicyState { in_force: true, problems: Vec::new() });
    // The pauses are short again.
    lock(&kernel).fail.extend(0..10_000);
    add_workload(&mut policy, "cali2");
    policy.on_link(&LinkEvent::Up { name: "cali2".parse().unwrap(), index: 8 });
    assert!(!policy.apply(now).in_force);
    assert_eq!(policy.next(now), Some(SECOND));
}

#[test]
fn a_change_is_in_force_once_it_is_written_and_not_before() {
    let kernel = Kernel::default();
    let mut policy = with_complete_state(&kernel);
    assert!(policy.apply(SECOND).in_force);
    let steps = lock(&kernel).steps;
    assert!(policy.apply(SECOND).in_force);
    assert_eq!(lock(&kernel).steps, steps, "nothing has changed");
    add_workload(&mut policy, "cali2");
    policy.on_link(&LinkEvent::Up { name: "cali2".parse().unwrap(), index: 8 });
    assert_eq!(policy.next(SECOND), Some(Duration::ZERO));
    lock(&kernel).fail.insert(steps + 2);
    assert!(!policy.apply(SECOND).in_force);
    assert!(policy.apply(SECOND * 2).in_force);
    assert!(lock(&kernel).steps > steps + 10, "with new maps");
    assert_eq!(attached(&kernel), 8);
}

#[test]
fn detached_programs_are_found_at_the_next_check() {
    let kernel = Kernel::default();
    let mut policy = with_complete_state(&kernel);
    assert!(policy.apply(SECOND).in_force);
    let place = AttachPoint { hook: Hook::Forward, family: Family::V6 };
    lock(&kernel).detach(place);
    assert!(policy.apply(CHECK).in_force);
    assert_eq!(lock(&kernel).attached(place), 0);
    assert!(policy.apply(CHECK + SECOND).in_force);
    assert_eq!(lock(&kernel).attached(place), 1);
    assert_eq!(policy.next(CHECK + SECOND), Some(CHECK));
}

#[test]
fn an_invalid_update_is_a_permanent_problem() {
    let kernel = Kernel::default();
    let mut policy = with_complete_state(&kernel);
    let none = || Members::Nets(Vec::new());
    let delta = IpSetDelta { id: "s:unknown".into(), added: none(), removed: none() };
    policy.on_update(&DesiredUpdate::IpSetDelta(delta));
    let state = policy.apply(SECOND);
    assert!(!state.in_force && state.problems.len() == 1, "{state:?}");
}

#[test]
fn a_kernel_without_such_hooks_is_named_and_not_asked_again() {
    let kernel = Kernel::default();
    lock(&kernel).is_old = true;
    let mut policy = with_complete_state(&kernel);
    let state = policy.apply(SECOND);
    let problem =
        ProgramProblem { object: "BPFEnabled".into(), why: "the kernel (5.15) is too old".into(), is_degraded: true };
    assert_eq!(state, PolicyState { in_force: false, problems: vec![problem] });
    // It stays as it is, whatever else changes.
    add_workload(&mut policy, "cali2");
    assert_eq!((policy.apply(SECOND * 100), policy.next(SECOND * 100)), (state, None));
    assert_eq!(attached(&kernel), 0);
    assert_eq!(lock(&kernel).steps, 0);
}

#[test]
fn programs_log_while_logging_is_enabled() {
    for (wants_all, expected) in [(false, [false, true, false, true, false]), (true, [true; 5])] {
        let kernel = Kernel::default();
        let mut policy = with_complete_state(&kernel).with_log(PacketLog::default(), wants_all);
        let logs = |policy: &mut ProgramPolicy<FakeEdge>| {
            assert!(policy.apply(SECOND).in_force);
            let roots = policy.node.all().find(|write| write.map == MapKind::Roots).unwrap();
            let flags = u32::from_ne_bytes(roots.value[16..20].try_into().unwrap());
            flags & tortie_ebpf::layout::roots::LOG.unsigned_abs() != 0
        };
        let mut found = vec![logs(&mut policy)];
        for action in [RuleAction::Log, RuleAction::Deny, RuleAction::Log] {
            send_profile(&mut policy, action);
            found.push(logs(&mut policy));
        }
        policy.on_update(&DesiredUpdate::ProfileRemove("p".into()));
        found.push(logs(&mut policy));
        assert_eq!(found, expected);
    }
}

fn send_profile(policy: &mut ProgramPolicy<FakeEdge>, action: RuleAction) {
    let rule = Rule::new(action);
    let rules = Rules::new([rule].into(), [RuleSets::default()].into()).unwrap();
    let profile = Profile { inbound: Rules::default(), outbound: rules };
    policy.on_update(&DesiredUpdate::Profile("p".into(), profile.into()));
}

#[test]
fn policies_that_would_log_are_known() {
    let kernel = Kernel::default();
    let mut policy = with_complete_state(&kernel);
    send_profile(&mut policy, RuleAction::Log);
    assert_eq!(policy.logging, ["profile p".to_owned()].into());
    send_profile(&mut policy, RuleAction::Deny);
    assert!(policy.logging.is_empty());
    send_profile(&mut policy, RuleAction::Log);
    policy.on_update(&DesiredUpdate::ProfileRemove("p".into()));
    assert!(policy.logging.is_empty());
}
