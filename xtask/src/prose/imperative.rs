//! The mood of a verb, as far as its form shows it.

/// Words that open a noun phrase or a question.
const NO_VERBS: &[&str] = &[
    "a", "all", "an", "any", "as", "at", "both", "by", "each", "every", "few", "for", "from", "had", "has", "how",
    "if", "in", "is", "it", "its", "many", "more", "no", "not", "of", "on", "one", "only", "our", "several", "some",
    "that", "the", "their", "then", "there", "these", "this", "those", "to", "what", "whatever", "when", "where",
    "whether", "which", "who", "whoever", "whose", "why", "with", "without",
];

/// Verbs whose stem has the ending of another form.
const STEMS: &[&str] = &[
    "bias", "bring", "embed", "exceed", "feed", "focus", "need", "ping", "proceed", "ring", "seed", "shed", "speed",
    "spring", "string", "swing",
];

/// Whether a text may open with a verb in the imperative.
pub(super) fn is_imperative(text: &str) -> bool {
    let first = text.split(|c: char| !c.is_alphanumeric() && c != '-').next().unwrap_or_default().to_lowercase();
    let is_inflected =
        first.ends_with("ed") || first.ends_with("ing") || first.ends_with('s') && !first.ends_with("ss");
    !first.is_empty() && !NO_VERBS.contains(&&*first) && (!is_inflected || STEMS.contains(&&*first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imperatives_differ_from_noun_phrases_and_other_forms() {
        for text in ["show connections", "Re-read the table", "pass on a file", "feed the index", "read"] {
            assert!(is_imperative(text), "{text}");
        }
        for text in
            ["the table", "Shows connections", "added a table", "adding a table", "Who asks", "policies", "", "`x`"]
        {
            assert!(!is_imperative(text), "{text}");
        }
    }
}
