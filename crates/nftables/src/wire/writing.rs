//! Transactions as messages.

use std::time::Duration;

use tortie_net::InterfaceName;
use tortie_netfilter::{MapKey, MapKind, Member};

use super::{
    ANONYMOUS, ARP_OUTPUT, CHAIN_HOOK, CHAIN_NAME, CHAIN_TABLE, CHAIN_TYPE, CONSTANT, DATA_VALUE, DELCHAIN,
    DELFLOWTABLE, DELRULE, DELSET, DELSETELEM, DELTABLE, DEVICE_NAME, ELEMENT_DATA, ELEMENT_FLAGS, ELEMENT_KEY,
    ELEMENTS_LIST, ELEMENTS_SET, ELEMENTS_SET_ID, ELEMENTS_TABLE, FLOW_HOOK_DEVICES, FLOW_HOOK_NUMBER,
    FLOW_HOOK_PRIORITY, FLOW_TABLE_HOOK, FLOW_TABLE_NAME, FLOW_TABLE_TABLE, HEADER_LEN, HOOK_NUMBER, HOOK_PRIORITY,
    HOST_ORDER, INGRESS, INTERVAL, INTERVAL_END, LIST_ELEM, MAP, NEWCHAIN, NEWFLOWTABLE, NEWRULE, NEWSET, NEWSETELEM,
    NEWTABLE, RULE_CHAIN, RULE_EXPRESSIONS, RULE_HANDLE, RULE_TABLE, RULE_USERDATA, SET_DATA_LEN, SET_DATA_TYPE,
    SET_DESC, SET_DESC_SIZE, SET_FLAGS, SET_ID, SET_KEY_LEN, SET_KEY_TYPE, SET_NAME, SET_TABLE, SET_TIMEOUT,
    SET_USERDATA, TABLE_NAME, USERDATA_COMMENT, VERDICT_LEN, family_number, map_shape, shape, value_type,
};
use crate::attribute::Writer;
use crate::expression::{
    ANONYMOUS_SET, Expression, RuleVerdict, SetReference, encode as encode_expressions, write_verdict,
};
use crate::names::LayeredName;
use crate::set::{BUCKET_LIFETIME, BUCKETS, SetKind, element, map_key_bytes};
use crate::transaction::{BaseChain, Command, FLOW_TABLE, Hook, ProgramRule, TableId, Transaction};

const NLM_F_REPLACE: u16 = 0x100;
const NLM_F_CREATE: u16 = 0x400;
const NLM_F_APPEND: u16 = 0x800;

/// The length of a list of elements is a number of two bytes.
const MAX_ELEMENTS_LEN: usize = 60_000;
/// The interfaces in one message are fewer than `NFT_NETDEVICE_MAX`.
const MAX_DEVICES: usize = 255;
/// `NFT_RULE_MAXEXPRS`.
const MAX_EXPRESSIONS: usize = 128;

/// A message of a batch; `NLM_F_REQUEST` is not among its flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its type.
    pub kind: u16,
    /// Its flags, `NLM_F_*`.
    pub flags: u16,
    /// Payload behind the netlink header.
    pub payload: Vec<u8>,
    /// The place of the [`Command`] that it belongs to.
    pub command: usize,
}

/// The messages between the beginning and the end of a batch.
#[must_use]
pub fn encode(transaction: &Transaction) -> Vec<Message> {
    let mut encoder = Encoder { table: transaction.table, command: 0, out: Vec::new(), sets: 0 };
    for (index, command) in transaction.commands.iter().enumerate() {
        encoder.command = index;
        encoder.command(command);
    }
    encoder.out
}

struct Encoder {
    table: TableId,
    command: usize,
    out: Vec<Message>,
    /// Number of anonymous sets so far.
    sets: u32,
}

impl Encoder {
    fn message(&mut self, kind: u16, flags: u16, write: impl FnOnce(&mut Writer)) {
        let header: [u8; HEADER_LEN] = [family_number(self.table), 0, 0, 0];
        let mut writer = Writer::with_header(&header);
        write(&mut writer);
        self.out.push(Message { kind, flags, payload: writer.finish(), command: self.command });
    }

