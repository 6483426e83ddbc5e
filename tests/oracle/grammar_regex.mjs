// Random patterns against RegExp: replies drawn from the masks match, and random texts are accepted exactly when RegExp
// says so.
//   node grammar_regex.mjs PROBE FOLDER [PATTERNS] [SEED]
import fs from 'node:fs';
import path from 'node:path';
import {Probe, Random} from './grammar_probe.mjs';
import {writeVocabulary} from './large_vocabulary.mjs';

const [program, folder, patterns = '300', seed = '1'] = process.argv.slice(2);
fs.mkdirSync(folder, {recursive: true});
const file = path.join(folder, 'vocabulary-regex.txt');
writeVocabulary(file, 4000);
const probe = new Probe(program, file);
const random = new Random(seed);

const kAtoms = ['a', 'b', 'c', 'x', ' ', '1', 'é', '日', '😀', '.', '\\d', '\\w', '\\s', '\\D', '\\W', '\\S', '[ab]', '[^ab]', '[a-c1]',
  '[^\\d]', '[é-日]', '\\n', '\\.', '"', '\\\\', '-', '[\\w-]', '\\u00e9', '[^]'];
const kCounts = ['*', '+', '?', '{2}', '{1,3}', '{0,2}', '{2,}', '{3,9}', '{0,7}', '*?', '+?'];
function pattern(d) {
  const parts = [];
  for (let n = 1 + random.below(3); n > 0; --n) {
    const group = d > 0 && random.chance(0.35);
    const atom = group ? random.pick(['(', '(?:']) + pattern(d - 1) + ')' : random.pick(kAtoms);
    parts.push(atom + (random.chance(0.4) ? random.pick(kCounts) : ''));
  }
  if (random.chance(0.15)) parts.unshift('^');
  if (random.chance(0.15)) parts.push('$');
  return parts.join('') + (random.chance(0.25) ? '|' + pattern(0) : '');
}

let texts = 0, replies = 0, yes = 0, wrong = 0, narrower = 0, compiled = 0, large = 0;
const complain = (...words) => { if (++wrong <= 10) console.log(...words.map((w) => JSON.stringify(w))); };
for (let i = 0; i < Number(patterns); ++i) {
  const text = pattern(2);
  let full;
  try { full = new RegExp(`^(?:${text})$`, 'u'); } catch { continue; }
  const samples = Array.from({length: 30}, () => Array.from({length: random.below(6)}, () =>
    random.pick(['a', 'b', 'c', 'x', ' ', '1', 'é', '日', '😀', '\n', '.', '"', '\\', '-'])).join(''));
  const asked = await probe.ask({kind: 'regex', text, walks: 3, seed: i + 1, free: 12});
  if (asked.error) {
    // A pattern that nothing can match, one with anchors that are never certain, one beyond the limits of size.
    if (/too many states|too long to compile/.test(asked.error)) ++large;
    else if (!/no reply at all/.test(asked.error)) complain('refused', text, asked.error);
    else if (/[\^$]/.test(text.replace(/\[\^/g, '['))) ++narrower;
    else if (samples.some((s) => full.test(s))) complain('refused', text, asked.error);
    continue;
  }
  ++compiled;
  for (const walk of asked.walks) {
    if (!walk.finished) continue;
    ++replies;
    if (!full.test(walk.text)) complain('reply', text, walk.text);
    else samples.push(walk.text, walk.text.slice(0, -1), walk.text + 'a', walk.text.slice(1));
  }
  const usable = samples.filter((s) => s.isWellFormed ? s.isWellFormed() : true);
  const {accepts} = await probe.ask({kind: 'regex', text, accept: usable});
  const anchored = /[\^$]/.test(text.replace(/\[\^/g, '['));
  usable.forEach((sample, s) => {
    ++texts;
    const theirs = full.test(sample);
    yes += theirs;
    if (accepts[s] === theirs) return;
    // An anchor behind something that may be empty counts as false: narrower is allowed there, wider never.
    if (anchored && theirs) ++narrower; else complain('text', text, sample, accepts[s]);
  });
}
probe.close();
console.log(`${texts} texts (${yes} match) and ${replies} replies over ${compiled} patterns: ${wrong} wrong, ` +
  `${narrower} narrower at anchors, ${large} patterns too large`);
process.exit(wrong > 0 || large > 0.05 * compiled || yes === 0 || compiled === 0 ? 1 : 0);
