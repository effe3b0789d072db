//! Links in a page.

/// Replaces each link of a page by the result of `replace` for its text, its target, and whether it
/// is an image; `None` keeps it. Code is not changed.
pub(super) fn map_links(
    page: &str,
    mut replace: impl FnMut(&str, &str, bool) -> Result<Option<String>, String>,
) -> Result<String, String> {
    let mut result = String::new();
    let mut rest = page;
    let mut is_line_start = true;
    // Positions of open brackets in the result that may belong to a link.
    let mut open: Vec<usize> = Vec::new();
    while let Some(first) = rest.chars().next() {
        let ticks = rest.len() - rest.trim_start_matches('`').len();
        let taken = if ticks > 0 {
            // Code: a block up to its closing fence, or a span up to the same number of ticks.
            let fence = "`".repeat(ticks);
            if is_line_start && ticks >= 3 {
                block(rest, &fence)
            } else {
                rest[ticks..].find(&fence).map_or(ticks, |at| ticks + at + ticks)
            }
        } else if first == '[' {
            open.push(result.len());
            1
        } else if first == ']' {
            let start = open.pop();
            let target = rest.strip_prefix("](").and_then(|rest| rest.split_once(')')).map(|(target, _)| target);
            if let (Some(start), Some(target)) = (start, target) {
                let is_image = result[..start].ends_with('!');
                let text = result[start + 1..].to_owned();
                let length = "](".len() + target.len() + 1;
                if let Some(new) = replace(&text, target, is_image)? {
                    result.truncate(if is_image { start - 1 } else { start });
                    result += &new;
                } else {
                    result += &rest[..length];
                }
                rest = &rest[length..];
                continue;
            }
            1
        } else {
            first.len_utf8()
        };
        let (text, more) = rest.split_at(taken);
        result += text;
        is_line_start = text.ends_with('\n') || (is_line_start && text == " ");
        rest = more;
    }
    Ok(result)
}

/// Returns the length of a block that begins with this fence, including its closing fence.
fn block(text: &str, fence: &str) -> usize {
    let mut length = 0;
    for (number, line) in text.split_inclusive('\n').enumerate() {
        length += line.len();
        if number > 0 && line.trim().starts_with(fence) {
            break;
        }
    }
    length
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(page: &str) -> String {
        let replace = |text: &str, target: &str, is_image: bool| {
            Ok((target != "same").then(|| format!("<{text}|{target}|{is_image}>")))
        };
        map_links(page, replace).unwrap()
    }

    #[test]
    fn links_and_images_are_found_and_code_is_left_alone() {
        assert_eq!(mapped("see [a `b`](c#d), [e](same)"), "see <a `b`|c#d|false>, [e](same)");
        assert_eq!(mapped("![over\nlines](x.png) [1] and (2)"), "<over\nlines|x.png|true> [1] and (2)");
        assert_eq!(mapped("`[a](b)` ``[c](d) ` ``[e](f)"), "`[a](b)` ``[c](d) ` ``<e|f|false>");
        assert_eq!(mapped("  ```sh\n[a](b)\n  ```\n[c](d)"), "  ```sh\n[a](b)\n  ```\n<c|d|false>");
        assert_eq!(mapped("[[a]](b)"), "<[a]|b|false>");
    }
}
