//! Differential test: the text of complete nftables tables, evaluated packet by packet, gives the
//! verdicts of the policies.

use std::{collections::BTreeMap, time::Duration};

use proptest::test_runner::{TestCaseError, TestError};
use tortie_iptables::{IpSetName, MapKey, Match, Table as Layer};
use tortie_lab::kernel_test;
use tortie_lab::netns::Namespace;
use tortie_lab::nft::Nft;
use tortie_model::{AdminState, Direction, Family, desired::Members};
use tortie_netfilter::{Member, SetType};
use tortie_nftables::{Features, LayeredName, Plan, Table, TableConfig, TableId, Transaction};
use tortie_rules::{HostDispatch, NftablesConfig, PacketFilter, Renderer, RulesConfig, names::ip_set_name};
use tortie_testkit::{
    evaluator::{DesiredState, OracleVerdict},
    packet::Packet,
    walker::{PacketOutcome, Skb, nft::Ruleset},
};

use crate::{
    Walked,
    chains::{Question, layer},
    check_walks, runner,
    scenario::{HOST_INTERFACE, Scenario, WORKLOAD_INTERFACE, scenarios},
    verdict,
};

/// An interface without endpoint.
const OTHER_INTERFACE: &str = "eth9";
/// A workload interface without endpoint.
const UNKNOWN_INTERFACE: &str = "cali999";

fn config() -> RulesConfig {
    RulesConfig { packet_filter: PacketFilter::Nftables(NftablesConfig::default()), ..crate::config() }
}

/// Returns all transactions that create the table of a state on a clean node.
fn transactions(state: &DesiredState, family: Family, admin_state: AdminState) -> Vec<Transaction> {
    let renderer = Renderer::new(config());
    let mut table = Table::new(TableConfig::new(TableId::calico(family)), Features::ALL);
    for hook in renderer.hooks() {
        table.set_hook(hook.table, hook.kernel_chain, hook.position, hook.rules);
    }
    let cali = WORKLOAD_INTERFACE.parse().unwrap();
    for (map, verdict) in renderer.workload_maps(cali, Some((AdminState::Active, None))) {
        table.set_verdict(Layer::Filter, map, MapKey::Interface(cali), verdict);
    }
    let purposes = [
        (Layer::Filter, HostDispatch::Filter),
        (Layer::Mangle, HostDispatch::MangleIngress),
        (Layer::Mangle, HostDispatch::MangleEgress),
        (Layer::Raw, HostDispatch::Raw),
    ];
    for (of, purpose) in purposes {
        let chains = renderer.host_dispatch(purpose, [HOST_INTERFACE.parse().unwrap()], false);
        chains.into_iter().for_each(|chain| table.update_chain(of, chain));
    }
    table.update_chain(Layer::Filter, renderer.cidr_block([], family));
    let mut set_names = BTreeMap::new();
    for of in Layer::ALL {
        for chain in layer(&renderer, state, family, of, admin_state) {
            // No rule jumps to the chains of the workload's policies while it is down.
            table.pin_chain(of, chain.name, true);
            set_names.extend(chain.rules.iter().flat_map(|rule| rule.matches.iter()).filter_map(|question| {
                match question {
                    Match::IpSet { set, with_port, .. } => Some((*set, *with_port)),
                    _ => None,
                }
            }));
            table.update_chain(of, chain);
        }
    }
    fill_sets(&mut table, state, family, set_names);
    let mut made = Vec::new();
    loop {
        match table.plan(Duration::ZERO) {
            Plan::Read => table.on_read(Duration::ZERO, Ok(None)),
            Plan::Commit(transaction) => {
                made.push(transaction);
                table.on_committed(Duration::ZERO, Ok(()));
            }
            Plan::Done { .. } => return made,
            other => panic!("{other:?}"),
        }
    }
}

