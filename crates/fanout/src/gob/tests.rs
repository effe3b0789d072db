use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const KINDS: &[u8] = include_bytes!("../../testdata/gob/kinds.gob");
const SAMPLE: &[u8] = include_bytes!("../../testdata/gob/sample.gob");
const SINGLE: &[u8] = include_bytes!("../../testdata/gob/single.gob");

fn read_all(stream: &[u8], step: usize) -> Result<Vec<String>, GobError> {
    let mut decoder = Decoder::new(Limits::default());
    let mut all = Vec::new();
    for part in stream.chunks(step.max(1)) {
        decoder.push(part);
        while let Some(value) = decoder.read()? {
            all.push(shown(&value));
        }
    }
    assert_eq!(decoder.unread(), 0, "{all:?}");
    Ok(all)
}

/// A value in short.
fn shown(value: &Value<'_>) -> String {
    let join = |items: Vec<String>| items.join(" ");
    match value {
        Value::Bool(b) => b.to_string(),
        Value::Int(n) => n.to_string(),
        Value::Uint(n) => format!("{n}u"),
        Value::Float(n) => format!("{n:?}"),
        Value::Complex(re, im) => format!("{re}+{im}i"),
        Value::Bytes(bytes) => format!("{bytes:02x?}"),
        Value::Text(text) => format!("{text:?}"),
        Value::Struct(of) => {
            format!("{}{{{}}}", of.kind.name, join(of.fields().map(|(f, v)| format!("{f}:{}", shown(v))).collect()))
        }
        Value::List(items) => format!("[{}]", join(items.iter().map(shown).collect())),
        Value::Map(pairs) => {
            format!("({})", join(pairs.iter().map(|(k, v)| format!("{}={}", shown(k), shown(v))).collect()))
        }
        Value::Opaque(bytes) => format!("<{} bytes>", bytes.len()),
        Value::Nil => "nil".into(),
        Value::Named(name, value) => format!("{name}!{}", shown(value)),
    }
}

#[test]
fn streams_of_go_are_read_in_any_pieces() {
    let sample = [
        "Named{Words:(\"a\"=[1 -1 9223372036854775807 -9223372036854775808]) Three:[0u 1u 65535u] F:-17.25 C:1+-2i \
         B:true Raw:[01, 02] When:<15 bytes> Any:sample.Named!Named{Three:[0u 0u 0u] Any:sample.Inner!Inner{N:3 \
         Next:Inner{N:4}} In:Inner{} Last:\"nested\"} Many:[nil string!\"s\" int!5 uint!6u sample.Inner!Inner{Any:\
         float64!1.5} bool!true []uint8![78]] In:Inner{N:1 Next:Inner{N:2}} Last:\"end\"}",
        "Named{Three:[0u 0u 0u] In:Inner{}}",
        "Inner{Any:sample.Inner!Inner{Any:sample.Inner!Inner{Any:sample.Inner!Inner{N:9}}}}",
    ];
    let single = [
        "3",
        "\"text\"",
        "[62, 79, 74, 65, 73]",
        "18446744073709551615u",
        "17.0",
        "true",
        "[\"a\" \"\"]",
        "(1=\"x\")",
        "<15 bytes>",
        "[true false]",
    ];
    for step in [1, 7, 1000] {
        assert_eq!(read_all(SAMPLE, step).unwrap(), sample);
        assert_eq!(read_all(SINGLE, step).unwrap(), single);
    }
    let kinds = read_all(KINDS, KINDS.len()).unwrap();
    insta::assert_snapshot!(kinds.join("\n"));
}

/// A type of every sort, and a value of it.
fn everything() -> Vec<u8> {
    let mut schema = Schema::default();
    let inner = schema.structure("Inner", &[("N", TypeId::INT), ("Any", TypeId::INTERFACE)]);
    let texts = schema.slice("[]string", TypeId::TEXT);
    let three = schema.array("[3]uint", TypeId::UINT, 3);
    let counts = schema.map("map[string]int", TypeId::TEXT, TypeId::INT);
    let time = schema.opaque("Time");
    let outer = schema.structure(
        "Outer",
        &[
            ("Texts", texts),
            ("Three", three),
            ("Counts", counts),
            ("At", time),
            ("F", TypeId::FLOAT),
            ("U", TypeId::UINT),
            ("B", TypeId::BOOL),
            ("Raw", TypeId::BYTES),
            ("Any", TypeId::INTERFACE),
            ("In", inner),
        ],
    );
    let empty = schema.structure("Empty", &[]);
    let mut out = schema.definitions().to_vec();
    message(&mut out, outer, |out| {
        structure(out, |outer| {
            outer.list(0, &["a", ""], |out, text| text_value(out, text));
            outer.list(1, &[0, 1, u64::MAX], |out, number| uint(out, *number));
            outer.list(2, &[("x", i64::MIN), ("y", i64::MAX)], |out, (name, count)| {
                text_value(out, name);
                int(out, *count);
            });
            outer.bytes(3, &[1, 0, 0, 0, 14, 0xe2, 0x92, 0x96, 0xb9, 7, 0x5b, 0xcd, 0x15, 0xff, 0xff]);
            outer.float(4, -17.25);
            outer.uint(5, 300);
            outer.bool(6, true);
            outer.bytes(7, b"raw");
            outer.interface(8, "sample.Inner", inner, |out| {
                structure(out, |inner| {
                    inner.int(0, -129);
                    inner.interface(1, "string", TypeId::TEXT, |out| basic(out, |out| text_value(out, "in it")));
                });
            });
            outer.structure(9, |inner| inner.int(0, 64));
        });
    });
    message(&mut out, empty, |out| structure(out, |_| {}));
    message(&mut out, TypeId::INT, |out| basic(out, |out| int(out, -1)));
    out
}

