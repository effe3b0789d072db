//! Times at which an edge was seen.

/// Number of the connections that are kept apart; there may be more.
const KEPT: usize = 4;

/// Number of days in the calendar of an edge.
const DAYS: u64 = 32;

/// Seconds of a day.
const DAY: u64 = 86_400;

/// Seconds within which one connection is seen at both ends, whose clocks and intervals differ.
const AT_ONCE: u64 = 600;

/// Times at which an edge was seen, and the number of its connections as far as it is small.
///
/// Merging is commutative, associative and idempotent: records of several nodes, read in any order
/// and any number of times, give the same result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sightings {
    /// First and last time, in seconds since 1970; `None` before the first.
    span: Option<(u64, u64)>,
    /// Days before the last one; bit 0 is the last day.
    days: u32,
    /// The smallest identities of its connections, sorted.
    connections: Vec<u64>,
}

impl Sightings {
    /// Adds a sighting: a connection by an identity that is equal at both ends.
    pub(crate) fn add(&mut self, at: u64, connection: u64) {
        self.merge(&Self { span: Some((at, at)), days: 1, connections: vec![connection] });
    }

    /// Adds all sightings of another record of the same edge.
    pub(crate) fn merge(&mut self, other: &Self) {
        let Some((first, last)) = other.span else { return };
        let (own_first, own_last) = self.span.unwrap_or((first, last));
        let end = own_last.max(last);
        let shifted = |days: u32, last: u64| {
            u32::try_from(end / DAY - last / DAY).ok().and_then(|by| days.checked_shl(by)).unwrap_or(0)
        };
        self.days = shifted(self.days, own_last) | shifted(other.days, last);
        self.span = Some((own_first.min(first), end));
        self.connections.extend_from_slice(&other.connections);
        self.connections.sort_unstable();
        self.connections.dedup();
        self.connections.truncate(KEPT);
    }

    /// Reports whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.span.is_none()
    }

    /// Returns the first and the last time, in seconds since 1970.
    #[must_use]
    pub fn span(&self) -> Option<(u64, u64)> {
        self.span
    }

    /// Returns the number of days with sightings, among the last 32.
    #[must_use]
    pub fn days(&self) -> u32 {
        self.days.count_ones()
    }

    /// Reports whether a single connection was seen.
    #[must_use]
    pub fn is_single(&self) -> bool {
        self.connections.len() == 1 && self.span.is_some_and(|(first, last)| last - first <= AT_ONCE)
    }
}

const _: () = assert!(DAYS == u32::BITS as u64, "the calendar has a bit for each day");

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(times: &[(u64, u64)]) -> Sightings {
        let mut sightings = Sightings::default();
        times.iter().for_each(|(at, connection)| sightings.add(*at, *connection));
        sightings
    }

    #[test]
    fn days_are_counted_as_far_as_the_calendar_goes() {
        let days: Vec<(u64, u64)> = (0..40).map(|day| (day * DAY + 5, day)).collect();
        assert_eq!(seen(&days).days(), 32);
        assert_eq!(seen(&[(5, 0), (100 * DAY, 1)]).days(), 1);
        assert_eq!(seen(&[(DAY - 1, 0), (DAY, 1)]).days(), 2);
        let reversed: Vec<(u64, u64)> = days.iter().rev().copied().collect();
        assert_eq!(seen(&days), seen(&reversed));
    }

    #[test]
    fn one_connection_is_seen_at_both_ends() {
        assert!(seen(&[(100, 7), (130, 7), (100, 7)]).is_single());
        assert!(!seen(&[(100, 7), (101, 8)]).is_single());
        assert!(!seen(&[(100, 7), (100 + AT_ONCE + 1, 7)]).is_single());
        assert!(!Sightings::default().is_single());
    }
}
