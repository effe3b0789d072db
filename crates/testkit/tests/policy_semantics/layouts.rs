//! Packets get the same verdict in the fast layout, in Felix's layout and by `tortie-evaluate`.
//! With flow logs, the same rules log their names.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::{
    prelude::{Strategy, any},
    prop_oneof,
    strategy::ValueTree,
    test_runner::{TestCaseError, TestError},
};
use tortie_evaluate::Verdict;
use tortie_iptables::{
    Action, Chain, ChainName, ConntrackState, DispatchBy, Layout, MapKey, MapKind, MapVerdict, MarkBits, Match,
    Matches, PortList, PortRange, Protocol, Rule, Side, Table,
};
use tortie_lab::kernel_test;
use tortie_lab::netns::Namespace;
use tortie_lab::nft::Nft;
use tortie_model::{AdminState, Family, QosControls, desired::Members};
use tortie_nftables::{
    Command, Context, Features, FullNames, LayeredName, ProgramRule, RuleVerdict, SetKind, SetName, TableId,
    Transaction, compile, wire::ObservedRule,
};
use tortie_rules::{
    HostDispatch, IpvsConfig, Marks, NftablesConfig, PacketFilter, Renderer, RulesConfig, TunnelConfig,
    names::{chain, ip_set_name, static_set},
};
use tortie_testkit::{
    evaluator::OracleVerdict,
    packet::Packet,
    walker::{PacketOutcome, Skb, Tables, Walk},
};

use crate::{
    QUESTIONS,
    chains::{Chains, config},
    evaluate::{ask, evaluator, settings},
    runner,
    scenario::{Scenario, repetitive_scenarios, scenarios},
    verdict,
};

fn of_layout(layout: Layout, flow_logs: bool) -> RulesConfig {
    let packet_filter = PacketFilter::Nftables(NftablesConfig { layout, offload_flows: false });
    RulesConfig { packet_filter, flow_logs, ..config() }
}

fn check(scenario: &Scenario, flow_logs: bool, spoil: impl Fn(Chain) -> Chain) -> Result<(), TestCaseError> {
    check_within(usize::MAX, scenario, flow_logs, spoil)
}

fn check_within(
    room: usize,
    scenario: &Scenario,
    flow_logs: bool,
    spoil: impl Fn(Chain) -> Chain,
) -> Result<(), TestCaseError> {
    let configs = [Layout::Felix, Layout::Fast].map(|layout| of_layout(layout, flow_logs));
    let accept = configs[0].marks.accept.get();
    let felix = Chains::render(&configs[0], &scenario.state, |chain| chain);
    let fast = Chains::render_within(room, &configs[1], &scenario.state, spoil);
    let evaluator = evaluator(settings(&configs[0]), &scenario.state);
    for packet in &scenario.packets {
        for question in QUESTIONS {
            for state in [ConntrackState::New, ConntrackState::Established, ConntrackState::Invalid] {
                let mut skb = Skb::new(*packet, "eth9", "eth9");
                skb.mark = accept | configs[0].marks.pass.get() | 0xf;
                skb.conntrack = BTreeSet::from([state]);
                let walk = |chains: &Chains| {
                    let (tables, start) = chains.enter(question, packet.is_ipv4());
                    let walk = tables.walk(start, &skb).map_err(|error| TestCaseError::fail(error.to_string()))?;
                    Ok::<Walk, TestCaseError>(walk)
                };
                let (felix, fast) = (walk(&felix)?, walk(&fast)?);
                let observed = |walk: &Walk| {
                    (verdict(walk.outcome, walk.mark, accept), walk.nflogs.clone(), walk.logs.clone(), walk.untracked)
                };
                if observed(&felix) != observed(&fast) {
                    return Err(TestCaseError::fail(format!("{question:?}, {packet}, {state:?}: {felix:?}\n{fast:?}")));
                }
                let evaluated = match ask(&evaluator, question, packet).verdict {
                    Verdict::Allow => OracleVerdict::Allow,
                    Verdict::Deny => OracleVerdict::Deny,
                    Verdict::Undecided => OracleVerdict::Undecided,
                };
                if state == ConntrackState::New && verdict(fast.outcome, fast.mark, accept) != evaluated {
                    return Err(TestCaseError::fail(format!("{question:?}, {packet}: means {evaluated:?}, {fast:?}")));
                }
            }
        }
    }
    Ok(())
}

