//! TCP connections whose answers are read.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use tortie_dns::{Millis, Pushed, Scope, Stream};
use tortie_linux::netlink::Segment;

/// Connections of all scopes, with at most 64 KiB each.
pub(super) const CONNECTIONS: usize = 1_024;
/// Connections of one scope.
pub(super) const CONNECTIONS_PER_SCOPE: usize = 64;
/// Time without segments after which a connection gives way to one of another scope.
pub(super) const IDLE: Duration = Duration::from_secs(10);

/// A connection: server, client, and the scope to which its answers go.
pub(super) type ConnectionKey = (Scope, SocketAddr, SocketAddr);

#[derive(Debug)]
struct Connection {
    stream: Stream,
    used: u64,
    at: Millis,
    /// The batch for which the newest held segment waits, and the end of its time.
    hold: Option<(u64, Millis)>,
    /// The server has ended the connection, and no byte before that is missing.
    is_closed: bool,
}

/// Result of a segment.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Read {
    /// The connection is not known: it was seen midway, or there is no room for it.
    Unknown,
    /// The segment has no payload that counts.
    Empty,
    /// The messages that the segment completes, and the hold that repeated bytes share.
    Pushed(Pushed, Option<(u64, Millis)>),
}

/// The connections. A scope can displace its own ones, idle ones of others, and active ones of a
/// scope that has at least two more.
#[derive(Debug, Default)]
pub(super) struct Streams {
    connections: BTreeMap<ConnectionKey, Connection>,
    /// The keys of each scope by use, the least recent one first.
    by_scope: BTreeMap<Scope, BTreeSet<(u64, ConnectionKey)>>,
    by_use: BTreeSet<(u64, ConnectionKey)>,
    uses: u64,
}

impl Streams {
    /// Takes a segment. Cost: logarithmic, and the length of its payload.
    pub(super) fn read(&mut self, now: Millis, key: ConnectionKey, segment: &Segment<'_>) -> Read {
        if segment.rst {
            self.remove(&key);
            return Read::Empty;
        }
        if segment.syn && !self.begin(now, key, segment.sequence.wrapping_add(1)) {
            return Read::Unknown;
        }
        if !self.touch(now, &key) {
            return if segment.payload.is_empty() { Read::Empty } else { Read::Unknown };
        }
        let Some(connection) = self.connections.get_mut(&key) else { return Read::Unknown };
        // A SYN takes the number before the first byte.
        let sequence = segment.sequence.wrapping_add(u32::from(segment.syn));
        let pushed = connection.stream.push(sequence, segment.payload);
        let hold = connection.hold;
        #[expect(clippy::cast_possible_truncation, reason = "sequence numbers count modulo 2³²")]
        let end = sequence.wrapping_add(segment.payload.len() as u32);
        connection.is_closed |= segment.fin && connection.stream.is_read_up_to(end);
        if !segment.payload.is_empty() {
            return Read::Pushed(pushed, hold);
        }
        // A repeat of a segment that is held must not pass.
        if connection.is_closed && hold.is_none_or(|(_, until)| until <= now) {
            self.remove(&key);
        }
        Read::Empty
    }

    /// Notes that the newest segment of a connection is held.
    pub(super) fn hold(&mut self, key: &ConnectionKey, needs: u64, until: Millis) {
        if let Some(connection) = self.connections.get_mut(key) {
            connection.hold = Some((needs, until));
        }
    }

    /// Forgets the connections of a scope.
    pub(super) fn remove_scope(&mut self, scope: Scope) {
        for (_, key) in self.by_scope.remove(&scope).unwrap_or_default() {
            if let Some(connection) = self.connections.remove(&key) {
                self.by_use.remove(&(connection.used, key));
            }
        }
    }

    /// Forgets all connections, after segments may have passed unseen.
    pub(super) fn clear(&mut self) {
        let uses = self.uses;
        *self = Self { uses, ..Self::default() };
    }

    /// Begins a connection, unless a repeated SYN belongs to a known one. Reports whether there is
    /// room.
    fn begin(&mut self, now: Millis, key: ConnectionKey, first: u32) -> bool {
        if let Some(known) = self.connections.get(&key)
            && known.hold.is_some_and(|(_, until)| now < until)
        {
            // A new connection between the same ports comes minutes later; this SYN is a repeat.
            return true;
        }
        self.remove(&key);
        let of_scope = self.by_scope.get(&key.0);
        if let Some(oldest) = of_scope.filter(|of| of.len() >= CONNECTIONS_PER_SCOPE).and_then(BTreeSet::first) {
            self.remove(&oldest.1.clone());
        } else if self.connections.len() >= CONNECTIONS {
            let oldest = self.by_use.first().map(|(_, key)| *key);
            let idle = oldest
                .filter(|key| self.connections.get(key).is_some_and(|connection| connection.at.after(IDLE) <= now));
            match idle.or_else(|| self.of_largest_scope(key.0)) {
                Some(oldest) => self.remove(&oldest),
                None => return false,
            }
        }
        self.uses += 1;
        let used = self.uses;
        self.connections
            .insert(key, Connection { stream: Stream::new(first), used, at: now, hold: None, is_closed: false });
        self.by_scope.entry(key.0).or_default().insert((used, key));
        self.by_use.insert((used, key));
        true
    }

