#!/usr/bin/env python3
"""Environment of the quick start's sums: an HTTP server that asks again after a wrong answer.

    environment.py [PORT]

A right answer has the reward 1 and ends the episode. A wrong one has the reward -0.25, and the
question is asked again. With port 0 (default 8700), the system chooses one; the server prints its
URL. The same requests always have the same responses. Only the standard library is used.
"""

import json
import sys
from collections import OrderedDict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock

# Sessions that were not used for the longest time are forgotten.
SESSIONS = 100_000
MAX_BODY = 1 << 20

sessions = OrderedDict()
lock = Lock()


def reset(request):
    with lock:
        sessions[request["session"]] = {
            "question": request["prompt"],
            "answer": request["answer"],
            "responses": {},
        }
        sessions.move_to_end(request["session"])
        while len(sessions) > SESSIONS:
            sessions.popitem(last=False)
    return {}


def step(request):
    with lock:
        session = sessions[request["session"]]
        turn = request["turn"]
        if turn not in session["responses"]:
            if turn != len(session["responses"]) + 1:
                raise KeyError(f"turn {turn}")
            session["responses"][turn] = respond(session, request["completion"])
        return session["responses"][turn]


def respond(session, completion):
    if completion.strip() == session["answer"]:
        return {"reward": 1, "done": True}
    again = {"role": "user", "content": " " + session["question"]}
    return {"reward": -0.25, "done": False, "messages": [again]}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    routes = {"/reset": reset, "/step": step}

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
        route = self.routes.get(self.path)
        if route is None:
            return self.reply(404, {"error": f"no route {self.path}"})
        try:
            self.reply(200, route(json.loads(body)))
        except KeyError as error:
            self.reply(404, {"error": f"unknown: {error}"})
        except ValueError as error:
            self.reply(400, {"error": str(error)})

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
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8700
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()
