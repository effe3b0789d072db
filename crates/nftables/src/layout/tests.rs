use tortie_net::{Cidr, Protocol};
use tortie_netfilter::{Net, NflogPrefix, Origin, PortList};

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

/// All sets exist except one; their members are known.
#[derive(Default)]
struct FakeSets {
    missing: Option<IpSetName>,
    members: BTreeMap<IpSetName, Vec<Cidr>>,
}

impl FakeSets {
    /// Set N has these members.
    fn of(members: &[(u16, &[&str])]) -> Self {
        let cidrs = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        Self { missing: None, members: members.iter().map(|(set, texts)| (set_name(*set), cidrs(texts))).collect() }
    }
}

impl Sets for FakeSets {
    fn has(&self, set: IpSetName) -> bool {
        self.missing != Some(set)
    }

    fn members(&self, set: IpSetName, take: &mut dyn FnMut(Cidr)) {
        self.members.get(&set).into_iter().flatten().copied().for_each(take);
    }
}

fn laid_out(rules: Vec<Rule>) -> LaidOut {
    laid_out_with(rules, &FakeSets::default())
}

fn laid_out_with(rules: Vec<Rule>, sets: &FakeSets) -> LaidOut {
    lay_out(&Chain::new(name("cali-pi-x"), rules), Table::Filter, Family::V4, sets, usize::MAX).unwrap()
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
    // A union, which stores all members once more, needs more than a few rules.
    assert_eq!(counts(&laid_out((1..=3).map(|set| allow(from(set))).collect())), (3, 0, 0, 0));
    let sets = laid_out((1..=4).map(|set| allow(from(set))).collect());
    assert_eq!(counts(&sets), (1, 0, 0, 1));
    let question = Match::IpSet { side: Side::Source, set: sets.unions[0].0, with_port: false, negated: false };
    assert_eq!(sets.rules[0].matches[..], [question]);
}

#[test]
fn a_set_that_is_not_there_is_asked_for_by_itself() {
    let chain = Chain::new(name("cali-pi-x"), (1..=6).map(|set| allow(from(set))).collect());
    let laid_out = laid_out_with(chain.rules.clone(), &FakeSets { missing: Some(set_name(1)), ..FakeSets::default() });
    assert_eq!(counts(&laid_out), (2, 0, 0, 1));
    assert_eq!(laid_out.rules[0], chain.rules[0], "the kernel is to refuse it");
}

/// A rule with its own NFLOG prefix.
fn logged_rule(number: u16, matches: Matches) -> Rule {
    let prefix = NflogPrefix::new(&format!("API{number}|np/ns/web"));
    let mark = Action::SetMark(MarkBits::new(ACCEPT).unwrap());
    decide(matches, [mark, Action::Nflog { group: 1, prefix }, Action::Return])
}

#[test]
fn rules_with_nflog_prefixes_stay_separate() {
    assert_eq!(counts(&laid_out((1..=6).map(|number| logged_rule(number, from(number))).collect())), (6, 0, 0, 0));
}

#[test]
fn rules_that_stay_apart_are_found_by_address() {
    let rules = |count| (1..=count).map(|number| logged_rule(number, from(number))).collect::<Vec<_>>();
    let sets = FakeSets::of(&[
        (1, &["10.0.0.1/32", "10.0.0.2/32"]),
        (2, &["10.0.0.2/32"]),
        (3, &["10.0.0.0/24", "10.0.0.9/32"]),
    ]);
    assert_eq!(counts(&laid_out_with(rules(7), &sets)), (7, 0, 0, 0), "a map is for more than a few rules");
    let laid_out = laid_out_with(rules(8), &sets);
    // The map, and behind it the one rule with a network.
    assert_eq!(counts(&laid_out), (2, 3, 1, 0));
    assert_eq!(laid_out.rules[1], logged_rule(3, from(3)));
    let led_to = |host: &str| {
        let verdict = laid_out.maps[0].1.get(&MapKey::Address(host.parse().unwrap()))?;
        let Some(MapVerdict::Goto(chain)) = Some(*verdict) else { panic!("{verdict:?}") };
        let part = laid_out.parts.iter().find(|part| part.name == chain).unwrap();
        assert!(part.rules.iter().all(|rule| rule.matches.is_empty()), "{part:?}");
        let prefixes = part.rules.iter().map(|rule| match rule.action.as_ref().unwrap() {
            Action::Several(actions) => format!("{:?}", actions[1]),
            other => panic!("{other:?}"),
        });
        Some(prefixes.map(|text| text.split(['I', '|']).nth(1).unwrap().to_owned()).collect::<Vec<_>>())
    };
    assert_eq!(led_to("10.0.0.1"), Some(vec!["1".to_owned(), "3".to_owned()]));
    assert_eq!(led_to("10.0.0.2"), Some(vec!["1".to_owned(), "2".to_owned(), "3".to_owned()]));
    assert_eq!(led_to("10.0.0.9"), Some(vec!["3".to_owned()]));
    assert_eq!(led_to("10.0.0.3"), None, "the rule behind the map asks for its network");
}

#[test]
fn packets_with_a_verdict_from_an_address_map_meet_no_later_rule() {
    let sets = FakeSets::of(&[(1, &["10.0.0.1/32"])]);
    let mut rules: Vec<Rule> = (1..=8).map(|number| logged_rule(number, from(number))).collect();
    rules.push(Rule { origin: rules[0].origin.clone(), ..Rule::when(Matches::new(), Action::Drop) });
    let laid_out = laid_out_with(rules, &sets);
    assert_eq!(counts(&laid_out), (3, 1, 1, 0));
    assert!(laid_out.maps[0].1.values().all(|verdict| matches!(verdict, MapVerdict::Jump(_))));
    assert!(laid_out.rules[1].returns());
}

