//! Reduced chains: without openings that the kernel refuses, or does not have yet.

use std::collections::BTreeSet;

use crate::render::TextHasher;
use crate::{Chain, Comment, Features, Renderer, Rule, RuleTag, write_rest};

/// Maximum number of versions of a chain in one search.
const TRIALS: u32 = 64;

/// A search for the openings of a chain that the kernel refuses.
///
/// It begins with no openings, or with those in the kernel. Then it adds groups of openings that
/// the kernel accepts, and halves those that it refuses. Every version is the desired chain without
/// some openings, so it allows nothing else.
#[derive(Debug)]
pub(super) struct Search {
    /// All openings.
    all: BTreeSet<u32>,
    /// Openings that the version in the kernel lacks; `None` until a version is accepted.
    left_out: Option<BTreeSet<u32>>,
    /// Groups still to be tried, the last one first.
    groups: Vec<Vec<u32>>,
    trials: u32,
}

impl Search {
    /// Returns a search among `all` openings of a refused chain. The version in the kernel, if it
    /// is the chain without some openings, lacks those `left_out`.
    pub(super) fn new(all: BTreeSet<u32>, left_out: Option<BTreeSet<u32>>) -> Self {
        let mut search = Self { all, left_out: None, groups: Vec::new(), trials: TRIALS };
        if let Some(left_out) = left_out {
            search.begin(left_out);
        }
        search
    }

    fn begin(&mut self, left_out: BTreeSet<u32>) {
        self.groups = vec![left_out.iter().copied().collect()];
        self.left_out = Some(left_out);
    }

    /// Returns the openings that the next version to try lacks; `None` at the end of the search.
    /// The caller reports the outcome before it requests the next version.
    pub(super) fn candidate(&mut self) -> Option<BTreeSet<u32>> {
        self.trials = self.trials.checked_sub(1)?;
        let Some(left_out) = self.left_out.clone() else { return Some(self.all.clone()) };
        loop {
            let group = self.groups.last()?;
            let candidate: BTreeSet<u32> = left_out.iter().copied().filter(|number| !group.contains(number)).collect();
            if !candidate.is_empty() {
                return Some(candidate);
            }
            // The candidate would be the whole chain, which is refused.
            self.narrow();
        }
    }

    /// Records that the candidate was accepted.
    #[expect(clippy::expect_used, reason = "a candidate lacks all openings, or those of one group less")]
    pub(super) fn accepted(&mut self) {
        match &mut self.left_out {
            None => self.begin(self.all.clone()),
            Some(left_out) => {
                let group = self.groups.pop().expect("the candidate was of a group");
                left_out.retain(|number| !group.contains(number));
            }
        }
    }

    /// Records that the candidate was refused.
    pub(super) fn refused(&mut self) {
        if self.left_out.is_some() {
            self.narrow();
        } else {
            // The openings are not the reason of the refusal.
            self.trials = 0;
        }
    }

    /// Returns the openings that the last accepted version lacks, if there is one.
    pub(super) fn result(self) -> Option<BTreeSet<u32>> {
        self.left_out
    }

    #[expect(clippy::expect_used, reason = "a candidate lacks all openings, or those of one group less")]
    fn narrow(&mut self) {
        let mut group = self.groups.pop().expect("the candidate was of a group");
        if group.len() > 1 {
            let half = group.split_off(group.len() / 2);
            self.groups.extend([group, half]);
        }
    }
}

/// Returns the openings without which `chain` equals the chain in the kernel; `None` if there are
/// none such.
///
/// A hash covers all rules before its own, so the rules are compared in order, and an opening is
/// left out where the kernel has another rule.
pub(super) fn left_out_in_kernel(chain: &Chain, features: &Features, in_kernel: &[RuleTag]) -> Option<BTreeSet<u32>> {
    let first = chain.rules.first()?;
    // This comment moves to the first remaining rule.
    let mut comment = first.opens.and(first.comments.last());
    let mut reader = Reader { features, rest: in_kernel, hasher: TextHasher::new(chain.name.as_str()) };
    let mut left_out = BTreeSet::new();
    for together in chain.rules.chunk_by(|one, next| one.opens.is_some() && one.opens == next.opens) {
        let passed_on = comment.filter(|_| !left_out.is_empty());
        match together.first().and_then(|rule| rule.opens) {
            _ if reader.skip(together, passed_on) => comment = None,
            Some(number) => {
                left_out.insert(number);
            }
            None => return None,
        }
    }
    let reduced = chain.without(|rule| rule.opens.is_some_and(|number| left_out.contains(&number)));
    let rendered = Renderer::new(*features).chain(&reduced);
    rendered.hashes().map(RuleTag::Ours).eq(in_kernel.iter().copied()).then_some(left_out)
}

/// The rules of a chain in the kernel, from the first that is not recognised yet.
struct Reader<'a> {
    features: &'a Features,
    rest: &'a [RuleTag],
    hasher: TextHasher<'a>,
}

impl Reader<'_> {
    /// Skips these rules, the first of which has `comment` in addition. Returns whether they come
    /// next. Returning rules at the end may be missing.
    fn skip(&mut self, rules: &[Rule], comment: Option<&Comment>) -> bool {
        let (mut hasher, mut rest) = (self.hasher.clone(), self.rest);
        for (index, rule) in rules.iter().enumerate() {
            let Some((tag, behind)) = rest.split_first() else {
                if index > 0 && rules.iter().skip(index).all(Rule::returns) {
                    break;
                }
                return false;
            };
            let mut text = String::new();
            match comment.filter(|_| index == 0) {
                Some(comment) => {
                    let mut rule = rule.clone();
                    rule.comments.add(comment.clone());
                    write_rest(&rule, self.features, &mut text);
                }
                None => write_rest(rule, self.features, &mut text),
            }
            if *tag != RuleTag::Ours(hasher.next(&text)) {
                return false;
            }
            rest = behind;
        }
        (self.hasher, self.rest) = (hasher, rest);
        true
    }
}
