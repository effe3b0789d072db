//! Who else has written to the nftables ruleset, told by its generation: the number of transactions that the kernel has
//! committed.

/// How far other programs have changed the ruleset. Two that are equal mean that nobody but us has committed in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignCommits {
    epoch: u64,
    /// Modulo 2^32, as the kernel counts.
    commits: u32,
}

/// Tells the commits of others from our own, by counting ours.
///
/// The tables of one network namespace, of both IP versions, share one.
///
/// ```
/// use tortie_iptables::CommitCounter;
///
/// let mut counter = CommitCounter::default();
/// let before = counter.foreign(41);
/// // Two transactions of ours take the kernel from 41 to 43.
/// let input = "*filter\n-F cali-a\nCOMMIT\n*filter\n--delete-chain cali-b\nCOMMIT\n";
/// counter.restored(CommitCounter::transactions(input));
/// assert_eq!(counter.foreign(43), before);
/// // Somebody else commits.
/// assert_ne!(counter.foreign(44), before);
/// ```
#[derive(Clone, Debug, Default)]
pub struct CommitCounter {
    epoch: u64,
    ours: u32,
}

impl CommitCounter {
    /// The number of transactions in what a reconciler has `iptables-nft-restore` read. `None` if that cannot be told:
    /// the kernel does not count a transaction that changes nothing, such as one that empties what is empty.
    #[must_use]
    pub fn transactions(input: &str) -> Option<u32> {
        let mut transactions = 0;
        let mut changes_something = false;
        for line in input.lines() {
            match line {
                "COMMIT" if !changes_something => return None,
                "COMMIT" => {
                    transactions += 1;
                    changes_something = false;
                }
                line => changes_something |= line.starts_with('-'),
            }
        }
        Some(transactions)
    }

    /// Counts what `iptables-nft-restore` has committed. If that is not known, because it failed or there are no certain
    /// [`transactions`](Self::transactions), what is asked from then on equals nothing that was asked before.
    pub const fn restored(&mut self, transactions: Option<u32>) {
        match transactions {
            Some(transactions) => self.ours = self.ours.wrapping_add(transactions),
            None => self.epoch += 1,
        }
    }

    /// What others have done, where `generation` is what the kernel says now.
    #[must_use]
    pub const fn foreign(&self, generation: u32) -> ForeignCommits {
        ForeignCommits { epoch: self.epoch, commits: generation.wrapping_sub(self.ours) }
    }
}
