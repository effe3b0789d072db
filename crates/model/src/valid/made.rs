//! Values that are valid by construction.

use std::sync::{Arc, LazyLock};

use tortie_selector::Selector;

use super::Valid;
use crate::{Labels, Policy, PolicyKind, PolicyTypes, Profile, ProfileRules, Rule, RuleAction, selects_nodes};

impl ProfileRules {
    /// Returns empty rules, which are shared by all.
    #[must_use]
    pub fn none() -> Valid<Self> {
        static NONE: LazyLock<Valid<ProfileRules>> = LazyLock::new(|| Valid::trusted(ProfileRules::default()));
        NONE.clone()
    }

    /// Returns rules that allow everything in both directions, which are shared by all.
    #[must_use]
    pub fn allow_all() -> Valid<Self> {
        static ALLOW_ALL: LazyLock<Valid<ProfileRules>> = LazyLock::new(|| {
            let allow = Rule::list(vec![Rule::new(RuleAction::Allow)]);
            Valid::trusted(ProfileRules { inbound: Arc::clone(&allow), outbound: allow })
        });
        ALLOW_ALL.clone()
    }
}

impl ProfileRules {
    /// The same as [`Policy::without_nodes`].
    #[must_use]
    pub fn without_nodes(&self) -> Option<Valid<Self>> {
        let [inbound, outbound] = rules_without_nodes([&self.inbound, &self.outbound])?;
        Some(Valid::trusted(Self { inbound, outbound }))
    }
}

impl Profile {
    /// Returns a profile without labels.
    #[must_use]
    pub fn without_labels() -> Valid<Self> {
        Valid::trusted(Self { labels: Labels::default() })
    }
}

impl Policy {
    /// Returns the substitute of an unusable policy of this kind: in the directions of the unusable
    /// one, it denies all traffic of the endpoints that `selector` selects. Network policies of
    /// Kubernetes only ever allow, so one without rules denies as much as possible beside others
    /// that allow.
    #[must_use]
    pub fn denying(&self, kind: &PolicyKind, selector: Selector) -> Valid<Self> {
        let (untracked, pre_dnat) = if self.pre_dnat { (false, !self.untracked) } else { (self.untracked, false) };
        let deny: Arc<[Rule]> = match kind {
            PolicyKind::KubernetesNetworkPolicy => Arc::default(),
            _ => Rule::list(vec![Rule::new(RuleAction::Deny)]),
        };
        Valid::trusted(Self {
            namespace: self.namespace.clone(),
            tier: self.tier.clone(),
            order: self.order,
            selector,
            types: if pre_dnat { PolicyTypes { ingress: true, egress: false } } else { self.types },
            untracked,
            pre_dnat,
            apply_on_forward: self.apply_on_forward || untracked || pre_dnat,
            inbound: Arc::clone(&deny),
            outbound: if pre_dnat { Arc::default() } else { deny },
            ..Self::default()
        })
    }

    /// Returns the policy for readers to which labels of nodes in selectors mean nothing; `None` if
    /// no rule selects nodes ([`selects_nodes`]). Rules that allow nodes or log them are left out;
    /// other rules deny everything instead.
    #[must_use]
    pub fn without_nodes(&self) -> Option<Valid<Self>> {
        let [inbound, outbound] = rules_without_nodes([&self.inbound, &self.outbound])?;
        Some(Valid::trusted(Self { inbound, outbound, ..self.clone() }))
    }
}

impl Policy {
    /// Returns the policy for readers that do not know domains of rules, and would take a rule with
    /// some as one for all addresses; `None` if no rule has domains. Such rules are left out; they
    /// all allow.
    #[must_use]
    pub fn without_domains(&self) -> Option<Valid<Self>> {
        let has_domains = |rule: &Rule| !rule.destination.extras.domains.is_empty();
        if !self.outbound.iter().any(has_domains) {
            return None;
        }
        let known = self.outbound.iter().filter(|rule| !has_domains(rule)).cloned();
        Some(Valid::trusted(Self { outbound: Rule::list(known.collect()), ..self.clone() }))
    }
}

fn rules_without_nodes(lists: [&[Rule]; 2]) -> Option<[Arc<[Rule]>; 2]> {
    let known = |rule: &Rule| match (rule_selects_nodes(rule), rule.action) {
        (false, _) => Some(rule.clone()),
        (true, RuleAction::Deny | RuleAction::NextTier) => Some(Rule::new(RuleAction::Deny)),
        (true, RuleAction::Unspecified | RuleAction::Allow | RuleAction::Log) => None,
    };
    let needs_change = lists.iter().copied().flatten().any(rule_selects_nodes);
    needs_change.then(|| lists.map(|rules| Rule::list(rules.iter().filter_map(known).collect())))
}

/// A negated selector of nodes would match everything else, so it counts as well.
fn rule_selects_nodes(rule: &Rule) -> bool {
    [&rule.source, &rule.destination]
        .into_iter()
        .flat_map(|side| side.selector.iter().chain(&side.extras.not_selector))
        .any(selects_nodes)
}
