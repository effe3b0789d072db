//! Sets of domain names as sets of the addresses that stand for names.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tortie_model::desired::{DesiredUpdate, IpSetDelta, IpSetType, IpSetUpdate, Members, Policy, RuleSets, Rules};
use tortie_model::{Cidr, EntityExtras, IpSetId, Rule};

use crate::plan::name_rows::NameRows;

/// Turns the desired state into one in which addresses stand for names.
///
/// A set of domain names has the addresses of its rows. A rule that matches by such sets, and
/// perhaps by a set of addresses as an alternative to them, matches by one set that has all their
/// members. Rules keep their places.
#[derive(Default)]
pub(crate) struct NamedSets {
    pub(crate) rows: NameRows,
    /// Members of sets of addresses, and of sets of domain names.
    members: BTreeMap<IpSetId, BTreeSet<Cidr>>,
    /// Joint sets that rules use, each with its parts.
    joint: BTreeMap<IpSetId, Vec<IpSetId>>,
}

impl NamedSets {
    /// Returns the updates to send instead of one.
    pub(crate) fn translate(&mut self, update: &DesiredUpdate) -> Vec<DesiredUpdate> {
        match update {
            DesiredUpdate::IpSet(IpSetUpdate { id, members: Members::Domains(patterns), .. }) => {
                let members = self.rows.members(patterns);
                self.set_members(id, members.iter().copied().collect());
                let own = IpSetUpdate { id: id.clone(), set_type: IpSetType::Net, members: Members::Nets(members) };
                [DesiredUpdate::IpSet(own)].into_iter().chain(self.joint_with(id)).collect()
            }
            DesiredUpdate::IpSet(IpSetUpdate { id, members: Members::Nets(nets), .. }) => {
                self.set_members(id, nets.iter().copied().collect());
                [update.clone()].into_iter().chain(self.joint_with(id)).collect()
            }
            DesiredUpdate::IpSetDelta(IpSetDelta {
                id,
                added: Members::Nets(added),
                removed: Members::Nets(removed),
            }) => {
                let members = self.members.entry(id.clone()).or_default();
                for net in removed {
                    members.remove(net);
                }
                members.extend(added.iter().copied());
                [update.clone()].into_iter().chain(self.joint_with(id)).collect()
            }
            DesiredUpdate::IpSetRemove(id) => {
                self.members.remove(id);
                vec![update.clone()]
            }
            DesiredUpdate::Policy(id, policy) => match self.policy(policy) {
                Some((policy, mut sets)) => {
                    sets.push(DesiredUpdate::Policy(id.clone(), Arc::new(policy)));
                    sets
                }
                None => vec![update.clone()],
            },
            _ => vec![update.clone()],
        }
    }

    fn set_members(&mut self, id: &IpSetId, members: BTreeSet<Cidr>) {
        self.members.insert(id.clone(), members);
    }

    /// Returns the joint sets that have a set as a part.
    fn joint_with(&self, part: &IpSetId) -> Vec<DesiredUpdate> {
        let with = self.joint.iter().filter(|(_, parts)| parts.contains(part));
        with.map(|(id, parts)| self.joined(id, parts)).collect()
    }

    fn joined(&self, id: &IpSetId, parts: &[IpSetId]) -> DesiredUpdate {
        let members: BTreeSet<Cidr> =
            parts.iter().filter_map(|part| self.members.get(part)).flatten().copied().collect();
        let members = Members::Nets(members.into_iter().collect());
        DesiredUpdate::IpSet(IpSetUpdate { id: id.clone(), set_type: IpSetType::Net, members })
    }

    /// Returns a policy with joint sets, and the sets that it needs; `None` for a policy without
    /// sets of names.
    #[expect(clippy::expect_used, reason = "rules without names need no more sets than before")]
    fn policy(&mut self, policy: &Policy) -> Option<(Policy, Vec<DesiredUpdate>)> {
        if policy.outbound.iter().all(|rule| rule.sets.dst_domains.is_empty()) {
            return None;
        }
        let mut new = Vec::new();
        let (mut rules, mut sets) = (Vec::new(), Vec::new());
        for view in policy.outbound.iter() {
            rules.push(without_names(view.rule));
            let (by_address, by_name) = (&view.sets.dst, &view.sets.dst_domains);
            // A rule with several sets of addresses is applied without names, which allows less.
            let is_joined = !by_name.is_empty() && by_address.len() <= 1;
            let dst = if is_joined {
                let parts: Vec<IpSetId> = by_address.iter().chain(by_name.iter()).cloned().collect();
                [self.joint_set(parts, &mut new)].into()
            } else {
                by_address.clone()
            };
            sets.push(RuleSets { dst, dst_domains: [].into(), ..view.sets.clone() });
        }
        let outbound = Rules::new(rules.into(), sets.into()).expect("each rule has the sets that it needs");
        let http_by_proxy = policy.outbound.iter().any(|view| view.http_by_proxy);
        Some((Policy { outbound: outbound.with_http_by_proxy(http_by_proxy), ..policy.clone() }, new))
    }

    /// Returns the set with the members of these, and adds it to `new` unless it exists.
    fn joint_set(&mut self, parts: Vec<IpSetId>, new: &mut Vec<DesiredUpdate>) -> IpSetId {
        if let [only] = &parts[..] {
            return only.clone();
        }
        let texts: Vec<&str> = parts.iter().map(IpSetId::as_str).collect();
        let id = IpSetId::new(format!("joint:{}", texts.join("+")));
        if !self.joint.contains_key(&id) {
            new.push(self.joined(&id, &parts));
            self.joint.insert(id.clone(), parts);
        }
        id
    }
}

fn without_names(rule: &Rule) -> Rule {
    let mut rule = rule.clone();
    if !rule.destination.extras.domains.is_empty() {
        let extras = EntityExtras { domains: Default::default(), ..EntityExtras::clone(&rule.destination.extras) };
        rule.destination.extras = extras.into();
    }
    rule
}
