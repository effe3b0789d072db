//! The lease of the leader election, an object of `coordination.k8s.io/v1`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};
use tortie_datastore::store::timestamp;

use crate::json::set;

/// Holder and timing of a lease (`k8s.io/client-go/tools/leaderelection/resourcelock`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Record {
    /// Empty if no candidate leads.
    pub(crate) holder: String,
    /// Validity from the last renewal; `None` if the lease does not state it.
    pub(crate) duration: Option<Duration>,
    pub(crate) acquired: String,
    pub(crate) renewed: String,
    pub(crate) transitions: i64,
}

/// Upper limit of a lease duration in seconds; a longer one is as good as unlimited.
const LONGEST: u64 = 24 * 60 * 60;

impl Record {
    /// Reads a lease. A malformed holder counts as another candidate.
    pub(crate) fn read(lease: &Value) -> Self {
        let spec = &lease["spec"];
        let text = |name: &str| match &spec[name] {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            other => other.to_string(),
        };
        Self {
            holder: text("holderIdentity"),
            duration: spec["leaseDurationSeconds"].as_u64().map(|seconds| Duration::from_secs(seconds.min(LONGEST))),
            acquired: text("acquireTime"),
            renewed: text("renewTime"),
            transitions: spec["leaseTransitions"].as_i64().unwrap_or_default(),
        }
    }

    fn fields(&self) -> [(&'static str, Value); 5] {
        [
            ("holderIdentity", self.holder.as_str().into()),
            ("leaseDurationSeconds", self.duration.unwrap_or_default().as_secs().max(1).into()),
            ("acquireTime", self.acquired.as_str().into()),
            ("renewTime", self.renewed.as_str().into()),
            ("leaseTransitions", self.transitions.into()),
        ]
    }

    /// Returns the lease with this record. Its other fields stay, among them its version.
    pub(crate) fn replace_in(&self, lease: &Value) -> Value {
        let mut lease = lease.clone();
        for (name, value) in self.fields() {
            set(&mut lease, &["spec", name], value);
        }
        lease
    }

    /// Returns a new lease with this record.
    pub(crate) fn object(&self, namespace: &str, name: &str) -> Value {
        let spec: Map<String, Value> =
            self.fields().map(|(name, value)| (name.to_owned(), value)).into_iter().collect();
        json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name, "namespace": namespace},
            "spec": spec,
        })
    }
}

/// Formats a time as `MicroTime` of `meta/v1`: RFC 3339 in UTC with six fractional digits.
pub(crate) fn micro_time(time: SystemTime) -> String {
    let micros = time.duration_since(UNIX_EPOCH).unwrap_or_default().subsec_micros();
    format!("{}.{micros:06}Z", timestamp(time).trim_end_matches('Z'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        let at = |seconds: u64, micros: u64| {
            micro_time(UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_micros(micros))
        };
        assert_eq!(at(0, 0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(at(951_782_399, 7), "2000-02-28T23:59:59.000007Z");
        assert_eq!(at(951_782_400, 0), "2000-02-29T00:00:00.000000Z");
        assert_eq!(at(1_709_251_200, 0), "2024-03-01T00:00:00.000000Z");
        assert_eq!(at(4_102_444_799, 999_999), "2099-12-31T23:59:59.999999Z");
    }

    #[test]
    fn other_fields_of_an_object_stay() {
        let lease = json!({"metadata": {"resourceVersion": "7", "labels": {"a": "b"}}, "spec": {"holderIdentity": "x", "strategy": "s"}});
        let record = Record { holder: "me".into(), duration: Some(Duration::from_secs(15)), ..Record::read(&lease) };
        let replaced = record.replace_in(&lease);
        assert_eq!(replaced["metadata"], lease["metadata"]);
        assert_eq!((&replaced["spec"]["holderIdentity"], &replaced["spec"]["strategy"]), (&json!("me"), &json!("s")));
        assert_eq!(Record::read(&replaced), record);
    }

    #[test]
    fn an_invalid_record_counts_as_held() {
        assert_eq!(Record::read(&json!({"spec": {"holderIdentity": 7}})).holder, "7");
        let long = Record::read(&json!({"spec": {"leaseDurationSeconds": u64::MAX}}));
        assert_eq!(long.duration, Some(Duration::from_secs(LONGEST)));
        assert_eq!(Record::read(&json!([])), Record::default());
    }
}
