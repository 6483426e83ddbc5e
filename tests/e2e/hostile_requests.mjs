// Hostile requests, each as the bytes that go on the wire and the statuses that are a right answer. Every one must be
// refused; what is odd but lawful is not here. Used by hostile.mjs.

const kChat = '/v1/chat/completions';
const hi = [{ role: 'user', content: 'hi' }];

export function post(path, body, headers = []) {
  const bytes = Buffer.isBuffer(body) ? body : Buffer.from(typeof body === 'string' ? body : JSON.stringify(body));
  const head = [`POST ${path} HTTP/1.1`, 'Host: h', ...headers, `Content-Length: ${bytes.length}`];
  return Buffer.concat([Buffer.from(`${head.join('\r\n')}\r\n\r\n`, 'latin1'), bytes]);
}
const raw = (...lines) => Buffer.from(lines.join('\r\n'), 'latin1');
const head = (...lines) => raw(...lines, '', '');
const chunked = (body, ...more) => raw(`POST ${kChat} HTTP/1.1`, 'Host: h', 'Transfer-Encoding: chunked', ...more, '', body);

const out = [];
function add(kind, name, bytes, statuses = [400]) {
  out.push({ kind, name: `${kind}: ${name}`, bytes, statuses });
}
/// JSON text of a chat request with one field set to JSON text.
const withField = (name, json) => `{"messages":[{"role":"user","content":"hi"}],${JSON.stringify(name)}:${json}}`;

// ------------------------------------------------------------------------------------------------ types of fields

