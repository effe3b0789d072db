//! A fake kernel with the semantics of real `ipset`, for tests.
//!
//! It takes the commands of [`Plan`]s and behaves like ipset 7 on a current kernel, error texts
//! included. `restore` stops at the first bad line and keeps the effect of the lines before it;
//! sets in use cannot be destroyed; only sets of one type and family can be swapped; adding a
//! member twice fails; host names are refused. Faults can be injected.
//!
//! ```
//! use std::net::IpAddr;
//! use std::time::Duration;
//! use tortie_ipsets::fake::FakeIpset;
//! use tortie_ipsets::{Config, Family, IpSets, Member, IpSetId, SetSpec, SetType};
//!
//! let mut sets = IpSets::new(Family::V4, Config::default());
//! let id = IpSetId::new("this-host");
//! let host = Member::from(IpAddr::from([10, 0, 0, 1]));
//! sets.add_or_replace(&id, SetSpec::new(SetType::HashIp), [host])?;
//!
//! let mut kernel = FakeIpset::new();
//! kernel.edit("create docker-set hash:ip family inet maxelem 65536")?;
//! let mut now = Duration::ZERO;
//! let report = kernel.apply(&mut sets, &mut now);
//! assert!(report.is_success());
//! assert_eq!(kernel.names(), ["cali40this-host", "docker-set"]);
//! assert_eq!(kernel.members("cali40this-host"), ["10.0.0.1"]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use tortie_net::{Family, IpSetName, with_causes};
use tortie_netfilter::{Member, SetType};

use crate::fake::refused::Refused;
use crate::names::family_word;
use crate::plan::{CommandFailure, Plan, Report};
use crate::sets::IpSets;

mod refused;
#[cfg(test)]
mod tests;

/// A fault that occurs once, at the first command to which it applies.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// `ipset list` of all sets fails before it prints anything.
    ListAll,
    /// `ipset list` of all sets stops after that many lines and reports the failure.
    CutListAll(usize),
    /// `ipset list -name` fails.
    ListNames,
    /// `ipset list` of any set fails before it prints anything.
    List,
    /// `ipset list` of any set stops after that many lines and reports the failure.
    CutList(usize),
    /// `ipset restore` has no effect and prints nothing useful.
    Restore,
    /// `ipset restore` dies after that many lines took effect, without naming the line.
    CutRestore(usize),
    /// `ipset restore` writes everything and then fails.
    LateRestore,
    /// `ipset restore` refuses to destroy a set, for an unknown reason.
    Destroy,
}

/// Number of runs of each command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// `ipset list`.
    pub list_all: usize,
    /// `ipset list -name`.
    pub list_names: usize,
    /// `ipset list NAME`.
    pub lists: usize,
    /// `ipset restore` of anything but deletions of sets.
    pub restores: usize,
    /// Lines of these texts that took effect, `COMMIT` not counted.
    pub lines: usize,
    /// `ipset restore` of nothing but deletions of sets.
    pub deletions: usize,
    /// Sets that these destroyed.
    pub destroyed: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct FakeSet {
    set_type: String,
    family: Option<Family>,
    max_elements: usize,
    range: Option<(u16, u16)>,
    /// Further words of the header.
    options: String,
    /// Members by canonical text; the value is the text that follows, such as ` nomatch`.
    members: BTreeMap<String, String>,
}

/// The fake kernel, with the ipset program in front of it.
#[derive(Clone, Debug, Default)]
pub struct FakeIpset {
    sets: BTreeMap<String, FakeSet>,
    in_use: BTreeSet<String>,
    poisoned: BTreeSet<String>,
    unreadable: BTreeSet<String>,
    faults: Vec<Fault>,
    counts: Counts,
    restored: Vec<String>,
}

impl FakeIpset {
    /// A kernel without sets.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Injects `fault` into the next command to which it applies.
    pub fn inject(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    /// Removes the faults that have not occurred yet.
    pub fn clear_faults(&mut self) {
        self.faults.clear();
    }

    /// Sets whether every restore line for `name`, or swap with it, fails.
    pub fn poison(&mut self, name: &str, poisoned: bool) {
        toggle(&mut self.poisoned, name, poisoned);
    }

    /// Sets whether `ipset list NAME` fails. Destroying the set or swapping it away ends the
    /// failure.
    pub fn make_unreadable(&mut self, name: &str, unreadable: bool) {
        toggle(&mut self.unreadable, name, unreadable);
    }

    /// Sets whether a rule refers to `name`, so that it cannot be destroyed.
    pub fn set_in_use(&mut self, name: &str, in_use: bool) {
        toggle(&mut self.in_use, name, in_use);
    }

    /// The names of all sets, in order.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        self.sets.keys().map(String::as_str).collect()
    }

