//! NFLOG prefixes: the rule that gave the verdict, for flow logs (`felix/rules/nflogprefix.go`).

use tortie_model::{Direction, TierName};
use tortie_netfilter::{Action, NflogPrefix, limited_id};

/// The NFLOG group of ingress rules (`felix/rules/rule_defs.go`).
pub const NFLOG_GROUP_INGRESS: u16 = 1;
/// The NFLOG group of egress rules.
pub const NFLOG_GROUP_EGRESS: u16 = 2;

/// A verdict in a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PrefixVerdict {
    /// `A`
    Allow,
    /// `D`
    Deny,
    /// `P`
    Pass,
}

impl PrefixVerdict {
    const fn letter(self) -> char {
        match self {
            Self::Allow => 'A',
            Self::Deny => 'D',
            Self::Pass => 'P',
        }
    }
}

/// Kind of object that a rule belongs to.
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

/// Returns the prefix of a rule: `API0|np/default/web` for the first rule of a policy. `owner` is
/// the policy's id text or the profile's name.
#[must_use]
pub fn rule_prefix(verdict: PrefixVerdict, kind: OwnerKind, direction: Direction, index: usize, owner: &str) -> String {
    limited(format!("{}{}{}{index}|{owner}", verdict.letter(), kind.letter(), letter(direction)))
}

/// Returns the prefix of a tier's end: `DPI|tier`, or `PPI|tier` if the tier passes undecided
/// packets.
#[must_use]
pub fn end_of_tier_prefix(verdict: PrefixVerdict, direction: Direction, tier: &TierName) -> String {
    limited(format!("{}{}{}|{tier}", verdict.letter(), OwnerKind::Policy.letter(), letter(direction)))
}

/// Returns the prefix of a packet that no profile allowed: `DRI` or `DRE`.
#[must_use]
pub fn no_profile_prefix(direction: Direction) -> String {
    format!("{}{}{}", PrefixVerdict::Deny.letter(), OwnerKind::Profile.letter(), letter(direction))
}

/// Parts of a prefix. The kernel keeps at most 63 bytes of a prefix, so only a hash is left of a
/// long name. A program that knows all names can find it by the prefix text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PrefixParts<'a> {
    /// A rule.
    Rule {
        /// Its verdict.
        verdict: PrefixVerdict,
        /// Kind of its owner.
        kind: OwnerKind,
        /// Its direction.
        direction: Direction,
        /// Its place in the list of its direction, counted from 0.
        index: usize,
        /// The policy's id text or the profile's name.
        owner: &'a str,
    },
    /// The end of a tier.
    EndOfTier {
        /// Its verdict.
        verdict: PrefixVerdict,
        /// The direction.
        direction: Direction,
        /// The tier's name.
        tier: &'a str,
    },
    /// No profile allowed the packet.
    NoProfile {
        /// The direction.
        direction: Direction,
    },
}

impl<'a> PrefixParts<'a> {
    /// Parses a prefix; `None` for a cut prefix, or one of another program.
    ///
    /// ```
    /// use tortie_model::Direction::Egress;
    /// use tortie_rules::{OwnerKind, PrefixParts, PrefixVerdict};
    ///
    /// let parts = PrefixParts::read("DPE12|np/shop/web");
    /// let (verdict, kind) = (PrefixVerdict::Deny, OwnerKind::Policy);
    /// assert_eq!(parts, Some(PrefixParts::Rule { verdict, kind, direction: Egress, index: 12, owner: "np/shop/web" }));
    /// assert_eq!(PrefixParts::read("calico-packet: "), None);
    /// ```
    #[must_use]
    pub fn read(prefix: &'a str) -> Option<Self> {
        if prefix.len() >= MAX {
            return None;
        }
        let (letters, rest) = prefix.split_at_checked(3)?;
        let mut letters = letters.chars();
        let verdict = match letters.next()? {
            'A' => PrefixVerdict::Allow,
            'D' => PrefixVerdict::Deny,
            'P' => PrefixVerdict::Pass,
            _ => return None,
        };
        let kind = match letters.next()? {
            'P' => OwnerKind::Policy,
            'R' => OwnerKind::Profile,
            _ => return None,
        };
        let direction = match letters.next()? {
            'I' => Direction::Ingress,
            'E' => Direction::Egress,
            _ => return None,
        };
        match (rest.split_once('|'), kind, verdict) {
            (None, OwnerKind::Profile, PrefixVerdict::Deny) if rest.is_empty() => Some(Self::NoProfile { direction }),
            (Some(("", tier)), OwnerKind::Policy, PrefixVerdict::Deny | PrefixVerdict::Pass) => {
                Some(Self::EndOfTier { verdict, direction, tier })
            }
            (Some((index, owner)), ..) => {
                Some(Self::Rule { verdict, kind, direction, index: index.parse().ok()?, owner })
            }
            _ => None,
        }
    }
}

/// The kernel's limit, with the zero byte behind it.
const MAX: usize = 63;

/// Keeps both ends of a prefix that the kernel would cut, with a hash of the whole in between. A
/// prefix of exactly the kernel's limit is hashed too, so that no name can be chosen to look like
/// the hash of another.
fn limited(prefix: String) -> String {
    const KEEP: usize = 10;
    const HASH: usize = MAX - 2 * KEEP - 1;

    if prefix.len() < MAX {
        return prefix;
    }
    let bytes = prefix.as_bytes();
    let (head, tail) = (bytes.split_at(KEEP).0, bytes.split_at(bytes.len() - KEEP).1);
    let (head, tail) = (String::from_utf8_lossy(head), String::from_utf8_lossy(tail));
    format!("{head}{}_{tail}", limited_id("", &prefix, HASH))
}

/// Returns the action that copies a packet to the listener of a direction.
pub(crate) fn nflog(direction: Direction, prefix: &str) -> Action {
    let group = match direction {
        Direction::Ingress => NFLOG_GROUP_INGRESS,
        Direction::Egress => NFLOG_GROUP_EGRESS,
    };
    Action::Nflog { group, prefix: NflogPrefix::new(prefix) }
}
