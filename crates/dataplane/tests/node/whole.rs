//! Rendering for a clean node, cleanup, and the sets and chains that fixed chains need.

use tortie_dataplane::fake::FakeKernel;
use tortie_dataplane::{CleanupConfig, Dataplane, cleanup};
use tortie_iptables::{Backend, Programs, Table};
use tortie_model::desired::{DesiredUpdate, HostMetadata, Vtep, VtepAddresses};
use tortie_model::{BgpConfiguration, EncapMode, Family, IpPool, Mac, NatMapping, QosControls, WorkloadExtras};
use tortie_rules::{IpvsConfig, Marks, RulesConfig, TunnelConfig};

use crate::common::{
    addresses, apply_until_in_sync, cidr, config, dataplane, host, host_endpoint, ip, kernel, pod, policy, profile,
    set, up, workload, workload_id,
};

const BACKENDS: [Backend; 2] = [Backend::Legacy, Backend::Nft];

fn updates() -> Vec<DesiredUpdate> {
    vec![
        set("s:clients", &["10.1.0.0/16", "fd01::/64"]),
        policy("a", "all()", Some("s:clients")),
        profile("kns.default"),
        workload("one", pod("cali1", 1), &["a"]),
        host("h", host_endpoint(Some("eth0"), &[]), &["a"]),
    ]
}