    fn command(&mut self, command: &Command) {
        let table = self.table.name;
        match command {
            Command::AddTable => self.message(NEWTABLE, NLM_F_CREATE, |out| out.text(TABLE_NAME, table)),
            Command::DeleteTable => self.message(DELTABLE, 0, |out| out.text(TABLE_NAME, table)),
            Command::AddChain { chain, base } => self.add_chain(chain, base.as_ref()),
            Command::FlushChain { chain } => self.delete_rules(chain, None),
            Command::DeleteChain { chain } => self.message(DELCHAIN, 0, |out| {
                out.text(CHAIN_TABLE, table);
                out.text(CHAIN_NAME, chain.as_str());
            }),
            Command::AddRule { chain, rule } => self.rule(chain, rule, None),
            Command::ReplaceRule { chain, handle, rule } => self.rule(chain, rule, Some(*handle)),
            Command::DeleteRule { chain, handle } => self.delete_rules(chain, Some(*handle)),
            Command::AddMap { map, kind } => self.add_map(map, *kind),
            Command::FlushMap { map } => self.message(DELSETELEM, 0, |out| {
                out.text(ELEMENTS_TABLE, table);
                out.text(ELEMENTS_SET, map.as_str());
            }),
            Command::DeleteMap { map } => self.delete_set(map.as_str()),
            Command::AddMapElements { map, elements } => self.map_elements(NEWSETELEM, NLM_F_CREATE, map, elements),
            Command::DeleteMapElements { map, elements } => self.map_elements(DELSETELEM, 0, map, elements),
            Command::AddSet { set, kind } => self.add_set(set.as_str(), *kind),
            Command::AddFlowTable { devices } => self.flow_table(NEWFLOWTABLE, NLM_F_CREATE, devices),
            Command::DeleteFlowDevices { devices } => self.flow_table(DELFLOWTABLE, 0, devices),
            Command::DeleteFlowTable { name } => self.message(DELFLOWTABLE, 0, |out| {
                out.text(FLOW_TABLE_TABLE, table);
                out.text(FLOW_TABLE_NAME, name);
            }),
            Command::DeleteSet { set } => self.delete_set(set),
            Command::AddElements { set, kind, elements } => {
                self.set_elements((NEWSETELEM, NLM_F_CREATE), set.as_str(), *kind, elements);
            }
            Command::DeleteElements { set, kind, elements } => {
                self.set_elements((DELSETELEM, 0), set.as_str(), *kind, elements);
            }
        }
    }

    fn add_chain(&mut self, chain: &LayeredName, base: Option<&BaseChain>) {
        let TableId { name: table, is_arp, .. } = self.table;
        self.message(NEWCHAIN, NLM_F_CREATE, |out| {
            out.text(CHAIN_TABLE, table);
            out.text(CHAIN_NAME, chain.as_str());
            if let Some(base) = base {
                write_base(base, is_arp, out);
            }
        });
    }

    /// Deletes one rule of a chain, or all.
    fn delete_rules(&mut self, chain: &LayeredName, handle: Option<u64>) {
        let table = self.table.name;
        self.message(DELRULE, 0, |out| {
            out.text(RULE_TABLE, table);
            out.text(RULE_CHAIN, chain.as_str());
            if let Some(handle) = handle {
                out.u64(RULE_HANDLE, handle);
            }
        });
    }

    fn add_map(&mut self, map: &LayeredName, kind: MapKind) {
        let TableId { name: table, family, .. } = self.table;
        let (key_type, key_len) = map_shape(kind, family);
        self.message(NEWSET, NLM_F_CREATE, |out| {
            out.text(SET_TABLE, table);
            out.text(SET_NAME, map.as_str());
            out.u32(SET_FLAGS, MAP);
            out.u32(SET_KEY_TYPE, key_type);
            out.u32(SET_KEY_LEN, key_len);
            out.u32(SET_DATA_TYPE, value_type::VERDICT);
            out.u32(SET_DATA_LEN, VERDICT_LEN);
            out.u32(SET_ID, 0);
            if matches!(kind, MapKind::Interface | MapKind::Mark) {
                out.bytes(SET_USERDATA, &HOST_ORDER);
            }
        });
    }

