use proptest::prelude::*;

use super::*;

/// A message under construction, with names without compression.
#[derive(Clone)]
struct Wire {
    bytes: Vec<u8>,
    answers: u16,
}

const A: u16 = 1;
const CNAME: u16 = 5;
const TXT: u16 = 16;
const AAAA: u16 = 28;
const SVCB: u16 = 64;
const HTTPS: u16 = 65;

fn name(text: &str) -> Vec<u8> {
    let labels = text.split('.').filter(|label| !label.is_empty());
    let mut bytes: Vec<u8> =
        labels.flat_map(|label| [&[u8::try_from(label.len()).unwrap()], label.as_bytes()].concat()).collect();
    bytes.push(0);
    bytes
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

impl Wire {
    fn question(text: &str, rtype: u16) -> Self {
        let mut bytes = vec![0x12, 0x34, 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0];
        bytes.extend(name(text));
        bytes.extend([rtype.to_be_bytes(), [0, 1]].concat());
        Self { bytes, answers: 0 }
    }

    fn record(mut self, owner: &[u8], rtype: u16, ttl: u32, data: &[u8]) -> Self {
        self.bytes.extend(owner);
        self.bytes.extend([rtype.to_be_bytes(), [0, 1]].concat());
        self.bytes.extend(ttl.to_be_bytes());
        self.bytes.extend(u16::try_from(data.len()).unwrap().to_be_bytes());
        self.bytes.extend(data);
        self.answers += 1;
        self
    }

    fn address(self, owner: &str, ttl: u32, address: &str) -> Self {
        match ip(address) {
            IpAddr::V4(v4) => self.record(&name(owner), A, ttl, &v4.octets()),
            IpAddr::V6(v6) => self.record(&name(owner), AAAA, ttl, &v6.octets()),
        }
    }

    fn cname(self, owner: &str, ttl: u32, target: &str) -> Self {
        self.record(&name(owner), CNAME, ttl, &name(target))
    }

    fn service(
        self,
        rtype: u16,
        owner: &str,
        ttl: u32,
        priority: u16,
        target: &str,
        params: &[(u16, Vec<u8>)],
    ) -> Self {
        let mut data = priority.to_be_bytes().to_vec();
        data.extend(name(target));
        for (key, value) in params {
            data.extend([key.to_be_bytes(), u16::try_from(value.len()).unwrap().to_be_bytes()].concat());
            data.extend(value);
        }
        self.record(&name(owner), rtype, ttl, &data)
    }

    fn bytes(mut self) -> Vec<u8> {
        self.bytes[6..8].copy_from_slice(&self.answers.to_be_bytes());
        self.bytes
    }

    fn read(self) -> Result<Answer, MessageError> {
        read(&self.bytes(), &MessageLimits::default())
    }
}

/// The learnable addresses, `name address ttl` each.
fn learned(answer: &Answer) -> Vec<String> {
    answer.addresses().map(|(name, address, ttl)| format!("{name} {address} {ttl}")).collect()
}

#[test]
fn the_question_gets_its_addresses() {
    let wire = Wire::question("EXAMPLE.com", A).address("example.COM", 300, "192.0.2.1");
    let answer = wire.address("example.com", 60, "192.0.2.2").read().unwrap();
    assert_eq!(answer.question().unwrap().as_str(), "example.com");
    assert_eq!(learned(&answer), ["example.com 192.0.2.1 300", "example.com 192.0.2.2 60"]);
    assert_eq!((answer.ignored, answer.unread), (0, 0));
}

#[test]
fn messages_that_answer_no_question_for_addresses_are_refused() {
    let good = Wire::question("a.io", A).address("a.io", 1, "192.0.2.1").bytes();
    let with = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        read(&bytes, &MessageLimits::default()).map(|answer| answer.addresses().count())
    };
    assert_eq!(with(0, 0), Ok(1));
    assert_eq!(with(2, 0x01), Err(MessageError::Query));
    assert_eq!(with(2, 0x81 | 4 << 3), Err(MessageError::Opcode(4)));
    assert_eq!(with(3, 0x83), Err(MessageError::Failed(3)));
    assert_eq!(with(5, 0), Err(MessageError::Questions(0)));
    assert_eq!(with(5, 2), Err(MessageError::Questions(2)));
    assert_eq!(with(12, 0xc0), Err(MessageError::Question), "a pointer forward");
    assert_eq!(with(21, 3), Err(MessageError::Class(3)));
    assert_eq!(with(19, 15), Err(MessageError::Type(15)));
    for rtype in [28, 64, 65, 255] {
        assert_eq!(with(19, rtype), Ok(1));
    }
    assert_eq!(with(7, 2), Err(MessageError::Record(2)), "a record is missing");
    for end in 0..12 {
        assert_eq!(read(&good[..end], &MessageLimits::default()), Err(MessageError::Short));
    }
    assert_eq!(read(&good[..13], &MessageLimits::default()), Err(MessageError::Question));
    assert_eq!(read(&good[..good.len() - 1], &MessageLimits::default()), Err(MessageError::Record(1)));
}

