// `firesteel check tools` against replies from a script: right ones and wrong ones; the bundled model; servers that are
// not there.
//   node check_tools.mjs PROGRAM SCRIPTED_SERVER MODEL_DIR
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { callText, run, serve, serveScript } from './served.mjs';

const [program, scripted, modelDir] = process.argv.slice(2);

function check(...args) {
  return new Promise((resolve) => {
    const child = spawn(program, ['check', 'tools', ...args], { stdio: ['ignore', 'pipe', 'pipe'] });
    const out = { stdout: '', stderr: '' };
    child.stdout.on('data', (data) => (out.stdout += data));
    child.stderr.on('data', (data) => (out.stderr += data));
    child.on('close', (code) => resolve({ ...out, code, lines: out.stdout.trim().split('\n').slice(1) }));
  });
}

const weather = (city) => callText('get_weather', { city });
const booking = { guests: 4, outside: true, names: ['Ada', 'Bob'], customer_number: '0012345' };
const right = [
  { when: 'Which tools', reply: '</think>get_weather would.' },
  { when: 'How warm', result: '12', reply: 'Read it.</think>It is 12 degrees.' },
  { when: 'Oslo and in Rome', reply: `Two.</think>${weather('Oslo')}${weather('Rome')}` },
  { when: 'weather in Oslo?', reply: `I look.</think>${weather('Oslo')}` },
  { when: 'Book a table', reply: `I book.</think>${callText('book_table', booking)}` },
  { when: 'What time', reply: `</think>${callText('get_time')}` },
  { when: 'Say hello to Bob.', reply: `</think>${callText('greet', { name: 'Bob' })}` },
  { when: 'who lives in Oslo', reply: `</think>${weather('Oslo')}` },
];
const names = ['one call', 'typed arguments', 'no arguments', 'two calls', 'answer to a result', 'tool_choice none',
  'tool_choice required', 'tool_choice named', 'parallel_tool_calls false'];
const mayBeSkipped = (name) => /required|named/.test(name); // until calls can be forced

async function against(lines, args, body) {
  const server = await serveScript(scripted, modelDir, lines, args);
  try {
    return await body(server);
  } finally {
    assert.equal(await server.stop(), 0);
  }
}
/// The line of one check.
const lineOf = (result, name) => result.lines.find((line) => line.slice(6).startsWith(`${name}:`));

const checks = {};
for (const cut of ['token', 'byte', 'whole', [3, 1, 7]]) {
  checks[`a right server passes, cut ${JSON.stringify(cut)}`] = () =>
    against(right.map((line) => ({ ...line, cut })), [], async (server) => {
      const result = await check('--url', server.url);
      assert.equal(result.code, 0, result.stdout + result.stderr);
      for (const name of names) {
        for (const way of ['whole', 'streamed', 'streamed equals whole']) {
          const line = lineOf(result, `${name}, ${way}`);
          if (mayBeSkipped(name) && (line === undefined || line.startsWith('skip '))) continue;
          assert.match(line ?? '', /^ok {4}.*: \d+ ms$/, `${name}, ${way}\n${result.stdout}`);
        }
      }
      assert.match(result.lines.at(-1), /^\d+ passed, 0 failed, [024] skipped$/);
    });
}

