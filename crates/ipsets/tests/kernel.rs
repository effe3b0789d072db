//! Tests with the real `ipset` and kernel, each in a separate network namespace; the fake is
//! compared with them.
#![allow(clippy::unwrap_used, reason = "a failing command fails the test")]
#![allow(clippy::disallowed_methods, reason = "these tests run the commands that the library only plans")]

use std::io::Write as _;
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use tortie_ipsets::fake::FakeIpset;
use tortie_ipsets::{CommandFailure, Config, Family, IpSetId, IpSets, Member, Plan, Report, Resync, SetSpec, SetType};
use tortie_lab::kernel_test;
use tortie_lab::netns::Namespace;
use tortie_net::with_causes;

/// A separate namespace for a test.
struct Netns(Namespace);

impl Netns {
    fn new() -> Self {
        Self(Namespace::new().unwrap())
    }

    fn command(&self, program: &str, args: &[&str], input: &str) -> (Vec<u8>, Result<(), CommandFailure>) {
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.0.spawn(&mut command).unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // Fails if the command stops reading; its exit status shows that.
        let _ = stdin.write_all(input.as_bytes());
        drop(stdin);
        let output = child.wait_with_output().unwrap();
        let result = if output.status.success() {
            Ok(())
        } else {
            Err(CommandFailure::new(String::from_utf8_lossy(&output.stderr)))
        };
        (output.stdout, result)
    }

    fn ipset(&self, args: &[&str], input: &str) -> (Vec<u8>, Result<(), CommandFailure>) {
        self.command("ipset", args, input)
    }

    #[track_caller]
    fn edit(&self, lines: &str) {
        self.ipset(&["restore"], lines).1.unwrap();
    }

    fn names(&self) -> Vec<String> {
        let (output, result) = self.ipset(&["list", "-name"], "");
        result.unwrap();
        let mut names: Vec<String> = String::from_utf8(output).unwrap().lines().map(str::to_owned).collect();
        names.sort();
        names
    }

    fn members(&self, name: &str) -> Vec<String> {
        let (output, result) = self.ipset(&["list", name], "");
        result.unwrap();
        let text = String::from_utf8(output).unwrap();
        let (_, members) = text.split_once("Members:\n").unwrap();
        let mut members: Vec<String> = members.lines().map(str::to_owned).collect();
        members.sort();
        members
    }
}

#[derive(Default)]
struct Run {
    commands: Vec<String>,
}

impl Run {
    fn carry_out(&mut self, netns: &Netns, sets: &mut IpSets, plan: &Plan, now: &mut Duration) {
        if let Plan::Sleep(time) = plan {
            *now += *time;
            return;
        }
        let command = plan.command().unwrap();
        self.commands.push(command.args.join(" "));
        let args: Vec<&str> = command.args.iter().map(String::as_str).collect();
        let (output, result) = netns.ipset(&args, &command.input);
        for chunk in output.chunks(4096) {
            sets.on_output(chunk);
        }
        sets.on_exit(*now, result);
    }

    fn apply(&mut self, netns: &Netns, sets: &mut IpSets, now: &mut Duration) -> Report {
        loop {
            match sets.plan(*now) {
                Plan::Done(report) => return report,
                plan => self.carry_out(netns, sets, &plan, now),
            }
        }
    }

    fn delete(&mut self, netns: &Netns, sets: &mut IpSets, now: &mut Duration) {
        loop {
            match sets.plan_deletions(*now) {
                Plan::Done(report) if !report.more => return,
                Plan::Done(_) => {}
                plan => self.carry_out(netns, sets, &plan, now),
            }
        }
    }
}

fn id(text: &str) -> IpSetId {
    IpSetId::new(text)
}

fn members(set_type: SetType, family: Family, texts: &str) -> Vec<Member> {
    texts.split_whitespace().map(|text| Member::parse(set_type, family, text).unwrap().unwrap()).collect()
}

fn add_set(sets: &mut IpSets, set: &str, set_type: SetType, texts: &str) {
    let members = members(set_type, sets.family(), texts);
    sets.add_or_replace(&id(set), SetSpec::new(set_type), members).unwrap();
}

