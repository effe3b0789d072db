mod doubles;
mod history;
mod records;

use super::*;

const NAMESPACE: &str = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {team: a}}\n";

fn policy(name: &str, selector: &str) -> String {
    format!(
        "apiVersion: projectcalico.org/v3\nkind: GlobalNetworkPolicy\nmetadata: {{name: {name}}}\nspec: {{selector: \
         \"{selector}\", types: [Ingress]}}\n"
    )
}

#[derive(Default)]
struct Directory {
    state: Option<DirState>,
}

impl Directory {
    fn state(&mut self) -> &mut DirState {
        self.state.get_or_insert_with(|| {
            let mut state = DirState::new(Options::default());
            // The built-in objects.
            state.take_updates();
            state
        })
    }

    /// Changes several files at once; returns the updates as `+key` and `-key`.
    fn change(&mut self, files: &[(&str, Option<&str>)]) -> Vec<String> {
        for (path, text) in files {
            self.state().stage_file(path.as_ref(), text.map(FileContent::Text));
        }
        let sign = |update: &Update| if update.exists() { '+' } else { '-' };
        self.state().take_updates().iter().map(|update| format!("{}{:?}", sign(update), update.key())).collect()
    }

    fn problems(&mut self) -> Vec<(String, Fallback)> {
        self.state().problems().map(|p| (p.to_string(), p.fallback)).collect()
    }
}

/// Reports whether no state is left.
fn is_empty(state: &DirState) -> bool {
    let DirState { files, objects, register, with_problems, touched, closed, .. } = state;
    files.is_empty()
        && objects.is_empty()
        && register.is_empty()
        && with_problems.is_empty()
        && touched.is_empty()
        && closed.is_empty()
}

#[test]
fn unchanged_files_and_values_make_no_updates() {
    let mut dir = Directory::default();
    assert!(!dir.change(&[("a.yaml", Some(NAMESPACE))]).is_empty());
    assert!(dir.change(&[("a.yaml", Some(NAMESPACE))]).is_empty());
    assert!(dir.change(&[("a.yaml", Some(&format!("# a comment\n{NAMESPACE}")))]).is_empty());
}

#[test]
fn an_object_that_moves_between_files_does_not_vanish() {
    let mut dir = Directory::default();
    dir.change(&[("b.yaml", Some(NAMESPACE))]);
    assert!(dir.change(&[("b.yaml", None), ("a.yaml", Some(NAMESPACE))]).is_empty());
    assert!(dir.change(&[("a.yaml", Some("")), ("c.yaml", Some(NAMESPACE))]).is_empty());
    assert!(dir.problems().is_empty());
    assert!(dir.change(&[("a.yaml", None), ("c.yaml", None)]).iter().all(|update| update.starts_with('-')));
    assert!(is_empty(dir.state()));
}

#[test]
fn of_two_definitions_the_first_file_counts() {
    let mut dir = Directory::default();
    dir.change(&[("b.yaml", Some(&policy("p", "has(b)")))]);
    assert_eq!(dir.change(&[("a.yaml", Some(&policy("p", "has(a)")))]).len(), 2);
    let problems = dir.problems();
    assert!(matches!(&problems[..], [(text, Fallback::Denied)] if text.starts_with("b.yaml:1:1: ")), "{problems:?}");
    assert_eq!(dir.change(&[("a.yaml", None)]).len(), 2);
    assert!(dir.problems().is_empty());
}

#[test]
fn an_invalid_object_keeps_its_last_good_version() {
    let mut dir = Directory::default();
    dir.change(&[("a.yaml", Some(&policy("p", "has(a)")))]);
    assert!(dir.change(&[("a.yaml", Some(&policy("p", "has(a")))]).is_empty());
    let problems = dir.problems();
    assert!(matches!(&problems[..], [(_, Fallback::LastGood)]), "{problems:?}");
    assert_eq!(dir.change(&[("a.yaml", Some(&policy("p", "has(c)")))]).len(), 1);
    assert!(dir.problems().is_empty());
}