/// The rendered texts bring a clean node to the desired state.
#[test]
fn rendered_texts_equal_the_writes() {
    for backend in BACKENDS {
        let mut applied = kernel(backend);
        apply_until_in_sync(&mut dataplane(backend, updates(), [up("eth0", 1)]), &mut applied);

        let mut by_hand = kernel(backend);
        let mut rendering = Dataplane::new(config(backend));
        updates().into_iter().for_each(|update| rendering.on_update(update));
        let rendered = rendering.render();
        let mut run = |program: String, input: &str| {
            let args = if program == "ipset" { vec!["restore".to_owned()] } else { vec!["--noflush".to_owned()] };
            let command = tortie_dataplane::Command { program, args, input: input.to_owned() };
            let outcome = by_hand.run_one(&command);
            assert!(outcome.is_success(), "{}", outcome.stderr);
        };
        for (_, text) in &rendered.ip_sets {
            run("ipset".to_owned(), text);
        }
        assert_eq!(rendered.tables.len(), 8);
        for (family, _, text) in &rendered.tables {
            let name = if *family == Family::V4 { "iptables-restore" } else { "ip6tables-restore" };
            run(name.to_owned(), text);
        }
        let enforced = |kernel: &FakeKernel| {
            let state = kernel.state();
            let lines = state
                .lines()
                .filter(|line| line.starts_with("V4") || line.starts_with("V6") || line.starts_with("set"));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(enforced(&by_hand), enforced(&applied), "{backend}");
    }
}

#[test]
fn both_families_read_their_sets_from_one_listing() {
    let mut kernel = kernel(Backend::Nft);
    for restart in [false, true] {
        kernel.netfilter.sets.reset_counts();
        apply_until_in_sync(&mut dataplane(Backend::Nft, updates(), [up("eth0", 1)]), &mut kernel);
        let counts = kernel.netfilter.sets.counts();
        assert_eq!((counts.list_all, counts.list_names, counts.lists), (1, 0, 0));
        assert_eq!(counts.restores, if restart { 0 } else { 2 });
        assert!(["cali40s:clients", "cali60s:clients"].iter().all(|name| kernel.netfilter.sets.names().contains(name)));
    }
}

#[test]
fn cleanup_removes_all_that_is_ours_and_nothing_else() {
    for backend in BACKENDS {
        let mut kernel = kernel(backend);
        kernel.netfilter.tables_v4.run(Table::Filter, "-A FORWARD -s 1.2.3.4 -j ACCEPT").expect("possible");
        kernel.netfilter.sets.edit("create docker hash:ip").expect("possible");
        apply_until_in_sync(&mut dataplane(backend, updates(), [up("eth0", 1), up("cali1", 7)]), &mut kernel);
        let tables = Family::ALL.map(|family| (family, backend, Programs::specific(backend, family)));
        let wanted = CleanupConfig {
            tables: tables.into(),
            interfaces: vec![("eth0".parse().unwrap(), 1), ("cali1".parse().unwrap(), 7)],
            workload_prefixes: vec!["cali".to_owned()],
        };
        kernel.conntrack.marked.insert("10.65.0.9".parse().expect("address"));
        let report = cleanup(&mut kernel, &wanted);
        assert_eq!(report.problems, []);
        assert_eq!((report.tables_changed, report.routes_removed, report.ip_sets_left), (8, 2, 0));
        assert_eq!(kernel.netfilter.sets.names(), ["docker"]);
        assert_eq!(kernel.routing.routes, []);
        assert!(kernel.conntrack.marked.is_empty());
        for family in Family::ALL {
            for table in Table::ALL {
                assert!(!kernel.tables(family).saved(table).contains("cali"), "{}", kernel.tables(family).saved(table));
            }
        }
        assert!(kernel.netfilter.tables_v4.saved(Table::Filter).contains("1.2.3.4"));
    }
}

/// Each set that a fixed chain may refer to exists from the first write on, with any configuration.
#[test]
fn all_options_together_find_their_sets_and_chains() {
    for backend in BACKENDS {
        let mut rules = RulesConfig::with_mark_mask(Marks::DEFAULT_MASK).expect("large enough");
        rules.marks = Marks::allocate(Marks::DEFAULT_MASK, true, true).expect("large enough");
        let on = TunnelConfig { enabled: true, has_address: true };
        (rules.ipip, rules.vxlan_v4, rules.vxlan_v6) = (on, on, on);
        rules.ipvs = Some(IpvsConfig { node_ports: Vec::new() });
        rules.nat.exclude_hosts = true;
        rules.istio_dscp = Some(23);
        rules.wireguard.v4.enabled = true;
        rules.wireguard.encrypt_host_traffic = true;
        let mut options = config(backend);
        options.rules = rules;
        options.floating_ips = true;
        options.external_nodes = vec![cidr("203.0.113.0/24")];

        let mut endpoint = pod("cali1", 1);
        endpoint.extras = Some(Box::new(WorkloadExtras {
            ipv4_nat: [NatMapping { internal: ip("10.65.0.1"), external: ip("198.51.100.1") }].into(),
            qos: Some(QosControls { dscp: Some(10), ..QosControls::default() }),
            ..WorkloadExtras::default()
        }));
        let pool = IpPool {
            cidr: cidr("10.65.0.0/16"),
            ipip_mode: EncapMode::Always,
            vxlan_mode: EncapMode::Never,
            masquerade: true,
            disabled: false,
            allowed_uses: Box::default(),
        };
        let node = |address: &str| HostMetadata { ipv4_addr: address.into(), ..HostMetadata::default() };
        let vtep = VtepAddresses { mac: Mac([2; 6]), tunnel: ip("10.65.1.1"), parent: ip("172.16.0.2") };
        let vtep = Vtep { v4: Some(vtep), v6: None };
        let services = BgpConfiguration { service_cluster_cidrs: ["10.96.0.0/12".into()].into(), ..Default::default() };

        let mut kernel = kernel(backend);
        let mut dataplane = Dataplane::new(options);
        dataplane.on_update(DesiredUpdate::InSync);
        dataplane.on_links_in_sync();
        assert!(dataplane.apply(&mut kernel).is_complete(), "{backend}: {:?}", dataplane.problems());
        for update in [
            profile("kns.default"),
            workload("one", endpoint, &[]),
            host("h", host_endpoint(Some("eth0"), &[]), &[]),
            DesiredUpdate::IpPool(pool.into()),
            DesiredUpdate::Host("node-1".into(), node("172.16.0.1/24")),
            DesiredUpdate::Host("node-2".into(), node("172.16.0.2/24")),
            DesiredUpdate::Vtep("node-2".into(), vtep),
            DesiredUpdate::BgpConfiguration(services.into()),
        ] {
            dataplane.on_update(update);
        }
        for event in [up("eth0", 1), addresses("eth0", &["172.16.0.1"]), up("cali1", 7)] {
            dataplane.on_link(event);
        }
        assert!(
            apply_until_in_sync(&mut dataplane, &mut kernel).is_complete(),
            "{backend}: {:?}",
            dataplane.problems()
        );
        assert_eq!(
            kernel.netfilter.sets.members("cali40all-hosts-net"),
            ["172.16.0.1", "172.16.0.2", "203.0.113.0/24"]
        );
        assert_eq!(kernel.netfilter.sets.members("cali40all-vxlan-net"), ["172.16.0.2", "203.0.113.0/24"]);
        assert_eq!(kernel.netfilter.sets.members("cali40masq-ipam-pools"), ["10.65.0.0/16"]);
        assert_eq!(kernel.netfilter.sets.members("cali40dscp-src-net"), ["10.65.0.1"]);
        let nat = kernel.netfilter.tables_v4.saved(Table::Nat);
        assert!(nat.contains("198.51.100.1") && nat.contains("MASQUERADE"), "{nat}");
        assert!(kernel.netfilter.tables_v4.saved(Table::Filter).contains("cali-sm-cali1"));
        assert!(kernel.netfilter.tables_v4.saved(Table::Filter).contains("10.96.0.0/12"));
        assert!(kernel.netfilter.tables_v4.saved(Table::Mangle).contains("DSCP"));
        let destinations: Vec<String> =
            kernel.routing.routes.iter().map(|route| route.key.destination.to_string()).collect();
        assert_eq!(destinations, ["10.65.0.1/32", "198.51.100.1/32", "fd00::1/128"]);
    }
}

#[test]
fn unneeded_sets_are_destroyed_in_batches() {
    let ids: Vec<String> = (0..40).map(|n| format!("s:{n}")).collect();
    let sets: Vec<DesiredUpdate> = ids.iter().map(|id| set(id, &["10.0.0.1/32"])).collect();
    let mut kernel = kernel(Backend::Nft);
    let mut dataplane = dataplane(Backend::Nft, sets, []);
    dataplane.apply(&mut kernel);
    let with = kernel.netfilter.sets.names().len();
    for id in &ids {
        dataplane.on_update(DesiredUpdate::IpSetRemove(id.as_str().into()));
    }
    let report = dataplane.apply(&mut kernel);
    assert_eq!(kernel.netfilter.sets.names().len(), with - 32, "16 in each family");
    assert!(report.next.is_some_and(|pause| pause <= std::time::Duration::from_millis(100)));
    apply_until_in_sync(&mut dataplane, &mut kernel);
    assert_eq!(kernel.netfilter.sets.names().len(), with - 80);
}

/// `iptables-nft-save` reads everything for each table, so one listing of all tables is cheaper. If
/// that fails, each table is listed separately.
#[test]
fn tables_of_nftables_are_read_at_once() {
    let mut node = kernel(Backend::Nft);
    apply_until_in_sync(&mut dataplane(Backend::Nft, updates(), [up("eth0", 1)]), &mut node);
    let before = node.netfilter.tables_v4.counters().saves;
    apply_until_in_sync(&mut dataplane(Backend::Nft, updates(), [up("eth0", 1)]), &mut node);
    assert_eq!(node.netfilter.tables_v4.counters().saves - before, 1);

    // A table that cannot be listed does not affect the others.
    node.netfilter.tables_v4.set_incompatible(Table::Nat, true);
    let mut restarted = dataplane(Backend::Nft, updates(), [up("eth0", 1)]);
    let report = restarted.apply(&mut node);
    assert_eq!(report.problems.len(), 1, "{:?}", report.problems);
    assert!(report.problems[0].to_string().contains("nat"), "{:?}", report.problems);
    node.netfilter.tables_v4.set_incompatible(Table::Nat, false);

    node.netfilter.tables_v4.fail_saves(1);
    let before = node.netfilter.tables_v4.counters().saves;
    assert!(dataplane(Backend::Nft, updates(), [up("eth0", 1)]).apply(&mut node).is_complete());
    assert_eq!(node.netfilter.tables_v4.counters().saves - before, 5);
}

/// With nftables, tables are read again only after a commit of another process.
#[test]
fn tables_without_foreign_writes_are_not_read_again() {
    for (backend, is_quiet) in [(Backend::Nft, true), (Backend::Legacy, false)] {
        let mut kernel = kernel(backend);
        let mut dataplane = dataplane(backend, updates(), [up("eth0", 1)]);
        apply_until_in_sync(&mut dataplane, &mut kernel);
        let saves = |kernel: &FakeKernel| {
            let counters = Family::ALL.map(|family| kernel.tables(family).counters());
            counters.iter().map(|counters| counters.saves + counters.reads).sum::<usize>()
        };
        let mut check = |kernel: &mut FakeKernel| {
            let before = saves(kernel);
            for _ in 0..40 {
                apply_until_in_sync(&mut dataplane, kernel);
                tortie_dataplane::Clock::sleep(kernel, std::time::Duration::from_secs(60));
            }
            saves(kernel) - before
        };
        assert_eq!(check(&mut kernel) == 0, is_quiet, "{backend}");
        let before = kernel.state();
        kernel.netfilter.tables_v6.run(Table::Raw, "-F cali-PREROUTING").expect("possible");
        assert_ne!(kernel.state(), before);
        let saved = check(&mut kernel);
        assert_eq!(kernel.state(), before, "{backend}");
        // One listing of all tables for each family.
        assert!(saved == 2 || !is_quiet, "{saved}");
    }
}

/// The ARP table changes with each pod, in the same ruleset as iptables-nft tables.
#[test]
fn a_pod_that_comes_or_goes_causes_no_read_of_the_tables() {
    let mut config = config(Backend::Nft);
    config.arp = Some(None);
    let mut dataplane = Dataplane::new(config);
    updates().into_iter().for_each(|update| dataplane.on_update(update));
    (1..4).for_each(|index| dataplane.on_link(up(&format!("cali{index}"), index)));
    dataplane.on_update(DesiredUpdate::InSync);
    dataplane.on_links_in_sync();
    let mut kernel = kernel(Backend::Nft);
    apply_until_in_sync(&mut dataplane, &mut kernel);
    let counts = |kernel: &FakeKernel| {
        let tables = [&kernel.netfilter.tables_v4, &kernel.netfilter.tables_v6];
        (tables.map(|tables| tables.counters().saves), kernel.netfilter.arp.transactions.len())
    };
    let (read, committed) = counts(&kernel);
    for _ in 0..3 {
        dataplane.on_update(workload("another", pod("cali3", 3), &[]));
        apply_until_in_sync(&mut dataplane, &mut kernel);
        dataplane.on_update(DesiredUpdate::WorkloadEndpointRemove(workload_id("another")));
        apply_until_in_sync(&mut dataplane, &mut kernel);
    }
    assert_eq!(counts(&kernel), (read, committed + 6));
}

/// With legacy, only a changed table is read before it is written, without a program. In each
/// family `iptables-restore` is the only program of an edit or a new pod.
#[test]
fn a_change_of_legacy_tables_runs_one_restore_for_each_family() {
    let mut dataplane = dataplane(Backend::Legacy, updates(), [up("eth0", 1), up("cali2", 2)]);
    let mut kernel = kernel(Backend::Legacy);
    apply_until_in_sync(&mut dataplane, &mut kernel);
    let changes = [policy("a", "all()", None), workload("two", pod("cali2", 2), &["a"])];
    for change in changes {
        let before = Family::ALL.map(|family| kernel.tables(family).counters());
        let ipset_calls = dataplane.stats().ipset_calls;
        dataplane.on_update(change);
        assert!(dataplane.apply(&mut kernel).is_complete());
        assert_eq!(dataplane.stats().ipset_calls, ipset_calls);
        for (family, before) in Family::ALL.into_iter().zip(before) {
            let after = kernel.tables(family).counters();
            assert_eq!((after.restores - before.restores, after.saves - before.saves), (1, 0), "{family}");
            assert_eq!((after.transactions - before.transactions, after.reads - before.reads), (1, 1), "{family}");
        }
    }
}

/// Rules are removed by value, so hooks out of place need the texts that `iptables-save` prints.
#[test]
fn misplaced_hooks_of_legacy_tables_are_read_by_the_program() {
    let mut kernel = kernel(Backend::Legacy);
    apply_until_in_sync(&mut dataplane(Backend::Legacy, updates(), [up("eth0", 1)]), &mut kernel);
    let expected = kernel.state();
    kernel.netfilter.tables_v4.run(Table::Filter, "-I FORWARD -j ACCEPT").expect("possible");
    let before = kernel.netfilter.tables_v4.counters();
    apply_until_in_sync(&mut dataplane(Backend::Legacy, updates(), [up("eth0", 1)]), &mut kernel);
    let after = kernel.netfilter.tables_v4.counters();
    assert_eq!((after.saves - before.saves, after.restores - before.restores), (1, 1));
    kernel.netfilter.tables_v4.run(Table::Filter, "-D FORWARD -j ACCEPT").expect("possible");
    assert_eq!(kernel.state(), expected);
}