#[test]
fn complete_records_of_a_truncated_answer_count() {
    let wire = Wire::question("a.io", A).address("a.io", 1, "192.0.2.1").address("a.io", 1, "192.0.2.2");
    let mut bytes = wire.bytes();
    bytes[2] |= 0x02;
    bytes.pop();
    let answer = read(&bytes, &MessageLimits::default()).unwrap();
    assert_eq!(learned(&answer), ["a.io 192.0.2.1 1"]);
    assert_eq!(answer.unread, 1);
}

#[test]
fn each_name_of_the_chain_gets_the_address_with_the_least_ttl_of_its_way() {
    // The order of records does not count.
    let wire = Wire::question("a.io", A).address("c.io", 100, "192.0.2.1").cname("b.io", 50, "c.io");
    let answer = wire.cname("a.io", 70, "B.io").address("b.io", 9, "192.0.2.2").read().unwrap();
    let expected =
        ["a.io 192.0.2.1 50", "a.io 192.0.2.2 9", "b.io 192.0.2.1 50", "b.io 192.0.2.2 9", "c.io 192.0.2.1 100"];
    assert_eq!(learned(&answer), expected);
    assert_eq!(answer.names().len(), 3);
}

#[test]
fn sixteen_links_are_followed_and_seventeen_teach_nothing() {
    let chain = |links: u32| {
        let wire = Wire::question("n0.io", A);
        let wire = (0..links).fold(wire, |wire, n| wire.cname(&format!("n{n}.io"), 300, &format!("n{}.io", n + 1)));
        wire.address(&format!("n{links}.io"), 300, "192.0.2.1").read()
    };
    assert_eq!(learned(&chain(16).unwrap()).len(), 17);
    assert_eq!(chain(17), Err(MessageError::LongChain(16)));
    let wire = Wire::question("a.io", A).cname("a.io", 1, "b.io").cname("b.io", 1, "a.io");
    assert_eq!(wire.address("a.io", 1, "192.0.2.1").read(), Err(MessageError::Loop));
    assert_eq!(Wire::question("a.io", A).cname("a.io", 1, "a.io").read(), Err(MessageError::Loop));
}

#[test]
fn foreign_owners_and_other_sections_teach_nothing() {
    let wire = Wire::question("a.io", A).address("b.io", 1, "192.0.2.9").address("a.io", 1, "192.0.2.1");
    let wire = wire.cname("c.io", 1, "d.io").address("d.io", 1, "192.0.2.8").record(&name("a.io"), TXT, 1, b"\x01x");
    let mut bytes = wire.bytes();
    let more = Wire::question("", A).address("a.io", 1, "192.0.2.7").address("a.io", 1, "192.0.2.6").bytes();
    bytes.extend(&more[17..]);
    // One record each of the sections authority and additional.
    bytes[9] = 1;
    bytes[11] = 1;
    let answer = read(&bytes, &MessageLimits::default()).unwrap();
    assert_eq!(learned(&answer), ["a.io 192.0.2.1 1"]);
    assert_eq!(answer.ignored, 4);
    let mut chaos = Wire::question("a.io", A).address("a.io", 1, "192.0.2.1").bytes();
    let class = chaos.len() - 11;
    chaos[class] = 3;
    assert_eq!(read(&chaos, &MessageLimits::default()).unwrap().addresses().count(), 0);
}

