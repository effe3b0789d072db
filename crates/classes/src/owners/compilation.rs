//! Compilation of the rules of a policy or profile in one direction.
//!
//! An edit of a few rules compiles only these. All others keep their clauses, which are shared
//! between the lists of rules before and after the edit.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;
use tortie_evaluate::Missing;
use tortie_model::desired::{RuleView, Rules};

use crate::clause::{Clause, CompiledRule, Compiler};
use crate::program::CompiledRules;
use crate::sets::NetList;

/// The lists of networks that a rule uses.
type RuleLists = SmallVec<[NetList; 1]>;

/// The rules of one direction, as last compiled.
#[derive(Clone, Debug)]
pub(super) struct Compilation {
    /// The rules of which these are the clauses; `None` if all rules must be compiled anew.
    source: Option<Rules>,
    compiled: CompiledRules,
    /// One for each rule, up to the first that failed.
    lists: Vec<RuleLists>,
    /// Clauses that the rules might become besides.
    room: usize,
    /// Maximum of [`Compiler::widest`].
    widest: usize,
}

/// Difference between two compilations.
pub(super) struct Replaced {
    before: CompiledRules,
    /// Rules of `before` that are replaced.
    removed: Range<usize>,
    /// The new rules in their place.
    added: Range<usize>,
    /// Lists of the removed rules, to be released.
    pub(super) lists: Vec<NetList>,
    /// Whether the rules or their numbers differ.
    pub(super) is_other: bool,
}

impl Replaced {
    pub(super) fn removed_clauses(&self) -> impl Iterator<Item = &Clause> {
        clauses_of(&self.before, &self.removed)
    }
}

impl Compilation {
    /// Rules that cannot be compiled.
    pub(super) fn failed(why: Missing) -> Self {
        Self { source: None, compiled: Err(why), lists: Vec::new(), room: 0, widest: 0 }
    }

    pub(super) fn rules(&self) -> &CompiledRules {
        &self.compiled
    }

    /// The lists of networks of all rules, one for each use.
    pub(super) fn lists(&self) -> impl Iterator<Item = &NetList> {
        self.lists.iter().flatten()
    }

    /// Makes the next compilation one of all rules: other objects than the rules have changed.
    pub(super) fn forget_source(&mut self) {
        self.source = None;
    }

    pub(super) fn added_clauses(&self, replaced: &Replaced) -> impl Iterator<Item = &Clause> {
        clauses_of(&self.compiled, &replaced.added)
    }

    /// Replaces the rules by an error.
    pub(super) fn fail(&mut self, why: Missing) -> Replaced {
        self.replace(Self::failed(why))
    }

    /// Compiles rules, with the room of the compiler.
    pub(super) fn compile(&mut self, rules: &Rules, compiler: &mut Compiler<'_>) -> Replaced {
        let room = compiler.room;
        if let Some(replaced) = self.edit(rules, compiler) {
            return replaced;
        }
        (compiler.room, compiler.widest) = (room, 0);
        let mut lists = Vec::with_capacity(rules.len());
        let compiled = compile(rules.iter().enumerate(), compiler, &mut lists).map(Arc::from);
        let source = compiled.is_ok().then(|| rules.clone());
        self.replace(Self { source, compiled, lists, room: compiler.room, widest: compiler.widest })
    }

    fn replace(&mut self, new: Self) -> Replaced {
        let before = std::mem::replace(self, new);
        let is_other = before.compiled != self.compiled;
        Replaced {
            removed: 0..count(&before.compiled),
            added: 0..count(&self.compiled),
            before: before.compiled,
            lists: before.lists.into_iter().flatten().collect(),
            is_other,
        }
    }

    /// Compiles only the rules that differ from the last ones; `None` if all must be compiled.
    #[expect(clippy::indexing_slicing, reason = "the places are those of compiled rules")]
    fn edit(&mut self, rules: &Rules, compiler: &mut Compiler<'_>) -> Option<Replaced> {
        let (source, before) = (self.source.as_ref()?, self.compiled.as_ref().ok()?);
        let is_same = |(one, other): &(RuleView<'_>, RuleView<'_>)| one == other;
        let start = source.iter().zip(rules.iter()).take_while(is_same).count();
        let rest = source.len().min(rules.len()) - start;
        let behind = source.iter().rev().zip(rules.iter().rev()).take(rest).take_while(is_same).count();
        let (end, new_end) = (source.len() - behind, rules.len() - behind);
        let place = |index: usize| before.partition_point(|rule| rule.index < index);
        let removed = place(start)..place(end);

        compiler.room = self.room + before[removed.clone()].iter().map(CompiledRule::weight).sum::<usize>();
        compiler.widest = self.widest;
        let mut lists = Vec::new();
        let edited = rules.iter().enumerate().take(new_end).skip(start);
        let new = match compile(edited, compiler, &mut lists) {
            Ok(new) if compiler.room >= compiler.widest => new,
            // Whether there is room for a rule may depend on the rules before it.
            _ => {
                lists.iter().flatten().for_each(|list| compiler.lists.release(list, compiler.addresses));
                return None;
            }
        };
        let added = removed.start..removed.start + new.len();
        let is_other = end != new_end || before[removed.clone()] != new[..];
        let moved = before[removed.end..].iter().map(|rule| rule.at(rule.index + new_end - end));
        let all: Arc<[CompiledRule]> = before[..removed.start].iter().cloned().chain(new).chain(moved).collect();
        (self.room, self.widest, self.source) = (compiler.room, compiler.widest, Some(rules.clone()));
        let lists = self.lists.splice(start..end, lists).flatten().collect();
        let before = std::mem::replace(&mut self.compiled, Ok(all));
        Some(Replaced { before, removed, added, lists, is_other })
    }
}

fn compile<'a>(
    rules: impl Iterator<Item = (usize, RuleView<'a>)>,
    compiler: &mut Compiler<'_>,
    lists: &mut Vec<RuleLists>,
) -> Result<Vec<CompiledRule>, Missing> {
    let mut compiled = Vec::new();
    for (index, view) in rules {
        let rule = compiler.rule(index, view);
        lists.push(std::mem::take(&mut compiler.used));
        compiled.extend(rule?);
    }
    Ok(compiled)
}

fn count(rules: &CompiledRules) -> usize {
    rules.as_ref().map_or(0, |rules| rules.len())
}

fn clauses_of<'a>(rules: &'a CompiledRules, range: &Range<usize>) -> impl Iterator<Item = &'a Clause> {
    let rules = rules.as_ref().ok().and_then(|rules| rules.get(range.clone()));
    rules.unwrap_or_default().iter().flat_map(|rule| rule.clauses.iter())
}
