//! Against the kernel, read back by programs.

use std::time::Duration;

use tortie_lab::kernel_test;
use tortie_lab::netns::Namespace;
use tortie_model::Family;

use super::*;

const TIMEOUT: Duration = Duration::from_secs(20);

fn member(text: &str) -> SetMember {
    let (address, interface) = text.split_once(',').map_or((text, None), |(address, name)| (address, Some(name)));
    SetMember { interface: interface.map(|name| name.parse().unwrap()), address: address.parse().unwrap() }
}

fn change<'a>(set: &'a str, text: &str, is_added: bool) -> MemberChange<'a> {
    MemberChange { set, member: member(text), is_added }
}

fn members(texts: &[&str]) -> Option<Vec<SetMember>> {
    let mut members: Vec<SetMember> = texts.iter().map(|text| member(text)).collect();
    members.sort_unstable();
    Some(members)
}

/// Returns the members of a set as `ipset` lists them.
fn listed(namespace: &Namespace, set: &str) -> Vec<String> {
    let text = namespace.shell(&format!("ipset list {set}")).unwrap();
    let mut lines: Vec<String> =
        text.lines().skip_while(|line| *line != "Members:").skip(1).map(str::to_owned).collect();
    lines.sort();
    lines
}

fn ip_sets() -> (Namespace, IpSetMembers) {
    let namespace = Namespace::new().unwrap();
    let sets = [
        "ipset create w4 hash:net,iface",
        "ipset create w6 hash:net,iface family inet6",
        "ipset create h4 hash:ip",
        "ipset create h6 hash:ip family inet6",
        "ipset create small hash:ip maxelem 2",
    ];
    namespace.shell(&sets.join("; ")).unwrap();
    let ip_sets = namespace.run(|| IpSetMembers::open(TIMEOUT)).unwrap().unwrap();
    (namespace, ip_sets)
}

fn tables() -> (Namespace, NftMembers) {
    let namespace = Namespace::new().unwrap();
    let mut lines = Vec::new();
    for (family, kind) in [("ip", "ipv4_addr"), ("ip6", "ipv6_addr")] {
        lines.push(format!("add table {family} calico"));
        lines.push(format!("add set {family} calico w {{ type ifname . {kind}; }}"));
        lines.push(format!("add set {family} calico h {{ type {kind}; }}"));
    }
    namespace.shell(&format!("nft '{}'", lines.join("; "))).unwrap();
    let sets = namespace.run(|| NftMembers::open("calico", TIMEOUT)).unwrap().unwrap();
    (namespace, sets)
}

#[test]
fn a_message_has_changes_of_one_kind_in_their_order() {
    let changes = [
        change("a", "192.0.2.1", true),
        change("a", "192.0.2.2", true),
        change("a", "192.0.2.3", true),
        change("a", "2001:db8::1", true),
        change("a", "192.0.2.4", false),
        change("b", "192.0.2.4", false),
        change("b", "192.0.2.1", true),
    ];
    let lengths: Vec<usize> = messages(&changes, 2).map(<[_]>::len).collect();
    assert_eq!(lengths, [2, 1, 1, 1, 1, 1]);
    assert_eq!(messages(&changes, 2).flatten().count(), changes.len());
    assert_eq!(messages(&[], 2).count(), 0);
}

