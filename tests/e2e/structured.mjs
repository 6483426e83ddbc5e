// Structured outputs, forced calls, penalties, budgets and log-probabilities on the bundled model, on one rank and on
// two: what is promised holds, and both give the same bytes.
//   node structured.mjs PROGRAM MODEL_DIR
import assert from 'node:assert/strict';
import { run, serve } from './served.mjs';

const [program, modelDir] = process.argv.slice(2);
const servers = [];
for (const ranks of ['1', '2'])
  servers.push(await serve(program, ['--model', modelDir, '--device', 'cpu', '--ranks', ranks]));

async function post(server, path, body) {
  const reply = await fetch(server.url + path, { method: 'POST', body: JSON.stringify(body) });
  const json = await reply.json();
  assert.equal(reply.status, 200, JSON.stringify(json));
  return json;
}

/// The answer of one rank, after comparing it with that of two.
async function both(path, body) {
  const [one, two] = await Promise.all(servers.map((server) => post(server, path, body)));
  const bare = (reply) => JSON.stringify([reply.choices, reply.usage]).replace(/call_[0-9a-f]{24}/g, 'call');
  assert.equal(bare(one), bare(two));
  return one;
}

const off = { reasoning_effort: 'none' };
const chat = async (text, fields) => {
  const reply = await both('/v1/chat/completions',
    { temperature: 0, max_tokens: 400, messages: [{ role: 'user', content: text }], ...fields });
  return { ...reply.choices[0], usage: reply.usage };
};

const schema = { type: 'object', additionalProperties: false, required: ['name', 'age', 'tags', 'level'],
  properties: { name: { type: 'string', maxLength: 20 }, age: { type: 'integer', minimum: 0, maximum: 130 },
    tags: { type: 'array', items: { enum: ['a', 'b'] }, maxItems: 2 }, level: { enum: ['low', 'high', null] } } };
const format = { response_format: { type: 'json_schema', json_schema: { name: 'person', strict: true, schema } } };

function check(text) {
  const value = JSON.parse(text);
  assert.deepEqual(Object.keys(value), ['name', 'age', 'tags', 'level']);
  assert.equal(typeof value.name, 'string');
  assert.ok([...value.name].length <= 20 && Number.isInteger(value.age) && value.age >= 0 && value.age <= 130, text);
  assert.ok(value.tags.length <= 2 && value.tags.every((tag) => ['a', 'b'].includes(tag)), text);
  assert.ok(['low', 'high', null].includes(value.level), text);
}

const tools = ['get_time', 'set_light'].map((name) => ({ type: 'function', function: { name,
  parameters: name === 'get_time' ? { type: 'object', properties: {} } : { type: 'object', additionalProperties: false,
    properties: { room: { enum: ['kitchen', 'hall'] }, on: { type: 'boolean' } }, required: ['room', 'on'] } } }));

