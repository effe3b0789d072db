//! Count of the missing packets.

/// Sequence numbers of packets by group.
///
/// The kernel numbers the packets of a group from 0 on, and drops some when the socket overruns.
/// The overrun is known at once, the number of dropped packets from the next packet of the group.
/// Each lost packet counts once: an overrun counts as one packet until a gap explains it.
#[derive(Debug)]
pub(super) struct Sequence {
    /// Each group, with the number of its next packet.
    next: Vec<(u16, u32)>,
    /// Packets in gaps that are not counted yet.
    gaps: u64,
    /// Overruns that no gap explains yet.
    unexplained: u64,
}

impl Sequence {
    pub(super) fn new(groups: &[u16]) -> Self {
        Self { next: groups.iter().map(|group| (*group, 0)).collect(), gaps: 0, unexplained: 0 }
    }

    /// Records the number of a packet.
    pub(super) fn note(&mut self, group: u16, number: u32) {
        let Some((_, next)) = self.next.iter_mut().find(|(of, _)| *of == group) else { return };
        let gap = number.wrapping_sub(*next);
        // A number that is behind does not mean a gap of four billion packets.
        if gap <= u32::MAX / 2 {
            self.gaps += u64::from(gap);
        }
        *next = number.wrapping_add(1);
    }

    /// Returns the number of packets lost since the last call; `overruns` is the number of overruns
    /// in that time.
    pub(super) fn lost(&mut self, overruns: u64) -> u64 {
        self.unexplained += overruns;
        let gaps = std::mem::take(&mut self.gaps);
        let explained = gaps.min(self.unexplained);
        self.unexplained -= explained;
        overruns + gaps - explained
    }
}

#[cfg(test)]
mod tests;