kernel_test! {
    fn members_of_ip_sets_are_those_that_ipset_lists() {
        let (namespace, mut sets) = ip_sets();
        let added = [
            change("w4", "192.0.2.1,cali1", true),
            change("w4", "192.0.2.1,cali-longest-15", true),
            change("w6", "2001:db8::1,cali1", true),
            change("h4", "192.0.2.7", true),
            change("h6", "2001:db8::7", true),
        ];
        for _ in 0..2 {
            assert!(sets.write(&added).unwrap().iter().all(Result::is_ok), "twice is once");
        }
        assert_eq!(listed(&namespace, "w4"), ["192.0.2.1,cali-longest-15", "192.0.2.1,cali1"]);
        assert_eq!(listed(&namespace, "w6"), ["2001:db8::1,cali1"]);
        assert_eq!(listed(&namespace, "h4"), ["192.0.2.7"]);
        assert_eq!(sets.list("w4").unwrap(), members(&["192.0.2.1,cali1", "192.0.2.1,cali-longest-15"]));
        assert_eq!(sets.list("w6").unwrap(), members(&["2001:db8::1,cali1"]));
        assert_eq!(sets.list("h6").unwrap(), members(&["2001:db8::7"]));

        let deleted = [change("w4", "192.0.2.1,cali1", false), change("h4", "192.0.2.9", false)];
        assert!(sets.write(&deleted).unwrap().iter().all(Result::is_ok), "an absent member is no error");
        assert_eq!(listed(&namespace, "w4"), ["192.0.2.1,cali-longest-15"]);
        namespace.shell("ipset add w4 198.51.100.0/24,cali1").unwrap();
        assert_eq!(sets.list("w4").unwrap(), members(&["192.0.2.1,cali-longest-15"]), "a network is no member");
        assert_eq!(sets.list("absent").unwrap(), None);
    }

    fn a_refused_member_of_an_ip_set_stops_no_other() {
        let (namespace, mut sets) = ip_sets();
        let changes = [
            change("h4", "192.0.2.1", true),
            change("small", "192.0.2.1", true),
            change("small", "192.0.2.2", true),
            change("small", "192.0.2.3", true),
            change("absent", "192.0.2.3", true),
            change("h4", "192.0.2.2", true),
        ];
        let outcomes = sets.write(&changes).unwrap();
        let texts: Vec<String> =
            outcomes.iter().map(|outcome| outcome.as_ref().map_or_else(ToString::to_string, |()| "ok".to_owned())).collect();
        let full = "members of an IP set: the set is full";
        assert_eq!(texts, ["ok", "ok", "ok", full, "members of an IP set", "ok"]);
        assert!(outcomes[4].as_ref().unwrap_err().is_not_found());
        assert_eq!(listed(&namespace, "small"), ["192.0.2.1", "192.0.2.2"]);
        assert_eq!(listed(&namespace, "h4"), ["192.0.2.1", "192.0.2.2"]);
    }

    fn thousands_of_members_take_few_messages_and_are_listed_whole() {
        let (_ip_sets, mut ip_sets) = ip_sets();
        let (_tables, mut nft) = tables();
        let addresses: Vec<String> = (0..5_000).map(|n| format!("10.0.{}.{},cali{}", n / 256, n % 256, n % 60)).collect();
        let texts: Vec<&str> = addresses.iter().map(String::as_str).collect();
        let added: Vec<MemberChange<'_>> = texts.iter().map(|text| change("w4", text, true)).collect();
        assert!(ip_sets.write(&added).unwrap().iter().all(Result::is_ok));
        assert_eq!(ip_sets.list("w4").unwrap(), members(&texts));
        let added: Vec<MemberChange<'_>> = texts.iter().map(|text| change("w", text, true)).collect();
        assert!(nft.write(&added).unwrap().iter().all(Result::is_ok));
        assert_eq!(nft.list(Family::V4, "w").unwrap(), members(&texts));
    }

    fn members_of_nftables_sets_are_those_that_nft_lists() {
        let (namespace, mut sets) = tables();
        let added = [
            change("w", "192.0.2.1,cali1", true),
            change("w", "192.0.2.1,cali-longest-15", true),
            change("w", "2001:db8::1,cali1", true),
            change("h", "192.0.2.7", true),
            change("h", "2001:db8::7", true),
        ];
        for _ in 0..2 {
            assert!(sets.write(&added).unwrap().iter().all(Result::is_ok), "twice is once");
        }
        let shown = namespace.shell("nft list ruleset").unwrap();
        for element in ["\"cali1\" . 192.0.2.1", "\"cali-longest-15\" . 192.0.2.1", "\"cali1\" . 2001:db8::1", "192.0.2.7"] {
            assert!(shown.contains(element), "{element}: {shown}");
        }
        assert_eq!(sets.list(Family::V4, "w").unwrap(), members(&["192.0.2.1,cali1", "192.0.2.1,cali-longest-15"]));
        assert_eq!(sets.list(Family::V6, "w").unwrap(), members(&["2001:db8::1,cali1"]));
        assert_eq!(sets.list(Family::V6, "h").unwrap(), members(&["2001:db8::7"]));
        assert_eq!(sets.list(Family::V4, "absent").unwrap(), None);

        // An absent member in the same message as a present one, and a set that is absent.
        let changes = [
            change("w", "192.0.2.1,cali1", false),
            change("w", "192.0.2.8,cali1", false),
            change("absent", "192.0.2.1,cali1", true),
            change("h", "192.0.2.8", true),
        ];
        let outcomes = sets.write(&changes).unwrap();
        assert_eq!(outcomes.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, true, false, true]);
        assert!(outcomes[2].as_ref().unwrap_err().is_not_found());
        assert_eq!(sets.list(Family::V4, "w").unwrap(), members(&["192.0.2.1,cali-longest-15"]));
        assert_eq!(sets.list(Family::V4, "h").unwrap(), members(&["192.0.2.7", "192.0.2.8"]));
        let none = namespace.run(|| NftMembers::open("absent", TIMEOUT)).unwrap().unwrap().list(Family::V4, "w").unwrap();
        assert_eq!(none, None);
    }
}
