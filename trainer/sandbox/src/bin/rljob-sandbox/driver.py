"""Driver of a sandbox: compiles a program and runs each test in a forked process.

The judge outside holds the expected outputs and decides. A message is its length in bytes on a
line, then the bytes. The driver writes a secret, reads the setup and the program, writes the
result of the compilation, then reads tests and writes a status and an output for each.
"""
import _signal
import atexit
import ctypes
import gc
import os
import resource
import select
import sys
import time

PROTOCOL_IN, PROTOCOL_OUT = os.dup(0), os.dup(1)
RESULT = 3


def read_exactly(count):
    parts = []
    while count:
        part = os.read(PROTOCOL_IN, min(count, 1 << 16))
        if not part:
            os._exit(0)
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def read_message():
    digits = b""
    while not digits.endswith(b"\n"):
        digits += read_exactly(1)
    return read_exactly(int(digits))


def write_message(data):
    data = b"%d\n%s" % (len(data), data)
    while data:
        data = data[os.write(PROTOCOL_OUT, data):]


def watch(pid, output, seconds, limit):
    """The status and the first `limit` bytes of the output of a process, which is then ended."""
    deadline = time.monotonic() + seconds
    exited, data, status = os.pidfd_open(pid), b"", ""
    poll = select.poll()
    poll.register(exited, select.POLLIN)
    poll.register(output, select.POLLIN)
    os.set_blocking(output, False)
    while not status:
        left = deadline - time.monotonic()
        events = dict(poll.poll(max(left, 0) * 1000))
        if output in events:
            try:
                part = os.read(output, 1 << 16)
            except BlockingIOError:
                part = b""
            data += part
            if not part:
                poll.unregister(output)
        elif exited in events:
            status = "exit"
        if len(data) > limit:
            status = "output"
        elif left <= 0:
            status = "time"
    os.close(exited)
    os.close(output)
    try:
        os.kill(pid, _signal.SIGKILL)
    except ProcessLookupError:
        pass
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if NAMESPACES and os.getpid() == 1:
        end_descendants()
    if status == "exit":
        status = "time" if code == -_signal.SIGXCPU else str(code)
    return status.encode(), data[:limit]


def end_descendants():
    try:
        os.kill(-1, _signal.SIGKILL)
    except ProcessLookupError:
        return
    try:
        while True:
            os.waitpid(-1, 0)
    except ChildProcessError:
        pass


def limit_test():
    """Limits that hold for the test and its descendants."""
    resource.setrlimit(resource.RLIMIT_CPU, (TEST_SECONDS, TEST_SECONDS + 1))
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    if NAMESPACES:
        resource.setrlimit(resource.RLIMIT_NPROC, (PROCESSES + 1, PROCESSES + 1))
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    # prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, …)
    if libc.prctl(22, 2, ctypes.byref(FILTER), ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
        os._exit(70)


def fork(stdin, output_fd):
    """Forks a process with these descriptors and no others. Returns its PID, or 0 inside it."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(stdin if stdin is not None else null, 0)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.dup2(writer, output_fd)
    os.closerange(RESULT + 1 if output_fd == RESULT else RESULT, 256)
    return 0, None


def compile_cpp():
    with open("program.cpp", "wb") as file:
        file.write(PROGRAM)
    pid, output = fork(None, 2)
    if pid == 0:
        command = ["g++", "-O2", "-std=c++17", "-o", "program", "program.cpp"]
        try:
            os.execvp(command[0], command)
        finally:
            os._exit(127)
    status, errors = watch(pid, output, COMPILE_SECONDS, 1 << 20)
    return status == b"0", errors


def compile_python():
    try:
        return True, compile(PROGRAM, "program.py", "exec")
    except (SyntaxError, ValueError, MemoryError, RecursionError, OverflowError):
        return False, None


def as_module():
    module = type(sys)("__main__")
    sys.modules["__main__"] = module
    sys.argv = ["program.py"]
    return module.__dict__


def run():
    """Runs the program and ends as the interpreter does, but without freeing its memory."""
    code = 0
    try:
        exec(CODE, as_module())
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        code = 1
    try:
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        atexit._run_exitfuncs()
        if not sys.stdout.closed:
            sys.stdout.flush()
    except BaseException:
        code = code or 1
    os._exit(code & 255)


def write_result(data):
    while data:
        data = data[os.write(RESULT, data):]


def call(name, arguments):
    """Writes the result of a function of the program, or of its class `Solution`, as JSON."""
    space = as_module()
    exec(CODE, space)
    owner = space.get("Solution")
    function = getattr(owner(), name) if hasattr(owner, name) else space[name]
    write_result(json.dumps(function(*json.loads(arguments)), default=list).encode())
    os._exit(0)


def check(statement, secret):
    """Writes the secret if the statement raises nothing."""
    space = as_module()
    exec(CODE, space)
    exec(SETUP, space)
    exec(statement, space)
    write_result(secret)
    os._exit(0)


if "" in sys.path:
    sys.path.remove("")
secret = os.urandom(16).hex().encode()
write_message(secret)
KIND, LANGUAGE, *numbers = read_message().decode().split()
(NAMESPACES, COMPILE_SECONDS, TEST_SECONDS, ADDRESS_SPACE, PROCESSES, OUTPUT_LIMIT) = map(
    int, numbers
)
SETUP, PROGRAM, INSTRUCTIONS = read_message(), read_message(), read_message()


class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


FILTER = Filter(len(INSTRUCTIONS) // 8, INSTRUCTIONS)
libc = ctypes.CDLL(None)
if KIND == "calls":
    import json

compiled, CODE = compile_cpp() if LANGUAGE == "Cpp" else compile_python()
write_message(b"compiled" if compiled else b"failed")
gc.freeze()
while True:
    test = read_message()
    stdin = None
    if KIND == "streams" or LANGUAGE == "Cpp":
        stdin = os.memfd_create("stdin")
        with os.fdopen(stdin, "wb", closefd=False) as file:
            file.write(secret + b" " + test if KIND == "asserts" else test)
        os.lseek(stdin, 0, os.SEEK_SET)
    pid, output = fork(stdin, 1 if KIND == "streams" else RESULT)
    if pid == 0:
        break
    if stdin is not None:
        os.close(stdin)
    status, data = watch(pid, output, 2 * TEST_SECONDS, OUTPUT_LIMIT)
    write_message(status)
    write_message(data)

# The process of a test.
limit_test()
if LANGUAGE == "Cpp":
    try:
        os.execv("program", ["program"])
    finally:
        os._exit(127)
elif KIND == "calls":
    call(SETUP.decode(), test)
elif KIND == "asserts":
    check(test, secret)
else:
    run()
