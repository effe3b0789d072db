//! Egress policy by domain name: sets, rules, learning endpoints, and trusted servers.
#![allow(clippy::unwrap_used, reason = "values of a test are valid")]

use std::sync::Arc;
use std::time::Duration;

use tortie_dataplane::fake::FakeKernel;
use tortie_dataplane::{
    ApplyReport, Dataplane, DataplaneConfig, DomainsConfig, LearnerCommand, NftablesConfig, Shard, TrustedServer,
};
use tortie_dns::{Scope, Settings};
use tortie_iptables::{Backend, Table};
use tortie_model::desired::{
    DesiredUpdate, IpPortMember, IpSetType, IpSetUpdate, Members, Policy, PortProtocol, RuleSets, Rules,
};
use tortie_model::{Family, NamespacedName, PolicyKind, Rule, RuleAction, Service, ServicePort};
use tortie_netfilter::PacketRate;
use tortie_rules::{PacketFilter, PolicyBackend};

use crate::common::{
    apply_until_in_sync, config, host, host_endpoint, kernel, pod, policy_id, profile, set, texts, up, workload,
    workload_id,
};

const KUBE_DNS: &str = "svc:kube-system/kube-dns";

fn with_domains(backend: Backend) -> DataplaneConfig {
    let servers = vec![
        TrustedServer::Service {
            name: NamespacedName::new("kube-system", "kube-dns"),
            port: None,
            endpoints: KUBE_DNS.into(),
        },
        TrustedServer::Address { address: "169.254.20.10".parse().unwrap(), port: 53 },
    ];
    let domains = DomainsConfig {
        queue: 101,
        reply_limit: PacketRate::new(1000, 1000).unwrap(),
        servers,
        cluster_domain: Some("cluster.local".parse().unwrap()),
        learner: Settings::default(),
    };
    DataplaneConfig { domains: Some(domains), ..config(backend) }
}

fn started(config: DataplaneConfig, updates: impl IntoIterator<Item = DesiredUpdate>) -> Dataplane {
    let mut dataplane = Dataplane::new(config);
    updates.into_iter().for_each(|update| dataplane.on_update(update));
    for number in 1..=4 {
        dataplane.on_link(up(&format!("cali{number}"), number));
    }
    dataplane.on_link(up("eth0", 9));
    dataplane.on_update(DesiredUpdate::InSync);
    dataplane.on_links_in_sync();
    dataplane
}

/// A policy that allows egress to names, and to members of other sets.
fn by_name(name: &str, domains: &[&str], dst: &[&str]) -> DesiredUpdate {
    DesiredUpdate::Policy(policy_id(name), Arc::new(policy(domains, dst)))
}

fn policy(domains: &[&str], dst: &[&str]) -> Policy {
    let ids = |ids: &[&str]| ids.iter().map(|id| (*id).into()).collect();
    let sets = RuleSets { dst: ids(dst), dst_domains: ids(domains), ..RuleSets::default() };
    let outbound = Rules::new([Rule::new(RuleAction::Allow)].into(), [sets].into()).unwrap();
    Policy { source: Arc::default(), selector: "all()".into(), inbound: Rules::default(), outbound }
}

fn patterns(id: &str, names: &[&str]) -> DesiredUpdate {
    let members = Members::Domains(names.iter().map(|name| name.parse().unwrap()).collect());
    DesiredUpdate::IpSet(IpSetUpdate { id: id.into(), set_type: IpSetType::Domains, members })
}

fn interface(name: &str) -> Scope {
    Scope::Interface(name.parse().unwrap())
}

fn rules(kernel: &FakeKernel, table: Table, chain: &str) -> String {
    let rules = kernel.tables(Family::V4).rules(table, chain).unwrap_or_default().join("\n");
    without_comments(&rules).join("\n")
}

