//! Rules of ours in chains that are not ours: the places where the kernel enters our chains.

use crate::reconciler::batch::RestoreText;
use crate::{ChainName, HookPosition, HookedChain, HookedRule, RenderedChain, Renderer, Rule, RuleTag, is_own_chain};

/// Where inserted rules go (`ChainInsertMode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum InsertMode {
    /// Before everybody else's rules.
    #[default]
    Insert,
    /// After everybody else's rules.
    Append,
}

/// The rules wanted in one such chain.
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

    /// Replaces the rules at one of the two positions. Returns whether that changes the chain.
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

    /// Renders all rules again. Returns whether that changes the chain.
    pub(super) fn render(&mut self, renderer: &mut Renderer) -> bool {
        let inserted = std::mem::take(&mut self.inserted.rules);
        let appended = std::mem::take(&mut self.appended.rules);
        let changed = self.set(HookPosition::Insert, inserted, renderer);
        self.set(HookPosition::Append, appended, renderer) || changed
    }

    /// The chains of ours that are entered here, once per rule.
    pub(super) fn targets(&self) -> Vec<ChainName> {
        let rules = self.inserted.rules.iter().chain(&self.appended.rules);
        rules.filter_map(Rule::target).filter(|name| is_own_chain(name.as_str())).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.inserted.rules.len() + self.appended.rules.len()
    }

    /// What the chain looks like once our rules stand where they belong among `foreign` others.
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

    /// The chain after [`write`](Self::write) brought `seen` to what is wanted.
    pub(super) fn result(&self, seen: &HookedChain, mode: InsertMode) -> HookedChain {
        self.expected(seen.foreign(), mode)
    }

    /// Whether `seen` is as wanted; the others' rules may be any and any number.
    pub(super) fn is_in_place(&self, seen: &HookedChain, mode: InsertMode) -> bool {
        let place = |rule: &HookedRule| (rule.position, rule.tag);
        let expected = self.expected(seen.foreign(), mode);
        expected.ours.iter().map(place).eq(seen.ours.iter().map(place))
    }

    /// Writes the lines that bring `seen` to what is wanted, without touching others' rules.
    ///
    /// All rules of ours are removed and put back. They are removed by value, because a number may
    /// mean another rule by the time it is used; `by_number` is for when that does not work.
    pub(super) fn write(&self, seen: &HookedChain, mode: InsertMode, by_number: bool, out: &mut RestoreText) {
        let chain = self.chain;
        // Numbers first and from the end, so that each still holds when it is used.
        for rule in seen.ours.iter().rev() {
            if by_number || rule.text.is_none() {
                out.line(format_args!("-D {chain} {}", rule.position + 1));
            }
        }
        for text in seen.ours.iter().filter_map(|rule| rule.text.as_deref()) {
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
    /// The number of rules in it that are not ours.
    #[must_use]
    pub fn foreign(&self) -> usize {
        self.len - self.ours.len()
    }
}