const kString = '"x"', kNumber = '7', kFlag = 'true', kList = '[1]', kObject = '{"a":1}';
const wrongTypes = {
  messages: [kString, kNumber, kFlag, kObject, '[]', '[1]', '["x"]', '[null]', '[[]]', '[{}]', '[{"role":1}]',
    '[{"role":"god","content":"x"}]', '[{"role":"user","content":7}]', '[{"role":"user","content":{}}]',
    '[{"role":"user","content":[7]}]', '[{"role":"user","content":[{"type":"rocket"}]}]',
    '[{"role":"user","content":[{"type":"text","text":7}]}]',
    '[{"role":"user","content":[{"type":"image_url","image_url":7}]}]',
    '[{"role":"user","content":[{"type":"image_url","image_url":{"url":"file:///etc/passwd"}}]}]',
    '[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://169.254.169.254/latest"}}]}]',
    '[{"role":"assistant","content":"x","tool_calls":7}]'],
  model: [kNumber, kFlag, kList, kObject],
  stream: [kString, kNumber, kList, kObject],
  stream_options: [kString, kNumber, kFlag, kList, '{"include_usage":"yes"}', '{"include_usage":1}'],
  temperature: [kFlag, kList, kObject, '"warm"', '""', '"NaN"', '"Infinity"', '"1e999"'],
  top_p: ['"x"', kFlag, kList, kObject, '-0.1', '1.1', '0', '1e300', '-1e300'],
  top_k: [kString, '1.5', kFlag, kList, kObject, '1e30', '99999999999999999999'],
  min_p: ['"x"', kFlag, kList, '-1', '2', '1e300'],
  seed: [kString, '1.5', kFlag, kList, kObject],
  n: [kString, '0', '-1', '9', '1.5', kFlag, kList, '1000000000', '9223372036854775807', '99999999999999999999999'],
  max_tokens: [kString, '0', '-1', '1.5', kFlag, kList, kObject, '-9223372036854775808', '9223372036854775807',
    '18446744073709551616', `1${'0'.repeat(400)}`, '100000000'],
  max_completion_tokens: [kString, '0', '-7', '0.5', kFlag, kList, '1000000000000'],
  min_tokens: [kString, '-1', '1.5', kFlag, '99999999999'],
  stop: [kNumber, kFlag, kObject, '[1]', '[""]', '""', '[null]', '[["x"]]', JSON.stringify(Array(65).fill('x'))],
  stop_token_ids: [kString, kNumber, kObject, '["x"]', '[-1]', '[1.5]', '[99999999999]', '[4096]', '[2147483647]',
    JSON.stringify(Array(1025).fill(1))],
  stop_in_reasoning: [kString, kNumber], include_stop_str_in_output: [kString, kNumber],
  ignore_eos: [kString, kNumber, kList], return_token_ids: [kString, kNumber], draft: [kString, kNumber],
  priority: ['"urgent"', kFlag, kList, kObject],
  tools: [kString, kNumber, kFlag, kObject, '[7]', '[null]', '[{}]', '[{"type":"rocket","function":{"name":"x"}}]',
    '[{"type":"function","function":7}]', '[{"type":"function","function":{}}]', '[{"type":"function","function":{"name":7}}]',
    '[{"type":"function","function":{"name":""}}]', '[{"type":"function","function":{"name":"x","parameters":7}}]',
    '[{"type":"function","function":{"name":"x","strict":"yes"}}]',
    `[${Array(1025).fill('{"type":"function","function":{"name":"x"}}').join()}]`],
  tool_choice: [kNumber, kFlag, kList, '"maybe"', '{"type":"rocket"}', '{"type":"function","function":{"name":"nobody"}}',
    '"required"', '{"type":"allowed_tools"}'],
  parallel_tool_calls: [kString, kNumber, kList],
  reasoning_effort: [kNumber, kFlag, kList, kObject, '"enormous"', '""'],
  chat_template_kwargs: [kString, kNumber, kFlag, kList, '{"reasoning_effort":"enormous"}', '{"reasoning_effort":7}'],
  continue_final_message: [kString, kNumber], add_generation_prompt: [kString, kNumber],
  include_reasoning: [kString, kNumber],
  logit_bias: [kString, kNumber, kList, '{"x":1}', '{"1":"y"}', '{"1":1000}', '{"-1":1}', '{"99999999999999999999":1}'],
  presence_penalty: [kString, kList, '3', '-3', '1e300'], frequency_penalty: [kString, kList, '3', '-3', '1e300'],
  repetition_penalty: [kString, kList, '0', '-1'],
  logprobs: [kString, kList], top_logprobs: [kString, '-1', '21', '1e9'],
  response_format: [kString, kNumber, kList, '{}', '{"type":7}', '{"type":"rocket"}', '{"type":"json_schema"}',
    '{"type":"json_schema","json_schema":7}', '{"type":"json_schema","json_schema":{"name":"x","schema":7}}'],
  guided_json: [kNumber, kList, '"{"'], guided_regex: [kNumber, kList, '"("', '"["', '"a{9,1}"', '"\\\\"'],
  guided_choice: [kString, kNumber, '[1]', '{"a":1}'], guided_grammar: [kNumber, kList, '"root ="', '"root ::= nobody"'],
  structured_outputs: [kString, kList, '{"json":{},"regex":"x"}', '{"regex":"("}'],
  modalities: ['["audio"]', kString], audio: [kObject],
};
for (const [field, values] of Object.entries(wrongTypes)) {
  for (const json of values) {
    const text = field === 'messages' ? `{"messages":${json}}` : withField(field, json);
    add('field', `${field} = ${json.length > 60 ? `${json.slice(0, 60)}…` : json}`, post(kChat, text));
  }
}
for (const [path, body] of [['/v1/completions', {}], ['/v1/completions', { prompt: 7 }], ['/v1/completions', { prompt: [] }],
  ['/v1/completions', { prompt: '' }], ['/v1/completions', { prompt: [[-1]] }], ['/v1/completions', { prompt: [1e9] }],
  ['/v1/completions', { prompt: [1.5] }], ['/v1/completions', { prompt: ['x', 7] }], ['/v1/completions', { prompt: 'x', suffix: 'y' }],
  ['/v1/completions', { prompt: 'x', best_of: 1e6 }], ['/v1/completions', { prompt: Array(200_000).fill(7) }],
  ['/tokenize', {}], ['/tokenize', { prompt: 7 }], ['/tokenize', { messages: 7 }], ['/detokenize', {}], ['/detokenize', { tokens: 'x' }],
  ['/detokenize', { tokens: [-1] }], ['/detokenize', { tokens: [1e12] }], ['/detokenize', { tokens: ['x'] }],
  ['/v1/messages', {}], ['/v1/messages', { model: 'm', messages: hi }], ['/v1/messages', { model: 'm', max_tokens: -1, messages: hi }],
  ['/v1/messages', { model: 'm', max_tokens: 'x', messages: hi }], ['/v1/messages', { model: 'm', max_tokens: 9, messages: 7 }],
  ['/v1/messages', { model: 'm', max_tokens: 9, messages: [{ role: 'god', content: 'x' }] }],
  ['/v1/messages', { model: 'm', max_tokens: 9, messages: hi, tools: 7 }],
  ['/v1/messages', { model: 'm', max_tokens: 9, messages: hi, thinking: { type: 'enabled', budget_tokens: -1 } }],
  ['/v1/messages', { model: 'm', max_tokens: 9, messages: hi, system: 7 }],
  ['/v1/messages', { model: 'm', max_tokens: 9, messages: hi, stop_sequences: 7 }],
  ['/v1/messages/count_tokens', { model: 'm' }]]) {
  add('field', `${path} ${JSON.stringify(body).slice(0, 70)}`, post(path, body));
}

