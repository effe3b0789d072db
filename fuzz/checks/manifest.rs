//! Any text is read safely. Valid objects have a path and can be written; invalid ones have a
//! reason.

use tortie_model::Interner;
use tortie_resources::Severity;
use tortie_resources::manifest::{self, Contributions, Format, Options, Outcome};
use tortie_resources::{path, v1};

/// The first byte is the format.
pub(crate) fn check(data: &[u8]) {
    let (&first, text) = data.split_first().unwrap_or((&0, &[]));
    let text = String::from_utf8_lossy(text);
    let format = if first & 1 == 0 { Format::Yaml } else { Format::Json };
    let manifest = manifest::read(&text, format, &Options::default(), &mut Interner::new());
    // In YAML, a carriage return alone also ends a line.
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
    for update in contributions {
        path::to_path(&update.key()).expect("a key that identifies an object");
        assert!(v1::encode(update).is_some(), "a contribution exists");
    }
}
