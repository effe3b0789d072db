//! Parameters of policy enforcement: rules, IP sets, marks, NAT.

use crate::FieldForm::{Bool, Int, Milliseconds, Ports, ProtoPorts, Scalar, Seconds, Text};
use crate::Parameter;
use crate::parameter::{fatal, field, not_none, own, used};

pub(super) const PARAMETERS: &[Parameter] = &[
    own(
        "AddressClaims",
        "oneof(Bounded,Any)",
        "Bounded",
        field("addressClaims", Text),
        "treatment of addresses and interfaces that users can claim. With `Bounded`, an annotation of a Pod \
             (`cni.projectcalico.org/podIP`, `podIPs`, `floatingIPs`) takes no address of another endpoint or a node \
             and none outside the IP pools or `podCIDRs`; of two running Pods with one interface or address both are \
             denied; and an EndpointSlice brings no address of Pods of other namespaces into rules with `services`. \
             With `Any` each claim counts, as in Felix. In a `FelixConfiguration` it is `addressClaims`, or the \
             annotation `config.projectcalico.org/AddressClaims`",
    ),
    used(
        "AllowIPIPPacketsFromWorkloads",
        "bool",
        "false",
        field("allowIPIPPacketsFromWorkloads", Bool),
        "Whether workloads may send IP-in-IP",
    ),
    used(
        "AllowVXLANPacketsFromWorkloads",
        "bool",
        "false",
        field("allowVXLANPacketsFromWorkloads", Bool),
        "Whether workloads may send VXLAN",
    ),
    fatal(not_none(used(
        "ChainInsertMode",
        "oneof(insert,append)",
        "insert",
        field("chainInsertMode", Text),
        "Whether the hooks go first or last in the kernel's chains",
    ))),
    own(
        "CutDeniedConnections",
        "bool",
        "false",
        field("cutDeniedConnections", Bool),
        "whether established connections are cut that a change of policy denies. The node should have \
             `net.netfilter.nf_conntrack_tcp_loose=0`: otherwise a TCP connection that is cut goes on if its server speaks \
             next and policy lets it open connections to its client. In a `FelixConfiguration` it is `cutDeniedConnections`; \
             where the API server, calicoctl or a Typha does not let through what Calico's schema lacks, it is the annotation \
             `config.projectcalico.org/CutDeniedConnections: \"true\"`",
    ),
    fatal(not_none(used(
        "DefaultEndpointToHostAction",
        "oneof(DROP,RETURN,ACCEPT)",
        "DROP",
        field("defaultEndpointToHostAction", Text),
        "What becomes of traffic from workloads to their host that policy allows",
    ))),
    used(
        "DisableConntrackInvalidCheck",
        "bool",
        "false",
        field("disableConntrackInvalidCheck", Bool),
        "Whether packets that conntrack calls invalid pass",
    ),
    fatal(used(
        "FailsafeInboundHostPorts",
        "port-list",
        "tcp:22,udp:68,tcp:179,tcp:2379,tcp:2380,tcp:5473,tcp:6443,tcp:6666,tcp:6667",
        field("failsafeInboundHostPorts", ProtoPorts),
        "Ports of the host that stay open",
    )),
    fatal(used(
        "FailsafeOutboundHostPorts",
        "port-list",
        "udp:53,udp:67,tcp:179,tcp:2379,tcp:2380,tcp:5473,tcp:6443,tcp:6666,tcp:6667",
        field("failsafeOutboundHostPorts", ProtoPorts),
        "Ports of others that the host may always reach",
    )),
    used(
        "FeatureDetectOverride",
        "keyvaluelist",
        "",
        field("featureDetectOverride", Text),
        "What iptables and the kernel are taken to be able to do; with nftables, `ChecksumOffloadBroken` alone counts",
    ),
    used(
        "IpsetsRefreshInterval",
        "seconds",
        "90",
        field("ipsetsRefreshInterval", Seconds),
        "How often IP sets are compared with the kernel; with nftables, `NftablesRefreshInterval` says so",
    ),
    used(
        "IptablesBackend",
        "oneof(legacy,nft,auto)",
        "auto",
        field("iptablesBackend", Text),
        "Which iptables programs the kernel",
    ),
    fatal(not_none(used(
        "IptablesFilterAllowAction",
        "oneof(ACCEPT,RETURN)",
        "ACCEPT",
        field("iptablesFilterAllowAction", Text),
        "What becomes of traffic that policy allows; with `BPFEnabled` of that of workloads, where iptables is installed",
    ))),
    fatal(not_none(used(
        "IptablesFilterDenyAction",
        "oneof(DROP,REJECT)",
        "DROP",
        field("iptablesFilterDenyAction", Text),
        "What becomes of traffic that policy denies; with `BPFEnabled` it is dropped",
    ))),
    used(
        "IptablesLockProbeIntervalMillis",
        "millis",
        "50",
        field("iptablesLockProbeInterval", Milliseconds),
        "How often iptables tries to get its lock",
    ),
    fatal(not_none(used(
        "IptablesMangleAllowAction",
        "oneof(ACCEPT,RETURN)",
        "ACCEPT",
        field("iptablesMangleAllowAction", Text),
        "What becomes of traffic that policy before address translation allows; with `BPFEnabled` it goes on",
    ))),
    fatal(not_none(used(
        "IptablesMarkMask",
        "mark-bitmask",
        "0xffff0000",
        field("iptablesMarkMask", Int),
        "The bits of packet marks that may be used",
    ))),
    used(
        "IptablesNATOutgoingInterfaceFilter",
        "iface-param",
        "",
        field("iptablesNATOutgoingInterfaceFilter", Text),
        "Through which interfaces traffic is masqueraded",
    ),
    used(
        "IptablesPostWriteCheckIntervalSecs",
        "seconds",
        "5",
        field("iptablesPostWriteCheckInterval", Seconds),
        "When a table is read again after it was written",
    ),
    used(
        "IptablesRefreshInterval",
        "seconds",
        "180",
        field("iptablesRefreshInterval", Seconds),
        "How often tables are compared with the kernel",
    ),
    used(
        "IstioAmbientMode",
        "oneof(Disabled,Enabled)",
        "Disabled",
        field("istioAmbientMode", Text),
        "Marks what pods of the mesh send each other",
    ),
    used("IstioDSCPMark", "dscp", "23", field("istioDSCPMark", Scalar), "The DSCP value of that mark"),
    used(
        "KubeNodePortRanges",
        "portrange-list",
        "30000:32767",
        field("kubeNodePortRanges", Ports),
        "The ports of node-port services, while kube-proxy is in IPVS mode",
    ),
    used(
        "LogActionRateLimit",
        "log-rate",
        "",
        field("logActionRateLimit", Text),
        "How many lines Log rules may write; with `BPFEnabled` at most 1,000 a second if nothing is said",
    ),
    used(
        "LogActionRateLimitBurst",
        "int(0,9999)",
        "5",
        field("logActionRateLimitBurst", Int),
        "How many lines Log rules may write at once",
    ),
    used(
        "LogPrefix",
        "string",
        "calico-packet",
        field("logPrefix", Text),
        "What the lines of Log rules begin with; with `BPFEnabled` they are lines of this program's log, and not of the kernel's",
    ),
    not_none(used(
        "MaxIpsetSize",
        "int",
        "1048576",
        field("maxIpsetSize", Int),
        "The most members of an IP set; with `BPFEnabled` policies need none",
    )),
    used(
        "NATOutgoingAddress",
        "ipv4",
        "",
        field("natOutgoingAddress", Text),
        "The source address of masqueraded traffic, IPv4",
    ),
    used(
        "NATOutgoingExclusions",
        "oneof(IPPoolsOnly,IPPoolsAndHostIPs)",
        "IPPoolsOnly",
        field("natOutgoingExclusions", Text),
        "What is not masqueraded besides the pools",
    ),
    used("NATPortRange", "portrange", "", field("natPortRange", Scalar), "The source ports of masqueraded traffic"),
    fatal(not_none(used(
        "NftablesFilterAllowAction",
        "oneof(ACCEPT,RETURN)",
        "ACCEPT",
        field("nftablesFilterAllowAction", Text),
        "What becomes of traffic that policy allows, with nftables",
    ))),
    fatal(not_none(used(
        "NftablesFilterDenyAction",
        "oneof(DROP,REJECT)",
        "DROP",
        field("nftablesFilterDenyAction", Text),
        "What becomes of traffic that policy denies, with nftables",
    ))),
    used(
        "NFTablesFlowTableDataIfacePattern",
        "regexp(nil-on-empty)",
        "",
        field("nftablesFlowTableDataIfacePattern", Text),
        "Interfaces of the host that established connections come and go by which a flow table forwards, with nftables",
    ),
    used(
        "NFTablesFlowTableOffload",
        "oneof(All,Disabled)",
        "Disabled",
        field("nftablesFlowTableOffload", Text),
        "Whether established connections are left to a flow table, past all rules, where the kernel has one, with nftables",
    ),
    own(
        "NFTablesLayout",
        "oneof(Felix,Fast)",
        "Felix",
        field("nftablesLayout", Text),
        "how chains of nftables are laid out. With `Fast` a packet meets few rules however many policies there are: maps lead \
             to those for its interface and its port, rules that do the same are one, and packets of established connections \
             leave at once. With `Felix` the rules are those of Felix, which finds nothing to write where it takes over. In a \
             `FelixConfiguration` it is `nftablesLayout`, or the annotation `config.projectcalico.org/NFTablesLayout`",
    ),
    fatal(not_none(used(
        "NftablesMangleAllowAction",
        "oneof(ACCEPT,RETURN)",
        "ACCEPT",
        field("nftablesMangleAllowAction", Text),
        "What becomes of traffic that policy allows before its destination is translated, with nftables",
    ))),
    fatal(not_none(used(
        "NftablesMarkMask",
        "mark-bitmask",
        "0xffff0000",
        field("nftablesMarkMask", Int),
        "The bits of packet marks that may be used, with nftables",
    ))),
    used(
        "NFTablesMode",
        "oneof(Enabled,Disabled,Auto)",
        "Auto",
        field("nftablesMode", Text),
        "Whether nftables is programmed in place of iptables and IP sets; `Auto` does so where kube-proxy does. `BPFEnabled` comes \
             first",
    ),
    used(
        "NftablesRefreshInterval",
        "seconds",
        "180",
        field("nftablesRefreshInterval", Seconds),
        "How often tables are compared with the kernel, with nftables",
    ),
    own(
        "PolicyMembersLimit",
        "int(0,4294967295)",
        "1000000",
        None,
        "most members that the selectors of one policy or profile may match in total; 0 is the default. Each different selector \
             or named port counts each address of the endpoints, and each network of the network sets, that it matches in the \
             cluster. A policy over it denies the endpoints that it selects and has no IP sets until it is under it again; readiness names it",
    ),
    own(
        "PolicyTableGroupMemoryMB",
        "int(1,65536)",
        "256",
        None,
        "memory bound of the tables of one group of endpoints with equal policies, in MiB, with `BPFEnabled`, with \
             `NFTablesLayout` `Fast`, and in `tortie plan` and `tortie check`. Over it, readiness names the group's largest \
             policies. An eBPF group then denies everything, alone; an nftables chain has its rules asked one after the \
             other, with the same verdicts. The compiled rules of one policy and direction may take an eighth of it with eBPF",
    ),
    own(
        "PolicyTableNodeMemoryMB",
        "int(1,65536)",
        "1024",
        None,
        "memory bound of the tables of a node, in MiB, where `PolicyTableGroupMemoryMB` holds; with nftables, each address family \
             has its half. Over it, the largest group of the namespace with the most bytes is refused, and so on until the rest \
             fits: a namespace that takes less than its equal share keeps its tables",
    ),
    used(
        "ServiceLoopPrevention",
        "oneof(Drop,Reject,Disabled)",
        "Drop",
        field("serviceLoopPrevention", Text),
        "What becomes of traffic to service addresses that no service has",
    ),
    used(
        "WorkloadSourceSpoofing",
        "oneof(Disabled,Any)",
        "Disabled",
        field("workloadSourceSpoofing", Text),
        "Whether workloads may ask to send from foreign addresses",
    ),
];
