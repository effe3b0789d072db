//! Numbers of `linux/netfilter/nf_tables.h`.

pub(super) const LIST_ELEM: u16 = 1;
pub(super) const EXPR_NAME: u16 = 1;
pub(super) const EXPR_DATA: u16 = 2;
pub(super) const DATA_VALUE: u16 = 1;
pub(super) const DATA_VERDICT: u16 = 2;
pub(super) const VERDICT_CODE: u16 = 1;
pub(super) const VERDICT_CHAIN: u16 = 2;

pub(super) const CODE_DROP: i32 = 0;
pub(super) const CODE_ACCEPT: i32 = 1;
pub(super) const CODE_CONTINUE: i32 = -1;
pub(super) const CODE_JUMP: i32 = -3;
pub(super) const CODE_GOTO: i32 = -4;
pub(super) const CODE_RETURN: i32 = -5;

pub(super) mod meta {
    pub(in super::super) const DREG: u16 = 1;
    pub(in super::super) const KEY: u16 = 2;
    pub(in super::super) const SREG: u16 = 3;
    pub(in super::super) const MARK: u32 = 3;
    pub(in super::super) const IIFNAME: u32 = 6;
    pub(in super::super) const OIFNAME: u32 = 7;
    pub(in super::super) const L4PROTO: u32 = 16;
}

pub(super) mod ct {
    pub(in super::super) const DREG: u16 = 1;
    pub(in super::super) const KEY: u16 = 2;
    pub(in super::super) const SREG: u16 = 4;
    pub(in super::super) const STATE: u32 = 0;
    pub(in super::super) const DIRECTION: u32 = 1;
    pub(in super::super) const STATUS: u32 = 2;
    pub(in super::super) const MARK: u32 = 3;
}

pub(super) mod payload {
    pub(in super::super) const DREG: u16 = 1;
    pub(in super::super) const BASE: u16 = 2;
    pub(in super::super) const OFFSET: u16 = 3;
    pub(in super::super) const LEN: u16 = 4;
    pub(in super::super) const SREG: u16 = 5;
    pub(in super::super) const CSUM_TYPE: u16 = 6;
    pub(in super::super) const CSUM_OFFSET: u16 = 7;
    pub(in super::super) const CSUM_FLAGS: u16 = 8;
    pub(in super::super) const NETWORK: u32 = 1;
    pub(in super::super) const TRANSPORT: u32 = 2;
    /// `NFT_PAYLOAD_CSUM_INET`.
    pub(in super::super) const CSUM_INET: u32 = 1;
}

pub(super) mod cmp {
    pub(in super::super) const SREG: u16 = 1;
    pub(in super::super) const OP: u16 = 2;
    pub(in super::super) const DATA: u16 = 3;
}

pub(super) mod range {
    pub(in super::super) const SREG: u16 = 1;
    pub(in super::super) const OP: u16 = 2;
    pub(in super::super) const FROM: u16 = 3;
    pub(in super::super) const TO: u16 = 4;
    pub(in super::super) const NEQ: u32 = 1;
}

pub(super) mod bitwise {
    pub(in super::super) const SREG: u16 = 1;
    pub(in super::super) const DREG: u16 = 2;
    pub(in super::super) const LEN: u16 = 3;
    pub(in super::super) const MASK: u16 = 4;
    pub(in super::super) const XOR: u16 = 5;
    pub(in super::super) const OP: u16 = 6;
}

pub(super) mod lookup {
    pub(in super::super) const SET: u16 = 1;
    pub(in super::super) const SREG: u16 = 2;
    pub(in super::super) const DREG: u16 = 3;
    pub(in super::super) const SET_ID: u16 = 4;
    pub(in super::super) const FLAGS: u16 = 5;
    pub(in super::super) const INVERTED: u32 = 1;
}

/// `NFTA_DYNSET_*`.
pub(super) mod dynset {
    pub(in super::super) const SET: u16 = 1;
    pub(in super::super) const OP: u16 = 3;
    pub(in super::super) const SREG: u16 = 4;
    pub(in super::super) const EXPR: u16 = 7;
    /// Adds a missing element, and renews the lifetime of others.
    pub(in super::super) const UPDATE: u32 = 1;
}

