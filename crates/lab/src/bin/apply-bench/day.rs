//! The measured parts of a node's day: edits, pods, bursts, interfaces of others.

use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use crate::cluster::{Cluster, interface_of};
use crate::node::Node;
use crate::table::Column;
use crate::{Args, Result};

/// Time in which the effects of a change have ended.
const SETTLED: Duration = Duration::from_secs(1);

/// Edits the port of the last policy repeatedly. The edits whose processor time is measured are
/// others, as reading metrics takes time as well.
pub(crate) fn edits(node: &mut Node, args: &Args, cluster: Cluster, column: &mut Column) -> Result<()> {
    if args.edits == 0 {
        return Ok(());
    }
    let index = args.policies.saturating_sub(1);
    let mut times = Vec::new();
    for edit in 1..=args.edits {
        // A pause, so that consecutive changes do not affect each other.
        sleep(Duration::from_millis(300));
        let before = node.progress()?;
        let begin = Instant::now();
        node.store.put(&cluster.policy(index, cluster.port_of(edit)))?;
        node.until_applied(before)?;
        times.push(begin.elapsed());
    }
    column.add("edit of a policy, median, ms", 0, milliseconds(at(&times, 50)));
    column.add("edit of a policy, worst, ms", 0, milliseconds(at(&times, 100)));
    sleep(SETTLED);
    let before = node.processor_time()?;
    for edit in 0..args.edits {
        node.store.put(&cluster.policy(index, cluster.port_of(edit)))?;
        sleep(Duration::from_millis(500));
    }
    column.add("edit of a policy, processor time, s", 3, (node.processor_time()? - before) / count(args.edits));
    // The next part expects the port of the last edit.
    let before = node.progress()?;
    node.store.put(&cluster.policy(index, cluster.port_of(args.edits)))?;
    node.until_applied(before)
}

/// Adds pods one at a time: their object, then their interface.
pub(crate) fn pods(node: &mut Node, args: &Args, cluster: Cluster, column: &mut Column) -> Result<()> {
    if args.added == 0 {
        return Ok(());
    }
    let before = node.processor_time()?;
    let times = add_pods(node, cluster, args.pods, args.added, Duration::from_millis(500))?;
    sleep(SETTLED);
    column.add("pod added, median, ms", 0, milliseconds(at(&times, 50)));
    column.add("pod added, worst, ms", 0, milliseconds(at(&times, 100)));
    column.add("pod added, processor time, s", 3, (node.processor_time()? - before) / count(args.added));
    Ok(())
}

/// Adds many pods in a short time, and removes them.
pub(crate) fn burst(node: &mut Node, args: &Args, cluster: Cluster, column: &mut Column) -> Result<()> {
    if args.burst == 0 {
        return Ok(());
    }
    let first = args.pods + args.added;
    let pause = Duration::from_secs(args.burst_seconds) / u32::try_from(args.burst)?;
    let before = node.processor_time()?;
    let times = add_pods(node, cluster, first, args.burst, pause)?;
    sleep(SETTLED);
    column.add("burst of pods, median, ms", 0, milliseconds(at(&times, 50)));
    column.add("burst of pods, 99 %, ms", 0, milliseconds(at(&times, 99)));
    column.add("burst of pods, worst, ms", 0, milliseconds(at(&times, 100)));
    column.add("burst of pods, processor time, s", 2, node.processor_time()? - before);

    let before = node.processor_time()?;
    let mut links = node.links()?;
    let begin = Instant::now();
    for (removed, number) in (first..first + args.burst).enumerate() {
        until(begin + pause * u32::try_from(removed)?);
        node.store.remove(&cluster.another_pod(number))?;
        links.remove_pod(number)?;
    }
    links.finish()?;
    let end = Instant::now();
    let pods = first..first + args.burst;
    node.until("pods are gone", Duration::from_millis(5), |node| {
        Ok(pods.clone().all(|pod| node.in_force_since(pod).is_none()))
    })?;
    column.add("drain, from the last removal to its end, ms", 0, milliseconds(end.elapsed()));
    sleep(SETTLED);
    column.add("drain, processor time, s", 2, node.processor_time()? - before);
    Ok(())
}

/// Adds pods at this interval. Returns for each the time from its interface until its policy is in
/// force.
fn add_pods(node: &mut Node, cluster: Cluster, first: usize, count: usize, pause: Duration) -> Result<Vec<Duration>> {
    let mut links = node.links()?;
    let begin = Instant::now();
    let mut interfaces = Vec::with_capacity(count);
    for number in 0..count {
        until(begin + pause * u32::try_from(number)?);
        node.store.put(&cluster.another_pod(first + number))?;
        interfaces.push(SystemTime::now());
        links.add_pod(first + number)?;
    }
    links.finish()?;
    node.until("pods are in force", Duration::from_millis(20), |node| {
        Ok((first..first + count).all(|pod| node.in_force_since(pod).is_some()))
    })?;
    let since = |(number, interface): (usize, &SystemTime)| {
        let in_force = node.in_force_since(first + number).ok_or("the status of a pod has disappeared")?;
        Ok(in_force.duration_since(*interface).unwrap_or_default())
    };
    interfaces.iter().enumerate().map(since).collect()
}

