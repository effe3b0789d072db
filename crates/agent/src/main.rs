//! The `tortie` binary.
fn main() {}
