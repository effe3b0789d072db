//! Several definitions of one policy.

use tortie_model::RuleAction;

use super::*;

/// Returns the policies in force: name, selector and whether all rules deny.
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
fn an_ignored_definition_closes_selected_endpoints_and_an_identical_one_changes_nothing() {
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
fn an_unreadable_second_definition_closes_selected_endpoints() {
    let broken = policy("p", "has(b)").replace("Ingress", "Inwards");
    let mut dir = Directory::default();
    dir.change(&[("a.yaml", Some(&allows("p", "has(a)"))), ("b.yaml", Some(&broken))]);
    assert_eq!(policies(&mut dir), [entry("p", "has(a)", false), entry("tortie-duplicate.p.0", "has(b)", true)]);
}

#[test]
fn the_denial_precedes_the_allow_rules_of_the_other_definition() {
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

#[test]
fn denials_outlast_the_readability_of_their_files() {
    let (counts, ignored) = (allows("p", "has(a)"), allows("p", "has(b)"));
    for (unreadable, in_force, denied) in [("a.yaml", "has(b)", "has(a)"), ("b.yaml", "has(a)", "has(b)")] {
        let mut dir = Directory::default();
        dir.change(&[("a.yaml", Some(&counts)), ("b.yaml", Some(&ignored))]);
        dir.change(&[(unreadable, Some("{]"))]);
        let expected = [entry("p", in_force, false), entry("tortie-duplicate.p.0", denied, true)];
        assert_eq!(policies(&mut dir), expected, "{unreadable}");
        dir.change(&[(unreadable, None)]);
        assert_eq!(policies(&mut dir), expected[..1], "{unreadable}");
        dir.change(&[("a.yaml", None), ("b.yaml", None)]);
        assert!(is_empty(dir.state()) && dir.problems().is_empty());
    }
}

#[test]
fn an_object_that_moves_to_another_file_is_not_denied_by_its_former_definition() {
    let mut dir = Directory::default();
    dir.change(&[("b.yaml", Some(&allows("p", "has(b)")))]);
    // The file may be about to be written again.
    dir.state().stage("b.yaml".as_ref(), None, Missing::Kept);
    dir.change(&[("a.yaml", Some(&allows("p", "has(a)")))]);
    assert_eq!(policies(&mut dir), [entry("p", "has(a)", false)]);
    dir.state().release("b.yaml".as_ref());
    assert!(dir.change(&[]).is_empty() && dir.problems().is_empty());
    // An unreadable file may still have the definition, unless the new one is the same.
    dir.change(&[("a.yaml", None), ("b.yaml", Some(&allows("p", "has(b)")))]);
    dir.change(&[("a.yaml", Some(&allows("p", "has(b)"))), ("b.yaml", Some("{]"))]);
    assert_eq!(policies(&mut dir), [entry("p", "has(b)", false)]);
}

#[test]
fn a_definition_behind_an_unreadable_document_stays_denied() {
    let (counts, ignored) = (allows("p", "has(a)"), allows("p", "has(b)"));
    let mut dir = Directory::default();
    dir.change(&[("a.yaml", Some(&format!("{counts}---\n{ignored}")))]);
    let expected = [entry("p", "has(a)", false), entry("tortie-duplicate.p.0", "has(b)", true)];
    for broken in ["{]", "{[", "{]"] {
        dir.change(&[("a.yaml", Some(&format!("{counts}---\n{broken}")))]);
        assert_eq!(policies(&mut dir), expected);
    }
    // The definition in effect can be edited meanwhile.
    let edited = allows("p", "has(c)");
    dir.change(&[("a.yaml", Some(&format!("{edited}---\n{{]")))]);
    assert_eq!(policies(&mut dir), [entry("p", "has(c)", false), entry("tortie-duplicate.p.0", "has(b)", true)]);
    dir.change(&[("a.yaml", Some(&counts))]);
    assert_eq!(policies(&mut dir), expected[..1]);
    // A file that is being written keeps the definition until its writer is done.
    dir.change(&[("a.yaml", Some(&format!("{counts}---\n{ignored}")))]);
    let reading = dir.state().read("a.yaml".as_ref(), FileContent::Text(&counts)).expect("the content is new");
    assert!(dir.state().loses("a.yaml".as_ref(), &reading));
    dir.state().stage("a.yaml".as_ref(), Some(reading), Missing::Kept);
    dir.change(&[]);
    assert_eq!(policies(&mut dir), expected);
    dir.state().release("a.yaml".as_ref());
    dir.change(&[]);
    assert_eq!(policies(&mut dir), expected[..1]);
}

#[test]
fn a_second_definition_with_an_unreadable_selector_denies_formerly_selected_endpoints() {
    let expected = [entry("p", "has(a)", false), entry("tortie-duplicate.p.0", "has(b)", true)];
    let [counts, ignored, unknown] = ["has(a)", "has(b)", "has("].map(|selector| allows("p", selector));
    let together = |second: &str| format!("{counts}---\n{second}");
    let mut dir = Directory::default();
    for (before, after) in [
        (vec![("a.yaml", Some(counts.clone())), ("b.yaml", Some(ignored.clone()))], ("b.yaml", Some(unknown.clone()))),
        (vec![("a.yaml", Some(together(&ignored))), ("b.yaml", None)], ("a.yaml", Some(together(&unknown)))),
    ] {
        let before: Vec<_> = before.iter().map(|(file, text)| (*file, text.as_deref())).collect();
        dir.change(&before);
        dir.change(&[(after.0, after.1.as_deref())]);
        assert_eq!(policies(&mut dir), expected);
        assert!(dir.problems().iter().any(|(_, fallback)| *fallback == Fallback::Denied), "{:?}", dir.problems());
    }
}

#[test]
fn a_second_definition_of_unknown_endpoints_closes_all_at_the_start() {
    let [counts, unknown] = ["has(a)", "has("].map(|selector| allows("p", selector));
    let together = format!("{counts}---\n{unknown}");
    for (files, file, mended) in [
        (vec![("a.yaml", Some(&*counts)), ("b.yaml", Some(&*unknown))], "b.yaml", ""),
        (vec![("a.yaml", Some(&*together))], "a.yaml", &*counts),
    ] {
        let mut dir = Directory { state: Some(DirState::new(Options::default()).close_unknown()) };
        dir.change(&files);
        dir.state().complete();
        assert!(policies(&mut dir).contains(&entry("tortie-unreadable", "all()", true)), "{:?}", policies(&mut dir));
        let closed = |(text, fallback): &(String, Fallback)| text.starts_with(file) && *fallback == Fallback::Closed;
        assert!(dir.problems().iter().any(closed), "{:?}", dir.problems());
        dir.change(&[(file, Some(mended))]);
        assert_eq!(policies(&mut dir), [entry("p", "has(a)", false)]);
    }
}
