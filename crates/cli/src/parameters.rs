use std::io::{self, Write};

use super::Failure;

/// Print Felix's parameters with type, default and effect, in Markdown.
///
/// Example: tortie parameters | grep Iptables
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {}

pub(super) fn run(_: &Args) -> Result<(), Failure> {
    io::stdout().write_all(tortie_parameters::markdown().as_bytes()).map_err(Failure::io("standard output"))
}
