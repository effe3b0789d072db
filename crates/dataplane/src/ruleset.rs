//! Detection of foreign writes to our nftables tables.

/// Kernel notifications about transactions on our nftables tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RulesetEvent {
    /// Notifications may have been lost; the count restarts.
    Restarted,
    /// Number of transactions since the last restart, ours included.
    Transactions(u64),
}

/// Distinguishes transactions of other processes from ours by counting. The kernel reports all of
/// them, and reports ours only after the commit. So the number of reports exceeds the number of our
/// commits only if another process committed.
#[derive(Debug, Default)]
pub(crate) struct ForeignTransactions {
    /// Number of our transactions when the count began.
    own_before: u64,
    noticed: u64,
}

impl ForeignTransactions {
    /// Takes a notification, with the number of our transactions so far. Reports whether another
    /// process may have changed something since the last call.
    pub(crate) fn is_new(&mut self, event: RulesetEvent, own: u64) -> bool {
        match event {
            RulesetEvent::Restarted => {
                *self = Self { own_before: own, noticed: 0 };
                true
            }
            RulesetEvent::Transactions(all) => {
                let foreign = all.saturating_sub(own - self.own_before);
                let is_new = foreign > self.noticed;
                self.noticed = self.noticed.max(foreign);
                is_new
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ForeignTransactions, RulesetEvent};

    #[test]
    fn transactions_beyond_ours_count_as_foreign() {
        let mut transactions = ForeignTransactions::default();
        assert!(transactions.is_new(RulesetEvent::Restarted, 3));
        assert!(!transactions.is_new(RulesetEvent::Transactions(1), 4), "ours");
        assert!(transactions.is_new(RulesetEvent::Transactions(2), 4), "of another process");
        assert!(!transactions.is_new(RulesetEvent::Transactions(3), 5), "ours");
        // Our transaction is committed, but the report is of an earlier one by another process.
        assert!(!transactions.is_new(RulesetEvent::Transactions(4), 6));
        assert!(transactions.is_new(RulesetEvent::Transactions(5), 6));
        assert!(!transactions.is_new(RulesetEvent::Transactions(6), 7));
        assert!(transactions.is_new(RulesetEvent::Restarted, 9));
        assert!(transactions.is_new(RulesetEvent::Transactions(1), 9));
    }
}
