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
    let (mailbox, opened) = mailbox::<News>();
    mailbox.put(|news| news.add(StatusNews::Changes(vec![host("old", Some(EndpointStatus::Up))])));
    mailbox.put(|news| news.add(StatusNews::InForce));
    mailbox.put(|news| news.add(StatusNews::Begin(settings())));
    for round in 0..10_000 {
        let status = if round % 2 == 0 { EndpointStatus::Down } else { EndpointStatus::Up };
        mailbox.put(|news| news.add(StatusNews::Changes(vec![host("eth0", Some(status)), host("eth1", Some(status))])));
        mailbox.put(|news| news.add(StatusNews::ProcessStatus(ProcessStatus { time: round.to_string(), uptime: 1.0 })));
    }
    for key in ["", "a", "b"] {
        mailbox.put(|news| news.add(StatusNews::WireguardKey(Family::V4, key.into())));
    }
    mailbox.put(|news| news.add(StatusNews::Changes(vec![host("eth1", None)])));
    let news = opened.take(Duration::ZERO).unwrap();
    assert!(news.begin.is_some() && !news.in_force);
    assert_eq!(news.wireguard_keys, [(Family::V4, "b".to_owned())].into());
    let changes: Vec<_> = news.changes.into_values().collect();
    assert_eq!(changes, [host("eth0", Some(EndpointStatus::Up)), host("eth1", None)]);
    assert_eq!(news.process_status.unwrap().time, "9999");
    assert_eq!(opened.take(Duration::ZERO), Some(News::default()));
}

#[test]
fn who_waits_is_woken_and_told_of_the_end() {
    let (mailbox, opened) = mailbox::<News>();
    let waiting = thread::spawn(move || {
        let news = opened.take(Duration::from_secs(60)).unwrap();
        (news.in_force, opened.take(Duration::from_secs(60)))
    });
    let other = mailbox.clone();
    drop(mailbox);
    other.put(|news| news.add(StatusNews::InForce));
    drop(other);
    assert_eq!(waiting.join().unwrap(), (true, None));
}
