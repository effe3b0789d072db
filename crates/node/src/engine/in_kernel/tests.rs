use std::sync::{Arc, Mutex};

use tortie_config::{Sources, settings};
use tortie_dataplane::Clock as _;
use tortie_dataplane::fake::FakeKernel;
use tortie_iptables::{Backend, Table};
use tortie_linux::bpf::{CountsError, DecisionCount, PolicyStats};
use tortie_model::desired::{
    IpSetDelta, IpSetType, IpSetUpdate, Members, Policy, Profile, RuleSets, Rules, TierPolicies, WorkloadEndpointState,
};
use tortie_model::{
    Cidr, PolicyId, PolicyKind, PortSpec, Protocol, Rule, RuleAction, TierDefaultAction, WorkloadEndpoint,
    WorkloadEndpointId,
};

use super::*;

fn enforcement() -> InKernel<FakeKernel> {
    let resolved = Sources::default().resolve().unwrap();
    let config = settings::dataplane(&resolved.config, "n1".into(), Backend::Nft).unwrap();
    let kernel = FakeKernel::new(Backend::Nft, ["cali1"]);
    let mut enforcement = InKernel::new(config, kernel, Health::default(), SharedMetrics::default());
    enforcement.on_update(DesiredUpdate::InSync);
    enforcement.on_event(MonitorEvent::InSync).unwrap();
    enforcement
}

/// Applies for as long as that.
fn enforce_for(enforcement: &mut InKernel<FakeKernel>, time: Duration) {
    let end = enforcement.kernel.now() + time;
    while enforcement.kernel.now() < end {
        let progress = enforcement.enforce().unwrap();
        enforcement.kernel.sleep(progress.next.max(Duration::from_millis(1)));
    }
}

/// A workload with a profile that allows everything.
fn add_workload(enforcement: &mut InKernel<FakeKernel>) {
    let id = WorkloadEndpointId { orchestrator: "k8s".into(), workload: "default/w".into(), endpoint: "eth0".into() };
    let allow = Rule::new(RuleAction::Allow);
    let inbound = Rules::new([allow].into(), [RuleSets::default()].into()).unwrap();
    enforcement.on_update(DesiredUpdate::Profile("p".into(), Profile { inbound, outbound: Rules::default() }.into()));
    let endpoint = WorkloadEndpoint {
        iface: Some("cali1".parse().unwrap()),
        profiles: Arc::new(["p".into()]),
        ..WorkloadEndpoint::default()
    };
    let state = WorkloadEndpointState { endpoint: endpoint.into(), ..WorkloadEndpointState::default() };
    enforcement.on_update(DesiredUpdate::WorkloadEndpoint(id, state));
}

#[test]
fn the_report_names_the_back_end() {
    let by = |parameters: &[(&str, &str)]| {
        let mut sources = Sources::default();
        let raw = parameters.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        sources.set(tortie_model::desired::ConfigSource::Environment, raw);
        let config = sources.resolve().unwrap().config;
        let mut settings = settings::dataplane(&config, "n1".into(), Backend::Nft).unwrap();
        if settings::uses_nftables(&config, false) {
            settings::for_nftables(&config, &mut settings).unwrap();
        }
        let kernel = FakeKernel::new(Backend::Nft, ["cali1"]);
        InKernel::new(settings, kernel, Health::default(), SharedMetrics::default()).report().by.as_str()
    };
    assert_eq!(by(&[]), "iptables");
    assert_eq!(by(&[("NFTablesMode", "Enabled")]), "nftables");
    assert_eq!(by(&[("NFTablesMode", "Enabled"), ("BPFEnabled", "true")]), "programs");
}

#[test]
fn faults_of_the_dataplane_happen_when_they_are_asked_for() {
    let faults = DataplaneFaults { apply_delay: Duration::from_secs(5), hang_after: Some(Duration::from_secs(60)) };
    let mut enforcement = enforcement().with_faults(faults);
    add_workload(&mut enforcement);
    let begin = enforcement.kernel.now();
    enforcement.enforce().unwrap();
    let took = enforcement.kernel.now() - begin;
    assert!(took >= Duration::from_secs(5) && took < Duration::from_secs(60), "{took:?}");
    assert!(enforcement.outcome.applied_once);
    enforcement.kernel.sleep(Duration::from_secs(60));
    for expected in [true, false] {
        let begin = enforcement.kernel.now();
        enforcement.enforce().unwrap();
        let has_hung = enforcement.kernel.now() - begin >= HANG;
        assert_eq!(has_hung, expected);
    }
}

