//! Assertions that a log contains no secrets.
#![allow(dead_code, reason = "each program of tests has another kind of secret")]

use std::path::Path;

pub(crate) fn is_hidden(secrets: &[&str], text: &str) {
    assert!(text.contains("DEBUG"), "a log without details proves nothing");
    for secret in secrets {
        // As text, and as a printed list of bytes.
        let bytes: Vec<String> = secret.bytes().map(|byte| byte.to_string()).collect();
        for form in [(*secret).to_owned(), bytes.join(", ")] {
            let line = text.lines().find(|line| line.contains(&form));
            assert_eq!(line, None, "{secret}");
        }
    }
}

/// Asserts that a text contains no part of a private key.
pub(crate) fn key_is_hidden(key: &Path, text: &str) {
    let pem = std::fs::read_to_string(key).unwrap();
    let lines: Vec<&str> = pem.lines().filter(|line| !line.starts_with("-----")).collect();
    assert!(pem.contains("PRIVATE KEY") && !lines.is_empty(), "{}", key.display());
    is_hidden(&lines, text);
}
