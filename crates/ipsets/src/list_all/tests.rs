use super::*;
use crate::list::Lines;

/// As ipset 7.17 prints it.
const LISTING: &str = "\
Name: docker
Type: hash:ip
Revision: 6
Header: family inet hashsize 1024 maxelem 65536 comment bucketsize 12 initval 0x036146ca
Size in memory: 313
References: 0
Number of entries: 1
Members:
1.1.1.1 comment \"x\"

Name: cali40a
Type: hash:net
Revision: 7
Header: family inet hashsize 1024 maxelem 1048576 bucketsize 12 initval 0x46a1e978
Size in memory: 552
References: 0
Number of entries: 2
Members:
10.0.0.0/8
1.2.3.4

Name: cali60a
Type: hash:net
Revision: 7
Header: family inet6 hashsize 1024 maxelem 1048576 bucketsize 12 initval 0x46a1e978
Size in memory: 552
References: 0
Number of entries: 0
Members:

Name: cali40unwanted
Type: hash:ip
Header: family inet hashsize 1024 maxelem 1048576
Members:
1.1.1.1

Name: cali40b
Type: hash:ip
Header: family inet hashsize 1024 maxelem 1048576
Members:
";

fn read(text: &str, chunk: usize) -> Vec<String> {
    let mut reader = AllReader::new(Family::V4);
    let mut lines = Lines::default();
    let mut events = Vec::new();
    let mut note = |event: Option<Event>| {
        events.extend(event.map(|event| match event {
            Event::Begin(name) => format!("begin {name}"),
            Event::Member(member) => member.to_string(),
            Event::End { name, set_type, listing } => {
                let set_type = set_type.map_or("?", SetType::as_str);
                format!("end {name} {set_type} {}", listing.err().map_or("ok".to_owned(), |error| error.to_string()))
            }
        }));
    };
    let is_wanted = |name: &IpSetName| name.as_str() != "cali40unwanted";
    text.as_bytes().chunks(chunk).for_each(|chunk| lines.push(chunk, |line| note(reader.line(line, is_wanted))));
    let is_whole = lines.is_whole();
    lines.finish(|line| note(reader.line(line, is_wanted))).unwrap();
    note(reader.finish(is_whole));
    events
}

#[test]
fn ours_are_read_and_others_are_skipped() {
    for chunk in [1, 7, 100, 4096] {
        assert_eq!(
            read(LISTING, chunk),
            [
                "begin cali40a",
                "10.0.0.0/8",
                "1.2.3.4",
                "end cali40a hash:net ok",
                "begin cali40unwanted",
                "begin cali40b",
                "end cali40b hash:ip ok",
            ]
        );
    }
}

#[test]
fn listings_that_are_not_complete() {
    let cut = |to: &str| read(&LISTING[..LISTING.find(to).unwrap()], 50).pop().unwrap();
    assert_eq!(cut(".3.4"), "end cali40a hash:net listing of cali40a: ends within a line");
    assert_eq!(cut("1.2.3.4"), "end cali40a hash:net listing of cali40a: 1 members, where the header says 2");
    assert_eq!(cut("Members:\n10"), "end cali40a hash:net listing of cali40a: no `Members:`");
    assert_eq!(cut("Name: cali60a"), "end cali40a hash:net ok");
    let other = LISTING.replace("10.0.0.0/8\n", "");
    assert!(
        read(&other, 9).contains(&"end cali40a hash:net listing of cali40a: 1 members, where the header says 2".into())
    );
}
