/// `::KIND file=F,line=L,col=C::TEXT`.
pub(super) fn line(kind: &str, place: Option<(String, u32, u32)>, text: &str) -> String {
    let place = place.map(|(file, line, column)| format!(" file={},line={line},col={column}", property(&file)));
    format!("::{kind}{}::{}\n", place.unwrap_or_default(), data(text))
}

/// Escapes characters that would end the line or start another command.
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