#[test]
fn a_problem_is_logged_when_it_appears_and_when_it_is_gone_however_often_it_is_tried_in_between() {
    let (lines, _guard) = tortie_telemetry::logging::capture();

    let mut enforcement = enforcement();
    add_workload(&mut enforcement);
    enforcement.kernel.netfilter.tables_v4.refuse("Profile p ingress");
    enforce_for(&mut enforcement, Duration::from_secs(30));
    let refusals = enforcement.kernel.netfilter.tables_v4.counters().restores;
    let out_of_sync = lines.containing("out of sync");
    assert!(out_of_sync.len() == 1 && out_of_sync[0].contains("cali-pri-p"), "{out_of_sync:#?}");
    assert!(refusals > 4, "it was tried again");
    // No other component logs it as well.
    assert_eq!(lines.containing("cali-pri-p").len(), 1, "{lines:?}");
    assert_eq!(lines.containing("resolved"), [] as [&str; 0]);

    enforcement.kernel.netfilter.tables_v4.behave();
    enforce_for(&mut enforcement, Duration::from_secs(400));
    assert!(enforcement.kernel.netfilter.tables_v4.saved(Table::Filter).contains("Profile p ingress"));
    let resolved = lines.containing("resolved");
    assert!(resolved.len() == 1 && resolved[0].contains("cali-pri-p"), "{resolved:#?}");
    assert_eq!(lines.containing("out of sync").len(), 1);
}

#[test]
fn a_drawback_is_shown_and_counted_for_as_long_as_it_enforces() {
    let mut enforcement = enforcement().with_drawback(Some("not as configured".into()));
    enforcement.health.expect(Reporter::Dataplane, Duration::ZERO);
    enforce_for(&mut enforcement, Duration::from_secs(1));
    let answer = enforcement.health.answer("/readiness");
    assert!(answer.status == 200 && answer.body.contains("not as configured"), "{}", answer.body);
    assert_eq!(enforcement.metrics.lock().dataplane.problems, 1);
}

#[test]
fn an_obstacle_to_the_removal_of_felix_is_a_problem() {
    let mut enforcement = enforcement();
    enforcement.health.expect(Reporter::Dataplane, Duration::ZERO);
    enforcement.outcome.obstacle = Some(("no kube-proxy is found".into(), Duration::MAX));
    enforce_for(&mut enforcement, Duration::from_secs(1));
    let answer = enforcement.health.answer("/readiness");
    assert!(answer.status == 503 && answer.body.contains("no kube-proxy is found"), "{}", answer.body);
    assert_eq!(enforcement.report().problems, ["no kube-proxy is found"]);
    assert_eq!(enforcement.metrics.lock().dataplane.problems, 1);
}

#[test]
fn the_node_is_ready_when_nothing_stands_in_for_its_policy_any_more() {
    let mut enforcement = enforcement();
    enforcement.health.expect(Reporter::Dataplane, Duration::ZERO);
    add_workload(&mut enforcement);
    let readiness = |enforcement: &InKernel<FakeKernel>| enforcement.health.answer("/readiness");
    enforce_for(&mut enforcement, Duration::from_secs(1));
    assert_eq!(readiness(&enforcement).status, 200);

    // A new chain that the kernel refuses; the policy was in force before.
    let mut profile = Profile { inbound: Rules::default(), outbound: Rules::default() };
    let deny = Rule::new(RuleAction::Deny);
    profile.inbound = Rules::new([deny].into(), [RuleSets::default()].into()).unwrap();
    enforcement.on_update(DesiredUpdate::Profile("p".into(), profile.into()));
    enforcement.kernel.netfilter.tables_v4.refuse("Profile p ingress");
    for _ in 0..60 {
        enforce_for(&mut enforcement, Duration::from_secs(1));
        let answer = readiness(&enforcement);
        assert_eq!(answer.status, 503);
        assert!(answer.body.contains("profile p: IPv4 table filter: the kernel refuses"), "{}", answer.body);
    }
    enforcement.kernel.netfilter.tables_v4.behave();
    enforce_for(&mut enforcement, Duration::from_secs(31));
    assert_eq!(readiness(&enforcement).status, 200);
}

