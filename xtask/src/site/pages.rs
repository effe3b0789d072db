//! Hand-written pages from all of the repository.

use std::fs;
use std::path::{Component, Path, PathBuf};

use xtask::files::{below, read, write};

use super::markdown;
use crate::shell::root;

/// Folder of the book's own pages.
const BOOK: &str = "docs/book/src";

/// Documents of the repository that are also pages, and their names in the book.
const DOCUMENTS: [(&str, &str); 6] = [
    ("README.md", "overview.md"),
    ("ARCHITECTURE.md", "architecture.md"),
    ("CONTRIBUTING.md", "contributing.md"),
    ("SECURITY.md", "security.md"),
    ("CHANGELOG.md", "changelog.md"),
    ("deploy/README.md", "deploy.md"),
];

/// Folder of documents, each of which is a page in the folder `design` of the book.
const DESIGN: &str = "docs/design";

/// Generated documents, by their names in the repository and the book.
const GENERATED: [(&str, &str); 1] = [("docs/parameters.md", "reference/parameters.md")];

/// Writes all pages into a folder.
pub(super) fn collect(folder: &Path) -> Result<(), String> {
    let book = root().join(BOOK);
    for inner in below(&book)? {
        let path = book.join(&inner);
        let text = included(&read(&path)?, path.parent().unwrap_or(&path))?;
        write(&folder.join(inner), &without_attributes(&text))?;
    }
    for (document, page) in documents()? {
        let text = read(&root().join(&document))?;
        let linked = markdown::map_links(&text, |text, target, is_image| {
            linked(&document, &page, folder, (text, target, is_image))
        });
        let linked = linked.map_err(|error| format!("{}: {error}", document.display()))?;
        write(&folder.join(page), &without_attributes(&linked))?;
    }
    Ok(())
}

/// Returns all documents that are also pages, with their names in the book.
fn documents() -> Result<Vec<(PathBuf, PathBuf)>, String> {
    let single = DOCUMENTS.iter().map(|(document, page)| (document.into(), page.into()));
    let design = below(&root().join(DESIGN))?.into_iter();
    let design = design.map(|inner| (Path::new(DESIGN).join(&inner), Path::new("design").join(inner)));
    Ok(single.chain(design).collect())
}

/// Returns a page with its included files, each on a separate line of the page.
fn included(page: &str, folder: &Path) -> Result<String, String> {
    let mut text = String::new();
    for line in page.lines() {
        match line.trim().strip_prefix("{{#include ").and_then(|rest| rest.strip_suffix("}}")) {
            Some(path) => text += &read(&folder.join(path))?,
            None => text.push_str(line),
        }
        text.push('\n');
    }
    Ok(text)
}

/// Removes the attributes of code fences (`sh,not-run="…"`), which are for tests and not for
/// readers.
fn without_attributes(page: &str) -> String {
    let line = |line: &str| {
        let end = ["```sh", "```console", "```text"].iter().find_map(|fence| {
            let at = line.find(fence)?;
            line[at + fence.len()..].starts_with(',').then_some(at + fence.len())
        });
        line[..end.unwrap_or(line.len())].to_owned() + "\n"
    };
    page.lines().map(line).collect()
}

/// Returns a link of a document for its page: to another page, to an image that is copied, or only
/// its text if the target is no page.
fn linked(
    document: &Path,
    page: &Path,
    folder: &Path,
    (text, target, is_image): (&str, &str, bool),
) -> Result<Option<String>, String> {
    if target.contains("://") || target.starts_with('#') {
        return Ok(None);
    }
    let (path, fragment) = target.split_once('#').map_or((target, ""), |(path, fragment)| (path, fragment));
    let file = normal(&document.parent().unwrap_or(document).join(path));
    let fragment = if fragment.is_empty() { String::new() } else { format!("#{fragment}") };
    let there = root().join(&file);
    if !there.exists() {
        return Err(format!("the link to {target} leads nowhere"));
    }
    let to = |other: &Path| format!("{}{}{fragment}", "../".repeat(page.components().count() - 1), other.display());
    if let Some(page) = page_of(&file) {
        return Ok(Some(format!("[{text}]({})", to(&page))));
    }
    if is_image {
        let copy = folder.join(&file);
        let failed = |error: std::io::Error| format!("{}: {error}", copy.display());
        fs::create_dir_all(copy.parent().unwrap_or(&copy)).map_err(failed)?;
        fs::copy(&there, &copy).map_err(failed)?;
        return Ok(Some(format!("![{text}]({})", to(&file))));
    }
    let shown = file.display().to_string();
    let is_path = text.trim_matches('`').trim_end_matches('/') == shown;
    Ok(Some(if is_path { text.to_owned() } else { format!("{text} (`{shown}`)") }))
}

