//! Decides whether host endpoints would allow a management connection if it were opened again.

use std::net::IpAddr;

use tortie_evaluate::{Answer, DecidedBy, Evaluator, Layer, Missing, Packet, Verdict};
use tortie_model::{Direction, HostEndpointName};

use super::connection::{ManagementConnection, Observed};
use crate::connections::{ConnectionEvaluator, Exceptions, NodeAddresses};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    Open,
    Closed,
    /// The host endpoint that decides is ambiguous, and the candidates do not agree.
    Unclear,
}

impl Admission {
    pub(super) fn is_cut_by(self, after: Self) -> bool {
        match self {
            Self::Open => after != Self::Open,
            Self::Unclear => after == Self::Closed,
            Self::Closed => false,
        }
    }
}

pub(super) fn admissions(evaluator: &Evaluator, observed: &Observed) -> Vec<Admission> {
    let node_addresses = NodeAddresses { addresses: observed.addresses.clone(), ..NodeAddresses::default() };
    let exceptions = Exceptions::default();
    let connection_evaluator = ConnectionEvaluator::new(evaluator, &node_addresses, &exceptions);
    observed.connections.iter().map(|connection| admission(evaluator, &connection_evaluator, connection)).collect()
}

fn admission(
    evaluator: &Evaluator,
    connection_evaluator: &ConnectionEvaluator<'_>,
    connection: &ManagementConnection,
) -> Admission {
    // Host endpoints do not govern packets from the host itself or, here, from its workloads.
    if !connection_evaluator.is_elsewhere(connection.remote.ip()) {
        return Admission::Open;
    }
    let interface = connection.interface.as_deref().and_then(|name| name.parse().ok());
    let endpoints = connection_evaluator.host_endpoints_at(interface);
    let open = endpoints.iter().filter(|name| name.is_none_or(|name| admits(evaluator, name, connection)));
    match open.count() {
        open if open == endpoints.len() => Admission::Open,
        0 => Admission::Closed,
        _ => Admission::Unclear,
    }
}

/// Whether a host endpoint allows a connection and its answers. A reference to a missing object
/// allows nothing.
fn admits(evaluator: &Evaluator, name: &HostEndpointName, connection: &ManagementConnection) -> bool {
    let ends = |from: std::net::SocketAddr, to: std::net::SocketAddr| -> Option<Packet> {
        let end = |end: std::net::SocketAddr| -> (IpAddr, u16) { (end.ip(), end.port()) };
        Packet::tcp(end(from), end(to)).ok()
    };
    let Some((inbound, answer)) =
        ends(connection.remote, connection.local).zip(ends(connection.local, connection.remote))
    else {
        return false;
    };
    let ask = |layer, direction, packet| evaluator.host(name, layer, direction, packet);
    let decide = || -> Result<bool, Missing> {
        match ask(Layer::Untracked, Direction::Ingress, &inbound)? {
            Answer { verdict: Verdict::Deny, .. } => return Ok(false),
            // An untracked connection gets an answer only if that is allowed untracked as well.
            answered if is_allowed_by_rule(&answered) => {
                return Ok(ask(Layer::Untracked, Direction::Egress, &answer)?.verdict == Verdict::Allow);
            }
            _ => {}
        }
        if ask(Layer::Untracked, Direction::Egress, &answer)?.verdict == Verdict::Deny {
            return Ok(false);
        }
        match ask(Layer::PreDnat, Direction::Ingress, &inbound)? {
            Answer { verdict: Verdict::Deny, .. } => return Ok(false),
            answered if is_allowed_by_rule(&answered) => return Ok(true),
            _ => {}
        }
        Ok(ask(Layer::Normal, Direction::Ingress, &inbound)?.verdict != Verdict::Deny)
    };
    decide().unwrap_or(false)
}

/// Whether a rule allows the packet, which holds for the whole endpoint; a failsafe port skips its
/// layer alone.
fn is_allowed_by_rule(answer: &Answer) -> bool {
    answer.verdict == Verdict::Allow && !matches!(answer.decided_by, DecidedBy::Failsafe(_))
}
