//! Rules with the IP sets of their selectors, named ports and services.

use std::sync::Arc;

use crate::{Cidr, EntityMatch, Family, IpSetId, NamedProtocol, PortSpec, Protocol, Rule, RuleAction, ShortList};

/// A list of IP set ids; a rule has few.
pub type SetIds = ShortList<IpSetId>;

/// The IP sets of one rule; by default none, which only rules without selectors, services and names
/// of ports allow ([`Rules::new`]). Within a list: selector and service sets are all required;
/// named-port sets are alternatives to each other and to the numeric ports; every negated set
/// excludes its members.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct RuleSets {
    /// Sets that the source must be in.
    pub src: SetIds,
    /// Sets that may hold source address and port.
    pub src_named_ports: SetIds,
    /// Sets that the source must not be in.
    pub not_src: SetIds,
    /// Sets that must not hold source address and port.
    pub not_src_named_ports: SetIds,
    /// Sets that the destination must be in.
    pub dst: SetIds,
    /// Sets that may hold destination address and port.
    pub dst_named_ports: SetIds,
    /// Sets of a service that must hold destination address and port.
    pub dst_ip_ports: SetIds,
    /// Sets that the destination must not be in.
    pub not_dst: SetIds,
    /// Sets that must not hold destination address and port.
    pub not_dst_named_ports: SetIds,
    /// Sets of type [`IpSetType::Domains`](super::IpSetType::Domains), each of which is an
    /// alternative to `dst`: the destination must be in all sets of `dst`, if there are any, or in
    /// one of these. Only egress rules that allow have them.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "<[_]>::is_empty"))]
    pub dst_domains: SetIds,
}

impl RuleSets {
    /// Returns every id, with repetitions.
    pub fn iter(&self) -> impl Iterator<Item = &IpSetId> {
        [
            &self.src,
            &self.src_named_ports,
            &self.not_src,
            &self.not_src_named_ports,
            &self.dst,
            &self.dst_named_ports,
            &self.dst_ip_ports,
            &self.not_dst,
            &self.not_dst_named_ports,
            &self.dst_domains,
        ]
        .into_iter()
        .flatten()
    }
}

/// The rules of one direction with their IP sets; the rules themselves are shared with the
/// datastore's value.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    rules: Arc<[Rule]>,
    sets: Arc<[RuleSets]>,
    http_by_proxy: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self { rules: Arc::new([]), sets: Arc::new([]), http_by_proxy: false }
    }
}

impl Rules {
    /// Joins rules and their sets, one for each.
    ///
    /// ```
    /// use tortie_model::desired::{RuleSets, Rules};
    /// use tortie_model::{EntityMatch, Rule, RuleAction};
    ///
    /// let source = EntityMatch { selector: Some("app == 'web'".parse()?), ..EntityMatch::default() };
    /// let rule = Rule { source, ..Rule::new(RuleAction::Allow) };
    /// // Without the IP set of its selector the rule would allow all sources.
    /// let error = Rules::new([rule.clone()].into(), [RuleSets::default()].into()).unwrap_err();
    /// assert_eq!(error.to_string(), "rule 0: src_selector has no IP set");
    /// let sets = RuleSets { src: ["s:web".into()].into(), ..RuleSets::default() };
    /// assert!(Rules::new([rule].into(), [sets].into()).is_ok());
    /// # Ok::<(), tortie_selector::ParseError>(())
    /// ```
    ///
    /// # Errors
    /// [`RulesError`] if the lengths differ, or if a selector, a service, a named port or domains
    /// have no set: the rule would match more than intended. Also if a rule with sets of domains
    /// does not allow: an address that no endpoint has resolved would pass a rule that denies
    /// names.
    pub fn new(rules: Arc<[Rule]>, sets: Arc<[RuleSets]>) -> Result<Self, RulesError> {
        if rules.len() != sets.len() {
            return Err(RulesError::Lengths { rules: rules.len(), sets: sets.len() });
        }
        let missing = |(rule, sets)| field_without_set(rule, sets);
        let all = || rules.iter().zip(sets.iter());
        if let Some((rule, field)) = all().map(missing).enumerate().find_map(|(i, field)| Some((i, field?))) {
            return Err(RulesError::MissingSet { rule, field });
        }
        let is_odd =
            |(rule, sets): (&Rule, &RuleSets)| !sets.dst_domains.is_empty() && rule.action != RuleAction::Allow;
        match all().position(is_odd) {
            Some(rule) => Err(RulesError::DomainsWithoutAllow { rule }),
            None => Ok(Self { rules, sets, http_by_proxy: false }),
        }
    }

