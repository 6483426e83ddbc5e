// The official OpenAI client against the bundled model: whole and streamed, thinking on and off.
//   node openai_chat.mjs PROGRAM MODEL_DIR GOLDENS.json
import assert from 'node:assert/strict';
import { run, serve } from './served.mjs';
import { loadGoldens } from './goldens.mjs';

let OpenAI;
try {
  ({ default: OpenAI } = await import('openai'));
} catch {
  console.log('skipped: the openai package is not installed (npm ci in tests/e2e)');
  process.exit(77);
}

const [program, modelDir, goldenFile] = process.argv.slice(2);
const goldens = loadGoldens(modelDir, goldenFile);
const server = await serve(program, ['--model', modelDir, '--device', 'cpu']);
const client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: 'none', maxRetries: 0, timeout: 300_000 });
const model = (await client.models.list()).data[0].id;
const ask = (request) => client.chat.completions.create({ model, temperature: 0, max_tokens: 2000, ...request });

async function collect(stream) {
  const out = { reasoning: '', content: '', finish: [], usage: null, pieces: 0, roles: 0 };
  for await (const chunk of stream) {
    assert.equal(chunk.object, 'chat.completion.chunk');
    if (chunk.usage) out.usage = chunk.usage;
    for (const choice of chunk.choices) {
      if (choice.delta.role) out.roles += 1;
      if (choice.delta.reasoning_content) out.reasoning += choice.delta.reasoning_content;
      if (choice.delta.content) {
        out.content += choice.delta.content;
        out.pieces += 1;
      }
      if (choice.finish_reason) out.finish.push(choice.finish_reason);
    }
  }
  return out;
}

