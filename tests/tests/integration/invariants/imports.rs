//! Import cycles: no two files of a crate import each other, directly or through others.
//!
//! A file imports another file of its crate by a path in a `use` or in code that starts with
//! `crate::`, `self::`, `super::` or the name of a child module. The path is resolved to the file
//! that defines the item: `crate::a::b::Item` to `a/b.rs` if that exists, else to `a.rs`.
//! Re-exports are followed. A glob import of the parent (`use super::*`) counts as the parent file.
//!
//! Not counted: `mod` declarations and re-exports (`pub use`), by which a parent names its
//! children, and code under `#[cfg(test)]`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use rljob_tests::files::workspace;

use super::{members, sources};

/// Path of a module inside its crate, for example `["core", "work"]`; empty for the crate root.
type Module = Vec<String>;

/// A source file without comments, strings and tests.
struct File {
    code: String,
    /// Names that the file re-exports, with the path after `pub use`.
    exports: BTreeMap<String, Vec<String>>,
}

/// The text before its first `#[cfg(test)]` module with a body.
fn without_tests(text: &str) -> &str {
    let is_module = |rest: &str| {
        let line = rest.lines().nth(1).unwrap_or_default();
        line.ends_with('{') && line.split(' ').any(|word| word == "mod")
    };
    let starts = text.match_indices("\n#[cfg(test)]\n").map(|(start, _)| start);
    starts
        .map(|start| text.split_at(start))
        .find(|(_, rest)| is_module(&rest[1..]))
        .map_or(text, |(code, _)| code)
}

/// Blanks comments, strings, and everything from the first `#[cfg(test)]` module on.
fn strip(text: &str) -> String {
    let mut code = String::new();
    for line in without_tests(text).lines() {
        let (mut in_string, mut previous) = (false, ' ');
        for c in line.chars() {
            if !in_string && c == '/' && previous == '/' {
                code.pop();
                break;
            }
            if c == '"' && previous != '\\' && previous != '\'' {
                in_string = !in_string;
            }
            code.push(if in_string { ' ' } else { c });
            previous = c;
        }
        code.push('\n');
    }
    code
}

/// Expands `a::{b, c::{d, e}}` to its paths, each a list of segments; `x as y` is the path `x`.
fn expand(prefix: &[String], tree: &str, found: &mut Vec<Vec<String>>) {
    let tree = tree.trim();
    let (head, group) = tree.split_once('{').map_or((tree, None), |(head, rest)| {
        (head, Some(rest.rsplit_once('}').map_or(rest, |(group, _)| group)))
    });
    let head = head.split(" as ").next().unwrap_or_default();
    let segments =
        head.split("::").map(str::trim).filter(|segment| !segment.is_empty()).map(str::to_owned);
    let path: Vec<String> = prefix.iter().cloned().chain(segments).collect();
    let Some(group) = group else { return found.push(path) };
    let (mut depth, mut start) = (0, 0);
    for (index, c) in group.char_indices().chain([(group.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if !group[start..index].trim().is_empty() {
                    expand(&path, &group[start..index], found);
                }
                start = index + 1;
            }
            _ => {}
        }
    }
}

/// Removes statements that start with the keyword and returns the rest of each, up to its `;`.
fn take_statements(code: &mut String, keyword: &str) -> Vec<String> {
    let mut taken = Vec::new();
    let mut from = 0;
    while let Some(start) = code[from..].find(keyword).map(|index| from + index) {
        let begins = code[..start].chars().next_back().is_none_or(char::is_whitespace);
        let Some(end) = code[start..].find(';').filter(|_| begins) else {
            from = start + keyword.len();
            continue;
        };
        taken.push(code[start + keyword.len()..start + end].to_owned());
        code.replace_range(start..=start + end, "");
        from = start;
    }
    taken
}

fn read(path: &Path) -> File {
    let mut code = strip(&fs::read_to_string(path).unwrap());
    let mut exports = BTreeMap::new();
    for keyword in ["pub use ", "pub(crate) use ", "pub(super) use "] {
        for statement in take_statements(&mut code, keyword) {
            let mut paths = Vec::new();
            expand(&[], &statement, &mut paths);
            exports.extend(paths.into_iter().filter_map(|path| Some((path.last()?.clone(), path))));
        }
    }
    File { code, exports }
}

/// Paths in a file, absolute or relative to its module.
fn paths(file: &File) -> Vec<Vec<String>> {
    let (mut code, mut found) = (file.code.clone(), Vec::new());
    for statement in take_statements(&mut code, "use ") {
        expand(&[], &statement, &mut found);
    }
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    for path in code.split(|c| !is_path(c)).filter(|path| path.contains("::")) {
        found.push(path.split("::").map(str::to_owned).collect());
    }
    found
}

