//! Members that the kernel refuses to remove.

use super::*;

#[test]
fn commands_fail_as_long_as_the_kernel_refuses_to_remove_members_of_their_scope() {
    let mut machine = machine();
    let sets = machine.unlisted();
    machine.restore(Millis(0), None, &sets, Vec::new()).unwrap();
    machine.packet(Millis(0), &reply(1, 1, &udp(&answer("a.io", &[address(1)]))));
    changes(&mut machine, 0);
    let own = machine.apply(vec![set_scope(1, 9, 0, &[1])]);
    assert_eq!(machine.next_batch(Millis(1)).unwrap().changes, [(member(1, 0, 1), false)]);
    assert!(!machine.keeps_members_of(&own.objects), "not known yet");
    machine.written(Millis(1), &Written::Except(vec![0]));
    assert!(own.needs <= machine.done() && machine.keeps_members_of(&own.objects));
    // The same command again changes nothing, and the member is still there.
    let again = machine.apply(vec![set_scope(1, 9, 0, &[1])]);
    let other = machine.apply(vec![set_scope(2, 7, 0, &[1])]);
    assert_eq!(machine.next_batch(Millis(2)), None);
    assert!(again.needs <= machine.done() && machine.keeps_members_of(&again.objects));
    assert!(!machine.keeps_members_of(&other.objects), "another endpoint is not concerned");
    assert!(machine.next_batch(Millis(1_001)).is_some());
    assert!(machine.keeps_members_of(&again.objects), "tried again");
    machine.written(Millis(1_001), &done());
    assert!(!machine.keeps_members_of(&again.objects));
}
