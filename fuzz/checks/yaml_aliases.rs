//! Documents of anchors and aliases, nested by the input, are read within the fuzzer's limits or
//! rejected.

use std::fmt::Write as _;

use tortie_model::Interner;
use tortie_resources::manifest::{self, Format, Options};

/// Maximum number of lines; more make a longer document, but not a deeper one.
const LINES: usize = 4096;

/// Each byte is a line: a list with an anchor whose items are aliases of earlier lists, a mapping,
/// a merge, or a long text.
pub(crate) fn check(data: &[u8]) {
    let mut text =
        String::from("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: ns}\ndata:\n  n0: &n0 x\n");
    for (line, &byte) in data.iter().take(LINES).enumerate() {
        let (line, count) = (line + 1, usize::from(byte >> 2));
        let earlier = |step: usize| format!("*n{}", line.saturating_sub(1 + step));
        let value = match byte & 3 {
            0 => format!("[{}]", vec![earlier(0); count].join(", ")),
            1 => format!("[{}]", (0..count).map(earlier).collect::<Vec<_>>().join(", ")),
            2 => format!("{{a: {}, b: {}, <<: {}}}", earlier(0), earlier(count), earlier(1)),
            _ => "x".repeat(count * count),
        };
        writeln!(text, "  n{line}: &n{line} {value}").expect("a String takes any text");
    }
    let lines = text.lines().count() + 1;
    let manifest = manifest::read(&text, Format::Yaml, &Options::default(), &mut Interner::new());
    for error in &manifest.unreadable {
        assert!(error.position.line as usize <= lines, "{error}");
    }
}
