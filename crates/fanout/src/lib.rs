//! One watch of a datastore for any number of agents: Tortie's fan-out protocol and Typha's, server and client.
#![forbid(unsafe_code)]
