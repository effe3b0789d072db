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
        "Allow workloads to send IP-in-IP",
    ),
    used(
        "AllowVXLANPacketsFromWorkloads",
        "bool",
        "false",
        field("allowVXLANPacketsFromWorkloads", Bool),
        "Allow workloads to send VXLAN",
    ),
    fatal(not_none(used(
        "ChainInsertMode",
        "oneof(insert,append)",
        "insert",
        field("chainInsertMode", Text),
        "Position of the agent's rules in the kernel's base chains: first or last",
    ))),
    own(
        "CutDeniedConnections",
        "bool",
        "false",
        field("cutDeniedConnections", Bool),
        "cut established connections that a change of policy denies. The node should have \
             `net.netfilter.nf_conntrack_tcp_loose=0`: otherwise a cut TCP connection continues if its server sends the next packet and policy allows \
             the server to open connections to the client. In a `FelixConfiguration` it is `cutDeniedConnections`; \
             where the API server, calicoctl or a Typha drops fields that Calico's schema lacks, it is the annotation \
             `config.projectcalico.org/CutDeniedConnections: \"true\"`",
    ),
    fatal(not_none(used(
        "DefaultEndpointToHostAction",
        "oneof(DROP,RETURN,ACCEPT)",
        "DROP",
        field("defaultEndpointToHostAction", Text),
        "Action for traffic from workloads to their host that policy allows",
    ))),
    own(
        "DenyRejectBurst",
        "int(1,10000)",
        "100",
        field("denyRejectBurst", Int),
        "burst of `DenyRejectRate`. In a `FelixConfiguration` it is `denyRejectBurst`, or the annotation \
             `config.projectcalico.org/DenyRejectBurst`",
    ),
    own(
        "DenyRejectRate",
        "int(1,10000)",
        "100",
        field("denyRejectRate", Int),
        "maximum number of TCP resets a second, and again of ICMP errors, in each IP version, that the node sends because \
             of `DenyRejectWith=ResetOrProhibited` and of the annotation `policy.projectcalico.org/denyAction: Reject` of \
             policies and tiers. Packets over it are dropped. In a `FelixConfiguration` it is `denyRejectRate`, or the \
             annotation `config.projectcalico.org/DenyRejectRate`",
    ),
    own(
        "DenyRejectWith",
        "oneof(PortUnreachable,ResetOrProhibited)",
        "PortUnreachable",
        field("denyRejectWith", Text),
        "answer of `IptablesFilterDenyAction` and `NftablesFilterDenyAction` `REJECT`. `PortUnreachable` is that of Felix, \
             at any rate, to all denied packets. With `ResetOrProhibited`, TCP gets a reset, and any other protocol ICMP \
             \"administratively prohibited\", at most at `DenyRejectRate`, and only if policy denies the packet. In a \
             `FelixConfiguration` it is `denyRejectWith`, or the annotation `config.projectcalico.org/DenyRejectWith`",
    ),
    used(
        "DisableConntrackInvalidCheck",
        "bool",
        "false",
        field("disableConntrackInvalidCheck", Bool),
        "Do not drop packets that conntrack classifies as invalid",
    ),
    fatal(used(
        "FailsafeInboundHostPorts",
        "port-list",
        "tcp:22,udp:68,tcp:179,tcp:2379,tcp:2380,tcp:5473,tcp:6443,tcp:6666,tcp:6667",
        field("failsafeInboundHostPorts", ProtoPorts),
        "Inbound failsafe ports of host endpoints, open regardless of policy",
    )),
    fatal(used(
        "FailsafeOutboundHostPorts",
        "port-list",
        "udp:53,udp:67,tcp:179,tcp:2379,tcp:2380,tcp:5473,tcp:6443,tcp:6666,tcp:6667",
        field("failsafeOutboundHostPorts", ProtoPorts),
        "Outbound failsafe ports of host endpoints, open regardless of policy",
    )),
    used(
        "FeatureDetectOverride",
        "keyvaluelist",
        "",
        field("featureDetectOverride", Text),
        "Features that iptables and the kernel are assumed to have or lack; with nftables, `ChecksumOffloadBroken` alone counts",
    ),
    used(
        "IpsetsRefreshInterval",
        "seconds",
        "90",
        field("ipsetsRefreshInterval", Seconds),
        "Interval between comparisons of IP sets with the kernel; with nftables, `NftablesRefreshInterval` counts",
    ),
    used(
        "IptablesBackend",
        "oneof(legacy,nft,auto)",
        "auto",
        field("iptablesBackend", Text),
        "Variant of iptables that programs the kernel",
    ),
    fatal(not_none(used(
        "IptablesFilterAllowAction",
        "oneof(ACCEPT,RETURN)",
        "ACCEPT",
        field("iptablesFilterAllowAction", Text),
        "Action for traffic that policy allows; with `BPFEnabled`, for that of workloads where iptables has the remaining chains",
    ))),
    fatal(not_none(used(
        "IptablesFilterDenyAction",
        "oneof(DROP,REJECT)",
        "DROP",
        field("iptablesFilterDenyAction", Text),
        "Action for traffic that policy denies; with `BPFEnabled` it is always dropped",
    ))),
    used(
        "IptablesLockProbeIntervalMillis",
        "millis",
        "50",
        field("iptablesLockProbeInterval", Milliseconds),
        "Interval at which iptables polls its lock",
    ),
    fatal(not_none(used(
        "IptablesMangleAllowAction",
        "oneof(ACCEPT,RETURN)",
        "ACCEPT",
        field("iptablesMangleAllowAction", Text),
        "Action for traffic that pre-DNAT policy allows; with `BPFEnabled` it continues",
    ))),
    fatal(not_none(used(
        "IptablesMarkMask",
        "mark-bitmask",
        "0xffff0000",
        field("iptablesMarkMask", Int),
        "Bits of packet marks that the agent may use",
    ))),
    used(
        "IptablesNATOutgoingInterfaceFilter",
        "iface-param",
        "",
        field("iptablesNATOutgoingInterfaceFilter", Text),
        "Outgoing interfaces on which traffic is masqueraded",
    ),
    used(
        "IptablesPostWriteCheckIntervalSecs",
        "seconds",
        "5",
        field("iptablesPostWriteCheckInterval", Seconds),
        "Delay after which a written table is read again",
    ),
    used(
        "IptablesRefreshInterval",
        "seconds",
        "180",
        field("iptablesRefreshInterval", Seconds),
        "Interval between comparisons of iptables tables with the kernel",
    ),
    used(
        "IstioAmbientMode",
        "oneof(Disabled,Enabled)",
        "Disabled",
        field("istioAmbientMode", Text),
        "Mark traffic between pods of the mesh",
    ),
    used("IstioDSCPMark", "dscp", "23", field("istioDSCPMark", Scalar), "DSCP value of the mark of `IstioAmbientMode`"),
    used(
        "KubeNodePortRanges",
        "portrange-list",
        "30000:32767",
        field("kubeNodePortRanges", Ports),
        "Ports of NodePort Services, while kube-proxy is in IPVS mode",
    ),
    used(
        "LogActionRateLimit",
        "log-rate",
        "",
        field("logActionRateLimit", Text),
        "Rate limit of the lines of Log rules; with `BPFEnabled` 1,000 a second if not set",
    ),
    used(
        "LogActionRateLimitBurst",
        "int(0,9999)",
        "5",
        field("logActionRateLimitBurst", Int),
        "Burst of lines of Log rules",
    ),
    used(
        "LogPrefix",
        "string",
        "calico-packet",
        field("logPrefix", Text),
        "Prefix of the lines of Log rules in the kernel's log; with `BPFEnabled` the field `prefix` of `a rule logs a packet` in this program's log",
    ),
    not_none(used(
        "MaxIpsetSize",
        "int",
        "1048576",
        field("maxIpsetSize", Int),
        "Maximum number of members of an IP set; with `BPFEnabled` policies need no IP sets",
    )),
    used(
        "NATOutgoingAddress",
        "ipv4",
        "",
        field("natOutgoingAddress", Text),
        "Source address of masqueraded IPv4 traffic",
    ),
    used(
        "NATOutgoingExclusions",
        "oneof(IPPoolsOnly,IPPoolsAndHostIPs)",
        "IPPoolsOnly",
        field("natOutgoingExclusions", Text),
        "Destinations, besides the IP pools, to which traffic is not masqueraded",
    ),
    used("NATPortRange", "portrange", "", field("natPortRange", Scalar), "Source ports of masqueraded traffic"),
    fatal(not_none(used(
        "NftablesFilterAllowAction",
        "oneof(ACCEPT,RETURN)",
        "ACCEPT",
        field("nftablesFilterAllowAction", Text),
        "Action for traffic that policy allows, with nftables",
    ))),
    fatal(not_none(used(
        "NftablesFilterDenyAction",
        "oneof(DROP,REJECT)",
        "DROP",
        field("nftablesFilterDenyAction", Text),
        "Action for traffic that policy denies, with nftables",
    ))),
    used(
        "NFTablesFlowTableDataIfacePattern",
        "regexp(nil-on-empty)",
        "",
        field("nftablesFlowTableDataIfacePattern", Text),
        "Host interfaces whose established connections a flow table forwards, with nftables",
    ),
    used(
        "NFTablesFlowTableOffload",
        "oneof(All,Disabled)",
        "Disabled",
        field("nftablesFlowTableOffload", Text),
        "Forward established connections by a flow table, past all rules, where the kernel has one, with nftables; not with `BPFEnabled`",
    ),
    own(
        "NFTablesLayout",
        "oneof(Felix,Fast)",
        "Felix",
        field("nftablesLayout", Text),
        "layout of nftables chains. With `Fast` a packet traverses few rules, however many policies exist: verdict maps select \
             those for its interface and its port, equal rules are merged, and packets of established \
             connections leave at once. With `Felix` the rules equal those of Felix, so that a takeover \
             writes nothing. In a \
             `FelixConfiguration` it is `nftablesLayout`, or the annotation `config.projectcalico.org/NFTablesLayout`",
    ),
    fatal(not_none(used(
        "NftablesMangleAllowAction",
        "oneof(ACCEPT,RETURN)",
        "ACCEPT",
        field("nftablesMangleAllowAction", Text),
        "Action for traffic that pre-DNAT policy allows, with nftables",
    ))),
    fatal(not_none(used(
        "NftablesMarkMask",
        "mark-bitmask",
        "0xffff0000",
        field("nftablesMarkMask", Int),
        "Bits of packet marks that the agent may use, with nftables",
    ))),
    used(
        "NFTablesMode",
        "oneof(Enabled,Disabled,Auto)",
        "Auto",
        field("nftablesMode", Text),
        "Program nftables instead of iptables and IP sets; `Auto` does so where kube-proxy uses \
             nftables. With `BPFEnabled`, for the chains beside eBPF programs. The default is `Disabled` where \
             `ClusterInformation` names a Calico before 3.32",
    ),
    used(
        "NftablesRefreshInterval",
        "seconds",
        "180",
        field("nftablesRefreshInterval", Seconds),
        "Interval between comparisons of nftables tables with the kernel",
    ),
    own(
        "PolicyMembersLimit",
        "int(0,4294967295)",
        "1000000",
        None,
        "most members that the selectors of one policy or profile may match in total; 0 is the default. Each different selector \
             or named port counts each address of the endpoints, and each network of the network sets, that it matches in the \
             cluster. A policy over the bound denies the endpoints that it selects, and has no IP sets; readiness names it",
    ),
    own(
        "PolicyTableGroupMemoryMB",
        "int(1,65536)",
        "256",
        None,
        "memory bound of the tables of one group of endpoints with equal policies, in MiB, with `BPFEnabled`, with \
             `NFTablesLayout` `Fast`, and in `tortie plan` and `tortie check`. Over it, readiness names the group's largest \
             policies. An eBPF group then denies everything, alone; an nftables chain has its rules evaluated in sequence, with the same verdicts. The compiled rules of one policy and direction may take an eighth of it with eBPF",
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
        "Action for traffic to service addresses that no Service has",
    ),
    used(
        "WorkloadSourceSpoofing",
        "oneof(Disabled,Any)",
        "Disabled",
        field("workloadSourceSpoofing", Text),
        "Allow workloads to request other source addresses (spoofing)",
    ),
];