const ACCEPTED: &[u8] = include_bytes!("../../testdata/gob/accepted.gob");

/// The bytes are those that a program in Go has decoded, into the values that this test asserts.
#[test]
fn written_streams_are_those_that_go_has_read() {
    let written = everything();
    assert_eq!(
        read_all(&written, 5).unwrap(),
        [
            "Outer{Texts:[\"a\" \"\"] Three:[0u 1u 18446744073709551615u] Counts:(\"x\"=-9223372036854775808 \
             \"y\"=9223372036854775807) At:<15 bytes> F:-17.25 U:300u B:true Raw:[72, 61, 77] \
             Any:sample.Inner!Inner{N:-129 Any:string!\"in it\"} In:Inner{N:64}}",
            "Empty{}",
            "-1"
        ]
    );
    assert_eq!(written, ACCEPTED);
}

#[test]
fn numbers() {
    // The examples of Go's documentation.
    for (number, bytes) in
        [(0, &[0][..]), (7, &[7]), (256, &[0xfe, 1, 0]), (u64::MAX, &[0xf8, 255, 255, 255, 255, 255, 255, 255, 255])]
    {
        let mut out = Vec::new();
        uint(&mut out, number);
        assert_eq!(out, bytes);
    }
    let mut out = Vec::new();
    int(&mut out, -129);
    assert_eq!(out, [0xfe, 1, 1]);
}

/// Returns the error of a stream of these messages.
fn error(messages: &[&[u8]], limits: Limits) -> GobError {
    let mut decoder = Decoder::new(limits);
    for message in messages {
        let mut bytes = Vec::new();
        bytes_value(&mut bytes, message);
        decoder.push(&bytes);
    }
    loop {
        match decoder.read() {
            Ok(Some(_)) => {}
            Ok(None) => panic!("no error"),
            Err(error) => {
                assert_eq!(decoder.read().unwrap_err(), error, "it stays so");
                return error;
            }
        }
    }
}

#[test]
fn invalid_streams_are_refused() {
    let small = Limits { value_bytes: 64, values: 10, depth: 2, types: 2, definition_bytes: 100 };
    let mut schema = Schema::default();
    // A structure that holds itself.
    schema.structure("Loop", &[("Next", TypeId(64))]);
    let endless: Vec<u8> = schema.definitions()[1..].to_vec();
    let mut schema = Schema::default();
    schema.slice("[]", TypeId::BOOL);
    let list: Vec<u8> = schema.definitions()[1..].to_vec();
    let mut schema = Schema::default();
    schema.array("[2]", TypeId::BOOL, 2);
    let array: Vec<u8> = schema.definitions()[1..].to_vec();

    assert_eq!(error(&[&[0; 70]], small), GobError::TooLong { limit: 64 });
    assert_eq!(error(&[&[4, 0]], small), GobError::Truncated);
    assert_eq!(error(&[&[4, 0, 6, 6]], small), GobError::Trailing);
    assert_eq!(error(&[&[0x80]], small), GobError::LongInteger);
    assert_eq!(error(&[&[4, 1, 6]], small), GobError::NotAlone);
    assert_eq!(error(&[&[0xff, 128]], small), GobError::UnknownType { id: 64 });
    assert_eq!(error(&[&[0, 0]], small), GobError::UnknownType { id: 0 });
    assert!(matches!(error(&[&[3]], small), GobError::Definition { id: 2, .. }));
    assert!(matches!(error(&[&list, &list], small), GobError::Definition { id: 64, .. }));
    assert!(matches!(
        error(&[&[0xff, 127, 0]], small),
        GobError::Definition { id: 64, reason: "a type definition has no kind" }
    ));
    // Five of ten elements are present.
    assert_eq!(error(&[&list, &[0xff, 128, 0, 10, 1, 1, 1, 1, 1]], small), GobError::Truncated);
    assert_eq!(
        error(&[&list, &[0xff, 128, 0, 12, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]], small),
        GobError::TooManyValues { limit: 10 }
    );
    // An element count that no memory could hold.
    assert_eq!(
        error(&[&list, &[0xff, 128, 0, 0xf8, 255, 255, 255, 255, 255, 255, 255, 255]], small),
        GobError::Truncated
    );
    assert_eq!(error(&[&array, &[0xff, 128, 0, 1, 1]], small), GobError::ArrayLength { expected: 2, found: 1 });
    assert_eq!(error(&[&endless, &[0xff, 128, 1, 1, 1, 1, 0, 0, 0, 0]], small), GobError::TooDeep { limit: 2 });
    assert!(matches!(error(&[&endless, &[0xff, 128, 2, 0]], small), GobError::UnknownField { field: 1, .. }));
    // An interface value whose type has a name that is too long.
    let mut name = vec![16, 0];
    bytes_value(&mut name, &[b'x'; 1025]);
    assert_eq!(error(&[&name], Limits::default()), GobError::LongName { limit: 1024 });
    let mut schema = Schema::default();
    let many: Vec<Vec<u8>> = (0..300)
        .map(|_| {
            let before = schema.definitions().len();
            schema.slice("", TypeId::BOOL);
            schema.definitions()[before + 1..].to_vec()
        })
        .collect();
    let many: Vec<&[u8]> = many.iter().map(Vec::as_slice).collect();
    assert_eq!(error(&many, Limits::default()), GobError::TooManyTypes { limit: 256 });
    let limits = Limits { definition_bytes: 50, ..Limits::default() };
    assert!(matches!(error(&many, limits), GobError::Definition { .. }));
}

