//! Which names a misspelt one may stand for.

/// The candidate that a misspelt name most likely stands for, if one is near enough.
#[must_use]
pub fn closest<'c>(name: &str, candidates: &[&'c str]) -> Option<&'c str> {
    if name.len() > 40 {
        return None;
    }
    let (distance, best) = candidates.iter().map(|c| (distance(name, c), *c)).min()?;
    (distance <= 1 + name.len() / 4).then_some(best)
}

/// Asks, as the end of a message, whether the nearest of these is meant; nothing if none is near.
#[must_use]
pub fn is_meant(name: &str, candidates: &[&str]) -> String {
    closest(name, candidates).map(|near| format!("; is `{near}` meant?")).unwrap_or_default()
}

/// The names most like this one, however far they are, the nearest first; at most `count`.
#[must_use]
pub fn nearest<'c>(name: &str, candidates: impl Iterator<Item = &'c str>, count: usize) -> Vec<&'c str> {
    let mut all: Vec<_> = candidates.map(|candidate| (distance(name, candidate), candidate)).collect();
    all.sort_unstable();
    all.into_iter().take(count).map(|(_, candidate)| candidate).collect()
}

/// The number of single-letter edits between two names, letters of either case being the same.
fn distance(a: &str, b: &str) -> usize {
    strsim::levenshtein(&a.to_ascii_lowercase(), &b.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_come_first_and_no_more_than_asked_for() {
        let names = ["worker-1", "worker-10", "master", "worker-2"];
        assert_eq!(nearest("worker-l", names.into_iter(), 3), ["worker-1", "worker-2", "worker-10"]);
        assert_eq!(nearest("MASTER", names.into_iter(), 1), ["master"]);
        assert!(nearest("x", [].into_iter(), 3).is_empty());
        assert_eq!(closest("worker-l", &names), Some("worker-1"));
        assert_eq!(closest("db", &names), None);
    }
}
