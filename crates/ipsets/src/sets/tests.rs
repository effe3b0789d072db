use tortie_net::{IpPortMember, PortProtocol, with_causes};

use super::*;
use crate::names::{is_owned, is_temporary, temporary_name};

fn id(text: &str) -> IpSetId {
    IpSetId::new(text)
}

fn net(text: &str) -> Member {
    text.parse::<tortie_net::Cidr>().unwrap().into()
}

fn sets() -> IpSets {
    IpSets::new(Family::V4, Config::default())
}

const NONE: [Member; 0] = [];

#[test]
fn names_are_cut_at_31_bytes() {
    let name = |family, text| ip_set_name(family, &id(text)).unwrap().to_string();
    let long = "s:AMAB7BNa5u3MmIiwZrblkWtHt0jdW3Fh9pFWhA";
    assert_eq!(name(Family::V4, long), "cali40s:AMAB7BNa5u3MmIiwZrblkWt");
    assert_eq!(name(Family::V6, long), "cali60s:AMAB7BNa5u3MmIiwZrblkWt");
    assert_eq!(name(Family::V4, "all-hosts-net"), "cali40all-hosts-net");
    let temporary = temporary_name(Family::V4, u64::MAX);
    assert_eq!(temporary.as_str(), "cali4t18446744073709551615");
    assert!(is_temporary(&temporary, Family::V4) && is_owned(&temporary, Family::V4));
    assert!(!is_temporary(&temporary, Family::V6) && !is_owned(&temporary, Family::V6));
}

#[test]
fn ids_that_no_name_can_be_made_of_are_refused() {
    let long = format!("{} x", "x".repeat(40));
    for text in ["", "a b", "a\n", "ä", "a\"", "#a", &long] {
        let refused = sets().add_or_replace(&id(text), SetSpec::new(SetType::HashIp), NONE);
        assert!(matches!(refused, Err(UpdateError::Name(InvalidName { name, .. })) if name == text), "{text:?}");
        assert_eq!(sets().remove(&id(text)), Err(UpdateError::UnknownSet(id(text))));
    }
}

#[test]
fn ids_with_the_same_name_are_distinguished() {
    let mut sets = sets();
    let first = id("s:0123456789012345678901234-first");
    let second = id("s:0123456789012345678901234-second");
    let spec = SetSpec::new(SetType::HashIp);
    sets.add_or_replace(&first, spec, NONE).unwrap();
    let error = sets.add_or_replace(&second, spec, NONE).unwrap_err();
    assert_eq!(error, UpdateError::NameTaken { id: second.clone(), other: first.clone() });
    assert_eq!(sets.remove(&second), Err(UpdateError::UnknownSet(second.clone())));
    sets.remove(&first).unwrap();
    sets.add_or_replace(&second, spec, NONE).unwrap();
    assert_eq!(sets.len(), 1);
}

#[test]
fn unknown_sets_are_errors() {
    let mut sets = sets();
    let unknown = UpdateError::UnknownSet(id("x"));
    assert_eq!(sets.add_members(&id("x"), NONE), Err(unknown.clone()));
    assert_eq!(sets.remove_members(&id("x"), NONE), Err(unknown.clone()));
    assert_eq!(sets.remove(&id("x")), Err(unknown));
    assert_eq!(sets.desired_members(&id("x")), None);
}

#[test]
fn bad_members_are_named_and_the_rest_accepted() {
    let mut sets = sets();
    let port = Member::from(IpPortMember::new("10.0.0.1".parse().unwrap(), PortProtocol::Tcp, 80));
    let wanted = [net("10.0.0.1/32"), port, net("10.0.0.0/8"), net("fe80::1/128"), net("10.0.0.2/32")];
    let error = sets.add_or_replace(&id("a"), SetSpec::new(SetType::HashIp), wanted).unwrap_err();
    assert_eq!(with_causes(&error), "IP set a: 2 members left out: 10.0.0.1,tcp:80 cannot be stored in a hash:ip set");
    let members = sets.desired_members(&id("a")).unwrap();
    assert_eq!(members, [net("10.0.0.1/32"), net("10.0.0.2/32")]);

    let spec = SetSpec::port_range(20, 10);
    let error = sets.add_or_replace(&id("b"), spec, [9, 10, 20, 21].map(Member::Port)).unwrap_err();
    assert!(matches!(error, UpdateError::BadMembers { count: 2, .. }));
}

#[test]
fn replacing_may_change_the_type() {
    let mut sets = sets();
    sets.add_or_replace(&id("a"), SetSpec::new(SetType::HashIp), [net("10.0.0.1/32")]).unwrap();
    sets.add_or_replace(&id("a"), SetSpec::new(SetType::BitmapPort), [Member::Port(1)]).unwrap();
    assert_eq!(sets.desired_members(&id("a")), Some(vec![Member::Port(1)]));
    assert_eq!(sets.ids().collect::<Vec<_>>(), [&id("a")]);
    assert_eq!(sets.render(), "create cali40a bitmap:port range 0-65535\nadd cali40a 1\nCOMMIT\n");
    sets.remove(&id("a")).unwrap();
    assert!(sets.is_empty() && sets.sets.is_empty() && sets.dirty.is_empty() && sets.to_destroy.is_empty());
    assert_eq!(sets.render(), "COMMIT\n");
}
