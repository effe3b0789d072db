//! Log of namespaces that take more than their share of the room for addresses.

use std::time::{Duration, Instant};

use tortie_dns::Crowding;

/// Least time between two lines: a tenant can fill and empty its share at will.
const PAUSE: Duration = Duration::from_secs(60);
/// Namespaces that a line names.
const NAMED: usize = 5;

/// The last line.
#[derive(Debug, Default)]
pub(super) struct Crowded {
    logged: Option<Instant>,
    namespaces: String,
}

impl Crowded {
    /// Logs the namespaces beyond their share when these change, at most once a minute.
    pub(super) fn log(&mut self, crowding: Option<&Crowding>, now: Instant) {
        let namespaces = crowding.map(names).unwrap_or_default();
        let is_early = self.logged.is_some_and(|logged| now.saturating_duration_since(logged) < PAUSE);
        if namespaces == self.namespaces || is_early {
            return;
        }
        match crowding.filter(|_| !namespaces.is_empty()) {
            Some(Crowding { addresses, limit, share, .. }) => {
                tracing::warn!(
                    namespaces,
                    addresses,
                    limit,
                    share,
                    "room for learned addresses is nearly full; namespaces beyond their share give way to others"
                );
            }
            None => tracing::info!("no namespace crowds the room for learned addresses any more"),
        }
        self.logged = Some(now);
        self.namespaces = namespaces;
    }
}

/// Returns the names of the largest namespaces in order of the alphabet, so that another order of
/// their sizes is no change.
fn names(crowding: &Crowding) -> String {
    let mut names: Vec<&str> = crowding.groups.iter().take(NAMED).map(|(name, _)| &**name).collect();
    names.sort_unstable();
    names.iter_mut().filter(|name| name.is_empty()).for_each(|name| *name = "(host)");
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use tortie_dns::{Answer, Learned, Limits, Millis, Scope, Settings};
    use tortie_telemetry::logging::capture;

    use super::*;

    #[test]
    fn namespaces_beyond_their_share_are_logged_once_until_others_are() {
        let (lines, _guard) = capture();
        let limits = Limits { addresses: 8, ..Limits::default() };
        let mut learned = Learned::new(Settings { limits, ..Settings::default() });
        for (interface, namespace) in [("cali1", "greedy"), ("cali2", "shop")] {
            let scope = Scope::Interface(interface.parse().unwrap());
            learned.set_scope(scope, 1, []);
            learned.set_group(scope, &namespace.into());
        }
        let scope = Scope::Interface("cali1".parse().unwrap());
        let addresses = (1..=8).map(|last| ([192, 0, 2, last].into(), 60));
        let answer = Answer::new("a.io".parse().unwrap(), addresses);
        learned.answer(Millis(0), scope, &answer).unwrap();
        let (mut crowded, begin) = (Crowded::default(), Instant::now());
        for second in 0..100 {
            crowded.log(learned.crowding().as_ref(), begin + Duration::from_secs(second));
        }
        let found = lines.containing("nearly full");
        assert!(found.len() == 1 && found[0].contains("greedy") && !found[0].contains("shop"), "{found:?}");
        learned.remove_scope(scope);
        crowded.log(learned.crowding().as_ref(), begin + Duration::from_secs(200));
        assert_eq!(lines.containing("no namespace crowds").len(), 1);
    }
}
