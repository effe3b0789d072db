use proptest::prelude::*;

use super::*;

const GROUPS: [u16; 3] = [1, 2, 300];

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The kernel logs a packet in a group, and drops it or not.
    Log { group: usize, dropped: bool },
    /// The number of losses is read.
    Ask,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let log = (0..GROUPS.len(), any::<bool>()).prop_map(|(group, dropped)| Step::Log { group, dropped });
    prop::collection::vec(prop_oneof![4 => log, 1 => Just(Step::Ask)], 0..60)
}

proptest! {
    /// Consecutive dropped packets are one overrun.
    #[test]
    fn every_lost_packet_counts_once(steps in steps(), start in prop_oneof![Just(0_u32), Just(u32::MAX - 5), any::<u32>()]) {
        let mut sequence = Sequence::new(&GROUPS);
        sequence.next.iter_mut().for_each(|(_, next)| *next = start);
        let mut numbers = [start; 3];
        let (mut dropped_so_far, mut lost, mut overruns, mut is_dropping) = (0, 0, 0, false);
        let end = (0..GROUPS.len()).map(|group| Step::Log { group, dropped: false }).chain([Step::Ask]);
        for step in steps.into_iter().chain(end) {
            match step {
                Step::Log { group, dropped } => {
                    if dropped {
                        dropped_so_far += 1;
                        overruns += u64::from(!is_dropping);
                    } else {
                        sequence.note(GROUPS[group], numbers[group]);
                    }
                    is_dropping = dropped;
                    numbers[group] = numbers[group].wrapping_add(1);
                }
                Step::Ask => {
                    lost += sequence.lost(std::mem::take(&mut overruns));
                    prop_assert!(lost <= dropped_so_far);
                    prop_assert_eq!(lost == 0, dropped_so_far == 0, "an overrun is known at once");
                }
            }
        }
        prop_assert_eq!(lost, dropped_so_far);
    }
}

#[test]
fn implausible_sequence_numbers_count_as_no_loss() {
    let mut sequence = Sequence::new(&GROUPS);
    sequence.note(1, 7);
    assert_eq!(sequence.lost(0), 7);
    sequence.note(1, 3);
    sequence.note(9, 1000);
    assert_eq!(sequence.lost(0), 0);
    sequence.note(1, 4);
    assert_eq!(sequence.lost(0), 0);
}
