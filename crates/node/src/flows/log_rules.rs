//! Lines of rules with the action `Log` where eBPF programs enforce policy. The programs cannot
//! write into the kernel's log, so the agent writes into its own.

use std::time::Duration;

use tortie_evaluate::DecidedBy;
use tortie_flows::{Collector, FlowId, Hit, Time};
use tortie_iptables::RateUnit;
use tortie_rules::{LogConfig, PrefixVerdict};

use tortie_flows::record;

/// Burst of lines where none is configured, as in iptables.
const BURST: u16 = 5;
/// Time for each line, and burst, where no limit is configured: the thread that reads packets must
/// not be held up.
const NO_LIMIT: (Duration, u32) = (Duration::from_millis(1), 1000);

/// Writes a line for each rule that logs a packet, within the rate limit.
#[derive(Debug)]
pub(super) struct LogRules {
    config: LogConfig,
    /// The time that a line takes from the saved time, which is at most that of a burst.
    each: Duration,
    longest: Duration,
    saved: Duration,
    counted: Time,
    suppressed: u64,
    /// Messages since the last line that were not read in time: whether a rule logged these packets
    /// is not known.
    lost: u64,
}

impl LogRules {
    pub(super) fn new(config: LogConfig, now: Time) -> Self {
        let (each, burst) = match config.limit {
            None => NO_LIMIT,
            Some((rate, burst)) => {
                let unit = Duration::from_secs(match rate.per() {
                    RateUnit::Second => 1,
                    RateUnit::Minute => 60,
                    RateUnit::Hour => 60 * 60,
                    RateUnit::Day => 24 * 60 * 60,
                });
                (unit / u32::from(rate.count()), u32::from(burst.unwrap_or(BURST)))
            }
        };
        let longest = each * burst;
        Self { config, each, longest, saved: longest, counted: now, suppressed: 0, lost: 0 }
    }

    /// Some messages were not read in time. The next line reports their number.
    pub(super) fn lost(&mut self, messages: u64) {
        self.lost += messages;
    }

    pub(super) fn log(&mut self, collector: &Collector, id: &FlowId, length: u32, decided: &Hit, now: Time) {
        for rule in collector.log_rules(decided, &id.packet) {
            if !self.may_log(now) {
                self.suppressed += 1;
                continue;
            }
            let (prefix, owner, rule) = match &rule {
                DecidedBy::PolicyRule { tier, policy, index } => {
                    (self.config.prefix_of_policy(policy, tier), format!("policy {policy}"), *index)
                }
                DecidedBy::ProfileRule { profile, index } => {
                    (self.config.prefix_of_profile(profile), format!("profile {profile}"), *index)
                }
                _ => continue,
            };
            let suppressed = std::mem::take(&mut self.suppressed);
            let lost = std::mem::take(&mut self.lost);
            let packet = &id.packet;
            tracing::info!(
                prefix = prefix.as_str(),
                direction = record::direction(decided.direction),
                owner,
                rule,
                protocol = record::protocol(packet.protocol()),
                source = %packet.source(),
                source_port = packet.source_port(),
                destination = %packet.destination(),
                destination_port = packet.destination_port(),
                length,
                verdict = record::verdict(decided.verdict != PrefixVerdict::Deny),
                suppressed,
                lost,
                "a rule logs a packet"
            );
        }
    }

    fn may_log(&mut self, now: Time) -> bool {
        let since = now.saturating_sub(self.counted);
        self.counted = now;
        self.saved = self.saved.saturating_add(since).min(self.longest);
        match self.saved.checked_sub(self.each) {
            Some(rest) => {
                self.saved = rest;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use tortie_iptables::Rate;

    use super::*;

    fn lines(limit: Option<(Rate, Option<u16>)>, at: &[u64]) -> Vec<bool> {
        let time = Duration::from_millis;
        let config = LogConfig { prefix: String::new(), limit };
        let mut log = LogRules::new(config, time(0));
        at.iter().map(|at| log.may_log(time(*at))).collect()
    }

    #[test]
    fn lines_are_written_no_more_often_than_is_allowed() {
        let rate = |count, per, burst| Some((Rate::new(count, per).unwrap(), burst));
        assert_eq!(
            lines(rate(2, RateUnit::Second, Some(1)), &[0, 10, 499, 500, 999, 1000]),
            [true, false, false, true, false, true]
        );
        // A burst; the saved time allows only one more.
        let after_an_hour = 3_600_000;
        let often = [&[0; 6][..], &[after_an_hour; 6]].concat();
        let burst = [true, true, true, true, true, false];
        assert_eq!(lines(rate(10, RateUnit::Minute, None), &often), [burst, burst].concat());
        assert_eq!(lines(None, &[0; 1001]).iter().filter(|may| **may).count(), 1000);
        // A clock that goes back adds no time.
        assert_eq!(lines(rate(1, RateUnit::Second, Some(1)), &[5000, 0, 900, 1000]), [true, false, false, true]);
    }
}
