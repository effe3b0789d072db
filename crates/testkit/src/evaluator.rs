//! Brute-force evaluation of policies for a packet.
//!
//! [`DesiredState`] accumulates a stream of [`DesiredUpdate`]s and evaluates one packet at a time
//! directly by the meaning of policies: no chains, no marks, no indexes. As an oracle it shares no
//! code with any dataplane.
//!
//! The meaning of rules follows `felix/calc/rule_scanner.go` and `felix/rules/policy.go`; that of
//! tiers and profiles follows `felix/calc/policy_resolver.go` and `felix/rules/endpoints.go`.

mod rule;

use std::collections::BTreeMap;
use std::sync::Arc;

use tortie_model::{
    AdminState, Direction, HostEndpointName, IpSetId, PolicyId, ProfileName, RuleAction, TierDefaultAction,
    WorkloadEndpointId,
    desired::{
        DesiredUpdate, HostEndpointState, IpSetUpdate, Members, Policy, Profile, Rules, TierPolicies,
        WorkloadEndpointState,
    },
};

use crate::packet::Packet;

/// Policy layer of a host endpoint or a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layer {
    /// Traffic of a workload, or of the host itself: tiers, then profiles, then deny.
    Normal,
    /// Forwarded traffic: tiers; allowed if there are none.
    Forward,
    /// Before conntrack: only explicit verdicts.
    Untracked,
    /// Before DNAT: only explicit verdicts.
    PreDnat,
}

/// Verdict for a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OracleVerdict {
    /// The packet is allowed.
    Allow,
    /// The packet is denied.
    Deny,
    /// No rule decides, in a layer without a default.
    Undecided,
}

/// Dangling reference: the stream violates its contract.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Missing {
    /// An endpoint names a policy that was not sent.
    #[error("policy {0} does not exist")]
    Policy(PolicyId),
    /// An endpoint names a profile that was not sent.
    #[error("profile {0} does not exist")]
    Profile(ProfileName),
    /// A rule names an IP set that was not sent.
    #[error("IP set {0} does not exist")]
    IpSet(IpSetId),
    /// An update or query names an endpoint or IP set that was not sent.
    #[error("{0} does not exist")]
    Object(String),
}

/// All objects that have been sent and not removed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DesiredState {
    /// IP sets with their members.
    pub ip_sets: BTreeMap<IpSetId, Members>,
    /// Policies.
    pub policies: BTreeMap<PolicyId, Arc<Policy>>,
    /// Profiles.
    pub profiles: BTreeMap<ProfileName, Arc<Profile>>,
    /// Workload endpoints of this node.
    pub workloads: BTreeMap<WorkloadEndpointId, WorkloadEndpointState>,
    /// Host endpoints of this node.
    pub hosts: BTreeMap<HostEndpointName, HostEndpointState>,
}

/// Verdict of a list of rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ruling {
    Allow,
    Deny,
    Pass,
    Silent,
}

impl DesiredState {
    /// Applies an update. Updates that do not affect verdicts are ignored.
    ///
    /// # Errors
    /// If it changes the members of an IP set that does not exist or has members of another type.
    pub fn apply(&mut self, update: &DesiredUpdate) -> Result<(), Missing> {
        match update {
            DesiredUpdate::IpSet(IpSetUpdate { id, members, .. }) => {
                self.ip_sets.insert(id.clone(), members.clone());
            }
            DesiredUpdate::IpSetDelta(delta) => {
                let set = self.ip_sets.get_mut(&delta.id).ok_or_else(|| Missing::IpSet(delta.id.clone()))?;
                change_members(set, &delta.added, &delta.removed)
                    .ok_or_else(|| Missing::Object(format!("an IP set {} of that type", delta.id)))?;
            }
            DesiredUpdate::IpSetRemove(id) => drop(self.ip_sets.remove(id)),
            DesiredUpdate::Policy(id, policy) => drop(self.policies.insert(id.clone(), policy.clone())),
            DesiredUpdate::PolicyRemove(id) => drop(self.policies.remove(id)),
            DesiredUpdate::Profile(name, profile) => drop(self.profiles.insert(name.clone(), profile.clone())),
            DesiredUpdate::ProfileRemove(name) => drop(self.profiles.remove(name)),
            DesiredUpdate::WorkloadEndpoint(id, state) => drop(self.workloads.insert(id.clone(), state.clone())),
            DesiredUpdate::WorkloadEndpointRemove(id) => drop(self.workloads.remove(id)),
            DesiredUpdate::HostEndpoint(name, state) => drop(self.hosts.insert(name.clone(), state.clone())),
            DesiredUpdate::HostEndpointRemove(name) => drop(self.hosts.remove(name)),
            _ => {}
        }
        Ok(())
    }

