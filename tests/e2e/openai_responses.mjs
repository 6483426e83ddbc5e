// The official OpenAI client's Responses API against the bundled model: whole and streamed, continued
// conversations, a tool round trip, stored responses.
//   node openai_responses.mjs PROGRAM MODEL_DIR
import assert from 'node:assert/strict';
import { run, serve } from './served.mjs';

let OpenAI;
try {
  ({ default: OpenAI } = await import('openai'));
} catch {
  console.log('skipped: the openai package is not installed (npm ci in tests/e2e)');
  process.exit(77);
}

const [program, modelDir] = process.argv.slice(2);
const server = await serve(program, ['--model', modelDir, '--device', 'cpu']);
const client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: 'none', maxRetries: 0, timeout: 300_000 });
const model = (await client.models.list()).data[0].id;
const ask = (request) => client.responses.create({ model, temperature: 0, max_output_tokens: 1000, ...request });
const off = { reasoning: { effort: 'none' } };

const tools = [
  { type: 'web_search' },
  { type: 'function', name: 'get_stock_price', description: 'Get the price of a stock.', strict: false,
    parameters: { type: 'object', properties: { symbol: { type: 'string' } }, required: ['symbol'] } },
  { type: 'function', name: 'get_time', description: 'Get the current time.', strict: false,
    parameters: { type: 'object', properties: {} } },
  { type: 'function', name: 'set_light', description: 'Switch a light on or off.', strict: false,
    parameters: { type: 'object', properties: { room: { type: 'string' }, on: { type: 'boolean' } },
      required: ['room', 'on'] } },
];

// The object without what differs between two equal requests.
function bare(response) {
  const copy = structuredClone(response);
  for (const name of ['id', 'created_at', 'completed_at', '_request_id']) delete copy[name];
  delete copy.usage?.input_tokens_details;
  for (const item of copy.output) {
    for (const name of ['id', 'call_id', 'parsed_arguments']) delete item[name];
    for (const part of item.content ?? []) delete part.parsed;
  }
  delete copy.output_parsed;
  return copy;
}

