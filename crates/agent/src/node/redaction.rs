//! Removal of secrets from texts that are shared.

use std::sync::LazyLock;

use regex::Regex;

/// Patterns of secrets, with their replacements.
static SECRETS: LazyLock<[(Regex, &str); 4]> = LazyLock::new(|| {
    [
        (r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\z)", "<redacted>"),
        (r"://[^/@\s]*@", "://<redacted>@"),
        (
            r#"(?i)((?:password|passwd|token|secret|private[-_ ]?key|authorization)"?\s*[:=]\s*"?(?:(?:basic|bearer)\s+)?)[^\s",}]+"#,
            "${1}<redacted>",
        ),
        (r"(?i)(--[a-z-]*(?:password|token|secret)\s+)\S+", "${1}<redacted>"),
    ]
    .map(|(pattern, by)| (compiled(pattern), by))
});

#[expect(clippy::expect_used, reason = "the patterns are constant, and a test compiles them")]
fn compiled(pattern: &str) -> Regex {
    Regex::new(pattern).expect("the pattern is valid")
}

/// Replaces passwords, tokens and private keys by `<redacted>`.
pub(super) fn redacted(text: &str) -> String {
    let mut text = text.to_owned();
    for (secret, by) in SECRETS.iter() {
        text = secret.replace_all(&text, *by).into_owned();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_replaced() {
        for (text, expected) in [
            ("etcd://root:pa55@10.0.0.1:2379", "etcd://<redacted>@10.0.0.1:2379"),
            ("EtcdPassword=pa55 next", "EtcdPassword=<redacted> next"),
            (r#"{"token": "abc.def", "a": 1}"#, r#"{"token": "<redacted>", "a": 1}"#),
            ("Authorization: Bearer abc.def", "Authorization: Bearer <redacted>"),
            ("tortie run --etcd-password pa55 --node a", "tortie run --etcd-password <redacted> --node a"),
            ("-----BEGIN EC PRIVATE KEY-----\nMHc\nabc\n-----END EC PRIVATE KEY-----\nrest", "<redacted>\nrest"),
            ("-----BEGIN PRIVATE KEY-----\ncut off", "<redacted>"),
        ] {
            assert_eq!(redacted(text), expected);
        }
    }

    #[test]
    fn names_of_files_and_addresses_stay() {
        for text in [
            "tortie run --etcd-password-file /etc/tortie/password --node a",
            "-A cali-fw -m set --match-set cali40s:abc src -j DROP",
            "https://10.0.0.1:6443/api?mail=a@example.org",
        ] {
            assert_eq!(redacted(text), text);
        }
    }
}
