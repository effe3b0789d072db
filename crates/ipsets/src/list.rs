//! Line-wise parser of the output of `ipset list`.

use thiserror::Error;
use tortie_net::{Family, IpSetName};
use tortie_netfilter::{Member, SetType};

use crate::names::is_owned;
use crate::spec::SetSpec;

#[cfg(test)]
mod tests;

/// Reason why a listing is unreliable.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ListError {
    /// The listing is of another set.
    #[error("listing: expected set {expected}, got {got:?}")]
    WrongSet {
        /// The requested set.
        expected: IpSetName,
        /// The name in the listing.
        got: String,
    },
    /// The listing ended, or the members began, before a mandatory header word.
    #[error("listing of {set}: no `{word}`")]
    Missing {
        /// The requested set.
        set: IpSetName,
        /// The word.
        word: &'static str,
    },
    /// The header announces another number of members than were printed.
    #[error("listing of {set}: {found} members, where the header says {announced}")]
    WrongCount {
        /// The set.
        set: IpSetName,
        /// Number of members in the header.
        announced: usize,
        /// Number of members in the listing.
        found: usize,
    },
    /// The output ends within a line.
    #[error("listing of {0}: ends within a line")]
    Cut(IpSetName),
    /// A line is longer than any that ipset prints.
    #[error("listing: a line of more than {MAX_LINE} bytes")]
    LineTooLong,
}

/// Longer than any line that ipset prints, comments included.
const MAX_LINE: usize = 16 * 1024;

/// Cuts a stream of bytes into lines.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lines {
    /// The beginning of an incomplete line.
    partial: Vec<u8>,
    too_long: bool,
}

impl Lines {
    /// Calls `line` for each line that `chunk` completes.
    pub(crate) fn push(&mut self, chunk: &[u8], mut line: impl FnMut(&[u8])) {
        let mut rest = chunk;
        while let Some(end) = rest.iter().position(|&b| b == b'\n') {
            let head = rest.split_at(end).0;
            rest = rest.split_at(end + 1).1;
            if self.partial.is_empty() {
                line(head);
            } else {
                self.partial.extend_from_slice(head);
                line(&self.partial);
                self.partial.clear();
            }
        }
        if self.partial.len() + rest.len() > MAX_LINE {
            self.too_long = true;
            self.partial.clear();
        } else {
            self.partial.extend_from_slice(rest);
        }
    }

    /// Reports whether the input so far ends with a line end.
    pub(crate) fn is_whole(&self) -> bool {
        self.partial.is_empty() && !self.too_long
    }

    /// Calls `line` for a last line without a line end.
    pub(crate) fn finish(self, mut line: impl FnMut(&[u8])) -> Result<(), ListError> {
        if self.too_long {
            return Err(ListError::LineTooLong);
        }
        if !self.partial.is_empty() {
            line(&self.partial);
        }
        Ok(())
    }
}

/// Header of the listing of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listing {
    set_type: Option<SetType>,
    family: Option<Family>,
    spec: Option<SetSpec>,
    exact: bool,
}

impl Listing {
    /// Returns the header of a set just written with that specification.
    pub(crate) fn written(spec: SetSpec, family: Family) -> Self {
        let set_type = spec.set_type();
        Self {
            set_type: Some(set_type),
            family: (set_type != SetType::BitmapPort).then_some(family),
            spec: Some(spec),
            exact: true,
        }
    }

    /// The type, if it is one of those supported.
    #[must_use]
    pub const fn set_type(&self) -> Option<SetType> {
        self.set_type
    }

    /// Type and size, if both are known.
    #[must_use]
    pub const fn spec(&self) -> Option<SetSpec> {
        self.spec
    }

    /// Reports whether the set has that specification and family, no other options (time-outs,
    /// counters, comments, …), and only members in the form that this crate writes.
    #[must_use]
    pub fn is_exactly(&self, spec: &SetSpec, family: Family) -> bool {
        self.exact && self.spec.as_ref() == Some(spec) && self.is_swappable(spec, family)
    }

    /// Reports whether the kernel swaps such a set with one of that specification and family.
    #[must_use]
    pub fn is_swappable(&self, spec: &SetSpec, family: Family) -> bool {
        self.set_type == Some(spec.set_type())
            && (self.set_type == Some(SetType::BitmapPort) || self.family == Some(family))
    }
}

/// Line-wise parser of the output of `ipset list NAME`.
///
/// Unknown lines and header words are skipped, because newer versions of ipset print more of them.
#[derive(Clone, Debug)]
pub struct ListReader {
    name: IpSetName,
    family: Family,
    part: Part,
    wrong_name: Option<String>,
    has_name: bool,
    has_type: bool,
    /// The type, if it is one of those supported.
    set_type: Option<SetType>,
    header: Option<Header>,
    /// `Number of entries`, which older versions of ipset do not print.
    announced: Option<usize>,
    members: usize,
    exact: bool,
}

/// The part of a listing to which the next line belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Head,
    Members,
    /// Behind the blank line after the last member.
    End,
}

#[derive(Clone, Copy, Debug, Default)]
struct Header {
    family: Option<Family>,
    max_elements: Option<u32>,
    range: Option<(u16, u16)>,
    has_options: bool,
}

