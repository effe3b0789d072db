//! A failure of one object does not stop the others, and its stand-in denies.

use tortie_dataplane::{DataplaneProblem, EndpointStatus, Owner};
use tortie_iptables::{Backend, Table};
use tortie_model::desired::RuleSets;
use tortie_model::desired::{DesiredUpdate, IpSetDelta, Members};
use tortie_model::{Family, NamedProtocol, PortSpec, Protocol, Rule, RuleAction};

use crate::common::{
    apply_until_in_sync, cidr, dataplane, host, host_endpoint, kernel, pod, policy, policy_id, policy_of, profile, set,
    texts, up, workload, workload_id,
};
use crate::walk::assert_unknown_workloads_are_denied;

const BACKENDS: [Backend; 2] = [Backend::Legacy, Backend::Nft];

#[test]
fn a_policy_that_the_kernel_refuses_is_named_and_denies_while_the_rest_is_enforced() {
    for backend in BACKENDS {
        let updates = [
            profile("kns.default"),
            policy("good", "all()", None),
            policy("bad", "has(bad)", None),
            workload("one", pod("cali1", 1), &["good"]),
            workload("two", pod("cali2", 2), &["bad"]),
        ];
        let mut kernel = kernel(backend);
        kernel.netfilter.tables_v4.refuse("GlobalNetworkPolicy bad ingress");
        let mut dataplane = dataplane(backend, updates, [up("cali1", 1), up("cali2", 2)]);
        let report = dataplane.apply(&mut kernel);
        let named = texts(&report.problems);
        assert!(named.len() == 1 && named[0].contains("policy GlobalNetworkPolicy/bad"), "{backend}: {named:?}");
        assert!(matches!(
            &report.problems[0],
            DataplaneProblem::Chain { family: Family::V4, table: Table::Filter, owners, .. }
                if *owners == [Owner::Policy(policy_id("bad"))]
        ));
        let rules = |chain| kernel.netfilter.tables_v4.rules(Table::Filter, chain).expect(chain);
        assert!(rules("cali-pi-gnp/bad").iter().all(|rule| rule.ends_with("-j DROP")));
        assert!(rules("cali-pi-gnp/good").concat().contains("--set-xmark"));
        assert!(rules("cali-tw-cali1").concat().contains("cali-pi-gnp/good"));
        assert_eq!(kernel.routing.routes.len(), 4);
        assert_unknown_workloads_are_denied(&kernel);

        kernel.netfilter.tables_v4.behave();
        let report = apply_until_in_sync(&mut dataplane, &mut kernel);
        assert!(report.is_complete(), "{backend}: {:?}", report.problems);
        let rules = kernel.netfilter.tables_v4.rules(Table::Filter, "cali-pi-gnp/bad").expect("it is there now");
        assert!(rules.concat().contains("--set-xmark"));
    }
}

#[test]
fn a_host_endpoint_that_the_kernel_refuses_keeps_its_failsafes() {
    for backend in BACKENDS {
        let updates = [policy("p", "all()", None), host("h", host_endpoint(Some("eth0"), &[]), &["p"])];
        let mut kernel = kernel(backend);
        kernel.netfilter.tables_v4.refuse("Start of tier");
        let mut dataplane = dataplane(backend, updates, [up("eth0", 1)]);
        let report = dataplane.apply(&mut kernel);
        assert!(!report.is_complete());
        assert!(report.problems.iter().all(|problem| problem.to_string().contains("host endpoint h")), "{report:?}");
        let rules = kernel.netfilter.tables_v4.rules(Table::Filter, "cali-fh-eth0").expect("a stand-in is there");
        let (last, others) = rules.split_last().expect("it is not empty");
        assert!(last.ends_with("-j DROP") && others.iter().all(|rule| rule.ends_with("-j ACCEPT")), "{rules:?}");
        assert!(others.iter().any(|rule| rule.contains("--dports 22 ")), "{backend}: {rules:?}");
        assert_eq!(dataplane.host_statuses().map(|(_, status)| status).collect::<Vec<_>>(), [EndpointStatus::Error]);
    }
}

#[test]
fn a_rule_that_cannot_be_expressed_is_reported_with_its_policy() {
    // Ports without a protocol: iptables-restore would refuse the table.
    let mut rule = Rule::new(RuleAction::Allow);
    rule.destination.ports = [PortSpec::Range { first: 80, last: 80 }].into();
    let bad = policy_of("all()", vec![rule.clone()], vec![RuleSets::default()]);
    rule.protocol = Some(Protocol::Named(NamedProtocol::Tcp));
    let good = policy_of("all()", vec![rule], vec![RuleSets::default()]);
    let mut kernel = kernel(Backend::Nft);
    let updates = [
        profile("kns.default"),
        DesiredUpdate::Policy(policy_id("p"), bad.into()),
        workload("w", pod("cali1", 1), &["p"]),
    ];
    let mut dataplane = dataplane(Backend::Nft, updates, [up("cali1", 1)]);
    let report = dataplane.apply(&mut kernel);
    assert_eq!(report.problems.len(), 2, "one in each family");
    assert!(texts(&report.problems)[0].contains("GlobalNetworkPolicy/p: ingress rule 0"), "{report:?}");
    assert!(
        !kernel.netfilter.tables_v4.rules(Table::Filter, "cali-pi-gnp/p").expect("programmed").concat().contains("80")
    );

    dataplane.on_update(DesiredUpdate::Policy(policy_id("p"), good.into()));
    assert!(dataplane.apply(&mut kernel).is_complete());
}

