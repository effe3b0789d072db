//! What flow logs carry beside each packet: which rule gave the verdict (`felix/rules/nflogprefix.go`).

use tortie_iptables::{Action, NflogPrefix, limited_id};
use tortie_model::{Direction, TierName};

/// A verdict that a prefix tells of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// `A`
    Allow,
    /// `D`
    Deny,
    /// `P`
    Pass,
}

impl Verdict {
    const fn letter(self) -> char {
        match self {
            Self::Allow => 'A',
            Self::Deny => 'D',
            Self::Pass => 'P',
        }
    }
}

/// What kind of object a rule belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OwnerKind {
    /// `P`
    Policy,
    /// `R`
    Profile,
}

impl OwnerKind {
    const fn letter(self) -> char {
        match self {
            Self::Policy => 'P',
            Self::Profile => 'R',
        }
    }
}

const fn letter(direction: Direction) -> char {
    match direction {
        Direction::Ingress => 'I',
        Direction::Egress => 'E',
    }
}

/// The prefix of a rule: `API0|np/default/web` for the first rule of a policy. `owner` is the policy's id text or the
/// profile's name.
#[must_use]
pub fn rule_prefix(verdict: Verdict, kind: OwnerKind, direction: Direction, index: usize, owner: &str) -> String {
    limited(format!("{}{}{}{index}|{owner}", verdict.letter(), kind.letter(), letter(direction)))
}

/// The prefix of a tier's end: `DPI|tier`, or `PPI|tier` where the tier passes what its policies did not decide.
#[must_use]
pub fn end_of_tier_prefix(verdict: Verdict, direction: Direction, tier: &TierName) -> String {
    limited(format!("{}{}{}|{tier}", verdict.letter(), OwnerKind::Policy.letter(), letter(direction)))
}

/// The prefix of a packet that no profile allowed: `DRI` or `DRE`.
#[must_use]
pub fn no_profile_prefix(direction: Direction) -> String {
    format!("{}{}{}", Verdict::Deny.letter(), OwnerKind::Profile.letter(), letter(direction))
}

/// Keeps both ends of a prefix that the kernel would cut, with a hash of the whole in between. A prefix of exactly the
/// kernel's limit is hashed too, so that nobody can choose one that looks like the hash of another.
fn limited(prefix: String) -> String {
    const MAX: usize = 63;
    const KEEP: usize = 10;
    const HASH: usize = MAX - 2 * KEEP - 1;

    if prefix.len() < MAX {
        return prefix;
    }
    let (Some(head), Some(tail)) = (prefix.as_bytes().first_chunk::<KEEP>(), prefix.as_bytes().last_chunk::<KEEP>())
    else {
        return prefix;
    };
    let (head, tail) = (String::from_utf8_lossy(head), String::from_utf8_lossy(tail));
    format!("{head}{}_{tail}", limited_id("", &prefix, HASH))
}

/// The action that copies a packet to the listener of a direction.
pub(crate) fn nflog(direction: Direction, prefix: &str) -> Action {
    let group = match direction {
        Direction::Ingress => 1,
        Direction::Egress => 2,
    };
    Action::Nflog { group, prefix: NflogPrefix::new(prefix) }
}