    /// The members of a set, in order of their text; none if there is no such set.
    #[must_use]
    pub fn members(&self, name: &str) -> Vec<&str> {
        let set = self.sets.get(name);
        set.map_or_else(Vec::new, |set| set.members.keys().map(String::as_str).collect())
    }

    /// Returns the number of runs of each command.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// Sets the counts to 0 and clears the recorded texts.
    pub fn reset_counts(&mut self) {
        self.counts = Counts::default();
        self.restored.clear();
    }

    /// Returns the texts passed to `ipset restore` since the counts were last reset, except
    /// deletions of sets.
    #[must_use]
    pub fn restored(&self) -> &[String] {
        &self.restored
    }

    /// Executes restore lines of another program, uncounted and without faults. They may use
    /// `destroy` and `rename` as well.
    ///
    /// # Errors
    /// The error that ipset reports; the lines before it took effect.
    pub fn edit(&mut self, lines: &str) -> Result<(), CommandFailure> {
        let poisoned = std::mem::take(&mut self.poisoned);
        let lines_before = self.counts.lines;
        let result = self.run_lines(lines, usize::MAX);
        self.counts.lines = lines_before;
        self.poisoned = poisoned;
        result
    }

    /// Executes a command and returns its output.
    ///
    /// # Errors
    /// The error that ipset reports.
    pub fn run(&mut self, plan: &Plan) -> (String, Result<(), CommandFailure>) {
        match plan {
            Plan::ListAll => self.list_all(),
            Plan::ListNames => self.list_names(),
            Plan::List(name) => self.list(name.as_str()),
            Plan::Restore(text) => (String::new(), self.restore(text)),
            Plan::Sleep(_) | Plan::Done(_) => (String::new(), Ok(())),
        }
    }

    /// Executes plans until [`Plan::Done`]; a sleep advances `now`.
    pub fn apply(&mut self, sets: &mut IpSets, now: &mut Duration) -> Report {
        loop {
            match sets.plan(*now) {
                Plan::Done(report) => return report,
                plan => self.step(sets, &plan, now),
            }
        }
    }

    /// Executes one round of deletions.
    pub fn apply_deletions(&mut self, sets: &mut IpSets, now: &mut Duration) -> Report {
        loop {
            match sets.plan_deletions(*now) {
                Plan::Done(report) => return report,
                plan => self.step(sets, &plan, now),
            }
        }
    }

    /// Executes one plan and reports its result.
    pub fn step(&mut self, sets: &mut IpSets, plan: &Plan, now: &mut Duration) {
        if let Plan::Sleep(time) = plan {
            *now += *time;
            return;
        }
        let (output, result) = self.run(plan);
        // In pieces with arbitrary ends, as from a pipe.
        for chunk in output.as_bytes().chunks(61) {
            sets.on_output(chunk);
        }
        sets.on_exit(*now, result);
    }

    fn take_fault(&mut self, wanted: impl Fn(&Fault) -> bool) -> Option<Fault> {
        let index = self.faults.iter().position(wanted)?;
        Some(self.faults.remove(index))
    }

    fn list_all(&mut self) -> (String, Result<(), CommandFailure>) {
        self.counts.list_all += 1;
        let fault = self.take_fault(|f| matches!(f, Fault::ListAll | Fault::CutListAll(_)));
        if fault == Some(Fault::ListAll) {
            return (String::new(), Err(failure("Kernel error received")));
        }
        let readable: Vec<String> = self
            .sets
            .iter()
            .take_while(|(name, _)| !self.unreadable.contains(*name))
            .map(|(name, set)| set.listing(name))
            .collect();
        let output = readable.join("\n");
        if let Some(Fault::CutListAll(lines)) = fault {
            let cut = output.split_inclusive('\n').take(lines).collect();
            return (cut, Err(failure("Broken pipe")));
        }
        if readable.len() < self.sets.len() {
            let error =
                "Kernel and userspace incompatible: settype hash:new with revision 9 not supported by userspace.";
            return (output, Err(failure(error)));
        }
        (output, Ok(()))
    }

    fn list_names(&mut self) -> (String, Result<(), CommandFailure>) {
        self.counts.list_names += 1;
        if self.take_fault(|f| *f == Fault::ListNames).is_some() {
            return (String::new(), Err(failure("Kernel error received")));
        }
        let mut output = String::new();
        for name in self.sets.keys() {
            let _ = writeln!(output, "{name}");
        }
        (output, Ok(()))
    }

    fn list(&mut self, name: &str) -> (String, Result<(), CommandFailure>) {
        self.counts.lists += 1;
        let fault = self.take_fault(|f| matches!(f, Fault::List | Fault::CutList(_)));
        let Some(set) = self.sets.get(name) else {
            return (String::new(), Err(failure(&Refused::NoSuchSet.to_string())));
        };
        if fault == Some(Fault::List) || self.unreadable.contains(name) {
            let error = failure("Kernel support protocol versions differ");
            return (String::new(), Err(error));
        }
        let output = set.listing(name);
        if let Some(Fault::CutList(lines)) = fault {
            let cut = output.split_inclusive('\n').take(lines).collect();
            return (cut, Err(failure("Broken pipe")));
        }
        (output, Ok(()))
    }

