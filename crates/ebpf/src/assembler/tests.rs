use proptest::prelude::*;

use super::*;
use Register::{R0, R1, R2, R3};

fn flaw(write: impl FnOnce(&mut Assembler) -> &mut Assembler) -> AssembleError {
    let mut program = Assembler::new();
    write(&mut program);
    program.assemble().expect_err("it has a flaw")
}

fn at(instruction: usize, flaw: Flaw) -> AssembleError {
    AssembleError::Flaw { instruction, flaw }
}

#[test]
fn programs_that_the_verifier_rejects_are_rejected() {
    assert_eq!(flaw(|p| p), at(0, Flaw::NoEnd));
    assert_eq!(flaw(|p| p.set(R0, 0)), at(0, Flaw::NoEnd));
    assert_eq!(flaw(|p| p.exit()), at(0, Flaw::Unwritten(R0)));
    assert_eq!(flaw(|p| p.set(R0, R2).exit()), at(0, Flaw::Unwritten(R2)));
    assert_eq!(flaw(|p| p.compute(Operation::Add, R0, 1).exit()), at(0, Flaw::Unwritten(R0)));
    assert_eq!(flaw(|p| p.set(R0, 0).exit().exit()), at(2, Flaw::Unreachable));
    assert_eq!(flaw(|p| p.load(Size::U8, R0, R3, 0).exit()), at(0, Flaw::Unwritten(R3)));
    let stack = |size, offset| flaw(|p| p.store(size, Base::Frame, offset, 0).set(R0, 0).exit());
    assert_eq!(stack(Size::U64, -4), at(0, Flaw::OutsideStack(-4)));
    assert_eq!(stack(Size::U8, -513), at(0, Flaw::OutsideStack(-513)));
    assert_eq!(stack(Size::U8, 0), at(0, Flaw::OutsideStack(0)));
    assert_eq!(stack(Size::U64, -12), at(0, Flaw::Unaligned(-12)));
    let halfway = flaw(|p| p.store(Size::U32, Base::Frame, -8, 0).load(Size::U64, R0, Base::Frame, -8).exit());
    assert_eq!(halfway, at(1, Flaw::UnwrittenStack(-8)));
    assert_eq!(flaw(|p| p.set(R0, 1).compute(Operation::Divide, R0, 0).exit()), at(1, Flaw::BadOperand));
    assert_eq!(flaw(|p| p.set(R0, 1).compute_half(Operation::ShiftLeft, R0, 32).exit()), at(1, Flaw::BadOperand));
    assert_eq!(flaw(|p| p.set(R0, 1).to_big_endian(Size::U8, R0).exit()), at(1, Flaw::BadOperand));
}

#[test]
fn a_call_takes_its_arguments_and_leaves_none() {
    assert_eq!(flaw(|p| p.call(Helper::MapLookup).exit()), at(0, Flaw::Unwritten(R2)));
    let again = flaw(|p| p.set(R2, 0).call(Helper::MapLookup).set(R0, R1).exit());
    assert_eq!(again, at(2, Flaw::Unwritten(R1)));
    let mut kept = Assembler::new();
    kept.set(Register::R6, R1).set(R2, 0).call(Helper::MapLookup).set(R0, Register::R6).exit();
    assert!(kept.assemble().is_ok());
}

#[test]
fn values_not_written_on_every_path_are_unwritten() {
    let one_way = |on_the_other: bool| {
        let mut program = Assembler::new();
        let (other, end) = (program.label(), program.label());
        program.set(R0, 0).jump_if(R1, Test::Equal, 0, other);
        program.set(R2, 1).store(Size::U8, Base::Frame, -1, 1).jump(end);
        program.place(other).store(Size::U8, Base::Frame, -1, 2);
        if on_the_other {
            program.set(R2, 2);
        }
        program.place(end).load(Size::U8, R0, Base::Frame, -1).set(R0, R2).exit();
        program.assemble()
    };
    assert!(one_way(true).is_ok());
    assert_eq!(one_way(false), Err(at(7, Flaw::Unwritten(R2))));
}

