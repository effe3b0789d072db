//! IP sets that are not in the kernel as desired: rules that depend on them are not in force, and
//! everything else is.

use std::time::Duration;

use tortie_dataplane::fake::FakeKernel;
use tortie_dataplane::{ApplyReport, Clock, Dataplane, DataplaneProblem, Owner, Reduction};
use tortie_ipsets::fake::Fault;
use tortie_iptables::{Backend, Table};
use tortie_model::desired::{DesiredUpdate, IpSetDelta, Members, RuleSets};
use tortie_model::{Direction, Family, NamedProtocol, PortSpec, Protocol, Rule, RuleAction, with_causes};
use tortie_rules::{RulesConfig, TunnelConfig};

use crate::common::{
    apply_until_in_sync, cidr, config, dataplane, kernel, pod, policy_id, policy_of, profile, set, texts, up, workload,
};

const BACKENDS: [Backend; 2] = [Backend::Legacy, Backend::Nft];

fn from(id: &str) -> RuleSets {
    RuleSets { src: [id.into()].into_iter().collect(), ..RuleSets::default() }
}

fn rule(action: RuleAction) -> Rule {
    Rule::new(action)
}

fn to_port(port: u16) -> Rule {
    let mut rule = rule(RuleAction::Allow);
    rule.protocol = Some(Protocol::Named(NamedProtocol::Tcp));
    rule.destination.ports = [PortSpec::single(port)].into();
    rule
}

fn policy(name: &str, rules: Vec<(Rule, RuleSets)>) -> DesiredUpdate {
    let (rules, sets) = rules.into_iter().unzip();
    DesiredUpdate::Policy(policy_id(name), policy_of("all()", rules, sets).into())
}

fn change(added: &[&str], removed: &[&str]) -> DesiredUpdate {
    let nets = |nets: &[&str]| Members::Nets(nets.iter().map(|net| cidr(net)).collect());
    DesiredUpdate::IpSetDelta(IpSetDelta { id: "s:x".into(), added: nets(added), removed: nets(removed) })
}

/// Returns the IPv4 ingress rules of a policy.
fn rules(kernel: &FakeKernel, name: &str) -> String {
    kernel.netfilter.tables_v4.rules(Table::Filter, &format!("cali-pi-gnp/{name}")).expect(name).join("\n")
}

fn reductions(report: &ApplyReport) -> Vec<(Owner, Direction, Reduction)> {
    let reductions = report.problems.iter().filter_map(|problem| match problem {
        DataplaneProblem::Reduced { family: Family::V4, owner, direction, reduction, .. } => {
            assert!(problem.is_degraded());
            Some((owner.clone(), *direction, reduction.clone()))
        }
        DataplaneProblem::IpSet { family: Family::V4, .. } => None,
        other => panic!("{other}"),
    });
    reductions.collect()
}

fn restore_errors(dataplane: &Dataplane) -> u64 {
    dataplane.stats().tables.iter().map(|(_, _, table)| table.restore_errors).sum()
}

/// Applies until `done`, and returns the elapsed time.
fn until(dataplane: &mut Dataplane, kernel: &mut FakeKernel, done: impl Fn(&ApplyReport) -> bool) -> Duration {
    let start = kernel.now();
    loop {
        let report = dataplane.apply(kernel);
        let took = kernel.now() - start;
        if done(&report) || took > Duration::from_secs(600) {
            return took;
        }
        kernel.sleep(report.next.expect("something is to be tried again"));
    }
}