/// The shortest messages that continue a value: each ends behind the name of a type, where Go does
/// not end one.
#[test]
fn a_value_in_tiny_messages_is_not_parsed_again_and_again() {
    let mut schema = Schema::default();
    schema.slice("[]any", TypeId::INTERFACE);
    let mut stream = schema.definitions().to_vec();
    // A list of 10,000 elements, of which the first message has the name of one type.
    bytes_value(&mut stream, &[0xff, 128, 0, 0xfe, 0x27, 0x10, 1, b'n']);
    let begin = stream.len();
    for _ in 0..10_000 {
        // An integer, of two bytes, and the next name.
        bytes_value(&mut stream, &[4, 2, 0, 2, 1, b'n']);
    }
    let mut decoder = Decoder::new(Limits::default());
    let (first, rest) = stream.split_at(begin);
    decoder.push(first);
    let mut read = decoder.read().map(|value| value.is_some());
    for message in rest.chunks(7) {
        if read.is_err() {
            break;
        }
        decoder.push(message);
        read = decoder.read().map(|value| value.is_some());
    }
    assert!(decoder.work() <= 4 * stream.len(), "{} bytes parsed of {}", decoder.work(), stream.len());
    assert_eq!(read, Err(GobError::Truncated));
}

#[test]
fn streams_in_single_bytes_are_parsed_a_limited_number_of_times() {
    for stream in [KINDS, SAMPLE, SINGLE, &everything()] {
        let mut decoder = Decoder::new(Limits::default());
        for byte in stream {
            decoder.push(&[*byte]);
            while decoder.read().unwrap().is_some() {}
        }
        assert!(decoder.work() <= 4 * stream.len(), "{} bytes parsed of {}", decoder.work(), stream.len());
    }
}

/// 64 types, each defined within the same value, are the most passes that a client can force.
#[test]
fn definitions_within_a_value_force_a_limited_number_of_passes() {
    let limits = Limits { types: 64, ..Limits::default() };
    let mut stream = Vec::new();
    let mut message = vec![16, 0, 1, b'n'];
    for id in 64..1000_i64 {
        int(&mut message, -id);
        // A type with its own encoding, without a name.
        message.extend([5, 0, 0]);
        bytes_value(&mut stream, &message);
        message.clear();
    }
    let mut decoder = Decoder::new(limits);
    let mut end = Ok(());
    for byte in &stream {
        decoder.push(&[*byte]);
        end = decoder.read().map(drop);
        if end.is_err() {
            break;
        }
    }
    assert_eq!(end, Err(GobError::TooManyTypes { limit: 64 }));
    assert!(decoder.work() < 3 * 65 * 64 * 16, "{} bytes parsed", decoder.work());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Any bytes, and streams of Go with some bytes replaced: nothing panics, and how they arrive
    /// makes no difference.
    #[test]
    fn damaged_streams(
        seed in 0..4usize,
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        noise in vec(any::<u8>(), 0..40),
        step in 1..200usize,
    ) {
        let mut stream = [KINDS, SAMPLE, SINGLE, &noise][seed].to_vec();
        for (at, byte) in damage {
            if !stream.is_empty() {
                let at = at.index(stream.len());
                stream[at] = byte;
            }
        }
        let read = |step: usize| {
            let mut decoder = Decoder::new(Limits { value_bytes: 4096, ..Limits::default() });
            let mut all = Vec::new();
            for part in stream.chunks(step) {
                decoder.push(part);
                loop {
                    match decoder.read() {
                        Ok(Some(value)) => all.push(shown(&value)),
                        Ok(None) => break,
                        Err(error) => {
                            all.push(error.to_string());
                            return all;
                        }
                    }
                }
            }
            all
        };
        prop_assert_eq!(read(step), read(stream.len().max(1)));
    }
}
