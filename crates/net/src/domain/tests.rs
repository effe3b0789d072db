use proptest::prelude::*;

use super::*;

fn name(text: &str) -> DomainName {
    text.parse().unwrap()
}

fn pattern(text: &str) -> DomainPattern {
    text.parse().unwrap()
}

#[test]
fn case_and_one_trailing_dot_do_not_count() {
    assert_eq!(name("EXAMPLE.com."), name("example.com"));
    assert_eq!(pattern("*.EXAMPLE.com."), pattern("*.example.com"));
    assert_eq!(name("_dns.x--1.A").to_string(), "_dns.x--1.a");
    assert_eq!(name("a").labels().count(), 1);
}

#[test]
fn errors_have_a_position() {
    let long = "x".repeat(64);
    let label = "x".repeat(63);
    let whole = [label.as_str(); 4].join(".");
    let cases: [(&str, usize, DomainProblem); 12] = [
        ("", 1, DomainProblem::Empty),
        (".", 1, DomainProblem::Empty),
        (".a", 1, DomainProblem::EmptyLabel),
        ("a..b", 3, DomainProblem::EmptyLabel),
        ("a.b..", 5, DomainProblem::EmptyLabel),
        (&long, 64, DomainProblem::LongLabel),
        (&whole, 254, DomainProblem::Long),
        ("a b.io", 2, DomainProblem::Character(' ')),
        ("bücher.example", 2, DomainProblem::Character('ü')),
        ("é.é.io", 1, DomainProblem::Character('é')),
        ("*.a.io", 1, DomainProblem::Wildcard),
        ("w*.a.io", 2, DomainProblem::Wildcard),
    ];
    for (text, position, problem) in cases {
        let error = text.parse::<DomainName>().unwrap_err();
        assert_eq!((error.position, error.problem), (position, problem), "{text}");
        assert_eq!(error.text, text);
    }
    let cases = [
        ("*", 1, DomainProblem::LastWildcard),
        ("*.", 1, DomainProblem::LastWildcard),
        ("a.*", 3, DomainProblem::LastWildcard),
        ("w*.a.io", 2, DomainProblem::PartialWildcard),
        ("a.**.io", 3, DomainProblem::PartialWildcard),
        ("*.*.a.io", 3, DomainProblem::SecondWildcard),
        ("x.*.a.*.io", 7, DomainProblem::SecondWildcard),
    ];
    for (text, position, problem) in cases {
        let error = text.parse::<DomainPattern>().unwrap_err();
        assert_eq!((error.position, error.problem), (position, problem), "{text}");
    }
    let error = "bücher.example".parse::<DomainName>().unwrap_err().to_string();
    assert!(error.contains("xn--") && error.contains("character 2"), "{error}");
}

#[test]
fn the_longest_names_are_accepted() {
    let label = "x".repeat(63);
    let longest = format!("{label}.{label}.{label}.{}", "y".repeat(61));
    assert_eq!(longest.len(), 253);
    assert_eq!(name(&format!("{longest}.")).as_str(), longest);
    assert!(format!("{longest}z").parse::<DomainName>().is_err());
    assert!(format!("{label}.{label}.{label}.{label}.*.a").parse::<DomainPattern>().is_err());
    assert_eq!(name(&["a"; 127].join(".")).labels().count(), 127);
}

#[test]
fn a_star_is_one_or_more_whole_labels() {
    let matches = |text: &str, of: &str| pattern(text).matches(&name(of));
    assert!(matches("*.a.io", "x.a.io") && matches("*.a.io", "x.y.a.io"));
    assert!(!matches("*.a.io", "a.io") && !matches("*.a.io", "xa.io") && !matches("*.a.io", "x.a.io.b"));
    assert!(matches("www.*.a.io", "www.x.a.io") && matches("www.*.a.io", "www.x.y.a.io"));
    assert!(!matches("www.*.a.io", "www.a.io") && !matches("www.*.a.io", "xwww.y.a.io"));
    assert!(!matches("www.*.www.a.io", "www.www.a.io"), "a label counts once");
    assert!(matches("a.io", "a.io") && !matches("a.io", "x.a.io"));
    assert_eq!(pattern("www.*.a.io").around_star(), Some(("www", "a.io")));
    assert_eq!(pattern("*.a.io").around_star(), Some(("", "a.io")));
    assert_eq!(pattern("a.io").around_star(), None);
    assert_eq!(DomainPattern::from(name("A.io")), pattern("a.io"));
}

#[test]
fn a_name_is_below_its_parents_only() {
    assert!(name("a.cluster.local").is_below(&name("cluster.local")));
    assert!(!name("cluster.local").is_below(&name("cluster.local")));
    assert!(!name("a-cluster.local").is_below(&name("cluster.local")));
}

proptest! {
    #[test]
    fn patterns_match_as_lists_of_labels_do(text in "(a|b|ab|\\*)(\\.(a|b|\\*)){0,4}", of in "(a|b|ab)(\\.(a|b)){0,5}") {
        let Ok(pattern) = text.parse::<DomainPattern>() else { return Ok(()) };
        let name = name(&of);
        let labels: Vec<&str> = of.split('.').collect();
        let wanted: Vec<&str> = text.split('.').collect();
        let expected = match wanted.iter().position(|label| *label == "*") {
            None => labels == wanted,
            Some(star) => {
                let after = wanted.len() - star - 1;
                labels.len() >= wanted.len()
                    && labels[..star] == wanted[..star]
                    && labels[labels.len() - after..] == wanted[star + 1..]
            }
        };
        prop_assert_eq!(pattern.matches(&name), expected);
    }

    #[test]
    fn any_text_is_read_back_or_refused(text in "[a-cA-C*._ü-]{0,12}") {
        if let Ok(pattern) = text.parse::<DomainPattern>() {
            prop_assert_eq!(&pattern.to_string().parse::<DomainPattern>().unwrap(), &pattern);
            prop_assert_eq!(text.parse::<DomainName>().is_ok(), pattern.around_star().is_none());
        } else {
            let error = text.parse::<DomainPattern>().unwrap_err();
            prop_assert!(error.position <= text.chars().count() + 1);
        }
    }
}
