//! How many packets are missing.

/// The numbers of packets, group by group.
///
/// The kernel numbers the packets of a group from 0 on and drops some when the socket overruns. That it did is known at once;
/// how many there were, from the next packet of the group. Each counts once: an overrun as one packet, until a gap explains it.
#[derive(Debug)]
pub(super) struct Sequence {
    /// The group, and the number of its next packet.
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

    /// Takes note of the number of a packet.
    pub(super) fn note(&mut self, group: u16, number: u32) {
        let Some((_, next)) = self.next.iter_mut().find(|(of, _)| *of == group) else { return };
        let gap = number.wrapping_sub(*next);
        // One that is behind is not the last of four billion.
        if gap <= u32::MAX / 2 {
            self.gaps += u64::from(gap);
        }
        *next = number.wrapping_add(1);
    }

    /// How many packets have been lost since this was last asked, in which time there were so many overruns.
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
