use std::io::Write as _;
use std::process::Stdio;

use super::*;

/// Returns the output of a program for an input; `None` if the program is not installed.
fn output_of(program: &[&str], text: &[u8]) -> Option<std::process::Output> {
    let (name, args) = program.split_first().unwrap();
    let child = std::process::Command::new(name)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => panic!("{name}: {error}"),
    };
    child.stdin.take().unwrap().write_all(text).unwrap();
    Some(child.wait_with_output().unwrap())
}

fn script(shell: Shell) -> String {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut whole(), "tortie", &mut text);
    String::from_utf8(text).unwrap()
}

/// Returns bash's completions for an empty word after these words.
fn proposed(words: &str) -> Option<Vec<String>> {
    let ask = format!(
        "{}\nCOMP_WORDS=({words} '')\nCOMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n_tortie tortie '' \"${{COMP_WORDS[COMP_CWORD-1]}}\"\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
        script(Shell::Bash)
    );
    let output = output_of(&["bash", "--norc", "-s"], ask.as_bytes())?;
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    Some(String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect())
}

#[test]
fn every_command_is_completed() {
    let whole = whole();
    let all: Vec<_> = all_commands(&whole).into_iter().map(|(path, _)| path).collect();
    assert!(all.len() > 20 && all.contains(&vec!["staged".into(), "commit".into()]), "{all:?}");
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let script = script(shell);
        for path in &all {
            assert!(path.iter().all(|name| script.contains(name.as_str())), "{shell}: {path:?}");
        }
    }
    let fish = script(Shell::Fish);
    assert!(fish.contains("complete -c tortie"), "{fish}");
}

#[test]
fn bash_proposes_commands_options_and_values() {
    let Some(commands) = proposed("tortie") else { return eprintln!("there is no bash here") };
    for (path, _) in all_commands(&whole()).iter().filter(|(path, _)| path.len() == 1) {
        assert!(commands.contains(&path[0]), "{path:?}: {commands:?}");
    }
    assert!(!commands.contains(&"help".to_owned()));
    let proposed = |words: &str| proposed(words).unwrap();
    assert_eq!(proposed("tortie staged").iter().filter(|word| !word.starts_with('-')).collect::<Vec<_>>(), ["commit"]);
    assert_eq!(proposed("tortie check --color"), ["auto", "always", "never"]);
    assert!(proposed("tortie check").contains(&"--strict".to_owned()));
    #[cfg(feature = "etcd")]
    {
        assert_eq!(proposed("tortie get --output"), ["table", "wide", "name", "json", "yaml"]);
        for command in ["get", "label", "patch", "delete"] {
            assert!(proposed(&format!("tortie {command}")).contains(&"networkpolicies".to_owned()), "{command}");
        }
    }
}

#[test]
fn every_command_has_a_page_that_man_can_read() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("man1");
    man(&ManArgs { command: Vec::new(), directory: Some(directory.clone()) }).unwrap();
    let whole = whole();
    let all = all_commands(&whole);
    assert_eq!(fs::read_dir(&directory).unwrap().count(), all.len());
    for (path, command) in &all {
        let name = title(path);
        let text = fs::read(directory.join(format!("{name}.1"))).unwrap();
        let page = String::from_utf8(text.clone()).unwrap();
        assert!(page.contains(&format!(".TH {name} 1 ")) && page.contains(".SH SYNOPSIS"), "{page}");
        for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
            if let Some(long) = argument.get_long() {
                assert!(page.contains(&long.replace('-', "\\-")), "{name}: --{long}\n{page}");
            }
        }
        // With all warnings enabled, groff prints each request that it does not understand.
        if let Some(output) = output_of(&["groff", "-Kutf8", "-man", "-Tutf8", "-ww", "-z"], &text) {
            assert!(output.status.success() && output.stderr.is_empty(), "{name}: {output:?}");
        }
    }
    let none = man(&ManArgs { command: vec!["nothing".into()], directory: None }).unwrap_err();
    assert_eq!(none.to_string(), "there is no command `nothing`");
}
