//! The kernel's description of its types (BTF).

use std::ops::Range;

const MAGIC: u16 = 0xeb9f;
const HEADER: usize = 24;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const FUNCTION: u32 = 12;
/// Maximum number of members and aliases read in the search for one member: more than a structure
/// of any kernel has.
const PATIENCE: usize = 1 << 14;
/// Maximum depth of members within members, and of aliases.
const DEPTH: usize = 32;

/// Reason why BTF cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BtfError {
    /// It does not begin with a BTF header of this machine's byte order.
    #[error("no BTF of this machine")]
    Header,
    /// A type is truncated, or of an unknown kind.
    #[error("type {number} is torn or of an unknown kind")]
    Type {
        /// Its number.
        number: usize,
    },
}

/// Types of the kernel (`/sys/kernel/btf/vmlinux`), and of a module.
///
/// ```no_run
/// use tortie_ebpf::Btf;
///
/// let mut btf = Btf::parse(std::fs::read("/sys/kernel/btf/vmlinux")?)?;
/// if btf.offset("nf_conn", "tuplehash").is_none() {
///     btf.add_module(std::fs::read("/sys/kernel/btf/nf_conntrack")?)?;
/// }
/// println!("{:?}", btf.offset("sk_buff", "_nfct"));
/// println!("{:?}", btf.function("bpf_dynptr_from_skb"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Btf {
    kernel: Part,
    module: Option<Part>,
}

/// A BTF file.
#[derive(Debug)]
struct Part {
    bytes: Vec<u8>,
    strings: Range<usize>,
    /// Number of the first type.
    first: usize,
    /// Length in bytes of the strings of the preceding part.
    strings_before: usize,
    /// Byte offset of each type.
    types: Vec<u32>,
}

/// Remaining budget of a search: malformed types may form cycles.
struct SearchBudget {
    steps: usize,
    depth: usize,
}

impl SearchBudget {
    fn step(&mut self) -> Option<()> {
        self.steps = self.steps.checked_sub(1)?;
        Some(())
    }
}

/// Header of a type.
#[derive(Clone, Copy)]
struct Type {
    name: u32,
    kind: u32,
    members: usize,
    has_bit_fields: bool,
    /// A size in bytes, or the number of a type.
    size: u32,
}

impl Type {
    fn read(bytes: &[u8], at: usize) -> Option<Self> {
        let info = word(bytes, at + 4)?;
        Some(Self {
            name: word(bytes, at)?,
            kind: info >> 24 & 0x1f,
            members: (info & 0xffff) as usize,
            has_bit_fields: info >> 31 != 0,
            size: word(bytes, at + 8)?,
        })
    }

    /// Returns the number of bytes that follow.
    fn rest(&self) -> Option<usize> {
        Some(match self.kind {
            1 | 14 | 17 => 4,
            2 | 7..=12 | 16 | 18 => 0,
            3 => 12,
            STRUCT | UNION | 15 | 19 => 12 * self.members,
            6 | 13 => 8 * self.members,
            _ => return None,
        })
    }

    /// Reports whether it only refers to another type, such as a typedef.
    fn is_alias(&self) -> bool {
        matches!(self.kind, 8..=11 | 18)
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes)
}

fn place(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(word(bytes, at)?).ok()
}

impl Part {
    fn parse(bytes: Vec<u8>, before: Option<&Self>) -> Result<Self, BtfError> {
        let (strings, types) = sections(&bytes).ok_or(BtfError::Header)?;
        let first = before.map_or(1, |part| part.first + part.types.len());
        let strings_before = before.map_or(0, |part| part.strings.len());
        let mut part = Self { bytes, strings, first, strings_before, types: Vec::new() };
        let mut at = types.start;
        while at < types.end {
            let number = part.first + part.types.len();
            let torn = BtfError::Type { number };
            let rest = Type::read(&part.bytes, at).and_then(|read| read.rest()).ok_or(torn.clone())?;
            let end = at + 12 + rest;
            if end > types.end {
                return Err(torn);
            }
            part.types.push(u32::try_from(at).map_err(|_| torn)?);
            at = end;
        }
        Ok(part)
    }

    fn name<'a>(&'a self, offset: u32, before: Option<&'a Self>) -> Option<&'a [u8]> {
        let offset = usize::try_from(offset).ok()?;
        let Some(own) = offset.checked_sub(self.strings_before) else {
            return before?.name(u32::try_from(offset).ok()?, None);
        };
        self.bytes.get(self.strings.clone())?.get(own..)?.split(|byte| *byte == 0).next()
    }

    /// Returns the types of a kind with this name.
    fn named<'a>(&'a self, kind: u32, wanted: &'a [u8], before: &'a Self) -> impl Iterator<Item = usize> + 'a {
        let types = self.types.iter().zip(self.first..);
        types.filter_map(move |(at, number)| {
            let read = Type::read(&self.bytes, usize::try_from(*at).ok()?)?;
            (read.kind == kind && self.name(read.name, Some(before)) == Some(wanted)).then_some(number)
        })
    }
}