fn all_scenarios() -> impl Strategy<Value = (Scenario, bool)> {
    (prop_oneof![1 => scenarios(), 3 => repetitive_scenarios()], any::<bool>())
}

#[test]
fn both_layouts_have_the_verdicts_of_the_policies() {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(80);
    if let Err(error) =
        runner(cases, 2000).run(&all_scenarios(), |(scenario, logs)| check(&scenario, logs, |chain| chain))
    {
        panic!("{error}");
    }
}

/// Without any room, and with room for some chains.
#[test]
fn layouts_over_budget_have_the_same_verdicts() {
    for room in [0, 32 << 10] {
        let of = |(scenario, logs): (Scenario, bool)| check_within(room, &scenario, logs, |chain| chain);
        if let Err(error) = runner(40, 2000).run(&all_scenarios(), of) {
            panic!("{error}");
        }
    }
}

/// Checks that the test detects a policy that is missing from its group.
#[test]
fn a_policy_that_is_left_out_of_its_group_is_detected() {
    let spoil = |chain: Chain| {
        let is_included = |rule: &Rule| matches!(rule.action, Some(Action::Include(_)));
        let mut rules = chain.rules.clone();
        if rules.iter().all(is_included) {
            rules.pop();
        }
        Chain { rules, ..chain }
    };
    let result = runner(100, 0).run(&all_scenarios(), |(scenario, logs)| check(&scenario, logs, spoil));
    assert!(matches!(result, Err(TestError::Fail(..))), "not noticed");
}

/// FORWARD gives packets of known connections the same verdict in both layouts, between all kinds
/// of interfaces.
#[test]
fn both_layouts_have_the_same_verdicts_for_known_connections() {
    let felix = forwarding(Layout::Felix);
    let fast = forwarding(Layout::Fast);
    let packet = Packet::with_ports(6, ([10, 0, 0, 1].into(), 1000), ([10, 0, 0, 2].into(), 80));
    let interfaces = ["cali1", "cali2", "cali3", "cali9", "eth0", "eth1"];
    let accept = of_layout(Layout::Felix, false).marks.accept.get();
    let mut at_once = 0;
    for from in interfaces {
        for to in interfaces {
            for state in
                [ConntrackState::Established, ConntrackState::Related, ConntrackState::Invalid, ConntrackState::New]
            {
                for (mark, within_rates) in [(0, true), (0, false), (accept, true)] {
                    let mut skb = Skb::new(packet, from, to);
                    (skb.mark, skb.within_rates) = (mark, within_rates);
                    skb.conntrack = BTreeSet::from([state]);
                    let [by_felix, by_fast] = [&felix, &fast].map(|tables| tables.walk(chain::FORWARD, &skb).unwrap());
                    let observed = |walk: &Walk| (walk.outcome, walk.mark);
                    assert_eq!(
                        observed(&by_felix),
                        observed(&by_fast),
                        "{from} to {to}, {state:?}, {within_rates}: {by_fast:?}"
                    );
                    let leaves_at_once = by_fast.outcome == PacketOutcome::Accepted && by_fast.path.len() <= 2;
                    at_once += usize::from(state == ConntrackState::Established && leaves_at_once);
                }
            }
        }
    }
    // From two endpoints to six places, and from a seventh to the two, within and above all rates.
    assert_eq!(at_once, 28);
}

