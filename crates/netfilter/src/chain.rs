//! Rules and chains.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::action::Action;
use crate::matches::Matches;
use crate::name::ChainName;

/// Desired state of a chain: its name and its rules in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// The name.
    pub name: ChainName,
    /// Unshortened name for back ends with longer names (nftables); `None` if `name` is not
    /// shortened.
    pub full_name: Option<Arc<str>>,
    /// The rules.
    pub rules: Vec<Rule>,
}

impl Chain {
    /// A chain of these rules.
    #[must_use]
    pub fn new(name: ChainName, rules: Vec<Rule>) -> Self {
        Self { name, full_name: None, rules }
    }

    /// The chains that the rules jump or go to, in rule order, repetitions included.
    pub fn targets(&self) -> impl Iterator<Item = ChainName> + '_ {
        self.rules.iter().filter_map(Rule::target)
    }

    /// The numbers of its [openings](Rule::opens).
    #[must_use]
    pub fn openings(&self) -> BTreeSet<u32> {
        self.rules.iter().filter_map(|rule| rule.opens).collect()
    }

    /// Returns the chain without the rules for which `left_out` holds.
    ///
    /// The last comment of the first rule names the owner of the chain. If that rule is left out,
    /// the comment moves to the rule that is first then, or to a new rule without an action if no
    /// rule is left. Returning rules at the end are redundant and are removed as well.
    #[must_use]
    pub fn without(&self, left_out: impl Fn(&Rule) -> bool) -> Self {
        let mut rules: Vec<Rule> = self.rules.iter().filter(|rule| !left_out(rule)).cloned().collect();
        if rules.len() < self.rules.len() {
            while rules.last().is_some_and(Rule::returns) {
                rules.pop();
            }
        }
        if let Some(first) = self.rules.first().filter(|first| left_out(first))
            && let Some(comment) = first.comments.last()
        {
            match rules.first_mut() {
                Some(first) => first.comments.add(comment.clone()),
                None => rules.push(Rule { comments: comment.clone().into(), ..Rule::default() }),
            }
        }
        Self { name: self.name, full_name: self.full_name.clone(), rules }
    }
}

/// Position of inserted rules in a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HookPosition {
    /// Before the rules of others.
    Insert,
    /// After the rules of others.
    Append,
}

/// One rule: matches, and an action on each packet that passes all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rule {
    /// Matches that a packet must all pass; empty matches every packet.
    pub matches: Matches,
    /// Action on a matching packet; a rule without one only counts packets and carries comments.
    pub action: Option<Action>,
    /// Comments that appear in listings of the rules.
    pub comments: Comments,
    /// Source of the rule. It is not part of the rule's text.
    pub origin: Option<Origin>,
    /// Sources of the rules that were merged into this one, which decides and counts for them as
    /// well.
    pub merged: MergedOrigins,
    /// Number of the opening that the rule belongs to. An opening is the consecutive rules of a
    /// chain with the same number; they only allow packets, so that a chain without them allows no
    /// more than with them. A rule without a number must never be left out. The number is not part
    /// of the rule's text.
    pub opens: Option<u32>,
}

impl Rule {
    /// A rule without matches or comments.
    #[must_use]
    pub fn new(action: Action) -> Self {
        Self { action: Some(action), ..Self::default() }
    }

    /// A rule that does `action` to packets that pass `matches`.
    #[must_use]
    pub fn when(matches: Matches, action: Action) -> Self {
        Self { matches, action: Some(action), ..Self::default() }
    }

    /// Returns the rule with one more comment. An empty comment is omitted, because `iptables`
    /// refuses it.
    #[must_use]
    pub fn comment(mut self, text: impl Into<Cow<'static, str>>) -> Self {
        self.add_comment(text);
        self
    }

    /// Adds a comment. An empty comment is omitted, because `iptables` refuses it.
    pub fn add_comment(&mut self, text: impl Into<Cow<'static, str>>) {
        Comment::new(text).into_iter().for_each(|comment| self.comments.add(comment));
    }

