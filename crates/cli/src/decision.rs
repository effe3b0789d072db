//! What decides about packets, in words.

use tortie_model::Direction;

pub(super) fn direction(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "ingress",
        Direction::Egress => "egress",
    }
}