/// Returns the page of a file of the repository.
fn page_of(file: &Path) -> Option<PathBuf> {
    let is_it =
        |(document, _): &&(&str, &str)| Path::new(document) == file || Path::new(document) == file.join("README.md");
    let page = DOCUMENTS.iter().chain(&GENERATED).find(is_it).map(|(_, page)| PathBuf::from(page));
    let design = || file.strip_prefix(DESIGN).ok().map(|inner| Path::new("design").join(inner));
    page.or_else(design).or_else(|| file.strip_prefix(BOOK).ok().map(Path::to_path_buf))
}

/// Removes `..` from a path.
fn normal(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut whole, part| {
        match part {
            Component::ParentDir => drop(whole.pop()),
            Component::CurDir => {}
            part => whole.push(part),
        }
        whole
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(document: &str, page: &str, target: &str) -> Result<Option<String>, String> {
        linked(Path::new(document), Path::new(page), Path::new("/nowhere"), ("text", target, false))
    }

    #[test]
    fn links_between_documents_point_to_pages_and_others_become_text() {
        let replaced = |text: &str| Ok(Some(text.to_owned()));
        assert_eq!(link("README.md", "overview.md", "deploy/README.md#agents"), replaced("[text](deploy.md#agents)"));
        assert_eq!(
            link("deploy/README.md", "deploy.md", "../docs/parameters.md"),
            replaced("[text](reference/parameters.md)")
        );
        assert_eq!(
            link("README.md", "overview.md", "docs/book/src/guides/host.md"),
            replaced("[text](guides/host.md)")
        );
        assert_eq!(link("README.md", "overview.md", "crates/calc"), replaced("text (`crates/calc`)"));
        assert_eq!(link("README.md", "overview.md", "deploy"), replaced("[text](deploy.md)"));
        assert_eq!(
            link("ARCHITECTURE.md", "architecture.md", "docs/design/ebpf.md#tables"),
            replaced("[text](design/ebpf.md#tables)")
        );
        assert_eq!(link("docs/design/ebpf.md", "design/ebpf.md", "limits.md"), replaced("[text](../design/limits.md)"));
        assert_eq!(link("README.md", "overview.md", "https://example.org"), Ok(None));
        assert!(link("README.md", "overview.md", "crates/none").is_err());
    }

    #[test]
    fn test_attributes_are_removed_from_code_blocks() {
        assert_eq!(without_attributes("```sh,not-run=\"x, y\"\n```rust,no_run\n"), "```sh\n```rust,no_run\n");
    }

    #[test]
    fn links_in_documents_have_targets() {
        let folder = std::env::temp_dir().join(format!("tortie-site-{}", std::process::id()));
        let collected = collect(&folder);
        let pages = below(&folder).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(collected, Ok(()));
        assert!(pages.iter().any(|page| page.ends_with("architecture.md")), "{pages:?}");
        let menu = read(&root().join(BOOK).join("SUMMARY.md")).unwrap();
        let design = pages.iter().filter(|page| page.starts_with("design"));
        let missing: Vec<_> = design.filter(|page| !menu.contains(&format!("({})", page.display()))).collect();
        assert!(missing.is_empty(), "SUMMARY.md lacks {missing:?}");
    }
}
