//! The text of a table without the dataplane, from the desired state and the libraries below it.

#![cfg(test)]

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;

use tortie::Node;
use tortie::iptables::{Backend, Features, Reconciler, ReconcilerConfig, Table};
use tortie::model::desired::DesiredUpdate;
use tortie::model::{Family, PolicyId};
use tortie::rules::{HostDispatch, Renderer, RulesConfig, TierGroups};

/// The `filter` table for the workloads among these.
fn filter_table(rules: RulesConfig, desired: &[DesiredUpdate]) -> Result<String, Box<dyn Error>> {
    let renderer = Renderer::new(rules);
    let config = ReconcilerConfig::new(Table::Filter, Family::V4, Backend::Nft);
    let mut table = Reconciler::new(config, Features::ALL);
    for hook in renderer.hooks().into_iter().filter(|hook| hook.table == Table::Filter) {
        table.set_hook(hook.kernel_chain, hook.position, hook.rules);
    }
    let mut chains = renderer.fixed_chains(Table::Filter, Family::V4);
    chains.extend(renderer.host_dispatch(HostDispatch::Filter, [], false));
    chains.push(renderer.cidr_block([], Family::V4));

    let policies: BTreeMap<&PolicyId, _> = desired
        .iter()
        .filter_map(|update| match update {
            DesiredUpdate::Policy(id, policy) => Some((id, policy)),
            _ => None,
        })
        .collect();
    for (id, policy) in &policies {
        let policy = renderer.policy(id, policy, Family::V4).ok_or("a staged policy")?;
        chains.extend([policy.inbound, policy.outbound]);
    }
    let mut interfaces = Vec::new();
    for update in desired {
        match update {
            DesiredUpdate::Profile(name, profile) => {
                let profile = renderer.profile(name, profile, Family::V4);
                chains.extend([profile.inbound, profile.outbound]);
            }
            DesiredUpdate::WorkloadEndpoint(_, workload) => {
                let endpoint = &workload.endpoint;
                let interface = endpoint.iface.ok_or("a workload without an interface")?;
                interfaces.push(interface);
                let selector_of = |id| policies.get(id).map(|policy| &*policy.selector);
                let tiers: Vec<_> = workload.tiers.iter().map(|tier| TierGroups::of(tier, selector_of)).collect();
                for group in tiers.iter().flat_map(|tier| tier.ingress.iter().chain(&tier.egress)) {
                    chains.push(renderer.policy_group(group));
                }
                chains.extend(renderer.workload_endpoint(interface, endpoint.state, &tiers, &endpoint.profiles, None));
            }
            _ => {}
        }
    }
    chains.extend(renderer.workload_dispatch(interfaces));
    chains.into_iter().for_each(|chain| table.update_chain(chain));
    Ok(table.render()?)
}

#[test]
fn a_table_is_the_same_with_and_without_the_dataplane() {
    let node = Node::new("demo-node");
    let rules = node.dataplane_config.rules.clone();
    let demo = node.read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/demo")).unwrap();
    let text = filter_table(rules, demo.desired()).unwrap();
    assert!(text.contains("-A cali-pi-np/shop/db-clients "), "{text}");
    assert_same_lines(&text, demo.render().table(Family::V4, Table::Filter).unwrap());
}

/// Fails by the first line that differs.
fn assert_same_lines(ours: &str, theirs: &str) {
    for (ours, theirs) in ours.lines().zip(theirs.lines()) {
        assert_eq!(ours, theirs);
    }
    assert_eq!(ours.lines().count(), theirs.lines().count());
}
