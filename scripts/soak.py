#!/usr/bin/env python3
"""A long run of mixed requests against a served model: chat, completions, messages and tools, streamed and whole, a
quarter cancelled mid-way, a tenth malformed.

  scripts/soak.sh [--program build/release/src/app/firesteel] [--model models/demo] [--ranks 2] [--minutes 30]
                  [--requests 3000] [--clients 48] [--seed 1] [--json FILE]

Starts the server itself. Requests arrive at random times that do not wait for answers; a first tenth warms up, beginning
with twice as many long ones as there are streams. Fails when a good request is answered with an error or with another
text than the same seeded question got before, when a malformed one is not answered with its typed 4xx, when a page, a
slot, a request or a connection is left behind, when a rank was started anew or logged an error, or when the resident
memory of all ranks changed by more than 1 % from the end of the warm-up to the end. Python 3 standard library only.
"""
import argparse
import bisect
import collections
import datetime
import json
import math
import os
import platform
import queue
import random
import re
import subprocess
import sys
import threading
import time

from load_common import Server, get, get_text, resident_kib, wait_idle
from soak_requests import Client, Malformed, good, heavy, repeated

CANCELLED, MALFORMED, REPEATED = 0.25, 0.10, 0.20  # of all; of all; of those that are neither
ALONE = 12            # questions that are asked once more at the end, one after the other
MEMORY_CHANGE = 1.0   # per cent
DESCRIPTORS = 8       # more open files than after the warm-up are a leak
SHOWN = 20            # failures in full
LEAVE = 240           # seconds for what runs to end, after the last arrival


# ----------------------------------------------------------------------------------------------------- the plan


def plan(total, warm, streams, rng):
    """Requests in order of arrival; a repeat names the index of the question that it asks again."""
    out, asked = [], []
    for i in range(total):
        if i < min(2 * streams, warm):
            out.append((heavy(i), None))
            continue
        draw = rng.random()
        if draw < MALFORMED:
            out.append((Malformed(rng.randrange(1 << 30)), None))
            continue
        request = good(i)
        if draw < MALFORMED + CANCELLED:
            most = max(2, min(12, request.body["max_tokens"]))
            request.cancel = rng.randrange(1, most) if request.body["stream"] else rng.random() * 0.6
            out.append((request, None))
        elif asked and rng.random() < REPEATED:
            j = rng.choice(asked)
            out.append((repeated(out[j][0], rng), j))
        else:
            asked.append(i)
            out.append((request, None))
    return out


# ------------------------------------------------------------------------------------------------------ figures


def quantile(values, p):
    """The q-quantile (nearest rank) with the interval of order statistics that holds it with 95 % or more, whatever the
    distribution; an end is None where there are too few values."""
    n = len(values)
    if n == 0:
        return None
    ordered = sorted(values)
    below, total = [], 0.0  # P(at most k of n values lie below the quantile)
    for k in range(n + 1):
        total += math.exp(math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) +
                          k * math.log(p) + (n - k) * math.log1p(-p))
        below.append(total)
    low, high = bisect.bisect_right(below, 0.025), bisect.bisect_left(below, 0.975) + 1  # 1-based ranks
    ms = [round(v * 1000, 1) for v in ordered]
    return {"ms": ms[max(math.ceil(p * n), 1) - 1], "low": ms[low - 1] if low >= 1 else None,
            "high": ms[high - 1] if high <= n else None, "n": n}


def shown(q):
    if q is None:
        return "-"
    bound = lambda v: "?" if v is None else f"{v:.0f}"
    return f"{q['ms']:.0f} ms [{bound(q['low'])}, {bound(q['high'])}]"


def machine():
    cpu, system = "", ""
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        for line in f:
            if line.startswith("model name"):
                cpu = line.split(":", 1)[1].strip()
    try:
        with open("/etc/os-release", encoding="utf-8") as f:
            system = dict(line.rstrip().split("=", 1) for line in f if "=" in line).get("PRETTY_NAME", "").strip('"')
    except FileNotFoundError:
        pass
    return {"cpu": cpu, "threads": os.cpu_count(),
            "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
            "system": f"{system}, Linux {'.'.join(platform.release().split('.')[:2])}", "architecture": platform.machine()}


