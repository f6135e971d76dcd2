#!/usr/bin/env python3
"""Reward of the quick start's sums behind HTTP: the share of the digits that are right.

    server.py [PORT]

With port 0 (default 8701), the system chooses one; the server prints its URL. Only the standard
library is used.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from digits import score

MAX_BODY = 1 << 20


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle(self):
        try:
            super().handle()
        except ConnectionError:
            self.close_connection = True  # the coordinator exited

    def do_POST(self):
        length = int(self.headers.get("Content-Length", 0))
        if length > MAX_BODY:
            self.close_connection = True
            return self.reply(413, {"error": f"more than {MAX_BODY} bytes"})
        body = self.rfile.read(length)
        try:
            request = json.loads(body)  # prompt, completion, answer
            reward = score(request["completion"], request["answer"])
        except (KeyError, TypeError, ValueError) as error:
            return self.reply(400, {"error": str(error)})
        self.reply(200, {"reward": reward})

    def reply(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8701
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()