/// INPUT and OUTPUT give packets of known connections the same verdict in both layouts, on all
/// kinds of interfaces, also with guards of tunnels and IPVS; and the number of rules that these
/// packets traverse.
#[test]
fn both_layouts_have_the_same_verdicts_for_known_connections_of_the_host() {
    let tunnel = |config: RulesConfig| {
        let tunnel = TunnelConfig { enabled: true, has_address: true };
        RulesConfig { vxlan_v4: tunnel, ..config }
    };
    let ipvs = |config: RulesConfig| {
        let marks = Marks::allocate(Marks::DEFAULT_MASK, false, true).unwrap();
        RulesConfig { marks, ipvs: Some(IpvsConfig { node_ports: Vec::new() }), ..config }
    };
    let to = |protocol, port| Packet::with_ports(protocol, ([10, 0, 0, 1].into(), 1000), ([10, 0, 0, 2].into(), port));
    let change: [(&dyn Fn(RulesConfig) -> RulesConfig, usize); 3] =
        [(&|config| config, 1), (&tunnel, 1), (&|config| ipvs(tunnel(config)), 4)];
    for (change, most_of_input) in change {
        let [felix, fast] = [Layout::Felix, Layout::Fast].map(|layout| change(of_layout(layout, false)));
        let (accept, with_ipvs) = (felix.marks.accept.get(), felix.ipvs.is_some());
        let [felix, fast] = [felix, fast].map(endpoints);
        let (mut known, mut others) = (0, 0);
        for hook in [chain::INPUT, chain::OUTPUT] {
            for interface in ["cali1", "cali2", "cali3", "cali9", "eth0", "eth1"] {
                for packet in [to(6, 80), to(17, 4789)] {
                    for (mark, within_rates, is_translated) in
                        [(0, true, false), (0, false, false), (accept, true, false), (0, true, true)]
                    {
                        for state in [
                            ConntrackState::Established,
                            ConntrackState::Related,
                            ConntrackState::Invalid,
                            ConntrackState::New,
                        ] {
                            let is_input = hook == chain::INPUT;
                            let (from, to) = if is_input { (interface, "") } else { ("", interface) };
                            let mut skb = Skb::new(packet, from, to);
                            (skb.mark, skb.within_rates) = (mark, within_rates);
                            skb.conntrack = BTreeSet::from([state]);
                            skb.conntrack.extend(is_translated.then_some(ConntrackState::Dnat));
                            skb.local_addresses.insert([10, 0, 0, if is_input { 2 } else { 1 }].into());
                            let [by_felix, by_fast] = [&felix, &fast].map(|tables| tables.walk(hook, &skb).unwrap());
                            // After these chains, the base chain ends and accepts.
                            let outcome = |walk: &Walk| {
                                if walk.outcome == PacketOutcome::Returned {
                                    PacketOutcome::Accepted
                                } else {
                                    walk.outcome
                                }
                            };
                            let observed = |walk: &Walk| (outcome(walk), walk.mark);
                            let case_name =
                                format!("{hook} {interface}, {packet}, {state:?}, {mark:x}, {is_translated}");
                            assert_eq!(
                                observed(&by_felix),
                                observed(&by_fast),
                                "{case_name}, IPVS {with_ipvs}: {by_fast:?}"
                            );
                            let is_known = state == ConntrackState::Established && mark == 0;
                            if is_known && outcome(&by_fast) == PacketOutcome::Accepted {
                                let most = if is_input { most_of_input } else { 1 };
                                *(if by_fast.path.len() <= most { &mut known } else { &mut others }) += 1;
                            }
                        }
                    }
                }
            }
        }
        // The others are within the limits of an endpoint that has limits.
        assert!(known > 40 && others <= 4, "{known} {others}");
    }
}

/// Returns three workloads, of which one is down and one has limits, and a host endpoint.
fn forwarding(layout: Layout) -> Tables {
    endpoints(of_layout(layout, false))
}

/// As [`forwarding`], with another configuration.
fn endpoints(config: RulesConfig) -> Tables {
    let renderer = Renderer::new(config);
    let mut tables = Tables::new();
    for chain in renderer.fixed_chains(Table::Filter, Family::V4) {
        tables.add_chain(chain);
    }
    tables.add_chain(Chain::new(chain::CIDR_BLOCK, vec![Rule::new(Action::Drop)]));
    for chain in [chain::SET_ENDPOINT_MARK, chain::FROM_ENDPOINT_MARK] {
        tables.add_chain(Chain::new(chain, Vec::new()));
    }
    for set in [static_set::VXLAN_SOURCES, static_set::THIS_HOST] {
        let name = ip_set_name(Family::V4, &set.into()).unwrap();
        tables.add_set(name, Members::Nets(Vec::new()));
    }
    let limits = QosControls { ingress_packet_rate: 10, egress_packet_rate: 10, ..QosControls::default() };
    let workloads = [
        ("cali1", AdminState::Active, None),
        ("cali2", AdminState::Inactive, None),
        ("cali3", AdminState::Active, Some(&limits)),
    ];
    for (name, state, qos) in workloads {
        let interface = name.parse().unwrap();
        let chains = renderer.workload_endpoint(interface, state, &[], &[], qos);
        chains.into_iter().for_each(|chain| tables.add_chain(chain));
        for (map, verdict) in renderer.workload_maps(interface, Some((state, qos))) {
            verdict.into_iter().for_each(|verdict| tables.add_to_map(map, MapKey::Interface(interface), verdict));
        }
    }
    let names = workloads.map(|(name, ..)| name.parse().unwrap());
    renderer.workload_dispatch(names).into_iter().for_each(|chain| tables.add_chain(chain));
    let eth0 = ["eth0".parse().unwrap()];
    let host = renderer.host_endpoint_filter("eth0".parse().unwrap(), &[], &[], &[]);
    host.into_iter().for_each(|chain| tables.add_chain(chain));
    renderer.host_dispatch(HostDispatch::Filter, eth0, false).into_iter().for_each(|chain| tables.add_chain(chain));
    for (map, key, verdict) in renderer.host_maps(HostDispatch::Filter, eth0) {
        tables.add_to_map(map, key, verdict);
    }
    tables
}

