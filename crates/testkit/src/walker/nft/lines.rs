//! Commands that create a table.

use std::collections::BTreeMap;

use tortie_iptables::Family;

use super::{
    NotATable, Parsed, Ruleset,
    elements::{Collection, Element, Pattern},
    selectors::Kind,
    statements::{self, Statement, StatementVerdict},
};

/// Words of a line, separated by spaces; braces, commas and semicolons are separate words.
#[derive(Debug)]
pub(super) struct Tokens {
    tokens: Vec<String>,
    at: usize,
}

impl Tokens {
    fn new(line: &str) -> Self {
        let mut tokens = vec![String::new()];
        let mut is_quoted = false;
        for character in line.chars() {
            let is_alone = !is_quoted && matches!(character, '{' | '}' | ',' | ';');
            if is_alone || (!is_quoted && character.is_whitespace()) {
                tokens.push(if is_alone { character.into() } else { String::new() });
                tokens.push(String::new());
            } else {
                // The leading quote is kept, to distinguish a string from a keyword.
                is_quoted ^= character == '"';
                if let Some(word) = tokens.last_mut() {
                    word.push(character);
                }
            }
        }
        tokens.retain(|word| !word.is_empty());
        Self { tokens, at: 0 }
    }

    pub(super) fn peek(&self) -> Option<&str> {
        self.tokens.get(self.at).map(String::as_str)
    }

    pub(super) fn next(&mut self) -> Parsed<String> {
        let word = self.tokens.get(self.at).cloned().ok_or("the line ends too early")?;
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
        command(&mut found, &mut Tokens::new(line)).map_err(failed)?;
    }
    found.ok_or_else(|| NotATable { line: 0, source: "there is no table".into(), text: String::new() })
}

fn command(found: &mut Option<Ruleset>, tokens: &mut Tokens) -> Parsed<()> {
    let (verb, object) = (tokens.next()?, tokens.next()?);
    let family = match tokens.next()?.as_str() {
        "ip" => Family::V4,
        "ip6" => Family::V6,
        other => return Err(format!("a table of family {other:?}").into()),
    };
    let name = tokens.next()?;
    if (verb.as_str(), object.as_str()) == ("add", "table") {
        let new =
            Ruleset { family, name, chains: BTreeMap::new(), bases: BTreeMap::new(), collections: BTreeMap::new() };
        let table = found.get_or_insert_with(|| new.clone());
        let is_same = (table.family, &table.name) == (new.family, &new.name);
        return if is_same { tokens.end() } else { Err("a second table".into()) };
    }
    let table = found.as_mut().filter(|table| (table.family, &table.name) == (family, &name));
    let table = table.ok_or("there is no such table")?;
    let name = tokens.next()?;
    match (verb.as_str(), object.as_str()) {
        ("add", "chain") => table.add_chain(name, tokens)?,
        ("flush", "chain") => table.chains.get_mut(&name).ok_or("there is no such chain")?.clear(),
        ("add", "set" | "map") => table.add_collection(name, object == "map", tokens)?,
        ("add", "element") => {
            let collection = table.collections.get(&name).ok_or("there is no such set or map")?;
            let elements = elements(&collection.kinds.clone(), tokens)?;
            table.check_verdicts(elements.iter().filter_map(|element| element.verdict.as_ref()))?;
            let collection = table.collections.get_mut(&name).ok_or("there is no such set or map")?;
            elements.into_iter().try_for_each(|element| collection.add(element))?;
        }
        ("add", "rule") => {
            let rule = statements::parse(family, tokens)?;
            table.check(&rule)?;
            table.chains.get_mut(&name).ok_or("there is no such chain")?.push(rule);
        }
        _ => return Err("not a command that makes a table".into()),
    }
    tokens.end()
}

impl Ruleset {
    fn add_chain(&mut self, name: String, tokens: &mut Tokens) -> Parsed<()> {
        if tokens.eat("{") {
            let mut bound = Vec::new();
            while !tokens.eat(";") {
                bound.push(tokens.next()?);
            }
            tokens.expect("}")?;
            self.bases.insert(name.clone(), bound.join(" "));
        }
        self.chains.entry(name).or_default();
        Ok(())
    }

    fn add_collection(&mut self, name: String, is_map: bool, tokens: &mut Tokens) -> Parsed<()> {
        tokens.expect("{")?;
        tokens.expect("type")?;
        let mut kinds = vec![self.kind(&tokens.next()?)?];
        while tokens.eat(".") {
            kinds.push(self.kind(&tokens.next()?)?);
        }
        if is_map {
            tokens.expect(":")?;
            tokens.expect("verdict")?;
        }
        tokens.expect(";")?;
        let mut holds_intervals = false;
        if tokens.eat("flags") {
            tokens.expect("interval")?;
            tokens.expect(";")?;
            holds_intervals = true;
        }
        tokens.expect("}")?;
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

    fn check_verdicts<'v>(&self, verdicts: impl IntoIterator<Item = &'v StatementVerdict>) -> Parsed<()> {
        for verdict in verdicts {
            if let StatementVerdict::Jump(chain) | StatementVerdict::Goto(chain) = verdict {
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
pub(super) fn elements(kinds: &[Kind], tokens: &mut Tokens) -> Parsed<Vec<Element>> {
    tokens.expect("{")?;
    let mut elements = Vec::new();
    while !tokens.eat("}") {
        let key = key(kinds, tokens)?;
        let verdict = tokens.eat(":").then(|| statements::verdict(tokens)).transpose()?;
        elements.push(Element { key, verdict });
        if tokens.peek() != Some("}") {
            tokens.expect(",")?;
        }
    }
    Ok(elements)
}

/// Parses the parts of an element, separated by dots.
pub(super) fn key(kinds: &[Kind], tokens: &mut Tokens) -> Parsed<Vec<Pattern>> {
    let mut key = Vec::new();
    for (kind, position) in kinds.iter().zip(0..) {
        if position > 0 {
            tokens.expect(".")?;
        }
        key.push(Pattern::parse(*kind, &tokens.unquoted()?)?);
    }
    Ok(key)
}