fn without_comments(rules: &str) -> Vec<String> {
    let without = |line: &str| {
        let mut line = line.to_owned();
        while let Some(at) = line.find("-m comment --comment \"") {
            let begin = at + "-m comment --comment \"".len();
            let Some(len) = line[begin..].find('"') else { return line };
            line.replace_range(at..(begin + len + 1).min(line.len()), "");
        }
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    rules.lines().map(without).collect()
}

fn set_names(kernel: &FakeKernel) -> Vec<&str> {
    let names = kernel.netfilter.sets.names().into_iter();
    names.filter(|name| name.contains("0d:") || name.contains("0dns-")).collect()
}

fn applied(dataplane: &mut Dataplane, kernel: &mut FakeKernel) -> ApplyReport {
    let report = apply_until_in_sync(dataplane, kernel);
    assert_eq!(texts(&report.problems), [""; 0]);
    report
}

fn kube_dns(cluster_ip: &str) -> DesiredUpdate {
    let port = ServicePort { name: "dns".into(), port: 53, protocol: "UDP".into(), node_port: 0 };
    let service = Service { cluster_ips: [cluster_ip.into()].into(), ports: [port].into(), ..Service::default() };
    DesiredUpdate::Service(NamespacedName::new("kube-system", "kube-dns"), Arc::new(service))
}

fn backends(address: &str) -> DesiredUpdate {
    let member = IpPortMember::new(address.parse().unwrap(), PortProtocol::Udp, 5353);
    let members = Members::IpPorts(vec![member]);
    DesiredUpdate::IpSet(IpSetUpdate { id: KUBE_DNS.into(), set_type: IpSetType::IpAndPort, members })
}

fn world() -> Vec<DesiredUpdate> {
    vec![
        profile("kns.default"),
        kube_dns("10.96.0.10"),
        backends("10.65.0.53"),
        patterns("d:x", &["a.io", "*.b.io"]),
        by_name("names", &["d:x"], &[]),
        workload("one", pod("cali1", 1), &["names"]),
        workload("two", pod("cali2", 2), &[]),
    ]
}

#[test]
fn a_node_without_names_has_no_trace_of_them() {
    for backend in [Backend::Legacy, Backend::Nft] {
        let updates = || [profile("kns.default"), workload("one", pod("cali1", 1), &[])];
        let (mut with, mut without) = (kernel(backend), kernel(backend));
        applied(&mut started(with_domains(backend), updates()), &mut with);
        applied(&mut started(config(backend), updates()), &mut without);
        assert_eq!(with.state(), without.state());
        assert_eq!(with.learner.unwrap().commands, []);
    }
}

#[test]
fn rules_match_learned_addresses_and_answers_are_queued() {
    let mut kernel = kernel(Backend::Nft);
    let mut dataplane = started(with_domains(Backend::Nft), world());
    applied(&mut dataplane, &mut kernel);
    assert_eq!(
        rules(&kernel, Table::Filter, "cali-po-gnp/names"),
        "-m set --match-set cali40d:x.0 dst,src -j MARK --set-xmark 0x10000/0x10000"
    );
    let postrouting = rules(&kernel, Table::Mangle, "cali-POSTROUTING");
    assert!(postrouting.starts_with("-m set --match-set cali40dns-clients dst -j cali-dns-limit\n"), "{postrouting}");
    assert_eq!(
        rules(&kernel, Table::Mangle, "cali-dns-limit"),
        "-m set --match-set cali40dns-servers src,src -m hashlimit --hashlimit-above 1000/sec \
         --hashlimit-burst 1000 --hashlimit-mode dstip --hashlimit-name cdns1000-1000 -j RETURN\n\
         -j cali-dns-queue"
    );
    assert_eq!(
        rules(&kernel, Table::Mangle, "cali-dns-queue"),
        "-m set --match-set cali40dns-servers src,src -m conntrack --ctstate ESTABLISHED \
         -m conntrack --ctdir REPLY -j NFQUEUE --queue-num 101 --queue-bypass\n\
         -m set --match-set cali40dns-servers src,src -m conntrack --ctstate UNTRACKED \
         -m addrtype --src-type LOCAL -j NFQUEUE --queue-num 101 --queue-bypass"
    );
    let sets = &kernel.netfilter.sets;
    assert_eq!(sets.members("cali40dns-clients"), ["10.65.0.1"]);
    assert_eq!(sets.members("cali60dns-clients"), ["fd00::1"]);
    assert_eq!(
        sets.members("cali40dns-servers"),
        [
            "10.65.0.53,udp:5353",
            "10.96.0.10,tcp:53",
            "10.96.0.10,udp:53",
            "169.254.20.10,tcp:53",
            "169.254.20.10,udp:53"
        ]
    );
    let learner = kernel.learner.as_ref().unwrap();
    assert_eq!(learner.scopes.keys().copied().collect::<Vec<_>>(), [interface("cali1")]);
    assert_eq!(learner.scopes[&interface("cali1")].2, ["d:x".into()]);
    assert_eq!(learner.sets["d:x"].len(), 2);
    assert!(learner.settings.is_some() && learner.cluster.is_some());

    // Nothing is written again, not even by another process.
    kernel.reset_writes();
    applied(&mut started(with_domains(Backend::Nft), world()), &mut kernel);
    assert_eq!((kernel.writes().table_restores, kernel.writes().set_restores), (0, 0));
    assert_eq!(kernel.writes().set_destroys, 0);
}

#[test]
fn nftables_limits_answers_and_leaves_no_server_to_a_flow_table() {
    let mut config = with_domains(Backend::Nft);
    config.nftables = Some(NftablesConfig::default());
    let offloading = tortie_rules::NftablesConfig { offload_flows: true, ..Default::default() };
    config.rules.packet_filter = PacketFilter::Nftables(offloading);
    let mut kernel = kernel(Backend::Nft);
    let mut dataplane = started(config.clone(), world());
    let written = |kernel: &FakeKernel| {
        let transactions = &kernel.netfilter.nftables[&Family::V4].transactions;
        transactions.iter().map(ToString::to_string).collect::<String>()
    };
    applied(&mut dataplane, &mut kernel);
    let text = written(&kernel);
    for expected in [
        "add set ip calico cali40dns-buckets1000-1000 { type ipv4_addr ; size 65535 ; flags dynamic,timeout ; timeout 10s ; }",
        "ip saddr . meta l4proto . th sport @cali40dns-servers update @cali40dns-buckets1000-1000 { ip daddr limit rate over \
         1000/second burst 1000 packets } counter return",
        "add element ip calico cali40no-flow-offload { 10.65.0.53 }",
        "add element ip calico cali40no-flow-offload { 10.96.0.10 }",
        "add element ip calico cali40no-flow-offload { 169.254.20.10 }",
    ] {
        assert!(text.contains(expected), "{expected} in {text}");
    }
    let before = text.len();
    dataplane.on_update(backends("10.65.0.54"));
    applied(&mut dataplane, &mut kernel);
    let text = written(&kernel).split_off(before);
    for expected in [
        "add element ip calico cali40no-flow-offload { 10.65.0.54 }",
        "delete element ip calico cali40no-flow-offload { 10.65.0.53 }",
    ] {
        assert!(text.contains(expected), "{expected} in {text}");
    }
    // Buckets keep the limit with which the kernel made them, so that a restart with another limit
    // makes other ones.
    let before = written(&kernel).len();
    config.domains.as_mut().unwrap().reply_limit = PacketRate::new(500, 50).unwrap();
    let mut dataplane = started(config, world());
    applied(&mut dataplane, &mut kernel);
    let text = written(&kernel).split_off(before);
    for expected in ["add set ip calico cali40dns-buckets500-50 {", "delete set ip calico cali40dns-buckets1000-1000"] {
        assert!(text.contains(expected), "{expected} in {text}");
    }
    // While nothing learns, servers are as other hosts.
    let before = written(&kernel).len();
    let end = [set("s:x", &["10.0.0.0/8"]), by_name("names", &[], &["s:x"])];
    end.into_iter().for_each(|update| dataplane.on_update(update));
    applied(&mut dataplane, &mut kernel);
    let text = written(&kernel).split_off(before);
    for expected in ["delete element ip calico cali40no-flow-offload", "delete set ip calico cali40dns-buckets500-50"] {
        assert!(text.contains(expected), "{expected} in {text}");
    }
}

#[test]
fn everything_goes_with_the_last_rule_by_name() {
    for nftables in [false, true] {
        let mut kernel = kernel(Backend::Nft);
        let mut plain = kernel.clone();
        let configured = |mut config: DataplaneConfig| {
            if nftables {
                config.nftables = Some(NftablesConfig::default());
                config.rules.packet_filter = PacketFilter::Nftables(tortie_rules::NftablesConfig::default());
            }
            config
        };
        let mut dataplane = started(configured(with_domains(Backend::Nft)), world());
        applied(&mut dataplane, &mut kernel);
        assert!(!kernel.learner.as_ref().unwrap().scopes.is_empty());
        let without = by_name("names", &[], &["s:x"]);
        let end = [set("s:x", &["10.0.0.0/8"]), without, DesiredUpdate::IpSetRemove("d:x".into())];
        end.iter().cloned().for_each(|update| dataplane.on_update(update));
        applied(&mut dataplane, &mut kernel);

        let learner = kernel.learner.as_ref().unwrap();
        assert!(learner.scopes.is_empty() && learner.sets.is_empty());
        let mut same = started(
            configured(config(Backend::Nft)),
            world().into_iter().filter(|update| !matches!(update, DesiredUpdate::IpSet(set) if set.id == "d:x".into())),
        );
        end.into_iter().for_each(|update| same.on_update(update));
        applied(&mut same, &mut plain);
        assert_eq!(kernel.state(), plain.state());
        assert_eq!(set_names(&kernel), [""; 0]);
    }
}

#[test]
fn a_scope_is_emptied_before_the_rules_of_another_endpoint() {
    let mut kernel = kernel(Backend::Nft);
    let mut dataplane = started(with_domains(Backend::Nft), world());
    applied(&mut dataplane, &mut kernel);
    let scope = interface("cali1");
    let owner = |kernel: &FakeKernel| kernel.learner.as_ref().unwrap().scopes.get(&scope).map(|(owner, ..)| *owner);
    let mut seen = vec![owner(&kernel)];
    let changes: [&dyn Fn(&mut Dataplane); 4] = [
        &|dataplane| dataplane.on_update(workload("one", pod("cali1", 7), &["names"])),
        &|dataplane| dataplane.on_link(up("cali1", 77)),
        &|dataplane| {
            dataplane.on_update(DesiredUpdate::WorkloadEndpointRemove(workload_id("one")));
            dataplane.on_update(workload("three", pod("cali1", 7), &["names"]));
        },
        &|dataplane| dataplane.on_update(DesiredUpdate::WorkloadEndpointRemove(workload_id("three"))),
    ];
    for change in changes {
        change(&mut dataplane);
        applied(&mut dataplane, &mut kernel);
        seen.push(owner(&kernel));
    }
    assert_eq!(seen.pop(), Some(None));
    assert!(seen.iter().all(Option::is_some));
    assert!(seen.windows(2).all(|pair| pair[0] != pair[1]), "{seen:?}");
    // The same endpoint has the same number in another process.
    let again = |world: Vec<DesiredUpdate>| {
        let mut kernel = crate::common::kernel(Backend::Nft);
        applied(&mut started(with_domains(Backend::Nft), world), &mut kernel);
        owner(&kernel)
    };
    assert_eq!(again(world()), seen[0]);
}

#[test]
fn former_sets_are_left_only_after_the_rules() {
    let mut kernel = kernel(Backend::Nft);
    let mut dataplane = started(with_domains(Backend::Nft), world());
    applied(&mut dataplane, &mut kernel);
    kernel.learner.as_mut().unwrap().commands.clear();
    dataplane.on_update(patterns("d:y", &["y.io"]));
    dataplane.on_update(by_name("names", &["d:y"], &[]));
    dataplane.on_update(DesiredUpdate::IpSetRemove("d:x".into()));
    applied(&mut dataplane, &mut kernel);
    let commands = &kernel.learner.as_ref().unwrap().commands;
    let sets: Vec<Vec<String>> = commands
        .iter()
        .filter_map(|command| match command {
            LearnerCommand::SetScope { sets, .. } => Some(sets.iter().map(ToString::to_string).collect()),
            _ => None,
        })
        .collect();
    assert_eq!(sets, [vec!["d:x", "d:y"], vec!["d:y"]]);
    assert_eq!(commands.last(), Some(&LearnerCommand::RemoveDomains("d:x".into())));
    assert_eq!(
        set_names(&kernel),
        [
            "cali40d:y.0",
            "cali40dns-clients",
            "cali40dns-servers",
            "cali60d:y.0",
            "cali60dns-clients",
            "cali60dns-servers"
        ]
    );
}

/// The domains of network sets have a set whose id stays when they change.
#[test]
fn other_patterns_of_a_known_set_reach_the_learner() {
    let mut kernel = kernel(Backend::Nft);
    let mut dataplane = started(with_domains(Backend::Nft), world());
    applied(&mut dataplane, &mut kernel);
    let mut told = |names: &[&str]| {
        kernel.learner.as_mut().unwrap().commands.clear();
        dataplane.on_update(patterns("d:x", names));
        applied(&mut dataplane, &mut kernel);
        std::mem::take(&mut kernel.learner.as_mut().unwrap().commands)
    };
    for names in [&["a.io", "b.io"][..], &["b.io"], &["a.io"]] {
        let patterns = names.iter().map(|name| name.parse().unwrap()).collect();
        assert_eq!(told(names), [LearnerCommand::SetDomains { set: "d:x".into(), patterns }]);
    }
    assert_eq!(told(&["a.io"]), []);
}

#[test]
fn servers_follow_their_service() {
    let mut kernel = kernel(Backend::Nft);
    let late: Vec<DesiredUpdate> =
        world().into_iter().filter(|update| !matches!(update, DesiredUpdate::Service(..))).collect();
    let mut dataplane = started(with_domains(Backend::Nft), late);
    let report = apply_until_in_sync(&mut dataplane, &mut kernel);
    assert_eq!(texts(&report.problems), ["trusted DNS service kube-system/kube-dns does not exist"]);
    dataplane.on_update(kube_dns("10.96.0.99"));
    dataplane.on_update(backends("10.65.0.54"));
    applied(&mut dataplane, &mut kernel);
    let servers = kernel.netfilter.sets.members("cali40dns-servers");
    assert_eq!(&servers[..3], ["10.65.0.54,udp:5353", "10.96.0.99,tcp:53", "10.96.0.99,udp:53"]);
}

#[test]
fn the_host_learns_for_itself() {
    let mut kernel = kernel(Backend::Nft);
    let updates = [
        patterns("d:x", &["a.io"]),
        by_name("names", &["d:x"], &[]),
        kube_dns("10.96.0.10"),
        host("eth0", host_endpoint(Some("eth0"), &[]), &["names"]),
    ];
    let mut dataplane = started(with_domains(Backend::Nft), updates);
    applied(&mut dataplane, &mut kernel);
    assert_eq!(
        rules(&kernel, Table::Filter, "cali-po-gnp/names"),
        "-m addrtype --src-type LOCAL -m set --match-set cali40d:x.h dst \
         -j MARK --set-xmark 0x10000/0x10000"
    );
    assert_eq!(rules(&kernel, Table::Mangle, "INPUT"), "-j cali-dns-limit");
    assert!(!rules(&kernel, Table::Mangle, "cali-POSTROUTING").contains("dns"));
    dataplane.on_update(DesiredUpdate::HostEndpointRemove("eth0".into()));
    applied(&mut dataplane, &mut kernel);
    assert!(!kernel.state().contains("dns-"), "{}", kernel.state());
}

#[test]
fn answers_are_queued_beside_programs_that_match_learned_addresses() {
    let mut kernel = kernel(Backend::Nft);
    let mut config = with_domains(Backend::Nft);
    config.rules.policy_backend = PolicyBackend::Programs;
    let mut dataplane = started(config, world());
    dataplane.set_policy_in_force(true, vec![]);
    applied(&mut dataplane, &mut kernel);
    let postrouting = rules(&kernel, Table::Mangle, "cali-POSTROUTING");
    assert!(postrouting.starts_with("-m set --match-set cali40dns-clients dst -j cali-dns-limit"), "{postrouting}");
    assert!(rules(&kernel, Table::Mangle, "cali-dns-queue").contains("--queue-num 101"));
    assert_eq!(kernel.netfilter.sets.members("cali40dns-clients"), ["10.65.0.1"]);
    assert!(!set_names(&kernel).iter().any(|name| name.contains("0d:")), "{:?}", set_names(&kernel));
    assert!(!kernel.state().contains("cali-po-"), "{}", kernel.state());
    let learner = kernel.learner.as_ref().unwrap();
    assert_eq!(learner.scopes[&interface("cali1")].2, ["d:x".into()]);
    assert_eq!(learner.sets["d:x"].len(), 2);

    // The learner gets other sets before programs do.
    dataplane.on_update(patterns("d:y", &["a.io", "b.io"]));
    dataplane.on_update(by_name("names", &["d:y"], &[]));
    dataplane.prepare_programs(&mut kernel);
    let learner = kernel.learner.as_ref().unwrap();
    assert_eq!(learner.scopes[&interface("cali1")].2, ["d:x".into(), "d:y".into()]);
    assert_eq!(learner.sets["d:y"].len(), 2);
    dataplane.on_update(DesiredUpdate::IpSetRemove("d:x".into()));
    applied(&mut dataplane, &mut kernel);
    let learner = kernel.learner.as_ref().unwrap();
    assert_eq!(learner.scopes[&interface("cali1")].2, ["d:y".into()]);
    assert!(!learner.sets.contains_key("d:x"));

    // The host learns as well.
    dataplane.on_update(host("eth0", host_endpoint(Some("eth0"), &[]), &["names"]));
    applied(&mut dataplane, &mut kernel);
    assert_eq!(rules(&kernel, Table::Mangle, "INPUT"), "-j cali-dns-limit");
    assert!(kernel.learner.as_ref().unwrap().scopes.contains_key(&Scope::Host));
    dataplane.on_update(DesiredUpdate::HostEndpointRemove("eth0".into()));
    dataplane.on_update(DesiredUpdate::PolicyRemove(policy_id("names")));
    dataplane.on_update(DesiredUpdate::IpSetRemove("d:y".into()));
    dataplane.on_update(workload("one", pod("cali1", 1), &[]));
    applied(&mut dataplane, &mut kernel);
    assert!(!kernel.state().contains("dns-"), "{}", kernel.state());
    assert!(kernel.learner.unwrap().scopes.is_empty());
}

#[test]
fn every_64_interfaces_have_a_set_and_a_rule() {
    let names: Vec<String> = (0..130).map(|number| format!("cali{number:03}")).collect();
    let mut kernel = FakeKernel::new(Backend::Nft, names.iter().map(String::as_str));
    let mut dataplane = started(with_domains(Backend::Nft), world().into_iter().take(5));
    let endpoint = |number: usize| {
        let mut endpoint = pod(&names[number], 1);
        endpoint.ipv4_nets = [format!("10.66.0.{number}/32").parse().unwrap()].into_iter().collect();
        endpoint.ipv6_nets = [].into_iter().collect();
        workload(&names[number], endpoint, &["names"])
    };
    let parts = |kernel: &FakeKernel| {
        let rules = rules(kernel, Table::Filter, "cali-po-gnp/names");
        (0..4).filter(|part| rules.contains(&format!("cali40d:x.{part} dst,src"))).count()
    };
    for (number, expected) in [(64, 1), (65, 2), (129, 3)] {
        (0..number).for_each(|number| dataplane.on_update(endpoint(number)));
        applied(&mut dataplane, &mut kernel);
        assert_eq!(parts(&kernel), expected, "{number} endpoints");
    }
    let shards = |kernel: &FakeKernel| {
        let mut counts = [0_usize; 4];
        let scopes = kernel.learner.as_ref().unwrap().scopes.values();
        scopes.for_each(|(_, Shard(shard), _)| counts[usize::from(*shard)] += 1);
        counts
    };
    assert_eq!(shards(&kernel), [64, 64, 1, 0]);
    // A free number is used again; the last shard goes with its last interface.
    dataplane.on_update(DesiredUpdate::WorkloadEndpointRemove(workload_id(&names[3])));
    dataplane.on_update(DesiredUpdate::WorkloadEndpointRemove(workload_id(&names[128])));
    applied(&mut dataplane, &mut kernel);
    dataplane.on_update(endpoint(129));
    applied(&mut dataplane, &mut kernel);
    assert_eq!((parts(&kernel), shards(&kernel)), (2, [64, 64, 0, 0]));
    assert_eq!(set_names(&kernel).iter().filter(|name| name.contains("0d:")).count(), 4);
}

#[test]
fn other_destinations_are_an_alternative() {
    let mut kernel = kernel(Backend::Nft);
    let mut updates = world();
    updates.push(set("s:nets", &["192.0.2.0/24"]));
    updates.push(by_name("names", &["d:x"], &["s:nets"]));
    applied(&mut started(with_domains(Backend::Nft), updates.clone()), &mut kernel);
    let allow = "-j MARK --set-xmark 0x10000/0x10000";
    let marked = "-m mark --mark 0x10000/0x10000 -j RETURN";
    let by_set = format!("-m set --match-set cali40s:nets dst {allow}");
    assert_eq!(
        rules(&kernel, Table::Filter, "cali-po-gnp/names"),
        format!("{by_set}\n{marked}\n-m set --match-set cali40d:x.0 dst,src {allow}")
    );
    // Without a learner the rule allows the other destinations only, and is named.
    kernel.learner = None;
    let mut dataplane = started(with_domains(Backend::Nft), updates);
    let report = apply_until_in_sync(&mut dataplane, &mut kernel);
    assert!(
        report
            .problems
            .iter()
            .all(|problem| texts(std::slice::from_ref(problem))[0].contains("no destination by name"))
    );
    assert_eq!(report.problems.len(), 2, "one in each family");
    assert_eq!(rules(&kernel, Table::Filter, "cali-po-gnp/names"), by_set);
    assert_eq!(set_names(&kernel), [""; 0]);
}

#[test]
fn a_rule_keeps_other_destinations_where_a_set_of_domains_cannot_be_made() {
    for backend in [Backend::Legacy, Backend::Nft] {
        let mut kernel = kernel(backend);
        kernel.netfilter.sets.poison("cali40d:x.0", true);
        let mut updates = world();
        updates.push(set("s:nets", &["192.0.2.0/24"]));
        updates.push(by_name("names", &["d:x"], &["s:nets"]));
        let mut dataplane = started(with_domains(backend), updates);
        let report = dataplane.apply(&mut kernel);
        let problems = texts(&report.problems);
        let expected = "policy GlobalNetworkPolicy/names: IPv4 egress: rule 0 allows no destination by name, because of \
                        IP set d:x";
        assert!(problems.iter().any(|text| text == expected), "{problems:#?}");
        let chain = rules(&kernel, Table::Filter, "cali-po-gnp/names");
        assert!(chain.contains("--match-set cali40s:nets dst ") && !chain.contains("d:x"), "{chain}");
        let v6 = kernel.tables(Family::V6).rules(Table::Filter, "cali-po-gnp/names").unwrap().concat();
        assert!(v6.contains("cali60s:nets dst ") && v6.contains("cali60d:x.0 dst,src"), "{v6}");
        kernel.netfilter.sets.poison("cali40d:x.0", false);
        applied(&mut dataplane, &mut kernel);
        assert!(rules(&kernel, Table::Filter, "cali-po-gnp/names").contains("cali40d:x.0 dst,src"));
    }
}

#[test]
fn without_a_learner_rules_are_left_out_and_named() {
    let mut kernel = kernel(Backend::Nft);
    kernel.learner = None;
    let mut dataplane = started(with_domains(Backend::Nft), world());
    let report = apply_until_in_sync(&mut dataplane, &mut kernel);
    assert_eq!(report.problems.len(), 2);
    for text in texts(&report.problems) {
        assert!(text.contains("egress rule 0") && text.contains("the rule is left out"), "{text}");
    }
    assert!(!rules(&kernel, Table::Filter, "cali-po-gnp/names").contains("MARK"));
    assert!(dataplane.workload_statuses().all(|(_, status)| status == tortie_dataplane::EndpointStatus::Up));
    // A learner that comes later is used.
    kernel.learner = Some(Default::default());
    dataplane.on_update(profile("kns.default"));
    applied(&mut dataplane, &mut kernel);
    assert!(rules(&kernel, Table::Filter, "cali-po-gnp/names").contains("cali40d:x.0"));
}

#[test]
fn failed_commands_are_passed_again() {
    let mut kernel = kernel(Backend::Nft);
    kernel.learner.as_mut().unwrap().failures = 3;
    let mut dataplane = started(with_domains(Backend::Nft), world());
    let report = dataplane.apply(&mut kernel);
    let expected = "members of domain sets: the reader of DNS answers has ended";
    assert_eq!(texts(&report.problems), [expected]);
    assert!(report.next.is_some_and(|next| next <= Duration::from_secs(10)));
    applied(&mut dataplane, &mut kernel);
    let learner = kernel.learner.unwrap();
    assert_eq!((learner.sets.len(), learner.scopes.len()), (1, 1));
}

/// The pointers of lists are compared, and an equal list keeps the former one.
#[test]
fn an_equal_list_of_names_is_no_news() {
    let mut kernel = kernel(Backend::Nft);
    let mut dataplane = started(with_domains(Backend::Nft), world());
    applied(&mut dataplane, &mut kernel);
    let mut commands = |updates: Vec<DesiredUpdate>| {
        kernel.learner.as_mut().unwrap().commands.clear();
        updates.into_iter().for_each(|update| dataplane.on_update(update));
        applied(&mut dataplane, &mut kernel);
        kernel.learner.as_ref().unwrap().commands.len()
    };
    assert_eq!(commands(vec![patterns("d:x", &["a.io", "*.b.io"]), profile("kns.default")]), 0);
    assert_eq!(commands(vec![patterns("d:x", &["a.io"])]), 1);
}

/// The sets of an interface may have addresses of its former endpoint until the learner confirms
/// that they are gone.
#[test]
fn an_interface_is_closed_until_the_learner_has_emptied_it_for_a_new_endpoint() {
    let mut kernel = kernel(Backend::Nft);
    let mut dataplane = started(with_domains(Backend::Nft), world());
    applied(&mut dataplane, &mut kernel);
    let fail = |kernel: &mut FakeKernel, failures| kernel.learner.as_mut().unwrap().failures = failures;
    let egress = |kernel: &FakeKernel, number: u8| rules(kernel, Table::Filter, &format!("cali-fw-cali{number}"));
    let is_closed = |kernel: &FakeKernel, number: u8| egress(kernel, number) == "-j DROP";
    let is_up = |dataplane: &Dataplane, name: &str| {
        let mut statuses = dataplane.workload_statuses();
        statuses.any(|(id, status)| *id == workload_id(name) && status == tortie_dataplane::EndpointStatus::Up)
    };
    let owner = |kernel: &FakeKernel| kernel.learner.as_ref().unwrap().scopes[&interface("cali1")].0;
    let (first, open) = (owner(&kernel), egress(&kernel, 1));
    assert!(open.contains("cali-po-gnp/names") || open.contains("cali-gi"), "{open}");

    // Another pod gets the interface; a new one learns elsewhere, and one without names changes.
    fail(&mut kernel, 1000);
    dataplane.on_update(DesiredUpdate::WorkloadEndpointRemove(workload_id("one")));
    dataplane.on_update(workload("other", pod("cali1", 7), &["names"]));
    dataplane.on_update(workload("two", pod("cali2", 8), &[]));
    dataplane.on_update(workload("three", pod("cali3", 3), &["names"]));
    let report = dataplane.apply(&mut kernel);
    let problems = texts(&report.problems);
    assert!(
        problems.iter().any(|text| text.contains("other") && text.contains("former endpoint of cali1")),
        "{problems:?}"
    );
    assert_eq!([1, 2, 3].map(|number| is_closed(&kernel, number)), [true, false, false]);
    assert_eq!(["other", "two", "three"].map(|name| is_up(&dataplane, name)), [false, true, true]);

    // Commands that failed may be in effect: the first pod finds addresses of the second one.
    dataplane.on_update(DesiredUpdate::WorkloadEndpointRemove(workload_id("other")));
    dataplane.on_update(workload("one", pod("cali1", 1), &["names"]));
    dataplane.apply(&mut kernel);
    assert!(is_closed(&kernel, 1));

    fail(&mut kernel, 0);
    kernel.learner.as_mut().unwrap().commands.clear();
    applied(&mut dataplane, &mut kernel);
    assert_eq!((egress(&kernel, 1), owner(&kernel)), (open, first));
    assert!(is_up(&dataplane, "one"));
    let commands = &kernel.learner.as_ref().unwrap().commands;
    let is_told =
        |command: &LearnerCommand| matches!(command, LearnerCommand::SetScope { owner, .. } if *owner == first);
    assert!(commands.iter().any(is_told), "{commands:?}");
}

/// A dead learner does not close endpoints that it knew before.
#[test]
fn an_endpoint_with_other_sets_stays_open_while_the_learner_fails() {
    let mut kernel = kernel(Backend::Nft);
    let mut dataplane = started(with_domains(Backend::Nft), world());
    applied(&mut dataplane, &mut kernel);
    kernel.learner.as_mut().unwrap().failures = 1000;
    dataplane.on_update(patterns("d:y", &["c.io"]));
    dataplane.on_update(by_name("names", &["d:x", "d:y"], &[]));
    dataplane.apply(&mut kernel);
    assert!(rules(&kernel, Table::Filter, "cali-fw-cali1") != "-j DROP");
    assert!(rules(&kernel, Table::Filter, "cali-po-gnp/names").contains("cali40d:y.0"));
    // Patterns that may be in effect are told again, although they are the former ones.
    dataplane.on_update(patterns("d:x", &["d.io"]));
    dataplane.apply(&mut kernel);
    dataplane.on_update(patterns("d:x", &["a.io", "*.b.io"]));
    kernel.learner.as_mut().unwrap().failures = 0;
    kernel.learner.as_mut().unwrap().commands.clear();
    applied(&mut dataplane, &mut kernel);
    let commands = &kernel.learner.as_ref().unwrap().commands;
    let is_told =
        |command: &LearnerCommand| matches!(command, LearnerCommand::SetDomains { set, .. } if set.as_str() == "d:x");
    assert!(commands.iter().any(is_told), "{commands:?}");
}

#[test]
fn a_learner_that_has_ended_is_told_everything_again() {
    let mut kernel = kernel(Backend::Nft);
    let mut dataplane = started(with_domains(Backend::Nft), world());
    applied(&mut dataplane, &mut kernel);
    let before = kernel.learner.clone().unwrap();
    kernel.learner.as_mut().unwrap().ends = true;
    applied(&mut dataplane, &mut kernel);
    let learner = kernel.learner.as_ref().unwrap();
    assert!(learner.settings.is_some() && learner.cluster == before.cluster);
    assert_eq!((&learner.sets, &learner.scopes), (&before.sets, &before.scopes));
}

#[test]
fn staged_policies_learn_and_open_nothing() {
    let mut kernel = kernel(Backend::Nft);
    let mut id = policy_id("names");
    id.kind = PolicyKind::StagedGlobalNetworkPolicy;
    let mut updates = world();
    updates.retain(|update| !matches!(update, DesiredUpdate::Policy(..)));
    updates.push(DesiredUpdate::Policy(id.clone(), Arc::new(policy(&["d:x"], &[]))));
    for update in &mut updates {
        if let DesiredUpdate::WorkloadEndpoint(_, state) = update {
            let mut tiers = state.tiers.to_vec();
            tiers.iter_mut().for_each(|tier| (tier.ingress, tier.egress) = ([].into(), [id.clone()].into()));
            state.tiers = tiers.into();
        }
    }
    applied(&mut started(with_domains(Backend::Nft), updates), &mut kernel);
    assert_eq!(kernel.learner.as_ref().unwrap().scopes.len(), 1);
    assert!(rules(&kernel, Table::Mangle, "cali-POSTROUTING").contains("cali-dns-limit"));
    assert!(!kernel.state().contains("cali40d:x.0 dst,src"));
}
