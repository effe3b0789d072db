use std::sync::Arc;

use tortie_linux::netlink::{Flow, LoggedHeaders, Tuple};
use tortie_model::desired::{self, DesiredUpdate, RuleSets};
use tortie_model::{Family, PolicyId, PolicyKind, Rule, RuleAction};
use tortie_rules::RulesConfig;
use tortie_rules::names::policy_chain;

use super::*;
use crate::trace::live::listing::Listing;
use crate::trace::live::steps::{ChainName, FlowDirection, RuleName};

/// The chain of a policy that denies, and then allows, as the kernel lists it.
const LISTING: &str = "\
*filter
:FORWARD ACCEPT [0:0]
:cali-pi-np/shop/db - [0:0]
[1:60] -A FORWARD -j cali-FORWARD
[1:60] -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
[1:60] -A cali-pi-np/shop/db -j MARK --set-xmark 0x40000/0x40000
[1:60] -A cali-pi-np/shop/db -m mark --mark 0x40000/0x40000 -j DROP
[1:60] -A cali-pi-np/shop/db -j MARK --set-xmark 0x10000/0x10000
COMMIT
";

/// The chain that rejects, and its last rule.
const REJECTING: &str = "\
:cali-reject - [0:0]
[1:60] -A cali-reject -j DROP
COMMIT
";

fn rules() -> Rules {
    let listing = Listing::parse(LISTING);
    Rules { legacy: listing.clone(), legacy_before: listing, ..Rules::default() }
}

fn policy() -> PolicyId {
    PolicyId::new(PolicyKind::NetworkPolicy, "shop", "db")
}

fn owners() -> Owners {
    let of = |action| Rule::new(action);
    let list = [of(RuleAction::Deny), of(RuleAction::Allow)];
    let inbound = desired::Rules::new(Arc::new(list), vec![RuleSets::default(); 2].into()).unwrap();
    let rules = desired::Policy {
        source: Arc::default(),
        selector: "all()".into(),
        inbound,
        outbound: desired::Rules::default(),
    };
    let update = DesiredUpdate::Policy(policy(), rules.into());
    Owners::new(&[update], &RulesConfig::default(), Family::V4)
}

fn step(chain: &str, number: usize) -> Step {
    let chain = ChainName::Legacy { table: "filter".into(), chain: chain.into() };
    Step { chain, event: ChainEvent::Rule(RuleName::Number(number), None) }
}

fn packet(steps: &[Step], out: Option<Exit>) -> Packet {
    let tuple = Tuple {
        source: [10, 0, 0, 1].into(),
        destination: [10, 0, 0, 2].into(),
        protocol: 6,
        flow: Flow::Ports { source: 50000, destination: 80 },
    };
    let headers = LoggedHeaders { tuple, length: 60 };
    Packet {
        direction: FlowDirection::Original,
        first: headers,
        last: headers,
        tcp_flags: Some(2),
        in_interface: None,
        out_interface: None,
        steps: steps.to_vec(),
        out,
    }
}

#[test]
fn a_packet_that_came_out_was_not_dropped() {
    let chain = policy_chain(Direction::Ingress, &policy()).to_string();
    let steps = [step("FORWARD", 1), step(&chain, 2)];
    assert_eq!(PacketOutcome::of(&packet(&steps, None), &rules()), PacketOutcome::Dropped(1));
    assert_eq!(PacketOutcome::of(&packet(&steps, Some(Exit::Node)), &rules()), PacketOutcome::Passed(Exit::Node));
    assert_eq!(PacketOutcome::of(&packet(&steps[..1], None), &rules()), PacketOutcome::Vanished);
}

#[test]
fn a_rejected_packet_is_denied_by_the_rule_that_leads_to_the_rejecting_chain() {
    let listing = LISTING.replace("-j DROP", "-g cali-reject").replace("COMMIT\n", REJECTING);
    let listing = Listing::parse(&listing);
    let rules = Rules { legacy: listing.clone(), legacy_before: listing, ..Rules::default() };
    let chain = policy_chain(Direction::Ingress, &policy()).to_string();
    let packet = packet(&[step("FORWARD", 1), step(&chain, 2), step("cali-reject", 1)], None);
    assert_eq!(PacketOutcome::of(&packet, &rules), PacketOutcome::Dropped(1));
    let decided = decisions(&packet, &rules, &owners());
    assert_eq!(decided.iter().map(describe).collect::<Vec<_>>(), ["NetworkPolicy/shop/db, ingress rule 0"]);
}

#[test]
fn decisions_name_the_rules_of_the_policy() {
    let chain = policy_chain(Direction::Ingress, &policy()).to_string();
    let decided = |number| decisions(&packet(&[step("FORWARD", 1), step(&chain, number)], None), &rules(), &owners());
    for (number, rule) in [(2, 0), (3, 1)] {
        let owner = Owner::Policy(policy());
        assert_eq!(decided(number), [Decision { direction: Direction::Ingress, owner, rule: Some(rule) }], "{number}");
    }
    assert_eq!(describe(&decided(3)[0]), "NetworkPolicy/shop/db, ingress rule 1");
    assert!(decided(1).is_empty(), "it only marks the packet");
    assert!(decided(4).is_empty(), "there is no such rule");
}

/// The connection meets no endpoint of the node.
#[test]
fn kernel_and_calculation_are_compared() {
    let node = Hostname::new("n1");
    let nothing = Connection::default();
    let compared = |steps: &[Step], out| compare(&nothing, &node, &packet(steps, out), (&rules(), None), &owners());
    let chain = policy_chain(Direction::Ingress, &policy()).to_string();
    let (first, drop, established) = (step("FORWARD", 1), step(&chain, 2), step("FORWARD", 2));
    assert_eq!(compared(std::slice::from_ref(&first), Some(Exit::Interface)), Agreement::Agree);
    let dropped = compared(&[first.clone(), drop], None);
    let expected = format!("the kernel drops a packet that policy allows, in table filter, chain {chain}");
    assert_eq!(dropped, Agreement::Disagree(expected));
    assert!(
        matches!(compared(std::slice::from_ref(&first), None), Agreement::NotCompared(why) if why.contains("routes"))
    );
    let known = compared(&[first, established], Some(Exit::Interface));
    assert!(matches!(known, Agreement::NotCompared(why) if why.contains("from before the trace")));
}
