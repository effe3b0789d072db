//! Kubernetes and Calico resources as people write them: decoding, validation with field paths, conversion to the model.
#![forbid(unsafe_code)]