    fn restore(&mut self, text: &str) -> Result<(), CommandFailure> {
        let only_destroys = text.lines().all(|line| line.starts_with("destroy ") || line == "COMMIT");
        if !only_destroys {
            self.counts.restores += 1;
            self.restored.push(text.to_owned());
            return self.restore_with_faults(text);
        }
        self.counts.deletions += 1;
        if self.take_fault(|f| *f == Fault::Destroy).is_some() {
            return Err(failure("Error in line 1: Kernel error received: Device or resource busy"));
        }
        let (lines, sets) = (self.counts.lines, self.sets.len());
        let result = self.restore_with_faults(text);
        self.counts.lines = lines;
        self.counts.destroyed += sets - self.sets.len();
        result
    }

    fn restore_with_faults(&mut self, text: &str) -> Result<(), CommandFailure> {
        let is_restore = |fault: &Fault| matches!(fault, Fault::Restore | Fault::CutRestore(_) | Fault::LateRestore);
        match self.take_fault(is_restore) {
            Some(Fault::CutRestore(lines)) => {
                self.run_lines(text, lines)?;
                Err(failure("Broken pipe"))
            }
            Some(Fault::LateRestore) => {
                self.run_lines(text, usize::MAX)?;
                Err(failure("Killed"))
            }
            Some(_) => Err(failure("Cannot open session to kernel")),
            None => self.run_lines(text, usize::MAX),
        }
    }

    fn run_lines(&mut self, text: &str, limit: usize) -> Result<(), CommandFailure> {
        for (index, line) in text.lines().take(limit).enumerate() {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            if words.is_empty() || words == ["COMMIT"] {
                continue;
            }
            if let Err(refused) = self.run_line(&words) {
                return Err(failure(&format!("Error in line {}: {}", index + 1, with_causes(&refused))));
            }
            self.counts.lines += 1;
        }
        Ok(())
    }

    fn run_line(&mut self, words: &[&str]) -> Result<(), Refused> {
        if words.iter().any(|word| self.poisoned.contains(*word)) {
            return Err(Refused::NotPermitted);
        }
        match words {
            ["create", name, set_type, options @ ..] => self.create(name, set_type, options),
            ["add", name, member, options @ ..] => self.add(name, member, options),
            ["del", name, member, options @ ..] => self.delete(name, member, options),
            ["swap", a, b] => self.swap(a, b),
            ["rename", old, new] => self.rename(old, new),
            ["destroy", name] => self.destroy(name),
            ["flush", name] => self.flush(name),
            [word, ..] => Err(Refused::UnknownArgument((*word).to_owned())),
            [] => Ok(()),
        }
    }

    fn create(&mut self, name: &str, set_type: &str, options: &[&str]) -> Result<(), Refused> {
        if name.len() > IpSetName::MAX_LEN {
            return Err(Refused::NameTooLong(name.to_owned()));
        }
        let set = FakeSet::parse(set_type, options)?;
        if self.sets.contains_key(name) {
            return Err(Refused::SetExists);
        }
        self.sets.insert(name.to_owned(), set);
        Ok(())
    }

    fn set(&mut self, name: &str) -> Result<&mut FakeSet, Refused> {
        self.sets.get_mut(name).ok_or(Refused::NoSuchSet)
    }

    fn add(&mut self, name: &str, member: &str, options: &[&str]) -> Result<(), Refused> {
        let set = self.set(name)?;
        let key = set.canonical(member)?;
        if set.members.contains_key(&key) {
            if options.iter().any(|o| o.ends_with("-exist")) {
                return Ok(());
            }
            return Err(Refused::MemberExists);
        }
        if set.members.len() >= set.max_elements {
            return Err(Refused::Full);
        }
        let suffix: String =
            options.iter().filter(|option| !option.ends_with("-exist")).map(|option| format!(" {option}")).collect();
        set.members.insert(key, suffix);
        Ok(())
    }

    fn delete(&mut self, name: &str, member: &str, options: &[&str]) -> Result<(), Refused> {
        let set = self.set(name)?;
        let key = set.canonical(member)?;
        if set.members.remove(&key).is_none() && !options.iter().any(|o| o.ends_with("-exist")) {
            return Err(Refused::NoSuchMember);
        }
        Ok(())
    }

