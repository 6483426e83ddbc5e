"""The requests of the soak: which there are, how each is sent, and what its answer must be.

Request i is a function of i alone. A good one carries a seed, so that its text is a function of its body: a repeat of an
earlier request asks the same with other ways of sending (streamed or whole, priority) and must get the same. Python 3
standard library only.
"""
import http.client
import json
import random
import socket
import time

from load_common import FILLER, TEXTS, Connection

TOOLS = {  # name: description, parameter, what makes the bundled model call it
    "get_weather": ("Get the weather", "city", ["What is the weather in Paris?", "Weather in Berlin?"]),
    "search": ("Search the web", "query", ["Search for cats.", "Who are you?"]),
}
PATHS = {"chat": "/v1/chat/completions", "tools": "/v1/chat/completions", "completions": "/v1/completions",
         "messages": "/v1/messages", "messages_tools": "/v1/messages"}
PATIENCE = 120  # seconds without a byte, of a good request


class Wrong(Exception):
    """An answer that must not be."""


# ------------------------------------------------------------------------------------------------- good requests


class Good:
    def __init__(self, kind, body, cancel=None):
        self.kind, self.body, self.cancel = kind, body, cancel

    @property
    def background(self):
        return self.body.get("priority") == "background"

    def way(self):
        return self.kind + (" streamed" if self.body["stream"] else " whole")


