//! Denials for policies with several definitions, of which one counts.

use tortie_model::{Order, Policy, PolicyId, Update, Valid};
use tortie_resources::manifest::{Contributions, ObjectId, Outcome};

use super::{Definition, Definitions, effective};
use crate::register::Register;

/// Prefix of the names of the denials.
const RESERVED: &str = "tortie-duplicate";

/// Denies the endpoints that the ignored definitions of a policy select, once the register has the one that counts.
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

/// The definitions that do not count. Those of an unreadable file are outdated unless all are.
fn ignored<'d>(definitions: &'d Definitions, first: &'d Definition) -> impl Iterator<Item = &'d Definition> {
    let alike = definitions.values().filter(|definition| definition.stale == first.stale);
    alike
        .flat_map(|definition| std::iter::once(definition).chain(&definition.doubles))
        .filter(|definition| !std::ptr::eq(*definition, first))
}

impl Definition {
    /// Returns the policy that denies the endpoints of this definition, before all others of its tier; `None` if the
    /// definition says the same as the one that counts or as the earlier one that is in force for it, or is no policy that
    /// is enforced.
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
