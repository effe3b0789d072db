use super::*;

/// Hand-written BTF.
#[derive(Default)]
struct Writer {
    strings: Vec<u8>,
    types: Vec<u8>,
    strings_before: usize,
}

impl Writer {
    fn kernel() -> Self {
        Self { strings: vec![0], ..Self::default() }
    }

    fn words(&mut self, words: &[u32]) {
        self.types.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
    }

    fn name(&mut self, name: &str) -> u32 {
        if name.is_empty() {
            return 0;
        }
        let at = self.strings_before + self.strings.len();
        self.strings.extend(name.bytes().chain([0]));
        at.try_into().unwrap()
    }

    fn plain(&mut self, kind: u32, name: &str, size: u32) {
        let name = self.name(name);
        self.words(&[name, kind << 24, size]);
    }

    fn members(&mut self, kind: u32, name: &str, flag: bool, members: &[(&str, u32, u32)]) {
        let (name, count) = (self.name(name), u32::try_from(members.len()).unwrap());
        self.words(&[name, u32::from(flag) << 31 | kind << 24 | count, 64]);
        for (member, number, offset) in members {
            let member = self.name(member);
            self.words(&[member, *number, *offset]);
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap();
        let (types, strings) = (length(&self.types), length(&self.strings));
        let mut bytes = MAGIC.to_ne_bytes().to_vec();
        bytes.extend([1, 0]);
        bytes.extend([24, 0, types, types, strings].iter().flat_map(|word: &u32| word.to_ne_bytes()));
        bytes.extend([&self.types[..], &self.strings].concat());
        bytes
    }
}

/// In C: `struct packet { u32 length; union { const struct { u8 a; u8 b; }; u16 both; }; u32 low:
/// 3, high: 29; }`, preceded by a `struct packet` of another file, which has only `length`.
fn kernel() -> Writer {
    let mut writer = Writer::kernel();
    writer.plain(1, "u8", 1);
    // Remaining fields of the integer type.
    writer.words(&[8]);
    writer.members(STRUCT, "packet", false, &[("length", 1, 0)]);
    writer.members(STRUCT, "", false, &[("a", 1, 0), ("b", 1, 8)]);
    writer.plain(10, "", 3);
    writer.members(UNION, "", false, &[("", 4, 0), ("both", 1, 0)]);
    writer.members(STRUCT, "packet", true, &[("length", 1, 32), ("", 5, 64), ("low", 1, 3 << 24 | 96)]);
    writer.plain(13, "", 0);
    writer.plain(FUNCTION, "send", 7);
    writer
}

#[test]
fn members_are_found_within_members() {
    let btf = Btf::parse(kernel().bytes()).unwrap();
    assert_eq!(btf.offset("packet", "length"), Some(0), "the first structure that has one");
    assert_eq!(btf.offset("packet", "a"), Some(8));
    assert_eq!(btf.offset("packet", "b"), Some(9));
    assert_eq!(btf.offset("packet", "both"), Some(8));
    assert_eq!(btf.offset("packet", "low"), None, "a bit field");
    assert_eq!(btf.offset("packet", "c"), None);
    assert_eq!(btf.offset("", "a"), Some(0));
    assert_eq!(btf.offset("send", "a"), None);
}

#[test]
fn functions_have_numbers() {
    let btf = Btf::parse(kernel().bytes()).unwrap();
    assert_eq!(btf.function("send"), Some(8));
    assert_eq!(btf.function("packet"), None);
    assert_eq!(btf.structure("packet"), Some(2), "the first");
    assert_eq!(btf.structure("send"), None);
}

#[test]
fn types_of_a_module_follow_those_of_the_kernel() {
    let kernel = kernel();
    let mut module = Writer { strings_before: kernel.strings.len(), ..Writer::default() };
    // The types of its members are the kernel's.
    module.members(STRUCT, "entry", false, &[("state", 1, 0), ("", 5, 32)]);
    module.plain(FUNCTION, "track", 9);
    let mut btf = Btf::parse(kernel.bytes()).unwrap();
    assert_eq!(btf.offset("entry", "state"), None);
    btf.add_module(module.bytes()).unwrap();
    assert_eq!(btf.offset("entry", "state"), Some(0));
    assert_eq!(btf.offset("entry", "b"), Some(5));
    assert_eq!(btf.offset("packet", "b"), Some(9));
    assert_eq!(btf.function("track"), None, "programs call those of the kernel itself");
}

#[test]
fn a_structure_within_itself_ends() {
    let mut writer = Writer::kernel();
    writer.members(STRUCT, "ring", false, &[("", 2, 0), ("", 2, 0)]);
    writer.members(STRUCT, "", false, &[("", 1, 0), ("", 2, 0)]);
    writer.plain(10, "", 3);
    writer.members(STRUCT, "alias", false, &[("", 3, 0)]);
    let btf = Btf::parse(writer.bytes()).unwrap();
    assert_eq!(btf.offset("ring", "x"), None);
    assert_eq!(btf.offset("alias", "x"), None);
}

#[test]
fn any_damage_is_an_error_or_harmless() {
    let whole = kernel().bytes();
    let ask = |bytes: Vec<u8>| {
        if let Ok(mut btf) = Btf::parse(bytes.clone()) {
            let _ = (btf.offset("packet", "b"), btf.offset("packet", "low"), btf.function("send"));
            let _ = btf.add_module(bytes);
            let _ = btf.offset("packet", "both");
        }
    };
    for length in 0..whole.len() {
        let torn = whole[..length].to_vec();
        assert!(Btf::parse(torn).is_err(), "{length} of {} bytes", whole.len());
    }
    for at in 0..whole.len() {
        for value in [0, 1, 2, 4, 12, 19, 0x1f, 0x7f, 0x80, 0xff] {
            let mut changed = whole.clone();
            changed[at] = value;
            ask(changed);
        }
    }
    // Two changed bytes at once, and shifted content.
    for at in 0..whole.len() - 4 {
        for other in (at + 1..whole.len()).step_by(7) {
            let mut changed = whole.clone();
            changed[at] ^= 0xff;
            changed[other] ^= 0x55;
            ask(changed);
        }
        let mut moved = whole.clone();
        moved.remove(at);
        ask(moved);
    }
}

#[test]
#[allow(clippy::disallowed_methods, reason = "the kernel's own types are a file")]
fn the_kernel_describes_itself() {
    let btf = Btf::parse(std::fs::read("/sys/kernel/btf/vmlinux").unwrap()).unwrap();
    for (structure, member) in [
        ("sk_buff", "len"),
        ("sk_buff", "_nfct"),
        ("sk_buff", "_skb_refdst"),
        ("nf_hook_state", "in"),
        ("nf_hook_state", "out"),
        ("net_device", "ifindex"),
        ("net_device", "name"),
    ] {
        assert!(btf.offset(structure, member).is_some(), "{structure}.{member}");
    }
    assert_eq!(btf.offset("list_head", "prev"), Some(8));
    assert_eq!(btf.offset("nf_conntrack_tuple", "dst.u"), Some(36), "a member of a member");
    assert_eq!(btf.offset("nf_conntrack_tuple", "dst.no_such"), None);
    assert_eq!(btf.offset("sk_buff", "no_such"), None);
    assert!(btf.function("bpf_dynptr_from_skb").is_some());
    assert_eq!(btf.function("no_such"), None);
}