#[test]
fn labels_are_placed_once_behind_their_jumps() {
    let missing = flaw(|p| {
        let label = p.label();
        p.set(R0, 0).jump_if(R0, Test::Equal, 0, label).exit()
    });
    assert_eq!(missing, AssembleError::NotPlaced { instruction: 1 });
    let twice = flaw(|p| {
        let label = p.label();
        p.place(label).set(R0, 0).place(label).exit()
    });
    assert_eq!(twice, AssembleError::PlacedTwice);
    let back = flaw(|p| {
        let label = p.label();
        p.set(R0, 0).place(label).jump_if(R0, Test::Equal, 0, label).exit()
    });
    assert_eq!(back, at(1, Flaw::Backwards));
    let behind = flaw(|p| {
        let label = p.label();
        p.set(R0, 0).jump_if(R0, Test::Equal, 0, label).exit().place(label)
    });
    assert_eq!(behind, at(1, Flaw::NoEnd));
    let far = |between: usize| {
        let mut program = Assembler::new();
        let label = program.label();
        program.set(R0, 0).jump_if(R0, Test::Equal, 0, label);
        for _ in 0..between {
            program.set(R0, 1);
        }
        program.place(label).exit();
        program.assemble()
    };
    assert!(far(32_767).is_ok());
    assert_eq!(far(32_768), Err(AssembleError::TooFar { instruction: 1 }));
}

/// Encodings equal those of the kernel's assembler (`Documentation/bpf/standardization`, and
/// `llvm-mc -mcpu=v3`).
#[test]
#[cfg(target_endian = "little")]
fn encodings() {
    let mut program = Assembler::new();
    let end = program.label();
    program
        .set(R0, -1)
        .compute_half(Operation::And, R0, 0xff)
        .compute(Operation::ShiftRight, R0, R0)
        .set_wide(R2, 0x1122_3344_5566_7788)
        .set_map(R3, MapId(7))
        .to_big_endian(Size::U32, R0)
        .store(Size::U16, Base::Frame, -2, 5)
        .store(Size::U64, Base::Frame, -16, R2)
        .load(Size::U32, R0, R1, 12)
        .set_stack(R2, 16)
        .jump_if_half(R0, Test::Greater, 9, end)
        .jump_if(R0, Test::LessSigned, R2, end)
        .call(Helper::MapLookup)
        .place(end)
        .set(R0, 0)
        .exit();
    let program = program.assemble().unwrap();
    let expected: &[[u8; 8]] = &[
        [0xb7, 0x00, 0, 0, 0xff, 0xff, 0xff, 0xff],
        [0x54, 0x00, 0, 0, 0xff, 0, 0, 0],
        [0x7f, 0x00, 0, 0, 0, 0, 0, 0],
        [0x18, 0x02, 0, 0, 0x88, 0x77, 0x66, 0x55],
        [0x00, 0x00, 0, 0, 0x44, 0x33, 0x22, 0x11],
        [0x18, 0x13, 0, 0, 42, 0, 0, 0],
        [0x00, 0x00, 0, 0, 0, 0, 0, 0],
        [0xdc, 0x00, 0, 0, 32, 0, 0, 0],
        [0x6a, 0x0a, 0xfe, 0xff, 5, 0, 0, 0],
        [0x7b, 0x2a, 0xf0, 0xff, 0, 0, 0, 0],
        [0x61, 0x10, 12, 0, 0, 0, 0, 0],
        [0xbf, 0xa2, 0, 0, 0, 0, 0, 0],
        [0x07, 0x02, 0, 0, 0xf0, 0xff, 0xff, 0xff],
        [0x26, 0x00, 2, 0, 9, 0, 0, 0],
        [0xcd, 0x20, 1, 0, 0, 0, 0, 0],
        [0x85, 0x00, 0, 0, 1, 0, 0, 0],
        [0xb7, 0x00, 0, 0, 0, 0, 0, 0],
        [0x95, 0x00, 0, 0, 0, 0, 0, 0],
    ];
    assert_eq!(program.bytes(|map| if map == MapId(7) { 42 } else { 0 }), expected.concat());
    let text = program.to_string();
    assert!(text.contains("\n1: w0 &= 255\n2: r0 >>= r0\n3: r2 = 0x1122334455667788 ll\n5: r3 = map 7 ll\n"), "{text}");
    assert!(text.contains("\n13: if w0 > 9 goto 16\n14: if r0 s< r2 goto 16\n15: call MapLookup\n"), "{text}");
}

