use std::time::Duration;

use tortie_dataplane::{Clock, Command, CommandStatus, KernelError, Netfilter, SysctlPath, Sysctls};
use tortie_lab::kernel_test;
use tortie_lab::netns::Namespace;
use tortie_model::Family;

use super::{LinuxKernel, TimeLimits, detect};
use crate::exec::{self, Runner};
use crate::stop::Stop;

fn kernel() -> LinuxKernel {
    LinuxKernel::new(Duration::from_secs(10))
}

fn shell(script: &str, input: &str) -> Command {
    Command { program: "sh".to_owned(), args: vec!["-c".to_owned(), script.to_owned()], input: input.to_owned() }
}

#[test]
fn commands_run_side_by_side_and_answer_in_order() {
    let commands = vec![
        shell("sleep 0.2; cat", "slow"),
        shell("echo oops >&2; exit 3", ""),
        shell("kill -9 $$", ""),
        Command { program: "tortie-no-such-program".to_owned(), args: Vec::new(), input: String::new() },
    ];
    let outcomes = kernel().run(commands);
    assert_eq!(outcomes[0].stdout, b"slow");
    assert!(outcomes[0].is_success());
    assert_eq!((&outcomes[1].status, outcomes[1].stderr.as_str()), (&CommandStatus::Code(3), "oops\n"));
    assert_eq!(outcomes[2].status, CommandStatus::Signal);
    assert!(matches!(outcomes[3].status, CommandStatus::NotRun(_)));
}

#[test]
fn time_passes_while_asleep() {
    let mut kernel = kernel();
    let before = kernel.now();
    kernel.sleep(Duration::from_millis(5));
    assert!(kernel.now() >= before + Duration::from_millis(5));
}

#[test]
fn a_hanging_program_is_reported_as_such() {
    let limits = TimeLimits { tables: Duration::from_millis(200), ..TimeLimits::default() };
    let outcomes = kernel().with_limits(limits).run(vec![shell("sleep 300", ""), shell("echo there", "")]);
    let CommandStatus::NotRun(why) = &outcomes[0].status else { panic!("{:?}", outcomes[0]) };
    assert_eq!(why, "sh did not end within 0.2 s and was killed");
    assert_eq!(outcomes[1].stdout, b"there\n");
}

#[test]
fn no_limit_is_shorter_than_the_wait_for_the_lock() {
    let limits = TimeLimits::default();
    for program in ["iptables-nft-restore", "ip6tables-legacy-save", "ipset"] {
        assert!(limits.of(program) > Duration::from_secs(10), "{program}");
    }
}

#[test]
fn sleeps_and_commands_end_at_once_after_a_stop() {
    let stop = Stop::new().unwrap();
    let mut kernel = kernel().with_runner(Runner::new(stop.clone()));
    assert!(!kernel.is_stopping());
    stop.set();
    let begin = std::time::Instant::now();
    kernel.sleep(Duration::from_secs(60));
    let outcomes = kernel.run(vec![shell("sleep 60", "")]);
    assert!(kernel.is_stopping() && matches!(outcomes[0].status, CommandStatus::NotRun(_)));
    assert!(begin.elapsed() < Duration::from_secs(1));
}

kernel_test! {
    fn sysctls_of_an_interface_go_with_it() {
        let namespace = Namespace::new().unwrap();
        namespace.ip(["link add w0 type veth peer name w1"]).unwrap();
        let path = SysctlPath::new("net/ipv4/conf/w0/proxy_arp").unwrap();
        let mut kernel = kernel();
        namespace
            .run(|| {
                kernel.write_sysctl(&path, "1").unwrap();
                assert_eq!(kernel.read_sysctl(&path), Ok("1".to_owned()));
                namespace.ip(["link del w0"]).unwrap();
                assert_eq!(kernel.read_sysctl(&path), Err(KernelError::NotFound));
                assert_eq!(kernel.write_sysctl(&path, "1"), Err(KernelError::NotFound));
            })
            .unwrap();
    }

    fn the_iptables_in_use_is_found() {
        let namespace = Namespace::new().unwrap();
        namespace
            .run(|| {
                let setup = detect(&Runner::default(), None, &Family::ALL, "NFLogSize=false,Nonsense", None).unwrap().setup;
                assert_eq!(setup.backend, setup.detected);
                assert!(exec::is_installed(&setup.programs_v4.save) && exec::is_installed(&setup.programs_v6.restore));
                assert!(setup.features.restore_supports_lock && !setup.features.nflog_size);
                assert_eq!(setup.unused_overrides, ["Nonsense"]);
            })
            .unwrap();
    }
}
