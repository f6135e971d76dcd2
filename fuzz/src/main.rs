//! libFuzzer program: runs the target that the environment variable `FUZZ_TARGET` names. Built by
//! `scripts/fuzz.sh` with coverage instrumentation.

#![no_main]
#![expect(clippy::panic, reason = "the program cannot return an error")]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use rljob_fuzz::Target;

static TARGET: OnceLock<Target> = OnceLock::new();

fuzz_target!(|data: &[u8]| {
    let target = TARGET.get_or_init(|| {
        let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
        rljob_fuzz::target(&name).unwrap_or_else(|| {
            let names: Vec<_> = rljob_fuzz::TARGETS.iter().map(|(name, _)| *name).collect();
            panic!("FUZZ_TARGET is `{name}`, expected one of {}", names.join(", "))
        })
    });
    target(data);
});
