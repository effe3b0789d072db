//! Vocabulary of the Tortie network-policy engine: keys, values, updates and the desired state of a node.
#![forbid(unsafe_code)]
