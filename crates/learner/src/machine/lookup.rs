//! Answers about learned names.

use tortie_dns::{Known, Millis};

use super::Machine;
use crate::question::{LearnedName, LearnedNames, LookupQuery};

impl Machine {
    /// Returns the addresses that a scope has learned; `None` if it does not learn.
    pub(crate) fn lookup(&self, now: Millis, query: LookupQuery) -> Option<LearnedNames> {
        let LookupQuery { scope, address, limit } = query;
        self.scopes.get(scope)?;
        let known: Vec<Known<'_>> = match address {
            Some(address) => self.learned.names(scope, address).collect(),
            None => self.learned.known(scope).collect(),
        };
        let mut found = LearnedNames { left_out: known.len().saturating_sub(limit), ..LearnedNames::default() };
        for Known { name, address, expires, sets } in known.into_iter().take(limit) {
            let lifetime = (address, expires.since(now));
            match found.names.last_mut().filter(|last| last.name == *name) {
                Some(last) => last.addresses.push(lifetime),
                None => {
                    let mut sets: Vec<_> = sets.into_iter().cloned().collect();
                    sets.sort_unstable();
                    let near_miss = self.learned.near_miss(scope, name);
                    let addresses = vec![lifetime];
                    found.names.push(LearnedName { name: name.clone(), addresses, sets, near_miss });
                }
            }
        }
        Some(found)
    }
}
