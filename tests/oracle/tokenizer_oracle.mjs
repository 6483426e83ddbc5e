// Compares the tokenizer with the reference library on tens of thousands of strings, on code points in every context,
// and on variations of the file. Usage: node tokenizer_oracle.mjs PROBE DEMO_TOKENIZER.json WORK_FOLDER [SEED]
// Ends with exit code 1 at the first kind of difference; a fresh seed is drawn and printed each time.
import {spawnSync} from 'node:child_process';
import {mkdirSync, readFileSync, writeFileSync} from 'node:fs';
import {createRequire} from 'node:module';
import {randomInt} from 'node:crypto';
import path from 'node:path';

import {makeString, Random} from './strings.mjs';
import {largeTokenizer} from './large_tokenizer.mjs';

const [probe, demoPath, folder, givenSeed] = process.argv.slice(2);
if (!folder) {
  console.error('usage: node tokenizer_oracle.mjs PROBE DEMO_TOKENIZER.json WORK_FOLDER [SEED]');
  process.exit(2);
}
let Tokenizer;
try {
  ({Tokenizer} = createRequire(import.meta.url)('tokenizers'));
} catch {
  console.error('the reference library is not installed: run `npm ci` in tests/oracle');
  process.exit(1);
}
mkdirSync(folder, {recursive: true});
const freshSeed = givenSeed ? Number(givenSeed) : randomInt(2 ** 31);
console.log(`fresh seed ${freshSeed}`);
let failures = 0;

const trusted = (text) => [{trusted: true, text}];
const caller = (text) => [{trusted: false, text}];

/** Encodes lists of runs with our program, which reads the tokenizer from a file. */
function probeRun(file, requests) {
  const chunks = [];
  const u32 = (v) => {
    const b = Buffer.alloc(4);
    b.writeUInt32LE(v);
    chunks.push(b);
  };
  for (const r of requests) {
    if (r.ids) {
      chunks.push(Buffer.from('D'));
      u32(r.ids.length);
      chunks.push(Buffer.from(Uint32Array.from(r.ids).buffer));
      continue;
    }
    chunks.push(Buffer.from('E'));
    u32(r.runs.length);
    for (const run of r.runs) {
      const bytes = Buffer.from(run.text, 'utf8');
      u32(run.trusted ? 1 : 0);
      u32(bytes.length);
      chunks.push(bytes);
    }
  }
  const done = spawnSync(probe, [file], {input: Buffer.concat(chunks), maxBuffer: 2 ** 30});
  if (done.status !== 0) throw new Error(`the probe failed on ${file}: ${done.stderr}`);
  const out = done.stdout;
  let at = 0;
  return requests.map((r) => {
    const n = out.readUInt32LE(at);
    at += 4;
    if (r.ids) {
      at += n;
      return out.toString('utf8', at - n, at);
    }
    if (n === 0xffffffff) return null;
    const ids = [];
    for (let i = 0; i < n; ++i, at += 4) ids.push(out.readUInt32LE(at));
    return ids;
  });
}

/** The reference: plain for trusted text; marked text by cutting at the trusted spellings ourselves. */
class Reference {
  constructor(json) {
    this.full = Tokenizer.fromString(JSON.stringify(json));
    this.bare = Tokenizer.fromString(JSON.stringify({...json, added_tokens: []}));
    this.ids = new Map(json.added_tokens.map((t) => [t.content, t.id]));
    const spellings = [...this.ids.keys()].sort((a, b) => b.length - a.length);
    this.pattern = new RegExp(spellings.map((s) => s.replace(/[^a-z0-9]/giu, '\\$&')).join('|') || '(?!)', 'g');
  }
  async encode(strings) {
    const out = [];
    for (let i = 0; i < strings.length; i += 2000)
      for (const e of await this.full.encodeBatch(strings.slice(i, i + 2000), {addSpecialTokens: false})) out.push(e.getIds());
    return out;
  }
  async encodeMarked(runs) {
    const ids = [];
    let text = '';
    const flush = async () => {
      if (text) ids.push(...(await this.bare.encode(text, null, {addSpecialTokens: false})).getIds());
      text = '';
    };
    for (const run of joined(runs)) {
      let from = 0;
      for (const m of run.trusted ? run.text.matchAll(this.pattern) : []) {
        text += run.text.slice(from, m.index);
        await flush();
        ids.push(this.ids.get(m[0]));
        from = m.index + m[0].length;
      }
      text += run.text.slice(from);
    }
    await flush();
    return ids;
  }
}

/** Neighbours of one provenance as one run: where a spelling is cut makes no difference then. */
function joined(runs) {
  const out = [];
  for (const run of runs) {
    if (out.length && out[out.length - 1].trusted === run.trusted) out[out.length - 1].text += run.text;
    else out.push({...run});
  }
  return out;
}

const same = (a, b) => a !== null && a.length === b.length && a.every((v, i) => v === b[i]);