    /// Checks that all referenced objects exist, which must hold after every update of a valid
    /// stream.
    ///
    /// # Errors
    /// The first dangling reference.
    pub fn check_references(&self) -> Result<(), Missing> {
        let rules = self.policies.values().flat_map(|policy| [&policy.inbound, &policy.outbound]);
        let rules = rules.chain(self.profiles.values().flat_map(|profile| [&profile.inbound, &profile.outbound]));
        for id in rules.flat_map(Rules::iter).flat_map(|rule| rule.sets.iter()) {
            self.ip_sets.get(id).ok_or_else(|| Missing::IpSet(id.clone()))?;
        }
        let workloads = self.workloads.values().map(|state| (vec![&state.tiers], &state.endpoint.profiles));
        let hosts = self.hosts.values().map(|state| {
            let lists = vec![&state.tiers, &state.untracked_tiers, &state.pre_dnat_tiers, &state.forward_tiers];
            (lists, &state.endpoint.profiles)
        });
        for (lists, profiles) in workloads.chain(hosts) {
            for tier in lists.into_iter().flat_map(|tiers| tiers.iter()) {
                for id in tier.ingress.iter().chain(tier.egress.iter()) {
                    self.policies.get(id).ok_or_else(|| Missing::Policy(id.clone()))?;
                }
            }
            for name in profiles.iter() {
                self.profiles.get(name).ok_or_else(|| Missing::Profile(name.clone()))?;
            }
        }
        Ok(())
    }

    /// Returns the verdict of a workload's policies for the first packet of a connection to it
    /// (ingress) or from it (egress).
    ///
    /// # Errors
    /// If the workload, or a referenced object, does not exist.
    pub fn workload_verdict(
        &self,
        id: &WorkloadEndpointId,
        direction: Direction,
        packet: &Packet,
    ) -> Result<OracleVerdict, Missing> {
        let state = self.workloads.get(id).ok_or_else(|| Missing::Object(format!("workload {id:?}")))?;
        if state.endpoint.state != AdminState::Active {
            return Ok(OracleVerdict::Deny);
        }
        self.verdict(&state.tiers, &state.endpoint.profiles, Layer::Normal, direction, packet)
    }

    /// Returns the verdict of a layer of a host endpoint for the first packet of a connection
    /// towards it (ingress) or from it (egress), without failsafe ports.
    ///
    /// # Errors
    /// If the endpoint, or a referenced object, does not exist.
    pub fn host_verdict(
        &self,
        name: &HostEndpointName,
        layer: Layer,
        direction: Direction,
        packet: &Packet,
    ) -> Result<OracleVerdict, Missing> {
        let state = self.hosts.get(name).ok_or_else(|| Missing::Object(format!("host endpoint {name}")))?;
        let tiers = match layer {
            Layer::Normal => &state.tiers,
            Layer::Forward => &state.forward_tiers,
            Layer::Untracked => &state.untracked_tiers,
            Layer::PreDnat => &state.pre_dnat_tiers,
        };
        self.verdict(tiers, &state.endpoint.profiles, layer, direction, packet)
    }

