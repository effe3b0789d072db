//! Prints what a node would be given for a directory of manifests:
//! `cargo run --package tortie --example render -- examples/demo demo-node`.

use std::error::Error;

use tortie::Node;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(directory), Some(name)) = (args.next(), args.next()) else {
        return Err("usage: render DIRECTORY NODE".into());
    };
    let node = Node::new(name.as_str()).read_dir(directory)?;
    for problem in node.problems() {
        eprintln!("{problem}");
    }
    print!("{}", node.render());
    Ok(())
}