    /// References stay with the name, not with the content.
    fn swap(&mut self, a: &str, b: &str) -> Result<(), Refused> {
        let first = self.sets.get(a).ok_or(Refused::NoSuchSet)?;
        let Some(second) = self.sets.get(b) else {
            return Err(Refused::NoSecondSet);
        };
        if first.set_type != second.set_type || first.family != second.family {
            return Err(Refused::TypesDiffer);
        }
        let (first, second) = (first.clone(), second.clone());
        self.sets.insert(a.to_owned(), second);
        self.sets.insert(b.to_owned(), first);
        let unreadable = [a, b].map(|name| self.unreadable.contains(name));
        toggle(&mut self.unreadable, a, unreadable[1]);
        toggle(&mut self.unreadable, b, unreadable[0]);
        Ok(())
    }

    fn rename(&mut self, old: &str, new: &str) -> Result<(), Refused> {
        if self.in_use.contains(old) {
            return Err(Refused::RenamedInUse);
        }
        if self.sets.contains_key(new) {
            return Err(Refused::NewNameExists);
        }
        let set = self.sets.remove(old).ok_or(Refused::NoSuchSet)?;
        self.sets.insert(new.to_owned(), set);
        Ok(())
    }

    fn flush(&mut self, name: &str) -> Result<(), Refused> {
        self.set(name)?.members.clear();
        Ok(())
    }

    fn destroy(&mut self, name: &str) -> Result<(), Refused> {
        if !self.sets.contains_key(name) {
            return Err(Refused::NoSuchSet);
        }
        if self.in_use.contains(name) {
            return Err(Refused::DestroyedInUse);
        }
        self.sets.remove(name);
        self.unreadable.remove(name);
        Ok(())
    }
}

impl FakeSet {
    fn parse(set_type: &str, options: &[&str]) -> Result<Self, Refused> {
        let bitmap = set_type == SetType::BitmapPort.as_str();
        let mut set = Self {
            set_type: set_type.to_owned(),
            family: (!bitmap).then_some(Family::V4),
            max_elements: 65536,
            range: None,
            options: String::new(),
            members: BTreeMap::new(),
        };
        let mut words = options.iter();
        while let Some(word) = words.next() {
            match *word {
                "family" => {
                    set.family = match words.next() {
                        Some(&"inet") => Some(Family::V4),
                        Some(&"inet6") => Some(Family::V6),
                        _ => return Err(Refused::UnknownFamily),
                    };
                }
                "maxelem" => {
                    let max = words.next().and_then(|word| word.parse().ok());
                    set.max_elements = max.ok_or(Refused::BadMaxElements)?;
                }
                "range" => {
                    let range = words.next().and_then(|word| word.split_once('-'));
                    let range = range.and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
                    set.range = Some(range.ok_or(Refused::BadRange)?);
                }
                other => {
                    set.options.push(' ');
                    set.options.push_str(other);
                }
            }
        }
        if bitmap && set.range.is_none() {
            return Err(Refused::NoRange);
        }
        Ok(set)
    }

    /// Returns the text with which the kernel lists the member.
    fn canonical(&self, text: &str) -> Result<String, Refused> {
        let Some(set_type) = SetType::from_word(&self.set_type) else {
            return Ok(text.to_owned());
        };
        let family = self.family.unwrap_or(Family::V4);
        let member = Member::parse(set_type, family, text)?.ok_or_else(|| Refused::WrongFamily(text.to_owned()))?;
        match member {
            Member::Net(net) if net.cidr().prefix_len() == 0 => Err(Refused::ZeroPrefix),
            Member::Port(port) if self.range.is_some_and(|(a, b)| port < a || port > b) => Err(Refused::OutOfRange),
            _ => Ok(member.to_string()),
        }
    }

    fn listing(&self, name: &str) -> String {
        let mut out = String::new();
        let set_type = &self.set_type;
        let options = &self.options;
        // Writing to a String cannot fail.
        let _ = write!(out, "Name: {name}\nType: {set_type}\nRevision: 7\nHeader: ");
        let _ = match (self.range, self.family) {
            (Some((first, last)), _) => writeln!(out, "range {first}-{last}{options}"),
            (None, family) => writeln!(
                out,
                "family {} hashsize 1024 maxelem {}{options} bucketsize 12 initval 0x46a1e978",
                family_word(family.unwrap_or(Family::V4)),
                self.max_elements
            ),
        };
        let _ =
            writeln!(out, "Size in memory: 552\nReferences: 0\nNumber of entries: {}\nMembers:", self.members.len());
        for (member, suffix) in &self.members {
            let _ = writeln!(out, "{member}{suffix}");
        }
        out
    }
}

fn toggle(set: &mut BTreeSet<String>, name: &str, on: bool) {
    if on {
        set.insert(name.to_owned());
    } else {
        set.remove(name);
    }
}

fn failure(text: &str) -> CommandFailure {
    CommandFailure::new(format!("ipset v7.17: {text}\n"))
}
