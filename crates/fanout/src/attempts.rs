//! Order in which servers are tried (`typha/pkg/discovery`).

use std::collections::BTreeSet;

/// Servers that have been tried without success. Does no I/O.
///
/// The server that served last comes first, because it can resume at the client's position. The
/// others follow, each once, before any server is retried.
#[derive(Debug)]
pub(crate) struct Attempts<A> {
    tried: BTreeSet<A>,
    preferred: Option<A>,
}

impl<A> Default for Attempts<A> {
    fn default() -> Self {
        Self { tried: BTreeSet::new(), preferred: None }
    }
}

impl<A: Clone + Ord> Attempts<A> {
    /// Returns the next of these servers, and whether all of them had been tried; `None` if there
    /// are none.
    pub(crate) fn next(&mut self, servers: &[A]) -> Option<(A, bool)> {
        // Removed servers would accumulate otherwise.
        self.tried.retain(|server| servers.contains(server));
        let untried = |tried: &BTreeSet<A>| {
            let preferred = self.preferred.iter().filter(|server| servers.contains(server));
            preferred.chain(servers).find(|server| !tried.contains(server)).cloned()
        };
        let (next, round) = match untried(&self.tried) {
            Some(next) => (next, false),
            None => {
                self.tried.clear();
                (untried(&self.tried)?, true)
            }
        };
        self.tried.insert(next.clone());
        Some((next, round))
    }

    /// Records that a server serves.
    pub(crate) fn serves(&mut self, server: A) {
        self.tried.clear();
        self.preferred = Some(server);
    }

    /// Records that a server sends its clients to other servers.
    pub(crate) fn leave(&mut self, server: A) {
        self.tried.insert(server);
        self.preferred = None;
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::Attempts;

    #[test]
    fn each_once_and_the_last_good_one_first() {
        let [a, b, c]: [SocketAddr; 3] = ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"].map(|text| text.parse().unwrap());
        let mut attempts = Attempts::default();
        assert_eq!(attempts.next(&[]), None);
        assert_eq!(attempts.next(&[a, b]), Some((a, false)));
        assert_eq!(attempts.next(&[a, b]), Some((b, false)));
        // One more has appeared.
        assert_eq!(attempts.next(&[a, b, c]), Some((c, false)));
        assert_eq!(attempts.next(&[a, b, c]), Some((a, true)));
        assert_eq!(attempts.next(&[a, b, c]), Some((b, false)));
        attempts.serves(b);
        assert_eq!(attempts.next(&[a, b, c]), Some((b, false)));
        assert_eq!(attempts.next(&[a, b, c]), Some((a, false)));
        attempts.serves(a);
        attempts.leave(a);
        assert_eq!(attempts.next(&[a, b, c]), Some((b, false)));
        // The only one there is.
        attempts.serves(a);
        attempts.leave(a);
        assert_eq!(attempts.next(&[a]), Some((a, true)));
    }
}
