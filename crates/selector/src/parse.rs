//! The grammar, in a single pass over the text.
//!
//! ```text
//! expression = or
//! or         = and ("||" and)*
//! and        = not ("&&" not)*
//! not        = "!"* (group | condition)
//! group      = "(" expression ")"
//! condition  = call | comparison
//! comparison = label operator (string | set)
//! ```
//!
//! A rule recurses only for a parenthesis within an operator, so the limit of nested operators also
//! limits the stack. The parentheses at the start of an expression, as in `((a) && b)`, are counted
//! instead; their number is unlimited.

use nom::combinator::{cond, opt};
use nom::multi::{many0_count, separated_list0};
use nom::sequence::preceded;
use nom::{Finish as _, Parser as _};

use crate::error::{ParseError, ParseErrorKind};
use crate::expr::{Expr, Label, MAX_DEPTH, MAX_TERMS, ValueSet};
use crate::token::{self, Call, Comparison, Fault, Lexed, Operator, Refusal};
use crate::token::{and_operator, blanks, expected, fail, failure, negation, opening, or_operator, skip_blanks};

/// Parses `text` into an expression.
pub(crate) fn expression(text: &str) -> Result<Expr, ParseError> {
    parse::<Expr>(text)
}

/// Checks the syntax of `text`.
pub(crate) fn syntax(text: &str) -> Result<(), ParseError> {
    parse::<()>(text)
}

/// Result of a parse: an expression, or nothing if only the syntax matters.
trait Node: Sized {
    type Value;

    fn value(text: &str) -> Self::Value;
    fn call(call: Call<'_>) -> Self;
    fn compare(label: &str, comparison: Comparison, value: &str) -> Self;
    fn member(label: &str, negated: bool, values: Vec<Self::Value>) -> Self;
    fn not(operand: Self) -> Self;
    fn and(operands: Vec<Self>) -> Self;
    fn or(operands: Vec<Self>) -> Self;
}

impl Node for () {
    type Value = ();

    fn value(_: &str) {}
    fn call(_: Call<'_>) {}
    fn compare(_: &str, _: Comparison, _: &str) {}
    fn member(_: &str, _: bool, _: Vec<()>) {}
    fn not((): ()) {}
    fn and(_: Vec<()>) {}
    fn or(_: Vec<()>) {}
}

impl Node for Expr {
    type Value = Box<str>;

    fn value(text: &str) -> Box<str> {
        text.into()
    }

    fn call(call: Call<'_>) -> Expr {
        match call {
            Call::All => Expr::All,
            Call::Global => Expr::Global,
            Call::Has(label) => Expr::Has(Label::from_checked(label)),
        }
    }

    fn compare(label: &str, comparison: Comparison, value: &str) -> Expr {
        let label = Label::from_checked(label);
        let value = value.into();
        match comparison {
            Comparison::Eq => Expr::Eq(label, value),
            Comparison::NotEq => Expr::NotEq(label, value),
            Comparison::Contains => Expr::Contains(label, value),
            Comparison::StartsWith => Expr::StartsWith(label, value),
            Comparison::EndsWith => Expr::EndsWith(label, value),
        }
    }

    fn member(label: &str, negated: bool, values: Vec<Box<str>>) -> Expr {
        let label = Label::from_checked(label);
        let values = ValueSet::from(values);
        if negated { Expr::NotIn(label, values) } else { Expr::In(label, values) }
    }

    fn not(operand: Expr) -> Expr {
        Expr::Not(Box::new(operand))
    }

    fn and(operands: Vec<Expr>) -> Expr {
        Expr::And(operands)
    }

    fn or(operands: Vec<Expr>) -> Expr {
        Expr::Or(operands)
    }
}

/// Nodes whose operator has not been read yet, in the order of the text.
struct Nodes<N> {
    before: Vec<N>,
    /// Kept apart, so that a single condition needs no list.
    last: Option<N>,
}

impl<N: Node> Nodes<N> {
    const EMPTY: Nodes<N> = Nodes { before: Vec::new(), last: None };

    fn push(&mut self, node: N) {
        if let Some(previous) = self.last.replace(node) {
            self.before.push(previous);
        }
    }

    /// Returns the index of the last node.
    fn mark(&self) -> usize {
        self.before.len()
    }

    /// Puts `!` before the last node.
    fn negate(&mut self) {
        self.last = self.last.take().map(N::not);
    }