// --------------------------------------------------------------------------------------------- unbounded parameters

add('unbounded', 'a prompt beyond the window', post(kChat, { messages: [{ role: 'user', content: 'word '.repeat(50_000) }] }));
add('unbounded', '20 MB of prompt', post(kChat, { messages: [{ role: 'user', content: 'a'.repeat(20_000_000) }] }));
add('unbounded', '50,000 messages', post(kChat, { messages: Array(50_000).fill(hi[0]) }));
add('unbounded', '200,000 messages of one byte', post(kChat, { messages: Array(200_000).fill({ role: 'user', content: 'x' }) }));
const kCall = { type: 'function', function: { name: 'f', arguments: '{}' } };
add('unbounded', '100,000 calls in a message', post(kChat, { messages: [...hi, { role: 'assistant', tool_calls: Array(100_000).fill(kCall) }] }));
add('unbounded', 'a result of 100,000 parts', post(kChat, { messages: [...hi, { role: 'tool', content: Array(100_000).fill({ output: 'x' }) }] }));
add('unbounded', '100,000 items of a response', post('/v1/responses', { input: Array(100_000).fill({ role: 'user', content: 'x' }) }));
add('unbounded', '100,000 messages of Messages', post('/v1/messages', { model: 'm', max_tokens: 9, messages: Array(100_000).fill(hi[0]) }));
add('unbounded', '100,000 fields in extra_body', post(kChat, { messages: hi, extra_body: Object.fromEntries(Array.from({ length: 100_000 }, (_, i) => [`k${i}`, 1])) }));
add('unbounded', '100,000 tools', post(kChat, { messages: hi, tools: Array(100_000).fill({ type: 'function', function: { name: 'f' } }) }));
add('unbounded', '100,000 stop strings', post(kChat, { messages: hi, stop: Array(100_000).fill('x') }));
add('unbounded', 'best_of and n', post('/v1/completions', { prompt: 'x', n: 100, best_of: 100 }));
add('unbounded', '100,000 prompts', post('/v1/completions', { prompt: Array(100_000).fill('x') }), [400, 429]);

// ------------------------------------------------------------------------------------------------------------- JSON

