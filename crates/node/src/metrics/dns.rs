//! Metrics of DNS answers, under the names of Calico Enterprise where it has them.

use std::collections::BTreeMap;

use tortie_telemetry::exposition::{Exposition, as_f64};

use tortie_learner::{DnsMetrics, DnsTally};

pub(super) fn expose(dns: &DnsMetrics, e: &mut Exposition) {
    let DnsTally { packets_in, responses, invalid, released_programmed, released_timeout, .. } = dns.tally;
    e.count("felix_dns_resp_packets_in", "Number of DNS responses seen.", responses);
    e.count("felix_dns_invalid_packets_in", "Number of DNS messages that could not be read.", invalid);
    let help = "Number of packets that came by the queue of DNS answers.";
    e.count("felix_dns_packet_nfqueue_monitor_packets_in", help, packets_in);
    let help = "Seconds for which DNS answers were held.";
    e.quantiles("felix_dns_packet_nfqueue_monitor_hold_time", help, &dns.hold_time);
    let help = "Number of DNS answers released after their addresses were written.";
    e.count("felix_dns_packet_nfqueue_monitor_packets_released_programmed", help, released_programmed);
    let help = "Number of DNS answers released at the end of the hold duration.";
    e.count("felix_dns_packet_nfqueue_monitor_packets_released_timeout", help, released_timeout);
    let help = "Number of losses of the queue of DNS answers.";
    e.count("felix_dns_packet_nfqueue_monitor_shutdown_count", help, dns.tally.shutdowns);
    e.level("tortie_dns_held", "Number of DNS answers that are held.", dns.held as u64);
    let help = "Number of names that endpoints have resolved, counted for each endpoint.";
    e.level("tortie_dns_names", help, dns.learned.names as u64);
    let help = "Number of addresses that endpoints have learned, counted for each name and endpoint.";
    e.level("tortie_dns_addresses", help, dns.learned.addresses as u64);
    let help = "Number of members of domain sets that the kernel refuses.";
    e.level("tortie_dns_refused_members", help, dns.refused_members as u64);
    let help = "Number of learned addresses that made room for others.";
    e.count("tortie_dns_evicted_total", help, dns.tally.evicted);
    let help = "Number of these that endpoints beyond their share had.";
    e.count("tortie_dns_displaced_total", help, dns.tally.displaced);
    let help = "Number of namespaces beyond their share while the room for addresses is nearly full.";
    e.level("tortie_dns_namespaces_over_share", help, dns.crowding.as_ref().map_or(0, |it| it.groups.len()) as u64);
    let help = "Number of addresses in DNS answers that were not learned.";
    by_reason("tortie_dns_refused_total", help, &dns.tally.refused, e);
    let help = "Number of packets and messages that taught nothing.";
    by_reason("tortie_dns_unlearned_total", help, &dns.tally.unlearned, e);
}

fn by_reason(name: &str, help: &str, counts: &BTreeMap<&'static str, u64>, e: &mut Exposition) {
    let samples = counts.iter().map(|(reason, count)| (vec![("reason", *reason)], as_f64(*count)));
    e.labelled(name, help, "counter", samples);
}