const checks = {
  'models are listed and found': async () => {
    assert.equal((await client.models.retrieve(model)).id, model);
    await assert.rejects(client.models.retrieve('no-such-model'), { status: 404 });
  },

  'every recorded conversation has its recorded reply, whole and streamed': async () => {
    assert.ok(goldens.length >= 10, `only ${goldens.length} conversations`);
    for (const golden of goldens) {
      const whole = await ask(golden.request);
      const { message, finish_reason: finish } = whole.choices[0];
      if (golden.margin > 0.02) {
        assert.equal(message.reasoning_content ?? '', golden.reasoning, golden.name);
        assert.equal(message.content, golden.content, golden.name);
        assert.equal(whole.usage.completion_tokens, golden.replyTokens, golden.name);
      }
      assert.equal(finish, 'stop', golden.name);
      assert.equal(whole.usage.prompt_tokens, golden.promptTokens, golden.name);
      const stream = await ask({ ...golden.request, stream: true, stream_options: { include_usage: true } });
      const streamed = await collect(stream);
      assert.equal(streamed.reasoning, message.reasoning_content ?? '', golden.name);
      assert.equal(streamed.content, message.content, golden.name);
      assert.deepEqual(streamed.finish, [finish]);
      assert.equal(streamed.roles, 1);
      assert.equal(streamed.usage.completion_tokens, whole.usage.completion_tokens);
      assert.equal(streamed.usage.completion_tokens_details.reasoning_tokens,
        whole.usage.completion_tokens_details.reasoning_tokens);
      console.log(`      ${golden.name}: ${golden.promptTokens} + ${whole.usage.completion_tokens} tokens`);
    }
    assert.ok(goldens.some((g) => g.name.startsWith('needle')) && goldens.some((g) => g.name.startsWith('JSON')));
  },

  'a streamed reply comes in pieces': async () => {
    const stream = await ask({ messages: [{ role: 'user', content: 'Write the numbers from 1 to 20.' }],
      reasoning_effort: 'none', stream: true });
    const streamed = await collect(stream);
    assert.ok(streamed.pieces > 5, `${streamed.pieces} pieces`);
    assert.ok(streamed.usage.prompt_tokens > 0, 'usage is on the finish chunk');
  },

  'a JSON answer parses': async () => {
    const reply = await ask({ messages: [{ role: 'user',
      content: 'Give me a JSON array of two drinks. Reply with JSON only.' }] });
    const list = JSON.parse(reply.choices[0].message.content);
    assert.ok(Array.isArray(list) && list.length === 2);
  },

  'thinking is on by default and every way to switch it off does': async () => {
    const messages = [{ role: 'user', content: 'What is a library?' }];
    const on = await ask({ messages });
    assert.ok(on.choices[0].message.reasoning_content.length > 0);
    assert.ok(on.usage.completion_tokens_details.reasoning_tokens > 0);
    for (const off of [{ reasoning_effort: 'none' }, { chat_template_kwargs: { enable_thinking: false } },
      { chat_template_kwargs: { thinking: { type: 'disabled' } } }, { thinking: { type: 'disabled' } },
      { extra_body: { chat_template_kwargs: { enable_thinking: false } } }]) {
      const reply = await ask({ messages, ...off });
      assert.equal(reply.choices[0].message.reasoning_content, undefined, JSON.stringify(off));
      assert.equal(reply.usage.completion_tokens_details.reasoning_tokens, 0);
      assert.ok(reply.choices[0].message.content.includes('place where books'), reply.choices[0].message.content);
    }
  },

  'a stop string ends the answer and never fires in reasoning': async () => {
    const messages = [{ role: 'user', content: 'Calculate 83 x 7.' }];
    const off = await ask({ messages: [{ role: 'user', content: 'Write the numbers from 1 to 20.' }],
      reasoning_effort: 'none', stop: [', 5'] });
    assert.equal(off.choices[0].message.content, '1, 2, 3, 4');
    assert.equal(off.choices[0].finish_reason, 'stop');
    assert.equal(off.choices[0].stop_reason, ', 5');
    const on = await ask({ messages, reasoning_effort: 'high', stop: ['I compute'] });
    assert.ok(on.choices[0].message.reasoning_content.includes('I compute'));
    assert.ok(on.choices[0].message.content.length > 0);
  },

  'the same seed repeats a sampled reply, and a limit cuts it': async () => {
    const request = { messages: [{ role: 'user', content: 'Tell me something.' }], temperature: 1, top_p: 1, seed: 7,
      max_tokens: 12, reasoning_effort: 'none' };
    const [a, b] = await Promise.all([ask(request), ask(request)]);
    assert.equal(a.choices[0].message.content, b.choices[0].message.content);
    const cut = await ask({ messages: [{ role: 'user', content: 'Write the numbers from 1 to 200.' }],
      reasoning_effort: 'none', max_tokens: 12 });
    assert.equal(cut.choices[0].finish_reason, 'length');
    assert.equal(cut.usage.completion_tokens, 12);
  },

  'errors are typed': async () => {
    await assert.rejects(ask({ messages: [] }), { status: 400, param: 'messages' });
    await assert.rejects(ask({ messages: [{ role: 'user', content: 'x' }], top_p: 3 }), { status: 400, param: 'top_p' });
    await assert.rejects(ask({ messages: [{ role: 'user', content: 'x' }], max_tokens: 10_000_000 }),
      { status: 400, code: 'context_length_exceeded', param: 'messages' });
  },

  'an aborted stream frees its place': async () => {
    const stream = await ask({ messages: [{ role: 'user', content: 'Write the numbers from 1 to 200.' }],
      reasoning_effort: 'none', stream: true, max_tokens: 700 });
    for await (const chunk of stream) {
      if (chunk.choices[0]?.delta.content) break;
    }
    stream.controller.abort();
    for (let i = 0; i < 400; i += 1) {
      const health = await (await fetch(`${server.url}/health`)).json();
      if (health.requests_running === 0) return;
      await new Promise((resolve) => setTimeout(resolve, 25));
    }
    assert.fail('the reply still runs');
  },
};

const passed = await run(checks);
const status = await server.stop();
if (status !== 0) console.log(`FAIL  the server ended with ${status}\n${server.log.join('\n')}`);
if (passed && status === 0) {
  const names = goldens.map((g) => g.name).join(', ');
  console.log(`[done 3] over HTTP: ${goldens.length} recorded conversations equal, whole and streamed (${names})`);
  console.log('[done 5] the openai client: models, whole and streamed chat, thinking on and off, stops, errors, abort');
}
process.exit(passed && status === 0 ? 0 : 1);
