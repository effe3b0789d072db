//! Where objects, and the rules of policies, are written.

use tortie_model::{Interner, Key, PolicyId, Update};

use super::{Format, Options, Outcome, Resource, each_object, read_resource};
use crate::Position;
use crate::tree::{Cursor, RulePositions};

/// Where a policy is written.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PolicyPosition {
    /// Which.
    pub policy: PolicyId,
    /// Where it begins.
    pub position: Position,
    /// Where each of its rules is.
    pub rules: RulePositions,
}

/// Where the policies of a manifest are written, and each of their rules. Policies that are not valid, and documents that cannot
/// be read, are left out: [`super::read`] names them.
///
/// ```
/// use tortie_resources::manifest::{Format, Options, policy_positions};
///
/// let text = "
/// apiVersion: networking.k8s.io/v1
/// kind: NetworkPolicy
/// metadata: {namespace: shop, name: db}
/// spec:
///   podSelector: {}
///   ingress:
///     - from: [{podSelector: {}}, {ipBlock: {cidr: 10.0.0.0/8}}]
///     - ports: [{port: 443}]
/// ";
/// let positions = policy_positions(text, Format::Yaml, &Options::default());
/// let lines: Vec<u32> = positions[0].rules.ingress.iter().map(|position| position.line).collect();
/// assert_eq!(lines, [8, 8, 9], "the first one says two things");
/// ```
#[must_use]
pub fn policy_positions(text: &str, format: Format, options: &Options) -> Vec<PolicyPosition> {
    object_positions(text, format, options).policies
}

/// Where the objects of a manifest are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObjectPositions {
    /// Policies, with their rules.
    pub policies: Vec<PolicyPosition>,
    /// All objects, in the order in which they are written. One that is written may stand for several: a namespace for the rules
    /// of a profile and for its labels.
    pub objects: Vec<(Key, Position)>,
}

/// Where all objects of a manifest are written that are valid. The others are left out: [`super::read`] names them.
///
/// ```
/// use tortie_model::Key;
/// use tortie_resources::manifest::{Format, Options, object_positions};
///
/// let text = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n";
/// let positions = object_positions(text, Format::Yaml, &Options::default());
/// let profile = Key::ProfileRules("kns.shop".into());
/// assert!(positions.objects.iter().any(|(key, position)| *key == profile && position.line == 1));
/// ```
#[must_use]
pub fn object_positions(text: &str, format: Format, options: &Options) -> ObjectPositions {
    let mut positions = ObjectPositions::default();
    let mut interner = Interner::new();
    each_object(text, format, |node, implied| {
        let mut rules = Some(RulePositions::default());
        let Resource { position, outcome, .. } =
            read_resource(Cursor::root(node), implied, options, &mut interner, &mut rules);
        let Outcome::Valid(updates) = outcome else { return };
        let exist = updates.iter().filter(|update| update.exists());
        positions.objects.extend(exist.map(|update| (update.key(), position)));
        let policy = updates.into_iter().find_map(|update| match update {
            Update::Policy(id, Some(_)) => Some(id),
            _ => None,
        });
        let found = policy.zip(rules).map(|(policy, rules)| PolicyPosition { policy, position, rules });
        positions.policies.extend(found);
    });
    positions
}
