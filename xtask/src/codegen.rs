//! Generation of Rust from protocol files. The result is committed, so that builds need no code
//! generator.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::shell::root;

/// A protocol file and the Rust made from it.
struct Generated {
    proto: &'static str,
    rust: &'static str,
    kind: CodeKind,
}

/// The code that is generated from a protocol file.
#[derive(Clone, Copy)]
enum CodeKind {
    Messages,
    /// Clients of the services; the messages are in another crate.
    Clients,
}

const GENERATED: &[Generated] = &[
    Generated {
        proto: "crates/protocol/proto/felix.proto",
        rust: "crates/protocol/src/generated/felix.rs",
        kind: CodeKind::Messages,
    },
    Generated {
        proto: "crates/protocol/proto/felix.proto",
        rust: "crates/node/src/policysync/generated/client.rs",
        kind: CodeKind::Clients,
    },
    Generated {
        proto: "crates/node/proto/goldmane.proto",
        rust: "crates/node/src/flows/goldmane/generated/goldmane.rs",
        kind: CodeKind::Messages,
    },
];

/// Regenerates all generated files.
pub(crate) fn run() -> Result<(), String> {
    for generated in GENERATED {
        let path = root().join(generated.rust);
        std::fs::write(&path, generated.code()?).map_err(in_file(&path))?;
        println!("{}", generated.rust);
    }
    Ok(())
}

fn in_file<E: std::fmt::Display>(path: &Path) -> impl FnOnce(E) -> String {
    move |error| format!("{}: {error}", path.display())
}

impl Generated {
    fn code(&self) -> Result<String, String> {
        let proto = root().join(self.proto);
        let folder = proto.parent().map(PathBuf::from).unwrap_or_default();
        let descriptors = protox::compile([&proto], [&folder]).map_err(|error| format!("{error:?}"))?;
        let mut config = prost_build::Config::new();
        // Equal messages have equal bytes only if their maps are ordered.
        config.btree_map(["."]);
        if matches!(self.kind, CodeKind::Clients) {
            config.extern_path(".felix", "::tortie_protocol::felix");
            config.service_generator(tonic_prost_build::configure().build_server(false).service_generator());
        }
        let module = prost_build::Module::from_protobuf_package_name("generated");
        let requests = descriptors.file.into_iter().map(|file| (module.clone(), file)).collect();
        let code = config.generate(requests).map_err(in_file(&proto))?.remove(&module).unwrap_or_default();
        format(&format!("// Made by `cargo xtask codegen` from {}.\n{code}", self.proto))
    }
}

/// Formats code like the rest of the workspace.
fn format(code: &str) -> Result<String, String> {
    let mut rustfmt = Command::new("rustfmt")
        .args(["--edition", "2024"])
        .current_dir(root())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("rustfmt: {error}"))?;
    let mut stdin = rustfmt.stdin.take().ok_or("rustfmt takes no input")?;
    let code = code.to_owned();
    let feeder = std::thread::spawn(move || stdin.write_all(code.as_bytes()));
    let output = rustfmt.wait_with_output().map_err(|error| format!("rustfmt: {error}"))?;
    let fed = feeder.join().map_err(|_| "the thread that feeds rustfmt panicked".to_owned())?;
    if !output.status.success() {
        return Err(format!("rustfmt: {}", output.status));
    }
    fed.map_err(|error| format!("rustfmt: {error}"))?;
    String::from_utf8(output.stdout).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::{GENERATED, root};

    #[test]
    fn generated_code_is_up_to_date() {
        for generated in GENERATED {
            let committed = std::fs::read_to_string(root().join(generated.rust)).unwrap();
            let stale = committed != generated.code().unwrap();
            assert!(
                !stale,
                "{} differs from the code generated from {}; run cargo xtask codegen",
                generated.rust, generated.proto
            );
        }
    }
}
