//! The grammar, in a single pass over the text.
//!
//! ```text
//! or        = and ("||" and)*
//! and       = condition ("&&" condition)*
//! condition = "!"* ("(" or ")" | call | label operator (string | set))
//! ```
//!
//! Open parentheses are kept on a stack of our own, so depth is limited by a counter and never by the
//! stack of the thread.

use nom::Parser as _;

use crate::error::{Found, ParseError, ParseErrorKind};
use crate::expr::{Expr, Label, MAX_DEPTH, MAX_TERMS, ValueSet};
use crate::token::{self, Call, Comparison, Fault, Operator, skip_blanks};

/// Parses `text` into an expression.
pub(crate) fn expression(text: &str) -> Result<Expr, ParseError> {
    parse::<Expr>(text)
}

/// Parses `text` and keeps nothing.
pub(crate) fn syntax(text: &str) -> Result<(), ParseError> {
    parse::<()>(text)
}

/// What a parse produces: an expression, or nothing if only the syntax matters.
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

    fn and(mut operands: Vec<Expr>) -> Expr {
        operands.shrink_to_fit();
        Expr::And(operands)
    }

    fn or(mut operands: Vec<Expr>) -> Expr {
        operands.shrink_to_fit();
        Expr::Or(operands)
    }
}

/// A node and how many operators are nested in it.
struct Operand<N> {
    node: N,
    depth: usize,
}

impl<N: Node> Operand<N> {
    fn negated_if(self, negated: bool) -> Operand<N> {
        if negated { Operand { node: N::not(self.node), depth: self.depth + 1 } } else { self }
    }
}

/// The operands so far of one operator.
struct Operands<N> {
    nodes: Vec<N>,
    /// The deepest operand.
    depth: usize,
}

impl<N: Node> Operands<N> {
    const EMPTY: Operands<N> = Operands { nodes: Vec::new(), depth: 0 };

    fn push(&mut self, operand: Operand<N>) {
        if self.nodes.capacity() == 0 {
            // Most groups have two.
            self.nodes.reserve_exact(2);
        }
        self.nodes.push(operand.node);
        self.depth = self.depth.max(operand.depth);
    }

    /// Takes the operands, with `last`, as one; a single one stays as it is.
    fn close(&mut self, last: Operand<N>, group: impl FnOnce(Vec<N>) -> N) -> Operand<N> {
        if self.nodes.is_empty() {
            return last;
        }
        self.push(last);
        let operands = std::mem::replace(self, Self::EMPTY);
        Operand { node: group(operands.nodes), depth: operands.depth + 1 }
    }
}

/// What is open between a parenthesis and the place that parsing has reached.
struct Frame<N> {
    or: Operands<N>,
    and: Operands<N>,
    /// Whether `!` stands before the parenthesis that opened the frame.
    negated: bool,
    /// Further parentheses opened at once after the one that opened the frame, as in `((a) && b)`.
    parentheses: usize,
    /// Operators that surround the frame for certain.
    depth: usize,
}

impl<N: Node> Frame<N> {
    fn new(negated: bool, depth: usize) -> Frame<N> {
        Frame { or: Operands::EMPTY, and: Operands::EMPTY, negated, parentheses: 0, depth }
    }

    fn is_fresh(&self) -> bool {
        self.or.nodes.is_empty() && self.and.nodes.is_empty()
    }

    /// The depth of what the next operand contains, seen from the outermost operator.
    fn operand_depth(&self, negated: bool) -> usize {
        self.depth
            + usize::from(!self.or.nodes.is_empty())
            + usize::from(!self.and.nodes.is_empty())
            + usize::from(negated)
    }

    fn close(&mut self, last: Operand<N>) -> Operand<N> {
        let last = self.and.close(last, N::and);
        self.or.close(last, N::or)
    }
}

fn parse<N: Node>(text: &str) -> Result<N, ParseError> {
    grammar(text).map_err(|error| match error {
        nom::Err::Error(fault) | nom::Err::Failure(fault) => {
            let start = text.len() - fault.left;
            ParseError::new(start..start + fault.length, fault.kind)
        }
        nom::Err::Incomplete(_) => {
            ParseError::new(text.len()..text.len(), ParseErrorKind::ExpectedCondition(Found::End))
        }
    })
}

