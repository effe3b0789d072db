//! Log records of programs.

use tortie_ebpf::classes::evaluate::{Packet, Payload, Verdict};
use tortie_ebpf::layout::{LOG_BYTES, MapKind, roots};
use tortie_ebpf::{DecisionId, LogRecord};
use tortie_model::Family;

use crate::{Bench, Expected, PORTS, V4, V6, attachments, v4, v6};

impl Bench {
    /// Enables or disables the log in the roots that are in force.
    pub(crate) fn set_logs(&self, logs: bool) {
        let place = usize::try_from(roots::FLAGS).unwrap();
        let (_, map) = self.maps.arrays.iter().find(|(kind, _)| *kind == MapKind::Roots).unwrap();
        let mut bytes = [0; roots::SIZE];
        map.read(2, &mut bytes).unwrap();
        let flags = if logs { roots::IN_FORCE | roots::LOG } else { roots::IN_FORCE };
        bytes[place..place + 4].copy_from_slice(&flags.to_ne_bytes());
        self.write(MapKind::Roots, 2, &bytes);
    }

    /// Returns the records since the last call.
    pub(crate) fn logged(&self) -> Vec<LogRecord> {
        let mut records = Vec::new();
        let read = self.maps.log.borrow_mut().read(|bytes| records.push(LogRecord::from_bytes(bytes).unwrap()));
        read.unwrap();
        records
    }

    fn lost(&self) -> u64 {
        let (_, lost) = self.maps.arrays.iter().find(|(kind, _)| *kind == MapKind::Lost).unwrap();
        let mut value = [0; 8];
        lost.read(0, &mut value).unwrap();
        u64::from_ne_bytes(value)
    }

    /// Sends a packet, and expects it to be logged as it is.
    fn expect_logged(&self, packet: &[u8], verdict: Verdict, protocol: u8, payload: Payload, icmp_id: u16) {
        let passes = self.passes(packet);
        assert_eq!(passes, verdict == Verdict::Allow, "{packet:?}");
        let [source, destination] = match self.family {
            Family::V4 => V4.map(Into::into),
            Family::V6 => V6.map(Into::into),
        };
        let [record] = self.logged().try_into().unwrap();
        // Packets without a known decision are denied by decision 0.
        let decision = DecisionId::from_number(u32::from(passes));
        assert_eq!((record.decision, record.verdict), (decision, verdict), "{packet:?}");
        assert_eq!(record.length as usize, packet.len(), "{packet:?}");
        assert_eq!(record.packet, Packet::new(source, destination, protocol, payload).unwrap(), "{packet:?}");
        assert_eq!(record.icmp_id, icmp_id, "{packet:?}");
    }
}

const ECHO: [u8; 8] = [8, 0, 0xee, 0xee, 0x12, 0x34, 0, 1];

#[test]
fn records_hold_the_packet_as_evaluated() {
    for attachment in attachments() {
        let ports = |destination| Payload::Ports { source: 0x0611, destination };
        for family in Family::ALL {
            let (bench, icmp) = (Bench::new(attachment, family), if family == Family::V4 { 1 } else { 58 });
            let packet = |protocol, payload: &[u8]| match family {
                Family::V4 => v4(protocol, 0, 0, payload),
                Family::V6 => v6(protocol, payload),
            };
            let [source, destination] = match family {
                Family::V4 => V4.map(|address| address.to_vec()),
                Family::V6 => V6.map(|address| address.to_vec()),
            };
            let expect = |expected| {
                bench.expect(&source, &destination, expected);
                bench.set_logs(true);
            };
            let (allow, deny) = (Verdict::Allow, Verdict::Deny);
            // TCP and UDP, as in most packets, and another protocol with ports, which is parsed in
            // another way.
            for protocol in [6, 17, 132] {
                expect(Expected { protocol, detail: Some(80), source_port: Some(0x0611) });
                bench.expect_logged(&packet(protocol, &PORTS), allow, protocol, ports(80), 0);
                bench.expect_logged(&packet(protocol, &[6, 0x11, 0, 81, 0, 0, 0, 0]), deny, protocol, ports(81), 0);
            }
            let message = u16::from_be_bytes([8, 0]);
            expect(Expected { protocol: icmp, detail: Some(message), source_port: None });
            let echo = Payload::Icmp { icmp_type: 8, code: 0 };
            bench.expect_logged(&packet(icmp, &ECHO), allow, icmp, echo, 0x1234);
            bench.expect_logged(&packet(icmp, &ECHO[..5]), allow, icmp, echo, 0);
            bench.expect_logged(&packet(icmp, &[3, 4]), deny, icmp, Payload::Icmp { icmp_type: 3, code: 4 }, 0);
            bench.expect_logged(&packet(50, &PORTS), deny, 50, Payload::Other, 0);
        }
        let bench = Bench::new(attachment, Family::V4);
        bench.expect(&V4[0], &V4[1], Expected { protocol: 6, detail: None, source_port: None });
        bench.set_logs(true);
        bench.expect_logged(&v4(6, 3, 0, &PORTS), Verdict::Deny, 6, ports(80), 0);
        bench.expect_logged(&v4(6, 0, 1, &PORTS), Verdict::Allow, 6, Payload::Other, 0);
    }
}

#[test]
fn nothing_is_logged_unless_logging_is_enabled() {
    for attachment in attachments() {
        let bench = Bench::new(attachment, Family::V4);
        bench.expect(&V4[0], &V4[1], Expected { protocol: 6, detail: Some(80), source_port: Some(0x0611) });
        for (logs, expected) in [(false, 0), (true, 1), (false, 0), (true, 1)] {
            bench.set_logs(logs);
            assert!(bench.passes(&v4(6, 0, 0, &PORTS)));
            assert_eq!(bench.logged().len(), expected);
        }
        assert_eq!((bench.counted(1).packets, bench.lost()), (4, 0));
    }
}

#[test]
fn unread_records_are_lost_and_counted_without_effect_on_verdicts() {
    for attachment in attachments() {
        let bench = Bench::new(attachment, Family::V4);
        bench.expect(&V4[0], &V4[1], Expected { protocol: 6, detail: Some(80), source_port: Some(0x0611) });
        bench.set_logs(true);
        let packets = LOG_BYTES / 32;
        assert!(bench.is_accepted(bench.run(&v4(6, 0, 0, &PORTS), packets)));
        let (logged, lost) = (bench.logged().len() as u64, bench.lost());
        assert!(logged > 5000 && lost > 0, "{logged}, {lost}");
        assert_eq!((logged + lost, bench.counted(1).packets), (u64::from(packets), u64::from(packets)));
        bench.expect_logged(
            &v4(6, 0, 0, &PORTS),
            Verdict::Allow,
            6,
            Payload::Ports { source: 0x0611, destination: 80 },
            0,
        );
        assert_eq!(bench.lost(), lost);
    }
}

#[test]
fn invalid_records_are_not_read() {
    for length in 0..64 {
        let bytes = vec![0xff; length];
        assert_eq!(LogRecord::from_bytes(&bytes).is_some(), length == 36 || length == 48, "{length}");
    }
}
