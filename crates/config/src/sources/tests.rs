use super::*;

#[test]
fn environment_variables_match_in_any_case() {
    let raw = from_environment([
        ("FELIX_LogSeverityScreen".to_owned(), "Debug".to_owned()),
        ("felix_ipv6support".to_owned(), "false".to_owned()),
        ("PATH".to_owned(), "/bin".to_owned()),
    ]);
    let expected = [("ipv6support", "false"), ("logseverityscreen", "Debug")];
    assert!(raw.iter().map(|(n, v)| (n.as_str(), v.as_str())).eq(expected));
}

#[test]
fn sections_of_the_file_are_joined() {
    let raw = from_file_text("[global]\n# a comment\nLogFilePath=None\n[other]\nIpv6Support = false\n").unwrap();
    assert_eq!(raw["LogFilePath"], "None");
    assert_eq!(raw["Ipv6Support"], "false");
    assert!(from_file_text("[global\nx=1").is_err());
}

#[test]
fn a_line_that_sets_nothing_is_known_by_its_number() {
    let mut sources = Sources::default();
    sources
        .set_file("[global]\n# a comment\nLogSeverityScreen Debug\n\nIpv6Support = false\nLogPrefix=\n; x\n")
        .unwrap();
    let line = IdleLine { number: 3, text: "LogSeverityScreen Debug".into() };
    assert_eq!(sources.idle_lines, [line]);
    let notices: Vec<String> = sources.resolve().unwrap().notices.iter().map(ToString::to_string).collect();
    assert_eq!(notices, ["config file: line 3: `LogSeverityScreen Debug` has no `=`; ignored"]);
    sources.set_file("Ipv6Support = false\n").unwrap();
    assert_eq!(sources.idle_lines, []);
}
