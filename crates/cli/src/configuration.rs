use super::agent_socket::AskArgs;
use super::{Failure, columns};
use tortie_node::engine::inspect::{Configuration, Parameter};

/// Show the parameters of the agent with their values and their origins.
///
/// Queries the running agent.
///
/// Example: tortie config IptablesBackend
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    #[command(flatten)]
    ask: AskArgs,
    /// Only the parameters with these names, in any case.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Only parameters with another source than the default.
    #[arg(long)]
    set: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let mut configuration: Configuration = args.ask.ask("Configuration", &[])?;
    let is_called = |parameter: &Parameter, name: &String| parameter.name.eq_ignore_ascii_case(name);
    let known = |name: &&String| configuration.parameters.iter().any(|parameter| is_called(parameter, name));
    if let Some(unknown) = args.names.iter().find(|name| !known(name)) {
        return Err(Failure::usage(format!("there is no parameter `{unknown}`; see `tortie parameters`")));
    }
    configuration.parameters.retain(|parameter| {
        (args.names.is_empty() || args.names.iter().any(|name| is_called(parameter, name)))
            && (!args.set || parameter.source != "default")
    });
    args.ask.print(&configuration, || text(&configuration))
}

fn text(configuration: &Configuration) -> String {
    let rows = configuration.parameters.iter().map(|parameter| {
        let overridden: Vec<String> =
            parameter.overridden.iter().map(|set| format!("{} ({})", set.value, set.source)).collect();
        let used = if parameter.used { "" } else { "no effect here" };
        let remarks = [used, &*overridden.join(", ")].join(" ");
        vec![parameter.name.clone(), parameter.value.clone(), parameter.source.clone(), remarks.trim().to_owned()]
    });
    let mut text = columns::table(&["PARAMETER", "VALUE", "SOURCE", "OVERRIDES"], rows);
    for notice in &configuration.notices {
        text.push_str(notice);
        text.push('\n');
    }
    text
}
