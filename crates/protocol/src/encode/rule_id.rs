//! Stable ids of rules (`felix/calc/rule_convert.go`).

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha224};
use tortie_model::desired::Rules;
use tortie_model::{Direction, PolicyId, ProfileName};

use super::rule::rule;
use super::wire::Wire;

/// Length of a rule id: 16 characters hold 96 bits, which is enough against collisions and short
/// enough for a log prefix.
const LENGTH: usize = 16;

/// Owner of a list of rules; the seed of the rule ids.
#[derive(Clone, Copy, Debug)]
pub(super) enum RuleIdSeed<'a> {
    /// One direction of a policy. As in Felix, only the name of the policy is used, so policies
    /// with the same name in different namespaces share ids.
    Policy(&'a PolicyId, Direction),
    /// One direction of a profile.
    Profile(&'a ProfileName, Direction),
}

impl fmt::Display for RuleIdSeed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let short = |direction: &Direction| match direction {
            Direction::Ingress => "in",
            Direction::Egress => "out",
        };
        match self {
            Self::Policy(id, direction) => write!(f, "pol-{}-default/{}", short(direction), id.name),
            Self::Profile(name, direction) => write!(f, "prof-{}-{name}", short(direction)),
        }
    }
}

/// Returns the ids of the rules, in order. An id depends on the seed, the rule, and all rules
/// before it.
pub(super) fn rule_ids(rules: &Rules, seed: RuleIdSeed<'_>) -> Vec<String> {
    let mut hash = Sha224::digest(seed.to_string());
    rules
        .iter()
        .map(|view| {
            let mut wire = Wire::default();
            rule(&mut wire, view);
            hash = Sha224::new().chain_update(hash).chain_update(&wire.0).finalize();
            let mut id = URL_SAFE_NO_PAD.encode(hash);
            id.truncate(LENGTH);
            id
        })
        .collect()
}
