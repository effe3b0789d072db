use super::super::lines::lines;
use super::*;

#[test]
fn of_a_long_line_only_the_surroundings_are_shown() {
    let text = "x".repeat(5_000) + "here" + &"y".repeat(5_000);
    let shown = place(&lines(&text)[0], Position { line: 1, column: 5_001 }, 4).unwrap();
    assert_eq!((shown.line.len(), &shown.line[shown.within]), (BEFORE + SHOWN, "here"));
}

#[test]
fn places_are_counted_in_characters_and_end_with_the_line() {
    let found = |text: &'static str, line, column, length| {
        let lines = lines(text);
        let of = lines.get(usize::try_from(line).unwrap().checked_sub(1)?)?;
        place(of, Position { line, column }, length).map(|place| &place.line[place.within])
    };
    assert_eq!(found("a: ä b\nc", 1, 4, 1), Some("ä"));
    assert_eq!(found("a: ä b\nc", 1, 6, 9), Some("b"));
    assert_eq!(found("\u{feff}kind: x", 1, 1, 4), Some("kind"));
    assert_eq!(found("a", 1, 2, 0), Some(""), "something is missing at the end");
    assert_eq!(found("a", 2, 1, 0), None);
    assert_eq!(found("a", 0, 0, 0), None, "nowhere in particular");
}

#[test]
fn advice_is_the_question_at_the_end() {
    assert_eq!(advice("`x` is not y; is `z` meant?"), Some("is `z` meant?"));
    assert_eq!(advice("is `z` meant?"), None);
    assert_eq!(advice("`x` is not y; known are a, b"), None);
}
