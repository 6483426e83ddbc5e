// A vocabulary of the size and kind of the real model's, as lines of hexadecimal (tests/grammar/vocabularies.h): the 256
// bytes, tokens of a published byte-pair table in the order of their ranks, 24 special tokens, the end token.
//   node large_vocabulary.mjs FILE [SIZE]
import fs from 'node:fs';
import {createRequire} from 'node:module';
import {fileURLToPath} from 'node:url';

const require = createRequire(import.meta.url);
const kSpecialTokens = 24;

export function tokenBytes(size, special = kSpecialTokens) {
  const tokens = [];
  for (let b = 0; b < 256; ++b) tokens.push(Buffer.from([b]));
  for (const line of require('js-tiktoken/ranks/o200k_base').bpe_ranks.split('\n')) {
    for (const token of line.split(' ').slice(2)) {
      const bytes = Buffer.from(token, 'base64');
      if (bytes.length > 1) tokens.push(bytes);
    }
  }
  tokens.length = Math.min(tokens.length, size - special - 1);
  for (let i = 0; i < special; ++i) tokens.push(Buffer.alloc(0));
  tokens.push(Buffer.from('<end>'));
  return tokens;
}

export function writeVocabulary(file, size, special) {
  const tokens = tokenBytes(size, special);
  fs.writeFileSync(file, tokens.map((t) => t.toString('hex')).join('\n') + '\n');
  return tokens;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) writeVocabulary(process.argv[2], Number(process.argv[3] ?? 154880));