#[test]
fn without_a_last_good_version_selected_endpoints_are_denied() {
    let mut dir = Directory::default();
    let broken = policy("p", "has(a)").replace("types: [Ingress]", "types: [Sideways]");
    assert_eq!(dir.change(&[("a.yaml", Some(&broken))]).len(), 1);
    assert!(dir.problems().iter().all(|(_, fallback)| *fallback == Fallback::Denied), "{:?}", dir.problems());
    // The selector itself cannot be read: the selected endpoints are unknown.
    assert!(dir.change(&[("b.yaml", Some(&policy("q", "has(")))]).is_empty());
    assert!(dir.problems().iter().any(|(_, fallback)| *fallback == Fallback::Nothing));
}

#[test]
fn a_document_that_cannot_be_read_keeps_the_objects_of_its_file() {
    let mut dir = Directory::default();
    let both = format!("{NAMESPACE}---\n{}", policy("p", "has(a)"));
    dir.change(&[("a.yaml", Some(&both))]);
    assert!(dir.change(&[("a.yaml", Some(&format!("{NAMESPACE}---\n{{]")))]).is_empty());
    assert!(dir.problems().iter().any(|(_, fallback)| *fallback == Fallback::LastGood), "{:?}", dir.problems());
    dir.state().set_file("a.yaml".as_ref(), Some(FileContent::Unreadable("permission denied")));
    assert!(dir.problems().iter().any(|(text, _)| text == "a.yaml: permission denied"), "{:?}", dir.problems());
    // Once the file is readable again, lost definitions are removed.
    assert_eq!(dir.change(&[("a.yaml", Some(NAMESPACE))]).len(), 1);
    assert!(dir.problems().is_empty());
}

#[test]
fn of_two_objects_that_claim_a_key_the_first_counts() {
    let pool = |name: &str, nat: bool| {
        format!(
            "apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {{name: {name}}}\nspec: {{cidr: 10.0.0.0/16, \
             natOutgoing: {nat}}}\n"
        )
    };
    let mut dir = Directory::default();
    assert_eq!(dir.change(&[("1.yaml", Some(&pool("b", true)))]).len(), 1);
    assert_eq!(dir.change(&[("2.yaml", Some(&pool("a", false)))]).len(), 1);
    let text = "1.yaml:1:1: IPPool/b: stands for the same as IPPool/a, 2.yaml:1:1, which counts";
    assert_eq!(dir.problems(), [(text.to_owned(), Fallback::NotNeeded)]);
    let severity = |dir: &mut Directory| dir.state().problems().map(|p| p.problem.severity).collect::<Vec<_>>();
    assert_eq!(severity(&mut dir), [Severity::Error]);
    // Nothing is lost if both are equal.
    assert_eq!(dir.change(&[("1.yaml", Some(&pool("b", false)))]).len(), 0);
    assert_eq!(severity(&mut dir), [Severity::Warning]);
    assert_eq!(dir.change(&[("1.yaml", None)]).len(), 0);
    assert!(dir.problems().is_empty());
    assert_eq!(dir.change(&[("2.yaml", None)]).len(), 1);
}

#[test]
fn readable_definitions_precede_last_good_ones() {
    let mut dir = Directory::default();
    dir.change(&[("a.yaml", Some(&policy("p", "has(a)")))]);
    assert!(dir.change(&[("a.yaml", Some("{]"))]).is_empty());
    // The file may still have its definition, so that one denies.
    assert_eq!(dir.change(&[("b.yaml", Some(&policy("p", "has(b)")))]).len(), 2);
    let problems = dir.problems();
    assert!(matches!(&problems[..], [(text, Fallback::LastGood)] if text.starts_with("a.yaml:1:")), "{problems:?}");
    assert_eq!(dir.change(&[("a.yaml", Some(&policy("p", "has(a)")))]).len(), 2);
    assert!(dir.problems()[0].0.ends_with("is defined at a.yaml:1:1 already, which counts"), "{:?}", dir.problems());
}

