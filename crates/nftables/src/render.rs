//! From chains to texts, comments and hashes.

use tortie_netfilter::{Comments, HASH_COMMENT_PREFIX, Rule, RuleHash, RuleHasher};

use crate::text::{Context, write_rule};

/// What the kernel keeps of a comment that `nft` takes.
const MAX_COMMENT_LEN: usize = 128;

/// A rule as it is handed to the kernel, and as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedRule {
    /// Matches and action, without the comment.
    pub text: String,
    /// Recognises the rule and all before it in its chain.
    pub hash: RuleHash,
    /// What the kernel keeps beside the rule: `cali:HASH;` and the rule's comments.
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

/// Comments share what is left of the space behind the hash equally (`felix/nftables/renderer.go`).
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

/// The hash in a comment as the kernel has it; `None` if the rule is none of ours.
#[must_use]
pub fn hash_in(comment: &str) -> Option<RuleHash> {
    let (hash, _) = comment.strip_prefix(HASH_COMMENT_PREFIX)?.split_once(';')?;
    RuleHash::parse(hash)
}
