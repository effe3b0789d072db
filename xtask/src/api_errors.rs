//! Check that public errors can be displayed, and returned as errors.

use std::collections::BTreeSet;

/// Returns the gaps in the lists of all libraries. A type whose name ends in `Error`, or that a
/// function returns as its error, implements `Error`; one whose name ends in `Problem` can be
/// displayed. No error is a text or a tuple, which callers cannot distinguish from others; the same
/// holds for arguments of functions.
pub(crate) fn missing<'t>(lists: impl Iterator<Item = &'t str>) -> Vec<String> {
    let lines: Vec<&str> = lists.flat_map(str::lines).collect();
    let of_trait = |name: &str| -> BTreeSet<&str> {
        let name = format!(" {name} for ");
        let types = lines.iter().filter(|line| line.starts_with("impl")).filter_map(|line| line.split_once(&name));
        types.map(|(_, of)| last(of)).collect()
    };
    let (errors, displayed) = (of_trait("core::error::Error"), of_trait("core::fmt::Display"));
    let mut wrong = BTreeSet::new();
    for line in &lines {
        let of_type = line.strip_prefix("pub enum ").or_else(|| line.strip_prefix("pub struct "));
        if let Some(of_type) = of_type.map(|line| line.split(['(', '{', ' ']).next().unwrap_or(line)) {
            let name = last(of_type);
            if name.ends_with("Error") && !errors.contains(name) {
                wrong.insert(format!("{of_type} does not implement Error"));
            }
            if name.ends_with("Problem") && !displayed.contains(name) {
                wrong.insert(format!("{of_type} does not implement Display"));
            }
        }
        // Types of other crates are not checked.
        if let Some(error) = error_of(line).filter(|error| error.starts_with("tortie"))
            && !errors.contains(last(error))
        {
            wrong.insert(format!("{error} does not implement Error, and is returned as one: {line}"));
        }
        if line.starts_with("pub ")
            && let Some(error) = errors_in(line).find(|error| is_no_type(error))
        {
            wrong.insert(format!("{error} is no type of error: {line}"));
        }
    }
    wrong.into_iter().collect()
}

/// Returns the name of a type without its path and parameters. Paths in lists are sometimes those
/// of private modules.
fn last(path: &str) -> &str {
    let path = path.split(['<', ' ']).next().unwrap_or(path);
    path.rsplit("::").next().unwrap_or(path)
}

/// Reports whether a returned error is a text or a tuple. The empty tuple is allowed: it has a
/// single reason.
fn is_no_type(error: &str) -> bool {
    error == "&str"
        || (error.starts_with('&') && error.ends_with(" str"))
        || error == "alloc::string::String"
        || error.starts_with('(') && error != "()"
}

/// Returns the second parameter of the `Result` that a function returns.
fn error_of(line: &str) -> Option<&str> {
    let (_, result) = line.rsplit_once(" -> core::result::Result<")?;
    second_parameter(result)
}

/// Returns the second parameter of each `Result` of a line.
fn errors_in(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("core::result::Result<")
        .filter_map(|(at, found)| second_parameter(line.get(at + found.len()..)?))
}

/// Returns the second parameter of a type whose parameters begin here.
fn second_parameter(parameters: &str) -> Option<&str> {
    let (mut depth, mut begin, mut before) = (0_usize, None, ' ');
    for (at, c) in parameters.char_indices() {
        match c {
            ',' if depth == 0 && begin.is_none() => begin = Some(at + 1),
            '>' if before == '-' => {}
            '>' if depth == 0 => return Some(parameters.get(begin?..at)?.trim()),
            '<' | '(' | '[' => depth += 1,
            '>' | ')' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        before = c;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_tuples_are_no_errors() {
        for line in [
            "pub fn a::f(&self) -> core::result::Result<alloc::vec::Vec<alloc::string::String>, alloc::string::String>",
            "pub fn a::f<T>() -> core::result::Result<T, &'static str> where T: core::fmt::Debug",
            "pub fn a::f() -> core::result::Result<(), (&'static str, alloc::string::String)>",
            "pub fn a::T::f(&mut self, core::result::Result<u8, alloc::string::String>) -> bool",
            "pub fn a::f(impl core::ops::function::Fn(u8) -> core::result::Result<u8, alloc::string::String> + 'static)",
            "pub type a::F<'o> = (dyn core::ops::function::Fn() -> core::result::Result<u8, alloc::string::String> + 'o)",
            "pub a::T::field: core::option::Option<core::result::Result<fn() -> u8, alloc::string::String>>",
        ] {
            let problems = missing([line].into_iter());
            assert!(problems.len() == 1 && problems[0].contains(" is no type of error: "), "{line}: {problems:?}");
        }
        for line in [
            "pub fn a::f() -> core::result::Result<alloc::string::String, std::io::error::Error>",
            "pub fn a::f() -> core::result::Result<(alloc::string::String, u8), ()>",
            "pub fn a::f() -> core::result::Result<fn(u8, u8) -> u8, alloc::boxed::Box<dyn core::error::Error>>",
        ] {
            assert_eq!(missing([line].into_iter()), [""; 0]);
        }
    }

    #[test]
    fn missing_implementations_are_reported() {
        let good = "pub enum a::private::ReadError\nimpl core::error::Error for a::ReadError\n\
                    pub struct a::InputProblem<'a>\nimpl<'a> core::fmt::Display for a::InputProblem<'a>\n";
        assert_eq!(missing([good].into_iter()), [""; 0]);
        let bad = "pub struct a::ParseError(_)\npub enum a::InputProblem\n\
                   impl core::fmt::Display for a::ParseError\n\
                   pub fn tortie_a::f() -> core::result::Result<(u8, alloc::vec::Vec<u8>), tortie_a::Missing>\n\
                   pub fn tortie_a::g<E>() -> core::result::Result<u8, E> where E: core::fmt::Debug\n\
                   pub fn tortie_a::h() -> core::result::Result<u8, std::io::error::Error>\n";
        let problems = missing([bad].into_iter());
        assert_eq!(
            problems[..2],
            ["a::InputProblem does not implement Display", "a::ParseError does not implement Error"]
        );
        assert!(
            problems.len() == 3 && problems[2].starts_with("tortie_a::Missing does not implement Error"),
            "{problems:?}"
        );
    }
}
