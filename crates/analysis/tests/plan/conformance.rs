//! For each step of each policy case, a plan lists exactly the flows whose verdict the step
//! changes.
#![allow(clippy::unwrap_used, reason = "an unexpected value fails the test")]

use std::collections::BTreeMap;
use std::path::Path;

use tortie_analysis::plan::{Options, Plan};
use tortie_calc::GraphConfig;
use tortie_classes::{L4Detail, evaluate::Settings};
use tortie_lab::cases::{self, Case, Step};
use tortie_lab::pods::{self, Flow};
use tortie_model::{Family, Key, Update};

const NODES: usize = 2;

/// Returns the flows of both steps with their expected change. Flows of a pod with itself meet no
/// policy.
fn expected<'a>(before: &'a Step, after: &'a Step) -> impl Iterator<Item = (&'a Flow, Option<bool>)> {
    let known: BTreeMap<&Flow, bool> =
        before.expected.iter().map(|(flow, verdict)| (flow, verdict.allowed())).collect();
    let is_clear =
        |flow: &Flow| flow.from != flow.to && !before.contested.contains(flow) && !after.contested.contains(flow);
    after.expected.iter().filter(move |(flow, _)| is_clear(flow)).filter_map(move |(flow, verdict)| {
        let (was, is) = (*known.get(flow)?, verdict.allowed());
        Some((flow, (was != is).then_some(is)))
    })
}

fn name(place: &pods::LabHost) -> String {
    let pods::LabHost::Pod { namespace, name } = place else { panic!("cases are about pods, not {place}") };
    format!("{namespace}/{name}")
}

/// Returns the planned change of a flow: `Some(true)` if it opens.
fn planned(plan: &Plan, flow: &Flow) -> Option<bool> {
    let (from, to) = (name(&flow.from), name(&flow.to));
    let protocol = match flow.port.protocol {
        pods::Protocol::Tcp => 6,
        pods::Protocol::Udp => 17,
        pods::Protocol::Sctp => 132,
    };
    let family = if flow.family == pods::Family::V4 { Family::V4 } else { Family::V6 };
    let named = |names: &[std::sync::Arc<str>], name: &str| names.iter().any(|other| **other == *name);
    let directions: Vec<bool> = plan
        .connections
        .iter()
        .filter(|changed| {
            named(&changed.from.workloads, &from)
                && named(&changed.to.workloads, &to)
                && changed.packets.families.contains(&family)
                && changed.packets.traffic.contains(protocol, L4Detail::Port(flow.port.number))
                && changed.packets.source_ports.is_none_or(|(first, last)| (first..=last).contains(&40000))
        })
        .map(|changed| changed.packets.opens)
        .collect();
    assert!(directions.len() < 2, "{flow}: {:#?}", plan.connections);
    directions.first().copied()
}

fn agrees(case: &Case) -> (usize, usize) {
    let options = Options::new(GraphConfig::new("any".into()), Settings::default());
    let mut followed = cases::CaseDirectory::new(NODES);
    let mut objects: BTreeMap<Key, Update> = BTreeMap::new();
    let (mut checked, mut changed) = (0, 0);
    for (number, step) in case.steps.iter().enumerate() {
        let change = followed.follow(step);
        if let Some(before) = number.checked_sub(1).map(|before| &case.steps[before]) {
            let plan =
                tortie_analysis::plan::plan(objects.values().cloned().collect(), change.clone(), &options).unwrap();
            for (flow, expected) in expected(before, step) {
                assert_eq!(planned(&plan, flow), expected, "{}, step {number}, {flow}: {plan:#?}", case.name);
                checked += 1;
                changed += usize::from(expected.is_some());
            }
        }
        for update in change {
            update.apply_to(&mut objects);
        }
    }
    (checked, changed)
}

fn all_agree(file: &Path) {
    let counts = cases::read(file).unwrap().iter().map(agrees).reduce(|all, one| (all.0 + one.0, all.1 + one.1));
    let (checked, changed) = counts.unwrap();
    println!("{}: {checked} flows, of which {changed} change", file.display());
    assert!(changed > 0);
}

#[test]
fn steps_of_network_policies() {
    let [generated, _] = cases::bundled();
    all_agree(&generated);
}

#[test]
fn steps_of_the_end_to_end_suite() {
    let [_, end_to_end] = cases::bundled();
    all_agree(&end_to_end);
}

#[test]
fn steps_of_admin_policies() {
    all_agree(&cases::bundled_admin());
}
