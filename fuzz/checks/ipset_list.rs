//! Any output of `ipset list` is parsed safely, and parsed members can be written.

use std::time::Duration;

use tortie_ipsets::{
    CommandFailure, Config, Family, IpSetId, IpSets, ListReader, Listing, Member, Plan, SetSpec, SetType, ip_set_name,
    is_owned, owned_names,
};

/// The first byte chooses the family and the size of the pieces in which the rest arrives.
pub(crate) fn check(data: &[u8]) {
    let (&first, text) = data.split_first().unwrap_or((&0, &[]));
    let family = if first & 1 == 0 { Family::V4 } else { Family::V6 };

    let mut reader = ListReader::new(ip_set_name(family, &IpSetId::new("x")).expect("a name"), family);
    let mut members = Vec::new();
    for line in text.split(|&b| b == b'\n') {
        members.extend(reader.line(line));
    }
    let set_type = reader.set_type();
    let listing = reader.finish();
    for member in &members {
        let set_type = set_type.expect("members come after the type");
        let text = member.to_string();
        assert_eq!(Member::parse(set_type, family, &text), Ok(Some(*member)));
        assert!(text.bytes().all(|b| b.is_ascii_alphanumeric() || b".:,/".contains(&b)), "{text}");
    }
    for name in owned_names(family, text) {
        assert!(is_owned(&name, family) && name.as_str().len() <= 31);
    }

    reconcile(family, text, usize::from(first) + 1, listing.ok(), &members);
}

/// A set with this listing is written once, and then has the desired contents.
fn reconcile(family: Family, text: &[u8], piece: usize, listing: Option<Listing>, members: &[Member]) {
    let now = Duration::ZERO;
    let id = IpSetId::new("x");
    let name = ip_set_name(family, &id).expect("a name");
    let spec = listing.and_then(|listing| listing.spec()).unwrap_or(SetSpec::new(SetType::HashNet));
    let mut sets = IpSets::new(family, Config::default());
    // A listing may be inconsistent, for example with ports outside its range.
    let added = sets.add_or_replace(&id, spec, members.iter().copied());

    // All sets at once: the desired state stays for any output, and a failure leads to another
    // listing.
    assert_eq!(sets.plan(now), Plan::ListAll);
    text.chunks(piece).for_each(|piece| sets.on_output(piece));
    sets.on_exit(now, Err(CommandFailure::new("Broken pipe")));
    assert_eq!(sets.plan(now), Plan::ListNames);
    sets.on_output(format!("{name}\n").as_bytes());
    sets.on_exit(now, Ok(()));
    let mut restores = 0;
    let mut time = now;
    loop {
        match sets.plan(time) {
            Plan::List(_) => {
                text.chunks(piece).for_each(|piece| sets.on_output(piece));
                sets.on_exit(time, Ok(()));
            }
            Plan::Restore(text) => {
                assert!(text.is_ascii() && text.ends_with("\nCOMMIT\n"));
                restores += 1;
                sets.on_exit(time, Ok(()));
            }
            Plan::Sleep(pause) => time += pause,
            Plan::Done(report) => {
                let full = sets.desired_members(&id).is_some_and(|members| members.len() > spec.max_elements());
                assert_eq!(report.is_success(), !full, "{report:?}");
                break;
            }
            plan => panic!("{plan:?}"),
        }
    }
    assert!(restores <= 1);
    // The kernel lists a set once.
    let headers = text.split(|&b| b == b'\n').filter(|line| line.trim_ascii().starts_with(b"Name:")).count();
    if headers == 1 && added.is_ok() && listing.is_some_and(|listing| listing.is_exactly(&spec, family)) {
        let zero = members.iter().any(|member| matches!(member, Member::Net(net) if net.cidr().prefix_len() == 0));
        // The kernel never lists a network of length 0, nor more members than fit.
        assert!(restores == 0 || zero || members.len() > spec.max_elements());
    }
}
