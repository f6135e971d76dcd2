//! RLJobs and run configurations.

use rljob_operator::validate::document::parse_jobs;
use rljob_protocol::run_config;

/// A file of `rljob run` and `rljob validate`.
pub fn job_yaml(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match parse_jobs(text) {
        Ok(jobs) => assert!(!jobs.is_empty(), "a valid file has a job"),
        Err(invalid) => assert!(!invalid.problems.is_empty(), "an invalid file has a problem"),
    }
}

/// `run.json` of this and of other releases.
pub fn run_config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok((config, _)) = run_config::parse(text) else { return };
    let written = serde_json::to_string(&config)
        .unwrap_or_else(|error| panic!("a configuration that was read cannot be written: {error}"));
    let (read, ignored) = run_config::parse(&written)
        .unwrap_or_else(|error| panic!("a configuration that was written cannot be read: {error}"));
    assert!(ignored.is_empty(), "fields of this release are known: {ignored:?}");
    assert_eq!(read, config, "a configuration survives its bytes");
}
