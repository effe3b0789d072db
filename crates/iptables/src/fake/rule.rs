//! Rules as the kernel sees them: the spelling and the order of options are lost.

use std::fmt;

use crate::fake::refused::Refused;

/// A rule with its options in the order in which they are printed.
#[derive(Clone, Debug)]
pub(super) struct FakeRule {
    pub(super) id: u64,
    words: Vec<String>,
    target: Option<Target>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) name: String,
    pub(super) is_goto: bool,
}

/// Options that belong to no match, in print order, with their long names.
const BASIC_OPTIONS: [(&str, &str); 5] = [
    ("-s", "--source"),
    ("-d", "--destination"),
    ("-i", "--in-interface"),
    ("-o", "--out-interface"),
    ("-p", "--protocol"),
];

impl FakeRule {
    /// Reads a rule from the words after `-A CHAIN`.
    pub(super) fn new(id: u64, words: &[String]) -> Result<Self, Refused> {
        let mut basic: [Vec<String>; BASIC_OPTIONS.len()] = Default::default();
        let (mut matches, mut action) = (Vec::new(), Vec::new());
        let mut target = None;
        let mut words = words.iter().peekable();
        let mut negated = false;
        while let Some(word) = words.next() {
            let basic_at = BASIC_OPTIONS.iter().position(|(short, long)| word == short || word == long);
            if word == "!" {
                negated = true;
                continue;
            }
            if let Some(at) = basic_at {
                let value = words.next().ok_or_else(|| Refused::NoArgument(word.clone()))?;
                basic[at].extend(negated.then(|| "!".to_owned()));
                basic[at].extend([BASIC_OPTIONS[at].0.to_owned(), basic_value(at, value)]);
            } else if matches!(word.as_str(), "-j" | "--jump" | "-g" | "--goto") {
                let name = words.next().ok_or_else(|| Refused::NoArgument(word.clone()))?;
                let is_goto = matches!(word.as_str(), "-g" | "--goto");
                action = vec![if is_goto { "-g" } else { "-j" }.to_owned(), name.clone()];
                target = Some(Target { name: name.clone(), is_goto });
            } else {
                let part = if action.is_empty() || word == "-m" { &mut matches } else { &mut action };
                part.extend(negated.then(|| "!".to_owned()));
                match respelt(word) {
                    Some((option, print)) => {
                        part.push(option.to_owned());
                        part.extend(words.next().map(|value| print(value)));
                    }
                    None => part.push(word.clone()),
                }
            }
            negated = false;
        }
        let words = basic.into_iter().flatten().chain(matches).chain(action).collect();
        Ok(Self { id, words, target })
    }

    pub(super) fn target(&self) -> Option<&Target> {
        self.target.as_ref()
    }

    /// Reports whether two rules are equal to `iptables -D`.
    pub(super) fn has_same_text(&self, other: &Self) -> bool {
        self.words == other.words
    }

    /// The IP sets that the rule refers to.
    pub(super) fn ip_sets(&self) -> impl Iterator<Item = &str> {
        let pairs = self.words.iter().zip(self.words.iter().skip(1));
        pairs.filter(|(option, _)| *option == "--match-set").map(|(_, name)| name.as_str())
    }
}

fn basic_value(at: usize, value: &str) -> String {
    match (BASIC_OPTIONS[at].0, value) {
        ("-s" | "-d", net) if !net.contains('/') => {
            format!("{net}/{}", if net.contains(':') { 128 } else { 32 })
        }
        ("-p", "6") => "tcp".to_owned(),
        ("-p", "17") => "udp".to_owned(),
        ("-p", "4") => "ipencap".to_owned(),
        ("-p", "58") => "ipv6-icmp".to_owned(),
        _ => value.to_owned(),
    }
}

type Spelling = fn(&str) -> String;

/// Returns the printed spelling of some options, and of their values.
fn respelt(option: &str) -> Option<(&'static str, Spelling)> {
    match option {
        "--set-mark" => Some(("--set-xmark", hexadecimal)),
        "--mark" => Some(("--mark", hexadecimal)),
        "--source-ports" => Some(("--sports", str::to_owned)),
        "--destination-ports" => Some(("--dports", str::to_owned)),
        _ => None,
    }
}

/// `0/0x10` is printed as `0x0/0x10`.
fn hexadecimal(value: &str) -> String {
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    let printed: Option<Vec<String>> =
        value.split('/').map(|part| number(part).map(|number| format!("{number:#x}"))).collect();
    printed.map_or_else(|| value.to_owned(), |parts| parts.join("/"))
}

impl fmt::Display for FakeRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, word) in self.words.iter().enumerate() {
            let space = if index == 0 { "" } else { " " };
            let follows_text = index > 0 && matches!(self.words[index - 1].as_str(), "--comment" | "--log-prefix");
            let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
            if follows_text && !word.chars().all(is_plain) {
                write!(f, "{space}\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\""))?;
            } else {
                write!(f, "{space}{word}")?;
            }
        }
        Ok(())
    }
}

/// Splits a line like `iptables-restore`: at spaces outside double quotes; a backslash escapes the
/// next character.
pub(super) fn split(line: &str) -> Result<Vec<String>, Refused> {
    let mut words: Vec<String> = Vec::new();
    let mut word: Option<String> = None;
    let mut quoted = false;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            '\\' if quoted => word.get_or_insert_default().extend(chars.next()),
            c if c.is_ascii_whitespace() && !quoted => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    if quoted {
        return Err(Refused::UnbalancedQuotes);
    }
    words.extend(word);
    Ok(words)
}
