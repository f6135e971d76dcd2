#!/usr/bin/env python3
"""Tool of tools.yaml: an HTTP server that adds two numbers.

    adder.py [PORT]

With port 0 (default 8701), the system chooses one; the server prints its URL. The sum has three
digits, as the answers of the quick start. With the environment variable TOKEN, requests must carry
it as a bearer token. Only the standard library is used.
"""

import hmac
import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MAX_BODY = 1 << 20
TOKEN = os.environ.get("TOKEN")


def add(arguments):
    return f"{int(arguments['a']) + int(arguments['b']):03}"


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
            return self.reply(413, f"more than {MAX_BODY} bytes")
        body = self.rfile.read(length)
        sent = self.headers.get("Authorization", "")
        if TOKEN and not hmac.compare_digest(sent.encode(), f"Bearer {TOKEN}".encode()):
            return self.reply(401, "the token is missing or wrong")
        request = json.loads(body)
        try:
            self.reply(200, add(request["arguments"]))
        except (KeyError, TypeError, ValueError) as error:
            # The model reads the message.
            self.reply(400, f"a and b must be numbers: {error}")

    def reply(self, status, text):
        body = text.encode()
        self.send_response(status)
        if status == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        self.send_header("Content-Type", "text/plain; charset=utf-8")
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
