//! Several definitions of one policy.

use tortie_model::RuleAction;

use super::*;

/// The policies in force: name, selector and whether all rules deny.
fn policies(dir: &mut Directory) -> Vec<(String, String, bool)> {
    let policies = dir.state().snapshot().into_iter().filter_map(|update| match update {
        Update::Policy(id, Some(policy)) => {
            let denies =
                !policy.inbound.is_empty() && policy.inbound.iter().all(|rule| rule.action == RuleAction::Deny);
            Some((id.name.to_string(), policy.selector.text().to_owned(), denies))
        }
        _ => None,
    });
    policies.collect()
}

fn allows(name: &str, selector: &str) -> String {
    policy(name, selector).replace("}\n", ", ingress: [{action: Allow}]}\n").replacen(
        ", ingress: [{action: Allow}]}",
        "}",
        1,
    )
}

fn entry(name: &str, selector: &str, denies: bool) -> (String, String, bool) {
    (name.to_owned(), selector.to_owned(), denies)
}

#[test]
fn an_ignored_definition_closes_what_it_selects_and_an_identical_one_changes_nothing() {
    let (counts, ignored) = (allows("p", "has(a)"), allows("p", "has(b)"));
    let both = format!("{counts}---\n{ignored}");
    for files in [
        vec![("a.yaml", Some(&*counts)), ("b.yaml", Some(&*ignored))],
        vec![("a.yaml", Some(&*both))],
        vec![("a.yaml", Some(&*counts)), ("b.yaml", Some(&*both))],
    ] {
        let mut dir = Directory::default();
        dir.change(&files);
        let expected = [entry("p", "has(a)", false), entry("tortie-duplicate.p.0", "has(b)", true)];
        assert_eq!(policies(&mut dir), expected, "{files:?}");
        let fallbacks: Vec<Fallback> = dir.problems().into_iter().map(|(_, fallback)| fallback).collect();
        assert!(fallbacks.contains(&Fallback::Denied), "{fallbacks:?}");
        // An unreadable file keeps the denial.
        dir.change(&[(files[files.len() - 1].0, Some("{]"))]);
        if files.len() == 1 {
            assert_eq!(policies(&mut dir), expected);
        }
        let gone: Vec<_> = files.iter().map(|(file, _)| (*file, None)).collect();
        dir.change(&gone);
        assert!(is_empty(dir.state()) && dir.problems().is_empty());
    }
    let mut dir = Directory::default();
    dir.change(&[("a.yaml", Some(&counts)), ("b.yaml", Some(&format!("# the same\n{counts}---\n{counts}")))]);
    assert_eq!(policies(&mut dir), [entry("p", "has(a)", false)]);
    assert!(dir.problems().iter().all(|(_, fallback)| *fallback == Fallback::NotNeeded));
}

#[test]
fn an_unreadable_second_definition_closes_what_it_selects() {
    let broken = policy("p", "has(b)").replace("Ingress", "Inwards");
    let mut dir = Directory::default();
    dir.change(&[("a.yaml", Some(&allows("p", "has(a)"))), ("b.yaml", Some(&broken))]);
    assert_eq!(policies(&mut dir), [entry("p", "has(a)", false), entry("tortie-duplicate.p.0", "has(b)", true)]);
}

#[test]
fn the_denial_precedes_what_the_other_definition_allows() {
    let mut dir = Directory::default();
    dir.change(&[("a.yaml", Some(&allows("p", "has(a)"))), ("b.yaml", Some(&allows("p", "has(a) || has(b)")))]);
    let order = dir.state().snapshot().into_iter().find_map(|update| match update {
        Update::Policy(id, Some(policy)) if &*id.name == "tortie-duplicate.p.0" => Some(policy.order),
        _ => None,
    });
    assert_eq!(order, Some(tortie_model::Order::new(f64::MIN)));
}

#[test]
fn the_default_prefix_is_part_of_a_written_name() {
    let [plain, prefixed] = ["web", "default.web"].map(|name| policy(name, "all()"));
    let mut dir = Directory::default();
    dir.change(&[("a.yaml", Some(&format!("{plain}---\n{prefixed}")))]);
    assert_eq!(policies(&mut dir).into_iter().map(|(name, ..)| name).collect::<Vec<_>>(), ["default.web", "web"]);
    assert!(dir.problems().is_empty());
    // As the API server keeps it, without the annotation that has the name.
    dir.change(&[("a.yaml", Some(&prefixed.replace("projectcalico.org/v3", "crd.projectcalico.org/v1")))]);
    assert_eq!(policies(&mut dir).into_iter().map(|(name, ..)| name).collect::<Vec<_>>(), ["web"]);
}
