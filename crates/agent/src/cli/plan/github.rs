//! What a change does, as GitHub's workflows annotate pull requests: `::warning file=F,line=L,col=C::TEXT`.

use super::answer::{Answer, finding, packets};

/// A warning for each finding, and a notice of what opens and closes at the rule that decides.
pub(super) fn annotations(answer: &Answer<'_>) -> String {
    let mut out = String::new();
    for found in &answer.plan.findings {
        out += &line("warning", answer.place(found).and_then(|place| place.parts()), &finding(found).1);
    }
    for found in &answer.plan.connections {
        let what = packets(&found.packets);
        let change = if found.packets.opens { "opened" } else { "closed" };
        let by = answer.decision(&found.packets);
        let text = format!("{change}: {} -> {}: {what}, by {by}", found.from, found.to);
        out += &line(
            "notice",
            answer.rule(&found.packets.why.after, &found.packets.why).and_then(|place| place.parts()),
            &text,
        );
    }
    out
}

fn line(kind: &str, place: Option<(String, u32, u32)>, text: &str) -> String {
    let place = place.map(|(file, line, column)| format!(" file={},line={line},col={column}", property(&file)));
    format!("::{kind}{}::{}\n", place.unwrap_or_default(), data(text))
}

/// What would end the line, or begin another command.
fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_cannot_begin_another_command() {
        let found = line("warning", Some(("a,b:c%.yaml".to_owned(), 3, 7)), "x\n::error::y");
        assert_eq!(found, "::warning file=a%2Cb%3Ac%25.yaml,line=3,col=7::x%0A::error::y\n");
        assert_eq!(line("notice", None, "x"), "::notice::x\n");
    }
}
