//! Decoding of a server's updates, with fallbacks for unreadable ones.

use std::sync::Arc;

use tortie_datastore::InputProblem;
use tortie_model::{Interner, Update};
use tortie_resources::path;

use super::messages::SerializedUpdate;
use super::update::{Reading, read_update};
use crate::last_good::LastGood;

/// Objects of a server, as far as they have to be recorded. Does no I/O.
#[derive(Debug, Default)]
pub(super) struct UpdateReader {
    labels: Interner,
    /// Whether IPAM blocks are passed on.
    blocks: bool,
    last_good: LastGood,
}

impl UpdateReader {
    pub(super) fn new(blocks: bool) -> Self {
        Self { blocks, ..Self::default() }
    }

    /// Begins a resync: the server sends all objects.
    pub(super) fn begin(&mut self) {
        self.last_good.begin();
    }

    /// Ends a resync: the server has sent all objects.
    pub(super) fn end(&mut self) {
        self.last_good.end();
    }

    /// Decodes updates. Returns them with the versions of the objects, if the server sends these.
    pub(super) fn read(&mut self, updates: &[SerializedUpdate]) -> Vec<(Update, Option<Arc<str>>)> {
        updates.iter().filter_map(|update| self.read_one(update)).collect()
    }

    fn read_one(&mut self, update: &SerializedUpdate) -> Option<(Update, Option<Arc<str>>)> {
        if !self.blocks && path::is_block(&update.key) {
            return None;
        }
        let read = match read_update(update, &mut self.labels) {
            Reading::Ignored => {
                tracing::debug!(path = update.key, "an object of an unknown or unused kind is ignored");
                return None;
            }
            Reading::Update(update) => {
                self.last_good.read(&update);
                update
            }
            Reading::Bad(error) => self.last_good.unreadable(error),
        };
        let version =
            (!update.value.is_empty() && !update.revision.is_empty()).then(|| update.revision.as_str().into());
        Some((read, version))
    }