/// Fills the sets of a state. The other sets that rules match, with ports or without, exist and are
/// empty.
fn fill_sets(table: &mut Table, state: &DesiredState, family: Family, set_names: BTreeMap<IpSetName, bool>) {
    for (name, with_port) in set_names {
        let set_type = if with_port { SetType::HashIpPort } else { SetType::HashNet };
        if !state.ip_sets.keys().any(|id| ip_set_name(family, id).unwrap() == name) {
            table.replace_set(&name.as_str().into(), name, set_type, []).unwrap();
        }
    }
    for (id, members) in &state.ip_sets {
        let (set_type, members): (_, Vec<Member>) = match members {
            Members::Nets(nets) => (SetType::HashNet, nets.iter().copied().map(Member::from).collect()),
            Members::IpPorts(ports) => (SetType::HashIpPort, ports.iter().copied().map(Member::from).collect()),
            Members::Domains(_) => continue,
        };
        let members = members.into_iter().filter(|member| member.family() == Some(family));
        table.replace_set(id, ip_set_name(family, id).unwrap(), set_type, members).unwrap();
    }
}

fn text(transactions: &[Transaction]) -> String {
    transactions.iter().map(ToString::to_string).collect()
}

/// Tables of both families, while the workload is up and while it is down.
struct Texts {
    up: [Ruleset; 2],
    down: [Ruleset; 2],
}

impl Texts {
    /// Renders a state, with its text changed by `spoil`.
    fn new(state: &DesiredState, spoil: &dyn Fn(String) -> String) -> Result<Self, TestCaseError> {
        let read = |family, admin_state| {
            let text = spoil(text(&transactions(state, family, admin_state)));
            Ruleset::parse(&text).map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))
        };
        let both = |state| Ok::<_, TestCaseError>([read(Family::V4, state)?, read(Family::V6, state)?]);
        Ok(Self { up: both(AdminState::Active)?, down: both(AdminState::Inactive)? })
    }

    fn walk(&self, question: Question, skb: &Skb) -> Result<Walked, TestCaseError> {
        let of = if question == Question::InactiveWorkload { &self.down } else { &self.up };
        let (layer, chain) = question.place();
        walk(of, LayeredName::new(layer, chain.as_str()).as_str(), skb)
    }

    /// Checks that the verdict maps find the workloads, from the base chains on.
    fn check_ways(&self, scenario: &Scenario) -> Result<(), TestCaseError> {
        let from = |question: Direction| match question {
            Direction::Ingress => [OTHER_INTERFACE, WORKLOAD_INTERFACE],
            Direction::Egress => [WORKLOAD_INTERFACE, OTHER_INTERFACE],
        };
        for packet in &scenario.packets {
            for direction in [Direction::Ingress, Direction::Egress] {
                let question = Question::Workload(direction);
                let expected =
                    question.evaluate(&scenario.state, packet).map_err(|e| TestCaseError::fail(e.to_string()))?;
                let [input, output] = from(direction);
                let check = |tables, skb: &Skb, outcome, may_reject: bool| {
                    let walked = walk(tables, "filter-FORWARD", skb)?;
                    let message = format!("{packet} from {input} to {output}: {walked:?}, not {outcome:?}");
                    let is_denied = may_reject && matches!(walked.outcome, PacketOutcome::Rejected(_));
                    if is_denied || walked.outcome == outcome { Ok(()) } else { Err(TestCaseError::fail(message)) }
                };
                let is = |tables, skb: &Skb, outcome| check(tables, skb, outcome, false);
                let is_allowed = expected == OracleVerdict::Allow;
                let outcome = if is_allowed { PacketOutcome::Accepted } else { PacketOutcome::Dropped };
                // Some policies and tiers reject.
                check(&self.up, &Skb::new(*packet, input, output), outcome, !is_allowed)?;
                is(&self.down, &Skb::new(*packet, input, output), PacketOutcome::Dropped)?;
                let unknown = |interface: &str| {
                    (if interface == WORKLOAD_INTERFACE { UNKNOWN_INTERFACE } else { interface }).to_owned()
                };
                is(&self.up, &Skb::new(*packet, &unknown(input), &unknown(output)), PacketOutcome::Dropped)?;
                // Packets without an endpoint pass.
                is(&self.up, &Skb::new(*packet, OTHER_INTERFACE, "eth8"), PacketOutcome::Returned)?;
            }
        }
        Ok(())
    }
}

fn walk(tables: &[Ruleset; 2], start: &str, skb: &Skb) -> Result<Walked, TestCaseError> {
    let table = &tables[usize::from(!skb.packet.is_ipv4())];
    let walk = table.walk(start, skb).map_err(|error| TestCaseError::fail(error.to_string()))?;
    Ok(Walked { outcome: walk.outcome, mark: walk.mark, untracked: walk.untracked, path: format!("{:?}", walk.path) })
}