    fn add_set(&mut self, set: &str, kind: SetKind) {
        let TableId { name: table, family, .. } = self.table;
        let (key_type, key_len, flags) = shape(kind, family);
        self.message(NEWSET, NLM_F_CREATE, |out| {
            out.text(SET_TABLE, table);
            out.text(SET_NAME, set);
            out.u32(SET_FLAGS, flags);
            out.u32(SET_KEY_TYPE, key_type);
            out.u32(SET_KEY_LEN, key_len);
            out.u32(SET_ID, 0);
            if kind == SetKind::Buckets {
                out.nested(SET_DESC, |out| out.u32(SET_DESC_SIZE, BUCKETS));
                out.u64(SET_TIMEOUT, millis(BUCKET_LIFETIME));
            }
        });
    }

    /// Writes as many messages as necessary.
    fn flow_table(&mut self, kind: u16, flags: u16, devices: &[InterfaceName]) {
        let (first, rest) = devices.split_at(devices.len().min(MAX_DEVICES));
        self.flow_devices(kind, flags, first);
        rest.chunks(MAX_DEVICES).for_each(|devices| self.flow_devices(kind, flags, devices));
    }

    fn flow_devices(&mut self, kind: u16, flags: u16, devices: &[InterfaceName]) {
        let table = self.table.name;
        self.message(kind, flags, |out| {
            out.text(FLOW_TABLE_TABLE, table);
            out.text(FLOW_TABLE_NAME, FLOW_TABLE);
            out.nested(FLOW_TABLE_HOOK, |out| {
                out.u32(FLOW_HOOK_NUMBER, INGRESS);
                // As `priority filter`.
                out.u32(FLOW_HOOK_PRIORITY, 0);
                if !devices.is_empty() {
                    out.nested(FLOW_HOOK_DEVICES, |out| {
                        devices.iter().for_each(|device| out.text(DEVICE_NAME, device.as_str()));
                    });
                }
            });
        });
    }

    fn delete_set(&mut self, name: &str) {
        let table = self.table.name;
        self.message(DELSET, 0, |out| {
            out.text(SET_TABLE, table);
            out.text(SET_NAME, name);
        });
    }

    #[expect(clippy::expect_used, reason = "rendering cuts comments")]
    fn rule(&mut self, chain: &LayeredName, rule: &ProgramRule, replaced: Option<u64>) {
        let first = self.sets;
        for expression in &rule.expressions {
            if let Expression::Lookup { set: SetReference::Ports(ranges), .. } = expression {
                self.ports(ranges);
            }
        }
        let table = self.table.name;
        let flags = if replaced.is_some() { NLM_F_REPLACE } else { NLM_F_CREATE | NLM_F_APPEND };
        self.message(NEWRULE, flags, |out| {
            out.text(RULE_TABLE, table);
            out.text(RULE_CHAIN, chain.as_str());
            if let Some(handle) = replaced {
                out.u64(RULE_HANDLE, handle);
            }
            let mut next = first;
            let ports = || {
                next += 1;
                next
            };
            // The kernel refuses a rule with one more than the limit, and the table isolates it.
            let expressions = rule.expressions.get(..=MAX_EXPRESSIONS).unwrap_or(&rule.expressions);
            out.nested(RULE_EXPRESSIONS, |out| encode_expressions(expressions, ports, out));
            let comment = rule.shown.comment.as_bytes();
            // A text and the byte that ends it; longer ones were cut when the rule was rendered.
            let len = u8::try_from(comment.len() + 1).expect("a comment has 128 bytes at most");
            out.bytes(RULE_USERDATA, &[&[USERDATA_COMMENT, len], comment, &[0]].concat());
        });
    }

