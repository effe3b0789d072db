//! Denials for policies with several definitions, of which one takes effect.

use std::path::Path;

use tortie_model::{Order, Policy, PolicyId, Update, Valid};
use tortie_resources::manifest::{Contributions, ObjectId, Outcome};
use tortie_revisions::unknown::{is_unknown, missing};

use super::{Age, Definition, Definitions, effective};
use crate::Fallback;
use crate::register::Register;

/// Prefix of the names of the denials.
const RESERVED: &str = "tortie-duplicate";

/// Denies the endpoints that the ignored definitions of a policy select, once the register has the
/// definition in effect.
pub(super) fn close(definitions: &Definitions, id: &ObjectId, register: &mut Register) {
    // No object of this name can be written.
    let object = ObjectId { name: format!("{}#", id.name).into(), ..id.clone() };
    let denials: Contributions = match effective(definitions) {
        None => Contributions::new(),
        Some((_, first)) => {
            let in_force = register.in_force(id);
            let denials = ignored(definitions, first).filter_map(|double| double.denial(first, in_force));
            denials.enumerate().map(denial).collect()
        }
    };
    if denials.is_empty() {
        register.remove(&object);
    } else {
        register.put(&object, Outcome::Valid(denials), 0);
    }
}

fn denial((number, (id, policy)): (usize, (PolicyId, Valid<Policy>))) -> Update {
    let name = format!("{RESERVED}.{}.{number}", id.name);
    Update::Policy(PolicyId::new(id.kind.clone(), id.namespace, name), Some(policy))
}

/// Returns the ignored definitions, without those of files that may be incomplete, because the
/// object may have moved.
fn ignored<'d>(definitions: &'d Definitions, first: &'d Definition) -> impl Iterator<Item = &'d Definition> {
    let files = definitions.values().filter(|definition| first.age != Age::Current || definition.age != Age::Kept);
    files.flat_map(Definition::all).filter(|definition| !std::ptr::eq(*definition, first))
}

/// Reports whether an ignored definition of a file selects unknown endpoints, and its earlier form
/// as well.
pub(super) fn has_unknown(definitions: &Definitions, id: &ObjectId, path: &Path) -> bool {
    let (Some((_, first)), Some(here)) = (effective(definitions), definitions.get(path)) else { return false };
    let mut ignored = here.all().filter(|definition| !std::ptr::eq(*definition, first));
    id.kind.is_policy()
        && here.fallback_of_unknown() == Fallback::Nothing
        && ignored.any(|definition| definition.age == Age::Current && definition.is_unknown())
}

impl Definition {
    /// Returns this definition and the others of its file.
    fn all(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(&self.doubles)
    }

    pub(super) fn current_doubles(&self) -> impl Iterator<Item = &Self> {
        self.doubles.iter().filter(|double| double.age == Age::Current)
    }

    pub(super) fn is_unknown(&self) -> bool {
        is_unknown(&self.outcome)
    }

    /// Returns the fallback of a definition of this file whose selector is unreadable: the denial
    /// of its earlier form, if there is one.
    pub(super) fn fallback_of_unknown(&self) -> Fallback {
        let has_earlier = self.doubles.iter().any(|double| double.age != Age::Current);
        if has_earlier { Fallback::Denied } else { Fallback::Nothing }
    }

    /// Takes over the earlier definitions that the file may still have: if documents are missing,
    /// for the reason `age`, or if a selector is unreadable now.
    pub(super) fn succeed(&mut self, mut earlier: Self, age: Option<Age>) {
        let unknown = self.all().any(Self::is_unknown).then_some(Age::Hidden);
        let Some(age) = unknown.or(age) else { return };
        let places = {
            let before: Vec<&Outcome> = earlier.all().map(|one| &one.outcome).collect();
            let now: Vec<&Outcome> = self.all().map(|one| &one.outcome).collect();
            missing(&before, &now)
        };
        let doubles = std::mem::take(&mut earlier.doubles);
        let all = std::iter::once(earlier).chain(doubles).enumerate();
        let missing = all.filter(|(place, _)| places.binary_search(place).is_ok());
        self.doubles.extend(missing.map(|(_, definition)| Self { age, ..definition }));
    }

    /// Removes the definitions that the file does not have any more; returns whether there were
    /// any.
    pub(super) fn clear_doubles(&mut self) -> bool {
        let before = self.doubles.len();
        self.doubles.retain(|double| double.age != Age::Kept);
        self.doubles.len() < before
    }

    /// Returns the policy that denies the endpoints of this definition, before all others of its
    /// tier. Returns `None` if the definition equals the one in effect or the earlier one that is
    /// in force for it, or is not an enforced policy.
    pub(super) fn denial(&self, counts: &Self, in_force: &[Update]) -> Option<(PolicyId, Valid<Policy>)> {
        let updates = match &self.outcome {
            outcome if *outcome == counts.outcome => return None,
            Outcome::Valid(updates) | Outcome::Invalid { substitute: Some(updates) } => updates,
            Outcome::Invalid { substitute: None } | Outcome::Unknown => return None,
        };
        if updates[..] == *in_force {
            return None;
        }
        updates.iter().find_map(|update| match update {
            Update::Policy(id, Some(policy)) if !id.kind.is_staged() => {
                let first = Policy { order: Order::new(f64::MIN), ..Policy::clone(policy) };
                Some((id.clone(), first.denying(&id.kind, policy.selector.clone())))
            }
            _ => None,
        })
    }
}
