// Several ranks under fire: killed, stopped, slow, restarted and differing processes.
//   node ranks.mjs PROGRAM MODEL_DIR
// A reply is the one that a single rank gives, or ends with a retryable error within five seconds; the service comes
// back by itself.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { readFileSync, readdirSync } from 'node:fs';
import { run, serve } from './served.mjs';

const [program, modelDir] = process.argv.slice(2);
const kTokens = 300;
const kNoticed = 5000; // ms
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const common = ['--model', modelDir, '--device', 'cpu', '--streams', '2', '--context', '2048'];

/// Streams one long reply; returns its text, the error event if one came, and the time of each piece.
async function ask(url, onPiece = () => {}, tokens = kTokens) {
  const reply = await fetch(`${url}/v1/chat/completions`, {
    method: 'POST',
    body: JSON.stringify({
      messages: [{ role: 'user', content: 'Tell me a story.' }], stream: true, max_tokens: tokens, ignore_eos: true,
      temperature: 0.8, seed: 3, reasoning_effort: 'none',
    }),
  });
  if (reply.status !== 200) return { status: reply.status, error: (await reply.json()).error, text: '' };
  let text = '', rest = '', error = null, pieces = 0;
  for await (const bytes of reply.body) {
    rest += Buffer.from(bytes).toString('latin1');
    for (let end; (end = rest.indexOf('\n\n')) >= 0; rest = rest.slice(end + 2)) {
      const line = rest.slice(0, end).split('\n').find((l) => l.startsWith('data: {'));
      if (!line) continue;
      const event = JSON.parse(Buffer.from(line.slice(6), 'latin1').toString());
      if (event.error) error = event.error;
      const piece = event.choices?.[0]?.delta?.content;
      if (piece) onPiece(++pieces);
      text += piece ?? '';
    }
  }
  return { status: 200, text, error };
}

async function untilReady(url, limit = 30000) {
  const start = Date.now();
  for (;;) {
    const reply = await fetch(`${url}/ready`).catch(() => null);
    if (reply?.status === 200) return Date.now() - start;
    assert.ok(Date.now() - start < limit, `not ready again: ${await reply?.text()}`);
    await sleep(20);
  }
}

/// The processes that `pid` started, oldest first.
function children(pid) {
  const parentOf = (n) => {
    try {
      return Number(readFileSync(`/proc/${n}/stat`, 'latin1').replace(/^.*\) /s, '').split(' ')[1]);
    } catch {
      return -1; // it ended meanwhile
    }
  };
  const all = readdirSync('/proc').filter((name) => /^\d+$/.test(name)).map(Number).sort((a, b) => a - b);
  return all.filter((n) => parentOf(n) === pid);
}

/// Asks, does `act` in the middle of the reply, and checks that what came is the beginning of the reference and that
/// the end was a retryable error in time.
async function lose(url, act) {
  let acted = 0;
  const got = await ask(url, (pieces) => {
    if (pieces !== 20 || acted) return;
    acted = Date.now();
    act();
  });
  const took = Date.now() - acted;
  assert.ok(acted > 0);
  assert.ok(got.error, 'the stream ends with an error event');
  assert.equal(got.error.code, 'engine_dead');
  assert.match(got.error.message, /try again/);
  assert.ok(reference.startsWith(got.text), 'no wrong token');
  assert.ok(took < kNoticed, `noticed after ${took} ms`);
  return took;
}

async function same(url) {
  const got = await ask(url);
  assert.equal(got.error, null);
  assert.equal(got.text, reference);
}

let reference;
{
  const single = await serve(program, common);
  reference = (await ask(single.url)).text;
  await single.stop();
  assert.ok(reference.length > 200);
}
const started = [];
const start = async (...more) => {
  const server = await serve(program, [...common, ...more]);
  started.push(server);
  return server;
};
/// A process that is not waited for; its log lines are kept.
function launch(args) {
  const child = spawn(program, ['serve', ...args], { stdio: ['ignore', 'ignore', 'pipe'] });
  const out = { child, log: '', code: null };
  child.stderr.on('data', (bytes) => (out.log += bytes));
  out.ended = new Promise((resolve) => child.on('exit', (code, signal) => resolve((out.code = code ?? signal))));
  started.push({ stop: async () => child.kill('SIGKILL') });
  return out;
}
const note = (text) => console.log(`      ${text}`);

