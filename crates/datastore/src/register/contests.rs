//! Denials for policies whose key belongs to another object.

use std::collections::BTreeMap;

use tortie_model::{Key, Order, Policy, PolicyId, Update, Valid};
use tortie_resources::manifest::{Contributions, ObjectId, Outcome};

use super::Register;

/// Prefix of the names of the denials.
const RESERVED: &str = "tortie-contested";

/// The objects that stand for denials, by the contested key. No object with such a name can be
/// written.
pub(super) type Contests = BTreeMap<Key, ObjectId>;

/// Returns the policy that denies the endpoints of another policy, before all others of its tier;
/// `None` for a staged policy, which is not enforced.
fn denial(id: &PolicyId, policy: &Valid<Policy>) -> Option<Valid<Policy>> {
    let first = || Policy { order: Order::new(f64::MIN), ..Policy::clone(policy) };
    (!id.kind.is_staged()).then(|| first().denying(&id.kind, policy.selector.clone()))
}

impl Register {
    /// Denies the endpoints that ignored policies select, for the keys that were touched since the
    /// last updates.
    pub(super) fn close_contests(&mut self) {
        if !self.claims.is_in_conflict() && self.contests.is_empty() {
            return;
        }
        let is_contested = |key: &&Key| {
            matches!(key, Key::Policy(_)) && (self.contests.contains_key(key) || self.claims.is_contested(key))
        };
        let mut keys: Vec<Key> = self.before.keys().filter(is_contested).cloned().collect();
        // A denial may be contested itself, under a longer name.
        while let Some(key) = keys.pop() {
            let denials = self.denials(&key);
            let before = self.contests.get(&key).cloned();
            let winner = self.claims.winner(&key, &self.store).map(|claim| &self.store.object(claim.slot).id);
            let object = before.clone().or_else(|| winner.map(|id| reserved(id, &key)));
            // No object claims the key any more, and no denial was in force for it.
            let Some(object) = object else { continue };
            if denials.is_empty() && before.is_none() {
                continue;
            }
            let earlier = self.store.find(&object).map(|slot| self.store.object(slot).in_force.to_vec());
            keys.extend(earlier.iter().flatten().chain(&denials).map(Update::key));
            if denials.is_empty() {
                self.contests.remove(&key);
                self.remove(&object);
            } else {
                self.contests.insert(key, object.clone());
                self.put(&object, Outcome::Valid(denials), 0);
            }
        }
    }

    /// Returns the denials for the ignored policies of a key.
    fn denials(&self, key: &Key) -> Contributions {
        let Key::Policy(of) = key else { return Contributions::new() };
        let denials = self.claims.ignored(key, &self.store).filter_map(|update| match update {
            Update::Policy(id, Some(policy)) => denial(id, policy),
            _ => None,
        });
        let named = denials.enumerate().map(|(number, policy)| {
            let name = format!("{RESERVED}.{}.{number}", of.name);
            Update::Policy(PolicyId::new(of.kind.clone(), of.namespace.clone(), name), Some(policy))
        });
        named.collect()
    }
}

/// Returns the id of the object that holds the denials of a key.
fn reserved(winner: &ObjectId, key: &Key) -> ObjectId {
    let name = match key {
        Key::Policy(id) => &*id.name,
        _ => &*winner.name,
    };
    ObjectId { name: format!("{name}##").into(), ..winner.clone() }
}