    /// Sets whether a proxy enforces the HTTP matches, if there are any; by default none does
    /// ([`RuleView::has_unenforced_http`]).
    #[must_use]
    pub fn with_http_by_proxy(self, http_by_proxy: bool) -> Self {
        let http_by_proxy = http_by_proxy && self.rules.iter().any(|rule| rule.extras.http.is_some());
        Self { http_by_proxy, ..self }
    }

    /// Returns the IP sets of each rule. A caller that compiles many rules may share equal lists.
    #[must_use]
    pub fn sets(&self) -> &Arc<[RuleSets]> {
        &self.sets
    }

    /// Returns the rules in order of evaluation.
    #[must_use]
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = RuleView<'_>> + ExactSizeIterator + Clone {
        self.rules.iter().zip(self.sets.iter()).map(|(rule, sets)| RuleView {
            rule,
            sets,
            http_by_proxy: self.http_by_proxy,
        })
    }

    /// Returns the number of rules.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Reports whether there are no rules.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }
}

/// Reason why rules and IP sets cannot be joined.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RulesError {
    /// The number of sets differs from that of rules.
    #[error("{rules} rules, but the IP sets of {sets}")]
    Lengths {
        /// Number of rules.
        rules: usize,
        /// Number of values of [`RuleSets`].
        sets: usize,
    },
    /// A selector, a service or a name of a port has no IP set.
    #[error("rule {rule}: {field} has no IP set")]
    MissingSet {
        /// Index of the rule.
        rule: usize,
        /// The field of the rule, named as in the datastore's JSON.
        field: &'static str,
    },
    /// A rule that does not allow has sets of domains.
    #[error("rule {rule}: only a rule that allows can have sets of domains")]
    DomainsWithoutAllow {
        /// Index of the rule.
        rule: usize,
    },
}

fn field_without_set(rule: &Rule, sets: &RuleSets) -> Option<&'static str> {
    const SOURCE: [&str; 5] = ["src_selector", "src_ports", "!src_selector", "!src_ports", "src_service"];
    const DESTINATION: [&str; 5] = ["dst_selector", "dst_ports", "!dst_selector", "!dst_ports", "dst_service"];
    let source = SideSets {
        matched: &sets.src,
        named_ports: &sets.src_named_ports,
        not_matched: &sets.not_src,
        not_named_ports: &sets.not_src_named_ports,
        service: &sets.src,
    };
    let destination = SideSets {
        matched: &sets.dst,
        named_ports: &sets.dst_named_ports,
        not_matched: &sets.not_dst,
        not_named_ports: &sets.not_dst_named_ports,
        service: &sets.dst_ip_ports,
    };
    let in_source = source.missing(&rule.source, SOURCE);
    let has_domains = [&rule.source, &rule.destination].into_iter().any(|side| !side.extras.domains.is_empty());
    let domains = (has_domains && sets.dst_domains.is_empty()).then_some("dst_domains");
    in_source.or_else(|| destination.missing(&rule.destination, DESTINATION)).or(domains)
}

/// Reports whether a set is one of domains. Only such sets have ids that begin with `d:`.
///
/// ```
/// use tortie_model::desired::is_domain_set;
/// assert!(is_domain_set(&"d:VYY8wPBkyVgCdUIMYL8mXQIXzS_K8K6r0A0Hcg".into()));
/// assert!(!is_domain_set(&"s:VYY8wPBkyVgCdUIMYL8mXQIXzS_K8K6r0A0Hcg".into()));
/// ```
#[must_use]
pub fn is_domain_set(id: &IpSetId) -> bool {
    id.as_str().starts_with("d:")
}

/// The IP sets of one side of a rule.
struct SideSets<'a> {
    matched: &'a SetIds,
    named_ports: &'a SetIds,
    not_matched: &'a SetIds,
    not_named_ports: &'a SetIds,
    service: &'a SetIds,
}

