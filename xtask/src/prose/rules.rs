//! Rules of the language, as data.

/// A rule with an example of either side.
pub(super) struct Rule {
    pub(super) name: &'static str,
    pub(super) finds: Finds,
    pub(super) limit: Limit,
    pub(super) advice: &'static str,
    /// A text that breaks the rule.
    pub(super) wrong: &'static str,
    /// The same in other words.
    pub(super) right: &'static str,
}

/// The texts that break a rule.
pub(super) enum Finds {
    /// Those with a phrase, as alternatives of a regular expression between word boundaries; case
    /// is ignored.
    Phrase(&'static str),
    /// Those that a module beside this one measures.
    Measure,
}

/// Number of places that may break a rule.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Limit {
    None,
    PerThousandWords(f64),
    /// Any number: the rule has exceptions that no expression can tell.
    Advice,
}

/// A summary or heading that opens with an interrogative.
pub(super) const OPENING: &str = "opens-with-what";
/// The word "what".
pub(super) const WHAT: &str = "what";
/// The word "what" in a text beyond documents, comments and messages.
pub(super) const WHAT_IN_TEXT: &str = "what-in-text";
/// A sentence of Markdown with too many words.
pub(super) const SENTENCE: &str = "long-sentence";
/// A comment that goes beyond the last column.
pub(super) const WIDTH: &str = "wide-comment";
/// The summary of a command in help.
pub(super) const HELP: &str = "help-summary";
/// The subject of a commit.
pub(super) const COMMIT: &str = "commit-subject";

/// A place that a rule leaves out, for a reason.
pub(super) struct Exception {
    pub(super) rule: &'static str,
    pub(super) file: &'static str,
    /// A part of the text.
    pub(super) text: &'static str,
    pub(super) reason: &'static str,
}

/// Places that are right as they are.
pub(super) const EXCEPTIONS: &[Exception] = &[Exception {
    rule: "original",
    file: "crates/ebpf/src/hooks/kernel.rs",
    text: "the original direction",
    reason: "a term of conntrack",
}];

/// Words that open no summary and no heading.
pub(super) const INTERROGATIVES: &[&str] =
    &["What", "Who", "Whom", "Whose", "Whoever", "Whatever", "Where", "How", "Which", "By what", "Of what", "To whom"];

