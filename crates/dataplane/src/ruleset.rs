//! Whether somebody else writes to our tables of nftables.

/// What the kernel tells of transactions on our tables of nftables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RulesetNews {
    /// Some may have been missed; counting restarts.
    Restarted,
    /// So many since then, ours included.
    Transactions(u64),
}

/// Tells transactions of others from ours by their number, since the kernel tells of all of them: one of ours is told of only after
/// it was made, so that more are told of than we have made only if somebody else has made some.
#[derive(Debug, Default)]
pub(crate) struct ForeignTransactions {
    /// How many we had made when counting began.
    own_before: u64,
    noticed: u64,
}

impl ForeignTransactions {
    /// Takes news at a time at which we have made so many; whether somebody else may have changed something since the last.
    pub(crate) fn is_new(&mut self, news: RulesetNews, own: u64) -> bool {
        match news {
            RulesetNews::Restarted => {
                *self = Self { own_before: own, noticed: 0 };
                true
            }
            RulesetNews::Transactions(all) => {
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
    use super::{ForeignTransactions, RulesetNews};

    #[test]
    fn more_than_ours_are_those_of_others() {
        let mut transactions = ForeignTransactions::default();
        assert!(transactions.is_new(RulesetNews::Restarted, 3));
        assert!(!transactions.is_new(RulesetNews::Transactions(1), 4), "ours");
        assert!(transactions.is_new(RulesetNews::Transactions(2), 4), "somebody else's");
        assert!(!transactions.is_new(RulesetNews::Transactions(3), 5), "ours");
        // Ours has been made, but what is told of is somebody else's before it.
        assert!(!transactions.is_new(RulesetNews::Transactions(4), 6));
        assert!(transactions.is_new(RulesetNews::Transactions(5), 6));
        assert!(!transactions.is_new(RulesetNews::Transactions(6), 7));
        assert!(transactions.is_new(RulesetNews::Restarted, 9));
        assert!(transactions.is_new(RulesetNews::Transactions(1), 9));
    }
}