/// The file that a path of `module` refers to.
fn resolve(files: &BTreeMap<Module, File>, module: &Module, path: &[String]) -> Option<Module> {
    let is_child = || files.contains_key(&[module.clone(), vec![path[0].clone()]].concat());
    if !["crate", "self", "super"].contains(&path[0].as_str()) && !is_child() {
        return None;
    }
    let mut base = if path[0] == "crate" { Module::new() } else { module.clone() };
    let mut rest = path;
    while let Some((first, tail)) = rest.split_first() {
        match first.as_str() {
            "crate" | "self" => {}
            "super" => drop(base.pop()),
            _ => break,
        }
        rest = tail;
    }
    for (index, segment) in rest.iter().enumerate() {
        let child: Module = base.iter().cloned().chain([segment.clone()]).collect();
        if files.contains_key(&child) {
            base = child;
        } else if let Some(target) = files.get(&base).and_then(|file| file.exports.get(segment)) {
            let relative = !["crate", "self", "super"].contains(&target[0].as_str());
            let prefix = relative.then(|| "self".to_owned());
            let full: Vec<String> = prefix
                .into_iter()
                .chain(target.clone())
                .chain(rest[index + 1..].to_vec())
                .collect();
            return (full != path || base != *module).then(|| resolve(files, &base, &full))?;
        } else {
            break;
        }
    }
    files.contains_key(&base).then_some(base)
}

/// Imports between the files of a crate.
fn imports(folder: &Path) -> BTreeMap<Module, BTreeSet<Module>> {
    let module = |path: &Path| -> Module {
        let relative = path.strip_prefix(folder).unwrap().with_extension("");
        let parts = relative.iter().map(|part| part.to_str().unwrap().to_owned());
        let mut parts: Module = parts.collect();
        if parts.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
            parts.pop();
        }
        parts
    };
    let is_module = |path: &Path| {
        let path = path.strip_prefix(folder).unwrap();
        !path.starts_with("bin")
            && !path.ends_with("tests.rs")
            && !path.iter().any(|part| part == "tests")
    };
    let files: BTreeMap<Module, File> = sources(folder, &["rs"])
        .iter()
        .filter(|path| is_module(path))
        .map(|path| (module(path), read(path)))
        .collect();
    let resolved = |name: &Module, file: &File| {
        let targets = paths(file).into_iter().filter_map(|path| resolve(&files, name, &path));
        targets.filter(|target| target != name).collect()
    };
    files.iter().map(|(name, file)| (name.clone(), resolved(name, file))).collect()
}

/// Files that can be reached from a file.
fn reachable(imports: &BTreeMap<Module, BTreeSet<Module>>, from: &Module) -> BTreeSet<Module> {
    let mut found = BTreeSet::new();
    let mut open: Vec<&Module> = vec![from];
    while let Some(module) = open.pop() {
        for target in imports.get(module).into_iter().flatten() {
            if found.insert(target.clone()) {
                open.push(target);
            }
        }
    }
    found
}

/// Groups of files that import each other, one line each.
fn cycles(imports: &BTreeMap<Module, BTreeSet<Module>>) -> BTreeSet<String> {
    let reach: BTreeMap<&Module, BTreeSet<Module>> =
        imports.keys().map(|module| (module, reachable(imports, module))).collect();
    let name =
        |module: &Module| if module.is_empty() { "lib".to_owned() } else { module.join("/") };
    reach
        .iter()
        .filter(|(module, targets)| targets.contains(**module))
        .map(|(module, targets)| {
            let group = targets.iter().filter(|target| reach[*target].contains(*module));
            group.map(name).collect::<Vec<_>>().join(" ")
        })
        .collect()
}

#[test]
fn cycles_are_found_through_re_exports() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("lib.rs", "mod a;\nmod b;\nmod c;\npub use b::Item;\n");
    write("a.rs", "use crate::{Item, c};\n");
    write("b.rs", "fn f() { super::a::g(); }\n");
    write("c.rs", "// crate::a\nconst TEXT: &str = \"crate::a\";\nmod d;\nuse d::Item;\n");
    fs::create_dir(folder.path().join("c")).unwrap();
    write("c/d.rs", "use super::TEXT;\n");
    assert_eq!(cycles(&imports(folder.path())), ["a b".to_owned(), "c c/d".to_owned()].into());
}

#[test]
fn no_files_of_a_crate_import_each_other() {
    let mut found = Vec::new();
    for member in members() {
        let source = workspace().join(&member).join("src");
        let programs = fs::read_dir(source.join("bin")).into_iter().flatten().flatten();
        let programs = programs.map(|entry| entry.path()).filter(|path| path.is_dir());
        for crate_root in std::iter::once(source.clone()).chain(programs) {
            let name = crate_root.strip_prefix(workspace()).unwrap().display().to_string();
            found.extend(
                cycles(&imports(&crate_root)).iter().map(|cycle| format!("{name}: {cycle}")),
            );
        }
    }
    assert_eq!(found, Vec::<String>::new());
}
