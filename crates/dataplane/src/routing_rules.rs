//! Routing rules that lead to one table: desired and observed (`felix/routerule`).

use std::collections::BTreeSet;
use std::time::Duration;

use tortie_model::Family;

use crate::kernel::Routing;
use crate::kernel_error::KernelError;
use crate::report::DataplaneProblem;
use crate::route::RouteTableIndex;
use crate::routing_rule::{RoutingRule, RoutingRuleChange};

/// Maximum number of readings in one reconciliation. A removal may hit another rule than intended,
/// because the kernel does not compare all fields.
const PASSES: usize = 4;

/// All rules of a family that lead to one of our tables. Others are removed, whichever process
/// added them.
#[derive(Debug)]
pub(crate) struct RoutingRules {
    family: Family,
    table: RouteTableIndex,
    desired: BTreeSet<RoutingRule>,
    must_read: bool,
    last_read: Option<Duration>,
    failure: Option<Failure>,
}

#[derive(Debug)]
struct Failure {
    at: Duration,
    /// Rule that could not be added or removed; `None` if rules could not be read.
    rule: Option<RoutingRule>,
    error: KernelError,
}

impl RoutingRules {
    pub(crate) fn new(family: Family, table: RouteTableIndex) -> Self {
        Self { family, table, desired: BTreeSet::new(), must_read: true, last_read: None, failure: None }
    }

    /// Sets the only desired rule, or none.
    pub(crate) fn set(&mut self, rule: Option<RoutingRule>) {
        let desired: BTreeSet<RoutingRule> = rule.into_iter().collect();
        if self.desired != desired {
            self.desired = desired;
            self.must_read = true;
        }
    }

    /// Returns the time until the next refresh or retry.
    pub(crate) fn next(&self, now: Duration, retry: Duration, refresh: Option<Duration>) -> Option<Duration> {
        let refresh = refresh.zip(self.last_read).map(|(interval, last)| last + interval);
        let retry = self.failure.as_ref().map(|failure| failure.at + retry);
        refresh.into_iter().chain(retry).min().map(|at| at.saturating_sub(now))
    }

    /// Brings the kernel's rules to the desired state, if they may deviate from it.
    pub(crate) fn apply(
        &mut self,
        kernel: &mut dyn Routing,
        refresh: Option<Duration>,
        problems: &mut Vec<DataplaneProblem>,
    ) {
        let now = kernel.now();
        let _span = tracing::debug_span!("routing-rules", family = %self.family, wanted = self.desired.len()).entered();
        let is_due = refresh.zip(self.last_read).is_some_and(|(interval, last)| now >= last + interval);
        if self.must_read || is_due || self.failure.is_some() {
            let result = self.reconcile(kernel);
            self.must_read = kernel.is_stopping();
            self.last_read = Some(now);
            self.failure = result.err().map(|(rule, error)| Failure { at: now, rule, error });
        }
        let Some(Failure { rule, error, .. }) = &self.failure else { return };
        let error = error.clone();
        problems.push(match *rule {
            Some(rule) => DataplaneProblem::RoutingRule { rule, error },
            None => DataplaneProblem::RoutingRules { family: self.family, error },
        });
    }

    fn reconcile(&self, kernel: &mut dyn Routing) -> Result<(), (Option<RoutingRule>, KernelError)> {
        for _ in 0..PASSES {
            let found: BTreeSet<RoutingRule> =
                kernel.routing_rules(self.family, self.table).map_err(|error| (None, error))?.into_iter().collect();
            let removals = found.difference(&self.desired).copied().map(RoutingRuleChange::Delete);
            let additions = self.desired.difference(&found).copied().map(RoutingRuleChange::Add);
            let changes: Vec<RoutingRuleChange> = removals.chain(additions).collect();
            if changes.is_empty() {
                return Ok(());
            }
            for change in changes {
                if kernel.is_stopping() {
                    return Ok(());
                }
                match (kernel.change_routing_rule(&change), change) {
                    (Ok(()), _)
                    | (Err(KernelError::NotFound), RoutingRuleChange::Delete(_))
                    | (Err(KernelError::Exists), RoutingRuleChange::Add(_)) => {}
                    (Err(error), RoutingRuleChange::Add(rule) | RoutingRuleChange::Delete(rule)) => {
                        return Err((Some(rule), error));
                    }
                }
            }
        }
        Err((None, KernelError::Failed("they deviate again after each write".into())))
    }
}

#[cfg(test)]
mod tests;
