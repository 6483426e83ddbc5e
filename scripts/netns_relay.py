#!/usr/bin/env python3
"""A TCP relay that makes a link bad: late, silent for a while, cut.

  netns_relay.py --listen HOST:PORT --to HOST:PORT --control FILE

Lines appended to the control file are commands, in effect within 10 ms:
  delay MS   every chunk arrives so much later, each way; order is kept and later chunks do not wait for earlier ones
  stall MS   nothing passes for so long, then everything that was sent meanwhile does
  hold       nothing passes until `flow`; connections stay
  flow       the end of hold and shut
  cut        all connections are reset
  shut       the same, and new ones are reset at once until `flow`
Python 3 standard library only.
"""
import argparse
import asyncio
import os
import time

CHUNK = 1 << 16
QUEUED = 256  # chunks under way in one direction; a sender waits beyond


class Relay:
    def __init__(self, to):
        self.to, self.delay, self.stalled_until = to, 0.0, 0.0
        self.open, self.flowing, self.transports = True, asyncio.Event(), set()
        self.flowing.set()

    async def accept(self, reader, writer):
        self.transports.add(writer.transport)
        if not self.open:
            return self.drop(writer)
        try:
            far_reader, far_writer = await asyncio.open_connection(*self.to)
        except OSError:
            return self.drop(writer)
        self.transports.add(far_writer.transport)
        ways = [asyncio.create_task(self.forward(reader, far_writer)), asyncio.create_task(self.forward(far_reader, writer))]
        await asyncio.wait(ways)
        for end in (writer, far_writer):
            self.drop(end)

    def drop(self, writer):
        writer.transport.abort()
        self.transports.discard(writer.transport)

    async def forward(self, reader, writer):
        under_way = asyncio.Queue(QUEUED)
        sender = asyncio.create_task(self.send(under_way, writer))
        try:
            while data := await reader.read(CHUNK):
                await under_way.put((time.monotonic() + self.delay, data))
        except OSError:
            pass
        await under_way.put((time.monotonic() + self.delay, b""))
        await sender

    async def send(self, under_way, writer):
        while True:
            due, data = await under_way.get()
            while (left := max(due, self.stalled_until) - time.monotonic()) > 0:
                await asyncio.sleep(left)
            await self.flowing.wait()
            try:
                if not data:
                    writer.write_eof()
                    return
                writer.write(data)
                await writer.drain()
            except (OSError, RuntimeError):  # gone: what still comes is dropped
                while data:
                    _, data = await under_way.get()
                return

    def command(self, line):
        word, *rest = line.split()
        print(f"{word} {' '.join(rest)}", flush=True)
        if word == "delay":
            self.delay = float(rest[0]) / 1000
        elif word == "stall":
            self.stalled_until = time.monotonic() + float(rest[0]) / 1000
        elif word == "hold":
            self.flowing.clear()
        elif word == "flow":
            self.open = True
            self.flowing.set()
        elif word in ("cut", "shut"):
            self.open = self.open and word == "cut"
            for transport in list(self.transports):
                transport.abort()
            self.transports.clear()
        else:
            raise SystemExit(f"unknown command: {line}")

    async def follow(self, path):
        done = 0
        while True:
            if os.path.exists(path):
                with open(path, encoding="ascii") as f:
                    lines = f.read().split("\n")[:-1]
                for line in lines[done:]:
                    self.command(line)
                done = len(lines)
            await asyncio.sleep(0.01)


def address(text):
    host, port = text.rsplit(":", 1)
    return host, int(port)


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--listen", type=address, required=True)
    parser.add_argument("--to", type=address, required=True)
    parser.add_argument("--control", required=True)
    options = parser.parse_args()
    relay = Relay(options.to)
    server = await asyncio.start_server(relay.accept, *options.listen)
    print("relaying", flush=True)
    async with server:
        await relay.follow(options.control)


asyncio.run(main())
