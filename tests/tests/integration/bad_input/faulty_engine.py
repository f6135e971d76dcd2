"""An engine with faults: a real one behind a door that spoils some of its answers. Started as SGLang is: faulty_engine.py ENGINE FLAGS…

 coordinator ── HTTP ──▶ this ── HTTP ──▶ ENGINE         each fault happens once, in this order, so many requests after the one before
"""

import argparse
import http.client
import http.server
import json
import os
import socket
import subprocess
import sys
import threading

EVERY = 25  # requests of a route between two of its faults
FAULTS = {"/generate": ["error", "garbage", "nonsense", "half", "nothing"], "/update_weights_from_disk": ["error", "refusal"]}

counts = {}
lock = threading.Lock()


def next_fault(route):
    faults = FAULTS.get(route)
    if not faults:
        return None
    with lock:
        counts[route] = counts.get(route, 0) + 1
        at, rest = divmod(counts[route], EVERY if route == "/generate" else 3)
        return faults[at - 1] if rest == 0 and at <= len(faults) else None


class Door(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self):
        self.pass_on(b"")

    def do_POST(self):
        self.pass_on(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def pass_on(self, body):
        fault = next_fault(self.path)
        if fault == "nothing":
            self.close_connection = True
        elif fault == "error":
            self.answer(500, b'{"error": {"message": "the disk of this machine is on fire"}}', None)
        elif fault == "refusal":
            self.answer(200, b'{"success": false, "message": "no such weights here"}', None)
        else:
            connection = http.client.HTTPConnection("127.0.0.1", engine_port)
            connection.request(self.command, self.path, body, {key: value for key, value in self.headers.items() if key != "Host"})
            response = connection.getresponse()
            self.answer(response.status, response.read(), fault)

    def answer(self, status, body, fault):
        length = len(body)
        if fault == "garbage":
            body = b"data: {this is no JSON}\n\n"
            length = len(body)
        elif fault == "nonsense":
            body = spoilt(body)
            length = len(body)
        elif fault == "half":
            body = body[: length // 2]
            self.close_connection = True
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def spoilt(stream):
    """The last event with a token that no vocabulary has."""
    event = json.loads([line for line in stream.split(b"\n\n") if line.startswith(b"data: {")][-1][6:])
    event["output_ids"][-1] = 10**9
    return b"data: " + json.dumps(event).encode() + b"\n\n"


flags = argparse.ArgumentParser()
flags.add_argument("engine")
for name in ["--model-path", "--host", "--load-format", "--dtype", "--random-seed", "--sampling-backend", "--log-level", "--config"]:
    flags.add_argument(name)
flags.add_argument("--port", type=int)
for name in ["--enable-deterministic-inference", "--enable-metrics"]:
    flags.add_argument(name, action="store_true")
flags = flags.parse_args()
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    engine_port = free.getsockname()[1]
tokens = os.path.dirname(flags.config)
command = [flags.engine, "--model-path", flags.model_path, "--dtype", flags.dtype, "--random-seed", flags.random_seed, "--port", str(engine_port), "--deterministic"]
command += ["--api-key-file", f"{tokens}/engine-api", "--admin-api-key-file", f"{tokens}/engine-admin"]
engine = subprocess.Popen(command)
door = http.server.ThreadingHTTPServer((flags.host, flags.port), Door)
door.daemon_threads = True
threading.Thread(target=door.serve_forever, daemon=True).start()
sys.exit(engine.wait())