const nested = (open, close, n) => open.repeat(n) + close.repeat(n);
for (const [name, text] of Object.entries({
  'empty': '', 'a list': '[]', 'a string': '"x"', 'a number': '1', 'null': 'null', 'two values': '{}{}', 'cut': '{"messages":[',
  'a comment': '{/* x */}', 'single quotes': "{'messages':1}", 'a comma too many': '{"messages":[],}', 'NaN': withField('temperature', 'NaN'),
  'Infinity': withField('temperature', 'Infinity'), 'a number without end': withField('temperature', '1e999'),
  'a hexadecimal number': withField('n', '0x1'), 'a leading zero': withField('n', '01'), 'a plus': withField('n', '+1'),
  'a byte order mark': '\ufeff{}', 'a control character': '{"messages":"\u0001"}', 'a zero byte': '{"messages":\0}',
  '129 lists': nested('[', ']', 129), '200 objects': `${'{"a":'.repeat(200)}1${'}'.repeat(200)}`, '1,000,000 lists': nested('[', ']', 1_000_000),
  '100,000 open lists': '['.repeat(100_000), 'deep in a message': `{"messages":${nested('[', ']', 500)}}`,
  'deep in a tool': withField('tools', `[{"type":"function","function":{"name":"x","parameters":${'{"a":'.repeat(500)}1${'}'.repeat(500)}}}]`),
  'a broken escape': '{"messages":"\\x41"}', 'half an escape': '{"messages":"\\u12"}', 'UTF-16': '\u007b\0"\0',
})) add('JSON', name, post(kChat, text));
for (const [name, bytes] of Object.entries({ 'a lone continuation byte': [0x80], 'an overlong slash': [0xc0, 0xaf], 'a surrogate in UTF-8': [0xed, 0xa0, 0x80],
  'beyond U+10FFFF': [0xf4, 0x90, 0x80, 0x80], 'a cut character': [0xe2, 0x82], 'FF': [0xff] })) {
  add('JSON', name, post(kChat, Buffer.concat([Buffer.from('{"messages":[{"role":"user","content":"'), Buffer.from(bytes), Buffer.from('"}]}')])));
}

// ------------------------------------------------------------------------------------------------- the request head

const body = JSON.stringify({ messages: hi });
const n = `Content-Length: ${body.length}`;
const line = `POST ${kChat} HTTP/1.1`;
add('flood', '200 headers', head(line, 'Host: h', ...Array.from({ length: 200 }, (_, i) => `X-${i}: y`)), [431]);
add('flood', '10,000 headers', head(line, 'Host: h', ...Array.from({ length: 10_000 }, (_, i) => `X-${i}: y`)), [431]);
add('flood', 'one header of 100 KB', head(line, 'Host: h', `X: ${'y'.repeat(100_000)}`), [431]);
// No more than the server reads on after a refusal (1 MiB): who sends more may see a reset instead of the answer.
add('flood', 'one header of 1 MB', head(line, 'Host: h', `X: ${'y'.repeat(1_000_000)}`), [431]);
add('flood', 'a header name of 100 KB', head(line, 'Host: h', `${'y'.repeat(100_000)}: x`), [431]);
add('flood', 'a target of 100 KB', head(`GET /${'a'.repeat(100_000)} HTTP/1.1`, 'Host: h'), [431, 414]);
add('flood', 'a method of 100 KB', head(`${'A'.repeat(100_000)} / HTTP/1.1`, 'Host: h'), [400, 431]);
add('flood', '1,000 cookies', head(line, 'Host: h', ...Array(1000).fill('Cookie: a=b')), [431]);
for (const [name, lines, statuses] of [
  ['two lengths', [n, n]], ['two different lengths', [n, 'Content-Length: 1']], ['a list of lengths', [`Content-Length: ${body.length}, ${body.length}`]],
  ['length and chunked', [n, 'Transfer-Encoding: chunked']], ['chunked and length', ['Transfer-Encoding: chunked', n]],
  ['chunked twice', ['Transfer-Encoding: chunked, chunked']], ['two codings', ['Transfer-Encoding: gzip, chunked']],
  ['two coding headers', ['Transfer-Encoding: chunked', 'Transfer-Encoding: identity']], ['another coding', ['Transfer-Encoding: xchunked']],
  ['identity and a length', ['Transfer-Encoding: identity', n]], ['a coding behind a tab', ['Transfer-Encoding:\tchunked', n]],
  ['a coding with a control', ['Transfer-Encoding: \x0bchunked', n]], ['a blank before the colon', ['Transfer-Encoding : chunked', n]],
  ['a folded coding', ['Transfer-Encoding:', ' chunked', n]], ['a negative length', ['Content-Length: -1']], ['a length with a plus', [`Content-Length: +${body.length}`]],
  ['a hexadecimal length', ['Content-Length: 0x2b']], ['a length of 30 digits', [`Content-Length: ${'9'.repeat(30)}`]], ['no digits', ['Content-Length: x']],
  ['an empty length', ['Content-Length: ']], ['a length with a blank', ['Content-Length: 4 3']], ['a length of 1 TB', ['Content-Length: 1000000000000'], [413]],
  ['a length of 2^64', ['Content-Length: 18446744073709551616']], ['two hosts', [n, 'Host: i']], ['a zero byte in a value', [n, 'X: a\0b']],
  ['a control in a name', [n, 'X\x01: a']], ['no colon', [n, 'Xyz']], ['a bare carriage return', [n, 'X: a\rY: b']], ['a strange expectation', [n, 'Expect: wonders'], [417]],
  ['a compressed body', [n, 'Content-Encoding: gzip'], [415]],
]) add('smuggling', name, raw(line, 'Host: h', ...lines, '', body), statuses);
add('smuggling', 'no host', raw(line, n, '', body));
add('smuggling', 'chunked on HTTP/1.0', raw(`POST ${kChat} HTTP/1.0`, 'Host: h', 'Transfer-Encoding: chunked', '', '0\r\n\r\n'));
for (const [name, first, statuses] of [['garbage', '\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03'], ['HTTP/0.9', 'GET /'], ['HTTP/3', 'GET / HTTP/3.0', [400, 505]],
  ['a preface of HTTP/2', 'PRI * HTTP/2.0', [400, 505]], ['two blanks', 'GET  /health  HTTP/1.1'], ['no version', 'GET /health'], ['a control in the target', 'GET /a\x01b HTTP/1.1'],
  ['a zero byte in the target', 'GET /a\0b HTTP/1.1'], ['a target without a slash', 'GET health HTTP/1.1'], ['a proxy', 'CONNECT example.org:443 HTTP/1.1', [400, 404, 405]],
  ['a trace', 'TRACE /health HTTP/1.1', [400, 404, 405]], ['a made-up method', 'BREW /health HTTP/1.1', [405]], ['a method in small letters', 'get /health HTTP/1.1', [400, 405]],
  ['the wrong method', `GET ${kChat} HTTP/1.1`, [405]], ['a delete', 'DELETE /v1/models HTTP/1.1', [405]], ['a file', 'GET /../../../../etc/passwd HTTP/1.1', [404]],
  ['an escaped file', 'GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1', [404]], ['a model that is a file', 'GET /v1/models/..%2f..%2fetc%2fpasswd HTTP/1.1', [404]],
  ['a model that is a zero byte', 'GET /v1/models/%00 HTTP/1.1', [404]], ['a broken escape', 'GET /v1/models/%zz HTTP/1.1', [404]],
  ['an absolute target', 'GET http://169.254.169.254/latest HTTP/1.1', [404]]]) add('head', name, head(first, 'Host: h'), statuses);
