// The official Anthropic client: messages whole and streamed, thinking, two steps of a tool task, counting, errors;
// replies from a script, and one conversation with the bundled model.
//   node anthropic_sdk.mjs PROGRAM SCRIPTED_SERVER MODEL_DIR
import assert from 'node:assert/strict';
import { callText, run, serve, serveScript } from './served.mjs';

let Anthropic;
try {
  ({ default: Anthropic } = await import('@anthropic-ai/sdk'));
} catch {
  console.log('skipped: @anthropic-ai/sdk is not installed (npm ci in tests/e2e)');
  process.exit(77);
}

const [program, scripted, modelDir] = process.argv.slice(2);
const clientOf = (server, apiKey = 'none') =>
  new Anthropic({ baseURL: server.url, apiKey, maxRetries: 0, timeout: 120_000 });
const user = (content) => ({ role: 'user', content });
const tools = [{ name: 'get_weather', description: 'Weather of a city', input_schema: { type: 'object',
  properties: { city: { type: 'string' }, days: { type: 'integer' } }, required: ['city'] } }];
const thinking = { type: 'adaptive' }; // off unless asked for on this route

const server = await serveScript(scripted, modelDir, [
  { when: 'weather', result: 'rain', reply: 'Wet.</think>It rains in Oslo, é 雨.' },
  { when: 'weather', reply: `Two calls.</think>I look.${callText('get_weather', { city: 'Oslo', days: 3 })}${
    callText('get_weather', { city: 'Rome' })}` },
  { when: 'off', reply: 'No thoughts.' },
  { when: 'count', reply: 'Counting.</think>one two three four five' },
].map((line) => ({ ...line, cut: 'byte' })));
const client = clientOf(server);
const ask = (request) => client.messages.create({ model: 'demo', max_tokens: 2000, ...request });

