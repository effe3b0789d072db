//! Any bytes are a cache of DNS answers or rejected. A restored state is within the limits, keeps
//! no address longer than its bounds allow, and comes back from a save as it was.

use std::net::IpAddr;
use std::time::Duration;

use tortie_dns::{Action, Learned, Limits, Member, Millis, RestoreError, Scope, Settings};
use tortie_net::DomainName;
use twox_hash::XxHash3_64;

/// The present time.
const NOW: Millis = Millis(1_000_000);

fn learned() -> Learned {
    let limits = Limits {
        addresses_per_name: 3,
        names_per_scope: 4,
        addresses_per_scope: 8,
        addresses: 12,
        ..Limits::default()
    };
    let mut learned = Learned::new(Settings { limits, ..Settings::default() });
    let pattern = "*.a".parse().expect("a pattern");
    learned.set_domains(&"d:1".into(), [pattern].into());
    let interface = "cali1".parse().expect("a name");
    for scope in [Scope::Host, Scope::Interface(interface)] {
        learned.set_scope(scope, 7, ["d:1".into()]);
    }
    learned
}

fn known(learned: &Learned) -> Vec<(DomainName, IpAddr, Millis)> {
    let scopes = [Scope::Host, Scope::Interface("cali1".parse().expect("a name"))];
    let known = scopes.into_iter().flat_map(|scope| learned.known(scope));
    known.map(|known| (known.name.clone(), known.address, known.expires)).collect()
}

/// The first byte decides whether the rest is a whole cache, or one without its beginning and its
/// hash.
pub(crate) fn check(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    let mut bytes = rest.to_vec();
    if first % 2 == 1 {
        bytes = [b"tortie-dns-cache\n\x02\0\0\0", rest].concat();
        let hash = XxHash3_64::oneshot(&bytes);
        bytes.extend(hash.to_be_bytes());
    }
    let foreign = Member { set: "d:1".into(), scope: Scope::Host, address: IpAddr::from([192, 0, 2, 77]) };
    let mut first = learned();
    let result = first.restore(NOW, Some(&bytes), std::slice::from_ref(&foreign));
    let (counts, explains) = (first.counts(), matches!(result, Ok(_) | Err(RestoreError::Epoch)));
    assert!(counts.names <= 8 && counts.addresses <= 12);
    assert_eq!(result.map_or(0, |restored| restored.addresses), counts.addresses);
    // No scope has a pair twice, and all names and addresses are counted once.
    for scope in [Scope::Host, Scope::Interface("cali1".parse().expect("a name"))] {
        let pairs: Vec<_> = first.known(scope).map(|known| (known.name.clone(), known.address)).collect();
        assert!(pairs.is_sorted_by(|a, b| a < b));
    }
    let latest = NOW.after(Duration::from_secs(24 * 3_600));
    assert!(known(&first).iter().all(|(.., expires)| (Millis(NOW.0 + 1)..=latest).contains(expires)));
    // The foreign member is kept, and needs no change, unless the cache lacks its scope, has
    // another owner or epoch of it, or names its address.
    let changes = first.take_changes();
    let change = changes.iter().find(|change| change.member == foreign);
    assert!(change.is_none_or(|change| explains && change.action == Action::Removed));

    let saved = first.save(NOW);
    let mut second = learned();
    assert!(second.restore(NOW, Some(&saved), &[]).is_ok_and(|restored| restored.addresses == counts.addresses));
    assert_eq!(known(&first), known(&second));

    first.expire(latest);
    assert_eq!((known(&first), first.next_expiry(), first.counts().members), (Vec::new(), None, 0));
}