add('head', 'bare line feeds', Buffer.from(`POST ${kChat} HTTP/1.1\nHost: h\n${n}\n\n${body}`));

// ---------------------------------------------------------------------------------------------------------- chunks

for (const [name, text, statuses] of [['a negative chunk', '-1\r\nx\r\n0\r\n\r\n'], ['a chunk with 0x', '0x5\r\nhello\r\n0\r\n\r\n'], ['a chunk of 20 digits', `${'f'.repeat(20)}\r\nx`],
  ['no chunk', 'x\r\n\r\n'], ['an empty chunk line', '\r\nhello\r\n'], ['a chunk that is longer than it says', '2\r\nhello\r\n0\r\n\r\n'],
  ['a chunk without its end', '5\r\nhelloX\r\n0\r\n\r\n'], ['a chunk with a blank', '5 \r\nhello\r\n0\r\n\r\n'], ['an extension of 60 KB', `1;${'a'.repeat(60_000)}\r\n{\r\n0\r\n\r\n`],
  ['trailers of 60 KB', `1\r\n{\r\n0\r\nX: ${'a'.repeat(60_000)}\r\n\r\n`], ['10,000 trailers', `1\r\n{\r\n0\r\n${'X: y\r\n'.repeat(10_000)}\r\n`],
  ['200,000 chunks of one byte', `${'1\r\n[\r\n'.repeat(200_000)}0\r\n\r\n`], ['an empty body', '0\r\n\r\n']]) {
  add('chunked', name, chunked(text), statuses);
}
const large = Buffer.concat([raw('POST /v1/completions HTTP/1.1', 'Host: h', 'Transfer-Encoding: chunked', '', ''),
  ...Array.from({ length: 65 }, () => Buffer.concat([Buffer.from('80000\r\n'), Buffer.alloc(1 << 19, 32), Buffer.from('\r\n')])), Buffer.from('0\r\n\r\n')]);