    /// Returns all problems, if they have changed since the last call.
    pub(super) fn changed_problems(&mut self) -> Option<Vec<InputProblem>> {
        self.last_good.take_changed().then(|| self.last_good.problems().cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use tortie_datastore::Fallback;

    use super::*;

    fn read(objects: &mut UpdateReader, updates: &[SerializedUpdate]) -> Vec<Update> {
        objects.read(updates).into_iter().map(|(update, _)| update).collect()
    }

    fn update(key: &str, value: &str) -> SerializedUpdate {
        SerializedUpdate { key: key.into(), value: value.into(), ..SerializedUpdate::default() }
    }

    const POLICY: &str = "/calico/v1/policy/GlobalNetworkPolicy//p";
    const GOOD: &str = r#"{"selector":"all()","types":["ingress"]}"#;
    const BAD: &str = r#"{"selector":"all()","order":"first"}"#;
    const BLOCK: &str = "/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-26";
    const ENDPOINT: &str = "/calico/v1/host/h/workload/k8s/ns%2fpod/endpoint/eth0";

    #[test]
    fn a_policy_that_cannot_be_read_stays_as_it_was() {
        let mut objects = UpdateReader::default();
        objects.begin();
        let good = read(&mut objects, &[update(POLICY, GOOD)]);
        assert_eq!(objects.changed_problems(), None);
        assert_eq!(read(&mut objects, &[update(POLICY, BAD)]), good);
        let problems = objects.changed_problems().unwrap();
        assert_eq!(problems[0].to_string(), format!("{POLICY}: order: must be a number, is text"));
        assert_eq!(problems[0].fallback, Fallback::LastGood);
        // The same holds across connections.
        objects.begin();
        assert_eq!(read(&mut objects, &[update(POLICY, BAD)]), good);
        objects.end();
        objects.begin();
        assert_eq!(read(&mut objects, &[update(POLICY, BAD)]), good);
        // The object is also deleted if the next connection does not send it.
        objects.begin();
        objects.end();
        assert_eq!(objects.changed_problems(), Some(Vec::new()));
        objects.begin();
        assert_ne!(read(&mut objects, &[update(POLICY, BAD)]), good);
        assert_eq!(objects.changed_problems().unwrap()[0].fallback, Fallback::Denied);
        assert_eq!(read(&mut objects, &[update(POLICY, GOOD)]), good);
        assert_eq!(objects.changed_problems(), Some(Vec::new()));
    }

    /// Describes a policy by its selector, tier, order, types and the actions of its rules.
    fn denial(updates: &[Update]) -> String {
        let Update::Policy(_, Some(policy)) = &updates[0] else { panic!("{updates:?}") };
        let rules: Vec<_> = policy.inbound.iter().chain(&*policy.outbound).map(|rule| rule.action.as_str()).collect();
        let order = policy.order.map_or("last".into(), |order| {
            if order.get() == f64::MIN { "first".into() } else { order.get().to_string() }
        });
        let types = (policy.types.ingress, policy.types.egress);
        format!("{} {} {order} {types:?} {}", policy.selector.text(), policy.tier, rules.join(" "))
    }

    #[test]
    fn a_policy_with_an_unreadable_selector_stays_as_it_was_or_denies() {
        let bad = r#"{"selector":"a ==","order":7,"tier":"sec","types":["ingress"]}"#;
        let mut objects = UpdateReader::default();
        objects.begin();
        let good = read(&mut objects, &[update(POLICY, GOOD)]);
        assert_eq!(read(&mut objects, &[update(POLICY, bad)]), good);
        assert_eq!(objects.changed_problems().unwrap()[0].fallback, Fallback::LastGood);

        let mut objects = UpdateReader::default();
        let mut read = |path: &str, value: &str| {
            let rules = denial(&read(&mut objects, &[update(path, value)]));
            let problems = objects.changed_problems().unwrap();
            assert!(problems.iter().all(|problem| problem.fallback == Fallback::Denied), "{problems:?}");
            rules
        };
        assert_eq!(read(POLICY, bad), "all() sec 7 (true, false) deny deny");
        let namespaced = "/calico/v1/policy/NetworkPolicy/shop/p";
        assert_eq!(read(namespaced, bad), "projectcalico.org/namespace == 'shop' sec 7 (true, false) deny deny");
        let bad_rule = r#"{"selector":"has(a)","inbound_rules":[{"action":"allow","!dst_selector":"b =="}]}"#;
        assert_eq!(read(POLICY, bad_rule), "has(a) default last (true, true) deny deny");
        let bad_order = r#"{"selector":"has(a)","order":"first","types":["ingress","sideways"]}"#;
        assert_eq!(read(POLICY, bad_order), "has(a) default first (true, true) deny deny");
        assert_eq!(read(POLICY, "{"), "all() default first (true, true) deny deny");
        let of_tier = "/calico/v1/policy/tier/sec/policy/p";
        assert_eq!(read(of_tier, "{"), "all() sec first (true, true) deny deny");
        // Kubernetes policies only allow.
        let of_kubernetes = "/calico/v1/policy/KubernetesNetworkPolicy/shop/p";
        assert_eq!(read(of_kubernetes, bad), "projectcalico.org/namespace == 'shop' sec 7 (true, false) ");
    }

    #[test]
    fn objects_have_the_version_of_the_server() {
        let at = |revision: &str, value: &str| SerializedUpdate { revision: revision.into(), ..update(POLICY, value) };
        let mut objects = UpdateReader::default();
        let mut versions = |update: SerializedUpdate| -> Vec<Option<String>> {
            objects.read(&[update]).into_iter().map(|(_, version)| version.map(|version| version.to_string())).collect()
        };
        assert_eq!(versions(at("7", GOOD)), [Some("7".to_owned())]);
        assert_eq!(versions(update(ENDPOINT, r#"{"name":"cali1"}"#)), [None]);
        // An unreadable value has this version, too; the last valid one stands in for it.
        assert_eq!(versions(at("8", BAD)), [Some("8".to_owned())]);
        assert_eq!(versions(at("9", "")), [None], "deleted");
    }

    #[test]
    fn a_staged_policy_that_cannot_be_read_is_deleted() {
        let mut objects = UpdateReader::default();
        let updates = read(&mut objects, &[update("/calico/v1/policy/StagedNetworkPolicy/shop/p", "{")]);
        assert!(!updates[0].exists());
        assert_eq!(objects.changed_problems().unwrap()[0].fallback, Fallback::Nothing);
    }

    #[test]
    fn other_keys_are_dropped_and_other_values_deleted() {
        let mut objects = UpdateReader::default();
        objects.begin();
        let updates = read(
            &mut objects,
            &[
                update("/calico/v9/what", "{}"),
                update(BLOCK, "{}"),
                update(ENDPOINT, r#"{"name":"cali1"}"#),
                update(ENDPOINT, "\u{1}"),
                update("/calico/v1/config/LogSeverityScreen", ""),
            ],
        );
        let values: Vec<bool> = updates.iter().map(Update::exists).collect();
        assert_eq!(values, [true, false, false]);
    }

    #[test]
    fn blocks_are_read_on_request() {
        let value = r#"{"cidr":"10.0.0.0/26","affinity":"host:h"}"#;
        assert_eq!(read(&mut UpdateReader::default(), &[update(BLOCK, value), update(BLOCK, "")]), []);
        let mut objects = UpdateReader::new(true);
        let read = read(&mut objects, &[update(BLOCK, value), update(BLOCK, "{"), update(BLOCK, "")]);
        let texts: Vec<Option<&str>> = read
            .iter()
            .map(|update| match update {
                Update::Block(_, block) => block.as_ref().map(|block| &*block.text),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(texts, [Some(value), Some(value), None]);
    }

    #[test]
    fn policies_under_keys_of_older_releases() {
        let mut objects = UpdateReader::default();
        let updates = read(&mut objects, &[update("/calico/v1/policy/tier/sec/policy/ns%2fknp.default.web", GOOD)]);
        let Update::Policy(_, Some(policy)) = &updates[0] else { panic!("{updates:?}") };
        assert_eq!((policy.tier.as_str(), policy.selector.text()), ("sec", "all()"));
        assert_eq!(format!("{:?}", updates[0].key()).matches("KubernetesNetworkPolicy").count(), 1);
    }
}
