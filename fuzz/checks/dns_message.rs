//! Any bytes are a DNS answer or rejected. An answer is within the limits, and does not depend on
//! the bytes after its answer section.

use tortie_dns::{MessageLimits, read};

pub(crate) fn check(data: &[u8]) {
    let limits = MessageLimits::default();
    let Ok(answer) = read(data, &limits) else { return };
    let names = answer.names();
    assert!(names.len() <= 1 + 2 * limits.links);
    assert!(answer.question().is_none_or(|question| names.first() == Some(question)));
    let pairs: Vec<_> = answer.addresses().collect();
    assert!(pairs.len() <= limits.pairs);
    assert!(pairs.iter().all(|(name, address, ttl)| {
        names.contains(name) && *address == address.to_canonical() && i32::try_from(*ttl).is_ok()
    }));
    // No pair occurs twice, and no name is that of two places.
    for (at, pair) in pairs.iter().enumerate() {
        assert!(pairs.iter().skip(at + 1).all(|other| (other.0, other.1) != (pair.0, pair.1)));
    }
    assert!(answer.ignored + answer.unread <= usize::from(u16::MAX) + data.len() / 4);
    let is_truncated = data.get(2).is_some_and(|flags| flags & 2 != 0);
    if !is_truncated {
        assert_eq!(read(&[data, &[0xc0, 12, 0, 1]].concat(), &limits), Ok(answer.clone()));
    }
    // With a limit, the first records count.
    let few = read(data, &MessageLimits { records: 2, ..limits });
    assert!(few.is_err() || few.is_ok_and(|few| few.addresses().count() <= pairs.len()));
}
