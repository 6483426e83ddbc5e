// A tokenizer.json of the size and form of the real model's, made from a published table of byte-pair ranks: 200,000
// tokens, every way to merge two tokens into a third as a rule, in the order of the product's rank.
import {createRequire} from 'node:module';

const require = createRequire(import.meta.url);

/** The printable character that stands for each byte. */
function byteAlphabet() {
  const out = [];
  let next = 0x100;
  for (let b = 0; b < 256; ++b) {
    const printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
    out.push(String.fromCodePoint(printable ? b : next++));
  }
  return out;
}

/** Lines of "word first token token …", tokens in base64, ranks counted from `first`. */
function rankedTokens(table) {
  const tokens = [];
  for (const line of table.split('\n')) {
    const [, first, ...rest] = line.split(' ');
    rest.forEach((token, i) => { tokens[Number(first) + i] = Buffer.from(token, 'base64'); });
  }
  return tokens;
}

/** The file with the pattern, the added tokens and the settings of `demo`. */
export function largeTokenizer(demo) {
  const alphabet = byteAlphabet();
  const tokens = rankedTokens(require('js-tiktoken/ranks/o200k_base').bpe_ranks);
  const rank = new Map();
  const symbols = tokens.map((bytes, id) => {
    const text = Array.from(bytes, (b) => alphabet[b]).join('');
    rank.set(text, id);
    return text;
  });
  const merges = [];
  symbols.forEach((text) => {
    const pairs = [];
    for (let cut = 1; cut < text.length; ++cut) {
      const left = rank.get(text.slice(0, cut)), right = rank.get(text.slice(cut));
      if (left !== undefined && right !== undefined) pairs.push([left, right]);
    }
    pairs.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
    for (const [l, r] of pairs) merges.push([symbols[l], symbols[r]]);
  });
  const json = JSON.parse(JSON.stringify({...demo, model: {...demo.model, vocab: {}, merges: []}}));
  symbols.forEach((text, id) => { json.model.vocab[text] = id; });
  json.model.merges = merges;
  json.added_tokens.forEach((token, i) => { token.id = symbols.length + i; });
  return json;
}
