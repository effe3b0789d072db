//! Reading of one value, with the definitions before and within it.

use std::collections::HashMap;
use std::sync::Arc;

use super::value::{StructType, StructValue, Value};
use super::{GobError, Limits, TypeId};

/// A type that a stream has defined.
#[derive(Clone, Debug)]
pub(super) enum Wire {
    Struct(Arc<StructType>),
    Slice(i64),
    Array(i64, u64),
    Map(i64, i64),
    Opaque,
}

/// The types of a stream.
#[derive(Debug, Default)]
pub(super) struct Types {
    wires: HashMap<i64, Wire>,
    /// Size of their definitions in bytes.
    bytes: usize,
}

impl Types {
    pub(super) fn extend(&mut self, more: Self) {
        self.wires.extend(more.wires);
        self.bytes += more.bytes;
    }
}

/// Reason why reading stops.
#[derive(Debug)]
pub(super) enum Stop {
    Error(GobError),
    /// This many bytes are needed before another attempt makes sense.
    Wait(usize),
}

impl From<GobError> for Stop {
    fn from(error: GobError) -> Self {
        Self::Error(error)
    }
}

/// Maximum length of the type name in an interface value, in bytes.
const NAME: usize = 1024;

/// Pass over the bytes from the beginning of a value. The value may extend over several messages:
/// if an interface value has a type that is not defined yet, Go ends the message after its
/// definition.
pub(super) struct Reader<'m, 't> {
    bytes: &'m [u8],
    at: usize,
    /// End of the message.
    end: usize,
    limits: &'t Limits,
    known: &'t Types,
    /// Types defined in this pass.
    pub(super) defined: Types,
    values: usize,
    /// The number of bytes that this pass has parsed.
    pub(super) work: usize,
}

impl<'m, 't> Reader<'m, 't> {
    pub(super) fn new(bytes: &'m [u8], limits: &'t Limits, known: &'t Types) -> Self {
        Self { bytes, at: 0, end: 0, limits, known, defined: Types::default(), values: 0, work: 0 }
    }

    /// Returns the number of bytes read.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// Reads the next message if it is a definition; `false` if it begins a value.
    pub(super) fn whole_definition(&mut self) -> Result<bool, Stop> {
        self.message()?;
        let id = self.int()?;
        if id >= 0 {
            return Ok(false);
        }
        self.definition(id)?;
        if self.at == self.end { Ok(true) } else { Err(GobError::Trailing.into()) }
    }

