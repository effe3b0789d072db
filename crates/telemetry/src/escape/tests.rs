use super::*;

#[test]
fn every_character_that_hides_or_forges_is_escaped() {
    let controls = (0..=0x1f_u32).chain(0x7f..=0x9f);
    let marks = [0x061c, 0x200b, 0x200d, 0x200e, 0x200f, 0x2028, 0x2029, 0xfeff];
    let directions = (0x202a..=0x202e).chain(0x2066..=0x2069);
    for c in controls.chain(marks).chain(directions).map(|c| char::from_u32(c).unwrap()) {
        let shown = line(&format!("a{c}b")).into_owned();
        assert!(shown.starts_with("a\\") && shown.ends_with('b') && !shown.contains(c), "{shown:?}");
        let json: String = serde_json::from_str(&format!("\"{shown}\"")).unwrap();
        assert_eq!(json, format!("a{c}b"), "the escape is that of JSON");
    }
}

#[test]
fn clean_text_is_not_copied_and_lines_of_a_text_stay() {
    for clean in ["", "web == 'größer' && has(a)", "→ 文字 🦀"] {
        assert!(matches!(line(clean), Cow::Borrowed(_)));
    }
    assert_eq!(coloured("\u{1b}[31ma\u{9b}\u{202c}"), "\u{1b}[31ma\\u009b\\u202c");
    assert_eq!(text("a\n\tb\r\u{7}"), "a\n\tb\\r\\u0007");
}