    /// Writes a set of ports for the next rule.
    #[expect(clippy::expect_used, reason = "there are 2^16 ports")]
    fn ports(&mut self, ranges: &[(u16, u16)]) {
        self.sets += 1;
        let (table, id) = (self.table.name, self.sets);
        let has_ranges = ranges.iter().any(|(first, last)| first != last);
        let flags = ANONYMOUS | CONSTANT | if has_ranges { INTERVAL } else { 0 };
        let elements = port_elements(ranges, has_ranges);
        self.message(NEWSET, NLM_F_CREATE, |out| {
            out.text(SET_TABLE, table);
            out.text(SET_NAME, ANONYMOUS_SET);
            out.u32(SET_FLAGS, flags);
            out.u32(SET_KEY_TYPE, value_type::INET_SERVICE);
            out.u32(SET_KEY_LEN, 2);
            out.u32(SET_ID, id);
            let size = u32::try_from(elements.len()).expect("there are 2^16 ports");
            out.nested(SET_DESC, |out| out.u32(SET_DESC_SIZE, size));
        });
        let set = (ANONYMOUS_SET, Some(id));
        self.elements((NEWSETELEM, NLM_F_CREATE), set, &elements, |(port, is_end), out| {
            write_key(&port.to_be_bytes(), *is_end, out);
        });
    }

    fn map_elements(&mut self, kind: u16, flags: u16, map: &LayeredName, elements: &[(MapKey, RuleVerdict)]) {
        let write = |(key, verdict): &(MapKey, RuleVerdict), out: &mut Writer| {
            out.nested(LIST_ELEM, |out| {
                out.nested(ELEMENT_KEY, |out| out.bytes(DATA_VALUE, &map_key_bytes(*key)));
                out.nested(ELEMENT_DATA, |out| write_verdict(verdict, out));
            });
        };
        self.elements((kind, flags), (map.as_str(), None), elements, write);
    }

    fn set_elements(&mut self, message: (u16, u16), set: &str, kind: SetKind, elements: &[Member]) {
        self.elements(message, (set, None), elements, |member, out| {
            let (key, end) = element(kind, member);
            write_key(key.as_bytes(), false, out);
            if let Some(end) = end {
                write_key(end.as_bytes(), true, out);
            }
        });
    }

    /// Writes as many messages as necessary, for a set by its name and, if this transaction creates
    /// it for a rule, its id.
    fn elements<T>(
        &mut self,
        (kind, flags): (u16, u16),
        (set, id): (&str, Option<u32>),
        elements: &[T],
        write: impl Fn(&T, &mut Writer),
    ) {
        let table = self.table.name;
        let mut rest = elements;
        while !rest.is_empty() {
            let mut written = 0;
            self.message(kind, flags, |out| {
                out.text(ELEMENTS_TABLE, table);
                out.text(ELEMENTS_SET, set);
                if let Some(id) = id {
                    out.u32(ELEMENTS_SET_ID, id);
                }
                out.nested(ELEMENTS_LIST, |out| {
                    for element in rest {
                        if out.len() > MAX_ELEMENTS_LEN {
                            break;
                        }
                        write(element, out);
                        written += 1;
                    }
                });
            });
            rest = rest.split_at(written).1;
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn write_key(key: &[u8], is_end: bool, out: &mut Writer) {
    out.nested(LIST_ELEM, |out| {
        out.nested(ELEMENT_KEY, |out| out.bytes(DATA_VALUE, key));
        if is_end {
            out.u32(ELEMENT_FLAGS, INTERVAL_END);
        }
    });
}

/// Returns the elements of a set of ports: the start of each range, and the first port behind it.
fn port_elements(ranges: &[(u16, u16)], has_ranges: bool) -> Vec<(u16, bool)> {
    if !has_ranges {
        return ranges.iter().map(|(port, _)| (*port, false)).collect();
    }
    let ends = |(first, last): &(u16, u16)| {
        let end = last.checked_add(1).map(|end| (end, true));
        std::iter::once((*first, false)).chain(end)
    };
    ranges.iter().flat_map(ends).collect()
}

fn write_base(base: &BaseChain, is_arp: bool, out: &mut Writer) {
    let hook = match base.hook {
        Hook::Output if is_arp => ARP_OUTPUT,
        Hook::Prerouting => 0,
        Hook::Input => 1,
        Hook::Forward => 2,
        Hook::Output => 3,
        Hook::Postrouting => 4,
    };
    out.nested(CHAIN_HOOK, |out| {
        out.u32(HOOK_NUMBER, hook);
        out.bytes(HOOK_PRIORITY, &base.priority.to_be_bytes());
    });
    out.text(CHAIN_TYPE, base.kind.as_str());
}
