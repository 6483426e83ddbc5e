// Our masks against those of @mlc-ai/web-xgrammar, on the keywords that both have: random schemas, replies drawn from our
// masks, every mask of every step compared bit by bit.
//   node grammar_xgrammar.mjs PROBE FOLDER [SCHEMAS] [SEED]
import fs from 'node:fs';
import path from 'node:path';
import {createRequire} from 'node:module';
import {fileURLToPath} from 'node:url';
import {Probe, Random} from './grammar_probe.mjs';
import {writeVocabulary} from './large_vocabulary.mjs';

const require = createRequire(import.meta.url);

/** The package is a browser bundle that names itself a module; run as a plain script it works here too. */
function loadXgrammar() {
  const file = fileURLToPath(import.meta.resolve('@mlc-ai/web-xgrammar'));
  const module = {exports: {}};
  new Function('exports', 'require', 'module', '__filename', '__dirname', fs.readFileSync(file, 'utf8'))(
    module.exports, require, module, file, path.dirname(file));
  return module.exports;
}

const [program, folder, schemas = '40', seed = '1'] = process.argv.slice(2);
fs.mkdirSync(folder, {recursive: true});
const file = path.join(folder, 'vocabulary-small.txt');
const tokens = writeVocabulary(file, 6000, 0);
const end = tokens.length - 1;

const alphabet = [];
for (let b = 0, next = 0x100; b < 256; ++b) {
  const printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
  alphabet.push(String.fromCodePoint(printable ? b : next++));
}
const x = loadXgrammar();
const info = await x.TokenizerInfo.createTokenizerInfo(
  tokens.map((bytes) => Array.from(bytes, (b) => alphabet[b]).join('')), 'byte_level', false, tokens.length, [end]);
const compiler = await x.GrammarCompiler.createGrammarCompiler(info, false);
const probe = new Probe(program, file);
const random = new Random(seed);

// Not compared: upper bounds (up to 191 that version lets 197 through), enums where one string begins another (that version reads "rede" as one of "red" and "r"), minLength and maxLength (that version then allows raw control characters, which is no JSON, and no
// escapes), pattern and format (their escapes differ), numbers with a fraction (ours bound the exponent).
function schema(d) {
  const kinds = d > 0 ? ['object', 'object', 'array', 'anyOf', 'tuple'] : [];
  switch (random.pick([...kinds, 'string', 'integer', 'enum', 'const', 'boolean', 'null', 'ref'])) {
    case 'object': {
      const names = ['id', 'name', 'kind', 'über', 'x', 'xy'].filter(() => random.chance(0.4));
      if (names.length === 0) names.push('id');
      return {type: 'object', properties: Object.fromEntries(names.map((n) => [n, schema(d - 1)])),
        required: names.filter(() => random.chance(0.6)), additionalProperties: false};
    }
    case 'array': {
      const least = random.below(3);
      return {type: 'array', items: schema(d - 1), ...(random.chance(0.5) ? {minItems: least, maxItems: least + 1 + random.below(3)} : {})};
    }
    case 'tuple': return {type: 'array', prefixItems: [schema(d - 1), schema(0)], items: false, minItems: 2};
    case 'anyOf': return {anyOf: [schema(d - 1), schema(0)]};
    case 'string': return {type: 'string'};
    case 'integer': return {type: 'integer'};
    case 'enum': return {enum: ['red', 'green', 'ä"b', 7, true, null].filter(() => random.chance(0.5)).concat('blue')};
    case 'const': return {const: random.pick(['x', 12, false, 'a\\b'])};
    case 'boolean': return {type: 'boolean'};
    case 'ref': return {$ref: '#/$defs/tree'};
    default: return {type: 'null'};
  }
}

/** Differences that are meant: what we forbid and they do not. */
function meant(text, token) {
  const all = text + token;
  try {
    new TextDecoder('utf-8', {fatal: true}).decode(Buffer.from(all, 'latin1'), {stream: true});
  } catch { return 'bytes that are no UTF-8'; }
  if (/\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])/.test(all)) return 'lone surrogate escape';
  if (/\\u[dD][c-fC-F]/.test(all)) return 'lone surrogate escape';
  if (/[0-9]{33}/.test(all)) return 'number of more than 32 digits';
  return null;
}

const counts = {schemas: 0, masks: 0, bits: 0, equal: 0, planted: 0};
const reasons = new Map();
let wrong = 0;
for (let i = 0; i < Number(schemas); ++i) {
  const root = schema(3);
  root.$defs = {tree: {type: 'object', properties: {v: {type: 'integer'}, kids: {type: 'array', items: {$ref: '#/$defs/tree'}}},
    required: ['v'], additionalProperties: false}};
  const text = JSON.stringify(root);
  const answer = await probe.ask({text, walks: 2, seed: i + 1, free: 30, masks: true});
  if (answer.error) { console.log('refused', text, answer.error); ++wrong; continue; }
  ++counts.schemas;
  const compiled = await compiler.compileJSONSchema(text, true, undefined, undefined, true, 32);
  for (const walk of answer.walks) {
    const matcher = await x.GrammarMatcher.createGrammarMatcher(compiled);
    let said = '';
    for (let step = 0; step < walk.masks.length; ++step) {
      const theirs = await matcher.getNextTokenBitmask();
      ++counts.masks;
      let same = true;
      for (let w = 0; w < theirs.length; ++w) {
        const ours = parseInt(walk.masks[step].slice(w * 8, w * 8 + 8), 16);
        if (step === 3 && w === 1 && ((ours ^ 1) >>> 0) !== theirs[w] >>> 0) ++counts.planted;  // a flipped bit is seen
        let difference = (ours ^ theirs[w]) >>> 0;
        counts.bits += 32;
        for (let b = 0; difference !== 0; ++b, difference >>>= 1) {
          if ((difference & 1) === 0) continue;
          const id = w * 32 + b;
          if (id >= tokens.length) continue;
          const token = tokens[id].toString('latin1');
          const reason = (ours >>> b & 1) === 0 ? meant(said, token) : null;
          if (reason) { reasons.set(reason, (reasons.get(reason) ?? 0) + 1); continue; }
          same = false;
          if (++wrong <= 12)
            console.log(`${(ours >>> b & 1) ? 'only ours' : 'only theirs'}: ${JSON.stringify(token)} after ${JSON.stringify(said)} for ${text.slice(0, 300)}`);
        }
      }
      counts.equal += same;
      const token = walk.tokens[step];
      if (token === undefined) break;
      if (!matcher.acceptToken(token)) {
        console.log(`they refuse ${JSON.stringify(tokens[token].toString('latin1'))} after ${JSON.stringify(said)} for ${text.slice(0, 300)}`);
        ++wrong;
        break;
      }
      if (token !== end) said += tokens[token].toString('latin1');
    }
    matcher.dispose();
  }
  compiled.dispose();
}
probe.close();
console.log(JSON.stringify(counts), 'meant:', JSON.stringify([...reasons]));
console.log(`${counts.masks} masks of ${counts.schemas} schemas, ${wrong} differences that are not meant`);
process.exit(wrong > 0 || counts.schemas === 0 ? 1 : 0);
