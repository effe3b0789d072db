use super::*;

fn lines(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| format!("{text}\n").into_bytes()).collect()
}

fn file(folder: &std::path::Path, max_size: u64, max_files: u32) -> RotatingFile {
    RotatingFile::new(FlowFile { path: folder.join("below/flows.log"), max_size, max_files })
}

fn contents(folder: &std::path::Path) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = fs::read_dir(folder.join("below"))
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            (path.file_name().unwrap().to_string_lossy().into_owned(), fs::read_to_string(path).unwrap())
        })
        .collect();
    found.sort();
    found
}

#[test]
fn a_full_file_makes_room_and_the_oldest_goes() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = file(folder.path(), 10, 3);
    file.write(&lines(&["1111", "2222", "3333", "4444", "5555"]));
    let expected = [("flows.log", "5555\n"), ("flows.log.1", "3333\n4444\n"), ("flows.log.2", "1111\n2222\n")];
    let own = |(name, text): &(&str, &str)| ((*name).to_owned(), (*text).to_owned());
    assert_eq!(contents(folder.path()), expected.iter().map(own).collect::<Vec<_>>());
    file.write(&lines(&["6666", "7777", "longer than ten bytes"]));
    let expected =
        [("flows.log", "longer than ten bytes\n"), ("flows.log.1", "7777\n"), ("flows.log.2", "5555\n6666\n")];
    assert_eq!(contents(folder.path()), expected.iter().map(own).collect::<Vec<_>>());
    assert_eq!(file.dropped(), 0);
}

#[test]
fn another_process_goes_on_where_one_was_killed() {
    let folder = tempfile::tempdir().unwrap();
    file(folder.path(), 100, 2).write(&lines(&["whole"]));
    let path = folder.path().join("below/flows.log");
    fs::write(&path, "whole\ntor").unwrap();
    file(folder.path(), 100, 2).write(&lines(&["next"]));
    assert_eq!(fs::read_to_string(&path).unwrap(), "whole\ntor\nnext\n");
    file(folder.path(), 19, 1).write(&lines(&["last"]));
    assert_eq!(contents(folder.path()), [("flows.log".to_owned(), "last\n".to_owned())]);
}

#[test]
fn failed_writes_are_counted_and_writing_resumes() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = file(folder.path(), 100, 2);
    fs::write(folder.path().join("below"), "in the way").unwrap();
    file.write(&lines(&["a", "b"]));
    assert_eq!(file.dropped(), 2);
    fs::remove_file(folder.path().join("below")).unwrap();
    file.write(&lines(&["c"]));
    assert_eq!(contents(folder.path()), [("flows.log".to_owned(), "c\n".to_owned())]);
    assert_eq!(file.dropped(), 2);
}
