// The bundled model's recorded prompts and replies, as conversations that a client could send.
import { readFileSync } from 'node:fs';

const firstSpecial = 4060;

function byteOfSymbol() {
  // The printable stand-ins of the byte-level alphabet.
  const direct = [[33, 126], [161, 172], [174, 255]];
  const map = new Map();
  for (const [low, high] of direct) for (let b = low; b <= high; b += 1) map.set(String.fromCodePoint(b), b);
  let next = 256;
  for (let b = 0; b < 256; b += 1) {
    if (!direct.some(([low, high]) => b >= low && b <= high)) map.set(String.fromCodePoint(next++), b);
  }
  return map;
}

export function loadGoldens(modelDir, goldenFile) {
  const tokenizer = JSON.parse(readFileSync(`${modelDir}/tokenizer.json`, 'utf8'));
  const spelling = new Map(Object.entries(tokenizer.model.vocab).map(([text, id]) => [id, text]));
  for (const added of tokenizer.added_tokens) spelling.set(added.id, added.content);
  const bytes = byteOfSymbol();
  const decode = (ids) => Buffer.concat(ids.map((id) => (id >= firstSpecial
    ? Buffer.from(spelling.get(id))
    : Buffer.from([...spelling.get(id)].map((c) => bytes.get(c)))))).toString('utf8');

  const turn = /^\[gMASK\]<sop>(?:<\|system\|>Reasoning Effort: (Low|High|Max))?<\|user\|>([^]*)<\|assistant\|><think>(<\/think>)?$/;
  const out = [];
  for (const golden of JSON.parse(readFileSync(goldenFile, 'utf8')).prompts) {
    if (golden.pictures || golden.stop !== 'end token') continue;
    const match = decode(golden.prompt_ids).match(turn);
    if (!match) continue;
    const [, effort, user, closed] = match;
    if (/<\|(user|assistant|system|observation)\|>/.test(user)) continue;
    // Thinking off has no effort line over HTTP; with one, the prompt is another one than the recorded.
    if ((effort === undefined) !== (closed !== undefined)) continue;
    const reply = decode(golden.greedy_ids.slice(0, -1));
    const split = closed ? ['', reply] : reply.split('</think>');
    out.push({
      name: golden.name,
      request: { messages: [{ role: 'user', content: user }], reasoning_effort: effort?.toLowerCase() ?? 'none' },
      promptTokens: golden.prompt_ids.length,
      replyTokens: golden.greedy_ids.length,
      margin: Math.min(...golden.margin),
      reasoning: split[0],
      content: split[1],
    });
  }
  return out;
}
