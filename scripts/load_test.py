#!/usr/bin/env python3
"""1,000 chat requests from 32 clients against a served model, a quarter of them cancelled mid-way.

  scripts/load_test.sh [--program build/release/src/app/firesteel] [--model models/demo] [--requests N] [--clients N]

Starts the server itself. Fails when a request is answered with an error or with another text than the same request got
alone, when a page, a slot or a request is left behind, or when resident memory after the warm-up changed by more than
1 %. Python 3 standard library only.
"""
import argparse
import json
import queue
import random
import sys
import threading
import time

from load_common import FILLER, TEXTS, Connection, Server, resident_kib, wait_idle

def body_of(i):
    rng = random.Random(i)
    filler = FILLER * rng.randrange(0, 12)
    return {
        "messages": [{"role": "user", "content": filler + TEXTS[i % len(TEXTS)]}],
        "max_tokens": rng.randrange(4, 28), "temperature": rng.choice([0, 1]), "seed": i,
        "reasoning_effort": rng.choice(["none", "low", "max"]), "stream": rng.random() < 0.6,
    }


class Reply:
    def __init__(self):
        self.reasoning = self.content = ""
        self.finish = None


def read_stream(response, stop_after):
    """Follows the events; with `stop_after`, returns None after that many."""
    reply, events, done = Reply(), 0, False
    for line in response:
        line = line.decode("utf-8").rstrip("\n")
        if not line.startswith("data: "):
            continue
        if line == "data: [DONE]":
            done = True
            break
        event = json.loads(line[6:])
        if "error" in event:
            raise RuntimeError("error event: " + line)
        for choice in event["choices"]:
            reply.reasoning += choice["delta"].get("reasoning_content", "")
            reply.content += choice["delta"].get("content", "")
            reply.finish = choice["finish_reason"] or reply.finish
        events += 1
        if stop_after is not None and events >= stop_after:
            return None
    if not done:
        raise RuntimeError("the stream ended without [DONE]")
    return reply


class Client(Connection):
    def request(self, body, cancel=None):
        """The reply, or None when it was cancelled. `cancel`: events of a stream, or seconds of a whole reply."""
        self.send("POST", "/v1/chat/completions", json.dumps(body))
        if cancel is not None and not body["stream"]:
            return self.abandon(cancel)
        response = self.connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"status {response.status}: {response.read().decode()}")
        if body["stream"]:
            reply = read_stream(response, cancel)
            if cancel is not None:
                self.connection.sock.close() if self.connection.sock else None
                response.close()
                self.close()
            else:
                response.read()
            return reply
        message = json.loads(response.read())["choices"][0]
        reply = Reply()
        reply.content = message["message"]["content"] or ""
        reply.reasoning = message["message"].get("reasoning_content", "")
        reply.finish = message["finish_reason"]
        return reply


def drive(port, indices, clients, alone, failures):
    work = queue.Queue()
    for i in indices:
        work.put(i)

    def run():
        client = Client(port)
        while True:
            try:
                i = work.get_nowait()
            except queue.Empty:
                break
            body, rng, cancel = body_of(i), random.Random(i + 1), None
            if i % 4 == 3:
                cancel = rng.randrange(1, 6) if body["stream"] else rng.random() * 0.3
            try:
                reply = client.request(body, cancel)
                want = alone.get(i)
                if cancel is None and want is not None:
                    if (reply.reasoning, reply.content, reply.finish) != (want.reasoning, want.content, want.finish):
                        failures.append(f"request {i}: the reply differs from the one given alone")
            except Exception as e:  # every kind of failure is one finding
                failures.append(f"request {i}: {type(e).__name__}: {e}")
                client.close()
        client.close()

    threads = [threading.Thread(target=run) for _ in range(clients)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", default="build/release/src/app/firesteel")
    parser.add_argument("--model", default="models/demo")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=32)
    options = parser.parse_args()

    server = Server(options.program, options.model)
    port = server.port
    failures, started = [], time.monotonic()
    try:
        server.wait_ready()
        total, warm = options.requests, options.requests // 2
        sample = [i for i in range(warm, total, 29) if i % 4 != 3]
        alone, one = {}, Client(port)
        for i in sample:
            alone[i] = one.request(body_of(i))
        one.close()
        drive(port, range(0, warm), options.clients, alone, failures)
        before_health, before = wait_idle(port), resident_kib(server.process.pid)
        drive(port, range(warm, total), options.clients, alone, failures)
        health, after = wait_idle(port), resident_kib(server.process.pid)
        change = (after - before) / before * 100
        for kind in ("pages", "slots"):
            if health[kind] != before_health[kind]:
                failures.append(f"{kind} are left behind: {before_health[kind]} before, {health[kind]} after")
        if health["requests_failed_total"] != 0:
            failures.append(f"{health['requests_failed_total']} requests failed in the engine")
        if abs(change) > 1:
            failures.append(f"resident memory changed by {change:+.2f} %: {before} to {after} KiB")
        print(f"{total} requests, {options.clients} clients, {total // 4} cancelled, {len(sample)} compared with alone: "
              f"{time.monotonic() - started:.0f} s; cancelled in the engine {health['requests_cancelled_total']}, "
              f"resident {before} to {after} KiB ({change:+.2f} %), pages {health['pages']}, slots {health['slots']}")
    finally:
        wrong = server.stop()
    if wrong is not None:
        failures.append(wrong)
    for failure in failures[:20]:
        print("FAIL:", failure)
    print("[done 6] load test: " + ("passed" if not failures else f"{len(failures)} failures"))
    sys.exit(1 if failures else 0)


main()
