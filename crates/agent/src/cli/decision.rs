//! What decides about packets, in words.

use tortie_evaluate::{DecidedBy, Guard};
use tortie_model::Direction;

pub(super) fn direction(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "ingress",
        Direction::Egress => "egress",
    }
}

pub(super) fn guard_name(guard: Guard) -> &'static str {
    match guard {
        Guard::Vxlan => "VXLAN of workloads",
        Guard::IpIp => "IP-in-IP of workloads",
        Guard::RouterIcmpv6 => "ICMPv6 that routers need",
        _ => "another",
    }
}

/// What a verdict in a direction rests on.
pub(super) fn decided_by(by: &DecidedBy, way: Direction) -> String {
    let way = direction(way);
    match by {
        DecidedBy::PolicyRule { policy, index, .. } => format!("{policy}, {way} rule {index}"),
        DecidedBy::EndOfTier { tier } => {
            format!("the end of tier {tier}: its policies apply, and no rule of them matches")
        }
        DecidedBy::ProfileRule { profile, index } => format!("profile {profile}, {way} rule {index}"),
        DecidedBy::EndOfProfiles => "no policy applies, and no profile allows it".to_owned(),
        DecidedBy::Failsafe(port) => format!("failsafe port {} of protocol {}", port.port, port.protocol),
        DecidedBy::Guard(guard) => format!("{}, whatever policies say", guard_name(*guard)),
        DecidedBy::EndpointInactive => "the endpoint is not active".to_owned(),
        DecidedBy::NoForwardPolicy => "no policy applies to what is forwarded".to_owned(),
        DecidedBy::EndpointToHostAction => "DefaultEndpointToHostAction".to_owned(),
        DecidedBy::Nothing => "no rule decides".to_owned(),
        _ => "something that this command does not know".to_owned(),
    }
}
