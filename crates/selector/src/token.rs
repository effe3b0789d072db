//! The words of the language, as nom parsers.
//!
//! The rules are those of `libcalico-go/lib/selector/tokenizer/tokenizer.go`. Parsers take text
//! that starts at their word, and return the text after it.

use nom::branch::alt;
use nom::character::complete::satisfy;
use nom::combinator::{not, value};
use nom::error::{ErrorKind, ParseError as NomError};
use nom::sequence::{delimited, preceded, terminated};
use nom::{IResult, Parser};

use crate::error::{Found, ParseErrorKind};
use crate::expr::{MAX_LABEL_LENGTH, is_label_byte};

pub(crate) type Lexed<'a, T> = IResult<&'a str, T, Refusal>;

/// Reason why a parser does not accept a text. It is small, because each result of a parser
/// contains it.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The text starts with something else, which another parser may accept.
    Pass,
    Fault(Box<Fault>),
}

impl Refusal {
    /// Converts the refusal of a text that no parser accepts.
    pub(crate) fn fault(self, text: &str) -> Fault {
        match self {
            Refusal::Pass => Fault::unexpected(text, ParseErrorKind::ExpectedCondition),
            Refusal::Fault(fault) => *fault,
        }
    }
}

impl NomError<&str> for Refusal {
    fn from_error_kind(_: &str, _: ErrorKind) -> Refusal {
        Refusal::Pass
    }

    fn append(_: &str, _: ErrorKind, other: Refusal) -> Refusal {
        other
    }
}

/// Syntax error, located by the length of the remaining text. The caller adds the text itself.
#[derive(Debug)]
pub(crate) struct Fault {
    /// Bytes from the start of the offending text to the end of all text.
    pub(crate) left: usize,
    /// Bytes of offending text.
    pub(crate) length: usize,
    pub(crate) kind: ParseErrorKind,
}

impl Fault {
    /// Returns an error of the first `length` bytes of `rest`.
    #[cold]
    pub(crate) fn new(rest: &str, length: usize, kind: ParseErrorKind) -> Fault {
        Fault { left: rest.len(), length, kind }
    }

    /// Returns an error at the first word of `rest`.
    #[cold]
    pub(crate) fn unexpected(rest: &str, kind: impl FnOnce(Found) -> ParseErrorKind) -> Fault {
        let (found, length) = look(rest);
        Fault::new(rest, length, kind(found))
    }
}

#[cold]
pub(crate) fn failure(fault: Fault) -> nom::Err<Refusal> {
    nom::Err::Failure(Refusal::Fault(Box::new(fault)))
}

pub(crate) fn fail<T>(fault: Fault) -> Lexed<'static, T> {
    Err(failure(fault))
}

fn pass<T>() -> Lexed<'static, T> {
    Err(nom::Err::Error(Refusal::Pass))
}

/// Wraps a parser: if `parser` returns [`Refusal::Pass`], the first word is an error of this
/// `kind`.
#[inline(always)]
pub(crate) fn expected<'t, T>(
    parser: impl Fn(&'t str) -> Lexed<'t, T>,
    kind: impl Fn(Found) -> ParseErrorKind,
) -> impl Fn(&'t str) -> Lexed<'t, T> {
    move |text| match parser(text) {
        Err(nom::Err::Error(_)) => fail(Fault::unexpected(text, &kind)),
        parsed => parsed,
    }
}

/// Returns the word that `rest` starts with, for error messages, and its length.
fn look(rest: &str) -> (Found, usize) {
    let word = label_length(rest);
    if word > 0 {
        return (Found::Word(rest[..word].into()), word);
    }
    if let Some(operator) = ["==", "!=", "&&", "||"].into_iter().find(|o| rest.starts_with(o)) {
        return (Found::Operator(operator), operator.len());
    }
    match rest.chars().next() {
        None => (Found::End, 0),
        Some('\n' | '\r') => (Found::LineBreak, 1),
        Some(quote @ ('"' | '\'')) => {
            let closing = rest[1..].find(quote);
            (Found::String, closing.map_or(rest.len(), |at| at + 2))
        }
        Some(c) => (Found::Char(c), c.len_utf8()),
    }
}

/// Returns the number of label characters at the start of `text`.
#[inline]
fn label_length(text: &str) -> usize {
    text.bytes().position(|byte| !is_label_byte(byte)).unwrap_or(text.len())
}

/// Returns the text without leading blanks. Only spaces and tabs are blank.
#[inline]
pub(crate) fn skip_blanks(mut text: &str) -> &str {
    while let Some(rest) = text.strip_prefix(' ').or_else(|| text.strip_prefix('\t')) {
        text = rest;
    }
    text
}

#[inline]
pub(crate) fn blanks(text: &str) -> Lexed<'_, ()> {
    Ok((skip_blanks(text), ()))
}

/// Parses exactly this word, compared as a whole; `tag` of nom compares byte by byte.
#[inline(always)]
fn exactly<'t>(word: &'static str) -> impl Fn(&'t str) -> Lexed<'t, ()> {
    move |text| match text.strip_prefix(word) {
        Some(rest) => Ok((rest, ())),
        None => pass(),
    }
}

/// `||` and blanks.
#[inline]
pub(crate) fn or_operator(text: &str) -> Lexed<'_, ()> {
    terminated(exactly("||"), blanks).parse(text)
}

/// `&&` and blanks.
#[inline]
pub(crate) fn and_operator(text: &str) -> Lexed<'_, ()> {
    terminated(exactly("&&"), blanks).parse(text)
}

/// `!` and blanks, but not the start of `!=`.
#[inline]
pub(crate) fn negation(text: &str) -> Lexed<'_, ()> {
    terminated(exactly("!"), (not(exactly("=")), blanks)).parse(text)
}

