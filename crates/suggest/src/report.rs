//! Remarks on a suggestion for people.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::num::ParseIntError;
use std::str::FromStr;

use crate::owner::Owner;
use crate::record::{Edge, EdgeKey, EdgePort, End, Record, ported};

/// Seconds of an hour, in which many single connections are a scan.
const HOUR: u64 = 3_600;

/// Seconds of a day.
const DAY: u64 = 86_400;

/// Number of destinations and ports with a single connection in an hour from which they are a scan.
const SCAN: usize = 20;

/// Address at which clouds serve credentials.
const METADATA: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254));

/// Subject of a remark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Topic {
    /// Rules of this form cannot have the protocol.
    Protocol,
    /// The record has no address of the other end.
    NoAddress,
    /// No labels of the owner's pods are known.
    NoLabels,
    /// Selectors of the owner also pick pods of others.
    EqualLabels,
    /// Fewer days than required.
    TooRare,
    /// Servers refused or did not answer.
    Attempt,
    /// Policy denied it.
    Denied,
    /// Connections are open, and do not count yet.
    Open,
    /// Policies isolate the owner in a direction already.
    Isolated,
    /// A single connection was seen.
    SeenOnce,
    /// The kernel did not count packets.
    Uncounted,
    /// The address at which clouds serve credentials.
    Metadata,
    /// Single connections to many destinations within an hour.
    Scan,
}

impl Topic {
    /// Reports whether connections of the record are left out of the policies because these cannot
    /// express them, or more are let in.
    #[must_use]
    pub const fn is_incomplete(self) -> bool {
        matches!(self, Self::Protocol | Self::NoAddress | Self::NoLabels | Self::EqualLabels)
    }

    /// Returns the topic in words.
    #[must_use]
    pub const fn in_words(self) -> &'static str {
        match self {
            Self::Protocol => "left out: policies of this form cannot have the protocol",
            Self::NoAddress => "left out: the address is not recorded (--external any allows all)",
            Self::NoLabels => "left out: the labels of the pods are not known",
            Self::EqualLabels => "the selector also picks pods of others",
            Self::TooRare => "left out: seen on too few days",
            Self::Attempt => "left out: refused or not answered",
            Self::Denied => "left out: denied by policy",
            Self::Open => "left out: still open, without enough packets yet",
            Self::Isolated => "left as it is: other policies isolate the pods in this direction (see --all)",
            Self::SeenOnce => "seen once",
            Self::Uncounted => "learned without packet counts (nf_conntrack_acct is 0)",
            Self::Metadata => "suspicious: credentials of the cloud are served there",
            Self::Scan => "suspicious: single connections to many destinations within an hour",
        }
    }
}

/// A remark on an edge, or on an owner.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Note {
    /// The topic.
    pub topic: Topic,
    /// The edge or owner in words.
    pub subject: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.topic.in_words(), self.subject)
    }
}

/// An owner with its policy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OwnerReport {
    /// The owner; `None` for a whole namespace.
    pub owner: Option<Owner>,
    /// `namespace/name` of the policy.
    pub policy: String,
    /// Number of its current pods.
    pub pods: usize,
    /// Number of its learned edges.
    pub edges: usize,
    /// Most days on which one of its edges was seen.
    pub days: u32,
}

/// Remarks on a suggestion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Owners with policies, in the order of these.
    pub owners: Vec<OwnerReport>,
    /// Remarks, in order.
    pub notes: BTreeSet<Note>,
    /// First and last time of the record, in seconds since 1970.
    pub span: Option<(u64, u64)>,
}

impl Report {
    pub(crate) fn note(&mut self, topic: Topic, subject: impl fmt::Display) {
        self.notes.insert(Note { topic, subject: subject.to_string() });
    }

    /// Reports whether policies cannot express a part of the record, or let more in.
    #[must_use]
    pub fn is_incomplete(&self) -> bool {
        self.notes.iter().any(|note| note.topic.is_incomplete())
    }

