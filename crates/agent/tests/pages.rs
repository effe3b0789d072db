//! Pages that commands make, in a real browser: effects of clicks and keys.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test that runs programs")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn tortie(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_tortie"))
        .args(arguments)
        .current_dir(REPOSITORY)
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the DOM of a page after a script has run on it. The test fails if the page requests
/// anything from elsewhere, or if a script error occurs.
fn browse(page: &str, script: &str) -> String {
    let folder = TempDir::new().unwrap();
    let report = "document.body.dataset.requests = performance.getEntriesByType('resource').length;";
    let script = format!("<script>{script}; {report}</script></body>");
    let (before, after) = page.rsplit_once("</body>").unwrap();
    let file: PathBuf = folder.path().join("page.html");
    fs::write(&file, format!("{before}{script}{after}")).unwrap();
    let output = chromium(folder.path())
        .args(["--dump-dom", "--virtual-time-budget=5000", "--window-size=1400,900"])
        .arg(format!("file://{}", file.display()))
        .output()
        .expect("chromium is there: cargo xtask prepare installs it");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    assert!(!errors.contains("Uncaught") && !errors.contains("violates"), "{errors}");
    let dom = String::from_utf8(output.stdout).unwrap();
    assert!(dom.contains("data-requests=\"0\""), "{dom}");
    dom
}

/// Returns a browser without network access.
fn chromium(folder: &Path) -> Command {
    let mut command = Command::new("chromium");
    command
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"])
        .args(["--disable-component-update", "--disable-dev-shm-usage", "--enable-logging=stderr", "--log-level=0"])
        .args(["--host-resolver-rules=MAP * ~NOTFOUND", "--hide-scrollbars"])
        .arg(format!("--user-data-dir={}", folder.join("profile").display()))
        .env("HOME", folder)
        .stdin(Stdio::null());
    command
}

/// Returns the text beside the picture, without markup.
fn details(dom: &str) -> String {
    let (_, aside) = dom.split_once("<aside").unwrap();
    let (aside, _) = aside.split_once("</aside>").unwrap();
    let mut text = String::new();
    for part in aside.split('<').skip(1) {
        text.push_str(part.split_once('>').map_or("", |(_, text)| text));
        text.push(' ');
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn demo() -> String {
    tortie(&["map", "--datastore", "file:examples/demo"])
}

/// Script that finds the element of an edge or node in the shown picture by the beginning of its
/// tooltip.
const FIND: &str = "
const find = (kind, text) => [...document.querySelectorAll(`.picture:not([hidden]) [data-${kind}]`)]
  .find((element) => element.querySelector('title')?.textContent.startsWith(text));
const click = (element, shiftKey = false) => element.dispatchEvent(new MouseEvent('click', {bubbles: true, shiftKey}));
";

#[test]
fn a_click_on_a_line_shows_the_deciding_rule() {
    let dom = browse(&demo(), &format!("{FIND} click(find('edge', 'shop/api → shop/db').querySelector('.hit'))"));
    let details = details(&dom);
    assert!(details.starts_with("data-") || details.contains("shop/api → shop/db tcp 5432"), "{details}");
    let rule = "NetworkPolicy/shop/db-clients, ingress rule 0, tier default: examples/demo/policy-db.yaml:11:7";
    assert!(details.contains(&format!("ingress of shop/db, allowed by {rule}")), "{details}");
}

#[test]
fn two_nodes_show_the_denied_connections_between_them() {
    let script = format!("{FIND} click(find('node', 'shop/web')); click(find('node', 'shop/db'), true)");
    let details = details(&browse(&demo(), &script));
    assert!(details.contains("shop/web → shop/db nothing passes"), "{details}");
    let rule = "NetworkPolicy/shop/db-clients, ingress rule 1, tier default: examples/demo/policy-db.yaml:17:7";
    assert!(details.contains(&format!("deny everything {rule}")), "{details}");
}

#[test]
fn the_keyboard_chooses_a_node_and_lets_go() {
    let enter = "find('node', 'shop/db').dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', bubbles: true}))";
    let details_of = |script: &str| details(&browse(&demo(), &format!("{FIND} {script}")));
    let chosen = details_of(enter);
    assert!(chosen.contains("shop/db 1 pod: role=db"), "{chosen}");
    assert!(chosen.contains("Reached by (1) shop/api tcp 5432"), "{chosen}");
    assert!(chosen.contains("NetworkPolicy/shop/db-clients"), "{chosen}");
    let escape = "document.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'}))";
    let left = details_of(&format!("{enter}; {escape}"));
    assert!(!left.contains("shop/db") && left.contains("nodes,"), "{left}");
}

#[test]
fn a_tier_can_be_hidden_and_the_other_family_shown() {
    let off = "const box = document.querySelector('#tiers input'); box.checked = false; box.dispatchEvent(new Event('change'));";
    let count = "document.body.dataset.hidden = document.querySelectorAll('.picture:not([hidden]) .edge.off').length;
      document.body.dataset.edges = document.querySelectorAll('.picture:not([hidden]) .edge').length;";
    let dom = browse(&demo(), &format!("{off} {count}"));
    let number = |name: &str| {
        let (_, rest) = dom.split_once(&format!("data-{name}=\"")).unwrap();
        rest.split_once('"').unwrap().0.parse::<u32>().unwrap()
    };
    assert!(number("hidden") > 0 && number("hidden") == number("edges"), "{dom}");

    let other = "const box = document.querySelectorAll('#families input')[1]; box.checked = true;
      box.dispatchEvent(new Event('change')); click(find('edge', 'shop/web → shop/api'));";
    let dom = browse(&demo(), &format!("{FIND} {other}"));
    assert!(details(&dom).contains("shop/web → shop/api tcp 8080"), "{}", details(&dom));
}

#[test]
fn a_search_marks_its_matches() {
    let search = "const input = document.getElementById('search'); input.value = 'role=DB'; input.dispatchEvent(new Event('input'));
      document.body.dataset.found = [...document.querySelectorAll('.picture:not([hidden]) .node.hit title')]
        .map((title) => title.textContent.split(' ')[0]).join();";
    let dom = browse(&demo(), search);
    assert!(dom.contains("data-found=\"shop/db\""), "{dom}");
}

#[test]
fn a_plan_shows_rows_that_are_asked_for() {
    let folder = TempDir::new().unwrap();
    let policies = ["policy-shop.yaml", "policy-visitors.yaml"].map(|name| format!("examples/demo/{name}"));
    let output = Command::new(env!("CARGO_BIN_EXE_tortie"))
        .args([
            "plan",
            "--datastore",
            "file:examples/demo",
            "--delete",
            "-o",
            "html",
            "-f",
            &policies[0],
            "-f",
            &policies[1],
        ])
        .current_dir(REPOSITORY)
        .env_clear()
        .env("HOME", folder.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let page = String::from_utf8(output.stdout).unwrap();
    let search = "const input = document.querySelector('input'); input.value = 'VISITORS'; input.dispatchEvent(new Event('input'));
      const rows = [...document.querySelectorAll('tbody tr')];
      document.body.dataset.shown = rows.filter((row) => !row.hidden).length;
      document.body.dataset.wrong = rows.filter((row) => row.hidden === row.textContent.includes('visitors')).length;
      document.body.dataset.rows = rows.length;";
    let dom = browse(&page, search);
    assert!(dom.contains("data-wrong=\"0\"") && !dom.contains("data-shown=\"0\""), "{dom}");
}
