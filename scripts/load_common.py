"""What the load test and the soak share: the served program, its figures, and one client. Python 3 standard library only."""
import collections
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time

TEXTS = [
    "Who are you?", "What is a library?", "Write the numbers from 1 to 20.", "Calculate 83 x 7.",
    "Write a C function that computes the n-th Fibonacci number.", "Bonjour !",
    "Give me a JSON array of two drinks. Reply with JSON only.", "What is the capital of France?",
]
FILLER = "The grass is green. The sky is blue. "
LOG_LINES = 2000  # of the server, kept for a report


class Connection:
    """One connection, kept while it can be."""

    def __init__(self, port, patience=280):
        self.port, self.patience, self.connection = port, patience, None

    def close(self):
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def send(self, method, path, body):
        if self.connection is None:
            self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.patience)
        self.connection.request(method, path, body, {"Content-Type": "application/json"})

    def abandon(self, seconds):
        """Leaves after `seconds`, whatever was sent."""
        time.sleep(seconds)
        self.connection.sock.shutdown(socket.SHUT_RDWR)
        self.close()


class Server:
    """`firesteel serve` on a free port, listening when the constructor returns. `log` has its last lines."""

    def __init__(self, program, model, *more):
        self.process = subprocess.Popen([program, "serve", "--model", model, "--port", "0", "--device", "cpu", *more],
                                        stderr=subprocess.PIPE, text=True)
        self.log, self.port = collections.deque(maxlen=LOG_LINES), None
        self.errors = []  # lines of level E, all of them
        for line in self.process.stderr:
            self._take(line)
            found = re.search(r"listening on http://\S+:(\d+)", line)
            if found:
                self.port = int(found.group(1))
                break
        if self.port is None:
            raise RuntimeError("the server did not start:\n" + "".join(self.log))
        threading.Thread(target=lambda: [self._take(line) for line in self.process.stderr], daemon=True).start()

    def _take(self, line):
        self.log.append(line)
        if re.match(r"\S+ \S+ E ", line):
            self.errors.append(line.rstrip())

    def wait_ready(self):
        while get(self.port, "/ready")[0] != 200:
            if self.process.poll() is not None:
                raise RuntimeError("the server ended:\n" + "".join(self.log))
            time.sleep(0.05)

    def pids(self):
        """Rank 0 and the ranks that it started, in their order."""
        own, tasks = [], f"/proc/{self.process.pid}/task"
        for task in os.listdir(tasks):  # children belong to the thread that started them
            try:
                with open(f"{tasks}/{task}/children", encoding="ascii") as f:
                    own += [int(pid) for pid in f.read().split()]
            except FileNotFoundError:  # the thread ended meanwhile
                pass
        return [self.process.pid] + sorted(own)

    def stop(self):
        """None when it ended in order, else what is wrong."""
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = "none within 60 s"
        return None if code == 0 else f"the server's exit code is {code}"


def resident_kib(*pids):
    """VmRSS, summed: pages that processes share count once for each."""
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/status", encoding="ascii") as f:
            total += int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1))
    return total


def get_text(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path)
    response = connection.getresponse()
    out = response.status, response.read().decode("utf-8")
    connection.close()
    return out


def get(port, path):
    status, text = get_text(port, path)
    return status, json.loads(text)


def wait_idle(port, seconds=60):
    deadline = time.monotonic() + seconds
    while True:
        health = get(port, "/health")[1]
        if health["requests_running"] == 0 and health["requests_waiting"] == 0:
            return health
        if time.monotonic() > deadline:
            raise RuntimeError("requests are left behind: " + json.dumps(health))
        time.sleep(0.05)