    /// Joins all nodes from `mark` on into one; a single one stays as it is. Returns the added
    /// depth.
    fn join(&mut self, mark: usize, operator: impl FnOnce(Vec<N>) -> N) -> usize {
        if self.mark() == mark {
            return 0;
        }
        self.before.extend(self.last.take());
        self.last = Some(operator(self.before.split_off(mark)));
        1
    }
}

fn parse<N: Node>(text: &str) -> Result<N, ParseError> {
    let mut grammar = Grammar { nodes: Nodes::EMPTY, terms: 0 };
    match grammar.selector(text).finish() {
        // A text without a condition is `all()`.
        Ok(_) => Ok(grammar.nodes.last.unwrap_or_else(|| N::call(Call::All))),
        Err(refusal) => {
            let fault = refusal.fault(text);
            let start = text.len() - fault.left;
            Err(ParseError::new(start..start + fault.length, fault.kind))
        }
    }
}

/// The rules, and the nodes that they have produced.
///
/// Rules for operators and their operands return the nesting depth of the last node. `outside` is
/// the minimum number of operators around it.
struct Grammar<N> {
    nodes: Nodes<N>,
    /// Conditions and values so far.
    terms: usize,
}

impl<N: Node> Grammar<N> {
    /// Parses a whole text: an expression, or only blanks.
    fn selector<'t>(&mut self, text: &'t str) -> Lexed<'t, ()> {
        let start = skip_blanks(text);
        if start.is_empty() {
            return Ok((start, ()));
        }
        let (rest, depth) = self.expression(start, 0)?;
        if !rest.is_empty() {
            return fail(expected_end(rest));
        }
        check_depth(text, depth)?;
        Ok((rest, ()))
    }

    /// `or`, which may start with any number of parentheses.
    fn expression<'t>(&mut self, text: &'t str, outside: usize) -> Lexed<'t, usize> {
        let (rest, mut open) = many0_count(fresh_opening).parse(text)?;
        let (mut rest, mut depth) = self.not(rest, outside)?;
        loop {
            (rest, depth) = self.or(rest, depth, outside)?;
            if open == 0 {
                return Ok((rest, depth));
            }
            (rest, ()) = closing(rest, text, depth)?;
            open -= 1;
        }
    }

    /// Parses the rest of `or` after its first operand, which has operators nested to `depth`.
    fn or<'t>(&mut self, text: &'t str, depth: usize, outside: usize) -> Lexed<'t, usize> {
        let mark = self.nodes.mark();
        let (mut rest, mut depth, mut deepest) = (text, depth, 0);
        let mut around = outside;
        loop {
            (rest, depth) = self.and(rest, depth, around)?;
            deepest = deepest.max(depth);
            let Ok((operand, ())) = or_operator(rest) else {
                return Ok((rest, deepest + self.nodes.join(mark, N::or)));
            };
            around = outside + 1;
            (rest, depth) = self.not(operand, around)?;
        }
    }

    /// Parses the rest of `and` after its first operand, which has operators nested to `depth`.
    fn and<'t>(&mut self, text: &'t str, depth: usize, outside: usize) -> Lexed<'t, usize> {
        let mark = self.nodes.mark();
        let (mut rest, mut deepest) = (text, depth);
        while let Ok((operand, ())) = and_operator(rest) {
            let (after, depth) = self.not(operand, outside + 1)?;
            (rest, deepest) = (after, deepest.max(depth));
        }
        Ok((rest, deepest + self.nodes.join(mark, N::and)))
    }

    /// Parses a group or a condition. Two negations before it cancel each other.
    fn not<'t>(&mut self, text: &'t str, outside: usize) -> Lexed<'t, usize> {
        let (operand, negations) = many0_count(negation).parse(text)?;
        let negated = negations % 2 == 1;
        if operand.starts_with('(') {
            let outside = outside + usize::from(negated);
            check_depth(text, outside)?;
            return self.group(operand, negated, outside);
        }
        let (rest, ()) = self.condition(operand)?;
        Ok((rest, self.negate_if(negated, 0)))
    }

    /// Parses an expression in parentheses.
    fn group<'t>(&mut self, text: &'t str, negated: bool, outside: usize) -> Lexed<'t, usize> {
        let (rest, ()) = opening(text)?;
        let (rest, depth) = self.expression(rest, outside)?;
        let depth = self.negate_if(negated, depth);
        let (rest, ()) = closing(rest, text, depth)?;
        Ok((rest, depth))
    }

    fn negate_if(&mut self, negated: bool, depth: usize) -> usize {
        if negated {
            self.nodes.negate();
        }
        depth + usize::from(negated)
    }

    /// Parses a call or a comparison.
    fn condition<'t>(&mut self, text: &'t str) -> Lexed<'t, ()> {
        self.add_term(text)?;
        let (rest, call) = opt(token::call).parse(text)?;
        let (rest, node) = match call {
            Some(call) => (rest, N::call(call)),
            None => self.comparison(text)?,
        };
        self.nodes.push(node);
        blanks(rest)
    }

    /// Parses a label with its operator and right side.
    fn comparison<'t>(&mut self, text: &'t str) -> Lexed<'t, N> {
        let (rest, label) = expected(token::label, ParseErrorKind::ExpectedCondition)(text)?;
        let (rest, operator) = token::operator(skip_blanks(rest), label)?;
        let (rest, symbol) = (skip_blanks(rest), operator.symbol());
        match operator {
            Operator::Compare(comparison) => {
                let expected_string = |found| ParseErrorKind::ExpectedString { operator: symbol, found };
                let (rest, value) = expected(token::string, expected_string)(rest)?;
                Ok((rest, N::compare(label, comparison, value)))
            }
            Operator::In | Operator::NotIn => {
                let expected_set = |found| ParseErrorKind::ExpectedSet { operator: symbol, found };
                let (rest, ()) = expected(token::opening_brace, expected_set)(rest)?;
                let (rest, values) = self.set_values(rest)?;
                Ok((rest, N::member(label, operator == Operator::NotIn, values)))
            }
        }
    }

    /// Strings separated by commas, and `}`. A comma after the last is allowed.
    fn set_values<'t>(&mut self, text: &'t str) -> Lexed<'t, Vec<N::Value>> {
        let (rest, values) = separated_list0(token::comma, |text| self.set_value(text)).parse(text)?;
        let (rest, comma) = cond(!values.is_empty(), opt(token::comma)).parse(rest)?;
        let after_value = comma == Some(None);
        let otherwise = if after_value { ParseErrorKind::ExpectedSetEnd } else { ParseErrorKind::ExpectedSetValue };
        let (rest, ()) = expected(token::closing_brace, otherwise)(rest)?;
        Ok((rest, values))
    }

    fn set_value<'t>(&mut self, text: &'t str) -> Lexed<'t, N::Value> {
        let (rest, value) = token::string(text)?;
        self.add_term(text)?;
        Ok((skip_blanks(rest), N::value(value)))
    }

    fn add_term(&mut self, at: &str) -> Result<(), nom::Err<Refusal>> {
        self.terms += 1;
        if self.terms > MAX_TERMS { Err(excess(at, ParseErrorKind::TooLarge)) } else { Ok(()) }
    }
}