/// Returns the ranges of strings and types.
fn sections(bytes: &[u8]) -> Option<(Range<usize>, Range<usize>)> {
    if bytes.first_chunk().copied().map(u16::from_ne_bytes) != Some(MAGIC) || bytes.get(2) != Some(&1) {
        return None;
    }
    let header = place(bytes, 4).filter(|length| *length >= HEADER)?;
    let section = |at: usize| {
        let start = header.checked_add(place(bytes, at)?)?;
        let end = start.checked_add(place(bytes, at + 4)?)?;
        bytes.get(start..end).map(|_| start..end)
    };
    Some((section(16)?, section(8)?))
}

impl Btf {
    /// Parses the types of the kernel itself.
    ///
    /// # Errors
    /// [`BtfError`].
    pub fn parse(bytes: Vec<u8>) -> Result<Self, BtfError> {
        Ok(Self { kernel: Part::parse(bytes, None)?, module: None })
    }

    /// Parses the types of a module, which replace those of the previous module.
    ///
    /// # Errors
    /// [`BtfError`].
    pub fn add_module(&mut self, bytes: Vec<u8>) -> Result<(), BtfError> {
        self.module = Some(Part::parse(bytes, Some(&self.kernel))?);
        Ok(())
    }

    /// Returns the byte offset of a member in a structure. The member may be within unnamed
    /// members, or within named ones if its name is a dotted path. `None` if the member is missing
    /// or does not begin at a byte.
    #[must_use]
    pub fn offset(&self, structure: &str, member: &str) -> Option<u32> {
        let parts = [Some(&self.kernel), self.module.as_ref()].into_iter().flatten();
        let mut numbers = parts.flat_map(|part| part.named(STRUCT, structure.as_bytes(), &self.kernel));
        let bits = numbers.find_map(|number| {
            let mut budget = SearchBudget { steps: PATIENCE, depth: DEPTH };
            let mut found = Some((number, 0_u32));
            for name in member.split('.') {
                let (number, before) = found?;
                let (number, bits) = self.member(number, name.as_bytes(), &mut budget)?;
                found = Some((number, before.checked_add(bits)?));
            }
            found.map(|(_, bits)| bits)
        })?;
        (bits % 8 == 0).then_some(bits / 8)
    }

    /// Returns the number by which programs call a kernel function.
    #[must_use]
    pub fn function(&self, name: &str) -> Option<u32> {
        let mut numbers = self.kernel.named(FUNCTION, name.as_bytes(), &self.kernel);
        numbers.next().and_then(|number| u32::try_from(number).ok())
    }

    /// Returns the number by which programs refer to a kernel structure.
    #[must_use]
    pub fn structure(&self, name: &str) -> Option<u32> {
        let mut numbers = self.kernel.named(STRUCT, name.as_bytes(), &self.kernel);
        numbers.next().and_then(|number| u32::try_from(number).ok())
    }

    fn part(&self, number: usize) -> Option<(&Part, usize)> {
        let parts = [self.module.as_ref(), Some(&self.kernel)].into_iter().flatten();
        let mut found = parts.filter_map(|part| Some((part, *part.types.get(number.checked_sub(part.first)?)?)));
        found.next().and_then(|(part, at)| Some((part, usize::try_from(at).ok()?)))
    }

    /// Returns the type of a member of a structure or union, and its offset in bits.
    fn member(&self, number: usize, wanted: &[u8], budget: &mut SearchBudget) -> Option<(usize, u32)> {
        budget.depth = budget.depth.checked_sub(1)?;
        let found = self.member_here(number, wanted, budget);
        budget.depth += 1;
        found
    }

    fn member_here(&self, number: usize, wanted: &[u8], budget: &mut SearchBudget) -> Option<(usize, u32)> {
        let (part, at) = self.part(number)?;
        let read = Type::read(&part.bytes, at)?;
        if read.is_alias() {
            return self.member(usize::try_from(read.size).ok()?, wanted, budget);
        }
        if read.kind != STRUCT && read.kind != UNION {
            return None;
        }
        for member in 0..read.members {
            budget.step()?;
            let at = at + 12 + 12 * member;
            let name = part.name(word(&part.bytes, at)?, Some(&self.kernel))?;
            let offset = word(&part.bytes, at + 8)?;
            let (offset, is_bit_field) =
                if read.has_bit_fields { (offset & 0x00ff_ffff, offset >> 24 != 0) } else { (offset, false) };
            if name == wanted {
                return Some((place(&part.bytes, at + 4)?, offset)).filter(|_| !is_bit_field);
            }
            if name.is_empty()
                && let Some((number, within)) = self.member(place(&part.bytes, at + 4)?, wanted, budget)
            {
                return Some((number, offset.checked_add(within)?));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests;