pub(super) mod fib {
    pub(in super::super) const DREG: u16 = 1;
    pub(in super::super) const RESULT: u16 = 2;
    pub(in super::super) const FLAGS: u16 = 3;
    pub(in super::super) const OIF: u32 = 1;
    pub(in super::super) const ADDRTYPE: u32 = 3;
}

pub(super) mod limit {
    pub(in super::super) const RATE: u16 = 1;
    pub(in super::super) const UNIT: u16 = 2;
    pub(in super::super) const BURST: u16 = 3;
    pub(in super::super) const TYPE: u16 = 4;
    pub(in super::super) const FLAGS: u16 = 5;
    pub(in super::super) const INVERTED: u32 = 1;
}

pub(super) mod immediate {
    pub(in super::super) const DREG: u16 = 1;
    pub(in super::super) const DATA: u16 = 2;
}

pub(super) mod log {
    pub(in super::super) const GROUP: u16 = 1;
    pub(in super::super) const PREFIX: u16 = 2;
    pub(in super::super) const SNAPLEN: u16 = 3;
    pub(in super::super) const LEVEL: u16 = 5;
}

pub(super) mod nat {
    pub(in super::super) const TYPE: u16 = 1;
    pub(in super::super) const FAMILY: u16 = 2;
    pub(in super::super) const REG_ADDR_MIN: u16 = 3;
    pub(in super::super) const REG_PROTO_MIN: u16 = 5;
    pub(in super::super) const REG_PROTO_MAX: u16 = 6;
    pub(in super::super) const FLAGS: u16 = 7;
    pub(in super::super) const SOURCE: u32 = 0;
    /// `NF_NAT_RANGE_PROTO_SPECIFIED`.
    pub(in super::super) const PORTS: u32 = 2;
    /// `NF_NAT_RANGE_PROTO_RANDOM_FULLY`.
    pub(in super::super) const FULLY_RANDOM: u32 = 16;
}

pub(super) mod masq {
    pub(in super::super) const FLAGS: u16 = 1;
    pub(in super::super) const REG_PROTO_MIN: u16 = 2;
    pub(in super::super) const REG_PROTO_MAX: u16 = 3;
}

pub(super) mod reject {
    pub(in super::super) const TYPE: u16 = 1;
    pub(in super::super) const ICMP_CODE: u16 = 2;
    pub(in super::super) const ICMP: u32 = 0;
    pub(in super::super) const TCP_RESET: u32 = 1;
}

pub(super) mod connlimit {
    pub(in super::super) const COUNT: u16 = 1;
    pub(in super::super) const FLAGS: u16 = 2;
    pub(in super::super) const INVERTED: u32 = 1;
}

pub(super) mod counter {
    pub(in super::super) const BYTES: u16 = 1;
    pub(in super::super) const PACKETS: u16 = 2;
}

pub(super) mod offload {
    pub(in super::super) const TABLE: u16 = 1;
}

pub(super) mod queue {
    pub(in super::super) const NUM: u16 = 1;
    pub(in super::super) const TOTAL: u16 = 2;
    pub(in super::super) const FLAGS: u16 = 3;
    pub(in super::super) const BYPASS: u16 = 1;
}

/// `linux/netfilter/nf_tables_compat.h`, `linux/netfilter/xt_NFQUEUE.h`.
pub(super) mod target {
    pub(in super::super) const NAME: u16 = 1;
    pub(in super::super) const REVISION: u16 = 2;
    pub(in super::super) const INFO: u16 = 3;
    pub(in super::super) const NFQUEUE: &str = "NFQUEUE";
    /// The latest; `struct xt_NFQ_info_v3`, with padding.
    pub(in super::super) const NFQUEUE_REVISION: u32 = 3;
    pub(in super::super) const NFQUEUE_LEN: usize = 8;
}