#[test]
fn an_allow_rule_with_an_unavailable_set_is_left_out_and_the_rest_is_in_force() {
    for backend in BACKENDS {
        let updates = [
            profile("kns.default"),
            set("s:x", &["10.0.0.1/32"]),
            policy("uses", vec![(rule(RuleAction::Allow), from("s:x")), (to_port(80), RuleSets::default())]),
            policy("other", vec![(to_port(81), RuleSets::default())]),
            workload("w", pod("cali1", 1), &["uses", "other"]),
        ];
        let mut kernel = kernel(backend);
        kernel.netfilter.sets.poison("cali40s:x", true);
        let mut dataplane = dataplane(backend, updates, [up("cali1", 1)]);
        let report = dataplane.apply(&mut kernel);
        assert_eq!(restore_errors(&dataplane), 0, "{backend}: the kernel is never asked for the impossible");
        let owner = Owner::Policy(policy_id("uses"));
        assert_eq!(reductions(&report), [(owner, Direction::Ingress, Reduction::LeftOut(vec![0]))]);
        let texts = texts(&report.problems);
        assert!(
            texts.contains(
                &"policy GlobalNetworkPolicy/uses: IPv4 ingress: rule 0 is left out, because of IP set s:x".to_owned()
            ),
            "{texts:?}"
        );
        let chain = rules(&kernel, "uses");
        assert!(chain.contains("--dports 80 ") && !chain.contains("s:x") && !chain.contains("DROP"), "{chain}");
        assert!(chain.contains("GlobalNetworkPolicy uses ingress"), "{chain}");
        assert!(rules(&kernel, "other").contains("--dports 81 "));
        let v6 = kernel.netfilter.tables_v6.rules(Table::Filter, "cali-pi-gnp/uses").expect("IPv6").concat();
        assert!(v6.contains("cali60s:x"), "{v6}");

        // While the fault lasts, tables are not written again and again.
        let restores = kernel.writes().table_restores;
        for _ in 0..20 {
            let report = dataplane.apply(&mut kernel);
            kernel.sleep(report.next.expect("it is tried again").min(Duration::from_secs(1)));
        }
        assert_eq!(kernel.writes().table_restores, restores);

        // The apply that creates the set also writes the chain.
        kernel.netfilter.sets.poison("cali40s:x", false);
        let is_there = |kernel: &FakeKernel| kernel.netfilter.sets.names().contains(&"cali40s:x");
        assert!(!is_there(&kernel));
        until(&mut dataplane, &mut kernel, |report| reductions(report).is_empty());
        assert!(is_there(&kernel));
        assert!(rules(&kernel, "uses").contains("cali40s:x"));
        assert!(dataplane.problems().is_empty());
        assert_eq!(restore_errors(&dataplane), 0);
    }
}

#[test]
fn a_chain_closes_if_a_rule_that_cannot_be_left_out_needs_a_set_that_is_not_there() {
    for (name, action) in [("deny", RuleAction::Deny), ("pass", RuleAction::NextTier)] {
        let updates = [
            profile("kns.default"),
            set("s:x", &["10.0.0.1/32"]),
            policy(name, vec![(rule(action), from("s:x")), (rule(RuleAction::Allow), RuleSets::default())]),
            policy("other", vec![(to_port(81), RuleSets::default())]),
            workload("w", pod("cali1", 1), &["other", name]),
        ];
        let mut kernel = kernel(Backend::Nft);
        kernel.netfilter.sets.poison("cali40s:x", true);
        let mut dataplane = dataplane(Backend::Nft, updates, [up("cali1", 1)]);
        let report = dataplane.apply(&mut kernel);
        let owner = Owner::Policy(policy_id(name));
        assert_eq!(reductions(&report), [(owner, Direction::Ingress, Reduction::Closed)]);
        assert!(rules(&kernel, name).ends_with("-j DROP") && rules(&kernel, name).lines().count() == 1);
        assert!(rules(&kernel, "other").contains("--dports 81 "));
        assert_eq!(restore_errors(&dataplane), 0);
        kernel.netfilter.sets.poison("cali40s:x", false);
        until(&mut dataplane, &mut kernel, |report| reductions(report).is_empty());
        assert!(rules(&kernel, name).contains("cali40s:x"));
    }
}