#[test]
fn a_document_that_lost_its_name_keeps_its_object() {
    let mut dir = Directory::default();
    dir.change(&[("a.yaml", Some(&policy("p", "has(a)")))]);
    for broken in ["apiVersion", "kind", "metadata"] {
        let text = policy("p", "has(a)").replace(&format!("{broken}:"), "oops:");
        assert_eq!(dir.change(&[("a.yaml", Some(&text))]), [""; 0], "{broken}");
        assert!(dir.problems().iter().all(|(_, fallback)| *fallback != Fallback::Nothing), "{broken}");
    }
    assert_eq!(dir.change(&[("a.yaml", Some(NAMESPACE))]).len(), 3);
}

#[test]
fn a_denial_outlives_a_version_that_is_worse() {
    let mut dir = Directory::default();
    let bad = policy("p", "has(a)").replace("Ingress", "Inwards");
    assert_eq!(dir.change(&[("a.yaml", Some(&bad))]).len(), 1);
    assert_eq!(dir.change(&[("a.yaml", Some(&policy("p", "has(a")))]), [""; 0]);
    assert!(dir.problems().iter().all(|(_, fallback)| *fallback == Fallback::Denied));
}

/// Returns the closed endpoints as the selectors of the policies that close them.
fn closed(state: &DirState) -> Vec<String> {
    let snapshot = state.snapshot();
    let policies = snapshot.iter().filter_map(|update| match update {
        Update::Policy(id, Some(policy)) if id.name.starts_with("tortie-unreadable") => {
            assert_eq!((policy.inbound.len(), policy.outbound.len()), (1, 1));
            Some(policy.selector.text().to_owned())
        }
        _ => None,
    });
    policies.collect()
}

const BROKEN_SELECTOR: &str = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p, namespace: \
                               shop}\nspec: {podSelector: {matchLabels: 7}}\n";

fn closing() -> Directory {
    Directory { state: Some(DirState::new(Options::default()).close_unknown()) }
}

#[test]
fn unknown_objects_at_the_start_are_closed_until_repaired() {
    for (broken, selector) in [
        ("{]", "all()"),
        (&*policy("q", "has("), "all()"),
        (BROKEN_SELECTOR, "projectcalico.org/namespace == 'shop'"),
        (
            "{apiVersion: v1, kind: Namespace, metadata: {name: depot, labels: 7}}",
            "projectcalico.org/namespace == 'depot'",
        ),
    ] {
        let mut dir = closing();
        dir.change(&[("a.yaml", Some(NAMESPACE)), ("b.yaml", Some(broken))]);
        dir.state().complete();
        assert_eq!(closed(dir.state()), [selector], "{broken}");
        assert!(dir.problems().iter().any(|(_, fallback)| *fallback == Fallback::Closed), "{:?}", dir.problems());
        // A further, still invalid version.
        dir.change(&[("b.yaml", Some(&format!("# a comment\n{broken}")))]);
        assert_eq!(closed(dir.state()), [selector], "{broken}");
        dir.state().set_file("b.yaml".as_ref(), Some(FileContent::Unreadable("denied")));
        assert_eq!(closed(dir.state()), [selector], "{broken}");
        dir.change(&[("b.yaml", Some(&policy("p", "has(a)")))]);
        assert!(closed(dir.state()).is_empty() && dir.problems().is_empty(), "{broken}: {:?}", dir.problems());
        dir.change(&[("a.yaml", None), ("b.yaml", None)]);
        assert!(is_empty(dir.state()));
    }
    // It decides nothing about packets; nothing is closed.
    let mut dir = closing();
    dir.change(&[(
        "a.yaml",
        Some("{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: p}, spec: {cidr: x}}"),
    )]);
    assert!(
        closed(dir.state()).is_empty() && dir.problems().iter().any(|(_, fallback)| *fallback == Fallback::Nothing)
    );
}

