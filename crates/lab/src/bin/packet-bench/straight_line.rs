//! Policy compiled as in Felix: rules as sequential instructions
//! (`felix/bpf/polprog/pol_prog_builder.go`). As in Felix, another program has parsed the packet
//! before, into an array.

use std::time::{Duration, Instant};

use tortie_bpf::{ArrayMap, PrefixMap, Program};
use tortie_ebpf::{AssembleError, Assembler, Base, Helper, Label, MapId, Operation, Register, Size, Test};

use crate::Result;
use crate::policy::{POD, Peers, Policy, STRANGER};
use crate::test_run::{SOURCE, packet};

const STATE: MapId = MapId(0);
const SETS: MapId = MapId(1);
/// Bytes of the parsed packet: destination, port in host byte order, protocol.
const STATE_BYTES: u32 = 8;
const ADDRESS: i16 = 0;
const PORT: i16 = 4;
const PROTOCOL: i16 = 6;
/// Bytes of a member's key: prefix length, number of the set, address, port, protocol.
const KEY_BYTES: u32 = 20;
const KEY: i16 = -24;
/// Significant bits of a member's key: number of the set and address.
const MEMBER_BITS: u32 = 96;
const UDP: u8 = 17;
const ALLOW: u32 = 1;
const DENY: i32 = 2;

/// Cost of such a program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StraightLine {
    /// Nanoseconds of a packet that the first rule allows, the last rule allows, and no rule
    /// allows.
    pub(crate) warm: [f64; 3],
    /// Load time, including the verifier.
    pub(crate) loaded: Duration,
}

impl StraightLine {
    /// Measures a policy; `None` if its rules do not fit into one program.
    pub(crate) fn measure(policy: Policy, runs: u32, times: u32) -> Result<Option<Self>> {
        let program = match assemble(policy) {
            Ok(program) => program,
            Err(AssembleError::TooFar { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let state = ArrayMap::create("state", STATE_BYTES, 1)?;
        let sets = PrefixMap::create("sets", KEY_BYTES, 4, 1 << 18)?;
        if policy.peers == Peers::Sets {
            for rule in 0..policy.rules {
                for member in policy.members(rule) {
                    sets.insert(&key(rule, member.octets()), &1_u32.to_ne_bytes())?;
                }
            }
        }
        let bytes = program.bytes(|map| if map == STATE { state.descriptor() } else { sets.descriptor() });
        let begin = Instant::now();
        let program = match Program::load_classifier("straight", &bytes) {
            Ok(program) => program,
            // The verifier's limit of instructions.
            Err(error) if error.raw_os_error() == Some(7) || error.to_string().contains("too large") => {
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        let loaded = begin.elapsed();
        let mut warm = [0.0; 3];
        let cases = [policy.admitted(0), policy.admitted(policy.rules - 1), (STRANGER, 9)];
        for (cost, (index, (address, port))) in warm.iter_mut().zip(cases.into_iter().enumerate()) {
            let key_bytes = [&address.octets()[..], &port.to_ne_bytes(), &[UDP, 0]].concat();
            state.write(0, &key_bytes)?;
            let frame = [&[0; 12][..], &[8, 0], &packet(SOURCE.into(), POD.into(), port)].concat();
            let run = |runs| program.test_run(&frame, runs);
            if (run(1)?.result == ALLOW) != (index < 2) {
                return Err(format!("wrong verdict of compiled rules for {address} port {port}").into());
            }
            // A packet through thousands of sets takes long.
            let runs = (runs / u32::from(policy.rules)).max(1000);
            let all = (0..times).map(|_| Ok(f64::from(run(runs)?.nanoseconds)));
            *cost = all.collect::<Result<Vec<f64>>>()?.into_iter().fold(f64::INFINITY, f64::min);
        }
        Ok(Some(Self { warm, loaded }))
    }
}

fn key(rule: u16, address: [u8; 4]) -> Vec<u8> {
    let set = u64::from(rule) + 1;
    [&MEMBER_BITS.to_ne_bytes()[..], &set.to_be_bytes(), &address, &[0; 4]].concat()
}

fn assemble(policy: Policy) -> std::result::Result<tortie_ebpf::Program, AssembleError> {
    let mut asm = Assembler::new();
    let (deny, allow) = (asm.label(), asm.label());
    asm.store(Size::U32, Base::Frame, -4, 0)
        .set_map(Register::R1, STATE)
        .set_stack(Register::R2, 4)
        .call(Helper::MapLookup)
        .jump_if(Register::R0, Test::Equal, 0, deny)
        .set(Register::R7, Register::R0);
    for rule in 0..policy.rules {
        let (address, port) = policy.admitted(rule);
        let end = asm.label();
        asm.load(Size::U8, Register::R1, Register::R7, PROTOCOL).jump_if(
            Register::R1,
            Test::NotEqual,
            i32::from(UDP),
            end,
        );
        match policy.peers {
            Peers::Networks | Peers::Subnets => {
                let mask = u32::MAX << (32 - policy.prefix());
                let in_memory = |bits: u32| i32::from_ne_bytes(bits.to_be_bytes());
                let (matched, address) = (asm.label(), in_memory(address.to_bits() & mask));
                asm.load(Size::U32, Register::R1, Register::R7, ADDRESS)
                    .compute_half(Operation::And, Register::R1, in_memory(mask))
                    .jump_if_half(Register::R1, Test::Equal, address, matched)
                    .jump(end)
                    .place(matched);
            }
            Peers::Sets | Peers::SetsOnePort | Peers::SetsPortRange => in_set(&mut asm, rule, end),
        }
        let matched = asm.label();
        asm.load(Size::U16, Register::R1, Register::R7, PORT)
            .jump_if(Register::R1, Test::Equal, i32::from(port), matched)
            .jump(end)
            .place(matched)
            .jump(allow)
            .place(end);
    }
    asm.place(deny).set(Register::R0, DENY).exit();
    asm.place(allow).set(Register::R0, ALLOW.cast_signed()).exit();
    asm.assemble()
}

/// Emits a jump to `end` unless the destination is in the set of a rule.
fn in_set(asm: &mut Assembler, rule: u16, end: Label) {
    let [high, low] = {
        let set = (u64::from(rule) + 1).to_be_bytes();
        let [a, b, c, d, e, f, g, h] = set;
        [i32::from_ne_bytes([a, b, c, d]), i32::from_ne_bytes([e, f, g, h])]
    };
    asm.store(Size::U32, Base::Frame, KEY, (MEMBER_BITS + 32).cast_signed())
        .store(Size::U32, Base::Frame, KEY + 4, high)
        .store(Size::U32, Base::Frame, KEY + 8, low)
        .load(Size::U32, Register::R1, Register::R7, ADDRESS)
        .store(Size::U32, Base::Frame, KEY + 12, Register::R1)
        .load(Size::U16, Register::R1, Register::R7, PORT)
        .store(Size::U16, Base::Frame, KEY + 16, Register::R1)
        .load(Size::U8, Register::R1, Register::R7, PROTOCOL)
        .store(Size::U8, Base::Frame, KEY + 18, Register::R1)
        .store(Size::U8, Base::Frame, KEY + 19, 0)
        .set_map(Register::R1, SETS)
        .set_stack(Register::R2, KEY.unsigned_abs())
        .call(Helper::MapLookup)
        .jump_if(Register::R0, Test::Equal, 0, end);
}
