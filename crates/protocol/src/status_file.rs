//! Names and contents of endpoint status files, byte for byte those of Felix
//! (`libcalico-go/lib/names/workloadendpointstatus.go`, `libcalico-go/lib/epstatusfile`).

use std::fmt::Write as _;

use serde::Serialize;
use tortie_model::WorkloadEndpointId;
use tortie_model::desired::WorkloadEndpointState;

/// Separator of the parts of a name; the escaped parts do not contain it.
const SEPARATOR: char = ' ';

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Content<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    iface_name: &'a str,
    #[serde(skip_serializing_if = "String::is_empty")]
    mac: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ipv4_nets: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ipv6_nets: Vec<String>,
    #[serde(skip_serializing_if = "str::is_empty")]
    bgp_peer_name: &'a str,
}

/// Returns the name of the status file of an endpoint.
#[must_use]
pub fn name(id: &WorkloadEndpointId) -> String {
    let mut name = String::new();
    for (number, part) in [&id.orchestrator, &id.workload, &id.endpoint].into_iter().enumerate() {
        if number > 0 {
            name.push(SEPARATOR);
        }
        escape(part, &mut name);
    }
    name
}

/// Reports whether a name is a possible name of a status file. Other files belong to other
/// programs.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let is_part = |part: &str| {
        let mut rest = part.bytes();
        while let Some(byte) = rest.next() {
            let is_right = if byte == b'%' {
                let mut is_digit = || rest.next().is_some_and(|digit| matches!(digit, b'0'..=b'9' | b'A'..=b'F'));
                is_digit() && is_digit()
            } else {
                is_plain(byte)
            };
            if !is_right {
                return false;
            }
        }
        true
    };
    name.split(SEPARATOR).count() == 3 && name.split(SEPARATOR).all(is_part)
}

/// Returns the content of the status file of an endpoint.
#[must_use]
#[expect(clippy::expect_used, reason = "texts and lists of texts are JSON")]
pub fn content(state: &WorkloadEndpointState) -> String {
    let endpoint = &state.endpoint;
    let peer = state.computed.as_ref().and_then(|computed| computed.local_bgp_peer.as_deref());
    let content = Content {
        iface_name: endpoint.iface.as_ref().map_or("", |iface| iface.as_str()),
        mac: endpoint.mac.map(|mac| mac.to_string()).unwrap_or_default(),
        ipv4_nets: endpoint.ipv4_nets.iter().map(ToString::to_string).collect(),
        ipv6_nets: endpoint.ipv6_nets.iter().map(ToString::to_string).collect(),
        bgp_peer_name: peer.unwrap_or_default(),
    };
    let text = serde_json::to_string(&content).expect("texts can be written as JSON");
    // Go's JSON encoder escapes these characters.
    text.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

/// Reports whether Go leaves a byte unescaped in a path segment (`url.PathEscape`).
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.~$&+=:@".contains(&byte)
}

fn escape(part: &str, out: &mut String) {
    for byte in part.bytes() {
        if is_plain(byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
}

#[cfg(test)]
mod tests;
