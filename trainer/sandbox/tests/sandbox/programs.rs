//! Programs with the tests of public datasets, in Python and C++.

use std::process::{Command, Stdio};

use rljob_sandbox::message::Outcome::{Failed, NotCompiled, Passed, Skipped, TimeLimit, Wrong};
use rljob_sandbox::message::Settings;
use rljob_sandbox::program::Language::{Cpp, Python};
use serde_json::{Value, json};

use crate::judge::{Judge, MODES, settings, streams};

const SUM_CPP: &str = "#include <bits/stdc++.h>\nint main() { long a, b; std::cin >> a >> b; \
                       std::cout << a + b << std::endl; }";

#[test]
fn programs_pass_the_tests_that_they_solve() {
    let sums = streams(&[("1 2\n", "3\n"), ("20 22\n", "42")]);
    let calls = json!({"fn_name": "double", "inputs": [[2], ["a"]], "outputs": [4, ["aa"]]});
    let asserts = json!(["assert double(2) == 4", "assert double(2) == 5", "double(None)"]);
    let function = "def double(x): return x * 2";
    let class = "class Solution:\n    def double(self, x): return x * 2";
    for namespaces in MODES {
        let mut judge = Judge::start(namespaces);
        let mut python = |program, tests: &str| judge.run(Python, program, tests);
        let reads_lines = "import sys\nprint(sum(map(int, sys.stdin.read().split())))";
        assert_eq!(python(reads_lines, &sums), [Passed, Passed]);
        assert_eq!(python("print(3)", &sums), [Passed, Wrong]);
        // Exit handlers and threads end before the interpreter does.
        let late = "import atexit, sys, threading\nsys.setrecursionlimit(10**6)\n\
                    def main(): print(sum(map(int, input().split())))\n\
                    atexit.register(lambda: sys.stdout.write('\\n'))\n\
                    threading.Thread(target=main).start()";
        assert_eq!(python(late, &sums), [Passed, Passed]);
        assert_eq!(python("import sys\nprint(3)\nsys.exit(1)", &sums), [Failed, Failed]);
        assert_eq!(python(function, &calls.to_string()), [Passed, Passed]);
        assert_eq!(python(class, &calls.to_string()), [Passed, Passed]);
        assert_eq!(python("x = 1", &calls.to_string()), [Failed, Failed]);
        assert_eq!(python(function, &asserts.to_string()), [Passed, Failed, Failed]);
        // The statement never runs.
        let ends = "import os\nos._exit(0)";
        assert_eq!(python(ends, &json!(["assert False"]).to_string()), [Wrong]);
        assert_eq!(judge.run(Cpp, SUM_CPP, &sums), [Passed, Passed]);
        assert_eq!(judge.run(Cpp, "int main() { return x; }", &sums), [NotCompiled; 2]);
    }
}

#[test]
fn functions_and_statements_test_programs_in_cpp() {
    let call = |name: &str, input: &str, output: &str| {
        format!(
            r#"{{"fn_name": "{name}", "inputs": [{input}, {input}], "outputs": [{output}, 0]}}"#
        )
    };
    let words = r#"[["a", "b\n", "a"], {"a": 2.5}, [[1, "x"]], null]"#;
    let count = "std::map<std::string, double> count(const std::vector<std::string>& words, \
        std::map<std::string, double> from, std::vector<std::pair<int, char>> pairs, \
        std::optional<long> last) {\n for (auto& word : words) from[word] += pairs.size();\n \
        from[last ? \"last\" : \"none\"]; return from; }";
    let counted = r#"{"a": 4.5, "b\n": 1, "none": 0}"#;
    // Programs redefine `int` and have a `main`.
    let solution = "#define int long long\nusing namespace std;\nclass Solution { public:\n \
        int twice(vector<int>& a) { return 2 * a[0]; } };\nint main() { return 1; }";
    let asserts = json!({
        "asserts": ["assert(twice(2) == four)", "assert(twice(2) == 5);", "twice(-1);",
                    "for (volatile int i = 0;;) i = twice(i);", "exit(0);"],
        "setup": "const int four = 4;",
    });
    let twice = "#define NDEBUG\n#include <cassert>\n#include <stdexcept>\nint twice(int x) {\n \
        if (x < 0) throw std::invalid_argument(\"x\"); return 2 * x; }";
    for namespaces in MODES {
        let mut judge = Judge::start(namespaces);
        let mut run = |program: &str, tests: &str| judge.run(Cpp, program, tests);
        assert_eq!(run(count, &call("count", words, counted)), [Passed, Wrong]);
        let large = call("twice", "[[3000000000]]", "6000000000");
        assert_eq!(run(solution, &large), [Passed, Wrong]);
        assert_eq!(run(solution, &call("twice", r#"["no"]"#, "0")), [Failed, Failed]);
        assert_eq!(run(solution, &call("thrice", "[[1]]", "3")), [NotCompiled; 2]);
        let found = run(twice, &asserts.to_string());
        assert_eq!(found, [Passed, Failed, Failed, TimeLimit, Wrong]);
        let unknown = json!(["assert(thrice(2) == 6);", "assert(twice(2) == 4);"]);
        assert_eq!(run(twice, &unknown.to_string()), [NotCompiled; 2]);
    }
}

#[test]
fn large_inputs_and_outputs_pass() {
    let words = vec!["word"; 1 << 18].join(" ");
    let mut limits = settings().limits;
    limits.output_kib = 4096;
    let mut judge = Judge::with(&Settings { limits, ..settings() }, true);
    let tests = streams(&[(&words, &words)]);
    assert_eq!(judge.run(Python, "print(input())", &tests), [Passed]);
}

#[test]
fn tests_after_the_first_failure_are_skipped_for_the_verdict_all() {
    let mut judge = Judge::with(&Settings { stops_at_failure: true, ..settings() }, true);
    let tests = streams(&[("", "1"), ("", "2"), ("", "1")]);
    assert_eq!(judge.run(Python, "print(1)", &tests), [Passed, Wrong, Skipped]);
}

#[test]
fn a_function_scores_requests_and_an_exception_is_answered_as_a_fault() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("own.py");
    std::fs::write(folder.path().join("scale.py"), "FACTOR = 2").unwrap();
    let source = "from scale import FACTOR\ndef score(prompt, completion, answer):\n    \
                  print('to the log')\n    open('/etc/passwd') if prompt == 'steal' else None\n    \
                  return {'reward': FACTOR * len(completion), 'answer': answer}";
    std::fs::write(&path, source).unwrap();
    let request = |id: u32, prompt: &str| {
        json!({"id": id, "prompt": prompt, "completion": "four", "answer": "x"}).to_string()
    };
    let limits = json!({"memory_mib": 1024, "processes": 8, "files_mib": 16}).to_string();
    let mut child = Command::new(env!("CARGO_BIN_EXE_rljob-sandbox"))
        .args(["function", "--limits", &limits, "--"])
        .args([path.as_os_str(), "score".as_ref()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let requests = [request(1, ""), request(2, ""), request(3, "steal"), String::new()].join("\n");
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), requests.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let answers: Vec<Value> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let score = |id| json!({"id": id, "reward": 8.0, "components": {}, "answer": "x"});
    let fault = "raised PermissionError: [Errno 13] Permission denied: '/etc/passwd' \
        (line 4 of own.py)";
    assert_eq!(answers, [score(1), score(2), json!({"id": 3, "fault": fault})]);
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(log.contains("to the log"), "{log}");
    assert_eq!(output.status.code(), Some(0), "{log}");
}
