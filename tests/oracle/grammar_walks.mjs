// Random schemas × random walks through the masks of the large vocabulary: every reply parses and ajv validates it.
//   node grammar_walks.mjs PROBE FOLDER [SCHEMAS] [WALKS] [SEED]
import fs from 'node:fs';
import path from 'node:path';
import Ajv2020 from 'ajv/dist/2020.js';
import addFormats from 'ajv-formats';
import {Probe, Random} from './grammar_probe.mjs';
import {writeVocabulary} from './large_vocabulary.mjs';
import {randomSchema} from './random_schema.mjs';

const [program, folder, schemas = '60', walks = '2', seed = '1'] = process.argv.slice(2);
fs.mkdirSync(folder, {recursive: true});
const file = path.join(folder, 'vocabulary.txt');
writeVocabulary(file, 154880);
const probe = new Probe(program, file);
const random = new Random(seed);
const counts = {schemas: 0, replies: 0, refused: 0, unsatisfiable: 0, characters: 0, planted: 0, caught: 0, cut: 0};
const failures = [];
const reasons = new Map();

for (let i = 0; i < Number(schemas); ++i) {
  const schema = randomSchema(random);
  const text = JSON.stringify(schema);
  const answer = await probe.ask({text, strict: true, walks: Number(walks), seed: i + 1, free: random.below(60)});
  if (answer.error) {
    // A refusal must name a reason that these schemas can have.
    const known = /cannot be enforced/.test(answer.error) ? 'refused' : /no reply at all/.test(answer.error) ? 'unsatisfiable' : null;
    if (known) ++counts[known]; else failures.push({schema, error: answer.error});
    const reason = answer.error.replace(/ at \$.*?( cannot|:)/, '$1').slice(0, 80);
    reasons.set(reason, (reasons.get(reason) ?? 0) + 1);
    continue;
  }
  ++counts.schemas;
  const ajv = new Ajv2020({strict: false, allErrors: false});
  addFormats(ajv);
  const validate = ajv.compile(schema);
  for (const walk of answer.walks) {
    ++counts.replies;
    counts.characters += walk.text.length;
    let why = walk.stuck ? 'stuck' : null;
    // A walk may miss the one word that a pattern waits for; then its limit cuts it, as it would a model's reply.
    if (!why && !walk.finished) ++counts.cut;
    else if (!why) {
      try {
        if (!validate(JSON.parse(walk.text))) why = ajv.errorsText(validate.errors);
        // The judge must be able to say no: the reply against "not" of its schema.
        ++counts.planted;
        if (!ajv.compile({not: schema, $defs: schema.$defs})(JSON.parse(walk.text))) ++counts.caught;
      } catch (error) { why = String(error); }
    }
    if (why) failures.push({schema, text: walk.text, why});
  }
}
probe.close();
for (const failure of failures.slice(0, 5)) console.log(JSON.stringify(failure).slice(0, 1500));
console.log(JSON.stringify(counts), [...reasons].map(([k, v]) => `${v}× ${k}`).join('; '));
console.log(`${counts.replies} replies to ${counts.schemas} schemas, ${failures.length} wrong`);
const weak = counts.cut > 0.01 * counts.replies + 2 || counts.schemas < 0.5 * Number(schemas) || (failures.length === 0 && counts.caught !== counts.planted);
process.exit(failures.length > 0 || weak ? 1 : 0);