/// A dataplane of nftables tables with the layout `Fast`, where a group of endpoints may take 1
/// MiB.
fn fast_enforcement() -> InKernel<FakeKernel> {
    let parameters = [("NFTablesMode", "Enabled"), ("NFTablesLayout", "Fast"), ("PolicyTableGroupMemoryMB", "1")];
    let parameters = parameters.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let mut sources = Sources::default();
    sources.set(tortie_model::desired::ConfigSource::Environment, parameters.into());
    let config = sources.resolve().unwrap().config;
    let mut dataplane = settings::dataplane(&config, "n1".into(), Backend::Nft).unwrap();
    settings::for_nftables(&config, &mut dataplane).unwrap();
    let kernel = FakeKernel::new(Backend::Nft, ["cali1"]);
    let mut enforcement = InKernel::new(dataplane, kernel, Health::default(), SharedMetrics::default());
    enforcement.health.expect(Reporter::Dataplane, Duration::ZERO);
    enforcement.on_update(DesiredUpdate::InSync);
    enforcement.on_event(MonitorEvent::InSync).unwrap();
    enforcement
}

/// A workload and its policy `prod/wide`, whose rules allow members of the set `wide` from one
/// source port each.
fn add_policy_of_members(enforcement: &mut InKernel<FakeKernel>, members: u32) {
    let set = IpSetUpdate { id: "wide".into(), set_type: IpSetType::Net, members: hosts(0..members) };
    enforcement.on_update(DesiredUpdate::IpSet(set));
    let rule = |port| {
        let mut rule = Rule { protocol: Some(Protocol::TCP), ..Rule::new(RuleAction::Allow) };
        rule.source.ports = [PortSpec::single(port)].into();
        rule
    };
    let sets = || RuleSets { src: ["wide".into()].into(), ..RuleSets::default() };
    let inbound = Rules::new((1..=8).map(rule).collect(), (1..=8).map(|_| sets()).collect()).unwrap();
    let source = Arc::new(tortie_model::Policy::default());
    let policy = Policy { source, selector: "all()".into(), inbound, outbound: Rules::default() };
    let id = PolicyId::new(PolicyKind::NetworkPolicy, "prod", "wide");
    enforcement.on_update(DesiredUpdate::Policy(id.clone(), policy.into()));
    let tier = TierPolicies {
        name: "default".into(),
        default_action: Some(TierDefaultAction::Deny),
        ingress: [id].into(),
        egress: [].into(),
    };
    let endpoint = WorkloadEndpoint { iface: Some("cali1".parse().unwrap()), ..WorkloadEndpoint::default() };
    let state = WorkloadEndpointState { endpoint: endpoint.into(), tiers: [tier].into(), computed: None };
    let id = WorkloadEndpointId { orchestrator: "k8s".into(), workload: "prod/w".into(), endpoint: "eth0".into() };
    enforcement.on_update(DesiredUpdate::WorkloadEndpoint(id, state));
}

fn hosts(numbers: std::ops::Range<u32>) -> Members {
    let host = |number| Cidr::host(std::net::Ipv4Addr::from_bits(0x0a00_0000 + number).into());
    Members::Nets(numbers.map(host).collect())
}

#[test]
fn readiness_names_a_layout_over_budget_until_its_members_fit() {
    let mut enforcement = fast_enforcement();
    add_policy_of_members(&mut enforcement, 3_000);
    enforce_for(&mut enforcement, Duration::from_secs(1));
    let answer = enforcement.health.answer("/readiness");
    let named = "policy NetworkPolicy/prod/wide: IPv4 table filter: the layout of chain";
    assert!(answer.body.contains(named), "{}", answer.body);
    assert!(answer.body.contains("exceeds the table budget of 1048576 bytes"), "{}", answer.body);
    // The same verdicts are in force.
    assert_eq!(answer.status, 200);
    assert_eq!(enforcement.metrics.lock().dataplane.problems, 1);

    // Only the set changes.
    let delta = IpSetDelta { id: "wide".into(), added: hosts(0..0), removed: hosts(100..3_000) };
    enforcement.on_update(DesiredUpdate::IpSetDelta(delta));
    enforce_for(&mut enforcement, Duration::from_secs(1));
    let answer = enforcement.health.answer("/readiness");
    assert!(answer.status == 200 && !answer.body.contains("budget"), "{}", answer.body);
    assert_eq!(enforcement.metrics.lock().dataplane.problems, 0);
}