/// The right script with one reply replaced; `name` must fail, whole and streamed, for the reason; nothing else may.
function wrong(when, reply, name, reason) {
  return () => against(right.map((line) => (line.when === when ? { ...line, reply } : line)), [], async (server) => {
    const result = await check('--url', `${server.url}/v1`);
    assert.equal(result.code, 1, result.stdout);
    for (const way of ['whole', 'streamed']) {
      const line = lineOf(result, `${name}, ${way}`);
      assert.match(line, /^FAIL {2}/);
      assert.match(line, reason);
    }
    const failed = result.lines.filter((line) => line.startsWith('FAIL'));
    assert.ok(failed.every((line) => line.slice(6).startsWith(name)), failed.join('\n'));
  });
}
Object.assign(checks, {
  'no call': wrong('weather in Oslo?', '</think>It rains.', 'one call', /0 calls instead of 1.*stop.*"It rains\."/),
  'another city': wrong('weather in Oslo?', `</think>${weather('Bergen')}`, 'one call', /city that says Oslo/),
  'another tool': wrong('What time', `</think>${weather('Oslo')}`, 'no arguments', /get_weather instead of get_time/),
  'arguments too many': wrong('What time', `</think>${callText('get_time', { zone: 'x' })}`, 'no arguments', /instead of \{\}/),
  'a number that is none': wrong('Book a table', `</think>${callText('book_table', { ...booking, guests: 'four' })}`,
    'typed arguments', /guests is "four" instead of 4/),
  'zeros lost': wrong('Book a table', `</think>${callText('book_table', { ...booking, customer_number: '12345' })}`,
    'typed arguments', /customer_number is "12345" instead of "0012345"/),
  'a name missing': wrong('Book a table', `</think>${callText('book_table', { ...booking, names: ['Ada'] })}`,
    'typed arguments', /names is \["Ada"\]/),
  'one call for two': wrong('Oslo and in Rome', `</think>${weather('Oslo')}`, 'two calls', /1 call instead of 2/),
  'the same call twice': wrong('Oslo and in Rome', `</think>${weather('Oslo')}${weather('Oslo')}`, 'two calls', /says Rome/),
  'the result not used': wrong('How warm', '</think>It is warm.', 'answer to a result', /12 is not in the content/),
  'a call again': wrong('How warm', `</think>${weather('Oslo')}`, 'answer to a result', /1 call instead of 0/),
  'markup shown': wrong('weather in Oslo?', '</think><tool_call>get weather<arg_key>', 'one call', /<tool_call> is in the content/),
  'no answer to tool_choice none': wrong('Which tools', 'I think.</think>', 'tool_choice none', /content is empty/),

  async 'a server without a fitting line'() {
    await against([{ when: 'nothing asks this', reply: 'x' }], [], async (server) => {
      const result = await check('--url', server.url);
      assert.equal(result.code, 1);
      assert.match(lineOf(result, 'one call, whole'), /^FAIL {2}.*answers 400: no line of the script fits/);
      assert.match(lineOf(result, 'one call, streamed'), /^FAIL {2}.*the stream failed: no line of the script fits/);
    });
  },
  async 'the bundled model calls, calls twice, and answers from a result'() {
    const server = await serve(program, ['--model', modelDir, '--device', 'cpu']);
    try {
      const result = await check('--url', server.url);
      for (const name of ['one call', 'two calls', 'answer to a result', 'tool_choice none', 'parallel_tool_calls false']) {
        assert.match(lineOf(result, `${name}, streamed equals whole`) ?? '', /^ok/, result.stdout);
      }
      assert.equal(result.code, 1); // it was not trained to book tables or tell the time
    } finally {
      assert.equal(await server.stop(), 0);
    }
  },
  async 'keys'() {
    await against(right, ['--api-key', 'secret-1'], async (server) => {
      const without = await check('--url', server.url);
      assert.equal(without.code, 1);
      assert.match(without.stderr, /^firesteel: \/v1\/models answers 401: a valid API key is required\n$/);
      assert.equal((await check('--url', server.url, '--key', 'secret-1')).code, 0);
    });
  },
  async 'a server that is not there, and URLs that are none'() {
    const gone = await check('--url', 'http://127.0.0.1:9');
    assert.equal(gone.code, 1);
    assert.match(gone.stderr, /^firesteel: cannot connect to 127\.0\.0\.1:9: .*\n$/);
    for (const url of ['ftp://x', 'http://', 'x']) assert.equal((await check('--url', url)).code, 2, url);
    assert.equal((await check('--key')).code, 2);
  },
});
process.exit((await run(checks)) ? 0 : 1);