let two;
const ok = await run({
  'two ranks give the reply of one': async () => {
    two = await start('--ranks', '2');
    await same(two.url);
  },
  'a rank that is killed': async () => {
    const took = await lose(two.url, () => process.kill(children(two.pid)[0], 'SIGKILL'));
    const refused = await ask(two.url); // at once: refused, or served if the rank is back already
    if (refused.status !== 200) assert.equal(refused.status, 503);
    const back = await untilReady(two.url);
    note(`error after ${took} ms, ready again ${back} ms later`);
    await same(two.url);
  },
  'a rank that is killed after requests that ran together': async () => {
    // Pages and slots are then free in an order that a fresh process does not know.
    await Promise.all([1, 2, 3, 4, 5, 6].map((n) => ask(two.url, () => {}, 20 * n)));
    process.kill(children(two.pid)[0], 'SIGKILL');
    await sleep(300);
    await untilReady(two.url);
    await same(two.url);
  },
  'a rank that is killed while nothing runs': async () => {
    process.kill(children(two.pid)[0], 'SIGKILL');
    await sleep(300);
    await untilReady(two.url);
    await same(two.url);
  },
  'a rank that is stopped, and goes on later': async () => {
    const rank = children(two.pid)[0];
    const took = await lose(two.url, () => process.kill(rank, 'SIGSTOP'));
    process.kill(rank, 'SIGCONT');
    const back = await untilReady(two.url);
    note(`error after ${took} ms, ready ${back} ms after it went on`);
    await same(two.url);
  },
  'a rank that is stopped for a moment': async () => {
    const rank = children(two.pid)[0];
    const got = await ask(two.url, (pieces) => {
      if (pieces !== 20) return;
      process.kill(rank, 'SIGSTOP');
      setTimeout(() => process.kill(rank, 'SIGCONT'), 1500);
    });
    assert.equal(got.error, null);
    assert.equal(got.text, reference);
  },
  'a slow rank': async () => {
    const rank = children(two.pid)[0];
    let stopped = false;
    const toggle = setInterval(() => process.kill(rank, (stopped = !stopped) ? 'SIGSTOP' : 'SIGCONT'), 10);
    await same(two.url).finally(() => {
      clearInterval(toggle);
      process.kill(rank, 'SIGCONT');
    });
  },
  'rank 0 ends in order and takes its ranks along': async () => {
    const ranks = children(two.pid);
    assert.equal(await two.stop(), 0);
    for (const pid of ranks) assert.throws(() => process.kill(pid, 0), 'still there');
  },
  'four ranks, one of them killed': async () => {
    const four = await start('--ranks', '4');
    await same(four.url);
    const took = await lose(four.url, () => process.kill(children(four.pid)[2], 'SIGKILL'));
    const back = await untilReady(four.url);
    note(`error after ${took} ms, ready again ${back} ms later`);
    await same(four.url);
    await four.stop();
  },
  'ranks that disagree name the difference': async () => {
    const leader = launch([...common, '--port', '0', '--ranks', '2', '--rank', '0', '--leader', '127.0.0.1:29461']);
    const other = launch(['--model', modelDir, '--device', 'cpu', '--streams', '3', '--context', '2048', '--ranks', '2',
      '--rank', '1', '--leader', '127.0.0.1:29461']);
    assert.equal(await other.ended, 2);
    assert.equal(await leader.ended, 2);
    for (const side of [leader, other]) assert.match(side.log, /streams is 2 on rank 0 and 3 on rank 1/);
  },
  'over TCP, either side restarted': async () => {
    const address = '127.0.0.1:29462';
    const follow = () => launch([...common, '--ranks', '2', '--rank', '1', '--leader', address]);
    const lead = () => start('--ranks', '2', '--rank', '0', '--leader', address);
    let rank1 = follow();
    let rank0 = await lead();
    await same(rank0.url);
    const took = await lose(rank0.url, () => rank1.child.kill('SIGKILL'));
    rank1 = follow();
    note(`error after ${took} ms, ready ${await untilReady(rank0.url)} ms after the restart`);
    await same(rank0.url);
    process.kill(rank0.pid, 'SIGKILL');
    await sleep(500);
    rank0 = await lead();
    await same(rank0.url);
    assert.equal(rank1.code, null, 'rank 1 was not restarted');
    await rank0.stop();
  },
});
for (const server of started) await server.stop();
process.exit(ok ? 0 : 1);