/// `(` and blanks.
#[inline]
pub(crate) fn opening(text: &str) -> Lexed<'_, ()> {
    terminated(exactly("("), blanks).parse(text)
}

/// `)` and blanks.
#[inline]
pub(crate) fn closing(text: &str) -> Lexed<'_, ()> {
    terminated(exactly(")"), blanks).parse(text)
}

/// `{` and blanks.
pub(crate) fn opening_brace(text: &str) -> Lexed<'_, ()> {
    terminated(exactly("{"), blanks).parse(text)
}

pub(crate) fn closing_brace(text: &str) -> Lexed<'_, ()> {
    exactly("}")(text)
}

/// `,` and blanks.
#[inline]
pub(crate) fn comma(text: &str) -> Lexed<'_, ()> {
    terminated(exactly(","), blanks).parse(text)
}

/// Parses a label name.
#[inline]
pub(crate) fn label(text: &str) -> Lexed<'_, &str> {
    let length = label_length(text);
    if length == 0 {
        return pass();
    }
    if length > MAX_LABEL_LENGTH {
        return fail(Fault::new(text, length, ParseErrorKind::LabelTooLong { length }));
    }
    let (label, rest) = text.split_at(length);
    Ok((rest, label))
}

/// Parses a string in either kind of quotes. There are no escapes.
pub(crate) fn string(text: &str) -> Lexed<'_, &str> {
    let quote = match text.as_bytes().first() {
        Some(quote @ (b'"' | b'\'')) => *quote,
        _ => return pass(),
    };
    let inside = &text[1..];
    match inside.bytes().position(|byte| byte == quote) {
        Some(end) => Ok((&inside[end + 1..], &inside[..end])),
        None => fail(Fault::new(text, text.len(), ParseErrorKind::UnterminatedString)),
    }
}

/// A condition in the form of a function call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call<'a> {
    All,
    Global,
    Has(&'a str),
}

/// `has(label)`, `all()` or `global()`.
pub(crate) fn call(text: &str) -> Lexed<'_, Call<'_>> {
    let label = expected(label, ParseErrorKind::ExpectedLabel);
    alt((
        delimited((exactly("has("), blanks), label, end_of_call("has")).map(Call::Has),
        value(Call::All, (exactly("all("), end_of_call("all"))),
        value(Call::Global, (exactly("global("), end_of_call("global"))),
    ))
    .parse(text)
}

fn end_of_call<'t>(function: &'static str) -> impl Parser<&'t str, Output = (), Error = Refusal> {
    let unclosed = move |found| ParseErrorKind::UnclosedCall { function, found };
    preceded(blanks, expected(exactly(")"), unclosed))
}

/// Operator between a label and its right side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operator {
    Compare(Comparison),
    In,
    NotIn,
}

/// An operator that takes one string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Eq,
    NotEq,
    Contains,
    StartsWith,
    EndsWith,
}

impl Operator {
    pub(crate) fn symbol(self) -> &'static str {
        match self {
            Operator::Compare(Comparison::Eq) => "==",
            Operator::Compare(Comparison::NotEq) => "!=",
            Operator::Compare(Comparison::Contains) => "contains",
            Operator::Compare(Comparison::StartsWith) => "starts with",
            Operator::Compare(Comparison::EndsWith) => "ends with",
            Operator::In => "in",
            Operator::NotIn => "not in",
        }
    }
}

/// Parses the operator after `label`; blanks before it are skipped already.
pub(crate) fn operator<'a>(text: &'a str, label: &str) -> Lexed<'a, Operator> {
    match any_operator(text) {
        Err(nom::Err::Error(_)) => fail(expected_operator(text, label)),
        parsed => parsed,
    }
}

/// Parses any operator. The blanks between its two words may be missing. A label character must not
/// follow the last word, not even after blanks if there are two words.
fn any_operator(text: &str) -> Lexed<'_, Operator> {
    use Comparison::{Contains, EndsWith, Eq, NotEq, StartsWith};
    alt((
        value(Operator::Compare(Eq), exactly("==")),
        value(Operator::Compare(NotEq), exactly("!=")),
        value(Operator::In, one_word("in")),
        value(Operator::NotIn, two_words("not", "in")),
        value(Operator::Compare(Contains), one_word("contains")),
        value(Operator::Compare(StartsWith), two_words("starts", "with")),
        value(Operator::Compare(EndsWith), two_words("ends", "with")),
    ))
    .parse(text)
}

fn one_word<'a>(word: &'static str) -> impl Parser<&'a str, Output = (), Error = Refusal> {
    terminated(exactly(word), word_boundary)
}

fn two_words<'a>(first: &'static str, second: &'static str) -> impl Parser<&'a str, Output = (), Error = Refusal> {
    terminated(exactly(first), (blanks, exactly(second), blanks, word_boundary))
}

fn word_boundary(text: &str) -> Lexed<'_, ()> {
    not(satisfy(|c| c.is_ascii() && is_label_byte(c as u8))).parse(text)
}

#[cold]
fn expected_operator(text: &str, label: &str) -> Fault {
    match text.as_bytes().first() {
        Some(b'=') => Fault::new(text, 1, ParseErrorKind::HalfOperator { whole: "==" }),
        Some(b'(') => Fault::new(text, 1, not_a_call(label)),
        _ => Fault::unexpected(text, |found| ParseErrorKind::ExpectedOperator { label: label.into(), found }),
    }
}

/// Returns the error for a parenthesis after a label, with the probable intention.
fn not_a_call(label: &str) -> ParseErrorKind {
    match ["has", "all", "global"].into_iter().find(|f| *f == label) {
        Some(function) => ParseErrorKind::DetachedCall { function },
        None => ParseErrorKind::UnknownFunction { name: label.into() },
    }
}