    /// Evaluates tiers in order, then the layer's default.
    ///
    /// # Errors
    /// If a referenced object does not exist.
    pub fn verdict(
        &self,
        tiers: &[TierPolicies],
        profiles: &[ProfileName],
        layer: Layer,
        direction: Direction,
        packet: &Packet,
    ) -> Result<OracleVerdict, Missing> {
        for tier in tiers {
            match self.tier_ruling(tier, layer, direction, packet)? {
                Ruling::Allow => return Ok(OracleVerdict::Allow),
                Ruling::Deny => return Ok(OracleVerdict::Deny),
                Ruling::Pass | Ruling::Silent => {}
            }
        }
        match layer {
            Layer::Normal => self.profiles_verdict(profiles, direction, packet),
            Layer::Forward if tiers.is_empty() => Ok(OracleVerdict::Allow),
            Layer::Forward | Layer::Untracked | Layer::PreDnat => Ok(OracleVerdict::Undecided),
        }
    }

    fn tier_ruling(
        &self,
        tier: &TierPolicies,
        layer: Layer,
        direction: Direction,
        packet: &Packet,
    ) -> Result<Ruling, Missing> {
        let ids = match direction {
            Direction::Ingress => &tier.ingress,
            Direction::Egress => &tier.egress,
        };
        let enforced: Vec<&PolicyId> = ids.iter().filter(|id| !id.kind.is_staged()).collect();
        for id in &enforced {
            let policy = self.policies.get(id).ok_or_else(|| Missing::Policy((*id).clone()))?;
            let ruling = self.ruling(side(direction, &policy.inbound, &policy.outbound), packet)?;
            if ruling != Ruling::Silent {
                return Ok(ruling);
            }
        }
        let has_default = matches!(layer, Layer::Normal | Layer::Forward) && !enforced.is_empty();
        if has_default && tier.default_action != Some(TierDefaultAction::Pass) {
            return Ok(Ruling::Deny);
        }
        Ok(Ruling::Silent)
    }

    fn profiles_verdict(
        &self,
        profiles: &[ProfileName],
        direction: Direction,
        packet: &Packet,
    ) -> Result<OracleVerdict, Missing> {
        for name in profiles {
            let profile = self.profiles.get(name).ok_or_else(|| Missing::Profile(name.clone()))?;
            match self.ruling(side(direction, &profile.inbound, &profile.outbound), packet)? {
                Ruling::Allow => return Ok(OracleVerdict::Allow),
                Ruling::Deny => return Ok(OracleVerdict::Deny),
                Ruling::Pass | Ruling::Silent => {}
            }
        }
        Ok(OracleVerdict::Deny)
    }

    /// Returns the ruling of the first rule that matches and decides.
    fn ruling(&self, rules: &Rules, packet: &Packet) -> Result<Ruling, Missing> {
        for rule in rules.iter() {
            if !self.rule_matches(rule, packet)? {
                continue;
            }
            match rule.action() {
                RuleAction::Allow | RuleAction::Unspecified => return Ok(Ruling::Allow),
                RuleAction::Deny => return Ok(Ruling::Deny),
                RuleAction::NextTier => return Ok(Ruling::Pass),
                RuleAction::Log => {}
            }
        }
        Ok(Ruling::Silent)
    }
}

fn side<'a>(direction: Direction, inbound: &'a Rules, outbound: &'a Rules) -> &'a Rules {
    match direction {
        Direction::Ingress => inbound,
        Direction::Egress => outbound,
    }
}

/// Changes the members of a set; `None` if the types differ.
fn change_members(set: &mut Members, added: &Members, removed: &Members) -> Option<()> {
    fn change<T: Ord + Copy>(set: &mut Vec<T>, added: &[T], removed: &[T]) {
        set.retain(|member| !removed.contains(member));
        set.extend(added);
        set.sort_unstable();
        set.dedup();
    }
    match (set, added, removed) {
        (Members::Nets(set), Members::Nets(added), Members::Nets(removed)) => change(set, added, removed),
        (Members::IpPorts(set), Members::IpPorts(added), Members::IpPorts(removed)) => change(set, added, removed),
        _ => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests;