#[test]
fn a_table_that_cannot_be_read_does_not_stop_the_others() {
    let updates = [profile("kns.default"), workload("w", pod("cali1", 1), &[])];
    let mut kernel = kernel(Backend::Nft);
    kernel.netfilter.tables_v4.set_incompatible(Table::Filter, true);
    let mut dataplane = dataplane(Backend::Nft, updates, [up("cali1", 1)]);
    let report = dataplane.apply(&mut kernel);
    assert!(matches!(report.problems[..], [DataplaneProblem::Table(_)]), "{:?}", report.problems);
    assert!(kernel.netfilter.tables_v6.rules(Table::Filter, "cali-tw-cali1").is_some());
    assert!(kernel.netfilter.tables_v4.rules(Table::Raw, "cali-PREROUTING").is_some());
    let id = workload_id("w");
    let status = |dataplane: &tortie_dataplane::Dataplane| {
        dataplane.workload_statuses().find(|(other, _)| **other == id).map(|(_, status)| status)
    };
    assert_eq!(status(&dataplane), Some(EndpointStatus::Down), "its policy is not in force");

    kernel.netfilter.tables_v4.set_incompatible(Table::Filter, false);
    assert!(apply_until_in_sync(&mut dataplane, &mut kernel).is_complete());
    assert_eq!(status(&dataplane), Some(EndpointStatus::Up));
}

#[test]
fn policies_and_profiles_that_are_missing_deny() {
    let mut kernel = kernel(Backend::Legacy);
    let mut dataplane = dataplane(Backend::Legacy, [workload("w", pod("cali1", 1), &["missing"])], [up("cali1", 1)]);
    let report = dataplane.apply(&mut kernel);
    let named =
        |problem: &DataplaneProblem| matches!(problem, DataplaneProblem::Chain { owners, .. } if owners.len() == 1);
    assert!(report.problems.iter().all(named), "{report:?}");
    let mut texts = texts(&report.problems);
    texts.retain(|text| {
        text.starts_with("policy GlobalNetworkPolicy/missing: ") || text.starts_with("profile kns.default: ")
    });
    assert_eq!(texts.len(), report.problems.len());
    for chain in ["cali-pi-gnp/missing", "cali-po-gnp/missing"] {
        let rules = kernel.netfilter.tables_v4.rules(Table::Filter, chain).expect(chain);
        assert!(rules.iter().all(|rule| rule.ends_with("-j DROP")));
    }
}

#[test]
fn members_that_no_set_can_hold_are_left_out_and_reported() {
    let mut kernel = kernel(Backend::Nft);
    let mut dataplane = dataplane(Backend::Nft, [set("s:x", &["10.0.0.0/8"]), set("bad id", &[])], []);
    let unknown = Members::Nets(vec![cidr("10.0.0.1/32")]);
    let delta = IpSetDelta { id: "s:unknown".into(), added: unknown, removed: Members::Nets(Vec::new()) };
    dataplane.on_update(DesiredUpdate::IpSetDelta(delta));
    let report = dataplane.apply(&mut kernel);
    let text = texts(&report.problems);
    assert!(text.len() == 2 && text[0].contains("bad id") && text[1].contains("s:unknown"), "{text:?}");
    assert_eq!(kernel.netfilter.sets.members("cali40s:x"), ["10.0.0.0/8"]);
}

#[test]
fn foreign_changes_are_repaired() {
    for backend in BACKENDS {
        let updates = [profile("kns.default"), workload("w", pod("cali1", 1), &[])];
        let mut kernel = kernel(backend);
        let mut dataplane = dataplane(backend, updates, [up("cali1", 1)]);
        apply_until_in_sync(&mut dataplane, &mut kernel);
        let before = kernel.state();
        kernel.netfilter.tables_v4.wipe(Table::Filter);
        kernel.netfilter.tables_v4.run(Table::Raw, "-F cali-PREROUTING").expect("possible");
        kernel.netfilter.sets.edit("add cali40this-host 10.9.9.9").expect("possible");
        kernel.routing.routes.clear();
        // A periodic check comes within minutes.
        for _ in 0..200 {
            let report = dataplane.apply(&mut kernel);
            let pause = report.next.expect("checks never end");
            tortie_dataplane::Clock::sleep(&mut kernel, pause.min(std::time::Duration::from_secs(10)));
        }
        assert_eq!(kernel.state(), before, "{backend}");
    }
}