impl ListReader {
    /// A reader for the listing of set `name` of a family.
    #[must_use]
    pub fn new(name: IpSetName, family: Family) -> Self {
        Self {
            name,
            family,
            part: Part::Head,
            wrong_name: None,
            has_name: false,
            has_type: false,
            set_type: None,
            header: None,
            announced: None,
            members: 0,
            exact: true,
        }
    }

    /// The name of the set.
    pub(crate) const fn name(&self) -> &IpSetName {
        &self.name
    }

    /// Reports whether the blank line after the last member was read.
    pub(crate) fn has_ended(&self) -> bool {
        self.part == Part::End
    }

    /// The type, once its line was read.
    #[must_use]
    pub const fn set_type(&self) -> Option<SetType> {
        self.set_type
    }

    /// Takes the next line, without its line end. Returns the member if the line holds one.
    ///
    /// A member in a form that this crate does not write (`nomatch`, a time-out, another protocol)
    /// is not returned, but makes the set inexact; see [`Listing::is_exactly`].
    pub fn line(&mut self, line: &[u8]) -> Option<Member> {
        let line = line.trim_ascii();
        match self.part {
            Part::Head => self.head(line)?,
            Part::Members if line.is_empty() => self.part = Part::End,
            Part::Members => {
                self.members += 1;
                return self.member(line);
            }
            Part::End => {}
        }
        None
    }

    /// Takes a line before the first member; `None` if it is no `key: value` pair.
    fn head(&mut self, line: &[u8]) -> Option<()> {
        let (key, value) = str::from_utf8(line).ok()?.split_once(':')?;
        let value = value.trim();
        match key {
            "Name" => {
                self.has_name = true;
                if value != self.name.as_str() {
                    self.wrong_name = Some(value.to_owned());
                }
            }
            "Type" => {
                self.has_type = true;
                self.set_type = SetType::from_word(value);
            }
            "Header" => self.header = Some(Header::parse(value)),
            "Number of entries" => self.announced = value.parse().ok(),
            "Members" => self.part = Part::Members,
            _ => {}
        }
        Some(())
    }

    fn member(&mut self, line: &[u8]) -> Option<Member> {
        let set_type = self.set_type?;
        let member =
            str::from_utf8(line).ok().and_then(|text| Member::parse(set_type, self.family, text).ok().flatten());
        if member.is_none() {
            self.exact = false;
        }
        member
    }

    /// Like [`finish`](Self::finish), for a listing that may be truncated without an error.
    ///
    /// # Errors
    /// Those of [`finish`](Self::finish), and a number of members that differs from the header.
    pub(crate) fn finish_counted(self) -> Result<Listing, ListError> {
        let found = self.members;
        let wrong = self.announced.filter(|announced| *announced != found);
        let set = self.name;
        let listing = self.finish()?;
        match wrong {
            Some(announced) => Err(ListError::WrongCount { set, announced, found }),
            None => Ok(listing),
        }
    }

    /// Ends the listing and returns the header.
    ///
    /// # Errors
    /// If the listing is of another set or was truncated before its members.
    pub fn finish(self) -> Result<Listing, ListError> {
        if let Some(got) = self.wrong_name {
            let expected = self.name;
            return Err(ListError::WrongSet { expected, got });
        }
        let set = self.name;
        let missing = |word| ListError::Missing { set, word };
        if !self.has_name {
            return Err(missing("Name:"));
        }
        if !self.has_type {
            return Err(missing("Type:"));
        }
        let header = self.header.ok_or(missing("Header:"))?;
        if self.part == Part::Head {
            return Err(missing("Members:"));
        }
        let spec = self.set_type.and_then(|set_type| {
            if set_type == SetType::BitmapPort {
                let (first, last) = header.range?;
                Some(SetSpec::port_range(first, last))
            } else {
                Some(SetSpec::new(set_type).with_max_elements(header.max_elements?))
            }
        });
        Ok(Listing { set_type: self.set_type, family: header.family, spec, exact: self.exact && !header.has_options })
    }
}

impl Header {
    fn parse(text: &str) -> Self {
        let mut header = Self::default();
        let mut words = text.split_ascii_whitespace();
        while let Some(word) = words.next() {
            match word {
                "family" => {
                    header.family = match words.next() {
                        Some("inet") => Some(Family::V4),
                        Some("inet6") => Some(Family::V6),
                        _ => None,
                    };
                }
                "maxelem" => header.max_elements = words.next().and_then(|w| w.parse().ok()),
                "range" => {
                    header.range = words
                        .next()
                        .and_then(|w| w.split_once('-'))
                        .and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
                }
                "timeout" | "counters" | "comment" | "skbinfo" | "netmask" | "bitmask" | "forceadd" => {
                    header.has_options = true;
                }
                _ => {}
            }
        }
        header
    }
}

/// Reads the output of `ipset list -name` and returns the names of our sets of that family.
pub fn owned_names(family: Family, output: &[u8]) -> impl Iterator<Item = IpSetName> {
    output.split(|&b| b == b'\n').filter_map(move |line| owned_name(family, line))
}

/// Returns the name on a line of `ipset list -name`, if it is ours in that family.
pub(crate) fn owned_name(family: Family, line: &[u8]) -> Option<IpSetName> {
    let text = str::from_utf8(line.trim_ascii()).ok()?;
    let name = IpSetName::new(text).ok()?;
    is_owned(&name, family).then_some(name)
}
