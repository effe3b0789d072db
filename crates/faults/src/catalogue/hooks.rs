//! Other processes insert rules between the agent's rules in a kernel chain, or reorder these (T1).

use std::time::Duration;

use crate::{
    Fault,
    stage::{Stage, StageError, StageResult, ensure},
    world::BASE,
};

pub(super) const FAULTS: &[Fault] = &[
    Fault::new(
        "T1-between-ours",
        "foreign rules between and after the agent's: the agent's are reunited, foreign ones keep their order",
        |stage| between_ours(stage, Mode::Insert),
    ),
    Fault::new("T1-between-ours-append", "as above, with ChainInsertMode Append", |stage| {
        between_ours(stage, Mode::Append)
    }),
    Fault::new(
        "T1-reordered",
        "another process reorders the agent's rules in FORWARD: repaired, foreign ones keep their order",
        |stage| reordered(stage, Mode::Insert),
    ),
    Fault::new("T1-reordered-append", "as above, with ChainInsertMode Append", |stage| reordered(stage, Mode::Append)),
];

/// Checks run every second; a busy machine needs longer to write.
const NEXT_CHECK: Duration = Duration::from_secs(6);

/// `ChainInsertMode`.
#[derive(Debug, Clone, Copy)]
enum Mode {
    /// The agent's first rule precedes foreign rules, its other rules follow them.
    Insert,
    /// All of the agent's rules follow foreign rules.
    Append,
}

/// Comments of foreign rules, which have no effect.
const FOREIGN: [&str; 4] = ["his-1", "his-2", "his-3", "his-4"];

fn begin(stage: &mut Stage, mode: Mode) -> Result<Vec<Forward>, StageError> {
    if let Mode::Append = mode {
        stage.environment.insert("FELIX_CHAININSERTMODE".to_owned(), "Append".to_owned());
    }
    stage.begin()?;
    let forwards: Vec<Forward> =
        ["iptables", "ip6tables"].iter().map(|program| Forward::read(stage, program)).collect::<Result<_, _>>()?;
    for forward in &forwards {
        let ours = forward.ours();
        ensure(ours.len() == 3 && ours[0].contains("-j cali-FORWARD"), || format!("FORWARD has {:?}", forward.rules))?;
    }
    Ok(forwards)
}

fn between_ours(stage: &mut Stage, mode: Mode) -> StageResult {
    for forward in begin(stage, mode)? {
        let ours = forward.ours();
        let rules: Vec<String> =
            ours.iter().zip(FOREIGN.map(foreign_rule)).flat_map(|(our, foreign)| [our.clone(), foreign]).collect();
        let rules = [&rules[..], &[foreign_rule(FOREIGN[3])]].concat();
        // This neither allows nor denies packets wrongly.
        forward.write(stage, &rules)?;
        await_order(stage, &forward, mode)?;
    }
    stage.watch(Duration::from_millis(1500))
}

fn reordered(stage: &mut Stage, mode: Mode) -> StageResult {
    for forward in begin(stage, mode)? {
        let ours = forward.ours();
        let [jump, accept, mark] = [&ours[0], &ours[1], &ours[2]].map(Clone::clone);
        let [one, two, three, four] = FOREIGN.map(foreign_rule);
        // The chain that the first rule jumps to still drops denied packets.
        forward.write(
            stage,
            &[jump.clone(), one.clone(), mark.clone(), two.clone(), three.clone(), accept.clone(), four.clone()],
        )?;
        await_order(stage, &forward, mode)?;
        // In this order, all packets are marked as accepted, and accepted for the mark.
        stage.may_be_open(NEXT_CHECK);
        forward.write(stage, &[one, mark, two, accept, three, jump, four])?;
        await_order(stage, &forward, mode)?;
        stage.confirm_within(NEXT_CHECK, &BASE)?;
    }
    stage.watch(Duration::from_millis(1500))
}

/// Returns a foreign rule.
fn foreign_rule(name: &str) -> String {
    format!("-A FORWARD -m comment --comment {name}")
}

/// Waits until the agent's rules are in place; foreign rules must exist in their order.
fn await_order(stage: &mut Stage, before: &Forward, mode: Mode) -> StageResult {
    let [one, two, three, four] = FOREIGN.map(foreign_rule);
    let ours = before.ours();
    let expected = match mode {
        Mode::Insert => [&ours[..1], &[one, two, three, four], &ours[1..]].concat(),
        Mode::Append => [&[one, two, three, four], &ours[..]].concat(),
    };
    let mut found = Vec::new();
    let waited = stage.until_within(NEXT_CHECK, "our rules are in order", |stage| {
        found = Forward::read(stage, before.program)?.rules;
        Ok(found == expected)
    });
    waited.map_err(|error| match error {
        StageError::Timeout(description) => {
            StageError::Timeout(format!("{description}: FORWARD of {} is\n  {}", before.program, found.join("\n  ")))
        }
        other => other,
    })
}

/// The FORWARD chain of the filter table in one family.
struct Forward {
    program: &'static str,
    rules: Vec<String>,
}

impl Forward {
    fn read(stage: &Stage, program: &'static str) -> Result<Self, StageError> {
        let rules = stage.shell(&format!("{program}-{} -w -S FORWARD", stage.backend))?;
        let rules = rules.lines().filter(|line| line.starts_with("-A")).map(str::to_owned).collect();
        Ok(Self { program, rules })
    }

    fn ours(&self) -> Vec<String> {
        self.rules.iter().filter(|rule| rule.contains("cali:")).cloned().collect()
    }

    /// Replaces the rules in one transaction.
    fn write(&self, stage: &Stage, rules: &[String]) -> StageResult {
        let file = stage.folder().join("forward");
        std::fs::write(&file, format!("*filter\n-F FORWARD\n{}\nCOMMIT\n", rules.join("\n")))?;
        let restore = format!("{}-{}-restore", self.program, stage.backend);
        stage.shell(&format!("{restore} -w --noflush <{}", file.display())).map(drop)
    }
}