/// A step of a random program. Registers are numbers below 6; jumps skip a number of steps.
#[derive(Clone, Debug)]
enum Step {
    Compute(Operation, bool, usize, Result<usize, i32>),
    Swap(Size, usize),
    Wide(usize, u64),
    Store(Size, u16, usize),
    Load(Size, u16, usize),
    Skip(Test, bool, usize, Result<usize, i32>, usize),
}

const OPERATIONS: [Operation; 12] = [
    Operation::Add,
    Operation::Subtract,
    Operation::Multiply,
    Operation::Divide,
    Operation::Or,
    Operation::And,
    Operation::ShiftLeft,
    Operation::ShiftRight,
    Operation::Remainder,
    Operation::Xor,
    Operation::Move,
    Operation::ShiftRightSigned,
];
const TESTS: [Test; 11] = [
    Test::Equal,
    Test::Greater,
    Test::GreaterOrEqual,
    Test::Common,
    Test::NotEqual,
    Test::GreaterSigned,
    Test::GreaterOrEqualSigned,
    Test::Less,
    Test::LessOrEqual,
    Test::LessSigned,
    Test::LessOrEqualSigned,
];
const SIZES: [Size; 4] = [Size::U8, Size::U16, Size::U32, Size::U64];
/// Size of the stack of random programs in bytes.
const STACK: u16 = 32;

fn step() -> impl Strategy<Value = Step> {
    let register = 0..6_usize;
    let number = prop_oneof![any::<i32>(), -3..70_i32];
    let operand = prop_oneof![register.clone().prop_map(Ok), number.prop_map(Err)];
    let size = prop::sample::select(&SIZES[..]);
    let wide = prop_oneof![any::<u64>(), 0..3_u64, Just(u64::MAX)];
    prop_oneof![
        4 => (prop::sample::select(&OPERATIONS[..]), any::<bool>(), register.clone(), operand.clone())
            .prop_map(|(operation, full, to, by)| Step::Compute(operation, full, to, by)),
        1 => (prop::sample::select(&SIZES[1..]), register.clone()).prop_map(|(size, of)| Step::Swap(size, of)),
        1 => (register.clone(), wide).prop_map(|(to, value)| Step::Wide(to, value)),
        1 => (size.clone(), 0..STACK, register.clone()).prop_map(|(size, place, from)| Step::Store(size, place, from)),
        1 => (size, 0..STACK, register.clone()).prop_map(|(size, place, to)| Step::Load(size, place, to)),
        2 => (prop::sample::select(&TESTS[..]), any::<bool>(), register, operand, 0..6_usize)
            .prop_map(|(test, full, left, right, skip)| Step::Skip(test, full, left, right, skip)),
    ]
}

/// Reports whether `rbpf` 0.4 executes a step like the kernel. It zero-extends negative numbers in
/// comparisons, and leaves the upper half of a register if the lower is divided by 0.
fn is_alike_in_rbpf(step: &Step) -> bool {
    match step {
        Step::Skip(test, true, _, Err(number), _) => {
            let is_signed = matches!(
                test,
                Test::Common
                    | Test::GreaterSigned
                    | Test::GreaterOrEqualSigned
                    | Test::LessSigned
                    | Test::LessOrEqualSigned
            );
            is_signed || *number >= 0
        }
        Step::Compute(Operation::Remainder, full, _, by) => *full || by.is_err(),
        _ => true,
    }
}

fn register(number: usize) -> Register {
    Register::ALL[number]
}

fn operand(operand: &Result<usize, i32>) -> Operand {
    match operand {
        Ok(number) => register(*number).into(),
        Err(number) => (*number).into(),
    }
}