/// Programs whose state the test sets.
#[derive(Debug)]
struct Programs {
    state: Arc<Mutex<PolicyState>>,
    updates: usize,
}

impl PolicyPrograms for Programs {
    fn stats(&self) -> PolicyStats {
        PolicyStats { blocks: 12, max_blocks: 100, map_writes: 7, ..PolicyStats::default() }
    }

    fn on_update(&mut self, _: &DesiredUpdate) {
        self.updates += 1;
    }

    fn on_link(&mut self, _: &LinkEvent) {}

    fn on_links_in_sync(&mut self) {}

    fn apply(&mut self, _: Duration) -> PolicyState {
        assert!(self.updates > 0, "updates arrive before the first apply");
        self.state.lock().unwrap().clone()
    }

    fn next(&self, _: Duration) -> Option<Duration> {
        Some(Duration::from_millis(100))
    }

    fn counts(&mut self) -> Result<Vec<DecisionCount>, CountsError> {
        Err(CountsError::NotInForce)
    }
}

#[test]
fn readiness_requires_ebpf_enforcement_and_shows_its_problems() {
    let mut sources = Sources::default();
    sources.set(tortie_model::desired::ConfigSource::Environment, [("BPFEnabled".into(), "true".into())].into());
    let config = settings::dataplane(&sources.resolve().unwrap().config, "n1".into(), Backend::Nft).unwrap();
    let state = Arc::new(Mutex::new(PolicyState::default()));
    let programs = Programs { state: Arc::clone(&state), updates: 0 };
    let kernel = FakeKernel::new(Backend::Nft, ["cali1"]);
    let mut enforcement = InKernel::new(config, kernel, Health::default(), SharedMetrics::default());
    enforcement =
        enforcement.with_companions(Companions { programs: Some(Box::new(programs)), ..Companions::default() });
    enforcement.health.expect(Reporter::Dataplane, Duration::ZERO);
    enforcement.on_update(DesiredUpdate::InSync);
    enforcement.on_event(MonitorEvent::Link(LinkEvent::Up { name: "cali1".parse().unwrap(), index: 7 })).unwrap();
    enforcement.on_event(MonitorEvent::InSync).unwrap();
    add_workload(&mut enforcement);
    let readiness = |enforcement: &InKernel<FakeKernel>| enforcement.health.answer("/readiness");
    let is_up = |enforcement: &InKernel<FakeKernel>| {
        enforcement.report().workloads.values().all(|status| *status == tortie_dataplane::EndpointStatus::Up)
    };

    enforce_for(&mut enforcement, Duration::from_secs(3));
    assert_eq!(readiness(&enforcement).status, 503);
    assert!(!enforcement.outcome.applied_once && !is_up(&enforcement));

    let blocks =
        |enforcement: &InKernel<FakeKernel>| enforcement.metrics.lock().dataplane.bpf.map(|stats| stats.blocks);
    assert_eq!(blocks(&enforcement), Some(12));

    state.lock().unwrap().in_force = true;
    enforce_for(&mut enforcement, Duration::from_secs(3));
    assert_eq!(readiness(&enforcement).status, 200);
    assert!(enforcement.outcome.applied_once && is_up(&enforcement));

    let problem =
        tortie_dataplane::ProgramProblem { object: "eBPF maps".into(), why: "no memory".into(), is_degraded: true };
    *state.lock().unwrap() = PolicyState { in_force: false, problems: vec![problem] };
    add_workload(&mut enforcement);
    enforce_for(&mut enforcement, Duration::from_secs(3));
    let answer = readiness(&enforcement);
    assert!(answer.status == 503 && answer.body.contains("eBPF maps: no memory"), "{}", answer.body);
    assert!(!is_up(&enforcement));
    assert_eq!(enforcement.report().problems, ["eBPF maps: no memory"]);
    assert_eq!(enforcement.metrics.lock().dataplane.problems, 1);

    *state.lock().unwrap() = PolicyState { in_force: true, problems: Vec::new() };
    enforce_for(&mut enforcement, Duration::from_secs(3));
    assert_eq!(readiness(&enforcement).status, 200);
    assert!(is_up(&enforcement) && enforcement.report().problems.is_empty());
    let kernel = enforcement.into_kernel();
    assert!(!kernel.netfilter.tables_v4.saved(Table::Filter).contains("cali"));
}
