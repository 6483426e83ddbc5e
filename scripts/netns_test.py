#!/usr/bin/env python3
"""The checks of scripts/netns_test.sh, which makes the namespaces and starts this one in rank 0's. Python 3 standard
library only."""
import argparse
import http.client
import json
import signal
import subprocess
import sys
import threading
import time

from load_common import Server, get
from soak_requests import Client, good

HERE, THERE, PORT, RELAY_PORT = "10.77.0.1", "10.77.0.2", 29551, 29552
TOKENS, LATE_TOKENS = 300, 40
NOTICED = 5.0      # seconds until the error
BACK = 30.0        # seconds until the service is back, once the link is
DELAY_MS, STALL_MS = 5, 1000
MIXED = 12         # requests of several kinds, all at once
COMMON = ["--streams", "4", "--context", "2048"]


def long_request(port, tokens=TOKENS, on_piece=lambda n: None):
    """Streams one long reply: status, text, the error if one came, seconds."""
    started = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("POST", "/v1/chat/completions", json.dumps({
        "messages": [{"role": "user", "content": "Tell me a story."}], "stream": True, "max_tokens": tokens,
        "ignore_eos": True, "temperature": 0.8, "seed": 3, "reasoning_effort": "none"}))
    response = connection.getresponse()
    text, error, pieces = "", None, 0
    if response.status != 200:
        error = json.loads(response.read())["error"]
    else:
        for line in response:
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                error = event.get("error", error)
                for choice in event.get("choices", []):
                    piece = choice["delta"].get("content") or ""
                    text += piece
                    if piece:
                        pieces += 1
                        on_piece(pieces)
    connection.close()
    return response.status, text, error, time.monotonic() - started


def mixed(port):
    """The keys of some requests that run beside each other."""
    keys = [None] * MIXED

    def ask(i):
        client = Client(port)
        keys[i] = client.ask(good(i)).key()
        client.close()

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(MIXED)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return keys


def equal(got, want, what):
    if got != want:
        raise AssertionError(f"{what}: {got!r} instead of {want!r}")


def link(up, namespace=None):
    where = ["-n", namespace] if namespace else []
    subprocess.run(["ip", *where, "link", "set", "link0", "up" if up else "down"], check=True)


def until_ready(port):
    started = time.monotonic()
    time.sleep(0.2)  # a client may hear of a loss a moment before /ready does
    while get(port, "/ready")[0] != 200:
        if time.monotonic() - started > BACK:
            raise AssertionError(f"not ready after {BACK:.0f} s: {get(port, '/ready')[1]['error']['message']}")
        time.sleep(0.02)
    return time.monotonic() - started


def start_far(options, arguments, **more):
    return subprocess.Popen(["ip", "netns", "exec", options.far, *arguments], **more)


def start_rank_1(options, leader):
    with open(f"{options.work}/rank1.log", "ab") as log:
        return start_far(options, [options.program, "serve", "--model", options.model, "--device", "cpu", *COMMON,
                                   "--ranks", "2", "--rank", "1", "--leader", leader], stderr=log)


def start_rank_0(options):
    return Server(options.program, options.model, *COMMON, "--ranks", "2", "--rank", "0", "--leader", f"{HERE}:{PORT}")


def show_logs(options, server):
    print("".join("        rank 0 " + line for line in list(server.log)[-8:]), end="")
    with open(f"{options.work}/rank1.log", encoding="utf-8") as f:
        print("".join("        rank 1 " + line for line in f.readlines()[-8:]), end="", flush=True)