function differences(ours, theirs, shown, label) {
  let bad = 0;
  ours.forEach((o, i) => {
    const equal = typeof o === 'string' ? o === theirs[i] : same(o, theirs[i]);
    if (equal) return;
    if (++bad <= 3 && label) {
      console.error(`${label}: ${JSON.stringify(shown[i])}`);
      console.error(`  ours   ${JSON.stringify(o)?.slice(0, 400)}`);
      console.error(`  theirs ${JSON.stringify(theirs[i]).slice(0, 400)}`);
    }
  });
  return bad;
}

let clock = performance.now();
function report(name, count, bad) {
  const seconds = (performance.now() - clock) / 1000;
  clock = performance.now();
  console.log(`${bad ? 'FAIL' : 'ok'}: ${name}: ${count} compared, ${bad} differ (${seconds.toFixed(1)} s)`);
  if (bad) ++failures;
}

function writeJson(name, json) {
  const file = path.join(folder, name);
  writeFileSync(file, JSON.stringify(json));
  return file;
}

function strings(seed, count, options) {
  const random = new Random(seed);
  return Array.from({length: count}, () => makeString(random, options));
}

async function compareEncode(name, file, json, list) {
  const ours = probeRun(file, list.map((s) => ({runs: trusted(s)})));
  const theirs = await new Reference(json).encode(list);
  report(name, list.length, differences(ours, theirs, list, name));
}

/** Strings cut at random places into runs of random provenance. */
function markedRuns(seed, count, options) {
  const random = new Random(seed);
  return Array.from({length: count}, () => {
    const whole = [...makeString(random, options)];
    const runs = [];
    for (let at = 0; at < whole.length;) {
      const n = 1 + random.below(random.chance(50) ? 12 : 60);
      runs.push({trusted: random.chance(50), text: whole.slice(at, at + n).join('')});
      at += n;
    }
    return random.chance(25) ? caller(whole.join('')) : runs;
  });
}

async function compareMarked(name, file, json, list) {
  const ours = probeRun(file, list.map((runs) => ({runs})));
  const reference = new Reference(json);
  const theirs = [];
  for (const runs of list) theirs.push(await reference.encodeMarked(runs));
  report(name, list.length, differences(ours, theirs, list, name));
}

async function compareDecode(name, file, json, list) {
  const ours = probeRun(file, list.map((ids) => ({ids})));
  const theirs = await new Reference(json).full.decodeBatch(list, false);
  report(name, list.length, differences(ours, theirs, list, name));
}

/** Random ids: any, single bytes (broken UTF-8), and pieces of encoded text. */
function idLists(seed, count, json) {
  const random = new Random(seed);
  const all = [...Object.values(json.model.vocab), ...json.added_tokens.map((t) => t.id)];
  const bytes = Object.entries(json.model.vocab).filter(([t]) => [...t].length === 1).map(([, id]) => id);
  return Array.from({length: count}, () => {
    const mostlyBytes = random.chance(60);
    return Array.from({length: random.below(24)}, () => random.pick(mostlyBytes && random.chance(80) ? bytes : all));
  });
}

/** Code points in contexts that reach each alternative of the pattern: all of the first two planes, some elsewhere. */
function codePointStrings(seed) {
  const random = new Random(seed);
  const list = [];
  let text = '';
  for (let c = 0; c < 0x110000; ++c) {
    if (c >= 0xd800 && c <= 0xdfff) continue;
    // Beyond the first two planes are ideographs, a few tags and mostly nothing: a sample, another one each time.
    if (c >= 0x20000 && random.below(c < 0x40000 ? 8 : 64)) continue;
    const s = String.fromCodePoint(c);
    text += `a${s}b ${s}1${s}\n${s}'${s}`;
    if (text.length > 600) {
      list.push(text);
      text = '';
    }
  }
  return list.concat(text);
}

const clone = (json) => JSON.parse(JSON.stringify(json));
const split = (Regex, behavior = 'Isolated') => ({type: 'Split', pattern: {Regex}, behavior, invert: false});
const byteLevel = (use_regex = false) => ({type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex});

