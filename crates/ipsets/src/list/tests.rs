use proptest::prelude::*;

use super::*;

/// As ipset 7.17 prints it.
const RECENT: &str = "\
Name: cali40s:abc
Type: hash:net
Revision: 7
Header: family inet hashsize 1024 maxelem 1048576 bucketsize 12 initval 0x46a1e978
Size in memory: 552
References: 0
Number of entries: 2
Members:
10.0.0.0/8
1.2.3.4
";

/// As ipset 6.11 printed it.
const OLD: &str = "\
Name: cali40s:abc
Type: hash:net
Header: family inet hashsize 1024 maxelem 1048576
Size in memory: 552
References: 0
Members:
10.0.0.0/8
1.2.3.4

";

fn read(text: &[u8], chunk: usize) -> (Vec<String>, Result<Listing, ListError>) {
    let name = IpSetName::new("cali40s:abc").unwrap();
    let mut reader = ListReader::new(name, Family::V4);
    let mut members = Vec::new();
    let mut lines = Lines::default();
    let mut line = |line: &[u8]| members.extend(reader.line(line).map(|member| member.to_string()));
    text.chunks(chunk).for_each(|chunk| lines.push(chunk, &mut line));
    let rest = lines.finish(&mut line);
    (members, rest.and_then(|()| reader.finish()))
}

#[test]
fn old_and_recent_listings() {
    let spec = SetSpec::new(SetType::HashNet);
    for text in [RECENT, OLD] {
        for chunk in [1, 7, 4096] {
            let (members, listing) = read(text.as_bytes(), chunk);
            assert_eq!(members, ["10.0.0.0/8", "1.2.3.4"]);
            let listing = listing.unwrap();
            assert_eq!(listing, Listing::written(spec, Family::V4));
            assert!(listing.is_exactly(&spec, Family::V4));
            assert!(!listing.is_exactly(&spec, Family::V6));
            assert!(!listing.is_exactly(&spec.with_max_elements(5), Family::V4));
            assert!(listing.is_swappable(&spec.with_max_elements(5), Family::V4));
            assert!(!listing.is_swappable(&SetSpec::new(SetType::HashIp), Family::V4));
        }
    }
}

#[test]
fn differences_that_matter() {
    let spec = SetSpec::new(SetType::HashNet);
    for (from, to) in [
        ("maxelem 1048576", "maxelem 1048576 timeout 0"),
        ("maxelem 1048576", "maxelem 1048576 counters"),
        ("maxelem 1048576", "maxelem 1048576 comment"),
        ("maxelem 1048576", "maxelem 65536"),
        ("maxelem 1048576", "maxelem"),
        ("family inet", "family inet6"),
        ("family inet", "family inet9"),
        ("1.2.3.4", "1.2.3.4 nomatch"),
        ("1.2.3.4", "1.2.3.4 timeout 5"),
        ("1.2.3.4", "fe80::1"),
        ("1.2.3.4", "\u{fffd}"),
        ("Type: hash:net", "Type: hash:net,iface"),
    ] {
        let (_, listing) = read(RECENT.replace(from, to).as_bytes(), 99);
        assert!(!listing.unwrap().is_exactly(&spec, Family::V4), "{to}");
    }
}

#[test]
fn bitmaps() {
    let text = "Name: cali40s:abc\nType: bitmap:port\nHeader: range 10-20\nMembers:\n10\n11\n";
    let (members, listing) = read(text.as_bytes(), 5);
    assert_eq!(members, ["10", "11"]);
    let listing = listing.unwrap();
    assert!(listing.is_exactly(&SetSpec::port_range(10, 20), Family::V6));
    assert!(listing.is_swappable(&SetSpec::new(SetType::BitmapPort), Family::V4));
    let (_, listing) = read(text.replace("10-20", "10").as_bytes(), 5);
    assert_eq!(listing.unwrap().spec(), None);
}

#[test]
fn malformed_listings_are_rejected() {
    let error = |text: &str| read(text.as_bytes(), 9).1.unwrap_err().to_string();
    assert_eq!(error(""), "listing of cali40s:abc: no `Name:`");
    assert_eq!(error("Name: cali40s:abc\nType: hash:ip\n"), "listing of cali40s:abc: no `Header:`");
    assert_eq!(error(&RECENT[..RECENT.find("Members").unwrap()]), "listing of cali40s:abc: no `Members:`");
    assert_eq!(
        error("Name: foreign\nType: hash:ip\nHeader: \nMembers:\n"),
        "listing: expected set cali40s:abc, got \"foreign\""
    );
    assert_eq!(error(&"x".repeat(20_000)), "listing: a line of more than 16384 bytes");
}

#[test]
fn nothing_is_read_beyond_the_blank_line() {
    let text = format!("{OLD}Name: other\n6.6.6.6\n");
    let (members, listing) = read(text.as_bytes(), 50);
    assert_eq!(members.len(), 2);
    assert!(listing.is_ok());
}

#[test]
fn names_that_are_ours() {
    let output = b"cali40s:x\ncali60s:x\ncali4t7\nfelix-4x\nfelix-6x\nfelix-masq-ipam-pools\ncali\nKUBE-X\n\xff\n\
        cali4 x\n\ncali40this-name-is-much-longer-than-the-kernel-takes\n";
    let names = |family| -> Vec<String> { owned_names(family, output).map(|name| name.to_string()).collect() };
    assert_eq!(names(Family::V4), ["cali40s:x", "cali4t7", "felix-4x", "felix-masq-ipam-pools"]);
    assert_eq!(names(Family::V6), ["cali60s:x", "felix-6x"]);
}

proptest! {
    #[test]
    fn any_cut_reads_the_same(chunk in 1usize..300, cut in 0usize..300) {
        let text = &RECENT.as_bytes()[..cut.min(RECENT.len())];
        prop_assert_eq!(read(text, chunk), read(text, 4096));
    }
}
