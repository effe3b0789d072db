//! Denials for policies with several definitions, of which one counts.

use std::path::Path;

use tortie_model::{Policy, PolicyId, Update, Valid};
use tortie_resources::manifest::{Contributions, ObjectId, Outcome};

use super::{Definition, Definitions, effective};
use crate::register::{self, Register};

/// Prefix of the names of the denials.
const RESERVED: &str = "tortie-duplicate";

/// Denies the endpoints that the ignored definitions of a policy select.
pub(super) fn close(definitions: &mut Definitions, id: &ObjectId, register: &mut Register) {
    // No object of this name can be written.
    let object = ObjectId { name: format!("{}#", id.name).into(), ..id.clone() };
    let denials: Contributions = match effective(definitions) {
        None => Contributions::new(),
        Some((_, first)) => {
            ignored(definitions, first).filter_map(|double| double.denial(first)).enumerate().map(denial).collect()
        }
    };
    for definition in definitions.values_mut().filter(|definition| !definition.stale) {
        definition.contested = !denials.is_empty();
    }
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

/// The definitions that do not count. Those of an unreadable file are outdated unless all are, or they are contested.
fn ignored<'d>(definitions: &'d Definitions, first: &'d Definition) -> impl Iterator<Item = &'d Definition> {
    let alike = definitions.values().filter(|definition| definition.is_current() == first.is_current());
    alike
        .flat_map(|definition| std::iter::once(definition).chain(&definition.doubles))
        .filter(|definition| !std::ptr::eq(*definition, first))
}

/// Whether an ignored definition in a file selects endpoints that are unknown.
pub(super) fn has_unknown(definitions: &Definitions, id: &ObjectId, path: &Path) -> bool {
    let (Some((_, first)), Some(here)) = (effective(definitions), definitions.get(path)) else { return false };
    let mut here = std::iter::once(here).chain(&here.doubles).filter(|definition| !std::ptr::eq(*definition, first));
    id.kind.is_policy() && here.any(Definition::is_unknown)
}

impl Definition {
    /// Whether the definition counts or is contested. One of a file that has become unreadable does neither, because the object
    /// may have moved, unless another definition differed before: then all stay as they were.
    pub(super) fn is_current(&self) -> bool {
        !self.stale || self.contested
    }

    /// Whether nothing is known of the endpoints that a policy selects.
    pub(super) fn is_unknown(&self) -> bool {
        matches!(self.outcome, Outcome::Invalid { substitute: None })
    }

    /// The policy that denies what this definition selects, before all others of its tier; `None` if it says the same as
    /// the one that counts, or is no policy that is enforced.
    pub(super) fn denial(&self, counts: &Self) -> Option<(PolicyId, Valid<Policy>)> {
        if self.outcome == counts.outcome { None } else { self.denying() }
    }

    fn denying(&self) -> Option<(PolicyId, Valid<Policy>)> {
        let updates = match &self.outcome {
            Outcome::Valid(updates) | Outcome::Invalid { substitute: Some(updates) } => updates,
            Outcome::Invalid { substitute: None } | Outcome::Unknown => return None,
        };
        updates.iter().find_map(|update| match update {
            Update::Policy(id, Some(policy)) => Some((id.clone(), register::denial(id, policy)?)),
            _ => None,
        })
    }

    /// Takes over from the definition of a policy that the file had before: the endpoints that it selected, while those of the
    /// new one are unknown; and if part of the file is unreadable (`is_partial`), the definitions that are missing now.
    pub(super) fn succeed(&mut self, mut earlier: Self, is_partial: bool) {
        if self.is_unknown()
            && let Some((id, policy)) = earlier.denying()
        {
            self.outcome = Outcome::Invalid { substitute: Some(vec![Update::Policy(id, Some(policy))]) };
        }
        if is_partial && earlier.doubles.len() > self.doubles.len() {
            let doubles = std::mem::take(&mut earlier.doubles);
            for mut missing in std::iter::once(earlier).chain(doubles) {
                let is_here = |here: &Self| here.outcome == missing.outcome;
                if !is_here(self) && !self.doubles.iter().any(is_here) {
                    missing.stale = true;
                    self.doubles.push(missing);
                }
            }
        }
    }

    /// Forgets definitions that the file does not have any more; returns whether there were any.
    pub(super) fn forget_stale_doubles(&mut self) -> bool {
        let before = self.doubles.len();
        self.doubles.retain(|double| !double.stale);
        self.doubles.len() < before
    }
}
