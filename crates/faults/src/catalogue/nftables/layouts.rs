//! The layout of the tables changes while they enforce policy.

use std::time::Duration;

use crate::{
    catalogue::programs::admit,
    stage::{Done, Stage, Trouble, ensure},
    world::BASE,
};

/// No change of the layout asks for more.
const MOST: usize = 1000;

/// Has the configuration say it, in the place of the environment, which would win.
fn by_configuration(stage: &mut Stage) -> Result<[&'static str; 2], Trouble> {
    let first = stage.environment.remove("FELIX_NFTABLESLAYOUT");
    let layouts = if first.as_deref() == Some("Fast") { ["Fast", "Felix"] } else { ["Felix", "Fast"] };
    stage.world.many_rules = true;
    write(stage, layouts[0])?;
    Ok(layouts)
}

fn write(stage: &mut Stage, layout: &str) -> Done {
    stage.write(|world| world.felix = Some(format!("nftablesLayout: {layout}")), &[])
}

/// Whether the tables of both families are laid out so: there are maps of addresses, or there are none.
fn is_laid_out(stage: &Stage, layout: &str) -> Result<bool, Trouble> {
    let blocks = stage.nftables()?;
    let with_maps = ["ip ", "ip6 "].map(|family| {
        let is_one = |block: &&String| block.starts_with(family) && block.contains("vmap @filter-cali-pm-");
        blocks.iter().filter(is_one).count()
    });
    Ok(blocks.len() > 20
        && if layout == "Fast" { with_maps.iter().all(|maps| *maps >= 2) } else { with_maps == [0, 0] })
}

/// Nothing is announced: no packet may fare otherwise than policy says.
pub(super) fn switch(stage: &mut Stage) -> Done {
    let [first, second] = by_configuration(stage)?;
    stage.begin()?;
    ensure(is_laid_out(stage, first)?, || format!("the layout is not {first} at the beginning"))?;
    for layout in [second, first, second, first] {
        write(stage, layout)?;
        stage.until(&format!("tables are laid out as {layout}"), |stage| is_laid_out(stage, layout))?;
        admit(stage, true)?;
        admit(stage, false)?;
    }
    // Between two runs.
    for layout in [second, first] {
        stage.stop()?;
        write(stage, layout)?;
        stage.start()?;
        stage.until(&format!("tables are laid out as {layout}"), |stage| is_laid_out(stage, layout))?;
        stage.confirm(&BASE)?;
    }
    Ok(())
}

/// Whatever is written of the new layout when the agent ends, packets fare as policy says, and the next agent goes on.
pub(super) fn killed_in_switch(stage: &mut Stage) -> Done {
    super::kernel::quietly(stage);
    let [first, second] = by_configuration(stage)?;
    stage.begin()?;
    // Not each is tried of the many that only read.
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
        // What it does once all is in force counts as well.
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
    Err(Trouble::Unexpected(format!("a change of the layout takes more than {MOST} messages")))
}
