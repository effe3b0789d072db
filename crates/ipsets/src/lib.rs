//! IP sets reconciled with the least possible writes, as a plan/result state machine.
#![forbid(unsafe_code)]