fn desired_sets(family: Family) -> IpSets {
    let mut sets = IpSets::new(family, Config::default());
    match family {
        Family::V4 => {
            add_set(&mut sets, "ip", SetType::HashIp, "10.0.0.1 255.255.255.255");
            add_set(&mut sets, "net", SetType::HashNet, "0.0.0.0/0 10.0.0.0/8 10.1.2.3 0.0.0.0");
            add_set(
                &mut sets,
                "port",
                SetType::HashIpPort,
                "10.0.0.1,tcp:80 10.0.0.1,udp:53 10.0.0.1,sctp:9 10.0.0.2,tcp:0",
            );
            add_set(&mut sets, "bits", SetType::BitmapPort, "0 80 65535");
        }
        Family::V6 => {
            add_set(&mut sets, "ip", SetType::HashIp, "fe80::1 ::ffff:1.2.3.4 ::1");
            add_set(&mut sets, "net", SetType::HashNet, "::/0 2001:DB8::/32 2001:db8:0:0:1:0:0:1 ::1.2.3.4");
            add_set(&mut sets, "port", SetType::HashIpPort, "fe80::1,tcp:80 fe80::1,udp:53 fe80::1,sctp:9");
        }
    }
    sets
}

kernel_test! {
    fn restart_writes_nothing() {
        let netns = Netns::new();
        for family in [Family::V4, Family::V6] {
            let mut now = Duration::ZERO;
            let mut run = Run::default();
            let mut sets = desired_sets(family);
            let report = run.apply(&netns, &mut sets, &mut now);
            assert!(report.is_success(), "{report:?}");
            assert_eq!(run.commands, ["list", "restore"]);

            let mut run = Run::default();
            let mut sets = desired_sets(family);
            let report = run.apply(&netns, &mut sets, &mut now);
            run.delete(&netns, &mut sets, &mut now);
            assert!(report.is_success(), "{report:?}");
            assert_eq!(run.commands, ["list"]);
        }
        assert_eq!(netns.members("cali40net"), ["0.0.0.0", "0.0.0.0/1", "10.0.0.0/8", "10.1.2.3", "128.0.0.0/1"]);
        assert_eq!(netns.members("cali60ip"), ["::1", "::ffff:1.2.3.4", "fe80::1"]);
    }

    fn changes_swaps_and_deletions() {
        let netns = Netns::new();
        netns.edit("create foreign hash:ip\nadd foreign 1.1.1.1\ncreate cali4t0 hash:ip\ncreate felix-4x hash:ip\n");
        let mut now = Duration::ZERO;
        let mut run = Run::default();
        let mut sets = desired_sets(Family::V4);
        assert!(run.apply(&netns, &mut sets, &mut now).is_success());
        run.delete(&netns, &mut sets, &mut now);

        let other_size = SetSpec::new(SetType::HashIp).with_max_elements(10);
        let wanted = members(SetType::HashIp, Family::V4, "10.0.0.7");
        sets.add_or_replace(&id("ip"), other_size, wanted).unwrap();
        sets.remove(&id("bits")).unwrap();
        sets.remove_members(&id("net"), members(SetType::HashNet, Family::V4, "0.0.0.0/0")).unwrap();
        let report = run.apply(&netns, &mut sets, &mut now);
        assert!(report.is_success(), "{report:?}");
        run.delete(&netns, &mut sets, &mut now);
        assert_eq!(netns.names(), ["cali40ip", "cali40net", "cali40port", "foreign"]);
        assert_eq!(netns.members("cali40ip"), ["10.0.0.7"]);
        assert_eq!(netns.members("cali40net"), ["0.0.0.0", "10.0.0.0/8", "10.1.2.3"]);
        assert_eq!(netns.members("foreign"), ["1.1.1.1"]);
    }

    fn members_of_another_program_stay() {
        let netns = Netns::new();
        let mut now = Duration::ZERO;
        let new = |learned: SetType| {
            let mut sets = IpSets::new(Family::V4, Config::default());
            for (set, set_type) in [("d:x.0", learned), ("d:x.h", SetType::HashIp)] {
                let spec = SetSpec::new(set_type).with_foreign_members();
                let member: Member = IpAddr::from([10, 0, 0, 1]).into();
                sets.add_or_replace(&id(set), spec, [member]).unwrap_err();
                assert_eq!(sets.desired_members(&id(set)), Some(Vec::new()));
            }
            sets
        };
        let mut sets = new(SetType::HashNetIface);
        let mut run = Run::default();
        assert!(run.apply(&netns, &mut sets, &mut now).is_success());
        netns.edit("add cali40d:x.0 10.0.0.1,cali1\nadd cali40d:x.0 10.0.0.1,cali2\nadd cali40d:x.h 10.0.0.1\n");
        sets.queue_resync(Resync::Background);
        for mut sets in [sets, new(SetType::HashNetIface)] {
            let mut run = Run::default();
            assert!(run.apply(&netns, &mut sets, &mut now).is_success());
            run.delete(&netns, &mut sets, &mut now);
            assert_eq!(run.commands, ["list"], "neither a resync nor a restart writes");
        }
        assert_eq!(netns.members("cali40d:x.0"), ["10.0.0.1,cali1", "10.0.0.1,cali2"]);
        assert_eq!(netns.members("cali40d:x.h"), ["10.0.0.1"]);
        // A set of another type makes place for it; one that is no longer desired goes.
        let mut sets = new(SetType::HashNet);
        sets.remove(&id("d:x.h")).unwrap();
        let mut run = Run::default();
        assert!(run.apply(&netns, &mut sets, &mut now).is_success());
        run.delete(&netns, &mut sets, &mut now);
        assert_eq!(netns.names(), ["cali40d:x.0"]);
        assert!(netns.members("cali40d:x.0").is_empty());
    }

    fn foreign_changes_are_undone() {
        let netns = Netns::new();
        let mut now = Duration::ZERO;
        let mut run = Run::default();
        let mut sets = desired_sets(Family::V4);
        assert!(run.apply(&netns, &mut sets, &mut now).is_success());
        netns.edit(
            "destroy cali40bits\n\
             add cali40ip 6.6.6.6\n\
             del cali40ip 10.0.0.1\n\
             add cali40port 10.0.0.1,icmp:echo-request\n\
             del cali40net 10.0.0.0/8\nadd cali40net 10.0.0.0/8 nomatch\n\
             create cali40stray hash:net,port\n",
        );
        sets.queue_resync(Resync::Background);
        let report = run.apply(&netns, &mut sets, &mut now);
        assert!(report.is_success(), "{report:?}");
        run.delete(&netns, &mut sets, &mut now);
        assert_eq!(netns.names(), ["cali40bits", "cali40ip", "cali40net", "cali40port"]);
        assert_eq!(netns.members("cali40bits"), ["0", "65535", "80"]);
        assert_eq!(netns.members("cali40ip"), ["10.0.0.1", "255.255.255.255"]);
        assert_eq!(netns.members("cali40port").len(), 4);
        assert!(netns.members("cali40net").contains(&"10.0.0.0/8".to_owned()));
    }

    fn surprised_by_a_foreign_member() {
        let netns = Netns::new();
        let mut now = Duration::ZERO;
        let mut run = Run::default();
        let mut sets = desired_sets(Family::V4);
        assert!(run.apply(&netns, &mut sets, &mut now).is_success());
        netns.edit("add cali40ip 10.0.0.2\n");
        for set in ["ip", "net"] {
            sets.add_members(&id(set), members(SetType::HashIp, Family::V4, "10.0.0.2 10.0.0.3")).unwrap();
        }
        let report = run.apply(&netns, &mut sets, &mut now);
        assert!(report.is_success(), "{report:?}");
        for name in ["cali40ip", "cali40net"] {
            assert!(netns.members(name).contains(&"10.0.0.3".to_owned()));
        }
    }

    fn set_in_use_by_a_rule_stays_until_the_rule_goes() {
        let netns = Netns::new();
        let mut now = Duration::ZERO;
        let mut run = Run::default();
        let mut sets = desired_sets(Family::V4);
        assert!(run.apply(&netns, &mut sets, &mut now).is_success());
        let rule = "INPUT -m set --match-set cali40ip src -j DROP";
        let iptables = |verb: &str| {
            let args: Vec<&str> = [verb].into_iter().chain(rule.split(' ')).collect();
            netns.command("iptables", &args, "").1
        };
        iptables("-A").unwrap();
        // A swap works under a rule, a destruction does not.
        let other_size = SetSpec::new(SetType::HashIp).with_max_elements(10);
        let wanted = members(SetType::HashIp, Family::V4, "10.0.0.7");
        sets.add_or_replace(&id("ip"), other_size, wanted).unwrap();
        let report = run.apply(&netns, &mut sets, &mut now);
        assert!(report.is_success(), "{report:?}");
        assert_eq!(netns.members("cali40ip"), ["10.0.0.7"]);
        sets.remove(&id("ip")).unwrap();
        run.delete(&netns, &mut sets, &mut now);
        assert_eq!(netns.names(), ["cali40bits", "cali40ip", "cali40net", "cali40port"]);
        iptables("-D").unwrap();
        sets.queue_resync(Resync::Background);
        let _ = run.apply(&netns, &mut sets, &mut now);
        run.delete(&netns, &mut sets, &mut now);
        assert_eq!(netns.names(), ["cali40bits", "cali40net", "cali40port"]);
    }

    fn bad_set_does_not_stop_the_others() {
        let netns = Netns::new();
        // A set of another type, held by a rule, can be neither swapped nor destroyed.
        netns.edit("create cali40bad hash:net,port\n");
        netns
            .command("iptables", &["-A", "INPUT", "-m", "set", "--match-set", "cali40bad", "src,src", "-j", "DROP"], "")
            .1
            .unwrap();
        let mut now = Duration::ZERO;
        let mut run = Run::default();
        let mut sets = desired_sets(Family::V4);
        add_set(&mut sets, "bad", SetType::HashIp, "10.0.0.1");
        let full = SetSpec::new(SetType::HashIp).with_max_elements(2);
        let wanted = members(SetType::HashIp, Family::V4, "1.1.1.1 1.1.1.2 1.1.1.3");
        sets.add_or_replace(&id("full"), full, wanted).unwrap();
        let report = run.apply(&netns, &mut sets, &mut now);
        let failed: Vec<&str> = report.failures.iter().map(|f| f.id.as_str()).collect();
        assert_eq!(failed, ["bad", "full"]);
        let text = with_causes(&report.failures[0]);
        assert!(text.contains("it is in use by a kernel component"), "{text}");
        assert_eq!(netns.members("cali40full").len(), 2);
        for name in ["cali40ip", "cali40net", "cali40port", "cali40bits"] {
            assert!(!netns.members(name).is_empty());
        }
    }

    fn fake_and_kernel_agree() {
        let netns = Netns::new();
        let mut fake = FakeIpset::new();
        let lines = "\
            create a hash:ip family inet maxelem 2
            create a hash:ip family inet maxelem 2
            add a 10.0.0.1
            add a 10.0.0.1
            add a 10.0.0.1 --exist
            add a 10.0.0.2
            add a 10.0.0.3
            add a 0.0.0.0
            add a fe80::1
            add a host.invalid
            del a 10.0.0.2
            del a 10.0.0.2
            del a 10.0.0.2 --exist
            create n hash:net family inet6 maxelem 10
            add n ::/0
            add n ::/1
            add n 2001:db8::1/32
            add n 2001:db8::
            create p hash:ip,port family inet maxelem 10
            add p 10.0.0.1,tcp:80
            add p 10.0.0.1,tcp:80
            add p 0.0.0.0,tcp:80
            create b bitmap:port range 10-20
            add b 9
            add b 10
            swap a n
            create a2 hash:ip family inet maxelem 5
            swap a a2
            swap a nothing
            destroy nothing
            del nothing 10.0.0.1 --exist
            flush p
            destroy a2
            create 01234567890123456789012345678901 hash:ip";
        for line in lines.lines().map(str::trim) {
            let (_, real) = netns.ipset(&["restore"], &format!("{line}\nCOMMIT\n"));
            let faked = fake.edit(line);
            assert_eq!(real.is_ok(), faked.is_ok(), "{line}: {real:?} but {faked:?}");
            let words = |result: &Result<(), CommandFailure>| {
                result.as_ref().err().map(|failure| {
                    let text = failure.stderr().trim().to_owned();
                    text.split_once(": ").map_or(text.clone(), |(_, rest)| rest.to_owned())
                })
            };
            // The text of syntax errors depends on the parser that finds them.
            if !words(&real).is_some_and(|w| w.contains("Syntax") || w.contains("Null-valued") || w.contains("Invalid")) {
                assert_eq!(words(&real), words(&faked), "{line}");
            }
        }
        assert_eq!(netns.names(), fake.names());
        for name in fake.names() {
            assert_eq!(netns.members(name), fake.members(name), "{name}");
        }
    }

    fn hundred_thousand_members() {
        let netns = Netns::new();
        let mut now = Duration::ZERO;
        let mut run = Run::default();
        let all = || (0..100_000u32).map(|n| Member::from(IpAddr::from((0x0a00_0000 + n).to_be_bytes())));
        let spec = SetSpec::new(SetType::HashNet);
        let mut sets = IpSets::new(Family::V4, Config::default());
        sets.add_or_replace(&id("big"), spec, all()).unwrap();
        assert!(run.apply(&netns, &mut sets, &mut now).is_success());

        let mut run = Run::default();
        let mut sets = IpSets::new(Family::V4, Config::default());
        sets.add_or_replace(&id("big"), spec, all()).unwrap();
        assert!(run.apply(&netns, &mut sets, &mut now).is_success());
        assert_eq!(run.commands, ["list"]);
        sets.remove_members(&id("big"), all().take(1)).unwrap();
        assert!(run.apply(&netns, &mut sets, &mut now).is_success());
        assert_eq!(run.commands.len(), 2);
        assert_eq!(netns.members("cali40big").len(), 99_999);
    }
}
