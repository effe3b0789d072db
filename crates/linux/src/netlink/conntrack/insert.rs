//! Entries without connections, for tests.

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use tortie_model::Family;

use super::message::*;
use super::*;
use crate::netlink::wire::family_number;

impl Conntrack {
    /// Adds entries to connection tracking, each for an hour.
    ///
    /// # Errors
    /// If the kernel refuses one.
    pub fn insert(&mut self, connections: &[Connection]) -> Result<(), NetlinkError> {
        const CTA_TIMEOUT: u16 = 7;
        for some in connections.chunks(256) {
            let payload = |connection: &Connection| {
                let mut payload = header(family_number(Family::of(connection.original.source))).to_vec();
                put_tuple(&mut payload, CTA_TUPLE_ORIG, &connection.original);
                put_tuple(&mut payload, CTA_TUPLE_REPLY, &connection.reply);
                put(&mut payload, CTA_TIMEOUT, &3600_u32.to_be_bytes());
                if connection.zone != 0 {
                    put(&mut payload, CTA_ZONE, &connection.zone.to_be_bytes());
                }
                payload
            };
            let payloads: Vec<Vec<u8>> = some.iter().map(payload).collect();
            let flags = NLM_F_CREATE | NLM_F_EXCL;
            self.socket
                .batch_raw(IPCTNL_MSG_CT_NEW, flags, &payloads, "tracked connection")?
                .into_iter()
                .collect::<Result<Vec<()>, _>>()?;
        }
        Ok(())
    }
}
