//! Detection of the iptables implementation in use, and of the features of iptables and the kernel.

use std::path::Path;

use tortie_dataplane::IptablesConfig;
use tortie_iptables::{
    Backend, BackendProbe, Features, MissingProgram, Programs, SweepFacts, Version, backend_to_sweep, detect_backend,
};
use tortie_model::{Family, with_causes};

use super::{TimeLimits, checksums};
use crate::exec::{self, ExecError, Finished, Job, Runner};

/// Detected setup of iptables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IptablesSetup {
    /// Implementation to use.
    pub backend: Backend,
    /// Implementation that other programs seem to use. A difference from [`backend`](Self::backend)
    /// indicates a wrong choice on one side.
    pub detected: Backend,
    /// Its programs for IPv4.
    pub programs_v4: Programs,
    /// Its programs for IPv6.
    pub programs_v6: Programs,
    /// Features of iptables and the kernel.
    pub features: Features,
    /// Implementations in which rules of an earlier run may be left, by family.
    pub sweep: Vec<(Family, Backend)>,
    /// Parts of `FeatureDetectOverride` without a meaning here.
    pub unused_overrides: Vec<String>,
}

impl IptablesSetup {
    /// Copies the setup into a dataplane's configuration.
    pub fn apply_to(&self, config: &mut IptablesConfig) {
        config.backend = self.backend;
        config.programs_v4 = self.programs_v4.clone();
        config.programs_v6 = self.programs_v6.clone();
        config.features = self.features;
        config.sweep.clone_from(&self.sweep);
    }
}

/// Reason why iptables cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DetectError {
    /// Its programs are not installed.
    #[error("iptables ({backend}) cannot be used")]
    Missing {
        /// The implementation.
        backend: Backend,
        /// The programs.
        #[source]
        missing: MissingProgram,
    },
}

/// Result of the detection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Detected {
    /// Setup to use.
    pub setup: IptablesSetup,
    /// Reason why the wanted implementation is not used, if another one is.
    pub instead_of: Option<DetectError>,
}

/// Detects the implementation and the features of iptables
/// (`felix/environment/feature_detect_linux.go`).
///
/// `wanted` is `IptablesBackend` unless that is `Auto`. `families` are the families in which policy
/// is enforced. `overrides` is `FeatureDetectOverride`, `Name=bool,…`. `runner` runs the installed
/// `iptables-save` programs. The legacy modules are not loaded into the kernel.
///
/// If the programs of a family are not installed, the `previous` setup stays in use, since its
/// rules are in force. Without one, the other implementation is used, which enforces as well.
///
/// # Errors
/// If the other implementation is missing, too.
pub fn detect(
    runner: &Runner,
    wanted: Option<Backend>,
    families: &[Family],
    overrides: &str,
    previous: Option<&IptablesSetup>,
) -> Result<Detected, DetectError> {
    detect_on(&Machine { runner, limits: TimeLimits::default() }, wanted, families, overrides, previous)
}

fn detect_on(
    machine: &impl Probed,
    wanted: Option<Backend>,
    families: &[Family],
    overrides: &str,
    previous: Option<&IptablesSetup>,
) -> Result<Detected, DetectError> {
    let iptables = machine.outputs(&[("iptables".to_owned(), &["--version"])]).concat();
    let iptables = String::from_utf8_lossy(&iptables);
    let detected = detect_in_use(machine, Backend::of_version(&iptables));
    let wanted = wanted.unwrap_or(detected);
    let setup = |backend| setup(machine, backend, detected, families, &iptables, overrides);
    let error = match setup(wanted) {
        Ok(setup) => return Ok(Detected { setup, instead_of: None }),
        Err(error) => error,
    };
    let other = match wanted {
        Backend::Nft => Backend::Legacy,
        Backend::Legacy => Backend::Nft,
    };
    match previous.cloned().or_else(|| setup(other).ok()) {
        Some(setup) => Ok(Detected { setup, instead_of: Some(error) }),
        None => Err(error),
    }
}

fn setup(
    machine: &impl Probed,
    backend: Backend,
    detected: Backend,
    families: &[Family],
    iptables: &str,
    overrides: &str,
) -> Result<IptablesSetup, DetectError> {
    let programs = |family| {
        let found = Programs::find(backend, family, |program| machine.is_installed(program));
        match found {
            // Programs of other families are never run.
            Err(_) if !families.contains(&family) => Ok(Programs::specific(backend, family)),
            found => found.map_err(|missing| DetectError::Missing { backend, missing }),
        }
    };
    let kernel = std::fs::read_to_string("/proc/version").unwrap_or_default();
    let kernel = Version::find_in(&kernel);
    let mut features = Features::detect(Version::find_in(iptables), kernel);
    let unused = features.apply_overrides(overrides).into_iter();
    // The override of checksums is used for tunnels.
    let unused_overrides = unused.filter(|piece| checksums::overridden(piece).is_none()).map(str::to_owned).collect();
    let sweep = families
        .iter()
        .filter_map(|&family| Some((family, backend_to_sweep(backend, sweep_facts(machine, family))?)))
        .collect();
    Ok(IptablesSetup {
        backend,
        detected,
        programs_v4: programs(Family::V4)?,
        programs_v6: programs(Family::V6)?,
        features,
        sweep,
        unused_overrides,
    })
}