/// Returns the aligned stack offset of a value of this size.
fn below(size: Size, place: u16) -> i16 {
    let bytes = size.bytes();
    i16::try_from(STACK - place / bytes * bytes).unwrap()
}

/// Returns a program that initializes all registers and the stack, executes the steps, and returns
/// a combination of all registers and the stack.
fn write(steps: &[Step]) -> Result<Program, AssembleError> {
    let mut program = Assembler::new();
    for number in 0..6 {
        program.set_wide(register(number), begin(number));
    }
    for place in 1..=STACK / 8 {
        program.store(Size::U64, Base::Frame, -8 * i16::try_from(place).unwrap(), i32::from(place));
    }
    let mut open: Vec<(usize, Label)> = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        for (_, label) in open.extract_if(.., |(place, _)| *place <= at) {
            program.place(label);
        }
        match step {
            Step::Compute(operation, true, to, by) => {
                program.compute(*operation, register(*to), operand(by));
            }
            Step::Compute(operation, false, to, by) => {
                program.compute_half(*operation, register(*to), operand(by));
            }
            Step::Swap(size, of) => {
                program.to_big_endian(*size, register(*of));
            }
            Step::Wide(to, value) => {
                program.set_wide(register(*to), *value);
            }
            Step::Store(size, place, from) => {
                program.store(*size, Base::Frame, -below(*size, *place), register(*from));
            }
            Step::Load(size, place, to) => {
                program.load(*size, register(*to), Base::Frame, -below(*size, *place));
            }
            Step::Skip(test, full, left, right, skip) => {
                let label = program.label();
                open.push((at + 1 + skip, label));
                match full {
                    true => program.jump_if(register(*left), *test, operand(right), label),
                    false => program.jump_if_half(register(*left), *test, operand(right), label),
                };
            }
        }
    }
    for (_, label) in open {
        program.place(label);
    }
    for number in 1..6 {
        program.compute(Operation::Multiply, R0, 31).compute(Operation::Add, R0, register(number));
    }
    for place in 1..=STACK / 8 {
        program.load(Size::U64, R1, Base::Frame, -8 * i16::try_from(place).unwrap());
        program.compute(Operation::Multiply, R0, 31).compute(Operation::Add, R0, R1);
    }
    program.exit();
    program.assemble()
}

fn begin(number: usize) -> u64 {
    (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Returns the expected result of the program.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "as registers are"
)]
fn model(steps: &[Step]) -> u64 {
    let mut registers: Vec<u64> = (0..6).map(begin).collect();
    let mut stack = [0_u8; STACK as usize];
    for place in 1..=usize::from(STACK / 8) {
        let at = usize::from(STACK) - 8 * place;
        stack[at..at + 8].copy_from_slice(&(place as u64).to_ne_bytes());
    }
    let value = |registers: &[u64], operand: &Result<usize, i32>| match operand {
        Ok(number) => registers[*number],
        Err(number) => i64::from(*number) as u64,
    };
    let mut at = 0;
    while let Some(step) = steps.get(at) {
        at += 1;
        match step {
            Step::Compute(operation, full, to, by) => {
                let (left, right) = (registers[*to], value(&registers, by));
                registers[*to] = match full {
                    true => compute(*operation, left, right, 64),
                    false => compute(*operation, left & 0xffff_ffff, right & 0xffff_ffff, 32) & 0xffff_ffff,
                };
            }
            Step::Swap(size, of) => {
                let value = registers[*of];
                registers[*of] = match size {
                    Size::U8 => value,
                    Size::U16 => (value as u16).to_be().into(),
                    Size::U32 => (value as u32).to_be().into(),
                    Size::U64 => value.to_be(),
                };
            }
            Step::Wide(to, value) => registers[*to] = *value,
            Step::Store(size, place, from) => {
                let (bytes, at) = (usize::from(size.bytes()), usize::from(STACK) - below(*size, *place) as usize);
                stack[at..at + bytes].copy_from_slice(&registers[*from].to_ne_bytes()[..bytes]);
            }
            Step::Load(size, place, to) => {
                let (bytes, at) = (usize::from(size.bytes()), usize::from(STACK) - below(*size, *place) as usize);
                let mut value = [0; 8];
                value[..bytes].copy_from_slice(&stack[at..at + bytes]);
                registers[*to] = u64::from_ne_bytes(value);
            }
            Step::Skip(test, full, left, right, skip) => {
                let (left, right) = (registers[*left], value(&registers, right));
                let holds = match full {
                    true => holds(*test, left, right),
                    false => holds(*test, left as i32 as i64 as u64, right as i32 as i64 as u64),
                };
                at += if holds { *skip } else { 0 };
            }
        }
    }
    let words = (1..=usize::from(STACK / 8)).map(|place| {
        let at = usize::from(STACK) - 8 * place;
        u64::from_ne_bytes(stack[at..at + 8].try_into().unwrap())
    });
    let registers = registers.iter().copied();
    registers.chain(words).reduce(|sum, next| sum.wrapping_mul(31).wrapping_add(next)).unwrap()
}

