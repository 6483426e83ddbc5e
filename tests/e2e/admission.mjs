// A full engine and priorities, over real HTTP with streams against the bundled model.
//   node admission.mjs PROGRAM MODEL_DIR
import assert from 'node:assert/strict';
import { engineHas, run, serve } from './served.mjs';

const [program, modelDir] = process.argv.slice(2);
const server = await serve(program, ['--model', modelDir, '--device', 'cpu', '--streams', '1']);
const kPlaces = 1 + 64; // one in the batch, the rest in the queue

function ask(text, tokens, extra = {}) {
  const stop = new AbortController();
  const sent = fetch(`${server.url}/v1/chat/completions`, {
    method: 'POST',
    signal: stop.signal,
    body: JSON.stringify({
      messages: [{ role: 'user', content: text }], stream: true, max_tokens: tokens, ignore_eos: true, temperature: 0,
      reasoning_effort: 'none', ...extra,
    }),
  });
  return { sent, stop };
}

/// Reads a stream to its end; `seen` gets the time of every piece of text.
async function read(reply, seen = () => {}) {
  let text = '', rest = '';
  for await (const bytes of reply.body) {
    rest += Buffer.from(bytes).toString('latin1');
    for (let end; (end = rest.indexOf('\n\n')) >= 0; rest = rest.slice(end + 2)) {
      const data = rest.slice(0, end);
      if (!data.startsWith('data: {')) continue;
      const piece = JSON.parse(Buffer.from(data.slice(6), 'latin1').toString()).choices[0]?.delta?.content;
      if (piece) seen();
      text += piece ?? '';
    }
  }
  return text;
}


const checks = {
  async 'what does not fit is refused before its stream opens'() {
    const asked = Array.from({ length: kPlaces + 5 }, (_, i) => ask(`Question ${i}`, 2000));
    const replies = await Promise.all(asked.map((a) => a.sent));
    const refused = replies.filter((reply) => reply.status === 429);
    assert.equal(refused.length, 5, replies.map((reply) => reply.status).join(' '));
    for (const reply of refused) {
      assert.equal(reply.headers.get('retry-after'), '5');
      assert.equal(reply.headers.get('content-type'), 'application/json');
      const { error } = await reply.json();
      assert.equal(error.code, 'server_busy');
      assert.equal(error.type, 'rate_limit_error');
    }
    for (const reply of replies.filter((r) => r.status !== 429)) {
      assert.equal(reply.status, 200);
      assert.equal(reply.headers.get('content-type'), 'text/event-stream');
    }
    const full = await engineHas(server.url, 1, kPlaces - 1);
    assert.equal(full.get('firesteel_refused_total{code="server_busy"}'), 5);
    assert.equal(full.get('firesteel_requests_total{key="",status="429"}'), 5);
    asked.forEach((a) => a.stop.abort());
    const after = await engineHas(server.url, 0, 0);
    assert.equal(after.get('firesteel_request_success_total{finished_reason="abort"}'), kPlaces);
    assert.equal(after.get('firesteel_client_disconnections_total'), kPlaces);
    assert.equal((await ask('Hello', 3).sent).status, 200);
  },
  async 'background requests give way and lose nothing'() {
    await engineHas(server.url, 0, 0);
    const question = 'Write the numbers from 1 to 50.';
    const alone = await read(await ask(question, 200).sent);
    const order = [];
    let begun;
    const first = new Promise((resolve) => (begun = resolve));
    const running = ask(question, 200, { priority: 'background' }).sent
      .then((reply) => read(reply, begun)).then((text) => (order.push('running background'), text));
    await first;
    const waiting = ask('Who are you?', 5, { priority: 7 }).sent
      .then((reply) => read(reply, () => order.includes('waiting background') || order.push('waiting background')));
    await new Promise((resolve) => setTimeout(resolve, 20));
    const foreground = ask('Who are you?', 5).sent.then(read).then(() => order.push('foreground'));
    const [text] = await Promise.all([running, waiting, foreground]);
    assert.equal(order[0], 'foreground', order.join(', '));
    assert.equal(text, alone, 'the reply that gave way is not the one it gives alone');
  },
};

let good = false;
try {
  good = await run(checks);
} finally {
  await server.stop();
}
process.exit(good ? 0 : 1);