/// Measures the processor time while nothing changes.
pub(crate) fn idle(node: &Node, args: &Args, column: &mut Column) -> Result<()> {
    if args.idle == 0 {
        return Ok(());
    }
    let (begin, before) = (Instant::now(), node.processor_time()?);
    sleep(Duration::from_secs(args.idle));
    let used = node.processor_time()? - before;
    column.add("idle, processor time a minute, s", 2, 60.0 * used / begin.elapsed().as_secs_f64());
    Ok(())
}

/// Creates, deletes, renames, and sets up and down interfaces that belong to no workload.
pub(crate) fn churn(node: &Node, args: &Args, column: &mut Column) -> Result<()> {
    if args.churn == 0 {
        return Ok(());
    }
    let mut links = node.links()?;
    (0..args.churn).try_for_each(|number| links.add_other(&format!("other{number}")))?;
    links.finish()?;
    sleep(SETTLED * 3);
    let mut links = node.links()?;
    let (begin, before) = (Instant::now(), node.processor_time()?);
    let mut changes = 0;
    while begin.elapsed() < Duration::from_secs(args.churn_seconds) {
        until(begin + Duration::from_secs(1) * changes / args.churn_rate);
        let name = format!("other{}", (changes as usize / 6) % args.churn);
        match changes % 6 {
            0 => links.run(&format!("link set {name} up"))?,
            1 => links.run(&format!("link set {name} down"))?,
            2 => links.run(&format!("link set {name} name renamed"))?,
            3 => links.run(&format!("link set renamed name {name}"))?,
            4 => links.run(&format!("link del {name}"))?,
            _ => links.add_other(&name)?,
        }
        changes += 1;
    }
    links.finish()?;
    let (used, took) = (node.processor_time()? - before, begin.elapsed().as_secs_f64());
    column.add("churn of other interfaces, share of a core, %", 2, 100.0 * used / took);
    column.add("churn, changes a second", 0, f64::from(changes) / took);
    Ok(())
}

/// Replaces and renames interfaces of pods at once. Afterwards a restart must find nothing to do.
pub(crate) fn replaced_interfaces(node: &mut Node, args: &Args, column: &mut Column) -> Result<()> {
    if args.churn == 0 || args.pods < 4 {
        return Ok(());
    }
    let mut links = node.links()?;
    links.remove_pod(0)?;
    links.add_pod(0)?;
    let [one, two, three] = [1, 2, 3].map(interface_of);
    for names in [&[&one, "away", &one][..], &[&two, "away", "", &three, &two, "", "away", &three]] {
        for pair in names.windows(2).filter(|pair| !pair.contains(&"")) {
            links.run(&format!("link set {} down", pair[0]))?;
            links.run(&format!("link set {} name {}", pair[0], pair[1]))?;
        }
    }
    for name in [&one, &two, &three] {
        links.run(&format!("link set {name} up"))?;
    }
    links.finish()?;
    sleep(SETTLED * 2);
    let kept = interfaces(node)?;
    node.stop()?;
    node.start()?;
    sleep(SETTLED);
    let (writes, fresh) = (node.writes()?, interfaces(node)?);
    let differing = fresh.lines().filter(|line| !kept.lines().any(|other| other == *line));
    let differing: Vec<&str> =
        differing.chain(kept.lines().filter(|line| !fresh.lines().any(|l| l == *line))).collect();
    column.add("differences after interfaces were replaced", 0, writes + count(differing.len()));
    if !node.is_felix() && (writes > 0.0 || !differing.is_empty()) {
        let differing = differing.join("\n");
        return Err(format!("after interfaces were replaced, a restart wrote {writes} times:\n{differing}").into());
    }
    Ok(())
}

/// Returns routes, neighbours and settings of the interfaces of pods.
fn interfaces(node: &Node) -> Result<String> {
    Ok(node.namespace.shell(
        "for version in -4 -6; do ip $version -o route show table all | grep ' cali' | sort; \
         ip $version neighbour show nud permanent | grep ' cali' | sort; done\n\
         cd /proc/sys/net; for name in ipv4/conf/forwarding ipv4/conf/proxy_arp ipv4/conf/rp_filter \
         ipv4/conf/route_localnet ipv4/neigh/proxy_delay ipv6/conf/forwarding ipv6/conf/proxy_ndp \
         ipv6/conf/accept_ra; do grep -H . ${name%/*}/cali*/${name##*/}; done",
    )?)
}

fn until(end: Instant) {
    sleep(end.saturating_duration_since(Instant::now()));
}

fn count(number: usize) -> f64 {
    f64::from(u32::try_from(number).expect("a count of this program"))
}

pub(crate) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// Returns the time that this percentage of all does not exceed.
pub(crate) fn at(times: &[Duration], percent: usize) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted.get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1))).copied().unwrap_or_default()
}
