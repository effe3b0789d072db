use std::net::UdpSocket;

use tortie_bpf::Program;
use tortie_lab::kernel_test;
use tortie_lab::netns::Namespace;

use super::*;

const TIMEOUT: Duration = Duration::from_secs(20);

/// Returns a program that returns this number.
fn program(result: u8) -> Program {
    let instructions = [[0xb7, 0, 0, 0, result, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]].concat();
    Program::load_socket_filter("test", c"Apache-2.0", &instructions).unwrap()
}

fn rule_program(program: &Program) -> RuleProgram {
    RuleProgram { descriptor: program.descriptor(), id: program.info().unwrap().id }
}

kernel_test! {
    fn a_rule_asks_its_program_until_it_is_removed() {
        let namespace = Namespace::new().unwrap();
        namespace.shell("ip link set lo up").unwrap();
        let place = RulePlace { family: Family::V4, hook: 3, chain: "output", priority: -1 };
        let attach = |table, program: &Program| {
            namespace.run(|| attach(TIMEOUT, table, &place, rule_program(program))).unwrap().unwrap()
        };
        let detach = |table| namespace.run(|| detach(TIMEOUT, table)).unwrap().unwrap();
        let tables = || namespace.run(|| tables(TIMEOUT)).unwrap().unwrap();
        // Sending fails for a packet that is dropped at OUTPUT.
        let send = || {
            let socket = UdpSocket::bind("127.0.0.1:0")?;
            socket.send_to(&[0], socket.local_addr()?)
        };
        let is_open = || namespace.run(send).unwrap().is_ok();
        assert!(tables().is_empty());
        detach(1);
        let (lets, drops) = (program(0), program(1));
        assert!(attach(1, &lets) && !attach(1, &lets));
        assert!(is_open());
        assert!(attach(2, &drops));
        assert_eq!(tables(), [1, 2]);
        // The kernel keeps the program alive.
        drop(drops);
        assert!(!is_open());
        detach(2);
        assert!(is_open());
        // Another program replaces the present one.
        let drops = program(1);
        assert!(attach(1, &drops) && !attach(1, &drops));
        assert!(!is_open());
        detach(1);
        assert!(is_open());
        assert!(tables().is_empty());
    }

    fn detection_of_bpf_rules_leaves_no_trace() {
        let namespace = Namespace::new().unwrap();
        let lacking = |program: RuleProgram| namespace.run(|| lacking(TIMEOUT, program)).unwrap();
        assert_eq!(lacking(rule_program(&program(0))).unwrap(), None);
        // No program has this file descriptor. The error is not about the kernel's support.
        let error = lacking(RuleProgram { descriptor: i32::MAX, id: 1 }).unwrap_err();
        assert_eq!(error.errno(), Some(Errno::BADF));
        assert_eq!(namespace.shell("nft list ruleset").unwrap().trim(), "");
    }
}