    /// Returns the least recently used connection of the scope with the most ones, if these are at
    /// least two more than those of `scope`; otherwise that of `scope`, if it has any. Cost: the
    /// number of scopes with connections.
    fn of_largest_scope(&self, scope: Scope) -> Option<ConnectionKey> {
        let own = self.by_scope.get(&scope);
        let largest = self.by_scope.values().max_by_key(|of| of.len());
        let is_larger = |of: &&BTreeSet<_>| of.len() > own.map_or(0, BTreeSet::len) + 1;
        largest.filter(is_larger).or(own)?.first().map(|(_, key)| *key)
    }

    /// Makes a connection the most recently used one. Reports whether it is known.
    fn touch(&mut self, now: Millis, key: &ConnectionKey) -> bool {
        let Some(connection) = self.connections.get_mut(key) else { return false };
        self.uses += 1;
        let before = std::mem::replace(&mut connection.used, self.uses);
        connection.at = now;
        let of_scope = self.by_scope.entry(key.0).or_default();
        for order in [of_scope, &mut self.by_use] {
            order.remove(&(before, *key));
            order.insert((self.uses, *key));
        }
        true
    }

    fn remove(&mut self, key: &ConnectionKey) {
        let Some(connection) = self.connections.remove(key) else { return };
        self.by_use.remove(&(connection.used, *key));
        if let Some(of_scope) = self.by_scope.get_mut(&key.0) {
            of_scope.remove(&(connection.used, *key));
            if of_scope.is_empty() {
                self.by_scope.remove(&key.0);
            }
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        assert_eq!(self.by_use.len(), self.connections.len());
        assert_eq!(self.by_scope.values().map(BTreeSet::len).sum::<usize>(), self.connections.len());
        self.connections.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(scope: usize, port: usize) -> ConnectionKey {
        let scope = Scope::Interface(format!("cali{scope}").parse().unwrap());
        let client = SocketAddr::new([10, 0, 0, 2].into(), u16::try_from(port).unwrap());
        (scope, "10.0.0.1:53".parse().unwrap(), client)
    }

    fn segment(sequence: u32, payload: &[u8]) -> Segment<'_> {
        Segment { sequence, syn: false, fin: false, rst: false, payload }
    }

    fn syn(sequence: u32) -> Segment<'static> {
        Segment { syn: true, ..segment(sequence, &[]) }
    }

    fn message(byte: u8) -> Vec<u8> {
        [vec![0, 20], vec![byte; 20]].concat()
    }

    fn messages(read: Read) -> usize {
        match read {
            Read::Pushed(pushed, _) => pushed.messages.len(),
            read => panic!("{read:?}"),
        }
    }

    #[test]
    fn messages_are_read_from_the_first_segment_on() {
        let mut streams = Streams::default();
        assert_eq!(streams.read(Millis(0), key(1, 1), &segment(5, &message(1))), Read::Unknown, "midway");
        assert_eq!(streams.read(Millis(0), key(1, 1), &segment(5, &[])), Read::Empty);
        assert_eq!(streams.read(Millis(0), key(1, 1), &syn(4)), Read::Empty);
        assert_eq!(messages(streams.read(Millis(0), key(1, 1), &segment(5, &message(1)[..7]))), 0);
        assert_eq!(messages(streams.read(Millis(0), key(1, 1), &segment(12, &message(1)[7..]))), 1);
        // A SYN with a payload.
        let first = message(2);
        let open = Segment { syn: true, ..segment(u32::MAX, &first) };
        assert_eq!(messages(streams.read(Millis(0), key(1, 2), &open)), 1);
        let reset = Segment { rst: true, ..segment(0, &[]) };
        assert_eq!(streams.read(Millis(0), key(1, 1), &reset), Read::Empty);
        assert_eq!(streams.len(), 1);
        streams.clear();
        assert_eq!(streams.read(Millis(0), key(1, 2), &segment(22, &first)), Read::Unknown);
    }

    #[test]
    fn repeated_bytes_share_the_hold_of_the_connection() {
        let mut streams = Streams::default();
        let _ = streams.read(Millis(0), key(1, 1), &syn(0));
        let first = message(1);
        let _ = streams.read(Millis(0), key(1, 1), &segment(1, &first));
        streams.hold(&key(1, 1), 7, Millis(1_000));
        let Read::Pushed(pushed, hold) = streams.read(Millis(5), key(1, 1), &segment(1, &first)) else { panic!() };
        assert!(pushed.repeats && pushed.messages.is_empty());
        assert_eq!(hold, Some((7, Millis(1_000))));
        // The repeated SYN does not begin the connection anew.
        let _ = streams.read(Millis(6), key(1, 1), &syn(0));
        let Read::Pushed(pushed, _) = streams.read(Millis(7), key(1, 1), &segment(1, &first)) else { panic!() };
        assert!(pushed.repeats && pushed.messages.is_empty());
    }

