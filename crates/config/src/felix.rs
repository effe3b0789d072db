//! All of Felix's parameters: name, type and default as the struct tags of `felix/config/config_params.go` have them, and what
//! becomes of each here. `tortie parameters` prints this.

use super::parse;

/// A parameter of Felix's.
#[derive(Clone, Copy, Debug)]
pub struct FelixParameter {
    /// The name.
    pub name: &'static str,
    /// The type, as Felix's table has it.
    pub kind: &'static str,
    /// As it would be written; empty for none.
    pub default: &'static str,
    /// The effect here.
    pub treatment: Treatment,
}

/// What becomes of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// It does this.
    Used(&'static str),
    /// It does this, and Felix does not have it.
    Own(&'static str),
    /// It says how to reach a datastore. It is looked for on the node itself, by [`super::Sources::local`], before there is a
    /// datastore to have any configuration.
    Connection(&'static str),
    /// It is what a cluster says of itself in its `ClusterInformation`. Nobody relies on it for an effect.
    Description,
    /// The calculation reads it of every node, this one included. As this node's parameter it does nothing more.
    OfNodes(&'static str),
    /// It does nothing, for this reason.
    NotUsed(&'static str),
}

use Treatment::{Connection, Description, NotUsed, OfNodes, Own, Used};

const AWS: &str = "settings of cloud machines are left to their owner";
const EBPF: &str = "eBPF programs decide by policy and do nothing else, at hooks of netfilter; services, connections, routes and \
                    checks of reverse paths are the kernel's and kube-proxy's";
const FLAGS: &str = "`--datastore` and `--dataplane` say it";
const TRACE: &str = "there is no log of each step of the collector";
const GATES: &str = "none of the features behind gates is there";
const GO: &str = "there is no Go runtime";
const OPENSTACK: &str = "there is no metadata service to let workloads reach";
const SOCKMAP: &str = "there is no acceleration of sidecars";
const USAGE: &str = "nothing that is known of a cluster is sent to anybody outside of it";
const WINDOWS: &str = "for Windows";
const XDP: &str = "there is no XDP";

/// The parameter of this name, in any case.
#[must_use]
pub fn find(name: &str) -> Option<&'static FelixParameter> {
    PARAMETERS.iter().find(|parameter| parameter.name.eq_ignore_ascii_case(name))
}

impl FelixParameter {
    /// Whether a value asks for something else than the default, as far as that can be told.
    #[must_use]
    pub fn differs_from_default(&self, value: &str) -> bool {
        let (value, default) = (value.trim(), self.default);
        match self.kind.split('(').next().unwrap_or_default() {
            "bool" | "*bool" => parse::boolean(value) != parse::boolean(default),
            "int" | "seconds" | "millis" => match (number(value), number(default)) {
                (Some(value), Some(default)) => (value - default).abs() > f64::EPSILON,
                _ => true,
            },
            _ if value.eq_ignore_ascii_case("none") => !default.is_empty(),
            _ => !value.eq_ignore_ascii_case(default),
        }
    }
}

fn number(text: &str) -> Option<f64> {
    if text.is_empty() || text.eq_ignore_ascii_case("none") { Some(0.0) } else { text.parse().ok() }
}

/// The table that the documentation has.
#[must_use]
pub fn markdown() -> String {
    let mut text = String::from(HEADING);
    for FelixParameter { name, kind, default, treatment } in PARAMETERS {
        let cell = |text: &str| if text.is_empty() { String::new() } else { format!("`{}`", text.replace('|', "\\|")) };
        let does = match treatment {
            Used(does) | Connection(does) | OfNodes(does) => (*does).to_owned(),
            Own(does) => format!("Tortie's own: {does}"),
            Description => "describes the cluster".to_owned(),
            NotUsed(why) => format!("nothing: {why}"),
        };
        text += &format!("| {name} | {} | {} | {does} |\n", cell(kind), cell(default));
    }
    text
}

const HEADING: &str = "\
# Parameters

Felix's parameters, and what each does here. The first column is the name in a configuration file; `FELIX_` before it makes the
name of an environment variable. Type and default are written as in the original's source, which does not have those that are
said to be Tortie's own. A parameter that does nothing is
named in a warning with the reason, when it is set to something other than its default that asks for something.

This table is written by `cargo xtask parameters` from `crates/config/src/felix.rs`; `tortie parameters` prints it.

| parameter | type | default | what it does |
|---|---|---|---|
";

const fn felix(name: &'static str, kind: &'static str, default: &'static str, treatment: Treatment) -> FelixParameter {
    FelixParameter { name, kind, default, treatment }
}

/// All of them, by name.
pub const PARAMETERS: &[FelixParameter] = &[
    felix(
        "AddressClaims",
        "oneof(Bounded,Any)",
        "Bounded",
        Own("treatment of addresses and interfaces that users can claim. With `Bounded`, an annotation of a Pod \
             (`cni.projectcalico.org/podIP`, `podIPs`, `floatingIPs`) takes no address of another endpoint or a node \
             and none outside the IP pools or `podCIDRs`; of two running Pods with one interface or address both are \
             denied; and an EndpointSlice brings no address of Pods of other namespaces into rules with `services`. \
             With `Any` each claim counts, as in Felix. In a `FelixConfiguration` it is `addressClaims`, or the \
             annotation `config.projectcalico.org/AddressClaims`"),
    ),
    felix("AllowIPIPPacketsFromWorkloads", "bool", "false", Used("Whether workloads may send IP-in-IP")),
    felix("AllowVXLANPacketsFromWorkloads", "bool", "false", Used("Whether workloads may send VXLAN")),
    felix("AWSSrcDstCheck", "oneof(DoNothing,Enable,Disable)", "DoNothing", NotUsed(AWS)),
    felix("BPFAttachType", "oneof(Netkit,TCX,TC)", "Netkit", NotUsed(EBPF)),
    felix("BPFConnectTimeLoadBalancing", "oneof(TCP,Enabled,Disabled)", "TCP", NotUsed(EBPF)),
    felix("BPFConnectTimeLoadBalancingEnabled", "bool", "", NotUsed(EBPF)),
    felix("BPFConntrackCleanupMode", "oneof(Auto,Userspace,BPFProgram)", "Auto", NotUsed(EBPF)),
    felix("BPFConntrackLogLevel", "oneof(off,debug)", "off", NotUsed(EBPF)),
    felix(
        "BPFConntrackTimeouts",
        "keyvaluelist",
        "CreationGracePeriod=10s,TCPSynSent=20s,TCPEstablished=1h,TCPFinsSeen=Auto,TCPResetSeen=40s,UDPTimeout=60s,GenericTimeout=10m,ICMPTimeout=5s",
        NotUsed(EBPF),
    ),
    felix("BPFCTLBLogFilter", "oneof(all)", "", NotUsed(EBPF)),
    felix("BPFDataIfacePattern", "regexp", "^((en|wl|ww|sl|ib)[Popsx].*|(eth|wlan|wwan|bond).*)", NotUsed(EBPF)),
    felix("BPFDisableGROForIfaces", "regexp", "", NotUsed(EBPF)),
    felix("BPFDisableUnprivileged", "bool", "true", NotUsed(EBPF)),
    felix("BPFDSROptoutCIDRs", "cidr-list", "", NotUsed(EBPF)),
    felix(
        "BPFEnabled",
        "bool",
        "false",
        Used(
            "Whether eBPF programs enforce policy, at hooks of netfilter, in place of chains and IP sets; takes Linux 6.4, or \
             6.0 with rules of nftables that ask programs. Policy only: kube-proxy goes on, and iptables is left with what pools, floating addresses, DSCP values, tunnels and service \
             loops need of it, and is not needed where they need nothing; where it is installed, `filter` also accepts what programs \
             let through. Denied packets are dropped; rules with the action Log write lines of this program's log",
        ),
    ),
    felix("BPFEnforceRPF", "oneof(Disabled,Strict,Loose)", "Loose", NotUsed(EBPF)),
    felix("BPFExcludeCIDRsFromNAT", "cidr-list", "", NotUsed(EBPF)),
    felix("BPFExportBufferSizeMB", "int", "1", NotUsed(EBPF)),
    felix("BPFExternalServiceMode", "oneof(tunnel,dsr)", "tunnel", NotUsed(EBPF)),
    felix("BPFExtToServiceConnmark", "int", "0", NotUsed(EBPF)),
    felix("BPFForceTrackPacketsFromIfaces", "iface-filter-slice", "docker+", NotUsed(EBPF)),
    felix(
        "BPFHookAttachment",
        "oneof(Auto,Link,Rule)",
        "Auto",
        Own(
            "how eBPF programs get to the hooks of netfilter, with `BPFEnabled`: by links (Linux 6.4), as what rules of nftables match by \
             (`xt_bpf`, Linux 6.0), or by links where the kernel has them and by rules otherwise",
        ),
    ),
    felix("BPFHostConntrackBypass", "bool", "false", NotUsed(EBPF)),
    felix("BPFHostNetworkedNATWithoutCTLB", "oneof(Enabled,Disabled)", "Enabled", NotUsed(EBPF)),
    felix("BPFIPFragmentReassemblyEnabled", "bool", "true", NotUsed(EBPF)),
    felix("BPFIPFragTimeout", "seconds", "0", NotUsed(EBPF)),
    felix("BPFJITHardening", "oneof(Auto,Strict)", "Auto", NotUsed(EBPF)),
    felix("BPFKubeProxyHealthzPort", "int", "10256", NotUsed(EBPF)),
    felix("BPFKubeProxyIptablesCleanupEnabled", "bool", "true", NotUsed(EBPF)),
    felix("BPFKubeProxyMinSyncPeriod", "seconds", "1", NotUsed(EBPF)),
    felix("BPFL3IfacePattern", "regexp", "", NotUsed(EBPF)),
    felix("BPFLogFilters", "keyvaluelist", "", NotUsed(EBPF)),
    felix("BPFLogLevel", "oneof(off,info,debug)", "off", NotUsed(EBPF)),
    felix("BPFMaglevMaxEndpointsPerService", "int(1:3000)", "100", NotUsed(EBPF)),
    felix("BPFMaglevMaxServices", "int(1:3000)", "100", NotUsed(EBPF)),
    felix("BPFMapSizeConntrack", "int", "512000", NotUsed(EBPF)),
    felix("BPFMapSizeConntrackCleanupQueue", "int", "100000", NotUsed(EBPF)),
    felix("BPFMapSizeConntrackScaling", "oneof(Disabled,DoubleIfFull)", "DoubleIfFull", NotUsed(EBPF)),
    felix("BPFMapSizeIfState", "int", "1000", NotUsed(EBPF)),
    felix("BPFMapSizeIPSets", "int", "1048576", NotUsed(EBPF)),
    felix("BPFMapSizeNATAffinity", "int", "65536", NotUsed(EBPF)),
    felix("BPFMapSizeNATBackend", "int", "262144", NotUsed(EBPF)),
    felix("BPFMapSizeNATFrontend", "int", "65536", NotUsed(EBPF)),
    felix("BPFMapSizePerCPUConntrack", "int", "0", NotUsed(EBPF)),
    felix("BPFMapSizeRoute", "int", "262144", NotUsed(EBPF)),
    felix(
        "BPFMaxBlocks",
        "int(1024,4194304)",
        "131072",
        Own(
            "how many blocks of 1,024 bytes policies and the source networks of workloads may take in eBPF maps, with \
             `BPFEnabled`; at most 196,608. Each group of endpoints counts as if it shared no block. Over the bound, groups of the \
             platform come first; then the largest group of the namespace with the most blocks is refused until the rest fits. \
             A refused group denies everything, by name, until there is room. The rest of 262,144 blocks is for addresses",
        ),
    ),
    felix("BPFOverlayHostSourceIP", "oneof(TunnelAddress,HostAddress)", "TunnelAddress", NotUsed(EBPF)),
    felix("BPFPolicyDebugEnabled", "bool", "true", NotUsed(EBPF)),
    felix(
        "BPFPolicyOnly",
        "bool",
        "true",
        Own(
            "that eBPF programs decide by policy only, beside any kube-proxy and CNI plugin, with `BPFEnabled`. Nothing here \
             takes the place of kube-proxy: with `false` the agent does not start",
        ),
    ),
    felix("BPFProfiling", "oneof(Disabled,Enabled)", "Disabled", NotUsed(EBPF)),
    felix("BPFPSNATPorts", "portrange", "20000:29999", NotUsed(EBPF)),
    felix("BPFRedirectToPeer", "oneof(Disabled,Enabled,L2Only)", "Enabled", NotUsed(EBPF)),
    felix("CalicoVersion", "string", "", Description),
    felix("CgroupV2Path", "string", "", NotUsed(EBPF)),
    felix(
        "ChainInsertMode",
        "oneof(insert,append)",
        "insert",
        Used("Whether the hooks go first or last in the kernel's chains"),
    ),
    felix("ClusterGUID", "string", "baddecaf", Description),
    felix(
        "ClusterType",
        "string",
        "",
        Used("Whether the cluster is Azure's (`aks`), whose network takes smaller packets than its machines say"),
    ),
    felix(
        "CutDeniedConnections",
        "bool",
        "false",
        Own("whether established connections are cut that a change of policy denies. The node should have \
             `net.netfilter.nf_conntrack_tcp_loose=0`: otherwise a TCP connection that is cut goes on if its server speaks \
             next and policy lets it open connections to its client. In a `FelixConfiguration` it is `cutDeniedConnections`; \
             where the API server, calicoctl or a Typha does not let through what Calico's schema lacks, it is the annotation \
             `config.projectcalico.org/CutDeniedConnections: \"true\"`"),
    ),
    felix("DataplaneDriver", "file(must-exist,executable)", "calico-iptables-plugin", NotUsed(FLAGS)),
    felix(
        "DataplaneWatchdogTimeout",
        "seconds",
        "90",
        Used("Liveness fails when the dataplane has not moved for so long"),
    ),
    felix(
        "DatastoreType",
        "oneof(kubernetes,etcdv3)",
        "etcdv3",
        Connection("What a node with `fanout:` or `typha:` writes its status and keys to, if it is set"),
    ),
    felix("DebugBPFCgroupV2", "string", "", NotUsed(EBPF)),
    felix("DebugCPUProfilePath", "file", "/tmp/felix-cpu-<timestamp>.pprof", NotUsed(GO)),
    felix(
        "DebugDisableLogDropping",
        "bool",
        "false",
        Used(
            "Whether a log file or syslog that takes no lines is waited for; otherwise lines are dropped. Standard error is always waited for",
        ),
    ),
    felix("DebugHost", "host-address", "localhost", NotUsed(GO)),
    felix("DebugMemoryProfilePath", "file", "", NotUsed(GO)),
    felix(
        "DebugPanicAfter",
        "seconds",
        "0",
        Used(
            "How long after a start or a new configuration the program ends with an error, for tests of what restarts it",
        ),
    ),
    felix("DebugPort", "int(0:65535)", "", NotUsed(GO)),
    felix(
        "DebugSimulateCalcGraphHangAfter",
        "seconds",
        "0",
        Used(
            "How long after a start or a new configuration the calculation hangs for an hour, for tests of liveness probes",
        ),
    ),
    felix(
        "DebugSimulateDataplaneApplyDelay",
        "seconds",
        "0",
        Used("How long to wait before each change of the kernel, for tests of a node under load"),
    ),
    felix(
        "DebugSimulateDataplaneHangAfter",
        "seconds",
        "0",
        Used(
            "How long after a start or a new configuration the dataplane hangs for an hour, for tests of liveness probes",
        ),
    ),
    felix("DebugSimulateDataRace", "bool", "false", NotUsed(GO)),
    felix(
        "DefaultEndpointToHostAction",
        "oneof(DROP,RETURN,ACCEPT)",
        "DROP",
        Used("What becomes of traffic from workloads to their host that policy allows"),
    ),
    felix("DeviceRouteProtocol", "int", "3", Used("The protocol number of routes to workloads")),
    felix("DeviceRouteSourceAddress", "ipv4", "", Used("The source address of routes to workloads, IPv4")),
    felix("DeviceRouteSourceAddressIPv6", "ipv6", "", Used("The source address of routes to workloads, IPv6")),
    felix("DisableConntrackInvalidCheck", "bool", "false", Used("Whether packets that conntrack calls invalid pass")),
    felix("EndpointReportingDelaySecs", "seconds", "1", Used("The pause between two such writes")),
    felix("EndpointReportingEnabled", "bool", "false", Used("Whether the status of endpoints is written to etcd")),
    felix("EndpointStatusPathPrefix", "file", "/var/run/calico", Used("Where the status files of endpoints are kept")),
    felix("EtcdAddr", "authority", "127.0.0.1:2379", Connection("The etcd of `etcd:`")),
    felix("EtcdCaFile", "file(must-exist)", "", Connection("For `etcd:`")),
    felix("EtcdCertFile", "file(must-exist)", "", Connection("For `etcd:`")),
    felix("EtcdEndpoints", "endpoint-list", "", Connection("The members of `etcd:`")),
    felix("EtcdKeyFile", "file(must-exist)", "", Connection("For `etcd:`")),
    felix("EtcdScheme", "oneof(http,https)", "http", Connection("Whether `etcd:` speaks TLS")),
    felix("ExternalNodesCIDRList", "cidr-list", "", Used("Other hosts from which tunnelled traffic is taken")),
    felix(
        "FailsafeInboundHostPorts",
        "port-list",
        "tcp:22,udp:68,tcp:179,tcp:2379,tcp:2380,tcp:5473,tcp:6443,tcp:6666,tcp:6667",
        Used("Ports of the host that stay open"),
    ),
    felix(
        "FailsafeOutboundHostPorts",
        "port-list",
        "udp:53,udp:67,tcp:179,tcp:2379,tcp:2380,tcp:5473,tcp:6443,tcp:6666,tcp:6667",
        Used("Ports of others that the host may always reach"),
    ),
    felix(
        "FeatureDetectOverride",
        "keyvaluelist",
        "",
        Used(
            "What iptables and the kernel are taken to be able to do; with nftables, `ChecksumOffloadBroken` alone counts",
        ),
    ),
    felix("FeatureGates", "keyvaluelist", "", NotUsed(GATES)),
    felix("FelixHostname", "hostname", "", Used("This node's name, unless `--node` is given")),
    felix(
        "FloatingIPs",
        "oneof(Enabled,Disabled)",
        "Disabled",
        Used("Whether workloads' floating addresses are translated"),
    ),
    felix("FlowLogsCollectorDebugTrace", "bool", "false", NotUsed(TRACE)),
    felix(
        "FlowLogsFile",
        "file",
        "",
        Own(
            "The file to which flows that have something in common are written as lines of JSON; collects flows, if set",
        ),
    ),
    felix("FlowLogsFileMaxFiles", "int(1:1000)", "5", Own("How many such files are kept, the current one included")),
    felix("FlowLogsFileMaxSizeMB", "int(1:1000000)", "100", Own("From which size on a new one is begun")),
    felix(
        "FlowLogsFlushInterval",
        "seconds",
        "300",
        Used("How often flows that have something in common are written and sent"),
    ),
    felix(
        "FlowLogsGoldmaneServer",
        "string",
        "",
        Used(
            "The Goldmane to which flows that have something in common are sent (feature `goldmane`); collects flows, if \
             set",
        ),
    ),
    felix(
        "FlowLogsLocalReporter",
        "oneof(Enabled,Disabled)",
        "Disabled",
        Used(
            "Whether flows are collected, for `tortie flows`, `tortie show policy` and metrics, and (feature `goldmane`) for \
             whoever listens on `/var/run/calico/flows/flows.sock`",
        ),
    ),
    felix(
        "FlowLogsPolicyEvaluationMode",
        "oneof(None,Continuous)",
        "Continuous",
        Used("Whether staged policies are asked about each flow"),
    ),
    felix("GenericXDPEnabled", "bool", "false", NotUsed(XDP)),
    felix("GoGCThreshold", "int(-1)", "40", NotUsed(GO)),
    felix("GoMaxProcs", "int(-1)", "-1", NotUsed(GO)),
    felix("GoMemoryLimitMB", "int(-1)", "-1", NotUsed(GO)),
    felix("HealthEnabled", "bool", "false", Used("Whether `/liveness` and `/readiness` are answered")),
    felix("HealthHost", "host-address", "localhost", Used("On which address")),
    felix("HealthPort", "int(0:65535)", "9099", Used("On which port")),
    felix(
        "HealthTimeoutOverrides",
        "keydurationlist",
        "",
        Used(
            "Longest silence of reporters of liveness, `NAME=DURATION` each: `CalculationGraph` (30 s by default), \
             `InternalDataplaneMainLoop` (`DataplaneWatchdogTimeout`), `Datastore`, `InterfaceMonitor`, `RulesetMonitor`, \
             `ConnectionCutter`, `DriverWriter` and `PolicySync` (60 s each)",
        ),
    ),
    felix("InterfaceExclude", "iface-list-regexp", "kube-ipvs0", Used("Interfaces whose addresses do not count")),
    felix("InterfacePrefix", "iface-list", "cali", Used("What names of workload interfaces begin with")),
    felix("InterfaceRefreshInterval", "seconds", "90", Used("How often all interfaces are listed again")),
    felix("IPForwarding", "oneof(Enabled,Disabled)", "Enabled", Used("Whether forwarding is switched on")),
    felix("IpInIpEnabled", "*bool", "", Used("Whether there is IP-in-IP, whatever pools ask for")),
    felix("IpInIpMtu", "int", "0", Used("The MTU of tunnels, and so of workloads: IP-in-IP")),
    felix("IpInIpTunnelAddr", "ipv4", "", Used("The address of the IP-in-IP tunnel")),
    felix(
        "IpsetsRefreshInterval",
        "seconds",
        "90",
        Used("How often IP sets are compared with the kernel; with nftables, `NftablesRefreshInterval` says so"),
    ),
    felix("IptablesBackend", "oneof(legacy,nft,auto)", "auto", Used("Which iptables programs the kernel")),
    felix(
        "IptablesFilterAllowAction",
        "oneof(ACCEPT,RETURN)",
        "ACCEPT",
        Used(
            "What becomes of traffic that policy allows; with `BPFEnabled` of that of workloads, where iptables is installed",
        ),
    ),
    felix(
        "IptablesFilterDenyAction",
        "oneof(DROP,REJECT)",
        "DROP",
        Used("What becomes of traffic that policy denies; with `BPFEnabled` it is dropped"),
    ),
    felix("IptablesLockProbeIntervalMillis", "millis", "50", Used("How often iptables tries to get its lock")),
    felix(
        "IptablesMangleAllowAction",
        "oneof(ACCEPT,RETURN)",
        "ACCEPT",
        Used("What becomes of traffic that policy before address translation allows; with `BPFEnabled` it goes on"),
    ),
    felix("IptablesMarkMask", "mark-bitmask", "0xffff0000", Used("The bits of packet marks that may be used")),
    felix(
        "IptablesNATOutgoingInterfaceFilter",
        "iface-param",
        "",
        Used("Through which interfaces traffic is masqueraded"),
    ),
    felix(
        "IptablesPostWriteCheckIntervalSecs",
        "seconds",
        "5",
        Used("When a table is read again after it was written"),
    ),
    felix("IptablesRefreshInterval", "seconds", "180", Used("How often tables are compared with the kernel")),
    felix(
        "IPv4ElevatedRoutePriority",
        "int(1:2147483646)",
        "512",
        Used("The metric of IPv4 routes to virtual machines that have just moved to the node"),
    ),
    felix("IPv4NormalRoutePriority", "int(1:2147483646)", "1024", Used("The metric of IPv4 routes to workloads")),
    felix("IPv4VXLANTunnelAddr", "ipv4", "", OfNodes("The address of the node's VXLAN tunnel, IPv4")),
    felix(
        "IPv6ElevatedRoutePriority",
        "int(1:2147483646)",
        "512",
        Used("The metric of IPv6 routes to virtual machines that have just moved to the node"),
    ),
    felix("IPv6NormalRoutePriority", "int(1:2147483646)", "1024", Used("The metric of IPv6 routes to workloads")),
    felix("Ipv6Support", "bool", "true", Used("Whether IPv6 is programmed")),
    felix("IPv6VXLANTunnelAddr", "ipv6", "", OfNodes("The address of the node's VXLAN tunnel, IPv6")),
    felix(
        "IstioAmbientMode",
        "oneof(Disabled,Enabled)",
        "Disabled",
        Used("Marks what pods of the mesh send each other"),
    ),
    felix("IstioDSCPMark", "dscp", "23", Used("The DSCP value of that mark")),
    felix(
        "KubeNodePortRanges",
        "portrange-list",
        "30000:32767",
        Used("The ports of node-port services, while kube-proxy is in IPVS mode"),
    ),
    felix(
        "LiveMigrationRouteConvergenceTime",
        "seconds",
        "30",
        Used("For how long after a live migration routes keep that metric"),
    ),
    felix(
        "LocalSubnetL2Reachability",
        "oneof(Disabled,PodsAndLoadBalancers)",
        "Disabled",
        Used("Answers ARP and neighbour discovery for addresses of pods and load balancers in the node's own subnets"),
    ),
    felix(
        "LocalSubnetL2ReachabilityRefreshInterval",
        "seconds",
        "120",
        Used("How often these addresses are announced again"),
    ),
    felix(
        "LogActionRateLimit",
        "log-rate",
        "",
        Used("How many lines Log rules may write; with `BPFEnabled` at most 1,000 a second if nothing is said"),
    ),
    felix("LogActionRateLimitBurst", "int(0,9999)", "5", Used("How many lines Log rules may write at once")),
    felix(
        "LogDebugFilenameRegex",
        "regexp(nil-on-empty)",
        "",
        Used("Which of the program's source files may log for debugging"),
    ),
    felix(
        "LogFilePath",
        "file",
        "/var/log/calico/felix.log",
        Used("The file that lines go to as well, once this or LogSeverityFile is set; it may be moved away"),
    ),
    felix(
        "LogPrefix",
        "string",
        "calico-packet",
        Used(
            "What the lines of Log rules begin with; with `BPFEnabled` they are lines of this program's log, and not of the kernel's",
        ),
    ),
    felix(
        "LogSeverityFile",
        "oneof(TRACE,DEBUG,INFO,WARNING,ERROR,FATAL)",
        "INFO",
        Used("What goes to the file, once this or LogFilePath is set"),
    ),
    felix(
        "LogSeverityScreen",
        "oneof(TRACE,DEBUG,INFO,WARNING,ERROR,FATAL)",
        "INFO",
        Used("What is logged on standard error"),
    ),
    felix(
        "LogSeveritySys",
        "oneof(TRACE,DEBUG,INFO,WARNING,ERROR,FATAL)",
        "INFO",
        Used("What goes to the syslog of this machine, once this is set"),
    ),
    felix(
        "MaxIpsetSize",
        "int",
        "1048576",
        Used("The most members of an IP set; with `BPFEnabled` policies need none"),
    ),
    felix("MetadataAddr", "hostname", "127.0.0.1", NotUsed(OPENSTACK)),
    felix("MetadataPort", "int(0:65535)", "8775", NotUsed(OPENSTACK)),
    felix(
        "MTUIfacePattern",
        "regexp",
        "^((en|wl|ww|sl|ib)[Pcopsvx].*|(eth|wlan|wwan).*)",
        Used("Whose MTU counts for tunnels and workloads"),
    ),
    felix("NATOutgoingAddress", "ipv4", "", Used("The source address of masqueraded traffic, IPv4")),
    felix(
        "NATOutgoingExclusions",
        "oneof(IPPoolsOnly,IPPoolsAndHostIPs)",
        "IPPoolsOnly",
        Used("What is not masqueraded besides the pools"),
    ),
    felix("NATPortRange", "portrange", "", Used("The source ports of masqueraded traffic")),
    felix("NetlinkTimeoutSecs", "seconds", "10", Used("How long the kernel may take to answer")),
    felix(
        "NftablesFilterAllowAction",
        "oneof(ACCEPT,RETURN)",
        "ACCEPT",
        Used("What becomes of traffic that policy allows, with nftables"),
    ),
    felix(
        "NftablesFilterDenyAction",
        "oneof(DROP,REJECT)",
        "DROP",
        Used("What becomes of traffic that policy denies, with nftables"),
    ),
    felix(
        "NFTablesFlowTableDataIfacePattern",
        "regexp(nil-on-empty)",
        "",
        Used(
            "Interfaces of the host that established connections come and go by which a flow table forwards, with nftables",
        ),
    ),
    felix(
        "NFTablesFlowTableOffload",
        "oneof(All,Disabled)",
        "Disabled",
        Used(
            "Whether established connections are left to a flow table, past all rules, where the kernel has one, with nftables",
        ),
    ),
    felix(
        "NFTablesLayout",
        "oneof(Felix,Fast)",
        "Felix",
        Own(
            "how chains of nftables are laid out. With `Fast` a packet meets few rules however many policies there are: maps lead \
             to those for its interface and its port, rules that do the same are one, and packets of established connections \
             leave at once. With `Felix` the rules are those of Felix, which finds nothing to write where it takes over. In a \
             `FelixConfiguration` it is `nftablesLayout`, or the annotation `config.projectcalico.org/NFTablesLayout`",
        ),
    ),
    felix(
        "NftablesMangleAllowAction",
        "oneof(ACCEPT,RETURN)",
        "ACCEPT",
        Used("What becomes of traffic that policy allows before its destination is translated, with nftables"),
    ),
    felix(
        "NftablesMarkMask",
        "mark-bitmask",
        "0xffff0000",
        Used("The bits of packet marks that may be used, with nftables"),
    ),
    felix(
        "NFTablesMode",
        "oneof(Enabled,Disabled,Auto)",
        "Auto",
        Used(
            "Whether nftables is programmed in place of iptables and IP sets; `Auto` does so where kube-proxy does. `BPFEnabled` comes \
             first",
        ),
    ),
    felix(
        "NftablesRefreshInterval",
        "seconds",
        "180",
        Used("How often tables are compared with the kernel, with nftables"),
    ),
    felix("OpenstackRegion", "region", "", Used("A part of the paths of status in etcd")),
    felix(
        "PolicyMembersLimit",
        "int(0,4294967295)",
        "1000000",
        Own(
            "most members that the selectors of one policy or profile may match in total; 0 is the default. Each different selector \
             or named port counts each address of the endpoints, and each network of the network sets, that it matches in the \
             cluster. A policy over it denies the endpoints that it selects and has no IP sets until it is under it again; readiness names it",
        ),
    ),
    felix(
        "PolicySyncPathPrefix",
        "file",
        "",
        Used("Where workloads find sockets on which they follow their policy, in builds with the feature `policysync`"),
    ),
    felix(
        "PolicyTableGroupMemoryMB",
        "int(1,65536)",
        "256",
        Own(
            "memory bound of the tables of one group of endpoints with equal policies, in MiB, with `BPFEnabled`, with \
             `NFTablesLayout` `Fast`, and in `tortie plan` and `tortie check`. Over it, readiness names the group's largest \
             policies. An eBPF group then denies everything, alone; an nftables chain has its rules asked one after the \
             other, with the same verdicts. The compiled rules of one policy and direction may take an eighth of it with eBPF",
        ),
    ),
    felix(
        "PolicyTableNodeMemoryMB",
        "int(1,65536)",
        "1024",
        Own(
            "memory bound of the tables of a node, in MiB, where `PolicyTableGroupMemoryMB` holds; with nftables, each address family \
             has its half. Over it, the largest group of the namespace with the most bytes is refused, and so on until the rest \
             fits: a namespace that takes less than its equal share keeps its tables",
        ),
    ),
    felix(
        "ProgramClusterRoutes",
        "oneof(Enabled,Disabled,EnabledIPIPOnly,EnabledNoEncapOnly)",
        "EnabledIPIPOnly",
        Used("Which pools' routes between nodes are not left to BGP"),
    ),
    felix("PrometheusGoMetricsEnabled", "bool", "true", NotUsed(GO)),
    felix("PrometheusMetricsCAFile", "string", "", Used("From whom certificates of clients must come")),
    felix("PrometheusMetricsCertFile", "string", "", Used("With this certificate metrics are answered over TLS alone")),
    felix(
        "PrometheusMetricsClientAuth",
        "oneof(RequireAndVerifyClientCert,RequireAnyClientCert,VerifyClientCertIfGiven,NoClientCert)",
        "NoClientCert",
        Used("What clients must show"),
    ),
    felix("PrometheusMetricsEnabled", "bool", "false", Used("Whether `/metrics` is answered")),
    felix("PrometheusMetricsHost", "host-address", "", Used("On which address")),
    felix("PrometheusMetricsKeyFile", "string", "", Used("The key of the certificate")),
    felix("PrometheusMetricsPort", "int(0:65535)", "9091", Used("On which port")),
    felix("PrometheusProcessMetricsEnabled", "bool", "true", Used("Whether metrics of the process are among them")),
    felix(
        "PrometheusWireGuardMetricsEnabled",
        "bool",
        "true",
        Used("Whether metrics of WireGuard's devices are among them, where WireGuard is enabled"),
    ),
    felix("RemoveExternalRoutes", "bool", "true", Used("Whether others' routes on workloads' interfaces are removed")),
    felix("ReportingIntervalSecs", "seconds", "30", Used("How often the status of this process is written to etcd")),
    felix("ReportingTTLSecs", "seconds", "90", Used("How long that status lasts")),
    felix("RequireMTUFile", "bool", "false", Used("Not ready while the MTU of workloads cannot be written")),
    felix(
        "RouteRefreshInterval",
        "seconds",
        "90",
        Used("How often routes, ARP entries and sysctls are compared with the kernel"),
    ),
    felix(
        "RouteSource",
        "oneof(WorkloadIPs,CalicoIPAM)",
        "CalicoIPAM",
        Used("Whether routes come from IPAM's blocks or from workloads"),
    ),
    felix("RouteSyncDisabled", "bool", "false", Used("Whether routes are left alone")),
    felix("RouteTableRange", "route-table-range", "", Used("The same as RouteTableRanges, unless that is set")),
    felix(
        "RouteTableRanges",
        "route-table-ranges",
        "",
        Used("The tables of routes that may be taken, 1-250 if not set: WireGuard has the first"),
    ),
    felix(
        "ServiceLoopPrevention",
        "oneof(Drop,Reject,Disabled)",
        "Drop",
        Used("What becomes of traffic to service addresses that no service has"),
    ),
    felix("SidecarAccelerationEnabled", "bool", "false", NotUsed(SOCKMAP)),
    felix("TyphaAddr", "authority", "", Connection("The server of `typha:`")),
    felix("TyphaCAFile", "file(must-exist)", "", Used("For `typha:`, `fanout:` and Goldmane")),
    felix("TyphaCertFile", "file(must-exist)", "", Used("For `typha:`, `fanout:` and Goldmane")),
    felix("TyphaCN", "string", "", Connection("The name in the server's certificate")),
    felix("TyphaK8sNamespace", "string", "kube-system", Connection("The namespace of the Service of `typha:`")),
    felix("TyphaK8sServiceName", "string", "", Connection("The Service whose endpoints are the servers of `typha:`")),
    felix("TyphaKeyFile", "file(must-exist)", "", Used("For `typha:`, `fanout:` and Goldmane")),
    felix("TyphaReadTimeout", "seconds", "30", Connection("For how long a server of `typha:` may be silent")),
    felix("TyphaURISAN", "string", "", Connection("The URI in the server's certificate")),
    felix("TyphaWriteTimeout", "seconds", "10", Connection("For how long a server of `typha:` may take nothing")),
    felix("UsageReportingEnabled", "bool", "true", NotUsed(USAGE)),
    felix("UsageReportingInitialDelaySecs", "seconds", "300", NotUsed(USAGE)),
    felix("UsageReportingIntervalSecs", "seconds", "86400", NotUsed(USAGE)),
    felix("UseInternalDataplaneDriver", "bool", "true", NotUsed(FLAGS)),
    felix("Variant", "string", "Calico", Description),
    felix("VXLANEnabled", "*bool", "", Used("Whether there is VXLAN over IPv4, whatever pools ask for")),
    felix("VXLANMTU", "int", "0", Used("The MTU of tunnels, and so of workloads: VXLAN, IPv4")),
    felix("VXLANMTUV6", "int", "0", Used("The MTU of tunnels, and so of workloads: VXLAN, IPv6")),
    felix("VXLANPort", "int", "4789", Used("The port of VXLAN tunnels; workloads must not send to it")),
    felix("VXLANTunnelMACAddr", "string", "", OfNodes("The Ethernet address of the node's VXLAN tunnel, IPv4")),
    felix("VXLANTunnelMACAddrV6", "string", "", OfNodes("The Ethernet address of the node's VXLAN tunnel, IPv6")),
    felix("VXLANVNI", "int", "4096", Used("The virtual network of VXLAN tunnels")),
    felix("WindowsManageFirewallRules", "oneof(Enabled,Disabled)", "Disabled", NotUsed(WINDOWS)),
    felix("WireguardEnabled", "bool", "false", Used("Whether packets to other nodes are encrypted, IPv4")),
    felix("WireguardEnabledV6", "bool", "false", Used("Whether packets to other nodes are encrypted, IPv6")),
    felix(
        "WireguardHostEncryptionEnabled",
        "bool",
        "false",
        Used("Whether WireGuard encrypts what hosts themselves send"),
    ),
    felix("WireguardInterfaceName", "iface-param", "wireguard.cali", Used("The device of WireGuard, IPv4")),
    felix("WireguardInterfaceNameV6", "iface-param", "wg-v6.cali", Used("The device of WireGuard, IPv6")),
    felix("WireguardListeningPort", "int", "51820", Used("The port of WireGuard on all nodes, IPv4")),
    felix("WireguardListeningPortV6", "int", "51821", Used("The port of WireGuard on all nodes, IPv6")),
    felix("WireguardMTU", "int", "0", Used("The MTU of tunnels, and so of workloads: WireGuard, IPv4")),
    felix("WireguardMTUV6", "int", "0", Used("The MTU of tunnels, and so of workloads: WireGuard, IPv6")),
    felix(
        "WireguardPersistentKeepAlive",
        "seconds",
        "0",
        Used("How often peers of WireGuard are sent something although there is nothing to say"),
    ),
    felix(
        "WireguardRoutingRulePriority",
        "int",
        "99",
        Used("The priority of the routing rule that leads to WireGuard's routes"),
    ),
    felix(
        "WireguardThreadingEnabled",
        "bool",
        "false",
        Used("Whether what WireGuard receives is handled by threads of its own"),
    ),
    felix(
        "WorkloadSourceSpoofing",
        "oneof(Disabled,Any)",
        "Disabled",
        Used("Whether workloads may ask to send from foreign addresses"),
    ),
    felix("XDPEnabled", "bool", "true", NotUsed(XDP)),
    felix("XDPRefreshInterval", "seconds", "90", NotUsed(XDP)),
];

#[cfg(test)]
mod tests;