const checks = {
  'a whole response, its parts and its figures': async () => {
    const response = await ask({ input: 'What is a library?' });
    assert.equal(response.object, 'response');
    assert.equal(response.status, 'completed');
    assert.deepEqual(response.output.map((item) => item.type), ['reasoning', 'message']);
    assert.ok(response.output[0].content[0].text.length > 0);
    assert.ok(response.output_text.includes('place where books'), response.output_text);
    assert.ok(response.usage.output_tokens_details.reasoning_tokens > 0);
    assert.equal(response.usage.total_tokens, response.usage.input_tokens + response.usage.output_tokens);
    const chat = await client.chat.completions.create({ model, temperature: 0, max_tokens: 1000,
      messages: [{ role: 'user', content: 'What is a library?' }] });
    assert.equal(chat.choices[0].message.content, response.output_text);
    assert.equal(chat.choices[0].message.reasoning_content, response.output[0].content[0].text);
    assert.equal(chat.usage.prompt_tokens, response.usage.input_tokens);
    assert.equal(chat.usage.completion_tokens, response.usage.output_tokens);
  },

  'the client puts a stream together to the whole response': async () => {
    for (const request of [{ input: 'Calculate 83 x 7.', reasoning: { effort: 'high' } },
      { input: 'Write the numbers from 1 to 20.', ...off, instructions: 'Answer.' },
      { input: 'Tell me the time.', tools, ...off }, { input: 'Write the numbers from 1 to 200.', ...off,
        max_output_tokens: 12 }]) {
      const whole = await ask(request);
      const stream = client.responses.stream({ model, temperature: 0, max_output_tokens: 1000, ...request });
      const events = [];
      for await (const event of stream) events.push(event);
      const streamed = await stream.finalResponse();
      assert.deepEqual(bare(streamed), bare(whole), JSON.stringify(request));
      assert.deepEqual(events.map((e) => e.sequence_number), [...events.keys()]);
      const text = events.filter((e) => e.type === 'response.output_text.delta').map((e) => e.delta).join('');
      assert.equal(text, whole.output_text);
      const last = events.at(-1);
      assert.equal(last.type, `response.${whole.status}`);
      assert.deepEqual(events.filter((e) => e.type === 'response.output_item.done').map((e) => e.item),
        last.response.output);
      assert.deepEqual(bare(await client.responses.retrieve(streamed.id)), bare(streamed));
    }
  },

  'a conversation goes on by the id of its last response': async () => {
    const first = await ask({ input: 'What is a library?', ...off });
    const second = await ask({ input: 'Repeat my first message.', previous_response_id: first.id, ...off });
    assert.equal(second.output_text, 'What is a library?');
    const full = await ask({ ...off, input: [{ role: 'user', content: 'What is a library?' }, ...first.output,
      { role: 'user', content: 'Repeat my first message.' }] });
    assert.equal(full.usage.input_tokens, second.usage.input_tokens);
    assert.equal(full.output_text, second.output_text);
    await assert.rejects(ask({ input: 'x', previous_response_id: 'resp_none' }),
      { status: 400, param: 'previous_response_id', code: 'previous_response_not_found' });
  },

  'a tool is called and its result answered, by id and by history': async () => {
    const request = { tools, ...off, input: [{ role: 'user', content: 'What is the stock price of ABC?' }] };
    const first = await ask(request);
    const call = first.output.find((item) => item.type === 'function_call');
    assert.ok(call, JSON.stringify(first.output));
    assert.equal(call.name, 'get_stock_price');
    assert.deepEqual(JSON.parse(call.arguments), { symbol: 'ABC' });
    const result = { type: 'function_call_output', call_id: call.call_id, output: '{"symbol": "ABC", "price": 460}' };
    const byId = await ask({ tools, ...off, previous_response_id: first.id, input: [result] });
    assert.equal(byId.output_text, 'The price of ABC is 460.');
    const byHistory = await ask({ ...request, input: [...request.input, ...first.output, result] });
    assert.equal(byHistory.output_text, byId.output_text);
    const byReference = await ask({ ...request,
      input: [...request.input, { type: 'item_reference', id: call.id }, result] });
    assert.equal(byReference.output_text, byId.output_text);
  },

  'responses are retrieved, refused a cancellation and deleted': async () => {
    const { id } = await ask({ input: 'What is a library?', ...off });
    assert.equal((await client.responses.retrieve(id)).id, id);
    await assert.rejects(client.responses.cancel(id), { status: 400 });
    await client.responses.delete(id);
    await assert.rejects(client.responses.retrieve(id), { status: 404, code: 'response_not_found' });
    await assert.rejects(client.responses.delete(id), { status: 404 });
    const unkept = await ask({ input: 'What is a library?', store: false, ...off });
    await assert.rejects(client.responses.retrieve(unkept.id), { status: 404 });
  },

  'input tokens are counted as they are used': async () => {
    const request = { model, input: 'What is a library?', tools, instructions: 'Be brief.' };
    const counted = await client.responses.inputTokens.count(request);
    const used = await ask({ ...request, max_output_tokens: 1 });
    assert.equal(counted.input_tokens, used.usage.input_tokens);
    assert.equal(used.status, 'incomplete');
    assert.equal(used.incomplete_details.reason, 'max_output_tokens');
    const window = (await client.models.list()).data[0].context_length;
    const long = await client.responses.inputTokens.count({ model, truncation: 'auto',
      input: Array.from({ length: 2000 }, (_, i) => ({ role: 'user', content: `Line ${i}.` })) });
    assert.ok(long.input_tokens < window && long.input_tokens > window - 20, `${long.input_tokens} of ${window}`);
  },

  'errors are typed': async () => {
    await assert.rejects(ask({ input: [] }), { status: 400, param: 'input' });
    await assert.rejects(ask({ input: 'x', max_output_tokens: 10_000_000 }),
      { status: 400, code: 'context_length_exceeded', param: 'input' });
    await assert.rejects(ask({ input: 'x', reasoning: { effort: 'huge' } }),
      { status: 400, param: 'reasoning.effort' });
    await assert.rejects(ask({ input: 'x', background: true }), { status: 400, param: 'background' });
  },
};

const passed = await run(checks);
const status = await server.stop();
if (status !== 0) console.log(`FAIL  the server ended with ${status}\n${server.log.join('\n')}`);
process.exit(passed && status === 0 ? 0 : 1);
