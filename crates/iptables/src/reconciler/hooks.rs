//! Hooks: our rules in chains that are not ours, from which packets reach our chains.

use crate::reconciler::batch::RestoreText;
use crate::{ChainName, HookPosition, HookedChain, HookedRule, RenderedChain, Renderer, Rule, RuleTag, is_own_chain};

/// Position of inserted rules (`ChainInsertMode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum InsertMode {
    /// Before the rules of other programs.
    #[default]
    Insert,
    /// After the rules of other programs.
    Append,
}

/// Desired rules in one such chain.
#[derive(Clone, Debug)]
pub(super) struct Hook {
    chain: ChainName,
    inserted: Rules,
    appended: Rules,
}

#[derive(Clone, Debug)]
struct Rules {
    rules: Vec<Rule>,
    rendered: RenderedChain,
}

impl Hook {
    pub(super) fn new(chain: ChainName, renderer: &mut Renderer) -> Self {
        let mut empty = |position| Rules { rules: Vec::new(), rendered: renderer.hook(chain, position, &[]) };
        let (inserted, appended) = (empty(HookPosition::Insert), empty(HookPosition::Append));
        Self { chain, inserted, appended }
    }

    /// Replaces the rules at one of the two positions. Returns whether the chain changes.
    pub(super) fn set(&mut self, position: HookPosition, rules: Vec<Rule>, renderer: &mut Renderer) -> bool {
        let rendered = renderer.hook(self.chain, position, &rules);
        let slot = match position {
            HookPosition::Insert => &mut self.inserted,
            HookPosition::Append => &mut self.appended,
        };
        let changed = slot.rendered != rendered;
        *slot = Rules { rules, rendered };
        changed
    }

    /// Renders all rules again. Returns whether the chain changes.
    pub(super) fn render(&mut self, renderer: &mut Renderer) -> bool {
        let inserted = std::mem::take(&mut self.inserted.rules);
        let appended = std::mem::take(&mut self.appended.rules);
        let changed = self.set(HookPosition::Insert, inserted, renderer);
        self.set(HookPosition::Append, appended, renderer) || changed
    }

    /// Returns the targets that are ours, once per rule.
    pub(super) fn targets(&self) -> Vec<ChainName> {
        let rules = self.inserted.rules.iter().chain(&self.appended.rules);
        rules.filter_map(Rule::target).filter(|name| is_own_chain(name.as_str())).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.inserted.rules.len() + self.appended.rules.len()
    }

    /// Returns the chain with our rules in their place among `foreign` others.
    fn expected(&self, foreign: usize, mode: InsertMode) -> HookedChain {
        let first_inserted = match mode {
            InsertMode::Insert => 0,
            InsertMode::Append => foreign,
        };
        let first_appended = foreign + self.inserted.rendered.len();
        let ours = |first: usize, rendered: &RenderedChain| {
            let place = |(at, hash)| HookedRule { position: first + at, tag: RuleTag::Ours(hash), text: None };
            rendered.hashes().enumerate().map(place).collect::<Vec<_>>()
        };
        let mut rules = ours(first_inserted, &self.inserted.rendered);
        rules.extend(ours(first_appended, &self.appended.rendered));
        HookedChain { len: foreign + rules.len(), ours: rules }
    }

    /// Returns the chain after [`write`](Self::write) brought `observed` in sync.
    pub(super) fn result(&self, observed: &HookedChain, mode: InsertMode) -> HookedChain {
        self.expected(observed.foreign(), mode)
    }

    /// Reports whether `observed` is in sync, regardless of the rules of other programs.
    pub(super) fn is_in_place(&self, observed: &HookedChain, mode: InsertMode) -> bool {
        let place = |rule: &HookedRule| (rule.position, rule.tag);
        let expected = self.expected(observed.foreign(), mode);
        expected.ours.iter().map(place).eq(observed.ours.iter().map(place))
    }

    /// Writes the lines that bring `observed` in sync and leave rules of other programs unchanged.
    ///
    /// All rules of ours are removed and added again. They are removed by value, because a number
    /// may mean another rule by the time it is used; `by_number` is for the case that this fails.
    pub(super) fn write(&self, observed: &HookedChain, mode: InsertMode, by_number: bool, out: &mut RestoreText) {
        let chain = self.chain;
        // Numbers first and from the end, so that each is still valid when it is used.
        for rule in observed.ours.iter().rev() {
            if by_number || rule.text.is_none() {
                out.line(format_args!("-D {chain} {}", rule.position + 1));
            }
        }
        for text in observed.ours.iter().filter_map(|rule| rule.text.as_deref()) {
            if !by_number {
                out.line(format_args!("-D {chain} {text}"));
            }
        }
        let (inserted, appended) = (&self.inserted.rendered, &self.appended.rendered);
        for index in 0..inserted.len() {
            match mode {
                InsertMode::Insert => {
                    out.line_with(|out| inserted.write_insert(inserted.len() - 1 - index, out));
                }
                InsertMode::Append => out.line_with(|out| inserted.write_append(index, out)),
            }
        }
        for index in 0..appended.len() {
            out.line_with(|out| appended.write_append(index, out));
        }
    }
}

impl HookedChain {
    /// Returns the number of rules that are not ours.
    #[must_use]
    pub fn foreign(&self) -> usize {
        self.len - self.ours.len()
    }
}
