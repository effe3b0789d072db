//! Incremental index of labelled items against selectors, and of IP set membership.
#![forbid(unsafe_code)]
