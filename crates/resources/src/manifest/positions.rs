//! Positions of objects and of policy rules in manifests.

use tortie_model::{Interner, Key, PolicyId, Update};

use super::{Format, Options, Outcome, Resource, each_object, read_resource};
use crate::Position;
use crate::tree::{Cursor, RulePositions};

/// Position of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PolicyPosition {
    /// The policy.
    pub policy: PolicyId,
    /// Position of its first character.
    pub position: Position,
    /// Positions of its rules.
    pub rules: RulePositions,
}

/// Returns the positions of the policies of a manifest and of their rules. Invalid policies and
/// unreadable documents are left out; [`super::read`] reports them.
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
/// assert_eq!(lines, [8, 8, 9], "the first rule expands to two");
/// ```
#[must_use]
pub fn policy_positions(text: &str, format: Format, options: &Options) -> Vec<PolicyPosition> {
    object_positions(text, format, options).policies
}

/// Positions of the objects of a manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObjectPositions {
    /// Policies and their rules.
    pub policies: Vec<PolicyPosition>,
    /// All objects in written order. One written object may contribute several: a namespace
    /// contributes the rules of a profile and its labels.
    pub objects: Vec<(Key, Position)>,
}

/// Returns the positions of all valid objects of a manifest. The others are left out;
/// [`super::read`] reports them.
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