    /// Reports whether the rule returns to the calling chain.
    #[must_use]
    pub fn returns(&self) -> bool {
        self.action == Some(Action::Return)
    }

    /// Reports whether the rule drops packets and notifies their senders.
    #[must_use]
    pub fn rejects(&self) -> bool {
        matches!(self.action.as_ref().map(Action::last), Some(Action::Reject(_)))
    }

    /// Makes a rule that [rejects](Self::rejects) drop without a reply.
    pub fn drop_silently(&mut self) {
        if self.rejects() {
            self.action = self.action.take().map(|action| action.with_last(Action::Drop));
        }
    }

    /// The chain that the rule jumps or goes to.
    #[must_use]
    pub fn target(&self) -> Option<ChainName> {
        self.action.as_ref().and_then(Action::target)
    }
}

/// The comments of a rule, in most cases one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Comments(SmallVec<[Comment; 1]>);

impl Comments {
    /// Appends a comment.
    pub fn add(&mut self, comment: Comment) {
        self.0.push(comment);
    }
}

impl From<Comment> for Comments {
    fn from(comment: Comment) -> Self {
        [comment].into_iter().collect()
    }
}

impl FromIterator<Comment> for Comments {
    fn from_iter<I: IntoIterator<Item = Comment>>(comments: I) -> Self {
        Self(comments.into_iter().collect())
    }
}

impl Deref for Comments {
    type Target = [Comment];

    fn deref(&self) -> &[Comment] {
        &self.0
    }
}

/// The source of a rule, for diagnostics and for the attribution of memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Origin {
    /// Object for which the rule was made: `Kind/namespace/name`, or `Kind/name` if it has no
    /// namespace.
    pub owner: Arc<str>,
    /// Index of the part of the object, counted from 0.
    pub part: Option<u32>,
}

impl Origin {
    /// Returns the namespace of the owner, or the one that a profile stands for; empty if there is
    /// none.
    #[must_use]
    pub fn namespace(&self) -> &str {
        let mut words = self.owner.split('/');
        match (words.next(), words.next(), words.next()) {
            (Some(_), Some(namespace), Some(_)) => namespace,
            (Some("Profile"), Some(profile), None) => match profile.split_once('.') {
                Some(("kns", namespace)) => namespace,
                Some(("ksa", account)) => account.split('.').next().unwrap_or_default(),
                _ => "",
            },
            _ => "",
        }
    }
}

/// Sources of any number of rules, in order.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct MergedOrigins(Option<Arc<[Origin]>>);

impl MergedOrigins {
    /// Returns the origins.
    #[must_use]
    pub fn as_slice(&self) -> &[Origin] {
        self.0.as_deref().unwrap_or_default()
    }
}

impl FromIterator<Origin> for MergedOrigins {
    fn from_iter<I: IntoIterator<Item = Origin>>(origins: I) -> Self {
        let origins: Arc<[Origin]> = origins.into_iter().collect();
        Self(Some(origins).filter(|origins| !origins.is_empty()))
    }
}

/// Short: there may be thousands.
impl fmt::Debug for MergedOrigins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} more", self.as_slice().len())
    }
}

/// A comment as the kernel shows it: never empty, ASCII letters, digits, spaces and
/// `_@%+=:,./-` only, at most 256 bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Comment(Cow<'static, str>);

impl Comment {
    /// Maximum length in bytes; longer comments are truncated.
    pub const MAX_LEN: usize = 256;

    /// Replaces every other character by `_`; `None` for an empty text.
    #[must_use]
    pub fn new(text: impl Into<Cow<'static, str>>) -> Option<Self> {
        let text = text.into();
        if text.is_empty() {
            return None;
        }
        if text.len() <= Self::MAX_LEN && text.chars().all(is_plain) {
            return Some(Self(text));
        }
        let plain = text.chars().map(|c| if is_plain(c) { c } else { '_' });
        Some(Self(Cow::Owned(plain.take(Self::MAX_LEN).collect())))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

const fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | ' ' | '@' | '%' | '+' | '=' | ':' | ',' | '.' | '/' | '-')
}

#[cfg(test)]
mod tests;
