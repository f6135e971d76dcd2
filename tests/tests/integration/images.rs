//! Images: `Containerfile` and `make images` have the same ones, with the packages and programs of
//! `image_files.sh`; all run as the user of the pods, from base images that a digest pins.

use std::fs;
use std::process::Command;

use rljob_tests::files::workspace;
use rljob_tests::process::run;

const IMAGES: [&str; 4] = ["operator", "sandbox", "tools", "trainer"];
const FILES: [&str; 2] = ["Containerfile", "Containerfile.cuda"];

fn read(file: &str) -> String {
    fs::read_to_string(workspace().join(file)).unwrap()
}

/// Lines of a file that begin with an instruction, without it.
fn instructions<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    text.lines().filter_map(|line| line.strip_prefix(name)).map(str::trim).collect()
}

#[test]
fn the_containerfile_and_make_build_the_same_images() {
    let (text, makefile) = (read("Containerfile"), read("Makefile"));
    let stages: Vec<&str> = instructions(&text, "FROM base AS");
    assert_eq!(stages, IMAGES);
    let list = format!("for image in {}; do", IMAGES.join(" "));
    assert!(makefile.contains(&list) && text.contains(&list), "{list}");
    for image in IMAGES {
        let packages = format!("$(bash /tmp/image_files.sh packages {image})");
        let files = format!("COPY --from=build /image/{image}/ /usr/local/");
        assert!(text.contains(&packages) && text.contains(&files), "{image}");
        let script = workspace().join("scripts/image_files.sh");
        let packages = run(Command::new("bash").arg(script).args(["packages", image])).unwrap();
        assert!(packages.split_whitespace().any(|name| name == "ca-certificates"), "{packages}");
    }
}

#[test]
fn images_run_as_a_user_without_privileges_from_pinned_bases() {
    for file in FILES {
        let text = read(file);
        let bases = instructions(&text, "FROM ");
        let is_pinned = |base: &&&str| base.contains("@sha256:") || base.starts_with("base AS");
        let others: Vec<_> = bases.iter().filter(|base| !is_pinned(base)).collect();
        assert!(others.is_empty() && !text.contains(":latest"), "{file}: {others:?}");
        let users = instructions(&text, "USER");
        let images = bases.len() - if file == "Containerfile" { 2 } else { 1 };
        assert_eq!(users, vec!["65532:65532"; images], "{file}");
    }
    assert!(read("scripts/image.sh").contains("--config.user 65532:65532"));
}

#[test]
fn a_containerfile_copies_only_files_of_the_checkout() {
    for file in FILES {
        let text = read(file);
        let words = text.split(|letter: char| letter.is_whitespace() || ",;)".contains(letter));
        let paths =
            words.filter(|word| word.starts_with("scripts/") || word.starts_with("trainer/"));
        let missing: Vec<&str> = paths.filter(|path| !workspace().join(path).is_file()).collect();
        assert_eq!(missing, Vec::<&str>::new(), "{file}");
    }
}
