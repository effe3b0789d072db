//! Which server to try next (`typha/pkg/discovery`).

use std::collections::BTreeSet;

/// Which servers have been tried in vain. Pure.
///
/// The server that served last comes first: it knows how to go on. Then come the others, each once, before any is tried
/// again.
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
    /// The next of these servers; `None` if there are none. The second is whether all had been tried.
    pub(crate) fn next(&mut self, servers: &[A]) -> Option<(A, bool)> {
        // Where servers come and go, those that are gone would pile up.
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

    /// A server serves.
    pub(crate) fn serves(&mut self, server: A) {
        self.tried.clear();
        self.preferred = Some(server);
    }

    /// A server that served wants its clients to go elsewhere.
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