#[test]
fn hints_and_targets_of_services_are_learned() {
    let hints = [(1, b"\x02h2".to_vec()), (4, vec![192, 0, 2, 1, 192, 0, 2, 2]), (6, ip6("2001:db8::1"))];
    let wire = Wire::question("a.io", HTTPS).service(HTTPS, "a.io", 60, 1, "", &hints);
    let answer = wire.service(HTTPS, "a.io", 90, 2, "cdn.net", &[(4, vec![192, 0, 2, 3])]).read().unwrap();
    let expected = ["a.io 192.0.2.1 60", "a.io 192.0.2.2 60", "a.io 192.0.2.3 90", "a.io 2001:db8::1 60"];
    assert_eq!(learned(&answer), expected, "a hint is no address of the target");
    // The records of a target are addresses of the target and of the owner.
    let wire = Wire::question("a.io", HTTPS).service(HTTPS, "a.io", 90, 1, "cdn.net", &hints);
    let answer = wire.address("cdn.net", 70, "192.0.2.3").read().unwrap();
    let expected =
        ["a.io 192.0.2.1 90", "a.io 192.0.2.2 90", "a.io 192.0.2.3 70", "a.io 2001:db8::1 90", "cdn.net 192.0.2.3 70"];
    assert_eq!(learned(&answer), expected);

    // Alias mode is a link; its parameters mean nothing. Addresses of a target are those of its
    // owner.
    let wire = Wire::question("a.io", SVCB).service(SVCB, "a.io", 60, 0, "b.io", &[(4, vec![192, 0, 2, 9])]);
    let wire = wire.service(SVCB, "b.io", 60, 1, "c.io", &[]).address("c.io", 5, "192.0.2.4");
    let answer = wire.service(HTTPS, "d.io", 60, 1, "a.io", &[(4, vec![192, 0, 2, 8])]).read().unwrap();
    assert_eq!(learned(&answer), ["a.io 192.0.2.4 5", "b.io 192.0.2.4 5", "c.io 192.0.2.4 5"]);
    assert_eq!(answer.ignored, 1);

    // The root as the target of an alias: there is no such service.
    let answer = Wire::question("a.io", HTTPS).service(HTTPS, "a.io", 60, 0, "", &[]).read().unwrap();
    assert_eq!((answer.names().len(), answer.addresses().count()), (1, 0));
}

#[test]
fn hints_belong_to_their_owner_and_targets_of_services_lead_nowhere() {
    let hint = |last: u8| [(4, vec![192, 0, 2, last])];
    // A target that leads to the owner, not from it.
    let wire = Wire::question("a.io", HTTPS).cname("a.io", 60, "b.io");
    let answer = wire.service(HTTPS, "b.io", 60, 1, "a.io", &hint(1)).read().unwrap();
    assert_eq!(learned(&answer), ["a.io 192.0.2.1 60", "b.io 192.0.2.1 60"]);
    // Clients ask for the addresses of a target only.
    let wire = Wire::question("a.io", HTTPS).service(HTTPS, "a.io", 60, 1, "c.io", &hint(1));
    let answer = wire.service(HTTPS, "c.io", 60, 1, "d.io", &hint(2)).read().unwrap();
    assert_eq!(learned(&answer), ["a.io 192.0.2.1 60"]);
    assert_eq!((answer.ignored, answer.names().len()), (1, 2));
}