#[test]
fn treatment_of_a_stale_set_depends_on_missing_and_surplus_members() {
    let allow = || vec![(rule(RuleAction::Allow), from("s:x"))];
    let deny = || vec![(rule(RuleAction::Deny), from("s:x")), (rule(RuleAction::Allow), RuleSets::default())];
    let updates = [
        profile("kns.default"),
        set("s:x", &["10.0.0.1/32", "10.0.0.2/32"]),
        policy("allow", allow()),
        policy("deny", deny()),
        workload("w", pod("cali1", 1), &["allow", "deny"]),
    ];
    let mut kernel = kernel(Backend::Nft);
    let mut dataplane = dataplane(Backend::Nft, updates, [up("cali1", 1)]);
    assert!(apply_until_in_sync(&mut dataplane, &mut kernel).is_complete());
    kernel.netfilter.sets.poison("cali40s:x", true);

    let owner = |name| Owner::Policy(policy_id(name));
    dataplane.on_update(change(&[], &["10.0.0.2/32"]));
    let report = dataplane.apply(&mut kernel);
    assert_eq!(reductions(&report), [(owner("allow"), Direction::Ingress, Reduction::LeftOut(vec![0]))]);
    assert!(!rules(&kernel, "allow").contains("s:x") && rules(&kernel, "deny").contains("cali40s:x"));

    dataplane.on_update(change(&["10.0.0.2/32", "10.0.0.3/32"], &[]));
    let report = dataplane.apply(&mut kernel);
    assert_eq!(reductions(&report), [(owner("deny"), Direction::Ingress, Reduction::Closed)]);
    assert!(rules(&kernel, "allow").contains("cali40s:x") && !rules(&kernel, "deny").contains("s:x"));

    kernel.netfilter.sets.poison("cali40s:x", false);
    until(&mut dataplane, &mut kernel, ApplyReport::is_complete);
    assert!(rules(&kernel, "deny").contains("cali40s:x"));
}

#[test]
fn sets_of_which_nothing_is_known_leave_chains_as_they_are() {
    let updates = || {
        [
            profile("kns.default"),
            set("s:x", &["10.0.0.1/32"]),
            policy("uses", vec![(rule(RuleAction::Allow), from("s:x"))]),
            workload("w", pod("cali1", 1), &["uses"]),
        ]
    };
    let mut kernel = kernel(Backend::Nft);
    apply_until_in_sync(&mut dataplane(Backend::Nft, updates(), [up("cali1", 1)]), &mut kernel);
    let before = rules(&kernel, "uses");
    for fault in [Fault::ListAll, Fault::ListNames] {
        (0..40).for_each(|_| kernel.netfilter.sets.inject(fault.clone()));
    }
    let mut next = dataplane(Backend::Nft, updates(), [up("cali1", 1)]);
    let report = next.apply(&mut kernel);
    assert_eq!(report.problems.len(), 2, "{report:?}");
    assert!(
        report.problems.iter().all(|p| matches!(p, DataplaneProblem::IpSetNames { .. }) && p.is_degraded()),
        "{report:?}"
    );
    assert_eq!(rules(&kernel, "uses"), before);
    kernel.netfilter.sets.clear_faults();
    assert!(apply_until_in_sync(&mut next, &mut kernel).is_complete());
}

#[test]
fn a_chain_that_the_kernel_refuses_in_part_is_in_force_in_part() {
    for backend in BACKENDS {
        let updates = [
            profile("kns.default"),
            policy("p", vec![(to_port(80), RuleSets::default()), (to_port(81), RuleSets::default())]),
            workload("w", pod("cali1", 1), &["p"]),
        ];
        let mut kernel = kernel(backend);
        kernel.netfilter.tables_v4.refuse("--destination-ports 81 ");
        let mut dataplane = dataplane(backend, updates, [up("cali1", 1)]);
        let report = dataplane.apply(&mut kernel);
        let [problem @ DataplaneProblem::Chain { owners, .. }] = &report.problems[..] else { panic!("{report:?}") };
        assert!(problem.is_degraded());
        assert_eq!(*owners, [Owner::Policy(policy_id("p"))]);
        assert!(with_causes(problem).contains("1 of its openings are left out"), "{problem}");
        let chain = rules(&kernel, "p");
        assert!(chain.contains("--dports 80 ") && !chain.contains("81") && !chain.contains("DROP"), "{chain}");
        kernel.netfilter.tables_v4.behave();
        let took = until(&mut dataplane, &mut kernel, ApplyReport::is_complete);
        assert!(took <= Duration::from_secs(2), "{took:?}");
        assert!(rules(&kernel, "p").contains("--dports 81 "));
    }
}

