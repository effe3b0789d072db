//! Reasons of failed connections, by the expectation of TLS that was not met.

/// Returns the expectation that a connection did not meet, by the text of its error with its
/// causes; `None` if TLS is not the reason. `authority` describes the trusted authorities; `None`
/// for a connection without TLS.
pub(crate) fn tls_reason(error: &str, authority: Option<&str>) -> Option<String> {
    let has = |texts: &[&str]| texts.iter().any(|text| error.contains(text));
    let Some(authority) = authority else {
        // Messages of hyper and h2 about an answer in another protocol.
        let is_binary = has(&["invalid HTTP version parsed", "frame with invalid size", "http2 error"]);
        return is_binary.then(|| "the server expects TLS".into());
    };
    // Names of errors and alerts in rustls, and messages of tokio-rustls.
    if has(&["UnknownIssuer", "BadSignature"]) {
        return Some(format!("the server's certificate does not come from {authority}"));
    }
    if error.contains("received fatal alert") && has(&["Certificate", "UnknownCA", "AccessDenied"]) {
        return Some("the server requires a client certificate that it trusts".into());
    }
    has(&["InvalidContentType", "tls handshake eof"]).then(|| "the server does not speak TLS".into())
}
