use tortie_net::Protocol;
use tortie_netfilter::{Net, NflogPrefix, Origin};

use super::*;

fn name(text: &str) -> ChainName {
    text.parse().unwrap()
}

const ACCEPT: u32 = 0x1_0000;

fn allow(matches: Matches) -> Rule {
    decide(matches, [Action::SetMark(MarkBits::new(ACCEPT).unwrap()), Action::Return])
}

fn decide<const N: usize>(matches: Matches, actions: [Action; N]) -> Rule {
    let origin = Some(Origin { owner: "NetworkPolicy/ns/web".into(), part: Some(0) });
    Rule { origin, opens: Some(0), ..Rule::when(matches, Action::Several(actions.into())) }
}

fn tcp(port: u16) -> Matches {
    Matches::new().protocol(Protocol::TCP).destination_ports(PortList::single(port))
}

fn from(set: u16) -> Matches {
    Matches::new().ip_set(Side::Source, set_name(set))
}

fn set_name(number: u16) -> IpSetName {
    IpSetName::new(&format!("cali40s-{number}")).unwrap()
}

fn net(number: u8) -> Net {
    Net::Address([10, 0, 0, number].into())
}

fn laid_out(rules: Vec<Rule>) -> LaidOut {
    lay_out(&Chain::new(name("cali-pi-x"), rules), Table::Filter, Family::V4, |_| true)
}

fn counts(laid_out: &LaidOut) -> (usize, usize, usize, usize) {
    (laid_out.rules.len(), laid_out.parts.len(), laid_out.maps.len(), laid_out.unions.len())
}

#[test]
fn rules_that_differ_in_ports_only_become_one() {
    let laid_out = laid_out((1..=20).map(|port| allow(from(1).and_all(tcp(port)))).collect());
    assert_eq!(counts(&laid_out), (1, 0, 0, 0));
    let Some(Match::Ports { ports, .. }) = laid_out.rules[0].matches.last() else { panic!("{laid_out:?}") };
    assert_eq!(ports.ranges().len(), 20);
    let comments: Vec<&str> = laid_out.rules[0].comments.iter().map(tortie_netfilter::Comment::as_str).collect();
    assert_eq!(comments, ["NetworkPolicy/ns/web 0", "and 19 more"]);
}

#[test]
fn rules_that_differ_in_addresses_only_ask_for_one_set() {
    let nets = laid_out(vec![allow(Matches::new().source(net(1))), allow(Matches::new().source(net(2)))]);
    assert_eq!(counts(&nets), (1, 0, 0, 1));
    assert_eq!(nets.unions[0].1.nets.len(), 2);
    // A set that holds all members once more is for more than a few rules.
    assert_eq!(counts(&laid_out((1..=3).map(|set| allow(from(set))).collect())), (3, 0, 0, 0));
    let sets = laid_out((1..=4).map(|set| allow(from(set))).collect());
    assert_eq!(counts(&sets), (1, 0, 0, 1));
    let question = Match::IpSet { side: Side::Source, set: sets.unions[0].0, with_port: false, negated: false };
    assert_eq!(sets.rules[0].matches[..], [question]);
}

#[test]
fn a_set_that_is_not_there_is_asked_for_by_itself() {
    let chain = Chain::new(name("cali-pi-x"), (1..=6).map(|set| allow(from(set))).collect());
    let laid_out = lay_out(&chain, Table::Filter, Family::V4, |set| set != set_name(1));
    assert_eq!(counts(&laid_out), (2, 0, 0, 1));
    assert_eq!(laid_out.rules[0], chain.rules[0], "the kernel is to refuse it");
}

#[test]
fn rules_that_tell_their_names_stay_apart() {
    let told = |number: u16| {
        let prefix = NflogPrefix::new(&format!("API{number}|np/ns/web"));
        let mark = Action::SetMark(MarkBits::new(ACCEPT).unwrap());
        decide(from(number), [mark, Action::Nflog { group: 1, prefix }, Action::Return])
    };
    assert_eq!(counts(&laid_out((1..=6).map(told).collect())), (6, 0, 0, 0));
}

#[test]
fn rules_for_ports_are_found_by_port() {
    let rules = |behind: &[Rule]| {
        let by_port = (1..=5).map(|number| allow(from(number).and_all(tcp(number % 3))));
        by_port.chain(behind.iter().cloned()).collect::<Vec<_>>()
    };
    let last = laid_out(rules(&[]));
    assert_eq!(counts(&last), (1, 3, 1, 0));
    assert!(last.maps[0].1.values().all(|verdict| matches!(verdict, MapVerdict::Goto(_))));
    assert_eq!(last.parts[1].rules.len(), 2, "of port 1: {:?}", last.parts);
    assert_eq!(last.parts[1].rules[0].matches, from(1));

    // What comes back with a verdict must not meet what follows.
    let deny = Rule { origin: last.parts[0].rules[0].origin.clone(), ..Rule::when(from(9), Action::Drop) };
    let followed = laid_out(rules(&[deny]));
    assert_eq!(counts(&followed), (3, 3, 1, 0));
    assert!(followed.maps[0].1.values().all(|verdict| matches!(verdict, MapVerdict::Jump(_))));
    let decided = Matches::new().mark_not_clear(MarkBits::new(ACCEPT).unwrap());
    assert_eq!((&followed.rules[1].matches, &followed.rules[1].action), (&decided, &Some(Action::Return)));
}

#[test]
fn rules_of_nobody_stay_as_they_are() {
    let rules: Vec<Rule> = (1..=8).map(|port| Rule::when(tcp(port), Action::Accept)).collect();
    assert_eq!(laid_out(rules.clone()), LaidOut { rules, ..LaidOut::default() });
}

#[test]
fn included_rules_say_whose_they_are_and_open_by_themselves() {
    let group = Chain::new(
        name("cali-gi-x"),
        vec![Rule::new(Action::Include(name("a"))), Rule::new(Action::Include(name("b")))],
    );
    let expanded = expand(&group, |_| vec![allow(from(1)), allow(from(2)).comment("known")]);
    let said: Vec<(&str, Option<u32>)> =
        expanded.rules.iter().map(|rule| (rule.comments[0].as_str(), rule.opens)).collect();
    let named = "NetworkPolicy/ns/web 0";
    assert_eq!(said, [(named, Some(0)), ("known", Some(0)), (named, Some(1)), ("known", Some(1))]);
}
