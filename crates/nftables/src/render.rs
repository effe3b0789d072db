//! From chains to texts, comments and hashes.

use tortie_netfilter::{Comments, HASH_COMMENT_PREFIX, Rule, RuleHash, RuleHasher};

use crate::text::{Context, write_rule};

/// Maximum length of a comment that `nft` accepts and the kernel keeps.
const MAX_COMMENT_LEN: usize = 128;

/// A rule as sent to the kernel, and as printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedRule {
    /// Matches and action, without the comment.
    pub text: String,
    /// Identifies the rule and all before it in its chain.
    pub hash: RuleHash,
    /// Comment in the kernel: `cali:HASH;` and the rule's comments.
    pub comment: String,
}

/// The rules of a chain; `seed` is the chain's name with its layer.
pub fn rules<'a>(seed: &str, rules: &'a [Rule], context: Context<'a>) -> impl Iterator<Item = RenderedRule> + use<'a> {
    let mut hasher = RuleHasher::new(seed);
    rules.iter().map(move |rule| {
        let mut text = String::new();
        write_rule(rule, &context, &mut text);
        // Comments are no part of it: where only one changes, the rules behind it are the same.
        let hash = hasher.next([text.as_str()]);
        let comment = comment(hash, &rule.comments);
        RenderedRule { text, hash, comment }
    })
}

/// Returns the comment of a rule. The rule's comments share the space behind the hash equally
/// (`felix/nftables/renderer.go`).
fn comment(hash: RuleHash, comments: &Comments) -> String {
    let mut text = format!("{HASH_COMMENT_PREFIX}{hash};");
    if comments.is_empty() {
        return text;
    }
    let each = (MAX_COMMENT_LEN - text.len()) / comments.len();
    for comment in comments.iter() {
        text.push(' ');
        // Comments are ASCII.
        text.push_str(comment.as_str().get(..each).unwrap_or(comment.as_str()));
    }
    text.truncate(MAX_COMMENT_LEN);
    text
}

/// Returns the hash in a comment from the kernel; `None` for rules of other programs.
#[must_use]
pub fn hash_in(comment: &str) -> Option<RuleHash> {
    let (hash, _) = comment.strip_prefix(HASH_COMMENT_PREFIX)?.split_once(';')?;
    RuleHash::parse(hash)
}
