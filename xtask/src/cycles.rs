//! Check for cyclic references between modules.
//!
//! A module of the first level represents all modules within it, and so does one of the second
//! level among its siblings. References count wherever a path names another module, in `use`
//! declarations and in code, but not in tests. A path to an item that a module imports by name,
//! re-exported or not, counts for the module of the item.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use syn::visit::{self, Visit};
use syn::{Item, ItemMod, ItemUse, UseTree};
use xtask::files::read;

use crate::tidy::{is_of_tests, list};

/// Path of a module from the root of its crate.
type Module = Vec<String>;

/// Adds the cycles of a crate.
pub(crate) fn check(folder: &Path, name: &str, wrong: &mut Vec<String>) -> Result<(), String> {
    let cycle = |cycle| format!("modules of crates/{name} refer to each other in a cycle: {cycle}");
    wrong.extend(cycles(&folder.join("src"))?.into_iter().map(cycle));
    Ok(())
}

/// Returns the cycles of a crate, each as the names of its modules.
fn cycles(src: &Path) -> Result<BTreeSet<String>, String> {
    let mut files = Vec::new();
    collect(src, &mut Vec::new(), &mut files)?;
    let names = Names::of(&files);
    let mut edges: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
    for (module, file) in &files {
        let mut references = References { module, paths: Vec::new() };
        references.visit_file(file);
        for path in references.paths {
            let target = names.module_of(path);
            for level in 1..=2 {
                let (Some(from), Some(to)) = (module.get(..level), target.get(..level)) else { continue };
                if from != to && from[..level - 1] == to[..level - 1] {
                    edges.entry(from.to_vec()).or_default().insert(to.to_vec());
                }
            }
        }
    }
    let in_cycle = |module: &Module| {
        let mut cycle = reached(&edges, module);
        cycle.retain(|other| reached(&edges, other).contains(module));
        cycle
    };
    let cycles = edges.keys().map(in_cycle).filter(|cycle| cycle.len() > 1);
    let text = |cycle: BTreeSet<Module>| cycle.iter().map(|module| module.join("::")).collect::<Vec<_>>().join(" ");
    Ok(cycles.map(text).collect())
}

/// Modules of a crate, and the names that they import, each with the path of the item.
struct Names {
    modules: BTreeSet<Module>,
    imports: BTreeMap<Module, Vec<String>>,
}

impl Names {
    fn of(files: &[(Module, syn::File)]) -> Self {
        let modules = files.iter().map(|(module, _)| module.clone()).collect();
        let mut names = Self { modules, imports: BTreeMap::new() };
        for (module, file) in files {
            for item in &file.items {
                if let Item::Use(item) = item
                    && !is_of_tests(&item.attrs)
                {
                    names.import(module, &[], &item.tree);
                }
            }
        }
        names
    }

    fn import(&mut self, module: &[String], before: &[String], tree: &UseTree) {
        let with = |ident: &syn::Ident| [before, &[ident.to_string()]].concat();
        let (name, path) = match tree {
            UseTree::Path(path) => return self.import(module, &with(&path.ident), &path.tree),
            UseTree::Group(group) => return group.items.iter().for_each(|tree| self.import(module, before, tree)),
            UseTree::Glob(_) => return,
            UseTree::Name(name) => (&name.ident, with(&name.ident)),
            UseTree::Rename(name) => (&name.rename, with(&name.ident)),
        };
        let child = path.first().map(|first| [module, std::slice::from_ref(first)].concat());
        let path = if child.is_some_and(|child| self.modules.contains(&child)) {
            Some([module, &path[..]].concat())
        } else {
            from_root(module, &path)
        };
        if let Some(path) = path {
            self.imports.insert([module, &[name.to_string()]].concat(), path);
        }
    }

    /// Returns the module of the item at a path from the root of the crate.
    fn module_of(&self, mut path: Vec<String>) -> Module {
        // An import with the same name as the path would lead into a loop.
        for _ in 0..self.modules.len() {
            let Some(import) = (1..=path.len()).find(|len| self.imports.contains_key(&path[..*len])) else { break };
            path = [&self.imports[&path[..import]][..], &path[import..]].concat();
        }
        let len = (0..=path.len()).rev().find(|len| self.modules.contains(&path[..*len])).unwrap_or_default();
        path.truncate(len);
        path
    }
}

/// Returns a path of a module as a path from the root of the crate; `None` for an item of another
/// crate.
fn from_root(module: &[String], path: &[String]) -> Option<Vec<String>> {
    let mut at = match path.first().map(String::as_str) {
        Some("crate") => Vec::new(),
        Some("self" | "super") => module.to_vec(),
        _ => return None,
    };
    let supers = path.iter().take_while(|part| *part == "super").count();
    at.truncate(at.len().saturating_sub(supers));
    at.extend(path.iter().skip(supers.max(1)).filter(|part| *part != "self").cloned());
    Some(at)
}

