//! Managers that turn the desired state of a node into tables, IP sets, routes and sysctls.
#![forbid(unsafe_code)]