class Group:
    """Rank 0 here, rank 1 in the other namespace, and between them, if it is to be, the relay."""

    def __init__(self, options, relayed):
        self.children, self.control, leader = [], f"{options.work}/control", f"{HERE}:{PORT}"
        if relayed:
            open(self.control, "w", encoding="ascii").close()
            relay = start_far(options, [sys.executable, "scripts/netns_relay.py", "--listen", f"{THERE}:{RELAY_PORT}",
                                        "--to", leader, "--control", self.control], stdout=subprocess.PIPE)
            self.children.append(relay)
            relay.stdout.readline()
            threading.Thread(target=relay.stdout.read, daemon=True).start()
        self.children.append(start_rank_1(options, f"{THERE}:{RELAY_PORT}" if relayed else leader))
        try:
            self.server = start_rank_0(options)
            self.server.wait_ready()
        except BaseException:
            self.kill()
            raise
        self.port = self.server.port

    def relay(self, command):
        with open(self.control, "a", encoding="ascii") as f:
            f.write(command + "\n")

    def kill(self):
        for child in self.children:
            child.kill()
            child.wait()

    def stop(self):
        wrong = self.server.stop()
        self.kill()
        return wrong

    def until_ready(self):
        return until_ready(self.port)

    def lose(self, act):
        """`act` in the middle of a reply: what came is the beginning of the reference, the end a retryable error in time."""
        acted = []

        def on_piece(n):
            if n == 20:
                acted.append(time.monotonic())
                act()

        _, text, error, _ = long_request(self.port, on_piece=on_piece)
        if not acted:
            raise AssertionError(f"the reply did not begin: {error}")
        took = time.monotonic() - acted[0]
        if error is None:
            raise AssertionError("the stream ended without an error")
        equal(error["code"], "engine_dead", "code")
        if "try again" not in error["message"]:
            raise AssertionError(f"not retryable: {error['message']}")
        equal(text, reference[:len(text)], "the text so far")
        if took > NOTICED:
            raise AssertionError(f"the error came after {took:.1f} s")
        return took

    def refuses(self):
        """While the link is away a request gets no token and a retryable error, at once: 503, or in its stream when it
        came between the loss and the engine's notice."""
        status, text, error, took = long_request(self.port)
        equal((status in (200, 503), text, error and error["code"]), (True, "", "engine_dead"), "a request meanwhile")
        if took > 1:
            raise AssertionError(f"refused after {took:.1f} s")

    def same(self):
        _, text, error, took = long_request(self.port)
        equal(error, None, "error")
        equal(text, reference, "text")
        return took


# --------------------------------------------------------------------------------------------------------- checks

reference, reference_late, reference_mixed = "", "", []


def plain(group):
    return f"{TOKENS} tokens in {group.same():.1f} s"


def mixed_same(group):
    started = time.monotonic()
    equal(mixed(group.port), reference_mixed, "mixed requests")
    return f"{MIXED} in {time.monotonic() - started:.1f} s"


def late(group):
    group.relay(f"delay {DELAY_MS}")
    time.sleep(0.1)
    _, text, error, took = long_request(group.port, LATE_TOKENS)
    group.relay("delay 0")
    equal(error, None, "error")
    equal(text, reference_late, "text")
    return f"{LATE_TOKENS} tokens in {took:.1f} s"


def stalls(group):
    at = (20, 100, 200)
    _, text, error, took = long_request(group.port, on_piece=lambda n: group.relay(f"stall {STALL_MS}") if n in at else None)
    equal(error, None, "error")
    equal(text, reference, "text")
    return f"{len(at)} stalls, {TOKENS} tokens in {took:.1f} s"


def cut(group):
    took = group.lose(lambda: group.relay("cut"))
    back = group.until_ready()
    group.same()
    return f"error after {took:.2f} s, ready {back:.2f} s later"


def shut(group):
    took = group.lose(lambda: group.relay("shut"))
    group.refuses()
    time.sleep(3)
    group.refuses()
    group.relay("flow")
    back = group.until_ready()
    group.same()
    return f"error after {took:.2f} s, ready {back:.2f} s after the link was back"


def silent(group):
    took = group.lose(lambda: group.relay("hold"))
    group.refuses()
    time.sleep(6)
    group.refuses()
    group.relay("flow")
    back = group.until_ready()
    group.same()
    return f"error after {took:.2f} s, ready {back:.2f} s after the link was back"


def down(namespace, seconds):
    def check(group):
        took = group.lose(lambda: link(False, namespace))
        group.refuses()
        time.sleep(seconds)
        group.refuses()
        link(True, namespace)
        back = group.until_ready()
        group.same()
        return f"error after {took:.2f} s, ready {back:.2f} s after the link was up"
    return check


