//! Any text is read without harm, what is valid has selectors that parse and paths, and what is not has a reason.

use tortie_model::{EntityMatch, LabelInterner, Value};
use tortie_resources::Severity;
use tortie_resources::manifest::{self, Contributions, Format, Options, Outcome};
use tortie_resources::path;
use tortie_selector::Selector;

/// The first byte is the format.
pub(crate) fn check(data: &[u8]) {
    let (&first, text) = data.split_first().unwrap_or((&0, &[]));
    let text = String::from_utf8_lossy(text);
    let format = if first & 1 == 0 { Format::Yaml } else { Format::Json };
    let manifest = manifest::read(&text, format, &Options::default(), &mut LabelInterner::new());
    // In YAML, a carriage return alone ends a line too.
    let lines = text.split(['\n', '\r']).count() + 1;
    for error in &manifest.unreadable {
        assert!(error.position.line as usize <= lines, "{error}");
    }
    for resource in &manifest.resources {
        let errors = resource.problems.iter().filter(|p| p.severity == Severity::Error).count();
        for problem in &resource.problems {
            assert!(problem.position.line as usize <= lines, "{problem:?}");
        }
        match &resource.outcome {
            Outcome::Valid(contributions) => {
                assert_eq!(errors, 0);
                check_contributions(contributions);
            }
            Outcome::Invalid { substitute } => {
                assert!(errors > 0, "{resource:?}");
                substitute.iter().for_each(check_contributions);
            }
            Outcome::Unknown => assert_eq!(errors, 0),
        }
    }
}

fn check_contributions(contributions: &Contributions) {
    for (key, value) in contributions {
        path::to_path(key).expect("a key that identifies an object");
        if let Value::Policy(policy) = value {
            Selector::parse(policy.selector.as_str()).expect("a selector");
            for rule in policy.inbound.iter().chain(&*policy.outbound) {
                check_side(&rule.source);
                check_side(&rule.destination);
            }
        }
    }
}

fn check_side(side: &EntityMatch) {
    for selector in side.selector.iter().chain(&side.not_selector) {
        Selector::parse(selector.as_str()).expect("a selector");
    }
}