/// Returns the modules to which a module refers, directly or indirectly.
fn reached(edges: &BTreeMap<Module, BTreeSet<Module>>, from: &Module) -> BTreeSet<Module> {
    let mut reached = BTreeSet::new();
    let mut waiting = vec![from];
    while let Some(module) = waiting.pop() {
        for next in edges.get(module).into_iter().flatten() {
            if reached.insert(next.clone()) {
                waiting.push(next);
            }
        }
    }
    reached
}

/// Collects the modules of a library, without tests, generated code and programs.
fn collect(folder: &Path, module: &mut Module, files: &mut Vec<(Module, syn::File)>) -> Result<(), String> {
    for path in list(folder)? {
        let name = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let is_program = module.is_empty() && matches!(name.as_str(), "bin" | "main");
        if matches!(name.as_str(), "tests" | "generated") || is_program {
            continue;
        }
        if path.is_dir() {
            module.push(name);
            collect(&path, module, files)?;
            module.pop();
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let mut of = module.clone();
            if !matches!(name.as_str(), "mod" | "lib") {
                of.push(name);
            }
            let file = syn::parse_file(&read(&path)?).map_err(|error| format!("{}: {error}", path.display()))?;
            files.push((of, file));
        }
    }
    Ok(())
}

/// Paths of a file to items of the same crate, from its root.
struct References<'m> {
    module: &'m [String],
    paths: Vec<Vec<String>>,
}

impl References<'_> {
    fn add(&mut self, path: &[String]) {
        self.paths.extend(from_root(self.module, path));
    }

    fn add_tree(&mut self, before: &[String], tree: &UseTree) {
        let with = |ident: &syn::Ident| [before, &[ident.to_string()]].concat();
        match tree {
            UseTree::Path(path) => self.add_tree(&with(&path.ident), &path.tree),
            UseTree::Name(name) => self.add(&with(&name.ident)),
            UseTree::Rename(name) => self.add(&with(&name.ident)),
            UseTree::Glob(_) => self.add(before),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.add_tree(before, tree)),
        }
    }
}

impl<'a> Visit<'a> for References<'_> {
    fn visit_item_use(&mut self, item: &'a ItemUse) {
        if !is_of_tests(&item.attrs) {
            self.add_tree(&[], &item.tree);
        }
    }

    fn visit_item_mod(&mut self, item: &'a ItemMod) {
        // Modules within a file are part of it.
        if !is_of_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        let parts: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.add(&parts);
        visit::visit_path(self, path);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn cycles_of(files: &[(&str, &str)]) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        cycles(folder.path()).unwrap().into_iter().collect()
    }

    #[test]
    fn cycles_of_modules_are_found_by_declarations_and_by_paths() {
        let a = ("a.rs", "use crate::b::{self, B};");
        let b = |text| ("b/mod.rs", text);
        let lib = ("lib.rs", "mod a; mod b; use a::A; use b::B;");
        assert_eq!(cycles_of(&[lib, a, b("fn f() -> crate::a::A { A }")]), ["a b"]);
        assert_eq!(cycles_of(&[lib, a, b("use super::a::A;")]), ["a b"]);
        assert!(cycles_of(&[lib, a, b("use std::a::A;")]).is_empty());
        assert!(cycles_of(&[lib, a, b("#[cfg(test)] mod tests { use crate::a::A; }")]).is_empty());
        assert!(cycles_of(&[lib, a, ("b/tests.rs", "use crate::a::A;")]).is_empty());
    }

    #[test]
    fn an_item_that_is_imported_by_name_counts_for_the_module_that_has_it() {
        let inside = |root, d| cycles_of(&[("a/mod.rs", root), ("a/c.rs", "use super::D;"), ("a/d.rs", d)]);
        assert_eq!(inside("mod c; mod d; pub use c::C; pub use d::D;", "use super::C;"), ["a::c a::d"]);
        assert_eq!(inside("mod c; mod d; use self::{c::C as E, d::D};", "fn f(e: super::E) {}"), ["a::c a::d"]);
        assert_eq!(inside("mod c; mod d; pub use d::D;", "use super::C;"), [""; 0]);
        assert_eq!(
            cycles_of(&[("a.rs", "use crate::B;"), ("b.rs", "use crate::a::A;"), ("lib.rs", "pub use b::B;")]),
            ["a b"]
        );
    }

    #[test]
    fn modules_of_the_second_level_are_compared_with_their_siblings() {
        let inside = |c, d| {
            cycles_of(&[("a/mod.rs", "mod c; mod d;"), ("a/c.rs", c), ("a/d.rs", d), ("b.rs", "use crate::a::c::C;")])
        };
        assert_eq!(inside("use super::d::D;", "use crate::a::c::C;"), ["a::c a::d"]);
        assert_eq!(inside("use super::d::D;", "use crate::b::B;"), ["a b"]);
        assert!(inside("use super::d::D;", "").is_empty());
    }
}
