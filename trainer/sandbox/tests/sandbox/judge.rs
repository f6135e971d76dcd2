//! A judge as a separate process, with a scratch folder that tests can inspect.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rljob_sandbox::message::{Limits, Outcome, Request, Response, Settings};
use rljob_sandbox::program::Language;
use serde_json::json;
use tempfile::TempDir;

/// With namespaces, where this machine allows them, and without.
pub const MODES: [bool; 2] = [true, false];

pub struct Judge {
    child: Child,
    requests: ChildStdin,
    responses: BufReader<ChildStdout>,
    scratch: TempDir,
}

pub fn settings() -> Settings {
    let limits = Limits {
        compile_seconds: 10,
        test_seconds: 1,
        total_seconds: 60,
        memory_mib: 256,
        processes: 8,
        output_kib: 64,
        files_mib: 16,
    };
    Settings { limits, compiles: true, stops_at_failure: false }
}

/// Tests of (standard input, expected output).
pub fn streams(pairs: &[(&str, &str)]) -> String {
    let (inputs, outputs): (Vec<&str>, Vec<&str>) = pairs.iter().copied().unzip();
    json!({"inputs": inputs, "outputs": outputs}).to_string()
}

impl Judge {
    pub fn start(namespaces: bool) -> Self {
        Self::with(&settings(), namespaces)
    }

    pub fn with(settings: &Settings, namespaces: bool) -> Self {
        // Others may enter it, so that the sandbox's user can.
        let scratch = tempfile::tempdir().unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(scratch.path(), open).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_rljob-sandbox"))
            .arg("judge")
            .args(["--settings", &serde_json::to_string(settings).unwrap()])
            .args((!namespaces).then_some("--no-namespaces"))
            .env("TMPDIR", scratch.path())
            .env("SECRET", "reached")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let requests = child.stdin.take().unwrap();
        let responses = BufReader::new(child.stdout.take().unwrap());
        Self { child, requests, responses, scratch }
    }

    pub fn run(&mut self, language: Language, program: &str, tests: &str) -> Vec<Outcome> {
        let (program, tests) = (program.to_owned(), tests.to_owned());
        let request = Request { id: 7, language, program, tests };
        writeln!(self.requests, "{}", serde_json::to_string(&request).unwrap()).unwrap();
        let mut line = String::new();
        self.responses.read_line(&mut line).unwrap();
        let response: Response = serde_json::from_str(&line).unwrap();
        assert_eq!(response.id, 7);
        response.outcomes
    }

    /// Number of children of the judge, which adopts all orphans of its programs.
    pub fn processes(&self) -> usize {
        let id = self.child.id();
        let path = format!("/proc/{id}/task/{id}/children");
        std::fs::read_to_string(path).unwrap().split_whitespace().count()
    }

    /// Number of files of programs.
    pub fn files(&self) -> usize {
        let folders = std::fs::read_dir(self.scratch.path()).unwrap().flatten();
        folders.map(|folder| std::fs::read_dir(folder.path()).unwrap().count()).sum()
    }
}

impl Drop for Judge {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
