//! Modules that a Python file imports from its folder, found by its import statements. Modules that
//! are named at run time are not found.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Most modules of a function, and the size in bytes up to which the imports of a file are read.
const MAX_MODULES: usize = 256;
const MAX_BYTES: u64 = 1 << 20;

/// The modules in the folder of `file` that it imports, directly or by each other.
pub fn imported(file: &Path) -> BTreeSet<PathBuf> {
    let root = file.parent().unwrap_or(Path::new(""));
    let (mut found, mut unread) = (BTreeSet::new(), vec![file.to_owned()]);
    while let Some(importer) = unread.pop() {
        let own = importer.parent().unwrap_or(root);
        let is_short = fs::metadata(&importer).is_ok_and(|metadata| metadata.len() <= MAX_BYTES);
        let text = is_short.then(|| fs::read_to_string(&importer).ok()).flatten();
        let text = text.unwrap_or_default();
        for module in names(&text).iter().flat_map(|name| files(root, own, name)) {
            if found.len() < MAX_MODULES && module.is_file() && found.insert(module.clone()) {
                unread.push(module);
            }
        }
    }
    found.remove(file);
    found
}

/// Names in import statements; `from a import b` may name the module `a.b`.
fn names(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    for statement in statements(text) {
        if let Some(listed) = statement.strip_prefix("import ") {
            names.extend(list(listed).map(str::to_owned));
        } else if let Some((module, listed)) =
            statement.strip_prefix("from ").and_then(|rest| rest.split_once(" import "))
        {
            let module = module.trim();
            let dot = if module.ends_with('.') { "" } else { "." };
            names.push(module.to_owned());
            names.extend(list(listed).map(|name| format!("{module}{dot}{name}")));
        }
    }
    names
}

/// Import statements, each in one line without comments and brackets.
fn statements(text: &str) -> Vec<String> {
    let code = |line: &str| line.split('#').next().unwrap_or_default().trim().to_owned();
    let (mut lines, mut statements) = (text.lines().map(code), Vec::new());
    while let Some(mut statement) = lines.next() {
        if !statement.starts_with("import ") && !statement.starts_with("from ") {
            continue;
        }
        let is_open = |text: &str| text.contains('(') && !text.contains(')');
        while (is_open(&statement) || statement.ends_with('\\'))
            && let Some(next) = lines.next()
        {
            statement = format!("{} {next}", statement.trim_end_matches('\\'));
        }
        statements.push(statement.replace(['(', ')'], " "));
    }
    statements
}

/// Names of a list, without `as`.
fn list(listed: &str) -> impl Iterator<Item = &str> {
    listed.split(',').filter_map(|name| name.split_whitespace().next())
}

/// Files that a dotted name may stand for: its modules and packages. A name with leading dots is
/// relative to `own`, the folder of the importing file.
fn files(root: &Path, own: &Path, name: &str) -> Vec<PathBuf> {
    let levels = name.chars().take_while(|character| *character == '.').count();
    let mut folder = match levels {
        0 => root,
        _ => own.ancestors().nth(levels.saturating_sub(1)).unwrap_or(root),
    }
    .to_owned();
    let mut files = Vec::new();
    for part in name.split('.').filter(|part| !part.is_empty()) {
        files.push(folder.join(format!("{part}.py")));
        folder.push(part);
        files.push(folder.join("__init__.py"));
    }
    files.retain(|file| file.starts_with(root));
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_found_through_imports_of_all_forms() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("reward.py", "import json, parse as p  # words\nfrom rules.length import LIMIT\n");
        write(
            "parse.py",
            "def number(text):\n    from deep import (\n        one,  # 1\n        two)\n",
        );
        write("deep/two.py", "try:\n    import parse, reward\nexcept ImportError: pass\n");
        write("rules/__init__.py", "");
        write("rules/length.py", "from . import units\nfrom .. import outside\n");
        write("rules/units.py", "text = 'import unused'\n");
        write("unused.py", "");
        write("train.py", "import parse\n");
        let found = imported(&folder.path().join("reward.py"));
        let names = found.iter().map(|path| path.strip_prefix(folder.path()).unwrap());
        let names: Vec<_> = names.map(|name| name.display().to_string()).collect();
        let expected =
            ["deep/two.py", "parse.py", "rules/__init__.py", "rules/length.py", "rules/units.py"];
        assert_eq!(names, expected);
        assert_eq!(imported(&folder.path().join("missing.py")), BTreeSet::new());
    }
}