add('chunked', '32.5 MiB past a limit of 32', large, [413]);

// ------------------------------------------------------------------------------------------- patterns and grammars

const schema = (s) => post(kChat, { messages: hi, response_format: { type: 'json_schema', json_schema: { name: 'x', schema: s } } });
const regex = (pattern) => post(kChat, { messages: hi, guided_regex: pattern });
add('bomb', '60,000 nested groups', regex(nested('(', ')', 60_000)));
add('bomb', '60,000 open groups', regex('('.repeat(60_000)));
add('bomb', 'nothing to repeat', regex('^+[a-z]$'));
add('bomb', 'a repeat of repeats', regex('((a{1000}){1000}){1000}'));
add('bomb', 'a class without end', regex(`[${'a-z'.repeat(100_000)}`));
add('bomb', 'a pattern in a schema', schema({ type: 'string', pattern: nested('(', ')', 60_000) }));
add('bomb', 'a reference to itself alone', schema({ $ref: '#' }));
add('bomb', 'references in a circle', schema({ $ref: '#/$defs/a', $defs: { a: { $ref: '#/$defs/b' }, b: { $ref: '#/$defs/a' } } }));
add('bomb', 'a reference to nothing', schema({ $ref: '#/$defs/nobody' }));
add('bomb', 'bounds that exclude each other', schema({ type: 'array', minItems: 2 ** 53, items: {} }));
add('bomb', 'a grammar of itself', post(kChat, { messages: hi, guided_grammar: 'root ::= root' }));
add('bomb', 'a grammar of 60,000 groups', post(kChat, { messages: hi, guided_grammar: `root ::= ${nested('(', ')', 60_000)}` }));
add('bomb', 'two constraints', post(kChat, { messages: hi, guided_regex: 'a', guided_choice: ['a'] }));

export const hostileRequests = out;
/// Expensive but lawful: a reply or a typed refusal is right, in bounded time.
export const heavyRequests = [
  ['an enum of 100,000', schema({ enum: Array.from({ length: 100_000 }, (_, i) => `value ${i}`) })],
  ['a repeat beyond all bounds', regex('a{99999999999999999999}')],
  ['a foreign reference', schema({ $ref: 'http://169.254.169.254/schema' })], // nothing is fetched: any value
  ['a file as reference', schema({ $ref: 'file:///etc/passwd' })],
  ['a string of at least 10^15', schema({ type: 'string', minLength: 1e15 })],
  ['a recursive schema', schema({ type: 'object', properties: { next: { $ref: '#' } } })],
  ['1,000 optional properties', schema({ type: 'object', properties: Object.fromEntries(Array.from({ length: 1000 }, (_, i) => [`p${i}`, { type: 'string' }])) })],
  ['an ambiguous pattern', regex('(a|a)*(a|aa)+(a*)*b')],
  ['a choice of 10,000', post(kChat, { messages: hi, guided_choice: Array.from({ length: 10_000 }, (_, i) => `choice ${i}`) })],
  ['anyOf of 2,000', schema({ anyOf: Array.from({ length: 2000 }, (_, i) => ({ const: i })) })],
  ['lone surrogates', post(kChat, '{"messages":[{"role":"user","content":"\\ud800 \\udc00\\ud800 \\udfff"}]}')],
  ['a long blank', post(kChat, `{"messages":[{"role":"user","content":"hi"}]${' '.repeat(1_000_000)}}`)],
  ['the same key 100,000 times', post(kChat, `{${'"x":1,'.repeat(100_000)}"messages":[{"role":"user","content":"hi"}]}`)],
  ['100,000 unknown fields', post(kChat, `{${Array.from({ length: 100_000 }, (_, i) => `"f${i}":${i},`).join('')}"messages":[{"role":"user","content":"hi"}]}`)],
].map(([name, bytes]) => ({ name, bytes }));
