use std::fmt::Write as _;

use super::Failure;
use super::agent_socket::AskArgs;
use tortie_node::engine::inspect::EngineStatus;
use tortie_node::local_api::Status;

const NOT_READY: u8 = 3;

/// Show the status of the agent of this node.
///
/// Queries the running agent: its version, datastore, problems, last apply and latency. Exits with
/// 0 if it is ready, which means that policy is in the kernel and nothing is held back, and with 3
/// if not.
///
/// Example: tortie status
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    #[command(flatten)]
    ask: AskArgs,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let status: Status = args.ask.ask("Status", &[])?;
    args.ask.print(&status, || text(&status))?;
    if status.ready { Ok(()) } else { Err(Failure::Reported(NOT_READY)) }
}

/// Writing to a string cannot fail, here and below.
fn text(status: &Status) -> String {
    let mut out = String::new();
    let Status { version, pid, node, datastore, dataplane, uptime_seconds, ready, live, components, counters, .. } =
        status;
    let state = match (ready, live) {
        (true, _) => "ready",
        (false, true) => "not ready",
        (false, false) => "not live",
    };
    let _ = writeln!(out, "{node}: {state}");
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(out, "  {name:<12} {value}");
    };
    line("agent", &format!("tortie {version}, process {pid}, up {}", duration(*uptime_seconds)));
    line("datastore", datastore);
    line("dataplane", dataplane);
    for component in components.iter().filter(|component| !component.ready || !component.detail.is_empty()) {
        let how = match (component.live, component.ready) {
            (_, true) => "ready",
            (true, false) => "not ready",
            (false, false) => "not live",
        };
        line(&component.name, &format!("{how}: {}", component.detail));
    }
    let mean = counters
        .event_to_kernel_mean_ms
        .map_or(String::new(), |mean| format!(", {mean:.1} ms to the kernel on average"));
    line("changes", &format!("{} from the datastore{mean}", counters.updates));
    let recent = [
        counters.event_to_kernel_p50_ms.map(|ms| format!("50 % within {ms:.1} ms")),
        counters.event_to_kernel_p90_ms.map(|ms| format!("90 % within {ms:.1} ms")),
        counters.event_to_kernel_p99_ms.map(|ms| format!("99 % within {ms:.1} ms")),
    ];
    let recent: Vec<String> = recent.into_iter().flatten().collect();
    let last = counters.event_to_kernel_last_ms.map(|ms| format!("{ms:.1} ms to the kernel last"));
    let recent = (!recent.is_empty()).then(|| format!("in the last ten minutes {}", recent.join(", ")));
    let latency: Vec<String> = last.into_iter().chain(recent).collect();
    if !latency.is_empty() {
        line("latency", &latency.join("; "));
    }
    let for_kernel = status.engine.as_ref().map(|engine| format!(", {} for the kernel", engine.waiting_for_kernel));
    let for_engine = counters.waiting_for_engine;
    line("queue", &format!("{for_engine} changes wait for the engine{}", for_kernel.unwrap_or_default()));
    if let Some(change) = &status.pending_change {
        let when = match change.state.as_str() {
            "waiting" => format!("is rolled back in {} s unless `tortie confirm` comes", change.seconds_left),
            other => other.to_owned(),
        };
        line("change", &format!("{} by {}: {when}", change.resources.join(", "), change.by));
    }
    match &status.engine {
        Some(engine) => of_engine(&mut line, engine),
        None => line("engine", "busy"),
    }
    out
}

fn of_engine(line: &mut impl FnMut(&str, &str), engine: &EngineStatus) {
    let EngineStatus { workload_endpoints, host_endpoints, policies, ip_sets, .. } = engine;
    line("engine", &format!("{}, session {}", engine.datastore_state, engine.session));
    let by = match engine.enforced_by.as_str() {
        "programs" => ", by eBPF programs".to_owned(),
        "driver" => ", by a driver".to_owned(),
        "" => String::new(),
        chains => format!(", by {chains}"),
    };
    line(
        "enforces",
        &format!(
            "{policies} policies on {workload_endpoints} workload and {host_endpoints} host endpoints, {ip_sets} IP sets{by}"
        ),
    );
    if let Some(apply) = engine.last_apply {
        let complete = if apply.complete { "" } else { ", incomplete" };
        line("last apply", &format!("{:.1} s ago, took {:.1} ms{complete}", apply.seconds_ago, apply.took_ms));
    }
    if let Some(held) = &engine.held_changes {
        line("held back", &format!("since {}: {}", held.since, held.reason()));
        held.objects.iter().for_each(|object| line("", object));
        line("", "`tortie confirm` puts these changes in force, `tortie confirm --status` shows their places");
    }
    if let Some(why) = &engine.datastore_unavailable {
        let time = engine.datastore_unavailable_seconds.map(|time| format!("for {}: ", duration(time)));
        line("unavailable", &format!("{}{why}", time.unwrap_or_default()));
    }
    let problems = [
        ("on hold", engine.on_hold.as_slice()),
        ("input", &engine.input_problems),
        ("ignored", &engine.ignored_objects),
        ("kernel", &engine.dataplane_problems),
    ];
    for (name, problems) in problems {
        problems.iter().for_each(|problem| line(name, problem));
    }
}

fn duration(seconds: u64) -> String {
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7_199 => format!("{} min", seconds / 60),
        7_200..=172_799 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests;
