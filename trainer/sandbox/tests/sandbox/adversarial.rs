//! Programs that attack the sandbox: each ends in an outcome, reaches nothing, and leaves no
//! process and no file behind. With and without namespaces.

use rljob_sandbox::message::Outcome::{
    self, Failed, MemoryLimit, NotCompiled, OutputLimit, Passed, TimeLimit, Wrong,
};
use rljob_sandbox::program::Language::{Cpp, Python};

use crate::judge::{Judge, MODES, streams};

const ADD: &str = "a, b = map(int, input().split())\nprint(a + b)";

/// Outcome of a program that should print `safe`, after which the judge still works.
fn outcome(judge: &mut Judge, program: &str) -> Outcome {
    let outcomes = judge.run(Python, program, &streams(&[("", "safe")]));
    assert_eq!(judge.processes(), 0, "processes remain after {program}");
    let next = judge.run(Python, ADD, &streams(&[("1 2", "3")]));
    assert_eq!(next, [Passed], "after {program}");
    outcomes[0]
}

/// A program that prints `safe` if each statement raises an error of the operating system.
fn attempts(statements: &[&str]) -> String {
    let mut program = "import ctypes, os, signal, socket, resource, sys\n\
        def system_call(*arguments):\n    \
            if ctypes.CDLL(None, use_errno=True).syscall(*arguments) != 0:\n        \
                raise OSError(ctypes.get_errno(), 'failed')\n"
        .to_owned();
    for statement in statements {
        let attempt = format!(
            "try:\n    {statement}\n    print('done', {statement:?})\nexcept OSError:\n    pass\n"
        );
        program.push_str(&attempt);
    }
    program + "print('safe')\n"
}

#[test]
fn bombs_end_in_an_outcome() {
    let bombs = [
        ("import os\nwhile True: os.fork()", [Failed, TimeLimit]),
        (
            "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass",
            [TimeLimit, TimeLimit],
        ),
        (
            "import threading, time\n\
             while True: threading.Thread(target=time.sleep, args=(9,)).start()",
            [Failed, TimeLimit],
        ),
        ("x = bytearray(4 << 30)\nprint('safe')", [Failed, TimeLimit]),
        ("x = []\nwhile True: x.append(bytearray(1 << 20))", [Failed, TimeLimit]),
        ("while True: pass", [TimeLimit, TimeLimit]),
        ("import time\ntime.sleep(1000)", [TimeLimit, TimeLimit]),
        ("while True: print('y' * 1000)", [OutputLimit, OutputLimit]),
        ("import os\nos.close(1)\nwhile True: pass", [TimeLimit, TimeLimit]),
        (
            "import signal\nfor s in range(1, 32):\n  try: signal.signal(s, signal.SIG_IGN)\n  \
             except (OSError, ValueError): pass\nwhile True: pass",
            [TimeLimit, TimeLimit],
        ),
        ("import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()", [Failed, TimeLimit]),
        ("(", [NotCompiled, NotCompiled]),
    ];
    for namespaces in MODES {
        let mut judge = Judge::start(namespaces);
        for (bomb, expected) in bombs {
            let found = outcome(&mut judge, bomb);
            assert!(expected.contains(&found), "{bomb}: {found:?}");
        }
    }
}

/// Whether programs may start processes, which they may where the node allows namespaces.
fn forks(judge: &mut Judge) -> bool {
    let program = "import os\nif os.fork() == 0: os._exit(0)\nos.wait()\nprint('safe')";
    outcome(judge, program) == Passed
}

#[test]
fn processes_that_have_too_much_memory_together_are_killed() {
    // Each has 100 of 256 MiB.
    let anonymous = "import os, time\nfor _ in range(6):\n  if os.fork() == 0:\n    \
        x = b'x' * (100 << 20)\n    time.sleep(1000)\ntime.sleep(1000)";
    let shared = "import mmap, os, time\nfor _ in range(6):\n  if os.fork() == 0:\n    \
        x = mmap.mmap(-1, 100 << 20)\n    while x.write(b'x' * (1 << 20)): \
        x.tell() < 100 << 20 or time.sleep(1000)\ntime.sleep(1000)";
    // Children of a process that has exited, in further sessions.
    let orphans = "import os, time\nif os.fork() == 0:\n  for _ in range(6):\n    \
        if os.fork() == 0:\n      os.setsid()\n      x = b'x' * (100 << 20)\n      \
        time.sleep(1000)\n  os._exit(0)\nos.wait()\ntime.sleep(1000)";
    let cpp = "#include <unistd.h>\n#include <vector>\nint main() {\n  \
        for (int i = 0; i < 6; i++) if (!fork()) { std::vector<char> x(100 << 20, 1); pause(); \
        return x[7]; }\n  pause(); }";
    for namespaces in MODES {
        let mut judge = Judge::start(namespaces);
        // Alone, a program is one process, whose address space is limited.
        let expected = if forks(&mut judge) { MemoryLimit } else { Failed };
        for program in [anonymous, shared, orphans] {
            assert_eq!(outcome(&mut judge, program), expected, "{program}");
        }
        let expected = if expected == MemoryLimit { MemoryLimit } else { TimeLimit };
        assert_eq!(judge.run(Cpp, cpp, &streams(&[("", "never")])), [expected]);
        assert_eq!(judge.processes(), 0, "processes remain");
    }
}

