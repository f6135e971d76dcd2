//! Every target survives its seeds and prefixes of them.

use std::path::Path;

use rljob_fuzz::TARGETS;

#[test]
fn every_target_survives_its_seeds() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
    for (name, target) in TARGETS {
        let mut count = 0;
        for entry in std::fs::read_dir(seeds.join(name)).unwrap() {
            let bytes = std::fs::read(entry.unwrap().path()).unwrap();
            for end in [0, bytes.len() / 2, bytes.len()] {
                target(&bytes[..end]);
            }
            count += 1;
        }
        assert!(count > 0, "{name} has no seeds");
    }
}

#[test]
fn every_folder_of_seeds_has_a_target() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
    for entry in std::fs::read_dir(seeds).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(rljob_fuzz::target(&name).is_some(), "{name}");
    }
}
