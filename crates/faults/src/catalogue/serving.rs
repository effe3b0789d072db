//! HTTP clients of the agent must block neither its work nor other clients.

use std::{io::Write, net::TcpStream, time::Duration};

use super::programs::admit;
use crate::{
    Fault,
    stage::{Stage, StageResult, ensure},
};

pub(super) const FAULTS: &[Fault] = &[Fault::new(
    "slow-http",
    "slow and idle clients of health and metrics: liveness is answered within a second",
    slow_clients,
)
.ebpf()];

fn slow_clients(stage: &mut Stage) -> StageResult {
    stage.begin()?;
    let connect = |port: u16| TcpStream::connect_timeout(&([127, 0, 0, 1], port).into(), Duration::from_secs(1));
    let mut clients = Vec::new();
    for port in [9099u16, 9091] {
        for _ in 0..40 {
            let client = stage.lab.node().run(|| connect(port))?;
            // A rejected client is no load.
            clients.extend(client);
        }
    }
    ensure(!clients.is_empty(), || "no client could connect".to_owned())?;
    for number in 0..20 {
        for client in clients.iter_mut().step_by(2) {
            // The agent may close the connection.
            let _ = client.write_all(&b"GET /liveness HTTP/1.1"[number..=number]);
        }
        ensure(stage.is_live(), || format!("no answer within a second (attempt {number})"))?;
        stage.watch(Duration::from_millis(100))?;
    }
    admit(stage, true)?;
    ensure(stage.is_live(), || "no answer within a second".to_owned())
}
