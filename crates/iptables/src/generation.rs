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
/// let input = "*filter\n:cali-a - -\nCOMMIT\n*filter\n--delete-chain cali-b\nCOMMIT\n";
/// counter.restored(CommitCounter::transactions(input), true);
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
    /// The number of transactions in what a reconciler has `iptables-nft-restore` read.
    #[must_use]
    pub fn transactions(input: &str) -> u32 {
        let commits = input.lines().filter(|line| *line == "COMMIT").count();
        u32::try_from(commits).unwrap_or(u32::MAX)
    }

    /// Counts what `iptables-nft-restore` did with that many transactions. After one that failed nobody knows what was
    /// committed, and what is asked from then on equals nothing that was asked before.
    pub fn restored(&mut self, transactions: u32, succeeded: bool) {
        if succeeded {
            self.ours = self.ours.wrapping_add(transactions);
        } else {
            self.epoch += 1;
        }
    }

    /// What others have done, where `generation` is what the kernel says now.
    #[must_use]
    pub const fn foreign(&self, generation: u32) -> ForeignCommits {
        ForeignCommits { epoch: self.epoch, commits: generation.wrapping_sub(self.ours) }
    }
}
