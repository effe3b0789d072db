//! Prints the restore input for a clean node with two workloads and a host endpoint: `render sets`,
//! or `render` with the number of an IP version and the name of a table, such as `render 4 filter`.

use std::error::Error;
use std::sync::Arc;

use tortie_dataplane::{Dataplane, DataplaneConfig};
use tortie_iptables::Backend;
use tortie_model::desired::{
    DesiredUpdate, HostEndpointState, IpSetType, IpSetUpdate, Members, Policy, RuleSets, Rules, TierList, TierPolicies,
    WorkloadEndpointState,
};
use tortie_model::{
    HostEndpoint, PolicyId, PolicyKind, Rule, RuleAction, TierName, WorkloadEndpoint, WorkloadEndpointId,
};
use tortie_rules::{Marks, RulesConfig};

fn main() -> Result<(), Box<dyn Error>> {
    let rules = RulesConfig::with_mark_mask(Marks::DEFAULT_MASK)?;
    let mut dataplane = Dataplane::new(DataplaneConfig::new("node-1".into(), rules, Backend::Nft));
    for update in updates()? {
        dataplane.on_update(update);
    }
    let rendered = dataplane.render();

    let words: Vec<String> = std::env::args().skip(1).collect();
    match &words[..] {
        [selection] if selection == "sets" => rendered.ip_sets.iter().for_each(|(_, text)| print!("{text}")),
        [family, table] => {
            let wanted =
                rendered.tables.iter().filter(|(f, t, _)| f.number().to_string() == *family && t.as_str() == table);
            wanted.for_each(|(_, _, text)| print!("{text}"));
        }
        _ => return Err("usage: render sets | render 4|6 raw|mangle|nat|filter".into()),
    }
    Ok(())
}

fn updates() -> Result<Vec<DesiredUpdate>, Box<dyn Error>> {
    let clients = Members::Nets(vec!["10.1.0.0/16".parse()?, "fd01::/64".parse()?]);
    let mut updates =
        vec![DesiredUpdate::IpSet(IpSetUpdate { id: "s:clients".into(), set_type: IpSetType::Net, members: clients })];
    let allow = Rule::new(RuleAction::Allow);
    let from_clients = RuleSets { src: ["s:clients".into()].into_iter().collect(), ..RuleSets::default() };
    let ids: Arc<[PolicyId]> = ["a", "b"].map(|name| PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", name)).into();
    for id in ids.iter() {
        let policy = Policy {
            source: Arc::default(),
            selector: "all()".into(),
            inbound: Rules::new([allow.clone()].into(), [from_clients.clone()].into())?,
            outbound: Rules::default(),
        };
        updates.push(DesiredUpdate::Policy(id.clone(), policy.into()));
    }
    let tiers: TierList =
        [TierPolicies { name: TierName::default_tier(), default_action: None, ingress: Arc::clone(&ids), egress: ids }]
            .into();
    for (name, address) in [("cali1", "10.65.0.1/32"), ("cali2", "10.65.0.2/32")] {
        let id = WorkloadEndpointId { orchestrator: "k8s".into(), workload: name.into(), endpoint: "eth0".into() };
        let endpoint = WorkloadEndpoint {
            iface: Some(name.parse()?),
            ipv4_nets: [address.parse()?].into_iter().collect(),
            ..WorkloadEndpoint::default()
        };
        let state = WorkloadEndpointState { endpoint: endpoint.into(), tiers: Arc::clone(&tiers), computed: None };
        updates.push(DesiredUpdate::WorkloadEndpoint(id, state));
    }
    let endpoint = HostEndpoint { iface: Some("eth0".parse()?), ..HostEndpoint::default() };
    let state = HostEndpointState {
        endpoint: endpoint.into(),
        tiers: Arc::clone(&tiers),
        untracked_tiers: Arc::clone(&tiers),
        pre_dnat_tiers: Arc::clone(&tiers),
        forward_tiers: tiers,
        qos_policies: [].into(),
    };
    updates.push(DesiredUpdate::HostEndpoint("uplink".into(), state));
    Ok(updates)
}
