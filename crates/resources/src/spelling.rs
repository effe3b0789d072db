//! Suggestions for misspelt names.

/// Returns the candidate that a misspelt name most likely stands for, if one is similar enough.
#[must_use]
pub fn closest<'c>(name: &str, candidates: &[&'c str]) -> Option<&'c str> {
    if name.len() > 40 {
        return None;
    }
    let (distance, best) = candidates.iter().map(|c| (distance(name, c), *c)).min()?;
    (distance <= 1 + name.len() / 4).then_some(best)
}

/// Returns the end of a message that asks whether the most similar candidate is meant; empty if
/// none is similar.
#[must_use]
pub fn suggestion(name: &str, candidates: &[&str]) -> String {
    closest(name, candidates).map(|near| format!("; is `{near}` meant?")).unwrap_or_default()
}

/// Returns at most `count` of the names, the most similar first, however different they are.
#[must_use]
pub fn nearest<'c>(name: &str, candidates: impl Iterator<Item = &'c str>, count: usize) -> Vec<&'c str> {
    let mut all: Vec<_> = candidates.map(|candidate| (distance(name, candidate), candidate)).collect();
    all.sort_unstable();
    all.into_iter().take(count).map(|(_, candidate)| candidate).collect()
}

/// Returns the number of single-letter edits between two names, ignoring case.
fn distance(a: &str, b: &str) -> usize {
    strsim::levenshtein(&a.to_ascii_lowercase(), &b.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_names_come_first_up_to_the_count() {
        let names = ["worker-1", "worker-10", "master", "worker-2"];
        assert_eq!(nearest("worker-l", names.into_iter(), 3), ["worker-1", "worker-2", "worker-10"]);
        assert_eq!(nearest("MASTER", names.into_iter(), 1), ["master"]);
        assert!(nearest("x", [].into_iter(), 3).is_empty());
        assert_eq!(closest("worker-l", &names), Some("worker-1"));
        assert_eq!(closest("db", &names), None);
    }
}