/// Properties of a machine that the detection queries.
trait Probed {
    fn is_installed(&self, program: &str) -> bool;
    /// Reports whether the legacy modules are loaded.
    fn has_legacy_tables(&self, family: Family) -> bool;
    /// Returns the standard output of programs; empty for those that fail.
    fn outputs(&self, programs: &[(String, &[&str])]) -> Vec<Vec<u8>>;
}

/// Machine on which this process runs.
struct Machine<'r> {
    runner: &'r Runner,
    limits: TimeLimits,
}

impl Probed for Machine<'_> {
    fn is_installed(&self, program: &str) -> bool {
        exec::is_installed(program)
    }

    fn has_legacy_tables(&self, family: Family) -> bool {
        Path::new(match family {
            Family::V4 => "/proc/net/ip_tables_names",
            Family::V6 => "/proc/net/ip6_tables_names",
        })
        .exists()
    }

    fn outputs(&self, programs: &[(String, &[&str])]) -> Vec<Vec<u8>> {
        let jobs: Vec<Job> = programs
            .iter()
            .map(|(program, args)| Job {
                program: program.clone(),
                args: args.iter().map(|&arg| arg.to_owned()).collect(),
                input: Vec::new(),
                limit: if args.contains(&"--version") { self.limits.probe } else { self.limits.tables },
            })
            .collect();
        let stdout = |result: Result<Finished, ExecError>| match result {
            Ok(finished) => finished.status.success().then_some(finished.stdout),
            Err(error @ (ExecError::Start { .. } | ExecError::Stopping { .. })) => {
                tracing::debug!(error = %with_causes(&error), "detecting iptables");
                None
            }
            Err(error) => {
                tracing::warn!(error = %with_causes(&error), "detecting iptables without the output of its programs");
                None
            }
        };
        self.runner.run_all(&jobs).into_iter().map(|result| stdout(result).unwrap_or_default()).collect()
    }
}

/// Returns the save programs of an implementation for IPv4 and IPv6, without those that must not be
/// run.
fn save_programs(machine: &impl Probed, backend: Backend) -> [Option<String>; 2] {
    Family::ALL.map(|family| {
        // Listing legacy tables would load their modules.
        if backend == Backend::Legacy && !machine.has_legacy_tables(family) {
            return None;
        }
        Programs::find(backend, family, |program| machine.is_installed(program)).ok().map(|programs| programs.save)
    })
}

/// Returns the output of the save programs of these implementations.
fn listings<const N: usize>(
    machine: &impl Probed,
    backends: [Backend; N],
    args: &'static [&'static str],
) -> [[Vec<u8>; 2]; N] {
    let programs = backends.map(|backend| save_programs(machine, backend));
    let run: Vec<_> = programs.iter().flatten().flatten().map(|program| (program.clone(), args)).collect();
    let mut outputs = machine.outputs(&run).into_iter();
    programs.map(|backend| backend.map(|program| program.and_then(|_| outputs.next()).unwrap_or_default()))
}

fn texts(outputs: &[Vec<u8>; 2]) -> [&[u8]; 2] {
    outputs.each_ref().map(Vec::as_slice)
}

/// Returns the implementation that other programs seem to use. `installed` is that of the host's
/// `iptables`, if it states one.
///
/// A node may have very many rules. They are all listed only if the answer depends on their number.
/// Those of the implementation with more rules in its mangle table are listed only if the other
/// listing does not decide.
fn detect_in_use(machine: &impl Probed, installed: Option<Backend>) -> Backend {
    let [nft, legacy] = listings(machine, [Backend::Nft, Backend::Legacy], &["-t", "mangle"]);
    let (nft_mangle, legacy_mangle) = (texts(&nft), texts(&legacy));
    let probe = BackendProbe { nft_mangle, legacy_mangle, installed, ..BackendProbe::default() };
    let one_rule: [&[u8]; 2] = [b"-", b""];
    let if_nft_had_more = detect_backend(&BackendProbe { nft_all: one_rule, ..probe });
    let if_legacy_had_more = detect_backend(&BackendProbe { legacy_all: one_rule, ..probe });
    if if_nft_had_more == if_legacy_had_more {
        return if_nft_had_more;
    }
    // The rules of the mangle table are a part of all rules.
    let by_mangle = detect_backend(&BackendProbe { nft_all: nft_mangle, legacy_all: legacy_mangle, ..probe });
    let other = match by_mangle {
        Backend::Nft => Backend::Legacy,
        Backend::Legacy => Backend::Nft,
    };
    let [others] = listings(machine, [other], &[]);
    let with = |of_more: [&[u8]; 2]| {
        let (nft_all, legacy_all) = match by_mangle {
            Backend::Nft => (of_more, texts(&others)),
            Backend::Legacy => (texts(&others), of_more),
        };
        detect_backend(&BackendProbe { nft_all, legacy_all, ..probe })
    };
    let of_mangle = match by_mangle {
        Backend::Nft => nft_mangle,
        Backend::Legacy => legacy_mangle,
    };
    if with(of_mangle) == by_mangle {
        return by_mangle;
    }
    let [all] = listings(machine, [by_mangle], &[]);
    with(texts(&all))
}

fn sweep_facts(machine: &impl Probed, family: Family) -> SweepFacts {
    let has_both = |backend| {
        let Programs { save, restore } = Programs::specific(backend, family);
        machine.is_installed(&save) && machine.is_installed(&restore)
    };
    SweepFacts {
        legacy_programs: has_both(Backend::Legacy),
        nft_programs: has_both(Backend::Nft),
        legacy_modules_loaded: machine.has_legacy_tables(family),
    }
}

#[cfg(test)]
mod tests;