    /// Notes the edges that are no part of policies, and those that look like attacks.
    pub(crate) fn review(&mut self, record: &Record, is_subject: impl Fn(&EdgeKey) -> bool) {
        for (key, edge) in record.edges().filter(|(key, _)| is_subject(key)) {
            if edge.learned.is_empty() {
                let topics =
                    [(Topic::Attempt, &edge.attempts), (Topic::Denied, &edge.denied), (Topic::Open, &edge.open)];
                topics.iter().filter(|(_, seen)| !seen.is_empty()).for_each(|(topic, _)| self.note(*topic, key));
            } else if !edge.is_counted && key.protocol == 6 {
                self.note(Topic::Uncounted, key);
            }
            if matches!(&key.destination, End::Network(net) if net.contains(METADATA)) {
                self.note(Topic::Metadata, key);
            }
        }
        for owner in scanners(record, is_subject) {
            self.note(Topic::Scan, owner);
        }
    }
}

/// Number of days; as text `7d`, or `7`.
///
/// ```
/// use tortie_suggest::Days;
///
/// assert_eq!("7d".parse(), Ok(Days(7)));
/// assert_eq!("30".parse(), Ok(Days(30)));
/// assert!("7h".parse::<Days>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(clippy::exhaustive_structs, reason = "a number is all")]
pub struct Days(pub u64);

/// Error of a text that is no number of days.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a number of days, such as 7d")]
#[non_exhaustive]
pub struct DaysError {
    /// The text.
    pub text: String,
    source: ParseIntError,
}

impl FromStr for Days {
    type Err = DaysError;

    fn from_str(text: &str) -> Result<Self, DaysError> {
        let number = text.strip_suffix('d').unwrap_or(text).parse();
        number.map(Self).map_err(|source| DaysError { text: text.to_owned(), source })
    }
}

impl Report {
    /// Returns a line that the record covers fewer days; `None` if it does not.
    #[must_use]
    pub fn shortfall(&self, wanted: Days) -> Option<String> {
        let (first, last) = self.span.unwrap_or_default();
        let covered = last.saturating_sub(first) / DAY;
        (covered < wanted.0).then(|| format!("the flows cover {covered} of {} days\n", wanted.0))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for OwnerReport { owner, policy, pods, edges, days } in &self.owners {
            let owner = owner.as_ref().map(|owner| format!(" for {owner}")).unwrap_or_default();
            writeln!(f, "{policy}{owner}: {pods} pods, {edges} edges, at most {days} days")?;
        }
        let mut topic = None;
        for note in &self.notes {
            if topic.replace(note.topic) != Some(note.topic) {
                writeln!(f, "{}:", note.topic.in_words())?;
            }
            writeln!(f, "  {}", note.subject)?;
        }
        Ok(())
    }
}

/// Returns the owners with single connections to many destinations and ports within an hour.
fn scanners(record: &Record, is_subject: impl Fn(&EdgeKey) -> bool) -> BTreeSet<&Owner> {
    let mut hours: BTreeMap<(&Owner, u64), usize> = BTreeMap::new();
    for (key, edge) in record.edges().filter(|(key, _)| is_subject(key)) {
        let End::Owner(owner) = &key.source else { continue };
        let Edge { learned, attempts, denied, .. } = edge;
        let seen: Vec<_> = [learned, attempts, denied].into_iter().filter(|seen| !seen.is_empty()).collect();
        if let [seen] = seen[..]
            && seen.is_single()
            && let Some((first, _)) = seen.span()
        {
            *hours.entry((owner, first / HOUR)).or_default() += 1;
        }
    }
    hours.into_iter().filter(|(_, count)| *count >= SCAN).map(|((owner, _), _)| owner).collect()
}

impl fmt::Display for EdgeKey {
    /// Writes `source -> destination protocol port`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {} ", self.source, self.destination)?;
        match ported(self.protocol) {
            Some(name) => f.write_str(name)?,
            None => write!(f, "protocol {}", self.protocol)?,
        }
        match self.port {
            EdgePort::Port(port) => write!(f, " {port}"),
            EdgePort::Icmp(icmp_type, _) => write!(f, " type {icmp_type}"),
            EdgePort::None => Ok(()),
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Owner(owner) => owner.fmt(f),
            Self::Node(name) => write!(f, "node {name}"),
            Self::NetworkSet(name) => write!(f, "network set {name}"),
            Self::Network(net) if net.is_host() => net.address().fmt(f),
            Self::Network(net) => net.fmt(f),
            Self::Private => f.write_str("any private address"),
            Self::Public => f.write_str("any public address"),
            Self::UnknownPrivate => f.write_str("an unknown private address"),
            Self::UnknownPublic => f.write_str("an unknown public address"),
        }
    }
}
