//! A session's answers to questions.

use std::time::Instant;

use tortie_config::Notice;
use tortie_iptables::ChainName;
use tortie_model::{HostEndpointName, IpSetId, WorkloadEndpointId, with_causes};

use super::Session;
use crate::engine::enforcement::{EnforcedBy, Enforcement};
use crate::engine::inspect::{
    Answer, Endpoint, EngineStatus, IpSet, LastApply, Query, Question, RuleCounts, configuration, counts, rule_counts,
};
use crate::engine::{describe_ignored, ignored_objects};

impl<E: Enforcement> Session<E> {
    /// Answers a question; an answer to a caller that waits no longer is dropped.
    pub(super) fn answer(&mut self, question: &Question) {
        let answer = match &question.query {
            Query::Status => Answer::Status(Box::new(self.status())),
            Query::Configuration => {
                let mut configuration = configuration::of(&self.fixed.sources, &self.fixed.resolved);
                configuration.notices.extend(self.beside_nftables().iter().map(ToString::to_string));
                Answer::Configuration(configuration)
            }
            Query::Endpoints(name) => Answer::Endpoints(self.endpoints(name.as_deref())),
            Query::Policies { name, counts } => {
                let mut policies = self.desired.inventory.policies(name.as_deref());
                for policy in &mut policies {
                    for chain in [&mut policy.ingress_chain, &mut policy.egress_chain] {
                        let name = chain.take().and_then(|chain| ChainName::new(&chain).ok());
                        *chain = name.and_then(|name| self.enforcement.kernel_name(name));
                    }
                }
                Answer::Policies(policies, counts.then(|| self.rule_counts()))
            }
            Query::IpSets(id) => Answer::IpSets(self.ip_sets(id.as_deref())),
            Query::ConfirmHostChanges => Answer::Busy,
        };
        let _ = question.reply.try_send(answer);
    }

    fn rule_counts(&mut self) -> RuleCounts {
        match self.enforcement.decision_counts() {
            Some(Ok(counted)) => return RuleCounts::Decisions(counts::answers(counted)),
            Some(Err(error)) => return RuleCounts::Failed(with_causes(&error)),
            None => {}
        }
        match self.enforcement.rule_counts() {
            Some(Ok(counted)) => RuleCounts::Rules(rule_counts::answers(counted)),
            Some(Err(error)) => RuleCounts::Failed(with_causes(&error)),
            None => RuleCounts::Listings(self.enforcement.report().listings),
        }
    }

    fn status(&self) -> EngineStatus {
        let report = self.enforcement.report();
        let state = match (self.input.in_sync, self.input.resyncing) {
            (true, false) => "in sync",
            (_, true) => "resyncing",
            (false, false) => "waiting",
        };
        let last_apply = report.last_apply.map(|apply| LastApply {
            seconds_ago: Instant::now().saturating_duration_since(apply.ended).as_secs_f64(),
            took_ms: apply.took.as_secs_f64() * 1e3,
            complete: apply.complete,
        });
        EngineStatus {
            session: self.fixed.number,
            datastore_state: state.to_owned(),
            datastore_unavailable: self.input.unavailable.as_ref().map(|(why, _)| why.clone()),
            datastore_unavailable_seconds: self.input.unavailable.as_ref().map(|(_, since)| since.elapsed().as_secs()),
            on_hold: self.hold.as_ref().map(ToString::to_string),
            held_changes: self.held_changes(),
            input_problems: self.input.problems.texts().map(str::to_owned).chain(self.of_parameters()).collect(),
            enforced_by: report.by.as_str().to_owned(),
            ignored_objects: ignored_objects(&self.graph).map(|problem| describe_ignored(&problem)).collect(),
            dataplane_problems: report.problems,
            last_apply,
            waiting_for_kernel: self.turns.latency.waiting(),
            workload_endpoints: self.desired.inventory.workload_count(),
            host_endpoints: self.desired.inventory.host_count(),
            policies: self.desired.inventory.policy_count(),
            ip_sets: self.desired.inventory.set_count(),
        }
    }

    /// Returns the problems of parameters that no source of objects reports.
    fn of_parameters(&self) -> impl Iterator<Item = String> + '_ {
        let is_one = |notice: &&Notice| matches!(notice, Notice::Overruled { .. });
        let overruled = self.fixed.resolved.notices.iter().filter(is_one);
        self.fallbacks().chain(overruled).chain(self.beside_nftables()).map(ToString::to_string)
    }

    /// Returns notices about parameters without an effect because nftables was chosen.
    fn beside_nftables(&self) -> &[Notice] {
        let notices = &self.fixed.resolved.beside_nftables;
        if !notices.is_empty() && self.enforcement.report().by == EnforcedBy::Nftables { notices } else { &[] }
    }

    fn endpoints(&self, name: Option<&str>) -> Vec<Endpoint> {
        let report = self.enforcement.report();
        let of_workload = |id: &WorkloadEndpointId| report.workloads.get(id).copied();
        let of_host = |name: &HostEndpointName| report.hosts.get(name).copied();
        self.desired.inventory.endpoints(name, of_workload, of_host)
    }

    fn ip_sets(&self, id: Option<&str>) -> Vec<IpSet> {
        let mut sets = self.desired.inventory.ip_sets(id);
        if self.enforcement.report().by == EnforcedBy::Programs {
            // eBPF programs use no IP sets.
            sets.iter_mut().for_each(|set| set.kernel_names.clear());
        }
        if id.is_some() {
            for set in &mut sets {
                set.members = self.enforcement.set_members(&IpSetId::new(&*set.id));
            }
        }
        sets
    }
}
