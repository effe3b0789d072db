use proptest::prelude::*;
use tortie_netfilter::Action;

use super::*;

const SETS: u16 = 4;

fn set_name(number: u16) -> IpSetName {
    IpSetName::new(&format!("cali40s-{number}")).unwrap()
}

/// Members of each set.
#[derive(Clone, Debug, Default)]
struct FakeSets(BTreeMap<IpSetName, BTreeSet<Cidr>>);

impl Sets for FakeSets {
    fn has(&self, _: IpSetName) -> bool {
        true
    }

    fn members(&self, set: IpSetName, take: &mut dyn FnMut(Cidr)) {
        self.0.get(&set).into_iter().flatten().copied().for_each(take);
    }
}

/// Six rules; each matches one or two sets, and one of them a network as well.
fn hosts(sets: &FakeSets) -> Hosts {
    let rules = (0..6).map(|number| Rule::new(Action::Drop).comment(format!("rule {number}"))).collect();
    let wanted = (0..6_u16).map(|number| AddressUnion {
        nets: (number == 5).then(|| "10.0.0.2/31".parse().unwrap()).into_iter().collect(),
        sets: [number % SETS, (number / 2) % SETS].map(set_name).into(),
    });
    let wanted: Vec<AddressUnion> = wanted.collect();
    let mut hosts = Hosts::new(rules, &wanted, true, sets, usize::MAX).0;
    hosts.name("cali-pm-x".parse().unwrap());
    hosts
}

fn members() -> impl Strategy<Value = Cidr> {
    (0..8_u8, prop_oneof![3 => Just(32), 1 => 29..32_u8])
        .prop_map(|(last, len)| Cidr::new([10, 0, 0, last].into(), len).unwrap().masked())
}

#[test]
fn more_members_of_rules_than_the_bound_are_not_kept() {
    let member = |number: u32| Cidr::host(std::net::Ipv4Addr::from_bits(0x0a00_0000 + number).into());
    let sets = FakeSets([(set_name(0), (0..2048).map(member).collect())].into());
    let rules: Vec<Rule> = (0..3000).map(|_| Rule::new(Action::Drop)).collect();
    let wanted = vec![AddressUnion { nets: BTreeSet::new(), sets: [set_name(0)].into() }; rules.len()];
    let mut hosts = Hosts::new(rules, &wanted, true, &sets, usize::MAX).0;
    assert!(!hosts.is_used());
    assert!(hosts.hosts.is_empty() && hosts.classes.is_empty() && hosts.sets().next().is_none());
    assert_eq!(hosts.edit(set_name(0), &[member(5000)], &[member(0)]), HostChanges::default());
    // The member that exceeds the bound drops a map in use, and the chain is laid out again.
    let rules: Vec<Rule> = (0..60).map(|_| Rule::new(Action::Drop)).collect();
    let wanted = vec![AddressUnion { nets: BTreeSet::new(), sets: [set_name(0)].into() }; rules.len()];
    let mut hosts = Hosts::new(rules, &wanted, true, &sets, usize::MAX).0;
    assert!(hosts.is_used());
    let added: Vec<Cidr> = (2048..u32::try_from(MAX_HELD).unwrap() / 60 + 2).map(member).collect();
    assert!(hosts.edit(set_name(0), &added, &[]).lay_out);
    assert!(!hosts.is_used() && hosts.hosts.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// After any history of members, the map and its chains equal those built from the current
    /// members, and an address leads exactly to the rules that have it.
    #[test]
    fn the_result_depends_on_current_members_only(history in prop::collection::vec((0..SETS, members(), any::<bool>()), 1..40)) {
        let mut sets = FakeSets::default();
        let mut edited = hosts(&sets);
        let mut chains: BTreeMap<ChainName, Chain> = edited.chains().map(|chain| (chain.name, chain)).collect();
        let mut map = edited.members();
        for (set, member, is_new) in history {
            let members = sets.0.entry(set_name(set)).or_default();
            let changes = match is_new {
                true if members.insert(member) => edited.edit(set_name(set), &[member], &[]),
                false if members.remove(&member) => edited.edit(set_name(set), &[], &[member]),
                _ => continue,
            };
            chains.extend(changes.new.into_iter().map(|chain| (chain.name, chain)));
            for (key, verdict) in changes.verdicts {
                match verdict {
                    Some(verdict) => map.insert(key, verdict),
                    None => map.remove(&key),
                };
            }
            for unused in changes.unused {
                prop_assert!(chains.remove(&unused).is_some(), "{unused} was not there");
            }
            let made = hosts(&sets);
            prop_assert_eq!(&made, &edited);
            prop_assert_eq!(&map, &made.members());
            prop_assert_eq!(chains.values().cloned().collect::<Vec<_>>(), made.chains().map(|chain| (chain.name, chain)).collect::<BTreeMap<_, _>>().into_values().collect::<Vec<_>>());
        }
        let mut is_led_to = BTreeSet::new();
        for last in 0..8_u8 {
            let address = IpAddr::from([10, 0, 0, last]);
            let holds = |number: u16| {
                let of = [number % SETS, (number / 2) % SETS];
                let mut nets: Vec<Cidr> = of.iter().filter_map(|set| sets.0.get(&set_name(*set))).flatten().copied().collect();
                nets.extend((number == 5).then(|| "10.0.0.2/31".parse::<Cidr>().unwrap()));
                nets.iter().any(|net| net.contains(address))
            };
            let wanted: Vec<Rule> = (0..6).filter(|number| holds(*number)).map(|number| {
                Rule::new(Action::Drop).comment(format!("rule {number}"))
            }).collect();
            if let Some(verdict) = map.get(&MapKey::Address(address)) {
                is_led_to.insert(address);
                prop_assert_eq!(&chains[&verdict.target().unwrap()].rules, &wanted);
            } else {
                let behind: Vec<usize> = edited.with_networks().collect();
                for number in (0..6).filter(|number| holds(*number)) {
                    prop_assert!(behind.contains(&usize::from(number)), "{address} is not led to rule {number}");
                }
            }
        }
    }
}