const passed = await run({
  'a schema holds greedy and sampled replies, with thinking and without': async () => {
    for (const fields of [off, { ...off, temperature: 1, seed: 7 }, { ...off, temperature: 1.5, seed: 8 },
      { reasoning_effort: 'low' }, { temperature: 1, seed: 9, thinking_budget: 20 }]) {
      const choice = await chat('What is a library?', { ...format, ...fields });
      assert.equal(choice.finish_reason, 'stop', JSON.stringify(choice));
      check(choice.message.content);
    }
  },
  'reasoning is the unconstrained reply’s': async () => {
    const free = await chat('What is a library?', {});
    const held = await chat('What is a library?', format);
    assert.equal(held.message.reasoning_content, free.message.reasoning_content);
    check(held.message.content);
  },
  'choices, patterns and grammars': async () => {
    assert.match((await chat('Pick.', { ...off, guided_choice: ['red', 'blue'] })).message.content, /^(red|blue)$/);
    assert.match((await chat('When?', { ...off, guided_regex: '[0-9]{4}-[0-9]{2}' })).message.content, /^\d{4}-\d{2}$/);
    assert.match((await chat('Say.', { ...off, guided_grammar: 'root ::= ("ha" | "ho")+ "!"' , max_tokens: 60 }))
      .message.content, /^(ha|ho)+!?$/);
    const many = await both('/v1/chat/completions', { n: 3, temperature: 1, seed: 1, ...off, max_tokens: 50,
      guided_choice: ['one', 'two', 'three'], messages: [{ role: 'user', content: 'Count.' }] });
    for (const choice of many.choices) assert.match(choice.message.content, /^(one|two|three)$/);
  },
  'forced calls': async () => {
    for (const fields of [off, { reasoning_effort: 'low' }, { ...off, temperature: 1, seed: 3 }]) {
      const choice = await chat('What is a library?', { tools, tool_choice: 'required', parallel_tool_calls: false, ...fields });
      assert.equal(choice.finish_reason, 'tool_calls', JSON.stringify(choice));
      assert.equal(choice.message.tool_calls.length, 1);
      const named = await chat('What is a library?', { tools, parallel_tool_calls: false, ...fields,
        tool_choice: { type: 'function', function: { name: 'set_light' } } });
      const call = named.message.tool_calls[0].function;
      assert.equal(call.name, 'set_light');
      const given = JSON.parse(call.arguments);
      assert.ok(['kitchen', 'hall'].includes(given.room) && typeof given.on === 'boolean', call.arguments);
    }
  },
  'a budget ends reasoning': async () => {
    const free = await chat('What is a library?', {});
    assert.ok(free.usage.completion_tokens_details.reasoning_tokens > 14);
    const cut = await chat('What is a library?', { thinking_budget: 8 });
    assert.ok(free.message.reasoning_content.startsWith(cut.message.reasoning_content.trimEnd()));
    assert.ok(cut.usage.completion_tokens_details.reasoning_tokens <= 12);
    assert.ok(cut.message.content.length > 0);
  },
  'bias and penalties': async () => {
    const plain = await chat('Write the numbers from 1 to 20.', off);
    const neutral = await chat('Write the numbers from 1 to 20.',
      { ...off, presence_penalty: 0, repetition_penalty: 1, logit_bias: {} });
    assert.equal(neutral.message.content, plain.message.content);
    const penalized = await chat('Write the numbers from 1 to 20.', { ...off, frequency_penalty: 2, presence_penalty: 2 });
    assert.notEqual(penalized.message.content, plain.message.content);
    const { choices: [{ token_ids: ids }] } = await both('/v1/chat/completions', { ...off, temperature: 0, max_tokens: 20,
      return_token_ids: true, messages: [{ role: 'user', content: 'What is a library?' }] });
    const banned = await both('/v1/chat/completions', { ...off, temperature: 0, max_tokens: 20, return_token_ids: true,
      logit_bias: { [ids[2]]: -100 }, messages: [{ role: 'user', content: 'What is a library?' }] });
    assert.ok(!banned.choices[0].token_ids.includes(ids[2]));
    assert.deepEqual(banned.choices[0].token_ids.slice(0, 2), ids.slice(0, 2));
  },
  'log-probabilities agree with each other': async () => {
    const choice = await chat('What is a library?', { logprobs: true, top_logprobs: 4 });
    const text = Buffer.from(choice.logprobs.content.flatMap((token) => token.bytes)).toString();
    assert.equal(text, choice.message.content);
    for (const token of [...choice.logprobs.content, ...choice.logprobs.reasoning_content]) {
      assert.equal(token.top_logprobs.length, 4);
      assert.ok(token.logprob <= 0 && token.logprob === token.top_logprobs[0].logprob, 'greedy draws the first');
      assert.ok(token.top_logprobs.reduce((sum, other) => sum + Math.exp(other.logprob), 0) <= 1.000001);
    }
    // The same tokens as a prompt have the same values.
    const reply = await both('/v1/completions', { prompt: 'A library is', max_tokens: 12, temperature: 0, logprobs: 2 });
    const written = reply.choices[0].logprobs;
    const again = await both('/v1/completions',
      { prompt: 'A library is' + reply.choices[0].text, max_tokens: 0, echo: true, logprobs: 2, temperature: 0 });
    const scored = again.choices[0].logprobs;
    assert.equal(again.usage.completion_tokens, 0);
    assert.equal(scored.token_logprobs[0], null);
    const behind = scored.tokens.length - written.tokens.length;
    assert.deepEqual(scored.tokens.slice(behind), written.tokens);
    scored.token_logprobs.slice(behind).forEach((value, i) => assert.equal(value, written.token_logprobs[i]));
  },
});
for (const server of servers) await server.stop();
process.exit(passed ? 0 : 1);