fn grammar<N: Node>(text: &str) -> Result<N, nom::Err<Fault>> {
    let mut rest = skip_blanks(text);
    if rest.is_empty() {
        return Ok(N::call(Call::All));
    }
    let mut outer: Vec<Frame<N>> = Vec::new();
    let mut frame = Frame::new(false, 0);
    let mut terms = Terms::default();
    loop {
        // Before a condition.
        let start = rest;
        let mut negated = false;
        while rest.starts_with('!') && !rest.starts_with("!=") {
            negated = !negated;
            rest = skip_blanks(&rest[1..]);
        }
        if rest.starts_with('(') {
            rest = skip_blanks(&rest[1..]);
            if !negated && frame.is_fresh() {
                frame.parentheses += 1;
            } else {
                let depth = frame.operand_depth(negated);
                check_depth(start, depth)?;
                outer.push(std::mem::replace(&mut frame, Frame::new(negated, depth)));
            }
            continue;
        }
        let (after, node) = condition::<N>(rest, &mut terms)?;
        let mut operand = Operand { node, depth: 0 }.negated_if(negated);

        // After a condition.
        rest = skip_blanks(after);
        loop {
            match rest.as_bytes() {
                [] => {
                    if frame.parentheses > 0 || !outer.is_empty() {
                        return Err(nom::Err::Failure(unclosed_parenthesis(text)));
                    }
                    let whole = frame.close(operand);
                    check_depth(text, whole.depth)?;
                    return Ok(whole.node);
                }
                [b')', ..] => {
                    let whole = frame.close(operand);
                    operand = if frame.parentheses > 0 {
                        frame.parentheses -= 1;
                        whole
                    } else if let Some(outside) = outer.pop() {
                        let inside = std::mem::replace(&mut frame, outside);
                        whole.negated_if(inside.negated)
                    } else {
                        let kind = ParseErrorKind::UnmatchedParenthesis;
                        return Err(nom::Err::Failure(Fault::new(rest, 1, kind)));
                    };
                    check_depth(rest, operand.depth)?;
                    rest = skip_blanks(&rest[1..]);
                }
                [b'&', b'&', ..] => {
                    frame.and.push(operand);
                    rest = skip_blanks(&rest[2..]);
                    break;
                }
                [b'|', b'|', ..] => {
                    let term = frame.and.close(operand, N::and);
                    frame.or.push(term);
                    rest = skip_blanks(&rest[2..]);
                    break;
                }
                _ => return Err(nom::Err::Failure(expected_end(rest))),
            }
        }
    }
}

fn check_depth(rest: &str, depth: usize) -> Result<(), nom::Err<Fault>> {
    if depth > MAX_DEPTH {
        let length = rest.chars().next().map_or(0, char::len_utf8);
        return Err(nom::Err::Failure(Fault::new(rest, length, ParseErrorKind::TooDeep)));
    }
    Ok(())
}

/// Number of conditions and values so far.
#[derive(Default)]
struct Terms(usize);

impl Terms {
    fn add(&mut self, rest: &str) -> Result<(), nom::Err<Fault>> {
        self.0 += 1;
        if self.0 > MAX_TERMS {
            let length = rest.chars().next().map_or(0, char::len_utf8);
            return Err(nom::Err::Failure(Fault::new(rest, length, ParseErrorKind::TooLarge)));
        }
        Ok(())
    }
}

/// A call, or a label with its operator and right side.
fn condition<'t, N: Node>(text: &'t str, terms: &mut Terms) -> token::Lexed<'t, N> {
    terms.add(text)?;
    let (rest, call) = token::call(text)?;
    if let Some(call) = call {
        return Ok((rest, N::call(call)));
    }
    let (rest, label) = token::label(text)?;
    if label.is_empty() {
        let fault = Fault::unexpected(text, ParseErrorKind::ExpectedCondition);
        return Err(nom::Err::Failure(fault));
    }
    let (rest, operator) = token::operator(skip_blanks(rest), label)?;
    let rest = skip_blanks(rest);
    match operator {
        Operator::Compare(comparison) => {
            let (after, value) = token::string(rest)?;
            let value = value.ok_or_else(|| {
                nom::Err::Failure(Fault::unexpected(rest, |found| ParseErrorKind::ExpectedString {
                    operator: operator.symbol(),
                    found,
                }))
            })?;
            Ok((after, N::compare(label, comparison, value)))
        }
        Operator::In | Operator::NotIn => {
            let (after, values) = set::<N>(rest, operator, terms)?;
            Ok((after, N::member(label, operator == Operator::NotIn, values)))
        }
    }
}

/// `{` strings separated by commas `}`. A comma after the last is allowed.
fn set<'t, N: Node>(text: &'t str, operator: Operator, terms: &mut Terms) -> token::Lexed<'t, Vec<N::Value>> {
    let Some(inside) = text.strip_prefix('{') else {
        let fault = Fault::unexpected(text, |found| ParseErrorKind::ExpectedSet { operator: operator.symbol(), found });
        return Err(nom::Err::Failure(fault));
    };
    let mut values = Vec::new();
    let mut rest = skip_blanks(inside);
    loop {
        let (after, value) = token::string.parse(rest)?;
        let Some(value) = value else {
            return close_set(rest, values, ParseErrorKind::ExpectedSetValue);
        };
        terms.add(rest)?;
        values.push(N::value(value));
        rest = skip_blanks(after);
        match rest.strip_prefix(',') {
            Some(after) => rest = skip_blanks(after),
            None => return close_set(rest, values, ParseErrorKind::ExpectedSetEnd),
        }
    }
}

fn close_set<V>(
    text: &str,
    values: Vec<V>,
    otherwise: impl FnOnce(Found) -> ParseErrorKind,
) -> token::Lexed<'_, Vec<V>> {
    match text.strip_prefix('}') {
        Some(rest) => Ok((rest, values)),
        None => Err(nom::Err::Failure(Fault::unexpected(text, otherwise))),
    }
}

#[cold]
fn expected_end(rest: &str) -> Fault {
    let half = match rest.as_bytes().first() {
        Some(b'&') => Some("&&"),
        Some(b'|') => Some("||"),
        _ => None,
    };
    match half {
        Some(whole) => Fault::new(rest, 1, ParseErrorKind::HalfOperator { whole }),
        None => Fault::unexpected(rest, ParseErrorKind::ExpectedEnd),
    }
}

/// Finds the innermost parenthesis that is open at the end of `text`, which is well-formed otherwise.
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
