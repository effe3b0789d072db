//! Commands that create a table.

use std::collections::BTreeMap;

use tortie_iptables::Family;

use super::{
    NotATable, Parsed, Ruleset,
    elements::{Collection, Element, Pattern},
    selectors::Kind,
    statements::{self, Statement, Verdict},
};

/// Words of a line, separated by spaces; braces, commas and semicolons are separate words.
#[derive(Debug)]
pub(super) struct Words {
    words: Vec<String>,
    at: usize,
}

impl Words {
    fn new(line: &str) -> Self {
        let mut words = vec![String::new()];
        let mut is_quoted = false;
        for character in line.chars() {
            let is_alone = !is_quoted && matches!(character, '{' | '}' | ',' | ';');
            if is_alone || (!is_quoted && character.is_whitespace()) {
                words.push(if is_alone { character.into() } else { String::new() });
                words.push(String::new());
            } else {
                // The leading quote is kept, to distinguish a string from a keyword.
                is_quoted ^= character == '"';
                if let Some(word) = words.last_mut() {
                    word.push(character);
                }
            }
        }
        words.retain(|word| !word.is_empty());
        Self { words, at: 0 }
    }

    pub(super) fn peek(&self) -> Option<&str> {
        self.words.get(self.at).map(String::as_str)
    }

    pub(super) fn next(&mut self) -> Parsed<String> {
        let word = self.words.get(self.at).cloned().ok_or("the line ends too early")?;
        self.at += 1;
        Ok(word)
    }

    /// Consumes this word if it is the next.
    pub(super) fn eat(&mut self, word: &str) -> bool {
        let is_next = self.peek() == Some(word);
        self.at += usize::from(is_next);
        is_next
    }

    pub(super) fn expect(&mut self, word: &str) -> Parsed<()> {
        if self.eat(word) { Ok(()) } else { Err(format!("{word:?} is missing before {:?}", self.peek()).into()) }
    }

    /// Returns the next word without its quotes.
    pub(super) fn unquoted(&mut self) -> Parsed<String> {
        Ok(self.next()?.trim_matches('"').to_owned())
    }

    pub(super) fn number(&mut self) -> Parsed<u32> {
        let word = self.next()?;
        super::elements::number(Kind::Number, &word).ok_or_else(|| format!("{word:?} is no number").into())
    }

    fn end(&self) -> Parsed<()> {
        self.peek().map_or(Ok(()), |word| Err(format!("{word:?} is not understood").into()))
    }
}

/// Parses all commands.
pub(super) fn parse(text: &str) -> Result<Ruleset, NotATable> {
    let mut found: Option<Ruleset> = None;
    let numbered = text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty() && !line.starts_with('#'));
    for (line, number) in numbered {
        let failed = |source| NotATable { line: number, source, text: line.to_owned() };
        command(&mut found, &mut Words::new(line)).map_err(failed)?;
    }
    found.ok_or_else(|| NotATable { line: 0, source: "there is no table".into(), text: String::new() })
}

fn command(found: &mut Option<Ruleset>, words: &mut Words) -> Parsed<()> {
    let (verb, object) = (words.next()?, words.next()?);
    let family = match words.next()?.as_str() {
        "ip" => Family::V4,
        "ip6" => Family::V6,
        other => return Err(format!("a table of family {other:?}").into()),
    };
    let name = words.next()?;
    if (verb.as_str(), object.as_str()) == ("add", "table") {
        let new =
            Ruleset { family, name, chains: BTreeMap::new(), bases: BTreeMap::new(), collections: BTreeMap::new() };
        let table = found.get_or_insert_with(|| new.clone());
        let is_same = (table.family, &table.name) == (new.family, &new.name);
        return if is_same { words.end() } else { Err("a second table".into()) };
    }
    let table = found.as_mut().filter(|table| (table.family, &table.name) == (family, &name));
    let table = table.ok_or("there is no such table")?;
    let name = words.next()?;
    match (verb.as_str(), object.as_str()) {
        ("add", "chain") => table.add_chain(name, words)?,
        ("flush", "chain") => table.chains.get_mut(&name).ok_or("there is no such chain")?.clear(),
        ("add", "set" | "map") => table.add_collection(name, object == "map", words)?,
        ("add", "element") => {
            let collection = table.collections.get(&name).ok_or("there is no such set or map")?;
            let elements = elements(&collection.kinds.clone(), words)?;
            table.check_verdicts(elements.iter().filter_map(|element| element.verdict.as_ref()))?;
            let collection = table.collections.get_mut(&name).ok_or("there is no such set or map")?;
            elements.into_iter().try_for_each(|element| collection.add(element))?;
        }
        ("add", "rule") => {
            let rule = statements::parse(family, words)?;
            table.check(&rule)?;
            table.chains.get_mut(&name).ok_or("there is no such chain")?.push(rule);
        }
        _ => return Err("not a command that makes a table".into()),
    }
    words.end()
}

