//! Reports that wait for the engine.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{SyncSender, TrySendError};

use tortie_model::{Family, HostEndpointName, WorkloadEndpointId};
use tortie_protocol::Report;

/// Waiting reports: of each endpoint and key the last only, so that an engine that never reads
/// costs no memory.
#[derive(Debug)]
pub(super) struct Reports {
    engine: SyncSender<Report>,
    statuses: BTreeMap<Subject, Report>,
    others: VecDeque<Report>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    Host(HostEndpointName),
    Workload(WorkloadEndpointId),
    Wireguard(Option<Family>),
}

/// Maximum number of waiting reports that are not about endpoints or keys.
const MAX_OTHERS: usize = 16;

impl Reports {
    pub(super) fn new(engine: SyncSender<Report>) -> Self {
        Self { engine, statuses: BTreeMap::new(), others: VecDeque::new() }
    }

    pub(super) fn push(&mut self, report: Report) {
        match &report {
            Report::Host(name, _) => drop(self.statuses.insert(Subject::Host(name.clone()), report)),
            Report::Workload { id, .. } => drop(self.statuses.insert(Subject::Workload(id.clone()), report)),
            Report::Wireguard { family, .. } => drop(self.statuses.insert(Subject::Wireguard(*family), report)),
            _ if self.others.len() < MAX_OTHERS => self.others.push_back(report),
            // Signs of life that the engine does not read.
            _ => {}
        }
    }

    /// Returns whether any are left. Endpoints go first, so that the engine has them before "all is
    /// in force".
    pub(super) fn send(&mut self) -> bool {
        while let Some((subject, report)) = self.statuses.pop_first() {
            if let Err(TrySendError::Full(report)) = self.engine.try_send(report) {
                self.statuses.insert(subject, report);
                return true;
            }
        }
        while let Some(report) = self.others.pop_front() {
            if let Err(TrySendError::Full(report)) = self.engine.try_send(report) {
                self.others.push_front(report);
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use tortie_model::{Family, HostEndpointName};
    use tortie_protocol::Report;

    use super::Reports;

    #[test]
    fn of_each_endpoint_the_last_report_is_sent() {
        let (engine, received) = sync_channel(1);
        let mut reports = Reports::new(engine);
        let status = |word: &str| Report::Host(HostEndpointName::new("eth0"), Some(word.into()));
        reports.push(Report::InSync);
        reports.push(status("down"));
        reports.push(status("up"));
        let key = |key: &str| Report::Wireguard { public_key: key.into(), family: Some(Family::V4) };
        reports.push(key(""));
        reports.push(key("k"));
        for _ in 0..1000 {
            reports.push(Report::Process { timestamp: String::new(), uptime: 1.0 });
        }
        assert!(reports.send());
        assert_eq!(received.recv(), Ok(status("up")));
        assert!(reports.send());
        assert_eq!(received.recv(), Ok(key("k")));
        assert!(reports.send());
        assert_eq!(received.recv(), Ok(Report::InSync));
        let mut left = 0;
        while reports.send() {
            received.recv().unwrap();
            left += 1;
        }
        assert!(left < 16, "{left}");
    }
}