    #[test]
    fn a_scope_displaces_its_own_connections_and_idle_ones_of_others() {
        let mut streams = Streams::default();
        let begin = |streams: &mut Streams, now, scope, port| streams.read(Millis(now), key(scope, port), &syn(0));
        for port in 0..=CONNECTIONS_PER_SCOPE {
            assert_eq!(begin(&mut streams, 0, 0, port), Read::Empty);
        }
        assert_eq!(streams.len(), CONNECTIONS_PER_SCOPE);
        let first = message(1);
        assert_eq!(streams.read(Millis(0), key(0, 0), &segment(1, &first)), Read::Unknown, "displaced");
        for scope in 1..CONNECTIONS / CONNECTIONS_PER_SCOPE {
            for port in 0..CONNECTIONS_PER_SCOPE {
                assert_eq!(begin(&mut streams, 1, scope, port), Read::Empty);
            }
        }
        assert_eq!(streams.len(), CONNECTIONS);
        assert_eq!(begin(&mut streams, 10_000, 99, 1), Read::Empty, "the first one is idle");
        assert_eq!(streams.len(), CONNECTIONS);
        assert_eq!(streams.read(Millis(10_000), key(0, 1), &segment(1, &first)), Read::Unknown);
        streams.remove_scope(key(99, 1).0);
        streams.remove_scope(key(0, 1).0);
        assert_eq!(streams.len(), CONNECTIONS - CONNECTIONS_PER_SCOPE);
    }

    #[test]
    fn scopes_share_a_full_table() {
        let mut streams = Streams::default();
        let begin = |streams: &mut Streams, scope, port| streams.read(Millis(0), key(scope, port), &syn(0));
        for scope in 0..CONNECTIONS / CONNECTIONS_PER_SCOPE {
            for port in 0..CONNECTIONS_PER_SCOPE {
                assert_eq!(begin(&mut streams, scope, port), Read::Empty);
            }
        }
        // Nothing is idle. Each further scope gets a place, and so gives way to the next ones.
        for scope in 100..100 + CONNECTIONS / 2 {
            for port in 0..3 {
                assert_eq!(begin(&mut streams, scope, port), Read::Empty, "{scope} {port}");
            }
        }
        let mut sizes: Vec<usize> = streams.by_scope.values().map(BTreeSet::len).collect();
        sizes.sort_unstable();
        assert_eq!((streams.len(), sizes.first(), sizes.last()), (CONNECTIONS, Some(&1), Some(&2)));
        let mut streams = Streams::default();
        for scope in 0..CONNECTIONS {
            assert_eq!(begin(&mut streams, scope, 0), Read::Empty);
        }
        assert_eq!(begin(&mut streams, CONNECTIONS, 0), Read::Unknown, "each has one");
        assert_eq!(begin(&mut streams, 0, 1), Read::Empty, "its own one goes");
        assert_eq!(streams.len(), CONNECTIONS);
    }

    #[test]
    fn a_connection_ends_with_its_last_byte_unless_it_is_held() {
        let first = message(1);
        let after = 1 + u32::try_from(first.len()).unwrap();
        let fin = |sequence, payload| Segment { fin: true, ..segment(sequence, payload) };
        let mut streams = Streams::default();
        let _ = streams.read(Millis(0), key(1, 1), &syn(0));
        // It overtakes the answer.
        assert_eq!(streams.read(Millis(0), key(1, 1), &fin(after, &[])), Read::Empty);
        assert_eq!(messages(streams.read(Millis(0), key(1, 1), &segment(1, &first))), 1);
        assert_eq!(streams.len(), 1);
        assert_eq!(streams.read(Millis(0), key(1, 1), &fin(after, &[])), Read::Empty);
        assert_eq!(streams.len(), 0);
        // The last answer is held, so that its repeat is held as well.
        let _ = streams.read(Millis(0), key(1, 2), &syn(0));
        assert_eq!(messages(streams.read(Millis(0), key(1, 2), &fin(1, &first))), 1);
        streams.hold(&key(1, 2), 7, Millis(1_000));
        assert_eq!(streams.read(Millis(1), key(1, 2), &segment(after + 1, &[])), Read::Empty);
        let Read::Pushed(pushed, hold) = streams.read(Millis(2), key(1, 2), &fin(1, &first)) else { panic!() };
        assert!(pushed.repeats && hold == Some((7, Millis(1_000))));
        assert_eq!(streams.read(Millis(1_000), key(1, 2), &segment(after + 1, &[])), Read::Empty);
        assert_eq!(streams.len(), 0);
    }
}