#[test]
fn a_policy_denies_if_members_that_do_not_fit_would_open_it() {
    use RuleAction::{Allow, Deny, Log, NextTier};
    let x = RuleSets { src: ["s:x".into()].into_iter().collect(), ..RuleSets::default() };
    let not_x = RuleSets { not_src: ["s:x".into()].into_iter().collect(), ..RuleSets::default() };
    // The flag: a set that lacks members could make this rule's chain allow more, so the chain is
    // closed.
    let cases = [
        ("deny", Deny, &x, true),
        ("deny-not", Deny, &not_x, false),
        ("allow", Allow, &x, false),
        ("allow-not", Allow, &not_x, false),
        ("pass", NextTier, &x, true),
        ("pass-not", NextTier, &not_x, true),
        ("log", Log, &x, false),
    ];
    let fits = ["10.0.0.1/32", "10.0.0.2/32"];
    let names: Vec<&str> = cases.iter().map(|(name, ..)| *name).collect();
    let mut updates = vec![profile("kns.default"), set("s:x", &fits), workload("w", pod("cali1", 1), &names)];
    for (name, action, sets, _) in &cases {
        let rule = |action| Rule::new(action);
        let rules = vec![rule(*action), rule(Allow)];
        let policy = policy_of("all()", rules, vec![(*sets).clone(), RuleSets::default()]);
        updates.push(DesiredUpdate::Policy(policy_id(name), policy.into()));
    }
    let mut config = config(Backend::Nft);
    config.ip_sets.max_size = 2;
    let mut dataplane = Dataplane::new(config);
    updates.into_iter().for_each(|update| dataplane.on_update(update));
    dataplane.on_update(DesiredUpdate::InSync);
    dataplane.on_link(up("cali1", 1));
    dataplane.on_links_in_sync();
    let mut kernel = kernel(Backend::Nft);
    let closed = |kernel: &FakeKernel, name: &str| {
        let rules = kernel.netfilter.tables_v4.rules(Table::Filter, &format!("cali-pi-gnp/{name}")).expect(name);
        let other = kernel.netfilter.tables_v6.rules(Table::Filter, &format!("cali-pi-gnp/{name}")).expect(name);
        assert!(other.concat().contains("cali60s:x"), "the other family's set is complete");
        rules.iter().all(|rule| rule.ends_with("-j DROP"))
    };
    let change = |added: &[&str], removed: &[&str]| {
        let nets = |nets: &[&str]| Members::Nets(nets.iter().map(|net| cidr(net)).collect());
        DesiredUpdate::IpSetDelta(IpSetDelta { id: "s:x".into(), added: nets(added), removed: nets(removed) })
    };
    assert!(apply_until_in_sync(&mut dataplane, &mut kernel).is_complete());
    assert!(names.iter().all(|name| !closed(&kernel, name) && rules(&kernel, name).contains("cali40s:x")));

    dataplane.on_update(change(&["10.0.0.3/32"], &[]));
    for _ in 0..3 {
        assert!(!dataplane.apply(&mut kernel).is_complete());
        for (name, _, _, opens) in &cases {
            assert_eq!(closed(&kernel, name), *opens, "{name}");
            let refers = rules(&kernel, name).contains("cali40s:x");
            assert_eq!(refers, !*opens && *name != "allow-not", "{name}");
        }
    }

    dataplane.on_update(change(&[], &["10.0.0.1/32"]));
    assert!(apply_until_in_sync(&mut dataplane, &mut kernel).is_complete());
    assert!(names.iter().all(|name| !closed(&kernel, name) && rules(&kernel, name).contains("cali40s:x")));
}

#[test]
fn sets_of_tunnels_and_hosts_exist_in_the_families_whose_chains_refer_to_them() {
    let names = |change: &dyn Fn(&mut RulesConfig)| {
        let mut config = config(Backend::Nft);
        change(&mut config.rules);
        let mut kernel = kernel(Backend::Nft);
        let mut dataplane = Dataplane::new(config);
        dataplane.on_update(DesiredUpdate::InSync);
        dataplane.on_links_in_sync();
        assert!(dataplane.apply(&mut kernel).is_complete());
        let is_one = |name: &&&str| name.ends_with("all-hosts-net") || name.ends_with("all-vxlan-net");
        kernel.netfilter.sets.names().iter().filter(is_one).map(ToString::to_string).collect::<Vec<_>>()
    };
    let on = TunnelConfig { enabled: true, has_address: true };
    assert_eq!(names(&|_| {}), [""; 0]);
    assert_eq!(names(&|rules| rules.ipip = on), ["cali40all-hosts-net"]);
    assert_eq!(names(&|rules| rules.vxlan_v4 = on), ["cali40all-vxlan-net"]);
    assert_eq!(names(&|rules| rules.vxlan_v6 = on), ["cali60all-vxlan-net"]);
    assert_eq!(names(&|rules| rules.nat.exclude_hosts = true), ["cali40all-hosts-net", "cali60all-hosts-net"]);
}
