//! Felix's dataplane protocol: generated messages, conversion from and to the desired state, framing.
#![forbid(unsafe_code)]
