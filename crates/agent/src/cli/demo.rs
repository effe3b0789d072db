//! `tortie demo`.
use super::Failure;

/// x
#[derive(Debug, clap::Args)]
pub(super) struct Args {}

pub(super) fn run(_args: &Args) -> Result<(), Failure> {
    Ok(())
}