/** Files that differ from the demo's in one respect. */
function variations(demo) {
  const out = [];
  const vary = (name, change, options = {}) => {
    const json = clone(demo);
    change(json);
    out.push({name, json, options});
  };
  const pre = (name, pretokenizers, options) =>
    vary(name, (j) => { j.pre_tokenizer = {type: 'Sequence', pretokenizers}; }, options);
  vary('merging before look-up', (j) => { j.model.ignore_merges = false; });
  vary('merges as strings', (j) => { j.model.merges = j.model.merges.map((m) => m.join(' ')); });
  vary('added tokens that strip blanks', (j) => {
    j.added_tokens.forEach((t, i) => { t.lstrip = i % 2 === 0; t.rstrip = i % 3 === 0; });
  });
  vary('added tokens of both kinds', (j) => { j.added_tokens.forEach((t, i) => { t.normalized = i % 2 === 0; }); });
  vary('added tokens that begin alike', (j) => {
    const next = Math.max(...j.added_tokens.map((t) => t.id)) + 1;  // the reference numbers by itself: no gaps
    for (const [i, content] of ['<th', '<think>>', '|user|', '<|user|><|user|>', ' the', '\n\n\n'].entries())
      j.added_tokens.push({...j.added_tokens[0], id: next + i, content});
  });
  pre('one digit a piece', [split("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"), byteLevel()]);
  pre('byte-level pattern', [byteLevel(true)]);
  pre('case-aware pattern', [split("[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"), byteLevel()], {known: true});
  pre('three splits', [split('\\p{N}{1,3}'), split('[一-龥\\u3040-ゟ゠-ヿ]+'), split("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\P{S}]?[\\p{L}]+| ?[^\\s\\p{L}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"), byteLevel()], {known: true});
  pre('a pattern that leaves gaps', [split('\\d+|\\p{L}{2,5}?|(?<=a)\\s|[^\\S\\n]x*|\\x{1F600}|\\v'), byteLevel()], {known: true});
  pre('a pattern that matches nothing', [split('x*'), byteLevel()]);
  pre('a literal', [{type: 'Split', pattern: {String: 'a.b'}, behavior: 'Isolated', invert: false}, {type: 'Split', pattern: {String: ' '}, behavior: 'Isolated', invert: true}, byteLevel()]);
  return out;
}

/** Each fault must show as a difference; a comparison that cannot fail proves nothing. */
async function plantedFaults(json, file, list, spellings) {
  const reference = new Reference(json);
  const theirs = await reference.encode(list);
  const expectDifference = (name, count, bad) => {
    console.log(`${bad ? 'ok' : 'FAIL'}: planted fault "${name}": ${bad} of ${count} differ`);
    if (!bad) ++failures;
  };
  const plant = (name, change) => {
    const faulty = clone(json);
    change(faulty);
    const ours = probeRun(writeJson('planted.json', faulty), list.map((s) => ({runs: trusted(s)})));
    expectDifference(name, list.length, differences(ours, theirs, list, null));
  };
  plant('the order of some merges', (j) => {
    j.model.ignore_merges = false;
    j.model.merges = j.model.merges.slice(0, 4000).reverse().concat(j.model.merges.slice(4000));
  });
  const plantPattern = (name, from, to) =>
    plant(name, (j) => {
      const p = j.pre_tokenizer.pretokenizers[0].pattern;
      if (!p.Regex.includes(from)) throw new Error(`nothing to plant: ${name}`);
      p.Regex = p.Regex.replace(from, to);
    });
  plantPattern('contractions in lower case only', '(?i:', '(?:');
  plantPattern('digits in twos', '{1,3}', '{1,2}');
  const forged = list.slice(0, 300).map((s) => s + spellings[3]);
  const ours = probeRun(file, forged.map((s) => ({runs: trusted(s)})));
  const safe = [];
  for (const s of forged) safe.push(await reference.encodeMarked(caller(s)));
  expectDifference("a caller's text taken as trusted", forged.length, differences(ours, safe, forged, null));
}

const demo = JSON.parse(readFileSync(demoPath, 'utf8'));
const spellings = demo.added_tokens.map((t) => t.content);
const fixed = strings(1, 16000, {spellings});
const fresh = strings(freshSeed, 4000, {spellings});

await compareEncode('demo, fixed strings', demoPath, demo, fixed);
await compareEncode('demo, fresh strings', demoPath, demo, fresh);
await compareEncode('demo, code points', demoPath, demo, codePointStrings(freshSeed + 7));
await compareMarked('demo, marked text', demoPath, demo, markedRuns(freshSeed + 1, 4000, {spellings}));
await compareDecode('demo, decode', demoPath, demo, idLists(freshSeed + 2, 6000, demo));
for (const {name, json, options} of variations(demo)) {
  const all = [...spellings, ...json.added_tokens.map((t) => t.content)];
  await compareEncode(name, writeJson('variation.json', json), json, strings(freshSeed + 3, 1200, {spellings: all, ...options}));
}

const large = largeTokenizer(demo);
const largeFile = writeJson('large_tokenizer.json', large);
const began = performance.now();
probeRun(largeFile, []);
console.log(`large tokenizer: ${Object.keys(large.model.vocab).length} tokens, ${large.model.merges.length} merges, ` +
  `${readFileSync(largeFile).length} bytes, loaded in ${(performance.now() - began).toFixed(0)} ms`);
const largeSpellings = large.added_tokens.map((t) => t.content);
await compareEncode('large, strings', largeFile, large, strings(freshSeed + 4, 4000, {spellings: largeSpellings}));
await compareMarked('large, marked text', largeFile, large, markedRuns(freshSeed + 5, 1000, {spellings: largeSpellings}));
await compareDecode('large, decode', largeFile, large, idLists(freshSeed + 6, 2000, large));
await plantedFaults(large, largeFile, strings(7, 1500, {spellings: largeSpellings}), largeSpellings);
process.exit(failures ? 1 : 0);
