//! Removal of secrets from texts that are shared.

use std::sync::LazyLock;

use regex::Regex;

/// Patterns of secrets, with their replacements.
static SECRETS: LazyLock<[(Regex, &str); 5]> = LazyLock::new(|| {
    // A value in quotes of JSON within JSON, in quotes, or up to the next blank.
    let value = r#"(?:\\"[^"\\]*\\"|"(?:\\.|[^"\\])*"|[^\s"]+)"#;
    let name = r"(?:password|passwd|token|secret|private[-_ ]?key|key[-_]data|fastopen_key|authorization)";
    let named = format!(r#"(?i)({name}\\?"?[ \t]*[:=][ \t]*)(?:(?:basic|bearer)[ \t]+)?{value}"#);
    [
        (r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\z)", "<redacted>"),
        (r"://[^/\s]*@", "://<redacted>@"),
        (&named, "${1}<redacted>"),
        (r"(?i)\bbearer[ \t]+[A-Za-z0-9._~+/=-]{16,}", "Bearer <redacted>"),
        (r"(?i)(--[a-z-]*(?:password|token|secret)[ \t]+)\S+", "${1}<redacted>"),
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
            ("etcd://root:pa@55@10.0.0.1:2379", "etcd://<redacted>@10.0.0.1:2379"),
            ("EtcdPassword=pa,55 next", "EtcdPassword=<redacted> next"),
            (r#"{"token": "abc \"def", "a": 1}"#, r#"{"token": <redacted>, "a": 1}"#),
            (r#"{"fields": "{\"token\": \"abc\", \"a\": 1}"}"#, r#"{"fields": "{\"token\": <redacted>, \"a\": 1}"}"#),
            ("Authorization: Bearer abc.def", "Authorization: <redacted>"),
            ("header Bearer eyJhbGciOiJIUzI1NiJ9.e30", "header Bearer <redacted>"),
            ("client-key-data: LS0tLS1CRUdJTg==", "client-key-data: <redacted>"),
            ("net.ipv4.tcp_fastopen_key = 1-2-3-4", "net.ipv4.tcp_fastopen_key = <redacted>"),
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
            "EtcdPassword=\nNext=1",
            "-A cali-fw -m set --match-set cali40s:abc src -j DROP",
            "https://10.0.0.1:6443/api?mail=a@example.org",
        ] {
            assert_eq!(redacted(text), text);
        }
    }
}
