//! The words of the language, as nom parsers.
//!
//! The rules are those of `libcalico-go/lib/selector/tokenizer/tokenizer.go`. Parsers take text that
//! starts at their word, and leave what follows it.

use nom::branch::alt;
use nom::bytes::complete::tag;
use nom::character::complete::satisfy;
use nom::combinator::{not, value};
use nom::error::{ErrorKind, ParseError as NomError};
use nom::sequence::terminated;
use nom::{IResult, Parser};

use crate::error::{Found, ParseErrorKind};
use crate::expr::{MAX_LABEL_LENGTH, is_label_byte};

pub(crate) type Lexed<'a, T> = IResult<&'a str, T, Fault>;

/// What went wrong, located by how much text was left. The text itself is added by the caller.
#[derive(Debug)]
pub(crate) struct Fault {
    /// Bytes from the start of the offending text to the end of all text.
    pub(crate) left: usize,
    /// Bytes of offending text.
    pub(crate) length: usize,
    pub(crate) kind: ParseErrorKind,
}

impl Fault {
    /// A fault of the first `length` bytes of `rest`.
    #[cold]
    pub(crate) fn new(rest: &str, length: usize, kind: ParseErrorKind) -> Fault {
        Fault { left: rest.len(), length, kind }
    }

    /// A fault because of the first word of `rest`.
    #[cold]
    pub(crate) fn unexpected(rest: &str, kind: impl FnOnce(Found) -> ParseErrorKind) -> Fault {
        let (found, length) = look(rest);
        Fault::new(rest, length, kind(found))
    }
}

impl NomError<&str> for Fault {
    fn from_error_kind(rest: &str, _: ErrorKind) -> Fault {
        Fault::unexpected(rest, ParseErrorKind::ExpectedEnd)
    }

    fn append(_: &str, _: ErrorKind, other: Fault) -> Fault {
        other
    }
}

fn fail<T>(fault: Fault) -> Lexed<'static, T> {
    Err(nom::Err::Failure(fault))
}

/// What `rest` starts with, for error messages, and its length.
fn look(rest: &str) -> (Found, usize) {
    let word = ascii_prefix(rest, is_label_byte);
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

/// How many of the first bytes of `text` are `wanted`, which must hold for ASCII only.
#[inline]
fn ascii_prefix(text: &str, wanted: impl Fn(u8) -> bool) -> usize {
    text.bytes().position(|byte| !wanted(byte)).unwrap_or(text.len())
}

/// The text without leading blanks. Only spaces and tabs are blank.
#[inline]
pub(crate) fn skip_blanks(text: &str) -> &str {
    &text[ascii_prefix(text, |byte| byte == b' ' || byte == b'\t')..]
}

fn blanks(text: &str) -> Lexed<'_, ()> {
    Ok((skip_blanks(text), ()))
}

/// A label name. Nothing is taken, without an error, where there is none.
#[inline]
pub(crate) fn label(text: &str) -> Lexed<'_, &str> {
    let length = ascii_prefix(text, is_label_byte);
    if length > MAX_LABEL_LENGTH {
        return fail(Fault::new(text, length, ParseErrorKind::LabelTooLong { length }));
    }
    let (label, rest) = text.split_at(length);
    Ok((rest, label))
}

/// A string in either kind of quotes. There are no escapes. `None` where no string starts.
pub(crate) fn string(text: &str) -> Lexed<'_, Option<&str>> {
    let quote = match text.as_bytes().first() {
        Some(quote @ (b'"' | b'\'')) => *quote,
        _ => return Ok((text, None)),
    };
    let inside = &text[1..];
    match inside.bytes().position(|byte| byte == quote) {
        Some(end) => Ok((&inside[end + 1..], Some(&inside[..end]))),
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

/// `has(label)`, `all()` or `global()`; `None` where there is no such name with its parenthesis.
pub(crate) fn call(text: &str) -> Lexed<'_, Option<Call<'_>>> {
    if let Some(arguments) = text.strip_prefix("has(") {
        let arguments = skip_blanks(arguments);
        let (rest, label) = label(arguments)?;
        if label.is_empty() {
            return fail(Fault::unexpected(arguments, ParseErrorKind::ExpectedLabel));
        }
        let (rest, ()) = close_call(rest, "has")?;
        Ok((rest, Some(Call::Has(label))))
    } else if let Some(arguments) = text.strip_prefix("all(") {
        let (rest, ()) = close_call(arguments, "all")?;
        Ok((rest, Some(Call::All)))
    } else if let Some(arguments) = text.strip_prefix("global(") {
        let (rest, ()) = close_call(arguments, "global")?;
        Ok((rest, Some(Call::Global)))
    } else {
        Ok((text, None))
    }
}

fn close_call<'a>(text: &'a str, function: &'static str) -> Lexed<'a, ()> {
    let text = skip_blanks(text);
    match text.strip_prefix(')') {
        Some(rest) => Ok((rest, ())),
        None => fail(Fault::unexpected(text, |found| ParseErrorKind::UnclosedCall { function, found })),
    }
}

/// What can stand between a label and what it is compared with.
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

/// The operator after `label`; blanks before it are skipped already.
pub(crate) fn operator<'a>(text: &'a str, label: &str) -> Lexed<'a, Operator> {
    let expected = |found| ParseErrorKind::ExpectedOperator { label: label.into(), found };
    match text.as_bytes().first() {
        Some(b'=') => match text.strip_prefix("==") {
            Some(rest) => Ok((rest, Operator::Compare(Comparison::Eq))),
            None => fail(Fault::new(text, 1, ParseErrorKind::HalfOperator { whole: "==" })),
        },
        Some(b'!') if text.starts_with("!=") => Ok((&text[2..], Operator::Compare(Comparison::NotEq))),
        Some(b'(') => fail(Fault::new(text, 1, not_a_call(label))),
        Some(b'c' | b's' | b'e' | b'n' | b'i') => {
            word_operator(text).or_else(|_: nom::Err<Fault>| fail(Fault::unexpected(text, expected)))
        }
        _ => fail(Fault::unexpected(text, expected)),
    }
}

/// An operator made of words. The blanks between two words may be missing, and a label character must
/// not follow the last word, not even after blanks if there are two words.
fn word_operator(text: &str) -> Lexed<'_, Operator> {
    use Comparison::{Contains, EndsWith, StartsWith};
    alt((
        value(Operator::Compare(Contains), one_word("contains")),
        value(Operator::Compare(StartsWith), two_words("starts", "with")),
        value(Operator::Compare(EndsWith), two_words("ends", "with")),
        value(Operator::NotIn, two_words("not", "in")),
        value(Operator::In, one_word("in")),
    ))
    .parse(text)
}

fn one_word<'a>(word: &'static str) -> impl Parser<&'a str, Output = &'a str, Error = Fault> {
    terminated(tag(word), word_boundary)
}

fn two_words<'a>(first: &'static str, second: &'static str) -> impl Parser<&'a str, Output = &'a str, Error = Fault> {
    terminated(tag(first), (blanks, tag(second), blanks, word_boundary))
}

fn word_boundary(text: &str) -> Lexed<'_, ()> {
    not(satisfy(|c| c.is_ascii() && is_label_byte(c as u8))).parse(text)
}

/// A parenthesis after a label: say what was probably meant.
fn not_a_call(label: &str) -> ParseErrorKind {
    match ["has", "all", "global"].into_iter().find(|f| *f == label) {
        Some(function) => ParseErrorKind::DetachedCall { function },
        None => ParseErrorKind::UnknownFunction { name: label.into() },
    }
}