#[test]
fn memory_that_processes_share_counts_once_and_the_next_test_has_its_own_limit() {
    let program = "import os, time\nx, own = b'x' * (100 << 20), int(input())\n\
        for _ in range(4):\n  if os.fork() == 0:\n    y = b'y' * (own << 20)\n    \
        time.sleep(0.5)\n    os._exit(0)\nfor _ in range(4): os.wait()\nprint('safe')";
    let tests = streams(&[("0", "safe"), ("60", "safe"), ("0", "safe")]);
    let mut judge = Judge::start(true);
    if forks(&mut judge) {
        assert_eq!(judge.run(Python, program, &tests), [Passed, MemoryLimit, Passed]);
    }
}

#[test]
fn disks_are_not_filled() {
    let large =
        "f = open('large', 'wb')\nfor i in range(1 << 10): f.write(bytes(1 << 20))\nf.flush()";
    let many = "for i in range(1 << 20): open(str(i), 'w').close()";
    let folders = "import os\nfor i in range(1 << 20): os.mkdir(str(i))";
    for namespaces in MODES {
        let mut judge = Judge::start(namespaces);
        for program in [large, many, folders] {
            assert_eq!(outcome(&mut judge, program), Failed, "{program}");
        }
        assert_eq!(judge.files(), 0, "files remain");
    }
}

#[test]
fn a_program_reaches_no_process_outside() {
    let programs = [
        attempts(&[
            "os.kill(os.getppid(), 0) if os.getppid() != 1 else os.kill(99999, 0)",
            "resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (0, 0))",
            "system_call(101, 16, os.getppid(), 0, 0)",
            "open(f'/proc/{os.getppid()}/environ').read()",
            "os.listdir('/proc')",
            "open('/proc/self/mem', 'rb')",
        ]),
        // It ends itself at most.
        "import os\nfor s in (15, 9):\n  for p in (os.getppid(), 1, -1, 0):\n    \
         try: os.kill(p, s)\n    except OSError: pass"
            .to_owned(),
        "import os, time\nif os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0:\n    \
         time.sleep(1000)\nprint('safe')"
            .to_owned(),
    ];
    for namespaces in MODES {
        let mut judge = Judge::start(namespaces);
        assert_eq!(outcome(&mut judge, &programs[0]), Passed);
        for program in &programs[1..] {
            let found = outcome(&mut judge, program);
            assert!([Passed, Wrong, Failed].contains(&found), "{program}: {found:?}");
        }
    }
}

#[test]
fn a_program_reads_no_secret_and_no_file_of_others() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "secret").unwrap();
    let token = token.to_str().unwrap();
    let program = attempts(&[
        &format!("open({token:?}).read()"),
        "open('/etc/passwd').read()",
        "os.listdir('/')",
        "os.listdir('/root')",
        "open('/proc/self/environ').read()",
        "os.symlink('/etc/passwd', 'link') or open('link').read()",
        &format!("os.link({token:?}, 'link')"),
        "open('/dev/sda', 'rb')",
        "open('/dev/shm/x', 'wb')",
        "open('/usr/x', 'wb')",
    ]);
    let environment = "import os\nprint(os.environ.get('SECRET', 'safe'))";
    for namespaces in MODES {
        let mut judge = Judge::start(namespaces);
        assert_eq!(outcome(&mut judge, &program), Passed);
        assert_eq!(outcome(&mut judge, environment), Passed);
        let includes = format!("#include {token:?}\nint main() {{}}");
        assert_eq!(judge.run(Cpp, &includes, &streams(&[("", "")])), [NotCompiled]);
    }
}

#[test]
fn a_program_has_no_network_and_no_privileged_calls() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let program = attempts(&[
        &format!("socket.create_connection(('127.0.0.1', {port}))"),
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
        "socket.socket(socket.AF_UNIX)",
        "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
        // mount, chroot, unshare(CLONE_NEWUSER), bpf, keyctl, shmget, io_uring_setup, memfd_create
        "system_call(165, b'x', b'/tmp', b'tmpfs', 0, 0)",
        "system_call(161, b'/tmp')",
        "system_call(272, 0x10000000)",
        "system_call(321, 0, 0, 0)",
        "system_call(250, 0, 0, 0)",
        "system_call(29, 0, 4096, 0o1600)",
        "system_call(425, 1, 0)",
        "os.memfd_create('x')",
        "os.setuid(0) if os.getuid() else os.setuid(1)",
    ]);
    for namespaces in MODES {
        let mut judge = Judge::start(namespaces);
        assert_eq!(outcome(&mut judge, &program), Passed);
    }
}

#[test]
fn bombs_in_cpp_end_in_an_outcome() {
    let programs = [
        ("#include <unistd.h>\nint main() { while (true) fork(); }", TimeLimit),
        (
            "#include <vector>\nint main() { std::vector<char> v(1L << 32, 1); return v[7] - 1; }",
            Failed,
        ),
        ("int main() { for (;;); }", TimeLimit),
        ("#include \"/dev/zero\"\nint main() {}", NotCompiled),
        (
            "template <int N> struct A { A<N - 1> a, b; }; template <> struct A<0> {};\n\
             int main() { A<899> a; return sizeof(a) & 1; }",
            NotCompiled,
        ),
    ];
    for namespaces in MODES {
        let mut judge = Judge::start(namespaces);
        for (program, expected) in programs {
            let found = judge.run(Cpp, program, &streams(&[("", "never")]))[0];
            let is_expected = found == expected || (expected == TimeLimit && found == Failed);
            assert!(is_expected || found == TimeLimit, "{program}: {found:?}");
            assert_eq!(judge.processes(), 0, "processes remain after {program}");
        }
    }
}
