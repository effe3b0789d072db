//! The renderer: a configuration, and functions that all chains use.

use tortie_model::{DenyAction, Family, IpSetId};
use tortie_netfilter::{Action, InterfacePattern, IpSetName, Matches, Rule, Side};

use crate::config::{RejectReply, RulesConfig, WorkloadDispatch, deny_at_once};
use crate::marks::Marks;
use crate::names::{self, chain};

/// Renders chains for one configuration.
///
/// Every method is a pure function of the configuration and its arguments. The same state gives the
/// same chains, independent of the order of updates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renderer {
    config: RulesConfig,
}

impl Renderer {
    /// Returns a renderer for this configuration.
    #[must_use]
    pub const fn new(config: RulesConfig) -> Self {
        Self { config }
    }

    /// Returns the configuration.
    #[must_use]
    pub const fn config(&self) -> &RulesConfig {
        &self.config
    }

    pub(crate) const fn marks(&self) -> &Marks {
        &self.config.marks
    }

    /// Returns the action of guards, which deny packets independent of policy.
    pub(crate) const fn deny(&self) -> Action {
        deny_at_once(self.guard())
    }

    /// Returns `Drop …` or `Reject …`, according to [`Renderer::deny`].
    pub(crate) fn guard_comment(&self, rest: &str) -> String {
        format!("{} {rest}", self.guard().as_str())
    }

    /// Answers in the form of Felix are for all denied packets, others only for those that policy
    /// denies: a reset for a packet that conntrack does not know would end its connection.
    const fn guard(&self) -> DenyAction {
        match self.config.reject_with {
            RejectReply::PortUnreachable => self.config.deny,
            RejectReply::ResetOrProhibited => DenyAction::Drop,
        }
    }

    /// Returns the action on packets that policy denies; `own` is the action of the policy or tier,
    /// if it has one.
    pub(crate) const fn deny_by_policy(&self, own: Option<DenyAction>) -> Action {
        match (own, self.config.deny, self.config.reject_with) {
            (None, DenyAction::Reject, RejectReply::PortUnreachable) => deny_at_once(DenyAction::Reject),
            (Some(DenyAction::Reject), ..) | (None, DenyAction::Reject, _) => Action::Goto(chain::REJECT),
            (Some(DenyAction::Drop), ..) | (None, DenyAction::Drop, _) => Action::Drop,
        }
    }

    /// Returns the name of [`Renderer::deny_by_policy`] in comments.
    pub(crate) fn deny_word(&self, own: Option<DenyAction>) -> &'static str {
        own.unwrap_or(self.config.deny).as_str()
    }

    /// Returns the interfaces of workloads, one pattern for each configured prefix.
    pub(crate) fn workload_interfaces(&self) -> impl Iterator<Item = InterfacePattern> + '_ {
        self.config.workload_prefixes.iter().copied().map(InterfacePattern::prefix)
    }

    /// Returns the matches for packets of workloads, of which any may hold: the interface's name,
    /// and with [`WorkloadDispatch::Address`] the address.
    pub(crate) fn workload_packets(&self, family: Family, side: Side) -> Vec<Matches> {
        let by_name = self.workload_interfaces().map(|cali| match side {
            Side::Source => Matches::new().in_interface(cali),
            Side::Destination => Matches::new().out_interface(cali),
        });
        let by_address = matches!(self.config.workloads, WorkloadDispatch::Address)
            .then(|| Matches::new().ip_set(side, static_set(family, names::static_set::LOCAL_WORKLOADS)));
        by_name.chain(by_address).collect()
    }

    /// Returns a rule that applies `action` if policy has accepted the packet.
    pub(crate) fn if_accepted(&self, action: Action) -> Rule {
        Rule::when(Matches::new().mark_set(self.marks().accept), action)
    }
}

/// Returns the kernel's name of a set that is part of the program.
pub(crate) fn static_set(family: Family, id: &'static str) -> IpSetName {
    set_name(family, &IpSetId::from(id))
}

/// Returns the kernel's name of a set with an id of `names::static_set`.
#[expect(clippy::expect_used, reason = "the ids of `names::static_set` are all legal")]
pub(crate) fn set_name(family: Family, id: &IpSetId) -> IpSetName {
    names::ip_set_name(family, id).expect("the id of a static set is a legal name")
}
