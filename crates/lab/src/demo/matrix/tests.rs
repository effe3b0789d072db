use super::*;

const OPEN: Option<Reach> = Some(Reach::Answered);
const SILENT: Option<Reach> = Some(Reach::Silent);
const REFUSED: Option<Reach> = Some(Reach::Refused);

/// Returns the matrix of two pods, one of which serves two ports, with the outcomes of the three
/// attempts.
fn matrix(there: [Cell; 2], back: Cell) -> Matrix {
    let column = |pod: &str, port: &str| Column { pod: pod.into(), port: port.into() };
    Matrix {
        rows: vec![
            ("shop/web".into(), vec![None, Some(there[0]), Some(there[1])]),
            ("shop/database".into(), vec![Some(back), None, None]),
        ],
        columns: vec![
            column("shop/web", "80/tcp"),
            column("shop/database", "5432/tcp"),
            column("shop/database", "9/udp"),
        ],
    }
}

fn cell(v4: Option<Reach>, v6: Option<Reach>) -> Cell {
    Cell { v4, v6 }
}

#[track_caller]
fn check(rendered: &str, expected: &[&str]) {
    assert_eq!(rendered.lines().collect::<Vec<_>>(), expected, "\n{rendered}");
}

#[test]
fn families_have_separate_symbols() {
    let matrix = matrix([cell(OPEN, OPEN), cell(SILENT, None)], cell(OPEN, SILENT));
    check(
        &matrix.render(None, Colors::Off),
        &[
            "   from \\ to       shop/web   shop/database   shop/database",
            "                   80/tcp     5432/tcp        9/udp",
            "   shop/web        self       4 6             -",
            "   shop/database   4 -        self            self",
            "",
            "   4 answers over IPv4   6 answers over IPv6   - no answer",
        ],
    );
}

#[test]
fn the_legend_explains_refusals_if_any_occur() {
    let matrix = matrix([cell(REFUSED, OPEN), cell(OPEN, OPEN)], cell(OPEN, OPEN));
    let rendered = matrix.render(None, Colors::Off);
    assert!(rendered.contains("   shop/web        self       x 6             4 6\n"), "{rendered}");
    assert!(rendered.ends_with("- no answer   x refused\n"), "{rendered}");
}

#[test]
fn changed_cells_are_marked() {
    let before = matrix([cell(SILENT, SILENT), cell(OPEN, OPEN)], cell(OPEN, OPEN));
    let after = matrix([cell(OPEN, OPEN), cell(OPEN, REFUSED)], cell(OPEN, OPEN));
    check(
        &after.render(Some(&before), Colors::Off),
        &[
            "   from \\ to       shop/web   shop/database   shop/database",
            "                   80/tcp     5432/tcp        9/udp",
            "   shop/web        self      [4 6]           [4 x]",
            "   shop/database   4 6        self            self",
            "",
            "   4 answers over IPv4   6 answers over IPv6   - no answer   x refused   [ ] changed",
        ],
    );
    assert_eq!(
        after.changes(&before),
        [
            "shop/web -> shop/database 5432/tcp: open over IPv4, open over IPv6",
            "shop/web -> shop/database 9/udp: refused over IPv6",
        ]
    );
}

#[test]
fn without_changes_nothing_is_marked() {
    let matrix = matrix([cell(OPEN, OPEN), cell(OPEN, OPEN)], cell(SILENT, SILENT));
    assert_eq!(matrix.render(Some(&matrix), Colors::Off), matrix.render(None, Colors::Off));
    assert_eq!(matrix.changes(&matrix), [""; 0]);
}

#[test]
fn colors_leave_the_layout_alone() {
    let before = matrix([cell(OPEN, OPEN), cell(SILENT, SILENT)], cell(OPEN, OPEN));
    let after = matrix([cell(SILENT, SILENT), cell(SILENT, SILENT)], cell(OPEN, OPEN));
    let colored = after.render(Some(&before), Colors::On);
    assert!(colored.contains("[\x1b[31m- -\x1b[0m]"), "{colored}");
    let plain =
        ["\x1b[31m", "\x1b[32m", "\x1b[2m", "\x1b[0m"].iter().fold(colored, |text, code| text.replace(code, ""));
    assert_eq!(plain, after.render(Some(&before), Colors::Off));
}
