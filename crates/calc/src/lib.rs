//! Calculation graph: from datastore updates to what one node must enforce.
#![forbid(unsafe_code)]