/// Returns a complete scenario in one table, with empty sets.
fn transaction(id: TableId, tables: &[(Table, &Tables)]) -> Transaction {
    let mut transaction = Transaction::new(id);
    let (mut sets, mut maps, mut chains) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
    let (mut rules, mut elements) = (Vec::new(), Vec::new());
    let names = FullNames::default();
    for (layer, tables) in tables {
        let layered = |name: ChainName| LayeredName::new(*layer, name.as_str());
        for chain in tables.chains() {
            chains.insert(layered(chain.name));
            chains.extend(chain.targets().map(layered));
            let context = Context { family: id.family, layer: *layer, names: &names, features: Features::ALL };
            let shown = tortie_nftables::rules(chain.name.as_str(), &chain.rules, context);
            for (rule, shown) in chain.rules.iter().zip(shown) {
                for question in rule.matches.iter() {
                    if let Match::IpSet { set, with_port, .. } = question {
                        let kind = if *with_port { SetKind::AddressPorts } else { SetKind::Networks };
                        sets.insert(SetName::new(*set), kind);
                    }
                }
                if let Some(Action::Dispatch { by, map }) = rule.action.as_ref().map(Action::last) {
                    maps.insert(layered(*map), by.kind());
                }
                let expressions = compile(rule, &context).unwrap();
                let rule = Arc::new(ProgramRule { shown, expressions });
                rules.push(Command::AddRule { chain: layered(chain.name), rule });
            }
        }
        for (map, key, verdict) in tables.maps() {
            maps.insert(layered(map), key.kind());
            chains.extend(verdict.target().map(layered));
            let name = |chain| layered(chain).as_str().into();
            let verdict = match verdict {
                MapVerdict::Accept => RuleVerdict::Accept,
                MapVerdict::Jump(chain) => RuleVerdict::Jump(name(chain)),
                MapVerdict::Goto(chain) => RuleVerdict::Goto(name(chain)),
            };
            elements.push(Command::AddMapElements { map: layered(map), elements: vec![(key, verdict)] });
        }
    }
    let commands = &mut transaction.commands;
    commands.push(Command::AddTable);
    commands.extend(sets.into_iter().map(|(set, kind)| Command::AddSet { set, kind }));
    commands.extend(maps.into_iter().map(|(map, kind)| Command::AddMap { map, kind }));
    commands.extend(chains.into_iter().map(|chain| Command::AddChain { chain, base: None }));
    commands.append(&mut rules);
    commands.append(&mut elements);
    transaction
}

kernel_test! {
    fn layout_expressions_match_those_of_nft() {
        let mut runner = runner(1, 0);
        let (mut by_port, mut by_address, mut several) = (0, 0, 0);
        for number in 0..60 {
            if number >= 6 && by_port > 10 && by_address > 10 && several > 100 {
                break;
            }
            let scenario = repetitive_scenarios().new_tree(&mut runner).unwrap().current();
            let chains = Chains::render(&of_layout(Layout::Fast, number % 2 == 0), &scenario.state, |chain| chain);
            for family in Family::ALL {
                let table = TableId::calico(family);
                let tables: Vec<_> = chains.tables().filter(|(of, ..)| *of == family).map(|(_, table, it)| (table, it)).collect();
                let mut transaction = transaction(table, &tables);
                if number == 0 {
                    // Endpoint numbers in marks, which no scenario uses.
                    transaction.commands.extend(mark_map());
                    transaction.commands.extend(port_lists());
                }
                let text = transaction.to_string();
                by_port += text.matches("meta l4proto . th dport vmap @").count();
                by_address += text.matches("addr vmap @").count();
                several += text.matches("return comment").count();
                let by_nft = Namespace::new().unwrap();
                let output = by_nft.output(std::process::Command::new("nft").args(["-f", "-"]), &text).unwrap();
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                let theirs = by_nft.run(|| Nft::open().unwrap().read(table)).unwrap().unwrap();
                let by_us = Namespace::new().unwrap();
                by_us.run(|| Nft::open().unwrap().commit(&transaction)).unwrap().unwrap();
                let ours = by_us.run(|| Nft::open().unwrap().read(table)).unwrap().unwrap();
                assert_eq!(ours.sets, theirs.sets);
                for (name, chain) in &ours.chains {
                    let theirs = &theirs.chains[name].rules;
                    assert_eq!(chain.rules.len(), theirs.len(), "{name}");
                    for (ours, theirs) in chain.rules.iter().zip(theirs) {
                        let line = text.lines().find(|line| line.contains(&ours.comment)).unwrap_or_default();
                        let observed = |rule: &ObservedRule| (rule.comment.clone(), format!("{:?}", rule.expressions));
                        assert_eq!(observed(ours), observed(theirs), "{line}");
                    }
                }
                assert_eq!(ours.chains.len(), theirs.chains.len());
            }
        }
        assert!(by_port > 10 && by_address > 10 && several > 100, "{by_port} {by_address} {several}");
    }
}