#[test]
fn a_document_without_a_name_closes_its_namespace() {
    for (document, selector) in [
        ("kind: NetworkPolicy, metadata: {namespace: shop, name: No_Name}", "projectcalico.org/namespace == 'shop'"),
        ("kind: NetworkPolicy, metadata: {name: No_Name}", "all()"),
        ("kind: NetworkPolicy, metadata: {namespace: \"x' || all()\", name: p}", "all()"),
        ("kind: NetworkPolicies, metadata: {namespace: shop, name: p}", "all()"),
    ] {
        let mut dir = closing();
        dir.change(&[(
            "a.yaml",
            Some(&format!("{{apiVersion: networking.k8s.io/v1, {document}, spec: {{podSelector: {{}}}}}}")),
        )]);
        assert_eq!(closed(dir.state()), [selector], "{document}: {:?}", dir.problems());
    }
}

#[test]
fn unknown_objects_after_the_start_close_nothing() {
    let mut dir = closing();
    dir.change(&[("a.yaml", Some(NAMESPACE)), ("b.yaml", Some(BROKEN_SELECTOR))]);
    dir.state().complete();
    let shop = ["projectcalico.org/namespace == 'shop'"];
    assert_eq!(closed(dir.state()), shop);
    dir.change(&[("c.yaml", Some("{]")), ("a.yaml", Some(&format!("{NAMESPACE}---\n{{]")))]);
    assert_eq!(closed(dir.state()), shop);
    let fallbacks: Vec<Fallback> = dir.problems().into_iter().map(|(_, fallback)| fallback).collect();
    assert_eq!(fallbacks, [Fallback::Tolerated, Fallback::Closed, Fallback::Tolerated]);
    // The set of closed scopes does not grow either.
    dir.change(&[("b.yaml", Some("{]"))]);
    assert_eq!(closed(dir.state()), shop);
    dir.change(&[("b.yaml", None)]);
    assert!(closed(dir.state()).is_empty());
}

#[test]
fn closed_objects_stay_closed_while_their_file_is_replaced() {
    for broken in ["{]", BROKEN_SELECTOR] {
        let mut dir = closing();
        dir.change(&[("b.yaml", Some(broken))]);
        dir.state().complete();
        let before = closed(dir.state());
        assert_eq!(before.len(), 1);
        dir.state().stage("b.yaml".as_ref(), None, Missing::Kept);
        dir.state().take_updates();
        assert_eq!(closed(dir.state()), before);
        let empty = dir.state().read("b.yaml".as_ref(), FileContent::Text("")).unwrap();
        assert!(dir.state().loses("b.yaml".as_ref(), &empty));
        dir.state().stage("b.yaml".as_ref(), Some(empty), Missing::Kept);
        dir.state().take_updates();
        assert_eq!(closed(dir.state()), before);
        dir.change(&[("b.yaml", Some(broken))]);
        assert_eq!(closed(dir.state()), before);
        dir.state().stage("b.yaml".as_ref(), None, Missing::Kept);
        dir.state().release("b.yaml".as_ref());
        dir.state().take_updates();
        assert!(closed(dir.state()).is_empty());
    }
}

#[test]
fn closed_scopes_are_narrowed() {
    use unknown::narrow;
    let (all, shop, other, nobody) =
        (Scope::All, Scope::Namespace("shop".into()), Scope::Namespace("other".into()), Scope::Nobody);
    for (before, now, expected) in [
        (vec![&all], vec![&all], vec![&all]),
        (vec![&all], vec![&shop], vec![&shop]),
        (vec![&shop], vec![&all], vec![&shop]),
        (vec![&shop], vec![&other], vec![]),
        (vec![&shop, &nobody], vec![&shop, &other], vec![&shop]),
        (vec![&all], vec![], vec![]),
        (vec![], vec![&all], vec![]),
        (vec![&nobody], vec![&all], vec![]),
        (vec![&nobody], vec![&nobody], vec![&nobody]),
    ] {
        let set = |scopes: &[&Scope]| scopes.iter().map(|scope| (*scope).clone()).collect::<BTreeSet<_>>();
        assert_eq!(narrow(&set(&before), &set(&now)), set(&expected), "{before:?} {now:?}");
    }
}
