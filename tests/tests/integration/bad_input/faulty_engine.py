"""Fault-injecting proxy in front of a real engine.

 coordinator ── HTTP ──▶ this proxy ── HTTP ──▶ ENGINE

Each fault is injected once, in the order of FAULTS, after a fixed number of samples or updates.

usage: faulty_engine.py ENGINE SGLANG_FLAGS...
"""

import argparse
import http.client
import http.server
import json
import os
import socket
import ssl
import subprocess
import sys
import threading

EVERY = {"/generate": 25, "/update_weights_from_disk": 3}  # samples or updates between two faults
FAULTS = {
    "/generate": ["error", "invalid_json", "invalid_token", "truncated", "no_response"],
    "/update_weights_from_disk": ["error", "rejected"],
}

counts = {}
lock = threading.Lock()


def next_fault(route, body):
    faults = FAULTS.get(route)
    if not faults:
        return None
    # A joint request has a list of ids.
    ids = json.loads(body).get("rid")
    with lock:
        before = counts.get(route, 0)
        counts[route] = before + (len(ids) if isinstance(ids, list) else 1)
        last, at = before // EVERY[route], counts[route] // EVERY[route]
        return faults[at - 1] if last < at <= len(faults) else None


class Proxy(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self):
        self.forward(b"")

    def do_POST(self):
        self.forward(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def forward(self, body):
        fault = next_fault(self.path, body)
        if fault == "no_response":
            self.close_connection = True
        elif fault == "error":
            message = b'{"error": {"message": "disk failure"}}'
            self.respond(500, message, None)
        elif fault == "rejected":
            self.respond(200, b'{"success": false, "message": "weights not found"}', None)
        else:
            connection = http.client.HTTPConnection("127.0.0.1", engine_port)
            headers = {key: value for key, value in self.headers.items() if key != "Host"}
            connection.request(self.command, self.path, body, headers)
            response = connection.getresponse()
            self.respond(response.status, response.read(), fault)

    def respond(self, status, body, fault):
        length = len(body)
        if fault == "invalid_json":
            body = b"data: {this is no JSON}\n\n"
            length = len(body)
        elif fault == "invalid_token":
            body = with_invalid_token(body)
            length = len(body)
        elif fault == "truncated":
            body = body[: length // 2]
            self.close_connection = True
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def with_invalid_token(stream):
    """Returns the stream with a token outside every vocabulary in its first event."""
    first, rest = stream.split(b"\n\n", 1)
    event = json.loads(first[6:])
    event["output_ids"][0] = 10**9
    event["meta_info"]["output_token_logprobs"][0][1] = 10**9
    return b"data: " + json.dumps(event).encode() + b"\n\n" + rest


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    # All requests of a step connect at once; those beyond the queue would time out.
    request_queue_size = 256


flags = argparse.ArgumentParser()
flags.add_argument("engine")
for name in [
    "--model-path",
    "--host",
    "--load-format",
    "--dtype",
    "--random-seed",
    "--sampling-backend",
    "--log-level",
    "--config",
    "--ssl-certfile",
    "--ssl-keyfile",
]:
    flags.add_argument(name)
flags.add_argument("--port", type=int)
# Not passed on: an event for each token, so that faults hit the middle of a stream.
flags.add_argument("--stream-interval", type=int)
for name in [
    "--enable-deterministic-inference",
    "--enable-metrics",
    "--incremental-streaming-output",
    "--skip-server-warmup",
    "--skip-tokenizer-init",
]:
    flags.add_argument(name, action="store_true")
flags = flags.parse_args()
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    engine_port = free.getsockname()[1]
tokens = os.path.dirname(flags.config)
command = [flags.engine, "--model-path", flags.model_path, "--dtype", flags.dtype]
command += ["--random-seed", flags.random_seed, "--port", str(engine_port), "--deterministic"]
if flags.incremental_streaming_output:
    command.append("--incremental-streaming-output")
command += ["--api-key-file", f"{tokens}/engine-api"]
command += ["--admin-api-key-file", f"{tokens}/engine-admin"]
engine = subprocess.Popen(command)
proxy = Server((flags.host, flags.port), Proxy)
tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
tls.load_cert_chain(flags.ssl_certfile, flags.ssl_keyfile)
proxy.socket = tls.wrap_socket(proxy.socket, server_side=True, do_handshake_on_connect=False)
threading.Thread(target=proxy.serve_forever, daemon=True).start()
sys.exit(engine.wait())