/// Parses a parenthesis at the start of an expression. Negations before it that cancel each other
/// belong to it.
fn fresh_opening(text: &str) -> Lexed<'_, ()> {
    preceded(many0_count((negation, negation)), opening).parse(text)
}

/// Parses the parenthesis that closes the last of `opened`, with operators nested to `depth`
/// inside.
fn closing<'t>(text: &'t str, opened: &str, depth: usize) -> Lexed<'t, ()> {
    let Ok((rest, ())) = token::closing(text) else {
        let unclosed = text.is_empty();
        return fail(if unclosed { unclosed_parenthesis(opened) } else { expected_end(text) });
    };
    check_depth(text, depth)?;
    Ok((rest, ()))
}

fn check_depth(at: &str, depth: usize) -> Result<(), nom::Err<Refusal>> {
    if depth > MAX_DEPTH { Err(excess(at, ParseErrorKind::TooDeep)) } else { Ok(()) }
}

/// Returns an error at the first character of `at`.
#[cold]
fn excess(at: &str, kind: ParseErrorKind) -> nom::Err<Refusal> {
    let length = at.chars().next().map_or(0, char::len_utf8);
    failure(Fault::new(at, length, kind))
}

#[cold]
fn expected_end(rest: &str) -> Fault {
    match rest.as_bytes().first() {
        Some(b'&') => Fault::new(rest, 1, ParseErrorKind::HalfOperator { whole: "&&" }),
        Some(b'|') => Fault::new(rest, 1, ParseErrorKind::HalfOperator { whole: "||" }),
        Some(b')') => Fault::new(rest, 1, ParseErrorKind::UnmatchedParenthesis),
        _ => Fault::unexpected(rest, ParseErrorKind::ExpectedEnd),
    }
}

/// Finds the innermost parenthesis that is open at the end of `text`, which is well-formed
/// otherwise.
#[cold]
fn unclosed_parenthesis(text: &str) -> Fault {
    let mut open = Vec::new();
    let mut quote = None;
    for (at, byte) in text.bytes().enumerate() {
        match (quote, byte) {
            (None, b'"' | b'\'') => quote = Some(byte),
            (Some(opening), _) if opening == byte => quote = None,
            (None, b'(') => open.push(at),
            (None, b')') => drop(open.pop()),
            _ => {}
        }
    }
    let at = open.pop().unwrap_or(text.len());
    Fault::new(&text[at..], 1, ParseErrorKind::UnclosedParenthesis)
}

#[cfg(test)]
mod tests;
