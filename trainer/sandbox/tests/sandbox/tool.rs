//! Tools: what a call returns, and what a program cannot do. With and without namespaces.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rljob_sandbox::tool::ToolOutcome::{
    self, Failed, MemoryLimit, NotText, Output, OutputLimit, TimeLimit,
};
use rljob_sandbox::tool::{ToolRequest, ToolResponse, ToolSettings};
use tempfile::TempDir;

use crate::judge::MODES;

/// Executes the Python code on standard input.
const INTERPRETER: [&str; 3] = ["python3", "-c", "import sys; exec(sys.stdin.read())"];

struct Tool {
    child: Child,
    requests: ChildStdin,
    responses: BufReader<ChildStdout>,
    scratch: TempDir,
}

fn settings(command: &[&str], folder: Option<&Path>) -> ToolSettings {
    ToolSettings {
        command: command.iter().copied().map(str::to_owned).collect(),
        folder: folder.map(Path::to_owned),
        timeout_seconds: 2,
        memory_mib: 256,
        output_kib: 4,
    }
}

fn command(settings: &ToolSettings, namespaces: bool, scratch: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rljob-sandbox"));
    command.arg("--scratch").arg(scratch).arg("tool");
    command.args(["--settings", &serde_json::to_string(settings).unwrap()]);
    command.args((!namespaces).then_some("--no-namespaces"));
    command
}

impl Tool {
    fn start(settings: &ToolSettings, namespaces: bool) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let mut child = command(settings, namespaces, scratch.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let requests = child.stdin.take().unwrap();
        let responses = BufReader::new(child.stdout.take().unwrap());
        Self { child, requests, responses, scratch }
    }

    fn call(&mut self, input: &str) -> ToolOutcome {
        let request = ToolRequest { id: 7, input: input.to_owned() };
        writeln!(self.requests, "{}", serde_json::to_string(&request).unwrap()).unwrap();
        let mut line = String::new();
        self.responses.read_line(&mut line).unwrap();
        let response: ToolResponse = serde_json::from_str(&line).unwrap();
        assert_eq!(response.id, 7);
        // The files of a call end with it.
        assert_eq!(fs::read_dir(self.scratch.path()).unwrap().count(), 0);
        response.outcome
    }
}

impl Drop for Tool {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn text(text: &str) -> ToolOutcome {
    Output(text.to_owned())
}

#[test]
fn a_program_reads_its_input_and_the_files_of_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let program = "import json, sys, facts\nprint(json.load(sys.stdin)['a'] + facts.B)\n";
    fs::write(folder.path().join("add.py"), program).unwrap();
    fs::write(folder.path().join("facts.py"), "B = 3\n").unwrap();
    let settings = settings(&["python3", "add.py"], Some(folder.path()));
    for namespaces in MODES {
        let mut tool = Tool::start(&settings, namespaces);
        assert_eq!(tool.call("{\"a\": 4}"), text("7\n"));
        let ToolOutcome::Failed { status, stderr } = tool.call("{}") else { panic!("no failure") };
        assert_eq!((status.as_str(), stderr.as_str()), ("exit status: 1", "KeyError: 'a'"));
        assert_eq!(tool.call("{\"a\": 5}"), text("8\n"));
    }
}

#[test]
fn programs_that_exceed_their_limits_end_and_the_next_call_works() {
    for namespaces in MODES {
        let mut tool = Tool::start(&settings(&INTERPRETER, None), namespaces);
        for (program, expected) in [
            ("while True: pass", TimeLimit),
            ("import time; time.sleep(100)", TimeLimit),
            ("import os, time; os.close(1); time.sleep(100)", TimeLimit),
            ("while True: print('y' * 1000)", OutputLimit),
            ("print('x' * 4095)", text(&format!("{}\n", "x".repeat(4095)))),
            ("import os; os.write(1, b'\\xff')", NotText),
            ("import sys\nfor _ in range(9999): print('e' * 99, file=sys.stderr)", text("")),
        ] {
            assert_eq!(tool.call(program), expected, "{program}");
            assert_eq!(tool.call("print(1)"), text("1\n"), "after {program}");
        }
        let ToolOutcome::Failed { stderr, .. } = tool.call("x = bytearray(4 << 30)") else {
            panic!("too much memory is no failure")
        };
        assert_eq!(stderr, "MemoryError");
        let ToolOutcome::Failed { .. } = tool.call("import os; os.kill(os.getpid(), 9)") else {
            // The first process of a namespace gets no signals from itself.
            assert!(namespaces);
            continue;
        };
    }
}

#[test]
fn processes_that_have_too_much_memory_together_end_the_call() {
    // Each has 100 of 256 MiB.
    let program = "import os, time\nfor _ in range(6):\n  if os.fork() == 0:\n    \
        x = b'x' * (100 << 20)\n    time.sleep(1000)\ntime.sleep(1000)";
    for namespaces in MODES {
        let mut tool = Tool::start(&settings(&INTERPRETER, None), namespaces);
        match tool.call(program) {
            MemoryLimit => assert!(namespaces),
            // Without namespaces, a program is one process.
            Failed { stderr, .. } => assert!(stderr.starts_with("PermissionError"), "{stderr}"),
            outcome => panic!("{outcome:?}"),
        }
        assert_eq!(tool.call("print(1)"), text("1\n"));
    }
}

#[test]
fn a_program_reaches_no_network_no_files_of_others_and_no_process() {
    let folder = tempfile::tempdir().unwrap();
    let secret = tempfile::NamedTempFile::new().unwrap();
    let attempts = [
        format!("open({:?}).read()", secret.path()),
        format!("open({:?} + '/new', 'w')", folder.path()),
        "import socket; socket.socket()".to_owned(),
        format!("import os; os.kill({}, 0)", std::process::id()),
        "open('/proc/1/environ').read()".to_owned(),
    ];
    for namespaces in MODES {
        let settings = settings(&INTERPRETER, Some(folder.path()));
        let mut tool = Tool::start(&settings, namespaces);
        for attempt in &attempts {
            let outcome = tool.call(attempt);
            assert!(matches!(outcome, ToolOutcome::Failed { .. }), "{attempt}: {outcome:?}");
        }
    }
}

#[test]
fn files_of_a_call_are_gone_in_the_next_one() {
    let mut tool = Tool::start(&settings(&INTERPRETER, None), true);
    let write = "open('state', 'w').write('x'); print(open('state').read())";
    // Without namespaces, programs write no files.
    if tool.call(write) == text("x\n") {
        assert_eq!(tool.call("import os; print(os.listdir('.'))"), text("[]\n"));
    }
}

#[test]
fn tools_that_cannot_start_end_the_sandbox_with_their_cause() {
    let missing = Path::new("/missing/tools");
    let cases = [
        (settings(&["no-such-program"], None), "no program no-such-program in "),
        (settings(&["./tool"], None), "no program ./tool"),
        (settings(&["true"], Some(missing)), "failed to open the folder /missing/tools: "),
    ];
    for (settings, cause) in cases {
        let scratch = tempfile::tempdir().unwrap();
        let ended = command(&settings, true, scratch.path()).stdin(Stdio::null()).output().unwrap();
        let stderr = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(125), "{stderr}");
        assert!(stderr.starts_with(cause), "{stderr}");
    }
}
