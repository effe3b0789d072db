//! Names of the maps, sets and parts of a chain.
//!
//! A packet continues with the rules that were in force when it arrived. Elements of maps and plain
//! sets take effect at once, and those of a set of networks a moment after the rules of their
//! transaction. So a name covers everything that must not change separately:
//!
//! - The name of a map follows from the rules of the chain that uses it, without the targets of
//!   maps and the members of unions. While these rules stay, an element is the only change for a
//!   packet. If they change, the new rules use another map, and the old one is removed later.
//! - The same applies to a union, a set with the members of several sets; a new one is filled
//!   before use.
//! - The name of a chain that a map of addresses leads to follows from its content, as any number
//!   of addresses may lead there.

use std::sync::Arc;

use tortie_net::{Family, IpSetName};
use tortie_netfilter::{Action, AddressUnion, ChainName, ChainPrefix, Match, Rule, limited_id};

const MAP: ChainPrefix = ChainPrefix::new("cali-pm-");
/// Placeholder for a name.
pub(super) const UNNAMED: ChainName = ChainName::from_static("cali-unnamed");

pub(super) fn map_name(id: &str) -> ChainName {
    ChainName::limited(MAP, id)
}

/// A name for exactly these rules.
pub(super) fn content_name(prefix: ChainPrefix, id: &str, rules: &[Rule]) -> ChainName {
    ChainName::limited(prefix, &format!("{id}/{rules:?}"))
}

/// Returns a short text of a chain's matches and actions, without the targets of maps and the
/// members of unions.
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

/// Replaces each union by a named set; `id` returns the text from which the name is derived.
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
            // Always a hash: the name has no meaning for readers.
            let name = limited_id(prefix, &format!("{}/union", id(these)), IpSetName::MAX_LEN);
            let set = IpSetName::new(&name).expect("a prefix and a hash are a name");
            unions.push((set, Arc::clone(these)));
            Match::IpSet { side: *side, set, with_port: false, negated: *negated }
        }
        other => other.clone(),
    };
    rule.matches = rule.matches.iter().map(&mut named).collect();
}
