use std::io::Write;

use tortie_config::{Config, settings};
use tortie_dataplane::DataplaneConfig;
use tortie_ebpf::hooks::{Attachment, Hook, KernelLayout, program};
use tortie_ebpf::{Description, MapSizes};
use tortie_linux::bpf::read_layout;
use tortie_model::desired::DesiredUpdate;

use super::super::{Failure, with_causes};
use super::Args;

pub(super) fn print(
    (settings, config): (&DataplaneConfig, &Config),
    desired: &[DesiredUpdate],
    args: &Args,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let (hooks, node) = settings::programs(&settings.rules, config);
    let description = Description::new(&node, desired).map_err(Failure::failed)?;
    let mut text = format!("# eBPF programs\n{description}");
    if args.programs {
        // Programs read fields in another way on older kernels.
        let read = read_layout(Attachment::Link).or_else(|_| read_layout(Attachment::Rule));
        let layout = match read {
            Ok(layout) => {
                text.push_str("\n# with the offsets and numbers of this machine's kernel\n");
                layout
            }
            Err(why) => {
                text.push_str(&format!("\n# with offsets and numbers of no kernel: {}\n", with_causes(&why)));
                KernelLayout::placeholder()
            }
        };
        for family in settings.families.iter().copied().filter(|family| args.wants(*family)) {
            for hook in Hook::ALL {
                let program = program(hook, family, &layout, &hooks, &MapSizes::default()).map_err(Failure::failed)?;
                let (name, number) = (hook.name(), family.number());
                text.push_str(&format!("\n# {name}, IPv{number}: {} instructions\n{program}", program.len()));
            }
        }
    }
    out.write_all(text.as_bytes()).map_err(Failure::io("standard output"))
}

pub(super) fn is_empty_table(text: &str) -> bool {
    text.lines().all(|line| line.starts_with('*') || line.is_empty() || line == "COMMIT")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_can_be_shown_without_a_kernel() {
        let layout = KernelLayout::placeholder();
        let program =
            program(Hook::Input, tortie_model::Family::V4, &layout, &Default::default(), &MapSizes::default()).unwrap();
        assert!(program.to_string().lines().count() > 1000);
    }

    #[test]
    fn a_table_without_chains_is_empty() {
        assert!(is_empty_table("") && is_empty_table("*filter\nCOMMIT\n"));
        assert!(!is_empty_table("*filter\n:cali-INPUT - -\nCOMMIT\n"));
    }
}
