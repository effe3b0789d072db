use tortie_bpf::Program;
use tortie_ebpf::{Assembler, Base, Helper, MapId, Register, Size};
use tortie_evaluate::DecidedBy;
use tortie_lab::kernel_test;
use tortie_model::{Direction, TierName};

use super::*;

const BYTES: u32 = 4096;

fn source() -> (RingBuffer, ArrayMap, LogSource) {
    let ring = RingBuffer::create("log", BYTES).unwrap();
    let lost = ArrayMap::create_joined("lost", 8, 1).unwrap();
    let source = LogSource { ring: ring.try_clone().unwrap(), lost: lost.try_clone().unwrap() };
    (ring, lost, source)
}

/// Writes a cell followed by zeros: a packet of protocol 0 with unspecified addresses.
fn write(ring: &RingBuffer, cell: i32, bytes: i32, times: u32) {
    const ROOM: u16 = 64;
    let mut asm = Assembler::new();
    for place in (0..64).step_by(4) {
        let number = if place == 0 { cell } else { 0 };
        asm.store(Size::U32, Base::Frame, place - 64, number);
    }
    asm.set_map(Register::R1, MapId(0))
        .set_stack(Register::R2, ROOM)
        .set(Register::R3, bytes)
        .set(Register::R4, 0)
        .call(Helper::RingbufOutput)
        .set(Register::R0, 0)
        .exit();
    let program = asm.assemble().unwrap().bytes(|_| ring.descriptor());
    Program::load_classifier("write", &program).unwrap().test_run(&[0; 64], times).unwrap();
}

fn hit(tier: &str) -> Hit {
    let decided_by = DecidedBy::EndOfTier { tier: TierName::new(tier) };
    Hit { direction: Direction::Ingress, verdict: tortie_rules::PrefixVerdict::Deny, decided_by }
}

fn tiers(decided: &Decided) -> Vec<Option<Hit>> {
    decided.packets.iter().map(|packet| packet.by.as_deref().cloned()).collect()
}

const NUMBER: u32 = 7;
const CELL: i32 = 7 << 2;

kernel_test! {
    fn records_are_reported_with_the_decision_at_evaluation_time() {
        let (ring, _lost, source) = source();
        let log = PacketLog::default();
        let number = DecisionId::from_number(NUMBER);
        log.set_source(Some(source));
        write(&ring, CELL, 36, 1);
        log.name([(number, Some(hit("first")))]);
        write(&ring, CELL, 36, 1);
        log.name([(number, Some(hit("second")))]);
        write(&ring, CELL, 36, 1);
        log.name([(number, None)]);
        write(&ring, CELL, 36, 1);
        write(&ring, CELL | 2, 36, 1);
        assert_eq!(tiers(&log.take()), [None, Some(hit("first")), Some(hit("second")), None]);
        assert_eq!(log.take(), Decided::default());
    }

    fn records_of_former_programs_are_not_lost() {
        let (former, _lost, source_of_former) = source();
        let (ring, lost, source) = source();
        let log = PacketLog::default();
        log.name([(DecisionId::from_number(NUMBER), Some(hit("first")))]);
        log.set_source(Some(source_of_former));
        write(&former, CELL, 36, 2);
        // Losses before this process read the log do not count.
        lost.write(0, &5_u64.to_ne_bytes()).unwrap();
        log.set_source(Some(source));
        write(&ring, CELL, 48, 1);
        lost.write(0, &8_u64.to_ne_bytes()).unwrap();
        let decided = log.take();
        assert_eq!((decided.packets.len(), decided.lost, decided.unreadable), (3, 3, 0));
        assert!(log.readable().unwrap().is_some());
        log.set_source(None);
        assert!(log.readable().unwrap().is_none() && log.take() == Decided::default());
    }

    fn invalid_records_are_counted_and_unread_ones_are_bounded() {
        let (ring, _lost, source) = source();
        let log = PacketLog::default();
        log.set_source(Some(source));
        write(&ring, CELL, 20, 3);
        assert_eq!(log.take(), Decided { unreadable: 3, ..Decided::default() });
        let mut written = 0;
        while written <= WAITING {
            write(&ring, CELL, 36, 80);
            written += 80;
            log.name([]);
        }
        let decided = log.take();
        assert_eq!((decided.packets.len(), decided.lost), (WAITING, (written - WAITING) as u64));
    }
}