def open_files(pids):
    return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids)


# --------------------------------------------------------------------------------------------------------- a run


class Run:
    def __init__(self, port, requests, clients, failures):
        self.port, self.requests, self.failures = port, requests, failures
        self.started = time.monotonic()
        self.work = queue.Queue()
        self.lock = threading.Lock()
        self.keys, self.waiting = {}, collections.defaultdict(list)
        self.kinds, self.errors, self.answers = collections.Counter(), collections.Counter(), collections.Counter()
        self.first, self.late = [], []  # (arrival, seconds, background); seconds until a client was free
        self.cancelled = self.malformed = self.compared = self.calls = self.done = 0
        self.threads = [threading.Thread(target=self.client, daemon=True) for _ in range(clients)]
        for t in self.threads:
            t.start()

    def client(self):
        client = Client(self.port)
        while True:
            item = self.work.get()
            if item is None:
                break
            i, due = item
            request, again = self.requests[i]
            self.late.append(time.monotonic() - due)
            try:
                if isinstance(request, Malformed):
                    code = request.send(client)
                    with self.lock:
                        self.malformed += 1
                        self.errors[code or "(left)"] += 1
                else:
                    self.judge(i, request, again, client.ask(request), due - self.started, due)
            except Exception as e:  # every kind of failure is one finding
                self.fail(f"request {i} ({request.way()}): {type(e).__name__}: {e}", type(e).__name__)
                client.close()
            with self.lock:
                self.kinds[request.way()] += 1
                self.done += 1
            self.work.task_done()
            if isinstance(request, Malformed):  # what a refusal leaves of a connection is not what is tested here
                client.close()
        client.close()

    def fail(self, text, what):
        with self.lock:
            self.failures.append(text)
            self.answers[what] += 1

    def judge(self, i, request, again, reply, arrival, due):
        with self.lock:
            if reply is None:
                self.cancelled += 1
                return
            self.calls += len(reply.calls)
            if request.cancel is None:
                key, question = reply.key(), i if again is None else again
                if again is None:
                    self.keys[i] = key
                    late, self.waiting[i] = self.waiting[i], []  # repeats that ended before it
                    for other, theirs in late:
                        self.compare(other, i, theirs, key)
                elif question in self.keys:
                    self.compare(i, question, key, self.keys[question])
                else:
                    self.waiting[question].append((i, key))
            if reply.first is not None:
                self.first.append((arrival, reply.first - due, request.background))

    def compare(self, i, question, got, want):
        self.compared += 1
        if got != want:
            self.failures.append(f"request {i}: the reply differs from the one that request {question} got: {got} and {want}")
            self.answers["another text"] += 1

    def arrive(self, indices, seconds, rng, tick):
        """Sends these over so many seconds, at times drawn evenly (the gaps of a Poisson process)."""
        started = time.monotonic()
        times = sorted(rng.random() * seconds for _ in indices)
        for i, at in zip(indices, times):
            while (left := started + at - time.monotonic()) > 0:
                time.sleep(min(left, 1))
                tick()
            self.put(i, started + at)
        while (left := started + seconds - time.monotonic()) > 0:
            time.sleep(min(left, 1))
            tick()

    def put(self, i, due):
        self.work.put((i, due))

    def drain(self, tick):
        deadline = time.monotonic() + LEAVE
        while self.work.unfinished_tasks:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.work.unfinished_tasks} requests did not end in {LEAVE} s")
            time.sleep(0.1)
            tick()

    def finish(self):
        for _ in self.threads:
            self.work.put(None)
        for t in self.threads:
            t.join()