    /// Reads a complete value. The definitions before it have been read.
    pub(super) fn whole_value(&mut self) -> Result<Value<'m>, Stop> {
        self.message()?;
        let id = self.int()?;
        let value = self.alone(id, 0)?;
        if self.at == self.end { Ok(value) } else { Err(GobError::Trailing.into()) }
    }

    /// Enters the next message.
    fn message(&mut self) -> Result<(), Stop> {
        let limit = self.limits.value_bytes;
        let rest = self.bytes.get(self.end..).unwrap_or_default();
        let Some(first) = rest.first() else { return Err(Stop::Wait(self.end + 1)) };
        let prefix = 1 + integer_length(*first)?;
        if rest.len() < prefix {
            return Err(Stop::Wait(self.end + prefix));
        }
        self.at = self.end;
        // The length itself is not a part of the message.
        self.end += prefix;
        let length = self.uint()?;
        let end = usize::try_from(length).ok().and_then(|length| self.end.checked_add(length));
        self.end = match end {
            Some(end) if end <= limit => end,
            _ => return Err(GobError::TooLong { limit }.into()),
        };
        if self.end > self.bytes.len() { Err(Stop::Wait(self.end)) } else { Ok(()) }
    }

    fn take(&mut self, count: usize) -> Result<&'m [u8], Stop> {
        let to = self.at.checked_add(count).filter(|to| *to <= self.end).ok_or(GobError::Truncated)?;
        let taken = self.bytes.get(self.at..to).ok_or(GobError::Truncated)?;
        self.at = to;
        self.work += count;
        Ok(taken)
    }

    fn uint(&mut self) -> Result<u64, Stop> {
        let &[first] = self.take(1)? else { return Err(GobError::Truncated.into()) };
        let length = integer_length(first)?;
        if length == 0 {
            return Ok(first.into());
        }
        Ok(self.take(length)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn int(&mut self) -> Result<i64, Stop> {
        let number = self.uint()?;
        let half = (number >> 1).cast_signed();
        Ok(if number & 1 == 1 { !half } else { half })
    }

    fn float(&mut self) -> Result<f64, Stop> {
        Ok(f64::from_bits(self.uint()?.swap_bytes()))
    }

    /// Reads bytes that are preceded by their count.
    fn counted(&mut self) -> Result<&'m [u8], Stop> {
        let count = usize::try_from(self.uint()?).map_err(|_| GobError::Truncated)?;
        self.take(count)
    }

    /// Reads the fields of a structure, each by its number.
    fn fields(&mut self, mut read: impl FnMut(&mut Self, u64) -> Result<(), Stop>) -> Result<(), Stop> {
        let mut next = 0u64;
        loop {
            let step = self.uint()?;
            if step == 0 {
                return Ok(());
            }
            let field = next.checked_add(step - 1).ok_or(GobError::Truncated)?;
            read(self, field)?;
            next = field.saturating_add(1);
        }
    }

    /// Reads a definition after its id, which is the negative id of the defined type.
    fn definition(&mut self, negative: i64) -> Result<(), Stop> {
        let id = negative.checked_neg().ok_or(GobError::UnknownType { id: negative })?;
        let wrong = |reason| Stop::Error(GobError::Definition { id, reason });
        if id < TypeId::FIRST.0 {
            return Err(wrong("the type is built in"));
        }
        if self.known.wires.contains_key(&id) || self.defined.wires.contains_key(&id) {
            return Err(wrong("the type is defined already"));
        }
        let limit = self.limits.types;
        if self.known.wires.len() + self.defined.wires.len() >= limit {
            return Err(GobError::TooManyTypes { limit }.into());
        }
        let begin = self.at;
        let mut wire = None;
        self.fields(|reader, field| {
            if wire.is_some() {
                return Err(wrong("a type definition has two kinds"));
            }
            wire = Some(match field {
                0 => {
                    let (_, elem, length) = reader.type_of_elements()?;
                    Wire::Array(elem, u64::try_from(length).map_err(|_| wrong("the length is negative"))?)
                }
                1 => Wire::Slice(reader.type_of_elements()?.1),
                2 => Wire::Struct(Arc::new(reader.type_of_structure()?)),
                3 => {
                    let (_, key, elem) = reader.type_of_elements()?;
                    Wire::Map(key, elem)
                }
                4..=6 => {
                    reader.type_of_elements()?;
                    Wire::Opaque
                }
                _ => return Err(wrong("it is of an unknown sort")),
            });
            Ok(())
        })?;
        self.defined.wires.insert(id, wire.ok_or_else(|| wrong("a type definition has no kind"))?);
        self.defined.bytes += self.at - begin;
        if self.known.bytes + self.defined.bytes > self.limits.definition_bytes {
            return Err(wrong("with it, definitions take too many bytes"));
        }
        Ok(())
    }

    /// Reads the common part of all definitions and returns the name. The id in it is redundant.
    fn common(&mut self) -> Result<String, Stop> {
        let mut name = String::new();
        self.fields(|reader, field| {
            match field {
                0 => name = String::from_utf8_lossy(reader.counted()?).into_owned(),
                1 => drop(reader.int()?),
                field => return Err(unknown_field("CommonType", field)),
            }
            Ok(())
        })?;
        Ok(name)
    }

    /// Reads the definition of an array, a slice or a map, which have one or two numbers.
    fn type_of_elements(&mut self) -> Result<(String, i64, i64), Stop> {
        let mut all = (String::new(), 0, 0);
        self.fields(|reader, field| {
            match field {
                0 => all.0 = reader.common()?,
                1 => all.1 = reader.int()?,
                2 => all.2 = reader.int()?,
                field => return Err(unknown_field("a type", field)),
            }
            Ok(())
        })?;
        Ok(all)
    }

    fn type_of_structure(&mut self) -> Result<StructType, Stop> {
        let mut kind = StructType { name: String::new(), fields: Vec::new() };
        self.fields(|reader, field| {
            match field {
                0 => kind.name = reader.common()?,
                1 => {
                    for _ in 0..reader.uint()? {
                        kind.fields.push(reader.type_of_field()?);
                    }
                }
                field => return Err(unknown_field("structType", field)),
            }
            Ok(())
        })?;
        Ok(kind)
    }

    fn type_of_field(&mut self) -> Result<(String, i64), Stop> {
        let mut all = (String::new(), 0);
        self.fields(|reader, field| {
            match field {
                0 => all.0 = String::from_utf8_lossy(reader.counted()?).into_owned(),
                1 => all.1 = reader.int()?,
                field => return Err(unknown_field("fieldType", field)),
            }
            Ok(())
        })?;
        Ok(all)
    }

    fn wire(&self, id: i64) -> Result<Wire, Stop> {
        let wire = self.known.wires.get(&id).or_else(|| self.defined.wires.get(&id));
        wire.cloned().ok_or_else(|| GobError::UnknownType { id }.into())
    }

    /// Reads a value that is not an element or a field. A zero precedes it unless it is a
    /// structure.
    fn alone(&mut self, id: i64, depth: usize) -> Result<Value<'m>, Stop> {
        let structure = id >= TypeId::FIRST.0 && matches!(self.wire(id)?, Wire::Struct(_));
        if !structure && self.uint()? != 0 {
            return Err(GobError::NotAlone.into());
        }
        self.value(id, depth)
    }

    fn value(&mut self, id: i64, depth: usize) -> Result<Value<'m>, Stop> {
        if depth > self.limits.depth {
            return Err(GobError::TooDeep { limit: self.limits.depth }.into());
        }
        self.values += 1;
        if self.values > self.limits.values {
            return Err(GobError::TooManyValues { limit: self.limits.values }.into());
        }
        Ok(match TypeId(id) {
            TypeId::BOOL => Value::Bool(self.uint()? != 0),
            TypeId::INT => Value::Int(self.int()?),
            TypeId::UINT => Value::Uint(self.uint()?),
            TypeId::FLOAT => Value::Float(self.float()?),
            TypeId::BYTES => Value::Bytes(self.counted()?),
            TypeId::TEXT => Value::Text(String::from_utf8_lossy(self.counted()?)),
            TypeId::COMPLEX => Value::Complex(self.float()?, self.float()?),
            TypeId::INTERFACE => self.interface(depth)?,
            TypeId(id) => match self.wire(id)? {
                Wire::Struct(kind) => self.structure(kind, depth)?,
                Wire::Slice(elem) => {
                    let count = self.uint()?;
                    self.elements(elem, count, depth)?
                }
                Wire::Array(elem, expected) => {
                    let found = self.uint()?;
                    if found != expected {
                        return Err(GobError::ArrayLength { expected, found }.into());
                    }
                    self.elements(elem, found, depth)?
                }
                Wire::Map(key, elem) => {
                    let mut pairs = Vec::new();
                    for _ in 0..self.uint()? {
                        pairs.push((self.value(key, depth + 1)?, self.value(elem, depth + 1)?));
                    }
                    Value::Map(pairs)
                }
                Wire::Opaque => Value::Opaque(self.counted()?),
            },
        })
    }

    /// Reads elements. The count is not trusted, but each element takes a byte, so that the message
    /// ends before the memory is exhausted.
    fn elements(&mut self, elem: i64, count: u64, depth: usize) -> Result<Value<'m>, Stop> {
        let mut elements = Vec::new();
        for _ in 0..count {
            elements.push(self.value(elem, depth + 1)?);
        }
        Ok(Value::List(elements))
    }

    fn structure(&mut self, kind: Arc<StructType>, depth: usize) -> Result<Value<'m>, Stop> {
        let mut fields = Vec::new();
        self.fields(|reader, field| {
            // No type has more fields than usize can count.
            let place = usize::try_from(field).unwrap_or(usize::MAX);
            let Some((_, id)) = kind.fields.get(place) else { return Err(unknown_field(&kind.name, field)) };
            fields.push((place, reader.value(*id, depth + 1)?));
            Ok(())
        })?;
        Ok(Value::Struct(StructValue { kind, fields }))
    }

    fn interface(&mut self, depth: usize) -> Result<Value<'m>, Stop> {
        let name = self.counted()?;
        if name.is_empty() {
            return Ok(Value::Nil);
        }
        if name.len() > NAME {
            return Err(GobError::LongName { limit: NAME }.into());
        }
        // A name that is not UTF-8 matches no registered name.
        let name = std::str::from_utf8(name).unwrap_or("\u{fffd}");
        // Go ends a message within a value only after a definition, whose id cannot come again. So
        // a stream can force only a limited number of passes over the beginning of a value.
        let id = loop {
            let id = self.int()?;
            if id >= 0 {
                break id;
            }
            self.definition(id)?;
            if self.at == self.end {
                self.message()?;
            } else {
                // Length of the rest, for decoders that skip it.
                self.uint()?;
            }
        };
        // Likewise.
        self.uint()?;
        Ok(Value::Named(name, Box::new(self.alone(id, depth + 1)?)))
    }
}

fn unknown_field(structure: &str, field: u64) -> Stop {
    GobError::UnknownField { structure: structure.into(), field }.into()
}

/// Returns the number of bytes after the first byte of an integer.
fn integer_length(first: u8) -> Result<usize, GobError> {
    match first {
        0..=0x7f => Ok(0),
        // The count is written negated.
        first if first >= 0xf8 => Ok(usize::from(first.wrapping_neg())),
        _ => Err(GobError::LongInteger),
    }
}
