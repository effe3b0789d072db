//! Egress policy by domain name on real kernels, by both implementations of iptables.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use tortie_dataplane::{Dataplane, DataplaneConfig, DomainsConfig, LinkEvent, TrustedServer};
use tortie_dns::Settings;
use tortie_iptables::{Backend, PacketRate};
use tortie_lab::kernel_test;
use tortie_lab::netns::Namespace;
use tortie_lab::pods::{Lab, LabHost, LabOptions, Pod, interface_name};
use tortie_model::desired::{
    DesiredUpdate, IpSetType, IpSetUpdate, Members, Policy, RuleSets, Rules, TierPolicies, WorkloadEndpointState,
};
use tortie_model::{PolicyId, PolicyKind, Rule, RuleAction, TierDefaultAction, WorkloadEndpoint, WorkloadEndpointId};
use tortie_rules::RulesConfig;

use super::RealKernel;

const PORT: u16 = 80;

fn dataplane(backend: Backend, pods: &[Pod], names: &[String; 2]) -> Dataplane {
    let learner = Settings::default();
    let servers = vec![TrustedServer::Address { address: [192, 0, 2, 53].into(), port: 53 }];
    let reply_limit = PacketRate::new(10_000, 10_000).expect("in range");
    let domains = DomainsConfig { queue: 101, reply_limit, servers, cluster_domain: None, learner };
    let config = DataplaneConfig {
        domains: Some(domains),
        ..DataplaneConfig::new("node-1".into(), RulesConfig::default(), backend)
    };
    let mut dataplane = Dataplane::new(config);
    let patterns = Members::Domains(["a.io".parse().expect("a pattern")].into());
    let set = IpSetUpdate { id: "d:x".into(), set_type: IpSetType::Domains, members: patterns };
    dataplane.on_update(DesiredUpdate::IpSet(set));
    let id = PolicyId::new(PolicyKind::GlobalNetworkPolicy, "", "names");
    let rules = |sets: RuleSets| Rules::new([Rule::new(RuleAction::Allow)].into(), [sets].into()).expect("one each");
    let by_name = RuleSets { dst_domains: ["d:x".into()].into_iter().collect(), ..RuleSets::default() };
    let policy = Policy {
        source: Arc::default(),
        selector: "all()".into(),
        inbound: rules(RuleSets::default()),
        outbound: rules(by_name),
    };
    dataplane.on_update(DesiredUpdate::Policy(id.clone(), policy.into()));
    let ids: Arc<[PolicyId]> = [id].into();
    for (index, (pod, name)) in (7..).zip(pods.iter().zip(names)) {
        let tier = TierPolicies {
            name: "default".into(),
            default_action: Some(TierDefaultAction::Deny),
            ingress: Arc::clone(&ids),
            egress: Arc::clone(&ids),
        };
        let nets = |is_v4: bool| pod.addresses.iter().filter(move |address| address.is_ipv4() == is_v4);
        let endpoint = WorkloadEndpoint {
            iface: Some(name.parse().expect("an interface name")),
            ipv4_nets: nets(true).map(|address| tortie_model::Cidr::host(*address)).collect(),
            ipv6_nets: nets(false).map(|address| tortie_model::Cidr::host(*address)).collect(),
            ..WorkloadEndpoint::default()
        };
        let state = WorkloadEndpointState { endpoint: endpoint.into(), tiers: [tier].into(), computed: None };
        let id =
            WorkloadEndpointId { orchestrator: "k8s".into(), workload: name.as_str().into(), endpoint: "eth0".into() };
        dataplane.on_update(DesiredUpdate::WorkloadEndpoint(id, state));
        dataplane.on_link(LinkEvent::Up { name: name.parse().expect("an interface name"), index });
    }
    dataplane.on_update(DesiredUpdate::InSync);
    dataplane.on_links_in_sync();
    dataplane
}

fn connects(from: &Namespace, to: IpAddr) -> bool {
    let wait = Duration::from_millis(400);
    from.run(|| TcpStream::connect_timeout(&SocketAddr::new(to, PORT), wait).is_ok()).expect("entered")
}

kernel_test! {
    fn a_learned_address_opens_one_endpoint_alone() {
        let pods = [("a", 11), ("b", 12)].map(|(name, last)| {
            let addresses = [format!("10.65.0.{last}"), format!("fd00:65::{last}")];
            Pod::new("default", name, addresses.map(|address| address.parse().expect("an address")), [])
        });
        let lab = Lab::new(&pods, &LabOptions::default()).expect("a laboratory");
        let names = pods.each_ref().map(|pod| interface_name(&pod.place).expect("a pod has one"));
        let space = |name| lab.namespace(&LabHost::pod("default", name)).expect("it stands");
        let (a, b) = (space("a"), space("b"));
        let listen = |space: &Namespace| space.run(|| TcpListener::bind(("::", PORT))).expect("entered").expect("bound");
        let _listeners = [listen(a), listen(b)];
        for backend in [Backend::Nft, Backend::Legacy] {
            let interfaces = names.each_ref().map(String::as_str);
            let mut kernel = RealKernel::new(lab.node(), backend, interfaces);
            let report = dataplane(backend, &pods, &names).apply(&mut kernel);
            assert!(report.is_complete(), "{backend:?}: {:?}", report.problems);
            for (family, index) in [("4", 0), ("6", 1)] {
                let to = |pod: &Pod| pod.addresses[index];
                assert!(!connects(a, to(&pods[1])) && !connects(b, to(&pods[0])), "{backend:?} {family}");
                let set = format!("cali{family}0d:x.0");
                lab.node().shell(&format!("ipset add {set} {},{}", to(&pods[1]), names[0])).expect("the set exists");
                // The other endpoint has not learned the address of the first one.
                assert!(connects(a, to(&pods[1])), "{backend:?} {family}");
                assert!(!connects(b, to(&pods[0])), "{backend:?} {family}");
            }
            // A restart writes nothing, and leaves the members.
            let mut kernel = RealKernel::new(lab.node(), backend, interfaces);
            let report = dataplane(backend, &pods, &names).apply(&mut kernel);
            assert!(report.is_complete(), "{backend:?}: {:?}", report.problems);
            assert_eq!(kernel.writes, [""; 0], "{backend:?}");
            assert!(connects(a, pods[1].addresses[0]), "{backend:?}");
            for command in ["iptables", "ip6tables"] {
                let suffix = if backend == Backend::Nft { "nft" } else { "legacy" };
                for table in ["raw", "mangle", "nat", "filter"] {
                    let command = format!("{command}-{suffix} -t {table}");
                    lab.node().shell(&format!("{command} -F; {command} -X")).expect("an empty table");
                }
            }
            lab.node().shell("ipset destroy").expect("no rule is left");
        }
    }
}
