//! Matches selectors against labels: `cargo run --package tortie --example select`.

use std::error::Error;

use tortie::selector::Selector;

/// Prints the pods that each selector matches.
pub fn main() -> Result<(), Box<dyn Error>> {
    let pods = [
        ("web-0", [("role", "web"), ("env", "prod")]),
        ("api-0", [("role", "api"), ("env", "prod")]),
        ("web-test", [("role", "web"), ("env", "test")]),
    ];
    for text in ["role == 'web'", "role in {'web','api'} && env != 'test'", "!has(role) || env == 'test'"] {
        let selector = Selector::parse(text)?;
        let names: Vec<&str> =
            pods.iter().filter(|(_, labels)| selector.matches(labels)).map(|(name, _)| *name).collect();
        println!("{selector}: {}", names.join(", "));
    }
    if let Err(error) = Selector::parse("role = 'web'") {
        println!("{error}");
    }
    Ok(())
}