def soak(options, server, summary, failures):
    port = server.port
    rng = random.Random(options.seed)
    seconds, total = options.minutes * 60, options.requests
    warm = max(total // 10, 1)
    streams = get(port, "/health")[1]["streams"]["max"]
    run = Run(port, plan(total, warm, streams, rng), options.clients, failures)
    started = run.started
    pids = server.pids()
    if len(pids) != options.ranks:
        raise RuntimeError(f"{options.ranks} ranks were to run, not {len(pids)}")
    curve, next_point, next_line = [], [0.0], [0.0]

    def tick():
        now = time.monotonic() - started
        if now >= next_point[0]:
            curve.append([round(now), resident_kib(*server.pids())])
            next_point[0] = now + seconds / 30
        if now >= next_line[0]:
            next_line[0] = now + 5
            left = max(seconds - now, 0)
            text = (f"{run.done}/{total} done, {run.work.unfinished_tasks} open, {len(run.failures)} failures, "
                    f"{curve[-1][1] // 1024 if curve else 0} MiB, {left // 60:.0f} min {left % 60:02.0f} s left")
            print(("\r" if sys.stderr.isatty() else "") + text, end="" if sys.stderr.isatty() else "\n", file=sys.stderr,
                  flush=True)

    at_once = min(2 * streams, warm)
    for i in range(at_once):
        run.put(i, time.monotonic())
    run.arrive(range(at_once, warm), seconds / 10, rng, tick)
    run.drain(tick)
    wait_idle(port)
    before, files_before, warm_end = resident_kib(*pids), open_files(pids), time.monotonic() - started
    run.arrive(range(warm, total), max(seconds - warm_end, 1), rng, tick)
    end = time.monotonic() - started
    run.drain(tick)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    alone = Client(port)
    for i in rng.sample(sorted(run.keys), min(ALONE, len(run.keys))):
        key = alone.ask(repeated(run.requests[i][0], rng)).key()
        run.compare("at the end, alone,", i, key, run.keys[i])
    alone.close()
    run.finish()
    wait_idle(port)
    deadline = time.monotonic() + 10
    while get(port, "/health")[1]["connections"] > 1 and time.monotonic() < deadline:
        time.sleep(0.1)
    health, after, files_after = get(port, "/health")[1], resident_kib(*pids), open_files(pids)
    curve.append([round(time.monotonic() - started), after])
    change = (after - before) / before * 100

    for kind in ("pages", "slots"):
        if health[kind]["free"] != health[kind]["total"]:
            failures.append(f"{kind} are left behind: {health[kind]}")
    if health["connections"] != 1:  # ours
        failures.append(f"{health['connections'] - 1} connections are left behind")
    if health["requests_failed_total"] != 0:
        failures.append(f"{health['requests_failed_total']} requests failed in the engine")
    for line in get_text(port, "/metrics")[1].splitlines():
        if line.startswith(("firesteel_generation_tokens_running ", "firesteel_kv_cache_usage_ratio")):
            if float(line.rsplit(" ", 1)[1]) != 0:
                failures.append("at rest, /metrics says " + line)
    if abs(change) > MEMORY_CHANGE:
        failures.append(f"resident memory changed by {change:+.2f} %: {before} to {after} KiB")
    if files_after > files_before + DESCRIPTORS:
        failures.append(f"open files grew from {files_before} to {files_after}")
    if server.pids() != pids:
        failures.append(f"ranks were started anew: {pids} before, {server.pids()} after")
    for line in server.errors:
        failures.append("the log says: " + line)

    front = [(t, s) for t, s, background in run.first if not background and t >= warm_end]
    middle = (warm_end + end) / 2
    halves = [[s for t, s in front if t < middle], [s for t, s in front if t >= middle]]
    summary.update({
        "requests": total, "minutes": round(end / 60, 2), "ranks": options.ranks, "clients": options.clients,
        "seed": options.seed, "cancelled": run.cancelled, "cancelled_in_the_engine": health["requests_cancelled_total"],
        "malformed": run.malformed, "compared": run.compared, "tool_calls": run.calls,
        "kinds": dict(sorted(run.kinds.items())), "answers_to_malformed": dict(sorted(run.errors.items())),
        "failures_by_kind": dict(run.answers),
        "first_token": {
            "what": "arrival to first visible piece of streamed foreground requests, warm-up left out; waiting for a free "
                    "client counts; intervals: 95 %, order statistics",
            **{name: {"p50": quantile(half, 0.5), "p99": quantile(half, 0.99)}
               for name, half in zip(("first_half", "second_half"), halves)},
            "background_p50": quantile([s for _, s, background in run.first if background], 0.5)},
        "client_wait_ms_p99": quantile(run.late, 0.99)["ms"],
        "memory": {"after_warm_up_kib": before, "at_the_end_kib": after, "change_percent": round(change, 3),
                   "curve_s_kib": curve},
        "open_files": [files_before, files_after],
        "at_the_end": {name: health[name] for name in ("pages", "slots", "connections", "requests_total",
                                                       "requests_finished_total", "requests_failed_total",
                                                       "completion_tokens_total", "http_requests_total")},
    })


def report(s):
    print(f"{s['requests']} requests in {s['minutes']} minutes on {s['ranks']} ranks: {s['cancelled']} cancelled, "
          f"{s['malformed']} malformed, {s['compared']} compared with an earlier reply, "
          f"{s['tool_calls']} tool calls")
    for kind, n in s["kinds"].items():
        print(f"  {n:6} {kind}")
    print("answers to malformed requests: " + ", ".join(f"{n} x {c}" for c, n in s["answers_to_malformed"].items()))
    for half in ("first_half", "second_half"):
        f = s["first_token"][half]
        print(f"first token, {half.replace('_', ' ')}: p50 {shown(f['p50'])}, p99 {shown(f['p99'])} "
              f"({f['p50']['n'] if f['p50'] else 0} streams; 95 % intervals from order statistics)")
    m = s["memory"]
    step = max(len(m["curve_s_kib"]) // 8, 1)
    print("resident memory of all ranks: " + ", ".join(f"{t} s {k} KiB" for t, k in m["curve_s_kib"][::step]))
    print(f"resident after the warm-up {m['after_warm_up_kib']} KiB, at the end {m['at_the_end_kib']} KiB "
          f"({m['change_percent']:+.2f} %); open files {s['open_files'][0]} and {s['open_files'][1]}; "
          f"pages {s['at_the_end']['pages']}, slots {s['at_the_end']['slots']}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", default="build/release/src/app/firesteel")
    parser.add_argument("--model", default="models/demo")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--clients", type=int, default=48)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json")
    options = parser.parse_args()
    words = [f"--{name} {value}" for name, value in (("ranks", options.ranks), ("minutes", f"{options.minutes:g}"),
                                                     ("requests", options.requests), ("clients", options.clients),
                                                     ("seed", options.seed))]
    version = subprocess.run([options.program, "version"], capture_output=True, text=True, check=True).stdout.split("\n")[0]
    summary = {"what": "Soak: mixed requests, a quarter cancelled, a tenth malformed", "machine": machine(),
               "version": version, "commit": re.search(r"\((\w+)", version).group(1),
               "taken": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
               "command": "scripts/soak.sh " + " ".join(words)}
    server, failures = Server(options.program, options.model, "--ranks", str(options.ranks)), []
    try:
        server.wait_ready()
        soak(options, server, summary, failures)
        report(summary)
    except Exception as e:
        failures.append(f"{type(e).__name__}: {e}\n" + "".join(list(server.log)[-20:]))
    finally:
        wrong = server.stop()
    if wrong is not None:
        failures.append(wrong)
    summary["passed"], summary["failures"] = not failures, failures[:SHOWN]
    if options.json:
        with open(options.json, "w", encoding="utf-8") as f:
            f.write(json.dumps(summary, indent=2) + "\n")
    for failure in failures[:SHOWN]:
        print("FAIL:", failure)
    print("soak: " + ("passed" if not failures else f"{len(failures)} failures"))
    sys.exit(1 if failures else 0)


main()
