//! Detection of commits by other programs from the generation of the nftables ruleset, the number
//! of transactions that the kernel has committed.

/// Commits of other programs up to some time. Two equal values mean that no other program has
/// committed in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignCommits {
    epoch: u64,
    /// Modulo 2^32, like the counter of the kernel.
    commits: u32,
}

/// Separates the commits of other programs from our own by counting ours.
///
/// The tables of one network namespace, of both IP versions, share one counter.
///
/// ```
/// use tortie_iptables::CommitCounter;
///
/// let mut counter = CommitCounter::default();
/// let before = counter.foreign(41);
/// // Two transactions of ours take the kernel from 41 to 43.
/// let input = "*filter\n-F cali-a\nCOMMIT\n*filter\n--delete-chain cali-b\nCOMMIT\n";
/// counter.committed(CommitCounter::transactions(input));
/// assert_eq!(counter.foreign(43), before);
/// // Another program commits.
/// assert_ne!(counter.foreign(44), before);
/// ```
#[derive(Clone, Debug, Default)]
pub struct CommitCounter {
    epoch: u64,
    ours: u32,
}

impl CommitCounter {
    /// Returns the number of transactions in an `iptables-nft-restore` input of a reconciler.
    /// `None` if it is uncertain: the kernel does not count a transaction that changes nothing,
    /// such as one that empties an empty chain.
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

    /// Counts transactions of ours that the kernel has committed, by `iptables-nft-restore` or
    /// netlink. `None` means that the number is unknown, because the commit failed or
    /// [`transactions`](Self::transactions) is uncertain; later values then differ from all earlier
    /// ones.
    pub const fn committed(&mut self, transactions: Option<u32>) {
        match transactions {
            Some(transactions) => self.ours = self.ours.wrapping_add(transactions),
            None => self.epoch += 1,
        }
    }

    /// Returns the commits of other programs, given the current `generation` of the kernel.
    #[must_use]
    pub const fn foreign(&self, generation: u32) -> ForeignCommits {
        ForeignCommits { epoch: self.epoch, commits: generation.wrapping_sub(self.ours) }
    }
}
