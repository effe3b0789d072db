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

/// A chain as wanted: its name and its rules in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// The name.
    pub name: ChainName,
    /// What the chain is called where names may be longer, if iptables has to shorten that.
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

    /// The chain without the rules for which `left_out` holds.
    ///
    /// The last comment of the first rule, which says whose chain it is, passes on to the rule that is first then; if
    /// there is none, to a rule that does nothing else. Rules at the end that return are not needed, and go as well.
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

/// Where rules go that are added to one of the kernel's own chains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HookPosition {
    /// Before the rules of others.
    Insert,
    /// After the rules of others.
    Append,
}

/// One rule: if a packet passes all matches, the action happens to it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rule {
    /// What a packet must pass; nothing if empty.
    pub matches: Matches,
    /// What happens then; a rule without an action only counts packets and carries comments.
    pub action: Option<Action>,
    /// Notes for whoever lists the rules.
    pub comments: Comments,
    /// Where the rule comes from.  It is not part of the rule's text.
    pub origin: Option<Origin>,
    /// Where rules come from that became one with this one, which decides and counts for them as well.
    pub merged: MergedOrigins,
    /// The rules of a chain with the same number, which stand together, are one opening: all that they do is to let
    /// packets through, so that without all of them no packet gets further than with them. A rule without a number must
    /// never be left out. It is not part of the rule's text.
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

    /// The rule with one more comment; an empty comment is left out, as `iptables` refuses it.
    #[must_use]
    pub fn comment(mut self, text: impl Into<Cow<'static, str>>) -> Self {
        self.add_comment(text);
        self
    }

    /// Adds a comment; an empty comment is left out, as `iptables` refuses it.
    pub fn add_comment(&mut self, text: impl Into<Cow<'static, str>>) {
        Comment::new(text).into_iter().for_each(|comment| self.comments.add(comment));
    }

    /// Whether the rule returns to the calling chain.
    #[must_use]
    pub fn returns(&self) -> bool {
        self.action == Some(Action::Return)
    }

    /// Returns whether the rule drops packets and notifies their senders.
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

/// The comments of a rule, which mostly has one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Comments(SmallVec<[Comment; 1]>);

impl Comments {
    /// Adds one behind the others.
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

/// The source of a rule, for diagnostics and for shares of memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The object that asked for the rule: `Kind/namespace/name`, or `Kind/name` if it has no namespace.
    pub owner: Arc<str>,
    /// Which part of the object, counted from 0.
    pub part: Option<u32>,
}

impl Origin {
    /// The namespace of the owner, or that a profile stands for; empty if there is none.
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

/// Where any number of rules come from, in order.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct MergedOrigins(Option<Arc<[Origin]>>);

impl MergedOrigins {
    /// They.
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

/// A comment as the kernel will show it: never empty, ASCII letters, digits, spaces and
/// `_@%+=:,./-` only, at most 256 bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Comment(Cow<'static, str>);

impl Comment {
    /// The longest comment; what is beyond is cut off.
    pub const MAX_LEN: usize = 256;

    /// Every other character becomes `_`; `None` if there is no character at all.
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
