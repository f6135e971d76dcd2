//! Lints against panics: code that reads input from outside has no unchecked arithmetic, indexing
//! or slicing of text.

use std::fs;

use rljob_tests::files::workspace;

use super::{members, sources};

/// Members with modules of numeric code, or without input from outside. Tests and fuzz targets may
/// panic.
const EXEMPT: [&str; 6] =
    ["fuzz", "tests", "trainer/collective", "trainer/engine", "trainer/kernels", "trainer/learner"];
/// Files of these members that read input from outside.
const READERS: [&str; 18] = [
    "trainer/engine/src/arguments.rs",
    "trainer/engine/src/engine.rs",
    "trainer/engine/src/generation.rs",
    "trainer/engine/src/http/mod.rs",
    "trainer/engine/src/loading.rs",
    "trainer/engine/src/main.rs",
    "trainer/engine/src/request.rs",
    "trainer/engine/src/server.rs",
    "trainer/learner/src/bin/rljob-learner.rs",
    "trainer/learner/src/bin/rljob-supervisor/main.rs",
    "trainer/learner/src/checkpoint/mod.rs",
    "trainer/learner/src/coordinator_client.rs",
    "trainer/learner/src/model/config.rs",
    "trainer/learner/src/model/exported_config.rs",
    "trainer/learner/src/model/hugging_face.rs",
    "trainer/learner/src/model/safetensors_file.rs",
    "trainer/learner/src/models.rs",
    "trainer/learner/src/startup.rs",
];
const LINTS: &str = "#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]";

/// Roots of the library and the programs of a member.
fn roots(member: &str) -> Vec<String> {
    let source = workspace().join(member).join("src");
    let files = sources(&source, &["rs"]);
    let names = files.iter().map(|file| file.strip_prefix(workspace()).unwrap().to_str().unwrap());
    let is_root = |name: &&str| {
        let inside = name.split("/src/").last().unwrap();
        let program = inside
            .strip_prefix("bin/")
            .is_some_and(|program| !program.contains('/') || program.ends_with("/main.rs"));
        ["lib.rs", "main.rs"].contains(&inside) || program
    };
    names.filter(is_root).map(ToOwned::to_owned).collect()
}

#[test]
fn code_that_reads_input_from_outside_cannot_panic_by_arithmetic_or_indexing() {
    let roots = members().into_iter().filter(|member| !EXEMPT.contains(&member.as_str()));
    let roots: Vec<String> = roots.flat_map(|member| self::roots(&member)).collect();
    assert!(roots.contains(&"crds/src/lib.rs".to_owned()), "{roots:?}");
    let files = roots.into_iter().chain(READERS.map(ToOwned::to_owned));
    let without: Vec<String> = files
        .filter(|file| !fs::read_to_string(workspace().join(file)).unwrap().contains(LINTS))
        .collect();
    assert_eq!(without, Vec::<String>::new(), "files without `{LINTS}`");
}
