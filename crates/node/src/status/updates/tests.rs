use std::thread;
use std::time::Duration;

use tortie_config::Config;
use tortie_dataplane::EndpointStatus;
use tortie_model::Hostname;

use super::super::mailbox::mailbox;
use super::*;

fn host(name: &str, status: Option<EndpointStatus>) -> StatusChange {
    StatusChange::Host(HostEndpointName::new(name), status)
}

fn settings() -> StatusSettings {
    StatusSettings::new(&Config::default(), Hostname::new("n1"), false)
}

#[test]
fn of_each_endpoint_the_latest_waits_and_a_session_begins_with_nothing() {
    let (mailbox, opened) = mailbox::<PendingUpdates>();
    mailbox.put(|pending| pending.add(StatusUpdate::Changes(vec![host("old", Some(EndpointStatus::Up))])));
    mailbox.put(|pending| pending.add(StatusUpdate::InForce));
    mailbox.put(|pending| pending.add(StatusUpdate::Begin(settings())));
    for round in 0..10_000 {
        let status = if round % 2 == 0 { EndpointStatus::Down } else { EndpointStatus::Up };
        mailbox.put(|pending| {
            pending.add(StatusUpdate::Changes(vec![host("eth0", Some(status)), host("eth1", Some(status))]));
        });
        mailbox.put(|pending| {
            pending.add(StatusUpdate::ProcessStatus(ProcessStatus { time: round.to_string(), uptime: 1.0 }));
        });
    }
    for key in ["", "a", "b"] {
        mailbox.put(|pending| pending.add(StatusUpdate::WireguardKey(Family::V4, key.into())));
    }
    mailbox.put(|pending| pending.add(StatusUpdate::Changes(vec![host("eth1", None)])));
    let pending = opened.take(Duration::ZERO).unwrap();
    assert!(pending.begin.is_some() && !pending.in_force);
    assert_eq!(pending.wireguard_keys, [(Family::V4, "b".to_owned())].into());
    let changes: Vec<_> = pending.changes.into_values().collect();
    assert_eq!(changes, [host("eth0", Some(EndpointStatus::Up)), host("eth1", None)]);
    assert_eq!(pending.process_status.unwrap().time, "9999");
    assert_eq!(opened.take(Duration::ZERO), Some(PendingUpdates::default()));
}

#[test]
fn a_waiting_receiver_wakes_and_sees_the_end() {
    let (mailbox, opened) = mailbox::<PendingUpdates>();
    let waiting = thread::spawn(move || {
        let pending = opened.take(Duration::from_secs(60)).unwrap();
        (pending.in_force, opened.take(Duration::from_secs(60)))
    });
    let other = mailbox.clone();
    drop(mailbox);
    other.put(|pending| pending.add(StatusUpdate::InForce));
    drop(other);
    assert_eq!(waiting.join().unwrap(), (true, None));
}
