use proptest::prelude::*;

use super::{HookPosition, Renderer, rule_hashes};
use crate::{
    Action, Chain, ChainName, Comment, ConntrackStates, Features, MarkBits, Matches, Origin, Rule, kernel_chain,
};

fn name(text: &str) -> ChainName {
    ChainName::new(text).unwrap()
}

fn mark(bits: u32) -> MarkBits {
    MarkBits::new(bits).unwrap()
}

/// Chain `cali-tw-calic6866a25fab` of a published ruleset of Calico v3.22.
#[test]
fn hashes_equal_those_of_a_published_ruleset() {
    let jump = |target| Action::Jump(name(target));
    let return_if =
        |comment: &'static str| Rule::when(Matches::new().mark_set(mark(0x10000)), Action::Return).comment(comment);
    let pass_clear = || Matches::new().mark_clear(mark(0x20000));
    let chain = Chain::new(
        name("cali-tw-calic6866a25fab"),
        vec![
            Rule::when(Matches::new().conntrack(ConntrackStates::RELATED_OR_ESTABLISHED), Action::Accept),
            Rule::when(Matches::new().conntrack(ConntrackStates::INVALID), Action::Drop),
            Rule::new(Action::ClearMark(mark(0x10000))),
            Rule::new(Action::ClearMark(mark(0x20000))).comment("Start of policies"),
            Rule::when(pass_clear(), jump("cali-pi-_PfqSzIS1AirpjL0oXbg")),
            return_if("Return if policy accepted"),
            Rule::when(pass_clear(), Action::Drop).comment("Drop if no policies passed packet"),
            Rule::new(jump("cali-pri-kns.policy-demo")),
            return_if("Return if profile accepted"),
            Rule::new(jump("cali-pri-_QdhVZ8TmSXm2EvYAKH")),
            return_if("Return if profile accepted"),
            Rule::new(Action::Drop).comment("Drop if no profiles matched"),
        ],
    );
    let hashes: Vec<String> = rule_hashes(&chain, &Features::ALL).iter().map(ToString::to_string).collect();
    assert_eq!(
        hashes,
        [
            "5QeAipZ91RWxAvAP",
            "nUFU9ZCyUibQGJeM",
            "Fb8j6_8umAFH-caO",
            "5EvW0trrqBzvohhg",
            "3WtlYwIIeClqiGDi",
            "F9Es9Pigmj_w4QXL",
            "IxzxRAfuJGtkJERO",
            "y1Vh7ciW6qiyN7yE",
            "ocU3P7TVKNDR3w0C",
            "KYnUV6tBjKhOVhvl",
            "-3c2S3tuRZHwglRj",
            "1X5WKlXPf0ajKXrw",
        ]
    );
    assert_eq!(chain.targets().count(), 3);
}

#[test]
fn hooks_hash_by_position() {
    let mut renderer = Renderer::new(Features::ALL);
    let insert = [Rule::new(Action::Jump(name("cali-FORWARD")))];
    let hook = renderer.hook(kernel_chain::FORWARD, HookPosition::Insert, &insert);
    assert_eq!(hook.hash(0).unwrap().as_str(), "wUHhoiAYhphO9Mso");
    let append = [Rule::new(Action::Jump(name("cali-POSTROUTING")))];
    let hook = renderer.hook(kernel_chain::POSTROUTING, HookPosition::Append, &append);
    assert_eq!(hook.hash(0).unwrap().as_str(), "0i8pjzKKPyA34aQD");
}

#[test]
fn lines_of_all_kinds() {
    let chain =
        Chain::new(name("c"), vec![Rule::new(Action::Accept), Rule::default(), Rule::default().comment("only")]);
    let rendered = Renderer::new(Features::ALL).chain(&chain);
    let line = |write: &dyn Fn(&mut String)| {
        let mut out = String::new();
        write(&mut out);
        let hash = out.find("cali:").map(|at| at + 5..at + 21);
        hash.map(|range| out.replace(&out[range].to_owned(), "H")).unwrap_or(out)
    };
    let comment = "-m comment --comment \"cali:H\"";
    assert_eq!(line(&|o| rendered.write_append(0, o)), format!("-A c {comment} --jump ACCEPT"));
    assert_eq!(line(&|o| rendered.write_insert(0, o)), format!("-I c {comment} --jump ACCEPT"));
    assert_eq!(line(&|o| rendered.write_replace(0, 2, o)), format!("-R c 2 {comment} --jump ACCEPT"));
    assert_eq!(line(&|o| rendered.write_append(1, o)), format!("-A c {comment}"));
    assert_eq!(line(&|o| rendered.write_append(2, o)), format!("-A c {comment} -m comment --comment \"only\""));
    assert_eq!(line(&|o| rendered.write_append(3, o)), "");
    assert_eq!((rendered.rest(3), rendered.hash(3)), ("", None));
}

#[test]
fn the_origin_of_a_rule_does_not_show() {
    let plain = Rule::new(Action::Drop);
    let origin = Origin { owner: "someone".into(), part: Some(3) };
    let traced = Rule { origin: Some(origin), ..plain.clone() };
    let hashes = |rule| rule_hashes(&Chain::new(name("c"), vec![rule]), &Features::ALL);
    assert_eq!(hashes(plain), hashes(traced));
}

#[test]
fn comments_are_made_harmless() {
    let comment = |text: &'static str| Comment::new(text).map(|c| c.as_str().to_owned());
    assert_eq!(comment(""), None);
    assert_eq!(comment("Start of tier default"), Some("Start of tier default".to_owned()));
    assert_eq!(comment("a\"; -j ACCEPT\n#é"), Some("a__ -j ACCEPT___".to_owned()));
    let long = Comment::new("é".repeat(300)).unwrap();
    assert_eq!(long.as_str(), "_".repeat(256));
}

proptest! {
    #[test]
    fn no_comment_can_end_its_quotes(text in ".{1,300}") {
        let comment = Comment::new(text).unwrap();
        prop_assert!(comment.as_str().len() <= Comment::MAX_LEN);
        prop_assert!(!comment.as_str().contains(['"', '\\', '\n', '\'']));
    }

    #[test]
    fn a_hash_depends_on_preceding_rules_only(
        before in 0usize..4, after in 0usize..4,
    ) {
        let filler = |n: usize| (0..n).map(|i| Rule::default().comment(format!("{i}")));
        let probe = Rule::new(Action::Drop);
        let rules = filler(before).chain([probe.clone()]).chain(filler(after)).collect();
        let with = rule_hashes(&Chain::new(name("c"), rules), &Features::ALL);
        let alone = rule_hashes(
            &Chain::new(name("c"), filler(before).chain([probe]).collect()), &Features::ALL);
        prop_assert_eq!(&with[..=before], &alone[..]);
    }
}