/// Returns a chain that matches port lists with duplicate, overlapping and adjacent ports.
fn port_lists() -> Vec<Command> {
    const LISTS: [&[(u16, u16)]; 14] = [
        &[(3, 3), (4, 4)],
        &[(3, 3), (4, 4), (4, 4)],
        &[(80, 80), (80, 80)],
        &[(3, 3), (4, 7)],
        &[(3, 5), (6, 8)],
        &[(3, 5), (4, 8)],
        &[(3, 5), (9, 9), (10, 10)],
        &[(3, 5), (9, 9), (10, 10), (10, 10)],
        &[(5, 5), (1, 4)],
        &[(2, 2), (2, 5)],
        &[(1, 4), (2, 3)],
        &[(1, 1), (2, 2), (9, 10)],
        &[(1024, 65534), (65535, 65535)],
        &[(0, 0), (1, 2)],
    ];
    let chain = LayeredName::from_kernel("filter-cali-ports");
    let names = FullNames::default();
    let context = Context { family: Family::V4, layer: Table::Filter, names: &names, features: Features::ALL };
    let rule = |(list, side): (&[(u16, u16)], Side)| {
        let ranges: Vec<PortRange> = list.iter().map(|(first, last)| PortRange::new(*first, *last).unwrap()).collect();
        let ports = PortList::unsplit(&ranges).unwrap();
        let tcp = || Matches::new().protocol(Protocol::TCP);
        let negated = Match::Ports { side, ports: ports.clone(), negated: true };
        [tcp().ports(side, ports), tcp().and(negated)].map(|matches| Rule::when(matches, Action::Accept))
    };
    let sides = [Side::Source, Side::Destination];
    let rules: Vec<Rule> = LISTS.into_iter().flat_map(|list| sides.map(|side| (list, side))).flat_map(rule).collect();
    let shown = tortie_nftables::rules("ports", &rules, context);
    let add = |(rule, shown)| {
        let expressions = compile(rule, &context).unwrap();
        Command::AddRule { chain: chain.clone(), rule: Arc::new(ProgramRule { shown, expressions }) }
    };
    let rules = rules.iter().zip(shown).map(add);
    [Command::AddChain { chain: chain.clone(), base: None }].into_iter().chain(rules).collect()
}

/// Returns a chain with a map of marks.
fn mark_map() -> Vec<Command> {
    let (chain, map) = (LayeredName::from_kernel("filter-cali-marks"), LayeredName::from_kernel("filter-cali-mark"));
    let names = FullNames::default();
    let context = Context { family: Family::V4, layer: Table::Filter, names: &names, features: Features::ALL };
    let by = DispatchBy::Mark(MarkBits::new(0xff00_0000).unwrap());
    let rule = Rule::new(Action::Dispatch { by, map: "cali-mark".parse().unwrap() });
    let shown = tortie_nftables::rules("seed", std::slice::from_ref(&rule), context).next().unwrap();
    let expressions = compile(&rule, &context).unwrap();
    let element = (MapKey::Mark(0x0100_0000), RuleVerdict::Accept);
    vec![
        Command::AddMap { map: map.clone(), kind: MapKind::Mark },
        Command::AddChain { chain: chain.clone(), base: None },
        Command::AddRule { chain, rule: Arc::new(ProgramRule { shown, expressions }) },
        Command::AddMapElements { map, elements: vec![element] },
    ]
}
