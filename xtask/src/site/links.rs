//! Links within the finished site.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use xtask::files::{below, read};

/// Checks each link within the site, including its anchor, and returns their number.
pub(super) fn check(site: &Path) -> Result<usize, String> {
    let all: BTreeSet<PathBuf> = below(site)?.into_iter().map(|path| site.join(path)).collect();
    let mut texts = BTreeMap::new();
    // The page for missing pages is shown under any path.
    let is_page = |path: &&PathBuf| path.extension().is_some_and(|end| end == "html") && !path.ends_with("404.html");
    for path in all.iter().filter(is_page) {
        texts.insert(path.clone(), read(path)?);
    }
    let anchors: BTreeMap<&PathBuf, BTreeSet<&str>> =
        texts.iter().map(|(path, text)| (path, values(text, "id").collect())).collect();
    let (mut count, mut broken) = (0, BTreeSet::new());
    for (page, text) in &texts {
        for link in values(text, "href").chain(values(text, "src")) {
            let link = link.replace("&amp;", "&");
            if link.contains("://") || link.starts_with("mailto:") || link.starts_with("data:") {
                continue;
            }
            count += 1;
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = if path.is_empty() { page.clone() } else { resolved(page, &decoded(path)) };
            let is_there = all.contains(&target)
                && (anchor.is_empty()
                    || anchors.get(&target).is_none_or(|anchors| anchors.contains(&*decoded(anchor))));
            if !is_there {
                let page = page.strip_prefix(site).unwrap_or(page);
                broken.insert(format!("{}: {link}", page.display()));
            }
        }
    }
    if broken.is_empty() {
        return Ok(count);
    }
    Err(format!("links that lead nowhere:\n  {}", broken.into_iter().collect::<Vec<_>>().join("\n  ")))
}

/// Returns the values of an attribute.
fn values<'a>(text: &'a str, attribute: &str) -> impl Iterator<Item = &'a str> {
    let start = format!(" {attribute}=\"");
    let starts: Vec<usize> = text.match_indices(&start).map(|(at, _)| at + start.len()).collect();
    starts.into_iter().filter_map(|at| text[at..].split_once('"').map(|(value, _)| value))
}

/// Returns the target of a link.
fn resolved(page: &Path, link: &str) -> PathBuf {
    let mut target = page.parent().unwrap_or(page).to_path_buf();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(target.pop()),
            part => target.push(part),
        }
    }
    if link.is_empty() || link.ends_with('/') { target.join("index.html") } else { target }
}

/// Decodes `%20` and the like.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, more)) = rest.split_first() {
        let code = || u8::from_str_radix(std::str::from_utf8(more.get(..2)?).ok()?, 16).ok();
        match (first, code()) {
            (b'%', Some(code)) => {
                bytes.push(code);
                rest = &more[2..];
            }
            _ => {
                bytes.push(first);
                rest = more;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_links_and_anchors_are_found() {
        let site = std::env::temp_dir().join(format!("tortie-links-{}", std::process::id()));
        std::fs::create_dir_all(site.join("guides")).unwrap();
        std::fs::write(
            site.join("index.html"),
            r##"<a href="guides/a.html#one%20two">a</a> <a href="#here" id="here">b</a>"##,
        )
        .unwrap();
        std::fs::write(site.join("guides/a.html"), r#"<h1 id="one two">a</h1><a href="../index.html">b</a>"#).unwrap();
        let good = check(&site);
        std::fs::write(
            site.join("guides/b.html"),
            r#"<a href="none.html"><a href="a.html#three"><a href="https://x.org/">"#,
        )
        .unwrap();
        let bad = check(&site);
        std::fs::remove_dir_all(&site).unwrap();
        assert_eq!(good, Ok(3));
        assert_eq!(
            bad,
            Err("links that lead nowhere:\n  guides/b.html: a.html#three\n  guides/b.html: none.html".to_owned())
        );
    }
}
