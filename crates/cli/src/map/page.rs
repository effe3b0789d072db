use std::fmt::Write as _;

use tortie_analysis::map::{Describe, Map, layout, svg};

use super::data;

const HEAD: &str = concat!(include_str!("../page_head.html"), include_str!("head.html"));
const SCRIPT: &str = include_str!("page.js");

/// Writing to a string cannot fail.
pub(super) fn page(maps: &[Map], describe: &Describe<'_>) -> String {
    let mut out = String::from(HEAD);
    for (number, map) in maps.iter().enumerate() {
        let hidden = if number == 0 { "" } else { " hidden" };
        let _ = writeln!(out, "<div class=\"picture\" data-map=\"{number}\"{hidden}>");
        out.push_str(&svg(map, &layout(map), describe));
        out.push_str("</div>\n");
    }
    let data: Vec<_> = maps.iter().map(|map| data::of(map, describe)).collect();
    // Without `<`, names cannot end the element with the data.
    let data = serde_json::Value::from(data).to_string().replace('<', "\\u003c");
    let _ = writeln!(out, "</main>\n<script type=\"application/json\" id=\"data\">{data}</script>");
    let _ = writeln!(out, "<script>\n{SCRIPT}</script>\n</body>\n</html>");
    out
}

#[cfg(test)]
mod tests;
