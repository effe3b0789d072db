use super::*;

fn job(program: &str, args: &[&str], input: &[u8]) -> Job {
    Job { program: program.into(), args: args.iter().map(|a| (*a).to_owned()).collect(), input: input.into() }
}

#[test]
fn large_input_and_output_do_not_block_each_other() {
    let input = vec![b'x'; 4 << 20];
    let finished = run(&job("cat", &[], &input)).unwrap();
    assert!(finished.status.success() && finished.stdout == input);
}

#[test]
fn a_program_that_does_not_read_its_input_is_no_error() {
    let finished = run(&job("sh", &["-c", "exit 3"], &vec![b'x'; 1 << 20])).unwrap();
    assert_eq!(finished.status.code(), Some(3));
}

#[test]
fn results_come_in_the_order_of_the_jobs() {
    let results = run_all(&[
        job("sh", &["-c", "sleep 0.2; echo first"], b""),
        job("echo", &["second"], b""),
        job("no-such-program-anywhere", &[], b""),
    ]);
    assert_eq!(results[0].as_ref().unwrap().stdout, b"first\n");
    assert_eq!(results[1].as_ref().unwrap().stdout, b"second\n");
    assert!(results[2].is_err() && !is_installed("no-such-program-anywhere") && is_installed("sh"));
}