impl SideSets<'_> {
    /// Returns the name of the first field of the side without a set, from these names.
    fn missing(&self, side: &EntityMatch, fields: [&'static str; 5]) -> Option<&'static str> {
        let is_named = |ports: &[PortSpec]| ports.iter().any(|port| matches!(port, PortSpec::Named(_)));
        // Sets of named ports include the selector, unless numeric ports are the alternative to
        // them. A selector is combined with a negated one into a single set.
        let embodied = !self.named_ports.is_empty() && side.numeric_ports().next().is_none();
        let flaws = [
            side.selector.is_some() && self.matched.is_empty() && !embodied,
            self.named_ports.is_empty() && is_named(&side.ports),
            side.extras.not_selector.is_some() && side.selector.is_none() && self.not_matched.is_empty(),
            self.not_named_ports.is_empty() && is_named(&side.extras.not_ports),
            side.extras.service.is_some() && self.service.is_empty(),
        ];
        fields.into_iter().zip(flaws).find_map(|(field, is_missing)| is_missing.then_some(field))
    }
}

/// One rule with its IP sets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RuleView<'a> {
    /// The rule; `sets` stands for its selectors and named ports.
    pub rule: &'a Rule,
    /// Its IP sets.
    pub sets: &'a RuleSets,
    /// Whether a proxy enforces the HTTP matches of the list of rules.
    pub http_by_proxy: bool,
}

impl<'a> RuleView<'a> {
    /// Returns the action.
    #[must_use]
    pub fn action(self) -> RuleAction {
        self.rule.action
    }

    /// Reports whether the rule has an HTTP match that nothing enforces. Where a proxy does, an
    /// Allow rule allows packets by its other conditions, as in Felix, so that the proxy sees the
    /// request. The proxy cannot undo a denial or a pass.
    #[must_use]
    pub fn has_unenforced_http(self) -> bool {
        let is_left_to_proxy =
            self.http_by_proxy && matches!(self.action(), RuleAction::Allow | RuleAction::Unspecified);
        self.rule.extras.http.is_some() && !is_left_to_proxy
    }

    /// Reports whether only sets of domains can match the destination. A consumer that cannot
    /// enforce such sets leaves the rule out, which allows less. It applies a rule with both kinds
    /// of sets without those of domains.
    ///
    /// ```
    /// use tortie_model::desired::{RuleSets, Rules};
    /// use tortie_model::{Rule, RuleAction};
    ///
    /// let by = |dst: &[&str], domains: &[&str]| RuleSets {
    ///     dst: dst.iter().map(|id| (*id).into()).collect(),
    ///     dst_domains: domains.iter().map(|id| (*id).into()).collect(),
    ///     ..RuleSets::default()
    /// };
    /// let sets = [by(&[], &["d:x"]), by(&["s:y"], &["d:x"]), by(&["s:y"], &[])];
    /// let rules = Rules::new(vec![Rule::new(RuleAction::Allow); 3].into(), sets.into())?;
    /// let left_out: Vec<_> = rules.iter().map(|rule| rule.is_by_domains_only()).collect();
    /// assert_eq!(left_out, [true, false, false]);
    /// # Ok::<(), tortie_model::desired::RulesError>(())
    /// ```
    #[must_use]
    pub fn is_by_domains_only(self) -> bool {
        !self.sets.dst_domains.is_empty() && self.sets.dst.is_empty()
    }

    /// Returns the only family that the rule applies to: as given, or as implied by `icmp` and
    /// `icmpv6` by name (`felix/calc/rule_convert.go`).
    #[must_use]
    pub fn ip_version(self) -> Option<Family> {
        self.rule.ip_version.or(match self.rule.protocol {
            Some(Protocol::Named(NamedProtocol::Icmp)) => Some(Family::V4),
            Some(Protocol::Named(NamedProtocol::Icmpv6)) => Some(Family::V6),
            _ => None,
        })
    }

    /// Returns the source's networks.
    #[must_use]
    pub fn src_nets(self) -> &'a [Cidr] {
        &self.rule.source.nets
    }

    /// Returns the destination's networks.
    #[must_use]
    pub fn dst_nets(self) -> &'a [Cidr] {
        &self.rule.destination.nets
    }
}

impl EntityMatch {
    /// Returns the numeric ports, as `first..=last`.
    pub fn numeric_ports(&self) -> impl Iterator<Item = (u16, u16)> + Clone + '_ {
        numeric(&self.ports)
    }

    /// Returns the negated numeric ports, as `first..=last`.
    pub fn not_numeric_ports(&self) -> impl Iterator<Item = (u16, u16)> + Clone + '_ {
        numeric(&self.extras.not_ports)
    }
}

fn numeric(ports: &[PortSpec]) -> impl Iterator<Item = (u16, u16)> + Clone + '_ {
    ports.iter().filter_map(|port| match port {
        PortSpec::Range { first, last } => Some((*first, *last)),
        PortSpec::Named(_) => None,
    })
}
