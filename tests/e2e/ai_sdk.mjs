// The AI SDK with its OpenAI-compatible provider: generateText and streamText, two steps of a tool task; replies from
// a script, and one conversation with the bundled model.
//   node ai_sdk.mjs PROGRAM SCRIPTED_SERVER MODEL_DIR
import assert from 'node:assert/strict';
import { callText, run, serve, serveScript } from './served.mjs';

let ai, createOpenAICompatible, z;
try {
  ai = await import('ai');
  ({ createOpenAICompatible } = await import('@ai-sdk/openai-compatible'));
  ({ z } = await import('zod'));
} catch {
  console.log('skipped: ai, @ai-sdk/openai-compatible and zod are not installed (npm ci in tests/e2e)');
  process.exit(77);
}
const { generateText, streamText, stepCountIs, tool } = ai;

const [program, scripted, modelDir] = process.argv.slice(2);
const modelOf = (server, options = {}) => createOpenAICompatible({ name: 'firesteel', baseURL: `${server.url}/v1`,
  includeUsage: true, ...options })('demo');

const server = await serveScript(scripted, modelDir, [
  { when: 'sum', result: '12', reply: 'Done.</think>The sum is 12, é 雨.', cut: 'byte' },
  { when: 'sum', reply: `I add.</think>${callText('add', { numbers: [5, 7], label: '007' })}${callText('now')}`, cut: 'byte' },
  { when: 'cut', reply: 'Never.</think>one two three four five six seven eight nine ten' },
  { when: 'slow', reply: `</think>${'tick '.repeat(400)}`, delay_ms: 20 },
  { when: 'Hello', reply: 'Greet.</think>Hello to you.' },
]);
const model = modelOf(server);

/// Tools that note what they were called with.
function tools(seen) {
  return {
    add: tool({ description: 'Adds numbers',
      inputSchema: z.object({ numbers: z.array(z.number()), label: z.string() }),
      execute: async (input) => {
        seen.push(input);
        return { sum: input.numbers.reduce((a, b) => a + b, 0) };
      } }),
    now: tool({ description: 'The time', inputSchema: z.object({}), execute: async (input) => {
      seen.push(input);
      return 'noon';
    } }),
  };
}
const expected = [{ numbers: [5, 7], label: '007' }, {}];

const checks = {
  async 'generateText'() {
    const reply = await generateText({ model, prompt: 'Hello' });
    assert.equal(reply.text, 'Hello to you.');
    assert.equal(reply.reasoningText, 'Greet.');
    assert.equal(reply.finishReason, 'stop');
    assert.ok(reply.usage.inputTokens > 0 && reply.usage.outputTokens > 0);
  },
  async 'streamText'() {
    const reply = streamText({ model, system: 'Be kind.', prompt: 'Hello' });
    let text = '';
    for await (const piece of reply.textStream) text += piece;
    assert.equal(text, 'Hello to you.');
    assert.equal(await reply.reasoningText, 'Greet.');
    assert.equal(await reply.finishReason, 'stop');
    assert.ok((await reply.usage).outputTokens > 0);
  },
  async 'generateText runs a tool task of two steps'() {
    const seen = [];
    const reply = await generateText({ model, prompt: 'sum of 5 and 7', tools: tools(seen), stopWhen: stepCountIs(5) });
    assert.deepEqual(seen, expected);
    assert.equal(reply.steps.length, 2);
    assert.equal(reply.steps[0].finishReason, 'tool-calls');
    assert.equal(reply.text, 'The sum is 12, é 雨.');
  },
  async 'streamText runs a tool task of two steps'() {
    const seen = [], kinds = new Set();
    const reply = streamText({ model, prompt: 'sum of 5 and 7', tools: tools(seen), stopWhen: stepCountIs(5) });
    for await (const part of reply.fullStream) {
      assert.notEqual(part.type, 'error', String(part.error));
      kinds.add(part.type);
    }
    assert.deepEqual(seen, expected);
    assert.equal((await reply.steps).length, 2);
    assert.equal(await reply.text, 'The sum is 12, é 雨.');
    for (const kind of ['reasoning-delta', 'tool-call', 'tool-result', 'text-delta', 'finish']) assert.ok(kinds.has(kind), kind);
  },
  async 'arguments as they are written'() {
    const seen = [], deltas = {};
    const incremental = modelOf(server, { fetch: (url, init) => {
      const body = JSON.parse(init.body);
      body.stream_options = { ...body.stream_options, tool_arguments: 'incremental' };
      return fetch(url, { ...init, body: JSON.stringify(body) });
    } });
    const reply = streamText({ model: incremental, prompt: 'sum of 5 and 7', tools: tools(seen), stopWhen: stepCountIs(5) });
    for await (const part of reply.fullStream) {
      assert.notEqual(part.type, 'error', String(part.error));
      if (part.type === 'tool-input-delta') (deltas[part.id] ??= []).push(part.delta);
    }
    assert.deepEqual(seen, expected);
    assert.equal(await reply.text, 'The sum is 12, é 雨.');
    assert.ok(Object.values(deltas).some((pieces) => pieces.length > 2), JSON.stringify(deltas));
  },
  async 'a limit is reported as such'() {
    const reply = await generateText({ model, prompt: 'cut', maxOutputTokens: 8 });
    assert.equal(reply.finishReason, 'length');
  },
  async 'an aborted stream frees its place'() {
    const stop = new AbortController();
    const reply = streamText({ model, prompt: 'slow', abortSignal: stop.signal, onError: () => {} });
    let pieces = 0;
    for await (const piece of reply.textStream) {
      if (piece && ++pieces === 3) stop.abort();
    }
    assert.ok(pieces >= 3 && pieces < 100, `${pieces} pieces`);
    for (let i = 0; ; ++i) {
      const health = await (await fetch(`${server.url}/health`)).json();
      if (health.requests_running === 0) break;
      assert.ok(i < 100, 'still running');
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  },
  async 'errors arrive as errors, whole and streamed'() {
    const failing = { model, prompt: 'no such line', maxRetries: 0 };
    await assert.rejects(generateText(failing), /no line of the script fits/);
    let seen;
    await streamText({ ...failing, onError: ({ error }) => (seen = error) }).consumeStream();
    assert.match(JSON.stringify(seen?.message ?? seen), /no line of the script fits/);
    await assert.rejects(generateText({ ...failing, topP: 3 }), { statusCode: 400 });
  },
  async 'the bundled model'() {
    const real = await serve(program, ['--model', modelDir, '--device', 'cpu']);
    try {
      const ask = { model: modelOf(real), prompt: 'What is a library?', temperature: 0, maxOutputTokens: 300 };
      const whole = await generateText(ask);
      assert.match(whole.text, /place where books/);
      assert.ok(whole.reasoningText.length > 0);
      assert.equal(await streamText(ask).text, whole.text);
    } finally {
      assert.equal(await real.stop(), 0);
    }
  },
};
const passed = await run(checks);
const status = await server.stop();
process.exit(passed && status === 0 ? 0 : 1);
