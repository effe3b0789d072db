//! Parameters of eBPF.

use super::{EBPF, SOCKMAP, XDP};
use crate::FieldForm::{Bool, Int, KeyValues, List, Scalar, Seconds, Text, TextMap};
use crate::Parameter;
use crate::parameter::{field, local, not_none, not_used, own, used};

pub(super) const PARAMETERS: &[Parameter] = &[
    not_none(not_used("BPFAttachType", "oneof(Netkit,TCX,TC)", "Netkit", field("bpfAttachType", Text), EBPF)),
    not_none(not_used(
        "BPFConnectTimeLoadBalancing",
        "oneof(TCP,Enabled,Disabled)",
        "TCP",
        field("bpfConnectTimeLoadBalancing", Text),
        EBPF,
    )),
    not_used("BPFConnectTimeLoadBalancingEnabled", "bool", "", field("bpfConnectTimeLoadBalancingEnabled", Bool), EBPF),
    not_used(
        "BPFConntrackCleanupMode",
        "oneof(Auto,Userspace,BPFProgram)",
        "Auto",
        field("bpfConntrackMode", Text),
        EBPF,
    ),
    not_none(not_used("BPFConntrackLogLevel", "oneof(off,debug)", "off", field("bpfConntrackLogLevel", Text), EBPF)),
    not_used(
        "BPFConntrackTimeouts",
        "keyvaluelist",
        "CreationGracePeriod=10s,TCPSynSent=20s,TCPEstablished=1h,TCPFinsSeen=Auto,TCPResetSeen=40s,UDPTimeout=60s,GenericTimeout=10m,ICMPTimeout=5s",
        field("bpfConntrackTimeouts", KeyValues),
        EBPF,
    ),
    not_used("BPFCTLBLogFilter", "oneof(all)", "", field("bpfCTLBLogFilter", Text), EBPF),
    not_used(
        "BPFDataIfacePattern",
        "regexp",
        "^((en|wl|ww|sl|ib)[Popsx].*|(eth|wlan|wwan|bond).*)",
        field("bpfDataIfacePattern", Text),
        EBPF,
    ),
    not_used("BPFDisableGROForIfaces", "regexp", "", field("bpfDisableGROForIfaces", Text), EBPF),
    not_used("BPFDisableUnprivileged", "bool", "true", field("bpfDisableUnprivileged", Bool), EBPF),
    not_used("BPFDSROptoutCIDRs", "cidr-list", "", field("bpfDSROptoutCIDRs", List), EBPF),
    used(
        "BPFEnabled",
        "bool",
        "false",
        field("bpfEnabled", Bool),
        "Enforce policy by eBPF programs at netfilter hooks instead of chains and IP sets; needs Linux 6.4 or newer, or 6.0 or newer with nftables rules that call programs. Policy only: kube-proxy keeps \
             running. Chains remain for masquerading of IP pools, floating addresses, DSCP values, tunnels, \
             service loop prevention, packet rates and connection limits: in nftables with `NFTablesMode` or without iptables, else in \
             iptables, where `filter` also accepts packets that programs allow. Denied packets are dropped; rules with the action Log write to \
             this program's log",
    ),
    not_none(not_used("BPFEnforceRPF", "oneof(Disabled,Strict,Loose)", "Loose", field("bpfEnforceRPF", Text), EBPF)),
    not_used("BPFExcludeCIDRsFromNAT", "cidr-list", "", field("bpfExcludeCIDRsFromNAT", List), EBPF),
    not_none(not_used("BPFExportBufferSizeMB", "int", "1", field("bpfExportBufferSizeMB", Int), EBPF)),
    not_none(not_used(
        "BPFExternalServiceMode",
        "oneof(tunnel,dsr)",
        "tunnel",
        field("bpfExternalServiceMode", Text),
        EBPF,
    )),
    not_used("BPFExtToServiceConnmark", "int", "0", field("bpfExtToServiceConnmark", Int), EBPF),
    not_used(
        "BPFForceTrackPacketsFromIfaces",
        "iface-filter-slice",
        "docker+",
        field("bpfForceTrackPacketsFromIfaces", List),
        EBPF,
    ),
    own(
        "BPFHookAttachment",
        "oneof(Auto,Link,Rule)",
        "Auto",
        None,
        "how eBPF programs are attached to netfilter hooks, with `BPFEnabled`: by links (Linux 6.4 or newer), by matches of nftables rules (`xt_bpf`, Linux 6.0 or newer), or by links where the \
             kernel has them and by rules otherwise",
    ),
    not_used("BPFHostConntrackBypass", "bool", "false", field("bpfHostConntrackBypass", Bool), EBPF),
    not_none(not_used(
        "BPFHostNetworkedNATWithoutCTLB",
        "oneof(Enabled,Disabled)",
        "Enabled",
        field("bpfHostNetworkedNATWithoutCTLB", Text),
        EBPF,
    )),
    not_used("BPFIPFragmentReassemblyEnabled", "bool", "true", field("bpfIPFragmentReassemblyEnabled", Bool), EBPF),
    not_used("BPFIPFragTimeout", "seconds", "0", field("bpfIPFragTimeout", Seconds), EBPF),
    not_none(not_used("BPFJITHardening", "oneof(Auto,Strict)", "Auto", field("bpfJITHardening", Text), EBPF)),
    not_used("BPFKubeProxyHealthzPort", "int", "10256", field("bpfKubeProxyHealthzPort", Int), EBPF),
    not_used(
        "BPFKubeProxyIptablesCleanupEnabled",
        "bool",
        "true",
        field("bpfKubeProxyIptablesCleanupEnabled", Bool),
        EBPF,
    ),
    not_used("BPFKubeProxyMinSyncPeriod", "seconds", "1", field("bpfKubeProxyMinSyncPeriod", Seconds), EBPF),
    not_used("BPFL3IfacePattern", "regexp", "", field("bpfL3IfacePattern", Text), EBPF),
    not_used("BPFLogFilters", "keyvaluelist", "", field("bpfLogFilters", TextMap), EBPF),
    not_none(not_used("BPFLogLevel", "oneof(off,info,debug)", "off", field("bpfLogLevel", Text), EBPF)),
    not_used(
        "BPFMaglevMaxEndpointsPerService",
        "int(1:3000)",
        "100",
        field("bpfMaglevMaxEndpointsPerService", Int),
        EBPF,
    ),
    not_used("BPFMaglevMaxServices", "int(1:3000)", "100", field("bpfMaglevMaxServices", Int), EBPF),
    not_none(not_used("BPFMapSizeConntrack", "int", "512000", field("bpfMapSizeConntrack", Int), EBPF)),
    not_none(not_used(
        "BPFMapSizeConntrackCleanupQueue",
        "int",
        "100000",
        field("bpfMapSizeConntrackCleanupQueue", Int),
        EBPF,
    )),
    not_none(not_used(
        "BPFMapSizeConntrackScaling",
        "oneof(Disabled,DoubleIfFull)",
        "DoubleIfFull",
        field("bpfMapSizeConntrackScaling", Text),
        EBPF,
    )),
    not_none(not_used("BPFMapSizeIfState", "int", "1000", field("bpfMapSizeIfState", Int), EBPF)),
    not_none(not_used("BPFMapSizeIPSets", "int", "1048576", field("bpfMapSizeIPSets", Int), EBPF)),
    not_none(not_used("BPFMapSizeNATAffinity", "int", "65536", field("bpfMapSizeNATAffinity", Int), EBPF)),
    not_none(not_used("BPFMapSizeNATBackend", "int", "262144", field("bpfMapSizeNATBackend", Int), EBPF)),
    not_none(not_used("BPFMapSizeNATFrontend", "int", "65536", field("bpfMapSizeNATFrontend", Int), EBPF)),
    not_used("BPFMapSizePerCPUConntrack", "int", "0", field("bpfMapSizePerCpuConntrack", Int), EBPF),
    not_none(not_used("BPFMapSizeRoute", "int", "262144", field("bpfMapSizeRoute", Int), EBPF)),
    own(
        "BPFMaxBlocks",
        "int(1024,4194304)",
        "131072",
        None,
        "maximum number of blocks of 1,024 bytes that policies and the source networks of workloads take \
             in eBPF maps, with `BPFEnabled`; at most 196,608. Each group of endpoints counts as if it \
             shared no block. Over the bound, groups of the platform come first; then the largest group of \
             the namespace with the most blocks is refused until the rest fits. A refused group denies \
             everything, and readiness names it, until there is room. The rest of 262,144 blocks is for \
             addresses",
    ),
    not_none(not_used(
        "BPFOverlayHostSourceIP",
        "oneof(TunnelAddress,HostAddress)",
        "TunnelAddress",
        field("bpfOverlayHostSourceIP", Text),
        EBPF,
    )),
    not_used("BPFPolicyDebugEnabled", "bool", "true", field("bpfPolicyDebugEnabled", Bool), EBPF),
    own(
        "BPFPolicyOnly",
        "bool",
        "true",
        None,
        "eBPF programs enforce policy only, beside any kube-proxy and CNI plugin, with `BPFEnabled`. \
             Tortie does not replace kube-proxy: with `false` the agent does not start",
    ),
    not_none(not_used("BPFProfiling", "oneof(Disabled,Enabled)", "Disabled", field("bpfProfiling", Text), EBPF)),
    not_used("BPFPSNATPorts", "portrange", "20000:29999", field("bpfPSNATPorts", Scalar), EBPF),
    not_none(not_used(
        "BPFRedirectToPeer",
        "oneof(Disabled,Enabled,L2Only)",
        "Enabled",
        field("bpfRedirectToPeer", Text),
        EBPF,
    )),
    not_used("CgroupV2Path", "string", "", field("cgroupV2Path", Text), EBPF),
    local(not_used("DebugBPFCgroupV2", "string", "", None, EBPF)),
    not_used("GenericXDPEnabled", "bool", "false", field("genericXDPEnabled", Bool), XDP),
    not_used("SidecarAccelerationEnabled", "bool", "false", field("sidecarAccelerationEnabled", Bool), SOCKMAP),
    not_used("XDPEnabled", "bool", "true", field("xdpEnabled", Bool), XDP),
    not_used("XDPRefreshInterval", "seconds", "90", field("xdpRefreshInterval", Seconds), XDP),
];