def good(i):
    rng = random.Random(i)
    kind = rng.choices(["chat", "completions", "messages", "tools", "messages_tools"], [45, 20, 20, 10, 5])[0]
    text = FILLER * min(int(rng.expovariate(0.5)), 12) + TEXTS[rng.randrange(len(TEXTS))]
    body = {"max_tokens": rng.randrange(1, 4) if rng.random() < 0.1 else rng.randrange(4, 40),
            "temperature": rng.choice([0, 0.3, 0.7, 1, 1.5]), "seed": rng.randrange(1 << 40),
            "stream": rng.random() < 0.6}
    if rng.random() < 0.3:
        body["top_p"] = rng.choice([0.5, 0.9, 0.95])
    if rng.random() < 0.2:
        body["top_k"] = rng.choice([1, 5, 40])
    if rng.random() < 0.15:
        body["priority"] = "background"
    if kind == "completions":
        body["prompt"] = text if rng.random() < 0.7 else [rng.randrange(300, 3000) for _ in range(rng.randrange(1, 60))]
    elif kind in ("messages", "messages_tools"):
        body["model"] = "demo"
        if rng.random() < 0.5:
            body["thinking"] = {"type": "disabled"}
        if rng.random() < 0.3:
            body["system"] = "Be brief."
    else:
        body["reasoning_effort"] = rng.choice(["none", "low", "max"])
    if kind in ("tools", "messages_tools"):
        name = rng.choice(list(TOOLS))
        description, parameter, texts = TOOLS[name]
        schema = {"type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]}
        tool = {"name": name, "description": description}
        body["tools"] = [dict(tool, input_schema=schema) if kind == "messages_tools" else
                         {"type": "function", "function": dict(tool, parameters=schema)}]
        text, body["max_tokens"] = rng.choice(texts), rng.randrange(24, 64)
    if kind != "completions":
        body["messages"] = [{"role": "user", "content": text}]
        if rng.random() < 0.2:
            body["messages"] = [{"role": "user", "content": "Hello!"}, {"role": "assistant", "content": "Hello."}] + \
                body["messages"]
    return Good(kind, body)


def heavy(i):
    """A long one, many of which at once touch all the memory that the service ever needs."""
    return Good("chat", {"messages": [{"role": "user", "content": FILLER * 60 + TEXTS[i % len(TEXTS)]}], "seed": i,
                         "max_tokens": 40, "temperature": 1, "ignore_eos": True, "stream": i % 2 == 0,
                         "reasoning_effort": "none"})


def repeated(request, rng):
    """The same question, sent in another way."""
    body = dict(request.body, stream=rng.random() < 0.5)
    body.pop("priority", None)
    if rng.random() < 0.2:
        body["priority"] = "background"
    return Good(request.kind, body)


class Reply:
    """What two replies to one question must have in common, and when the first piece of it came."""

    def __init__(self):
        self.reasoning = self.content = ""
        self.calls = []  # [name, arguments], in order
        self.finish = self.tokens = self.first = None

    def key(self):
        calls = [(name, json.dumps(json.loads(arguments or "{}"), sort_keys=True)) for name, arguments in self.calls]
        return self.reasoning, self.content, tuple(calls), self.finish, self.tokens

    def saw(self):
        if self.first is None:
            self.first = time.monotonic()

    def openai_event(self, event):
        if event.get("usage"):
            self.tokens = event["usage"]["completion_tokens"]
        for choice in event["choices"]:
            delta = choice.get("delta", choice)
            self.reasoning += delta.get("reasoning_content") or ""
            self.content += delta.get("content") or delta.get("text") or ""
            for call in delta.get("tool_calls") or []:
                while len(self.calls) <= call["index"]:
                    self.calls.append(["", ""])
                function = call.get("function", {})
                self.calls[call["index"]][0] += function.get("name") or ""
                self.calls[call["index"]][1] += function.get("arguments") or ""
            self.finish = choice["finish_reason"] or self.finish
        if self.reasoning or self.content or self.calls:
            self.saw()

    def messages_event(self, event):
        kind = event["type"]
        if kind == "content_block_start" and event["content_block"]["type"] == "tool_use":
            self.calls.append([event["content_block"]["name"], ""])
            self.saw()
        elif kind == "content_block_delta":
            delta = event["delta"]
            self.reasoning += delta.get("thinking", "")
            self.content += delta.get("text", "")
            if "partial_json" in delta:
                self.calls[-1][1] += delta["partial_json"]
            if self.reasoning or self.content:
                self.saw()
        elif kind == "message_delta":
            self.finish, self.tokens = event["delta"]["stop_reason"], event["usage"]["output_tokens"]

    def openai_whole(self, body):
        choice = body["choices"][0]
        message = choice.get("message", choice)
        self.reasoning = message.get("reasoning_content") or ""
        self.content = message.get("content") or message.get("text") or ""
        self.calls = [[c["function"]["name"], c["function"]["arguments"]] for c in message.get("tool_calls") or []]
        self.finish, self.tokens = choice["finish_reason"], body["usage"]["completion_tokens"]

    def messages_whole(self, body):
        for block in body["content"]:
            self.reasoning += block.get("thinking", "")
            self.content += block.get("text", "")
            if block["type"] == "tool_use":
                self.calls.append([block["name"], json.dumps(block["input"])])
        self.finish, self.tokens = body["stop_reason"], body["usage"]["output_tokens"]


class Client(Connection):
    def __init__(self, port):
        super().__init__(port, PATIENCE)

    def ask(self, request):
        """The reply, or None when it was cancelled: after so many events of a stream, so many seconds of a whole one."""
        self.send("POST", PATHS[request.kind], json.dumps(request.body))
        if request.cancel is not None and not request.body["stream"]:
            return self.abandon(request.cancel)
        response = self.connection.getresponse()
        if response.status != 200:
            raise Wrong(f"status {response.status}: {response.read().decode()}")
        messages, reply = request.kind.startswith("messages"), Reply()
        if not request.body["stream"]:
            body = json.loads(response.read())
            reply.messages_whole(body) if messages else reply.openai_whole(body)
            return reply
        ended, events = False, 0
        for line in response:
            line = line.decode("utf-8").rstrip("\n")
            if not line.startswith("data: "):
                continue
            if line == "data: [DONE]":
                ended = True
                break
            event = json.loads(line[6:])
            if "error" in event:
                raise Wrong("error event: " + line)
            reply.messages_event(event) if messages else reply.openai_event(event)
            events += 1
            if event.get("type") == "message_stop":
                ended = True
                break
            if request.cancel is not None and events >= request.cancel:
                response.close()
                self.close()
                return None
        if not ended:
            raise Wrong("the stream ended without its end")
        response.read()
        return reply


# -------------------------------------------------------------------------------------------- malformed requests

HI = [{"role": "user", "content": "Hi"}]
CHAT, COMPLETIONS, MESSAGES = PATHS["chat"], PATHS["completions"], PATHS["messages"]


def chat(**more):
    return json.dumps({"messages": HI, "max_tokens": 8, **more})


def messages(**more):
    return json.dumps({"model": "demo", "messages": HI, "max_tokens": 8, **more})


def completion(prompt, **more):
    return json.dumps({"prompt": prompt, "max_tokens": 8, **more})


# kind, path, body, status, code (of the Anthropic form: type)
MALFORMED = [
    ("bad JSON", CHAT, '{"messages": [{"role": "user", "content": "Hi"', 400, "invalid_json"),
    ("bad JSON", CHAT, "[1, 2]", 400, "invalid_json"),
    ("bad JSON", CHAT, "", 400, "invalid_json"),
    ("bad JSON", COMPLETIONS, '{"prompt": "\\ud800", nul}', 400, "invalid_json"),
    ("bad JSON", COMPLETIONS, "[" * 5000, 400, "invalid_json"),
    ("bad JSON", MESSAGES, "{'model': 'demo'}", 400, "invalid_request_error"),
    ("wrong types", CHAT, chat(max_tokens="many"), 400, "invalid_value"),
    ("wrong types", CHAT, chat(temperature=[1]), 400, "invalid_value"),
    ("wrong types", CHAT, chat(stream="yes"), 400, "invalid_value"),
    ("wrong types", CHAT, chat(stop=[""]), 400, "invalid_value"),
    ("wrong types", CHAT, chat(tools={"name": "f"}), 400, "invalid_value"),
    ("wrong types", CHAT, chat(priority=True), 400, "invalid_value"),
    ("wrong types", CHAT, json.dumps({"messages": "Hi"}), 400, "invalid_value"),
    ("wrong types", CHAT, json.dumps({"max_tokens": 3}), 400, "missing_required_parameter"),
    ("wrong types", COMPLETIONS, completion({"text": "Hi"}), 400, "invalid_value"),
    ("wrong types", COMPLETIONS, completion("Hi", n=0), 400, "invalid_value"),
    ("wrong types", MESSAGES, messages(max_tokens=-1), 400, "invalid_request_error"),
    ("wrong types", MESSAGES, messages(messages=[]), 400, "invalid_request_error"),
    ("wrong types", MESSAGES, messages(system=7), 400, "invalid_request_error"),
    ("unknown role", CHAT, chat(messages=[{"role": "wizard", "content": "Hi"}]), 400, "invalid_value"),
    ("unknown role", CHAT, chat(messages=[{"content": "Hi"}]), 400, "missing_required_parameter"),
    ("unknown role", MESSAGES, messages(messages=[{"role": "tool", "content": "Hi"}]), 400, "invalid_request_error"),
    ("over-long", CHAT, chat(max_tokens=1_000_000), 400, "context_length_exceeded"),
    ("over-long", CHAT, chat(messages=[{"role": "user", "content": FILLER * 3000}]), 400, "context_length_exceeded"),
    ("over-long", COMPLETIONS, completion([1] * 20_000), 400, "context_length_exceeded"),
    ("over-long", MESSAGES, messages(max_tokens=1_000_000), 400, "invalid_request_error"),
    ("bad ids", COMPLETIONS, completion([1, -5]), 400, "invalid_value"),
    ("bad ids", COMPLETIONS, completion([1 << 31]), 400, "invalid_value"),
    ("bad ids", COMPLETIONS, completion([1 << 70]), 400, None),
    ("bad ids", COMPLETIONS, completion([1, 2.5]), 400, "invalid_value"),
    ("bad ids", CHAT, chat(stop_token_ids=[-1]), 400, "invalid_value"),
    ("unknown URL", "/v1/chat/complétions", "", 404, "unknown_url"),
    ("unknown URL", "/v1/nothing", chat(), 404, "unknown_url"),
    ("unknown URL", "/health", chat(), 405, "method_not_allowed"),
    # Half of a request, then silence: the answer comes when the head's (10 s) or the body's (30 s) time is over.
    ("half-sent", CHAT, "head", 408, "request_timeout"),
    ("half-sent", CHAT, "body", 408, "request_timeout"),
    ("half-sent", MESSAGES, "body", 408, "invalid_request_error"),
    # Half of a request, then the client leaves: nobody is there to be answered.
    ("half-sent, left", CHAT, "head", None, None),
    ("half-sent, left", COMPLETIONS, "body", None, None),
]
HEAD_SECONDS, BODY_SECONDS = 10, 30


class Malformed:
    def __init__(self, n):
        self.kind, self.path, self.body, self.status, self.code = MALFORMED[n % len(MALFORMED)]

    def way(self):
        return "malformed: " + self.kind

    def half(self, port):
        whole = f"POST {self.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        if self.body == "body":
            whole += "Content-Length: 500\r\n\r\n" + chat()[:40]
        with socket.create_connection(("127.0.0.1", port), timeout=BODY_SECONDS + 30) as s:
            s.sendall(whole.encode("ascii"))
            if self.status is None:
                time.sleep(0.05)
                return None, None
            response = http.client.HTTPResponse(s)
            response.begin()
            return response.status, response.read()

    def send(self, client):
        """The code of the answer ("" without one); raises Wrong for another answer than it must have."""
        if self.kind.startswith("half-sent"):
            status, text = self.half(client.port)
        elif not self.path.isascii():
            with socket.create_connection(("127.0.0.1", client.port), timeout=PATIENCE) as s:
                s.sendall(f"POST {self.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n".encode("utf-8"))
                response = http.client.HTTPResponse(s)
                response.begin()
                status, text = response.status, response.read()
        else:
            client.send("POST", self.path, self.body)
            response = client.connection.getresponse()
            status, text = response.status, response.read()
        if self.status is None:
            return ""
        got = f"status {status}: {text[:200]!r}"
        if status != self.status:
            raise Wrong(f"status {self.status} was due, not {got}")
        try:
            error = json.loads(text)["error"]
            code = error["type"] if self.path == MESSAGES else error["code"]
            typed = isinstance(error["message"], str) and error["message"] and isinstance(error["type"], str) and code
        except (ValueError, KeyError, TypeError):
            typed = False
        if not typed:
            raise Wrong("no typed error: " + got)
        if self.code is not None and code != self.code:
            raise Wrong(f"code {self.code} was due, not {got}")
        return f"{status} {code}"
