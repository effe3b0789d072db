//! The layout of the tables changes while they enforce policy.

use std::time::Duration;

use crate::{
    catalogue::programs::admit,
    stage::{Stage, StageError, StageResult, ensure},
    world::BASE,
};

/// Upper bound of the calls of a layout change.
const MOST: usize = 1000;

/// Sets the layout in the configuration instead of the environment, which would take precedence.
fn by_configuration(stage: &mut Stage) -> Result<[&'static str; 2], StageError> {
    let first = stage.environment.remove("FELIX_NFTABLESLAYOUT");
    let layouts = if first.as_deref() == Some("Fast") { ["Fast", "Felix"] } else { ["Felix", "Fast"] };
    stage.world.many_rules = true;
    write(stage, layouts[0])?;
    Ok(layouts)
}

fn write(stage: &mut Stage, layout: &str) -> StageResult {
    stage.write(|world| world.felix = Some(format!("nftablesLayout: {layout}")), &[])
}

/// Reports whether the tables of both families have this layout: with address maps or without.
fn is_laid_out(stage: &Stage, layout: &str) -> Result<bool, StageError> {
    let blocks = stage.nftables()?;
    let with_maps = ["ip ", "ip6 "].map(|family| {
        let is_one = |block: &&String| block.starts_with(family) && block.contains("vmap @filter-cali-pm-");
        blocks.iter().filter(is_one).count()
    });
    Ok(blocks.len() > 20
        && if layout == "Fast" { with_maps.iter().all(|maps| *maps >= 2) } else { with_maps == [0, 0] })
}

/// No wrong verdict is announced: verdicts do not change during the switch.
pub(super) fn switch(stage: &mut Stage) -> StageResult {
    let [first, second] = by_configuration(stage)?;
    stage.begin()?;
    ensure(is_laid_out(stage, first)?, || format!("the layout is not {first} at the beginning"))?;
    for layout in [second, first, second, first] {
        write(stage, layout)?;
        stage.until(&format!("tables are laid out as {layout}"), |stage| is_laid_out(stage, layout))?;
        admit(stage, true)?;
        admit(stage, false)?;
    }
    // Between two runs of the agent.
    for layout in [second, first] {
        stage.stop()?;
        write(stage, layout)?;
        stage.start()?;
        stage.until(&format!("tables are laid out as {layout}"), |stage| is_laid_out(stage, layout))?;
        stage.confirm(&BASE)?;
    }
    Ok(())
}

/// Wherever the agent is killed while it writes the new layout, verdicts follow policy, and the
/// next agent completes it.
pub(super) fn killed_in_switch(stage: &mut Stage) -> StageResult {
    super::kernel::quietly(stage);
    let [first, second] = by_configuration(stage)?;
    stage.begin()?;
    // Most calls only read, so that not each is tried.
    let calls = std::iter::successors(Some(1_usize), |call| Some(call + 1 + call / 12));
    let mut layouts = [second, first].into_iter().cycle();
    for call in calls.take_while(|call| *call < MOST) {
        let Some(layout) = layouts.next() else { break };
        let tracer = stage.inject("sendto,sendmsg", &format!("signal=KILL:when={call}"))?;
        write(stage, layout)?;
        let mut is_over = false;
        stage.until("the agent ends, or the layout is in force", |stage| {
            is_over = is_laid_out(stage, layout)? && stage.is_ready();
            Ok(is_over || stage.check().is_err())
        })?;
        // Calls after the change is in force count as well.
        if is_over {
            let ends = |stage: &mut Stage| Ok(stage.check().is_err());
            is_over = stage.until_within(Duration::from_secs(1), "the agent ends", ends).is_err();
        }
        drop(tracer);
        if is_over {
            return ensure(call > 4, || format!("a change of the layout takes only {} messages", call - 1));
        }
        stage.ended()?;
        stage.start()?;
        stage.until(&format!("tables are laid out as {layout}"), |stage| is_laid_out(stage, layout))?;
        stage.confirm(&BASE)?;
    }
    Err(StageError::Unexpected(format!("a change of the layout takes more than {MOST} messages")))
}