/// Returns the result of an operation on numbers of this width, which are 0 above it.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "as registers are"
)]
fn compute(operation: Operation, left: u64, right: u64, bits: u32) -> u64 {
    let shift = (right as u32) & (bits - 1);
    match operation {
        Operation::Add => left.wrapping_add(right),
        Operation::Subtract => left.wrapping_sub(right),
        Operation::Multiply => left.wrapping_mul(right),
        Operation::Divide => left.checked_div(right).unwrap_or(0),
        Operation::Or => left | right,
        Operation::And => left & right,
        Operation::ShiftLeft => left << shift,
        Operation::ShiftRight => left >> shift,
        Operation::Remainder => left.checked_rem(right).unwrap_or(left),
        Operation::Xor => left ^ right,
        Operation::Move => right,
        Operation::ShiftRightSigned if bits == 32 => ((left as i32) >> shift) as u32 as u64,
        Operation::ShiftRightSigned => ((left as i64) >> shift) as u64,
    }
}

#[allow(clippy::cast_possible_wrap, reason = "as registers are")]
fn holds(test: Test, left: u64, right: u64) -> bool {
    let signed = (left as i64, right as i64);
    match test {
        Test::Equal => left == right,
        Test::Greater => left > right,
        Test::GreaterOrEqual => left >= right,
        Test::Common => left & right != 0,
        Test::NotEqual => left != right,
        Test::GreaterSigned => signed.0 > signed.1,
        Test::GreaterOrEqualSigned => signed.0 >= signed.1,
        Test::Less => left < right,
        Test::LessOrEqual => left <= right,
        Test::LessSigned => signed.0 < signed.1,
        Test::LessOrEqualSigned => signed.0 <= signed.1,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn programs_behave_as_written(steps in prop::collection::vec(step().prop_filter("rbpf", is_alike_in_rbpf), 0..40)) {
        let program = match write(&steps) {
            // Steps with invalid operands, and unreachable steps, are skipped.
            Err(AssembleError::Flaw { flaw: Flaw::BadOperand, .. }) => return Ok(()),
            program => program.unwrap(),
        };
        let bytes = program.bytes(|_| 0);
        let machine = rbpf::EbpfVmNoData::new(Some(&bytes)).map_err(|error| TestCaseError::fail(error.to_string()))?;
        let result = machine.execute_program().map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!(result, model(&steps), "{}", program);
    }

    #[test]
    #[allow(clippy::cast_possible_truncation, reason = "a program returns 32 bits")]
    fn the_kernel_accepts_programs_and_runs_them_as_written(steps in prop::collection::vec(step(), 0..40)) {
        let program = match write(&steps) {
            Err(AssembleError::Flaw { flaw: Flaw::BadOperand, .. }) => return Ok(()),
            program => program.unwrap(),
        };
        let fail = |error: std::io::Error| TestCaseError::fail(format!("{error}\n{program}"));
        let loaded = tortie_bpf::Program::load_classifier("steps", &program.bytes(|_| 0)).map_err(fail)?;
        prop_assert_eq!(loaded.test_run(&[0; 64], 1).map_err(fail)?.result, model(&steps) as u32, "{}", program);
    }
}