#[test]
fn rules_for_one_port_are_found_by_address_behind_the_map_of_ports() {
    let sets = FakeSets::of(&[(1, &["10.0.0.1/32"])]);
    let rules = (1..=20).map(|number| logged_rule(number, from(number).and_all(tcp(80 + number % 2)))).collect();
    let laid_out = laid_out_with(rules, &sets);
    // Set 1 is matched at port 81. The sets for port 80 have no members, so its rules stay.
    assert_eq!(laid_out.rules.len(), 1);
    assert_eq!(laid_out.maps.len(), 2);
    let of_ports: Vec<usize> = laid_out.parts.iter().map(|part| part.rules.len()).collect();
    assert_eq!(of_ports, [10, 1, 1]);
}

#[test]
fn maps_within_bounds_are_used() {
    let rules = || (1..=8).map(|number| logged_rule(number, from(number))).collect::<Vec<_>>();
    let nobody = laid_out_with(rules(), &FakeSets::of(&[]));
    assert_eq!((counts(&nobody), nobody.hosts.len()), ((8, 0, 0, 0), 1), "it may be one day");
    let networks: Vec<(u16, &[&str])> = (1..=8).map(|set| (set, ["10.0.0.0/8", "10.0.0.1/32"].as_slice())).collect();
    assert_eq!(
        counts(&laid_out_with(rules(), &FakeSets::of(&networks))),
        (8, 0, 0, 0),
        "most rules stay behind the map"
    );
}

#[test]
fn a_member_changes_only_its_own_elements() {
    let sets = FakeSets::of(&[(1, &["10.0.0.1/32", "10.0.0.2/32"]), (2, &["10.0.0.2/32"])]);
    let rules: Vec<Rule> = (1..=8).map(|number| logged_rule(number, from(number))).collect();
    let mut hosts = laid_out_with(rules.clone(), &sets).hosts.remove(0);
    let changes = hosts.edit(set_name(2), &["10.0.0.3/32".parse().unwrap()], &["10.0.0.2/32".parse().unwrap()]);
    assert_eq!(changes.verdicts.len(), 2);
    assert_eq!((changes.new.len(), changes.unused.len(), changes.lay_out), (1, 1, false));
    // The same as a layout with these members.
    let sets = FakeSets::of(&[(1, &["10.0.0.1/32", "10.0.0.2/32"]), (2, &["10.0.0.3/32"])]);
    assert_eq!(hosts, laid_out_with(rules, &sets).hosts[0]);
    // The rule of a network follows behind the map.
    let changes = hosts.edit(set_name(2), &["10.0.0.0/30".parse().unwrap()], &[]);
    assert!(changes.lay_out);
    assert_eq!(changes.verdicts.len(), 2, "those that were not led to the rule before");
}

#[test]
fn map_names_depend_on_the_surrounding_rules() {
    let sets = FakeSets::of(&[(1, &["10.0.0.1/32"])]);
    let rules = |count| (1..=count).map(|number| logged_rule(number, from(number))).collect::<Vec<_>>();
    let map = |rules| laid_out_with(rules, &sets).maps[0].0;
    assert_eq!(map(rules(8)), map(rules(9)), "one more rule behind the map changes its elements");
    let mut followed = rules(8);
    followed.push(Rule { origin: followed[0].origin.clone(), ..Rule::when(Matches::new(), Action::Drop) });
    assert_ne!(map(rules(8)), map(followed), "packets must not meet a map that changes with the rules around it");
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

    // A packet that returns with a verdict must not meet the rules behind.
    let deny = Rule { origin: last.parts[0].rules[0].origin.clone(), ..Rule::when(from(9), Action::Drop) };
    let followed = laid_out(rules(&[deny]));
    assert_eq!(counts(&followed), (3, 3, 1, 0));
    assert!(followed.maps[0].1.values().all(|verdict| matches!(verdict, MapVerdict::Jump(_))));
    let decided = Matches::new().mark_not_clear(MarkBits::new(ACCEPT).unwrap());
    assert_eq!((&followed.rules[1].matches, &followed.rules[1].action), (&decided, &Some(Action::Return)));
}

#[test]
fn rules_without_origin_stay_unchanged() {
    let rules: Vec<Rule> = (1..=8).map(|port| Rule::when(tcp(port), Action::Accept)).collect();
    assert_eq!(laid_out(rules.clone()), LaidOut { rules, ..LaidOut::default() });
}

#[test]
fn included_rules_keep_their_origin_and_separate_openings() {
    let group = Chain::new(
        name("cali-gi-x"),
        vec![Rule::new(Action::Include(name("a"))), Rule::new(Action::Include(name("b")))],
    );
    let expanded = expand(&group, |_| vec![allow(from(1)), allow(from(2)).comment("known")]);
    let actual: Vec<(&str, Option<u32>)> =
        expanded.rules.iter().map(|rule| (rule.comments[0].as_str(), rule.opens)).collect();
    let named = "NetworkPolicy/ns/web 0";
    assert_eq!(actual, [(named, Some(0)), ("known", Some(0)), (named, Some(1)), ("known", Some(1))]);
}
