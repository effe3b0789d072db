//! The Calico selector language: parse, canonical form, stable id, evaluation, must-have facts.
#![forbid(unsafe_code)]
