//! Public errors can be shown, and passed on as errors.

use std::collections::BTreeSet;

/// What is missing in the lists of all libraries: a type whose name ends in `Error`, or that a function returns as its error,
/// implements `Error`; one whose name ends in `Problem` can be displayed.
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
        // Types of other crates are theirs; a text is no type of ours.
        if let Some(error) = error_of(line).filter(|error| error.starts_with("tortie"))
            && !errors.contains(last(error))
        {
            wrong.insert(format!("{error} does not implement Error, and is returned as one: {line}"));
        }
    }
    wrong.into_iter().collect()
}

/// The name of a type without its path and parameters. Paths in lists are those of private modules here and there.
fn last(path: &str) -> &str {
    let path = path.split(['<', ' ']).next().unwrap_or(path);
    path.rsplit("::").next().unwrap_or(path)
}

/// The second parameter of the `Result` that a function returns.
fn error_of(line: &str) -> Option<&str> {
    let (_, result) = line.rsplit_once(" -> core::result::Result<")?;
    let result = result.split(" where ").next()?.strip_suffix('>')?;
    let mut depth = 0_usize;
    let comma = result.char_indices().find(|(_, c)| {
        match c {
            '<' | '(' | '[' => depth += 1,
            '>' | ')' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        *c == ',' && depth == 0
    });
    Some(result.get(comma?.0 + 1..)?.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_told() {
        let good = "pub enum a::private::ReadError\nimpl core::error::Error for a::ReadError\n\
                    pub struct a::InputProblem<'a>\nimpl<'a> core::fmt::Display for a::InputProblem<'a>\n";
        assert_eq!(missing([good].into_iter()), [""; 0]);
        let bad = "pub struct a::ParseError(_)\npub enum a::InputProblem\n\
                   impl core::fmt::Display for a::ParseError\n\
                   pub fn tortie_a::f() -> core::result::Result<(u8, alloc::vec::Vec<u8>), tortie_a::Missing>\n\
                   pub fn tortie_a::g<E>() -> core::result::Result<u8, E> where E: core::fmt::Debug\n\
                   pub fn tortie_a::h() -> core::result::Result<u8, std::io::error::Error>\n";
        let told = missing([bad].into_iter());
        assert_eq!(told[..2], ["a::InputProblem does not implement Display", "a::ParseError does not implement Error"]);
        assert!(told.len() == 3 && told[2].starts_with("tortie_a::Missing does not implement Error"), "{told:?}");
    }
}