fn check(scenario: &Scenario, spoil: &dyn Fn(String) -> String) -> Result<(), TestCaseError> {
    let texts = Texts::new(&scenario.state, spoil)?;
    check_walks(scenario, &config(), &|question, skb| texts.walk(question, skb))?;
    texts.check_ways(scenario)
}

#[test]
fn nftables_texts_have_the_verdicts_of_the_policies() {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(60);
    if let Err(error) = runner(cases, 3000).run(&scenarios(), |scenario| check(&scenario, &|text| text)) {
        panic!("{error}");
    }
}

/// Checks that the test detects each of these defects.
#[test]
fn defects_of_texts_are_detected() {
    fn without(text: &str, drop: impl Fn(&str) -> bool) -> String {
        text.lines().filter(|line| !drop(line)).fold(String::new(), |text, line| text + line + "\n")
    }
    let defects: [(&str, &dyn Fn(String) -> String); 9] = [
        ("a set is asked for the opposite", &|text| text.replacen("saddr != @", "saddr @", 1000)),
        ("ports are excluded in place of asked for", &|text| text.replace("tcp dport {", "tcp dport != {")),
        ("types and codes of ICMP are excluded", &|text| text.replace("@th,0,16 0x", "@th,0,16 != 0x")),
        ("an element is missing", &|text| {
            without(&text, |line| line.contains("add element") && line.contains("10.0.0.4"))
        }),
        ("a map does not lead to the workload", &|text| without(&text, |line| line.contains(": goto "))),
        ("unknown interfaces go their way", &|text| without(&text, |line| line.contains("Unknown interface"))),
        ("sides are exchanged", &|text| {
            text.replace("ip6 saddr", "ip6 xaddr").replace("ip6 daddr", "ip6 saddr").replace("ip6 xaddr", "ip6 daddr")
        }),
        ("tiers do not deny at their end", &|text| without(&text, |line| line.contains("End of tier"))),
        ("bits of others are cleared", &|text| text.replace("ffff comment", "fff0 comment")),
    ];
    for (defect, spoil) in defects {
        let result = runner(300, 0).run(&scenarios(), |scenario| check(&scenario, spoil));
        assert!(matches!(result, Err(TestError::Fail(..))), "not noticed: {defect}");
    }
}

#[test]
fn verdicts_of_both_walkers_are_read_alike() {
    let accept = config().marks.accept.get();
    let packet = Packet::with_ports(6, ([10, 0, 0, 1].into(), 1), ([10, 0, 0, 2].into(), 2));
    let table =
        Ruleset::parse("add table ip calico\nadd chain ip calico a\nadd rule ip calico a meta mark set 0x0").unwrap();
    let skb = Skb { mark: accept, ..Skb::new(packet, "", "") };
    let walk = table.walk("a", &skb).unwrap();
    assert_eq!(verdict(walk.outcome, skb.mark, accept), OracleVerdict::Allow);
    assert_eq!(verdict(walk.outcome, walk.mark, accept), OracleVerdict::Undecided);
}

kernel_test! {
    /// The same text goes through `nft`, which compiles it itself, and the same changes through
    /// netlink.
    fn nft_and_the_kernel_accept_texts_that_the_walker_accepts() {
        let mut runner = runner(1, 0);
        for _ in 0..6 {
            let scenario = {
                use proptest::strategy::{Strategy as _, ValueTree as _};
                scenarios().new_tree(&mut runner).unwrap().current()
            };
            for family in Family::ALL {
                let made = transactions(&scenario.state, family, AdminState::Active);
                let [by_text, by_messages] = [(), ()].map(|()| Namespace::new().unwrap());
                let text = text(&made);
                let mut nft = std::process::Command::new("nft");
                if let Err(error) = by_text.output(nft.args(["-f", "-"]), &text) {
                    panic!("{error}\n{text}");
                }
                let committed = by_messages.run(|| {
                    let mut nft = Nft::open().unwrap();
                    made.iter().try_for_each(|transaction| nft.commit(transaction))
                });
                committed.unwrap().unwrap();
                let listed = [by_text, by_messages].map(|namespace| namespace.shell("nft -s list ruleset").unwrap());
                assert_eq!(listed[0].lines().count(), listed[1].lines().count());
            }
        }
    }
}