fn ip6(text: &str) -> Vec<u8> {
    text.parse::<std::net::Ipv6Addr>().unwrap().octets().to_vec()
}

#[test]
fn malformed_data_is_ignored() {
    let wire = Wire::question("a.io", A).record(&name("a.io"), A, 1, &[1, 2, 3]).address("a.io", 1, "192.0.2.1");
    let wire = wire.service(HTTPS, "a.io", 1, 1, "", &[(4, vec![192, 0, 2])]).record(&name("a.io"), AAAA, 1, &[0; 17]);
    let wire = wire.service(HTTPS, "a.io", 1, 1, "", &[(6, vec![0; 16]), (4, vec![192, 0, 2, 9])]);
    let answer = wire.record(&name("a.io"), CNAME, 1, &[3, b'x']).read().unwrap();
    assert_eq!(learned(&answer), ["a.io 192.0.2.1 1"]);
    assert_eq!(answer.ignored, 5);
}

#[test]
fn a_ttl_with_the_top_bit_set_is_zero() {
    let wire = Wire::question("a.io", A).cname("a.io", 1 << 31, "b.io").address("b.io", 7, "192.0.2.1");
    assert_eq!(learned(&wire.read().unwrap()), ["a.io 192.0.2.1 0", "b.io 192.0.2.1 7"]);
    let wire = Wire::question("a.io", A).address("a.io", u32::MAX, "192.0.2.1");
    assert_eq!(learned(&wire.read().unwrap()), ["a.io 192.0.2.1 0"]);
    let answer = Answer::new("a.io".parse().unwrap(), [(ip("192.0.2.1"), 1 << 31), (ip("::ffff:192.0.2.2"), 5)]);
    assert_eq!(learned(&answer), ["a.io 192.0.2.1 0", "a.io 192.0.2.2 5"]);
}

#[test]
fn of_repeated_addresses_the_longest_lifetime_counts() {
    let wire = Wire::question("a.io", AAAA).address("a.io", 5, "::ffff:192.0.2.1").address("a.io", 9, "192.0.2.1");
    assert_eq!(learned(&wire.address("a.io", 7, "192.0.2.1").read().unwrap()), ["a.io 192.0.2.1 9"]);
}

#[test]
fn names_with_other_characters_teach_nothing_but_lead_on() {
    // One label with a dot inside is not two labels.
    let dotted = [&[6], b"a.evil".as_slice(), &[2, b'i', b'o', 0]].concat();
    let wire = Wire::question("a.io", A).record(&name("a.io"), CNAME, 9, &dotted);
    let answer = wire.record(&dotted, CNAME, 9, &name("b.io")).address("b.io", 9, "192.0.2.1").read().unwrap();
    assert_eq!(learned(&answer), ["a.io 192.0.2.1 9", "b.io 192.0.2.1 9"]);
    let answer = Wire::question("a b.io", A).cname("a b.io", 1, "b.io").address("b.io", 9, "192.0.2.1").read().unwrap();
    assert_eq!(answer.question(), None);
    assert_eq!(learned(&answer), ["b.io 192.0.2.1 9"]);
    let answer = Wire::question("", A).address("", 1, "192.0.2.1").read().unwrap();
    assert_eq!((answer.question(), answer.addresses().count()), (None, 0));
}

#[test]
fn records_and_addresses_beyond_the_limits_are_counted() {
    let wire = (0..600)
        .fold(Wire::question("a.io", A), |wire, n| wire.address("a.io", 1, &format!("192.0.{}.{}", n / 200, n % 200)));
    let answer = wire.read().unwrap();
    assert_eq!((answer.addresses().count(), answer.unread), (512, 88));
    let hints: Vec<u8> = (0..3_000u32).flat_map(|n| (0x0a00_0000 + n).to_be_bytes()).collect();
    let answer = Wire::question("a.io", HTTPS).service(HTTPS, "a.io", 1, 1, "b.io", &[(4, hints)]).read().unwrap();
    assert_eq!((answer.addresses().count(), answer.unread), (512, 2_488));
}

