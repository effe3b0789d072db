//! Parser of the output of `ipset list` for all sets: the listings of single sets, separated by
//! blank lines.
//!
//! Sets of other programs are skipped without parsing their members. Errors in them do not matter
//! as long as our sets are printed.

use tortie_net::{Family, IpSetName};
use tortie_netfilter::{Member, SetType};

use crate::list::{ListError, ListReader, Listing, owned_name};

#[cfg(test)]
mod tests;

/// Event on a line of the listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A set of ours exists; its header and members follow if it is desired.
    Begin(IpSetName),
    /// A member of the current set.
    Member(Member),
    /// The current set was listed to its end.
    End {
        /// The set.
        name: IpSetName,
        /// Its type, if that is known.
        set_type: Option<SetType>,
        /// Its header, if the listing is reliable.
        listing: Result<Listing, ListError>,
    },
}

/// Reads a listing of all sets, a line at a time.
#[derive(Clone, Debug)]
pub(crate) struct AllReader {
    family: Family,
    section: Section,
}

#[derive(Clone, Debug)]
enum Section {
    /// Before the name of a set.
    Between,
    /// In a set that is not ours or not desired.
    Skipped,
    Set(Box<ListReader>),
}

impl AllReader {
    pub(crate) const fn new(family: Family) -> Self {
        Self { family, section: Section::Between }
    }

    /// Returns the set that is being read, and its type if that is known.
    pub(crate) fn current(&self) -> Option<(&IpSetName, Option<SetType>)> {
        match &self.section {
            Section::Set(reader) => Some((reader.name(), reader.set_type())),
            Section::Between | Section::Skipped => None,
        }
    }

    /// Takes the next line, without its line end. `is_wanted` reports whether the members of a set
    /// are needed.
    pub(crate) fn line(&mut self, line: &[u8], is_wanted: impl FnOnce(&IpSetName) -> bool) -> Option<Event> {
        match &mut self.section {
            Section::Between => self.begin(line, is_wanted),
            Section::Skipped => {
                if line.trim_ascii().is_empty() {
                    self.section = Section::Between;
                }
                None
            }
            Section::Set(reader) => {
                let member = reader.line(line);
                if reader.has_ended() { self.end(ListReader::finish_counted) } else { member.map(Event::Member) }
            }
        }
    }

    fn begin(&mut self, line: &[u8], is_wanted: impl FnOnce(&IpSetName) -> bool) -> Option<Event> {
        let value = line.strip_prefix(b"Name:")?;
        self.section = Section::Skipped;
        let name = owned_name(self.family, value)?;
        if is_wanted(&name) {
            let mut reader = ListReader::new(name, self.family);
            // It is the line with the name.
            let _ = reader.line(line);
            self.section = Section::Set(Box::new(reader));
        }
        Some(Event::Begin(name))
    }

    fn end(&mut self, finish: impl FnOnce(ListReader) -> Result<Listing, ListError>) -> Option<Event> {
        match std::mem::replace(&mut self.section, Section::Between) {
            Section::Set(reader) => {
                let (name, set_type) = (*reader.name(), reader.set_type());
                Some(Event::End { name, set_type, listing: finish(*reader) })
            }
            Section::Between | Section::Skipped => None,
        }
    }

    /// Ends the listing of a successful command; `is_whole` states whether the last line had a line
    /// end.
    pub(crate) fn finish(&mut self, is_whole: bool) -> Option<Event> {
        self.end(|reader| if is_whole { reader.finish_counted() } else { Err(ListError::Cut(*reader.name())) })
    }
}
