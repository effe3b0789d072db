//! Evaluates packets between pods, with the deciding rules:
//! `cargo run --package tortie --example trace`.

use std::error::Error;
use std::net::IpAddr;

use tortie::datastore::DirSource;
use tortie::evaluate::Packet;
use tortie::resources::manifest::Options;
use tortie::trace::Cluster;

/// Prints the verdict of each endpoint for the first packet of a connection.
pub fn main() -> Result<(), Box<dyn Error>> {
    let updates = DirSource::new("examples/demo", Options::default()).read()?;
    let mut cluster: Cluster = updates.into_iter().collect();
    let (web, api, db): (IpAddr, IpAddr, IpAddr) = ("10.65.1.1".parse()?, "10.65.1.2".parse()?, "10.65.1.3".parse()?);
    for from in [api, web] {
        let packet = Packet::tcp((from, 40000), (db, 5432))?;
        let connection = cluster.connection(&cluster.place_of(from), &cluster.place_of(db), &packet)?;
        println!("{from} to {db}: {:?}", connection.verdict());
        for leg in &connection.legs {
            println!("  {leg}");
        }
    }
    Ok(())
}