#[test]
fn pairs_beyond_the_limit_are_those_of_the_last_aliases() {
    let names: Vec<String> = (0..=8).map(|n| format!("n{n}.io")).collect();
    let wire = names.windows(2).fold(Wire::question("n0.io", A), |wire, pair| wire.cname(&pair[0], 9, &pair[1]));
    let answer = (0..300).fold(wire, |wire, n| wire.address("n8.io", 9, &format!("192.0.{}.{}", n / 200, n % 200)));
    let answer = answer.read().unwrap();
    assert_eq!((answer.addresses().count(), answer.unread), (2_048, 9 * 300 - 2_048));
    let of = |name: usize| answer.addresses().filter(|(of, ..)| of.as_str() == names[name]).count();
    assert_eq!([0, 5, 6, 7, 8].map(of), [300, 300, 248, 0, 0]);
}

#[test]
fn pointers_lead_backwards_only() {
    let question = Wire::question("a.io", A);
    let at = u8::try_from(question.bytes.len()).unwrap();
    let good = question.clone().record(&[0xc0, 12], A, 1, &[192, 0, 2, 1]).read().unwrap();
    assert_eq!(learned(&good), ["a.io 192.0.2.1 1"]);
    for target in [at, at + 1, at + 2] {
        let bad = question.clone().record(&[0xc0, target], A, 1, &[192, 0, 2, 1]);
        assert_eq!(bad.read(), Err(MessageError::Record(1)), "to {target}");
    }
}

/// Returns a message of 511 records whose owners are 254 pointers before the name of the question.
fn of_pointers(rtype: u16, data: impl Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
    let wire = Wire::question("a.io", A);
    // After the owner, of one byte, and ten more bytes.
    let start = u16::try_from(wire.bytes.len() + 11).unwrap();
    let target = |n: u16| if n == 0 { 12 } else { start + 2 * (n - 1) };
    let pointers: Vec<u8> = (0..254).flat_map(|n| (0xc000 | target(n)).to_be_bytes()).collect();
    let last = (0xc000 | target(254)).to_be_bytes();
    let wire = wire.record(&[0], TXT, 1, &pointers);
    (0..511).fold(wire, |wire, _| wire.record(&last, rtype, 1, &data(&last))).bytes()
}

#[test]
fn names_of_many_pointers_are_read() {
    let limits = MessageLimits::default();
    let answer = read(&of_pointers(A, |_| vec![192, 0, 2, 1]), &limits).unwrap();
    assert_eq!((learned(&answer), answer.ignored), (vec!["a.io 192.0.2.1 1".to_owned()], 1));
    assert_eq!(read(&of_pointers(CNAME, <[u8]>::to_vec), &limits), Err(MessageError::Loop));
    let hint = |last: &[u8]| [&[0, 1], last, &[0, 4, 0, 4, 192, 0, 2, 1]].concat();
    let answer = read(&of_pointers(HTTPS, hint), &limits).unwrap();
    assert_eq!((learned(&answer), answer.ignored), (vec!["a.io 192.0.2.1 1".to_owned()], 1));
    // One pointer more.
    let more = |last: &[u8]| [&[0, 1, 1, b'x'], last].concat();
    assert!(read(&of_pointers(HTTPS, more), &limits).is_ok());
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = read(&bytes, &MessageLimits::default());
    }

    #[test]
    fn no_change_of_a_message_panics(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let wire = Wire::question("a.io", A).cname("a.io", 9, "b.io").address("b.io", 9, "192.0.2.1");
        let mut bytes = wire.service(HTTPS, "b.io", 60, 1, "c.io", &[(4, vec![192, 0, 2, 1])]).bytes();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(answer) = read(&bytes, &MessageLimits::default()) {
            prop_assert!(answer.addresses().count() <= 6);
        }
    }
}
