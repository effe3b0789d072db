//! Sources of updates for the Tortie engine: a directory of manifests, recorded streams.
#![forbid(unsafe_code)]
