use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use super::*;

const LIMIT: Duration = Duration::from_secs(15);

#[test]
fn kernels_up_to_5_7_are_broken_unless_overridden() {
    let outcome = |kernel: Option<Version>, overrides: &[&str]| {
        let unused: Vec<String> =
            overrides.iter().filter(|piece| overridden(piece).is_none()).map(|&piece| piece.to_owned()).collect();
        (is_broken(kernel, &overrides.join(",")), unused)
    };
    for (kernel, broken) in [
        (None, true),
        (Some(Version(4, 18, 0)), true),
        (Some(Version(5, 6, 19)), true),
        (Some(Version(5, 7, 0)), true),
        (Some(Version(5, 7, 1)), false),
        (Some(Version(5, 10, 0)), false),
        (Some(Version(6, 18, 44)), false),
    ] {
        assert_eq!(outcome(kernel, &[]), (broken, vec![]), "{kernel:?}");
        assert_eq!(outcome(kernel, &["ChecksumOffloadBroken=true"]), (true, vec![]));
        assert_eq!(outcome(kernel, &["x", " ChecksumOffloadBroken = F"]), (false, vec!["x".to_owned()]));
        let nonsense = "ChecksumOffloadBroken=perhaps";
        assert_eq!(outcome(kernel, &[nonsense]), (broken, vec![nonsense.to_owned()]));
    }
    // Of several the last one counts.
    assert!(outcome(None, &["ChecksumOffloadBroken=false", "ChecksumOffloadBroken=1"]).0);
}

fn refused(errno: Errno) -> Result<(), NetlinkError> {
    Err(NetlinkError::Refused { subject: "checksum offload", errno, detail: String::new() })
}

/// Returns the result, and the programs that were run, which end with this code.
fn disable(netlink: Result<(), NetlinkError>, code: i32) -> (Result<(), KernelError>, Vec<String>) {
    let mut jobs = Vec::new();
    let run = |job: &Job| {
        jobs.push(format!("{} {}", job.program, job.args.join(" ")));
        let stderr = b"Cannot get device feature names".to_vec();
        Ok(Finished { status: ExitStatus::from_raw(code << 8), stdout: Vec::new(), stderr })
    };
    let result = disable_offload("vxlan.calico".parse().unwrap(), LIMIT, || netlink, run);
    (result, jobs)
}

#[test]
fn a_program_is_run_where_the_kernel_has_no_netlink_for_it() {
    assert_eq!(disable(Ok(()), 1), (Ok(()), vec![]));
    let program = vec!["ethtool -K vxlan.calico tx off".to_owned()];
    for errno in [Errno::NOENT, Errno::OPNOTSUPP] {
        assert_eq!(disable(refused(errno), 0), (Ok(()), program.clone()));
    }
    let (failed, jobs) = disable(refused(Errno::OPNOTSUPP), 75);
    assert_eq!(jobs, program);
    let Err(KernelError::Failed(why)) = failed else { panic!("{failed:?}") };
    let expected = "ethtool -K vxlan.calico tx off: exit status: 75: Cannot get device feature names";
    assert_eq!(why.to_string(), expected);
    assert_eq!(disable(refused(Errno::NODEV), 0), (Err(KernelError::NotFound), vec![]));
    let denied = disable(refused(Errno::PERM), 0);
    assert!(matches!(&denied, (Err(KernelError::Failed(_)), jobs) if jobs.is_empty()), "{denied:?}");
}
