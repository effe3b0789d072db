//! Parameters of egress policy by domain name. Those of Calico Enterprise have its names.

use crate::FieldForm::{Int, List, Milliseconds, Seconds, Text};
use crate::Parameter;
use crate::parameter::{field, not_used, own};

const HELD: &str = "DNS answers are always held until the addresses in them are open, as with `DelayDNSResponse`";
const LOGS: &str = "DNS answers are not logged";
const PACKETS: &str = "the packets that open a connection are not held; DNS answers are";

pub(super) const PARAMETERS: &[Parameter] = &[
    not_used(
        "BPFDNSPolicyMode",
        "oneof(DelayDeniedPacket,DelayDNSResponse,Inline,NoDelay)",
        "DelayDNSResponse",
        field("bpfDNSPolicyMode", Text),
        HELD,
    ),
    own(
        "DNSCacheEpoch",
        "int",
        "0",
        field("dnsCacheEpoch", Int),
        "number whose change makes the node forget everything that it has learned from DNS answers",
    ),
    own(
        "DNSCacheFile",
        "file",
        "/var/run/calico/tortie-dns-cache",
        field("dnsCacheFile", Text),
        "file of the addresses learned from DNS answers, which a restart reads; `none` keeps no file",
    ),
    own(
        "DNSCacheSaveInterval",
        "seconds",
        "60",
        field("dnsCacheSaveInterval", Seconds),
        "seconds between two writes of `DNSCacheFile`. Members of the kernel's sets that the file lacks go after twice the interval, at least 2 s",
    ),
    own(
        "DNSClusterAddresses",
        "oneof(ClusterDomain,Always,Never)",
        "ClusterDomain",
        field("dnsClusterAddresses", Text),
        "names that may have addresses of IP pools and nodes: those below `DNSClusterDomain`, all, or none",
    ),
    own(
        "DNSClusterDomain",
        "string",
        "cluster.local",
        field("dnsClusterDomain", Text),
        "domain of the cluster's own names; `none` for no such domain",
    ),
    own(
        "DNSExtraTTL",
        "seconds",
        "0",
        field("dnsExtraTTL", Seconds),
        "seconds for which a learned address stays beyond the lifetime that its DNS answer gives",
    ),
    not_used("DNSLogsFileAggregationKind", "int", "1", field("dnsLogsFileAggregationKind", Int), LOGS),
    not_used("DNSLogsFileDirectory", "string", "/var/log/calico/dnslogs", field("dnsLogsFileDirectory", Text), LOGS),
    not_used("DNSLogsFilePerNodeLimit", "int", "0", field("dnsLogsFilePerNodeLimit", Int), LOGS),
    not_used("DNSLogsFlushInterval", "seconds", "300", field("dnsLogsFlushInterval", Seconds), LOGS),
    own(
        "DNSMatchNames",
        "oneof(Chain,Question)",
        "Chain",
        field("dnsMatchNames", Text),
        "names that get the addresses of a DNS answer: the question and the targets of its aliases, or the question alone, for \
             servers that forward zones to servers of tenants",
    ),
    own(
        "DNSMaxRepliesPerEndpoint",
        "int(1,10000)",
        "1000",
        field("dnsMaxRepliesPerEndpoint", Int),
        "maximum number of packets a second from trusted DNS servers to one endpoint that are read; others pass unread, and open \
             nothing",
    ),
    own(
        "DNSMaxTTL",
        "seconds",
        "86400",
        field("dnsMaxTTL", Seconds),
        "maximum lifetime of a learned address in seconds, before `DNSExtraTTL`",
    ),
    own(
        "DNSMinTTL",
        "seconds",
        "30",
        field("dnsMinTTL", Seconds),
        "minimum lifetime of a learned address in seconds, before `DNSExtraTTL`: servers that cache count lifetimes down to 0",
    ),
    own(
        "DNSPacketsNfqueueID",
        "int(0,65535)",
        "101",
        field("dnsPacketsNfqueueID", Int),
        "number of the netfilter queue that holds DNS answers to endpoints with egress policy by domain name",
    ),
    own(
        "DNSPacketsNfqueueMaxHoldDuration",
        "millis",
        "1000",
        field("dnsPacketsNfqueueMaxHoldDuration", Milliseconds),
        "milliseconds after which a held DNS answer is let go, whether or not its addresses are open",
    ),
    own(
        "DNSPacketsNfqueueSize",
        "int(1,65535)",
        "1024",
        field("dnsPacketsNfqueueSize", Int),
        "maximum number of packets in the queue; others pass unread",
    ),
    not_used(
        "DNSPolicyMode",
        "oneof(DelayDeniedPacket,DelayDNSResponse,Inline,NoDelay)",
        "DelayDNSResponse",
        field("dnsPolicyMode", Text),
        HELD,
    ),
    not_used("DNSPolicyNfqueueID", "int(0,65535)", "100", field("dnsPolicyNfqueueID", Int), PACKETS),
    not_used("DNSPolicyNfqueueSize", "int(0,65535)", "255", field("dnsPolicyNfqueueSize", Int), PACKETS),
    own(
        "DNSTrustedServers",
        "server-list",
        "k8s-service:kube-dns,169.254.20.10",
        field("dnsTrustedServers", List),
        "DNS servers whose answers open addresses for egress policy by domain name: `ADDRESS`, `ADDRESS:PORT`, `[IPV6]:PORT`, or \
             `k8s-service:[NAMESPACE/]NAME[:PORT]` for the cluster addresses and the endpoints of a Service, by default in `kube-system`. \
             The default port is 53, and the first one of a Service",
    ),
    not_used(
        "NFTablesDNSPolicyMode",
        "oneof(DelayDeniedPacket,DelayDNSResponse,Inline,NoDelay)",
        "DelayDNSResponse",
        field("nftablesDNSPolicyMode", Text),
        HELD,
    ),
];
