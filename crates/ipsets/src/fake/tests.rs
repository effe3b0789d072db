//! The fake against what real ipset was seen to do (`tests/kernel.rs` holds it against a kernel).
