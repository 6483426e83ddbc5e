// Random strings that tokenizers get wrong, from a seed.

/** A small seeded generator (32-bit state, multiply and shift). */
export class Random {
  constructor(seed) {
    this.state = seed >>> 0;
  }
  next() {
    this.state = (this.state + 0x9e3779b9) >>> 0;
    let z = this.state;
    z = Math.imul(z ^ (z >>> 16), 0x21f0aaad);
    z = Math.imul(z ^ (z >>> 15), 0x735a2d97);
    return (z ^ (z >>> 15)) >>> 0;
  }
  below(n) {
    return this.next() % n;
  }
  pick(list) {
    return list[this.below(list.length)];
  }
  chance(percent) {
    return this.below(100) < percent;
  }
}

const kBlanks = [' ', ' ', ' ', '\t', '\n', '\r', '\r\n', '\n\n', '\v', '\f', '\u0085', '\u00a0', '\u1680', '\u180e',
  '\u2003', '\u200a', '\u200b', '\u2028', '\u2029', '\u202f', '\u205f', '\u3000', '\ufeff'];
const kContractions = ["'s", "'S", "'ſ", "'t", "'T", "'re", "'RE", "'Re", "'ve", "'vE", "'m", "'M", "'ll", "'LL", "'Ll",
  "'d", "'D", "'", "''", "’s", "'x", "'r", "'v", "'l", "'st", "'\u212a", "ſ", "'ſſ"];
const kWords = ['the', 'Model', 'answers', 'naïve', 'straße', 'ΑΒΓ', 'δοκιμή', 'Привет', 'мир', 'שלום', 'مرحبا', 'नमस्ते',
  'こんにちは', 'カタカナ', '世界', '人工智能', '한국어', 'ไทย', 'İstanbul', 'ﬁne', 'ǅ', 'ʰ', 'ª', 'x', 'HTTP2', 'snake_case'];
const kEmoji = ['😀', '👍🏽', '👩‍💻', '👨‍👩‍👧‍👦', '🏳️‍🌈', '🇫🇷', '🇩🇪🇫', '❤️', '☎', '1️⃣', '🫠', '🧑🏿‍🚀', '\u200d', '\ufe0f'];
const kCombining = ['é', 'n\u0303', 'a\u0301\u0302\u0303', '\u0301', 'क्षि', 'o\u{1d165}', '\u0345', 'Z\u0351\u036b\u0343'];
const kNumbers = ['0', '7', '12', '123', '1234', '1234567', '٣٤٥', '१२३४', 'Ⅷ', '½', '²', '①', '〇', '𝟘𝟙𝟚𝟛', '3.14', '1,000,000'];
const kSymbols = ['!', '!!', '...', '—', '()', '{}', '[]', '/*', '*/', '//', '->', '=>', '==', '&&', '||', '::', '<', '>',
  '</', '#', '$', '%', '\\', '`', '```', '~', '^', '+', '=', '€', '→', '∑', '、', '。', '「', '\u0000', '\u0007', '\u007f', '\u009f'];
const kCode = ['int main(int argc, char** argv) {\n\treturn 0;\n}\n', 'for i in range(10):\n    print(i)\r\n',
  'SELECT * FROM t WHERE a=\'b\';', '{"key": [1, 2.5e-3, null, true]}', '<div class="x">&nbsp;</div>', 'x = y[0]->z;  // note\n',
  'let f = |a: &str| -> usize { a.len() };\n', '\t\t  if (a&&!b) {\n\n\n      c();\n   }\n', 'https://example.org/a?b=c%20d#e'];

function anyCodePoint(random) {
  for (;;) {
    const plane = random.below(100);
    const top = plane < 40 ? 0x800 : plane < 75 ? 0x10000 : plane < 92 ? 0x20000 : 0x110000;
    const c = random.below(top);
    if (c < 0xd800 || c > 0xdfff) return String.fromCodePoint(c);
  }
}

/** One string; `options.spellings` are added tokens, `options.known` leaves unassigned code points out. */
export function makeString(random, {spellings = [], known = false} = {}) {
  const pools = [kBlanks, kContractions, kWords, kEmoji, kCombining, kNumbers, kSymbols, kCode];
  const flavour = random.below(12);
  const parts = [];
  const count = 1 + random.below(flavour === 0 ? 60 : 16);
  for (let i = 0; i < count; ++i) {
    const kind = flavour >= 10 ? random.below(14) : random.below(8) < 5 ? flavour : random.below(14);
    if (kind < 8) {
      parts.push(random.pick(pools[kind]));
      if (random.chance(30)) parts.push(' ');
    } else if (kind === 8) {
      parts.push(random.pick(kBlanks).repeat(1 + random.below(random.chance(5) ? 400 : 12)));
    } else if (kind === 9) {
      for (let n = random.below(12); n >= 0; --n) parts.push(known ? random.pick(kWords) : anyCodePoint(random));
    } else if (kind === 10 && spellings.length) {
      const token = random.pick(spellings);
      parts.push(random.chance(70) ? token : token.slice(0, 1 + random.below(token.length)));
    } else if (kind === 11) {
      for (let n = random.below(20); n >= 0; --n) parts.push(String.fromCharCode(32 + random.below(95)));
    } else if (kind === 12) {
      parts.push(random.pick(kWords).repeat(1 + random.below(random.chance(5) ? 80 : 3)));
    } else {
      parts.push(random.pick(kWords).toUpperCase(), random.pick(kContractions), random.pick(kNumbers));
    }
  }
  return parts.join('');
}
