//! What maps, sets and parts of a chain are called.
//!
//! A packet goes on through the rules that were in force when it came, while elements of maps and plain sets are those in force when it asks,
//! and the kernel shows those of a set of networks a moment later still. So a name stands for what must not change beside others:
//!
//! - A map is called by the rules of the chain that asks it, but for what is led to and how many are put together. While these stay, an
//!   element is the one thing that changes for a packet; if they do not, the new rules ask another map, and the old one goes later.
//! - So is a set that holds what several hold; the new one is filled before.
//! - What a map of addresses leads to is called by its content, as any number of addresses lead there.

use std::sync::Arc;

use tortie_net::{Family, IpSetName};
use tortie_netfilter::{Action, AddressUnion, ChainName, ChainPrefix, Match, Rule, limited_id};

const MAP: ChainPrefix = ChainPrefix::new("cali-pm-");
/// In the place of a name until there is one.
pub(super) const UNNAMED: ChainName = ChainName::from_static("cali-unnamed");

pub(super) fn map_name(id: &str) -> ChainName {
    ChainName::limited(MAP, id)
}

/// A name for exactly these rules.
pub(super) fn content_name(prefix: ChainPrefix, id: &str, rules: &[Rule]) -> ChainName {
    ChainName::limited(prefix, &format!("{id}/{rules:?}"))
}

/// What a chain asks and does, but for what its maps lead to and its unions hold.
pub(super) fn skeleton(rules: &[Rule]) -> String {
    let mut text = String::new();
    for rule in rules {
        for question in rule.matches.iter() {
            match question {
                Match::AnyOf { side, negated, .. } => text.push_str(&format!("{side:?} {negated} ")),
                other => text.push_str(&format!("{other:?} ")),
            }
        }
        match &rule.action {
            Some(Action::Dispatch { by, .. }) => text.push_str(&format!("{by:?}\n")),
            action => text.push_str(&format!("{action:?}\n")),
        }
    }
    // Short, as it is part of many names.
    limited_id("", &text, 24)
}

/// Puts a set in the place of each union; `id` makes what its name follows from.
#[expect(clippy::expect_used, reason = "names are limited")]
pub(super) fn name_unions(
    rule: &mut Rule,
    family: Family,
    unions: &mut Vec<(IpSetName, Arc<AddressUnion>)>,
    mut id: impl FnMut(&AddressUnion) -> String,
) {
    if !rule.matches.iter().any(|question| matches!(question, Match::AnyOf { .. })) {
        return;
    }
    let prefix = match family {
        Family::V4 => "cali4u-",
        Family::V6 => "cali6u-",
    };
    let mut named = |question: &Match| match question {
        Match::AnyOf { side, these, negated } => {
            // A hash in any case: the name says nothing to people.
            let name = limited_id(prefix, &format!("{}/union", id(these)), IpSetName::MAX_LEN);
            let set = IpSetName::new(&name).expect("a prefix and a hash are a name");
            unions.push((set, Arc::clone(these)));
            Match::IpSet { side: *side, set, with_port: false, negated: *negated }
        }
        other => other.clone(),
    };
    rule.matches = rule.matches.iter().map(&mut named).collect();
}
