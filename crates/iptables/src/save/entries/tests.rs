use super::*;
use crate::{RuleHash, SaveReader};

/// Entries of a table without counters and addresses, and the hooks of the table.
struct Listing {
    family: Family,
    bytes: Vec<u8>,
    hooks: [Option<u32>; 5],
}

fn extension(name: &str, data: &[u8]) -> Vec<u8> {
    let len = EXTENSION_HEADER + data.len().next_multiple_of(8);
    let mut bytes = vec![0; len];
    bytes[..2].copy_from_slice(&u16::try_from(len).expect("short").to_ne_bytes());
    bytes[2..2 + name.len()].copy_from_slice(name.as_bytes());
    bytes[EXTENSION_HEADER..EXTENSION_HEADER + data.len()].copy_from_slice(data);
    bytes
}

fn comment(text: &str) -> Vec<u8> {
    let mut data = [0; 256];
    data[..text.len()].copy_from_slice(text.as_bytes());
    extension("comment", &data)
}

fn verdict(verdict: i32) -> Vec<u8> {
    extension("", &verdict.to_ne_bytes())
}

const ACCEPT: i32 = -2;
const RETURN: i32 = -5;

impl Listing {
    fn new(family: Family) -> Self {
        Self { family, bytes: Vec::new(), hooks: [None; 5] }
    }

    fn hook(&mut self, hook: usize) -> &mut Self {
        self.hooks[hook] = Some(u32::try_from(self.bytes.len()).expect("short"));
        self
    }

    fn entry(&mut self, flags: u8, matches: &[Vec<u8>], target: &[u8]) -> &mut Self {
        let format = format_of(self.family);
        let mut entry = vec![0; format.header];
        entry.extend(matches.concat());
        let target_offset = u16::try_from(entry.len()).expect("short");
        entry.extend(target);
        let len = u16::try_from(entry.len()).expect("short");
        entry[format.flags] = flags;
        entry[format.target_offset..][..2].copy_from_slice(&target_offset.to_ne_bytes());
        entry[format.target_offset + 2..][..2].copy_from_slice(&len.to_ne_bytes());
        self.bytes.extend(entry);
        self
    }

    /// Begins a chain and returns the target of jumps to it.
    fn chain(&mut self, name: &str) -> i32 {
        let mut data = [0; 32];
        data[..name.len()].copy_from_slice(name.as_bytes());
        self.entry(0, &[], &extension("ERROR", &data));
        i32::try_from(self.bytes.len()).expect("short")
    }

    fn read(&self, table: Table) -> Option<TableSnapshot> {
        TableSnapshot::from_entries(self.family, table, &self.hooks, &self.bytes)
    }
}

/// FORWARD with rules of ours and others, and two chains of ours; `to_a` is the target of jumps.
fn filter(family: Family, to_a: i32) -> (Listing, i32) {
    let goto = format_of(family).goto;
    let mut table = Listing::new(family);
    table.hook(1).entry(0, &[], &verdict(ACCEPT));
    table.hook(2);
    table.entry(0, &[extension("set", &[0; 8]), comment("cali:wUHhoiAYhphO9Mso")], &verdict(to_a));
    table.entry(0, &[comment("not cali:wUHhoiAYhphO9Mso")], &extension("MARK", &[0; 12]));
    table.entry(0, &[], &verdict(to_a)).entry(goto, &[], &verdict(to_a));
    table.entry(0, &[], &verdict(ACCEPT));
    table.hook(3).entry(0, &[], &verdict(ACCEPT));
    let a = table.chain("cali-A");
    table.entry(0, &[comment("cali:abcdefghijklmnop")], &verdict(RETURN)).entry(0, &[], &verdict(ACCEPT));
    table.entry(0, &[], &verdict(RETURN));
    table.chain("cali-B");
    table.entry(0, &[], &verdict(RETURN));
    table.chain("OTHER");
    table.entry(0, &[], &verdict(ACCEPT)).entry(0, &[], &verdict(RETURN));
    table.chain("ERROR");
    (table, a)
}

fn filter_of(family: Family) -> Listing {
    let (_, a) = filter(family, ACCEPT);
    filter(family, a).0
}

#[test]
fn entries_read_like_a_listing_without_texts() {
    let listing = b"*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:cali-A - [0:0]\n\
        :cali-B - [0:0]\n:OTHER - [0:0]\n\
        -A FORWARD -m comment --comment \"cali:wUHhoiAYhphO9Mso\" -j cali-A\n\
        -A FORWARD -m comment --comment \"not cali:wUHhoiAYhphO9Mso\" -j MARK --set-xmark 0x0/0x10\n\
        -A FORWARD -j cali-A\n-A FORWARD -g cali-A\n\
        -A cali-A -m comment --comment \"cali:abcdefghijklmnop\" -j RETURN\n-A cali-A -j ACCEPT\n\
        -A OTHER -j ACCEPT\nCOMMIT\n";
    let mut expected = SaveReader::read(Table::Filter, listing).expect("complete");
    expected.forget_texts();
    let hash = |text| RuleTag::Ours(RuleHash::parse(text).expect("legal"));
    let ours: Vec<_> = expected.hooked_chains[&kernel_chain::FORWARD].ours.iter().map(|rule| rule.tag).collect();
    assert_eq!(ours, [hash("wUHhoiAYhphO9Mso"), RuleTag::Stale]);
    for family in Family::ALL {
        assert_eq!(filter_of(family).read(Table::Filter).as_ref(), Some(&expected), "{family}");
    }
}

#[test]
fn a_cut_or_damaged_listing_is_read_without_a_panic() {
    for family in Family::ALL {
        let whole = filter_of(family);
        for at in 0..whole.bytes.len() {
            let cut = Listing { bytes: whole.bytes[..at].to_vec(), ..filter_of(family) };
            let _ = cut.read(Table::Filter);
            let mut damaged = filter_of(family);
            damaged.bytes[at] ^= 0xff;
            let _ = damaged.read(Table::Filter);
        }
        let cut = Listing { bytes: whole.bytes[..whole.bytes.len() - 1].to_vec(), ..whole };
        assert_eq!(cut.read(Table::Filter), None);
    }
}

/// Of a set match only the number of the set is listed, so that `felix-masq-ipam-pools` is unknown.
#[test]
fn a_possible_masquerade_of_an_old_felix_is_left_to_the_program() {
    let rules: [(&[Vec<u8>], _); 2] =
        [(&[extension("set", &[0; 8])], verdict(ACCEPT)), (&[], extension("MASQUERADE", &[0; 24]))];
    for (matches, target) in rules {
        let mut table = Listing::new(Family::V4);
        table.hook(4).entry(0, matches, &target).entry(0, &[], &verdict(ACCEPT)).chain("ERROR");
        assert_eq!(table.read(Table::Nat), None);
        assert!(table.read(Table::Mangle).is_some());
        let mut ours = Listing::new(Family::V4);
        let matches = [matches, &[comment("cali:abcdefghijklmnop")]].concat();
        ours.hook(4).entry(0, &matches, &target).entry(0, &[], &verdict(ACCEPT)).chain("ERROR");
        assert!(ours.read(Table::Nat).is_some());
    }
}