const checks = {
  async 'a whole reply'() {
    const reply = await ask({ messages: [user('off')] });
    assert.equal(reply.type, 'message');
    assert.deepEqual(reply.content.map((block) => [block.type, block.text]), [['text', 'No thoughts.']]);
    assert.equal(reply.stop_reason, 'end_turn');
    assert.ok(reply.usage.input_tokens > 0 && reply.usage.output_tokens > 0);
  },
  async 'thinking, and a stop sequence'() {
    const reply = await ask({ messages: [user('count')], thinking, stop_sequences: [' four'] });
    assert.deepEqual(reply.content.map((block) => block.thinking ?? block.text), ['Counting.', 'one two three']);
    assert.equal(reply.stop_reason, 'stop_sequence');
    assert.equal(reply.stop_sequence, ' four');
  },
  async 'a stream gives the message that create gives, through the helper and event by event'() {
    const request = { model: 'demo', max_tokens: 2000, messages: [user('weather?')], tools, thinking };
    const whole = await client.messages.create(request);
    let text = '', thought = '';
    const stream = client.messages.stream(request).on('text', (piece) => (text += piece))
      .on('thinking', (piece) => (thought += piece));
    const streamed = await stream.finalMessage();
    const plain = (message) => message.content.map(({ id, ...block }) => block);
    assert.deepEqual(plain(streamed), plain(whole));
    assert.equal(streamed.stop_reason, whole.stop_reason);
    assert.equal(streamed.usage.output_tokens, whole.usage.output_tokens);
    assert.equal(text, 'I look.');
    assert.equal(thought, 'Two calls.');
    const kinds = [];
    for await (const event of await client.messages.create({ ...request, stream: true })) kinds.push(event.type);
    assert.equal(kinds[0], 'message_start');
    assert.deepEqual(kinds.slice(-2), ['message_delta', 'message_stop']);
    assert.equal(kinds.filter((kind) => kind === 'content_block_start').length, 4);
    assert.equal(kinds.filter((kind) => kind === 'content_block_stop').length, 4);
  },
  async 'a tool task in two steps'() {
    const messages = [user('weather in Oslo and Rome?')];
    const first = await ask({ messages, tools, thinking });
    assert.equal(first.stop_reason, 'tool_use');
    const calls = first.content.filter((block) => block.type === 'tool_use');
    assert.deepEqual(calls.map((call) => [call.name, call.input]),
      [['get_weather', { city: 'Oslo', days: 3 }], ['get_weather', { city: 'Rome' }]]);
    assert.notEqual(calls[0].id, calls[1].id);
    messages.push({ role: 'assistant', content: first.content }, user(calls.map((call) => (
      { type: 'tool_result', tool_use_id: call.id, content: [{ type: 'text', text: 'rain' }] }))));
    for (const last of [await ask({ messages, tools, thinking }),
      await client.messages.stream({ model: 'demo', max_tokens: 2000, messages, tools, thinking }).finalMessage()]) {
      assert.equal(last.stop_reason, 'end_turn');
      assert.equal(last.content.at(-1).text, 'It rains in Oslo, é 雨.');
    }
    const count = await client.messages.countTokens({ model: 'demo', messages, tools, thinking });
    assert.equal(count.input_tokens, (await ask({ messages, tools, thinking })).usage.input_tokens);
  },
  async 'a system prompt in blocks with cache_control, a replayed thinking block, an error result'() {
    const reply = await ask({
      system: [{ type: 'text', text: 'Be brief.', cache_control: { type: 'ephemeral' } }], tools, thinking,
      messages: [user('weather?'), { role: 'assistant', content: [
        { type: 'thinking', thinking: 'I look.', signature: '' },
        { type: 'tool_use', id: 'toolu_1', name: 'get_weather', input: { city: 'Oslo' } }] },
      user([{ type: 'tool_result', tool_use_id: 'toolu_1', is_error: true, content: 'rain gauge lost' }])],
    });
    assert.equal(reply.content.at(-1).text, 'It rains in Oslo, é 雨.');
  },
  async 'max_tokens cuts, and a call that is cut is not sent'() {
    const reply = await ask({ messages: [user('weather?')], tools, thinking, max_tokens: 60 });
    assert.equal(reply.stop_reason, 'max_tokens');
    assert.ok(!reply.content.some((block) => block.type === 'tool_use'));
    assert.ok(!JSON.stringify(reply.content).includes('<tool_call>'));
  },
  async 'errors have the client\'s classes'() {
    await assert.rejects(ask({ messages: [] }), Anthropic.BadRequestError);
    await assert.rejects(ask({ messages: [user('off')], max_tokens: 0 }), Anthropic.BadRequestError);
    await assert.rejects(ask({ messages: [user('off')], max_tokens: 10_000_000 }), (error) =>
      error instanceof Anthropic.BadRequestError && /prompt is too long/.test(error.message));
    await assert.rejects(ask({ messages: [user('no such line')] }), Anthropic.BadRequestError);
    const locked = await serveScript(scripted, modelDir, [{ reply: 'x' }], ['--api-key', 'k']);
    const request = { model: 'demo', max_tokens: 10, messages: [user('x')] };
    await assert.rejects(clientOf(locked).messages.create(request), Anthropic.AuthenticationError);
    assert.equal((await clientOf(locked, 'k').messages.create(request)).content[0].text, 'x');
    await locked.stop();
  },
  async 'the bundled model'() {
    const real = await serve(program, ['--model', modelDir, '--device', 'cpu']);
    try {
      const request = { model: 'demo', max_tokens: 300, messages: [user('What is a library?')], temperature: 0 };
      const whole = await clientOf(real).messages.create(request);
      const streamed = await clientOf(real).messages.stream(request).finalMessage();
      assert.deepEqual(streamed.content, whole.content);
      assert.match(whole.content[0].text, /place where books/);
    } finally {
      assert.equal(await real.stop(), 0);
    }
  },
};
const passed = await run(checks);
const status = await server.stop();
process.exit(passed && status === 0 ? 0 : 1);