impl Ruleset {
    fn add_chain(&mut self, name: String, words: &mut Words) -> Parsed<()> {
        if words.eat("{") {
            let mut bound = Vec::new();
            while !words.eat(";") {
                bound.push(words.next()?);
            }
            words.expect("}")?;
            self.bases.insert(name.clone(), bound.join(" "));
        }
        self.chains.entry(name).or_default();
        Ok(())
    }

    fn add_collection(&mut self, name: String, is_map: bool, words: &mut Words) -> Parsed<()> {
        words.expect("{")?;
        words.expect("type")?;
        let mut kinds = vec![self.kind(&words.next()?)?];
        while words.eat(".") {
            kinds.push(self.kind(&words.next()?)?);
        }
        if is_map {
            words.expect(":")?;
            words.expect("verdict")?;
        }
        words.expect(";")?;
        let mut holds_intervals = false;
        if words.eat("flags") {
            words.expect("interval")?;
            words.expect(";")?;
            holds_intervals = true;
        }
        words.expect("}")?;
        self.collections.entry(name).or_insert_with(|| Collection::new(kinds, holds_intervals, is_map));
        Ok(())
    }

    fn kind(&self, word: &str) -> Parsed<Kind> {
        match (word, self.family) {
            ("ipv4_addr", Family::V4) | ("ipv6_addr", Family::V6) => Ok(Kind::Address),
            ("inet_proto", _) => Ok(Kind::Protocol),
            ("inet_service" | "mark", _) => Ok(Kind::Number),
            ("ifname", _) => Ok(Kind::Interface),
            _ => Err(format!("elements of type {word:?}").into()),
        }
    }

    /// Checks a rule for errors that the kernel would report.
    fn check(&self, rule: &[Statement]) -> Parsed<()> {
        for statement in rule {
            match statement {
                Statement::Verdict(verdict) => self.check_verdicts([verdict])?,
                Statement::Match { selectors, operand: statements::Operand::Of(source), .. }
                | Statement::Lead { selectors, map: source } => {
                    let kinds: Vec<Kind> = selectors.iter().map(|selector| selector.kind()).collect();
                    let wants_map = matches!(statement, Statement::Lead { .. });
                    let collection = self.collection(source);
                    let fits = collection.is_some_and(|it| it.kinds == kinds && it.is_map == wants_map);
                    if !fits {
                        return Err("there is no such set or map".into());
                    }
                    self.check_verdicts(collection.into_iter().flat_map(Collection::verdicts))?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn check_verdicts<'v>(&self, verdicts: impl IntoIterator<Item = &'v Verdict>) -> Parsed<()> {
        for verdict in verdicts {
            if let Verdict::Jump(chain) | Verdict::Goto(chain) = verdict {
                if !self.chains.contains_key(chain) {
                    return Err(format!("there is no chain {chain}").into());
                }
                if self.bases.contains_key(chain) {
                    return Err(format!("{chain} is a base chain").into());
                }
            }
        }
        Ok(())
    }
}

/// Parses elements in braces.
pub(super) fn elements(kinds: &[Kind], words: &mut Words) -> Parsed<Vec<Element>> {
    words.expect("{")?;
    let mut elements = Vec::new();
    while !words.eat("}") {
        let key = key(kinds, words)?;
        let verdict = words.eat(":").then(|| statements::verdict(words)).transpose()?;
        elements.push(Element { key, verdict });
        if words.peek() != Some("}") {
            words.expect(",")?;
        }
    }
    Ok(elements)
}

/// Parses the parts of an element, separated by dots.
pub(super) fn key(kinds: &[Kind], words: &mut Words) -> Parsed<Vec<Pattern>> {
    let mut key = Vec::new();
    for (kind, position) in kinds.iter().zip(0..) {
        if position > 0 {
            words.expect(".")?;
        }
        key.push(Pattern::parse(*kind, &words.unquoted()?)?);
    }
    Ok(key)
}