def down_a_moment(group):
    def act():
        link(False)
        threading.Timer(1.0, link, [True]).start()

    _, text, error, took = long_request(group.port, on_piece=lambda n: act() if n == 20 else None)
    equal(error, None, "error")
    equal(text, reference, "text")
    return f"{TOKENS} tokens in {took:.1f} s"


def down_at_rest(group):
    link(False)
    time.sleep(7)
    equal(get(group.port, "/ready")[0], 503, "/ready without a link")
    link(True)
    back = group.until_ready()
    group.same()
    return f"ready {back:.2f} s after the link was up"


def lost_leader(options):
    """Rank 0 is not yet where it answers (stopped; in life, it loads) when rank 1 connects, and goes without a word."""
    servers, rank_1 = [start_rank_0(options)], None
    try:
        old = servers[0].process
        while not any("waits for the others" in line for line in servers[0].log):
            time.sleep(0.05)
        old.send_signal(signal.SIGSTOP)
        rank_1 = start_rank_1(options, f"{HERE}:{PORT}")
        time.sleep(2)
        link(False)
        old.kill()
        old.wait()
        time.sleep(1)
        link(True)
        servers.append(start_rank_0(options))
        back = until_ready(servers[1].port)
        equal(long_request(servers[1].port)[1], reference, "text")
        return f"ready {back:.2f} s after rank 0 was started again"
    except AssertionError:
        show_logs(options, servers[-1])
        raise
    finally:
        for process in [server.process for server in servers] + ([rank_1] if rank_1 else []):
            process.kill()
            process.wait()


def main():
    global reference, reference_late, reference_mixed
    parser = argparse.ArgumentParser()
    parser.add_argument("--far", required=True, help="rank 1's namespace")
    parser.add_argument("--work", required=True, help="folder for logs and the relay's control file")
    parser.add_argument("--program", default="build/release/src/app/firesteel")
    parser.add_argument("--model", default="models/demo")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))

    one = Server(options.program, options.model, *COMMON)
    one.wait_ready()
    _, reference, _, took = long_request(one.port)
    reference_late, reference_mixed = long_request(one.port, LATE_TOKENS)[1], mixed(one.port)
    one.stop()
    assert len(reference) > 200 and reference.startswith(reference_late)
    print(f"      one rank: {TOKENS} tokens in {took:.1f} s", flush=True)

    failed = 0

    def run(name, check, argument):
        started = time.monotonic()
        try:
            print(f"ok    {name}: {check(argument)}", flush=True)
            return 0
        except Exception as e:
            print(f"FAIL  {name} ({time.monotonic() - started:.1f} s): {type(e).__name__}: {e}", flush=True)
            return 1

    for relayed, checks in (
        (False, {
            "across two namespaces, the reply of one rank": plain,
            "the link is down for one second in a reply": down_a_moment,
            "the link is set down at rank 0's end": down(None, 3),
            "the link is set down at rank 1's end": down(options.far, 3),
            "the link is down while nothing runs": down_at_rest,
            "requests of several kinds at once, the replies of one rank": mixed_same,
            "the link is set down after those": down(None, 3),
        }),
        (True, {
            f"{DELAY_MS} ms later each way": late,
            f"stalls of {STALL_MS / 1000:g} s": stalls,
            "all connections are cut": cut,
            "cut, and refused for three seconds": shut,
            "the link is silent for ten seconds": silent,
            "after all that, requests of several kinds at once": mixed_same,
            "all connections are cut after those": cut,
        }),
    ):
        group = Group(options, relayed)
        try:
            for name, check in checks.items():
                if run(name, check, group) == 0:
                    continue
                failed += 1
                show_logs(options, group.server)
                link(True)
                link(True, options.far)
                if relayed:
                    group.relay("flow")
        finally:
            wrong = group.stop()
        if wrong is not None:
            failed += 1
            print("FAIL  " + wrong)
    failed += run("rank 0's machine is lost while rank 1 joins, and comes back", lost_leader, options)
    print("netns test: " + ("passed" if failed == 0 else f"{failed} checks failed"))
    sys.exit(1 if failed else 0)


main()
