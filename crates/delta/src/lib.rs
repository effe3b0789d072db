//! Desired, observed and pending state over keyed values.
#![forbid(unsafe_code)]
