//! `tortie version`.

use serde_json::{Value, json};

use tortie_cli::Failure;
use tortie_cli::output::Output;

/// Print the version and the build information.
///
/// The commit is known for release builds in a git checkout, with a + if files were changed, and
/// for builds with TORTIE_COMMIT.
///
/// Example: tortie version -o json
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// Features of this program, with whether this build has them.
const FEATURES: [(&str, bool); 7] = [
    ("etcd", cfg!(feature = "etcd")),
    ("fanout", cfg!(feature = "fanout")),
    ("goldmane", cfg!(feature = "goldmane")),
    ("kubernetes", cfg!(feature = "kubernetes")),
    ("manual", cfg!(feature = "manual")),
    ("policysync", cfg!(feature = "policysync")),
    ("tls", cfg!(feature = "tls")),
];

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    args.output.print(whole, text)
}

fn features() -> Vec<&'static str> {
    FEATURES.iter().filter(|(_, is_built)| *is_built).map(|(name, _)| *name).collect()
}

fn known(text: &'static str) -> Option<&'static str> {
    Some(text).filter(|text| !text.is_empty())
}

fn profile() -> &'static str {
    if cfg!(debug_assertions) { "debug" } else { "release" }
}

fn whole() -> Value {
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "commit": known(env!("TORTIE_BUILT_COMMIT")),
        "features": features(),
        "target": env!("TORTIE_BUILT_TARGET"),
        "profile": profile(),
        "rustc": known(env!("TORTIE_BUILT_RUSTC")),
    })
}

fn text() -> String {
    let features = match &features()[..] {
        [] => "none".to_owned(),
        features => features.join(", "),
    };
    format!(
        "tortie {}\n  commit    {}\n  features  {features}\n  target    {}, {}\n  compiler  {}\n",
        env!("CARGO_PKG_VERSION"),
        known(env!("TORTIE_BUILT_COMMIT")).unwrap_or("not known"),
        env!("TORTIE_BUILT_TARGET"),
        profile(),
        known(env!("TORTIE_BUILT_RUSTC")).unwrap_or("not known"),
    )
}