/// All rules.
pub(super) const RULES: &[Rule] = &[
    Rule {
        name: WHAT,
        finds: Finds::Measure,
        limit: Limit::PerThousandWords(3.0),
        advice: "a noun in place of a clause",
        wrong: "what a policy selects",
        right: "selected endpoints",
    },
    Rule {
        name: WHAT_IN_TEXT,
        finds: Finds::Measure,
        limit: Limit::None,
        advice: "a noun in place of a clause, in metric help, assertions, settings and scripts",
        wrong: "# What a build needs.",
        right: "# Tools of a build.",
    },
    Rule {
        name: OPENING,
        finds: Finds::Measure,
        limit: Limit::None,
        advice: "open a summary or heading with a noun or a verb",
        wrong: "/// What a policy selects.",
        right: "/// The endpoints that a policy selects.",
    },
    Rule {
        name: "actor",
        finds: Finds::Phrase("nobody|somebody|whoever|anybody|one who|who(?:ever)? embeds"),
        limit: Limit::None,
        advice: "name the actor: the agent, another process, an operator, the caller",
        wrong: "Somebody has changed the table.",
        right: "Another process has changed the table.",
    },
    Rule {
        name: "judge",
        finds: Finds::Phrase("judge|judges|judged|judging"),
        limit: Limit::None,
        advice: "evaluate or filter (packets), validate (input)",
        wrong: "Programs judge packets.",
        right: "Programs filter packets.",
    },
    Rule {
        name: "tell",
        finds: Finds::Phrase("tell|tells|told|telling"),
        limit: Limit::Advice,
        advice: "report, send, log, notify, print, pass",
        wrong: "The server is told the version.",
        right: "The client sends the version.",
    },
    Rule {
        name: "let-through",
        finds: Finds::Phrase("lets? through|letting through"),
        limit: Limit::None,
        advice: "allow, accept",
        wrong: "Packets that a rule lets through.",
        right: "Packets that a rule accepts.",
    },
    Rule {
        name: "take-back",
        finds: Finds::Phrase("taken back|takes? (?:it|them|that|this|a change|the change) back|taking back"),
        limit: Limit::None,
        advice: "roll back",
        wrong: "The change is taken back.",
        right: "The change is rolled back.",
    },
    Rule {
        name: "is-there",
        finds: Finds::Phrase("(?:is|are|was|were) (?:not |no longer )?there"),
        limit: Limit::Advice,
        advice: "exists, is missing, is present",
        wrong: "The set is no longer there.",
        right: "The set is missing.",
    },
    Rule {
        name: "own",
        finds: Finds::Phrase("of (?:its|their|one's|his|your|our) own"),
        limit: Limit::Advice,
        advice: "dedicated, separate, custom",
        wrong: "A namespace of its own.",
        right: "A dedicated namespace.",
    },
    Rule {
        name: "of-netfilter",
        finds: Finds::Phrase(
            "(?:hooks?|tables?|rules?|chains?|sets?|maps?|programs?) of (?:netfilter|nftables|iptables|eBPF|the kernel's)",
        ),
        limit: Limit::None,
        advice: "netfilter hook, nftables table, eBPF program",
        wrong: "A table of nftables.",
        right: "An nftables table.",
    },
    Rule {
        name: "original",
        finds: Finds::Phrase("the original(?:'s|s)?"),
        limit: Limit::Advice,
        advice: "Felix, Typha, kube-controllers or Calico, by name",
        wrong: "As the original does.",
        right: "As Felix does.",
    },
    Rule {
        name: "blocks-of-addresses",
        finds: Finds::Phrase("blocks? of addresses"),
        limit: Limit::None,
        advice: "IPAM block",
        wrong: "A block of addresses.",
        right: "An IPAM block.",
    },
    Rule {
        name: "riddle",
        finds: Finds::Phrase(
            "given away|puts? up with|seldom meant|made good|fares? otherwise|comes? to nothing|come to rest|\
             in the same words|what becomes of|is nobody's|is to blame|to be had|for who|who wants to know|\
             as it should be|are otherwise than|is otherwise than|out of use|asks? for it|begins? anew|mended|mends",
        ),
        limit: Limit::None,
        advice: "say it plainly",
        wrong: "A kill is made good by the next start.",
        right: "The next start reconciles after a kill.",
    },
    Rule {
        name: "forgotten",
        finds: Finds::Phrase("connections? (?:are|is|be|being|were|has been|have been) forgotten|forget connections?"),
        limit: Limit::None,
        advice: "delete conntrack entries",
        wrong: "Its connections are forgotten.",
        right: "Its conntrack entries are deleted.",
    },
    Rule {
        name: "said",
        finds: Finds::Phrase("is said|are said|says so|said so|it says|says that"),
        limit: Limit::Advice,
        advice: "is logged, is reported, states",
        wrong: "The log says that a set is missing.",
        right: "The log reports a missing set.",
    },
    Rule {
        name: SENTENCE,
        finds: Finds::Measure,
        limit: Limit::None,
        advice: "at most 40 words a sentence, one idea each",
        wrong: "The agent reads policies, and ….",
        right: "The agent reads policies. ….",
    },
    Rule {
        name: WIDTH,
        finds: Finds::Measure,
        limit: Limit::None,
        advice: "wrap comments at 100 columns",
        wrong: "// … beyond column 100",
        right: "// …",
    },
    Rule {
        name: HELP,
        finds: Finds::Measure,
        limit: Limit::None,
        advice: "imperative, at most 72 characters",
        wrong: "Who talks to whom on this node",
        right: "Show connections of this node",
    },
    Rule {
        name: COMMIT,
        finds: Finds::Measure,
        limit: Limit::None,
        advice: "`area: imperative`, at most 72 characters",
        wrong: "Tables were fixed",
        right: "nftables: list base chains once",
    },
];

#[cfg(test)]
mod tests {
    use super::super::measures::Phrases;
    use super::*;

    #[test]
    fn each_phrase_is_found_in_its_wrong_example_only() {
        let phrases = Phrases::compile();
        for rule in RULES.iter().filter(|rule| matches!(rule.finds, Finds::Phrase(_))) {
            assert!(phrases.broken_by(rule.wrong).any(|name| name == rule.name), "{}: {}", rule.name, rule.wrong);
            assert_eq!(phrases.broken_by(rule.right).next(), None, "{}: {}", rule.name, rule.right);
        }
    }

    #[test]
    fn names_of_rules_are_unique() {
        let names: std::collections::BTreeSet<&str> = RULES.iter().map(|rule| rule.name).collect();
        assert_eq!(names.len(), RULES.len());
    }
}
