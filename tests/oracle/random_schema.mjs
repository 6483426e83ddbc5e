// Random JSON schemas over the keywords that the grammar engine enforces.

const kNames = ['id', 'name', 'value', 'kind', 'next', 'päss', 'a b', 'quo"te', 'back\\slash', 'n\nl', 'x', 'xy', 'xyz', ''];
const kPatterns = ['^[a-z]+$', '^[A-Z]{2,4}-\\d{3}$', 'foo', '^(a|bc)*d?$', '^\\S+@\\S+$', '^[^"\\\\]{1,8}$', '^x', 'y$',
  '^.{0,20}$', '^(\\d{3}|[a-f]+)(,(\\d{3}|[a-f]+)){0,3}$', '^\\u00e4+$', '[^a-z]', '^\\n?$', '^[ -~]*$', 'a|^b|c$'];
export const kFormats = ['date', 'time', 'date-time', 'duration', 'email', 'hostname', 'ipv4', 'ipv6', 'uuid', 'uri',
  'uri-reference', 'json-pointer', 'relative-json-pointer'];

export function randomSchema(random, {depth = 3, formats = true, definitions = true} = {}) {
  const defs = definitions && random.chance(0.3) ? ['node', 'leaf'] : [];
  const make = (d) => {
    if (random.chance(0.05)) return {};
    if (defs.length > 0 && random.chance(0.12)) return {$ref: '#/$defs/' + random.pick(defs)};
    const kinds = d > 0 ? ['object', 'object', 'object', 'array', 'array', 'anyOf', 'allOf', 'oneOf'] : [];
    switch (random.pick([...kinds, 'string', 'string', 'integer', 'number', 'enum', 'const', 'boolean', 'null', 'types'])) {
      case 'object': return object(d);
      case 'array': return array(d);
      case 'anyOf': return {anyOf: Array.from({length: 1 + random.below(3)}, () => make(d - 1))};
      case 'oneOf': return random.chance(0.5)
        ? {oneOf: [{type: 'string', ...string()}, {type: 'integer'}, object(d)].slice(0, 1 + random.below(3))}
        : {oneOf: ['cat', 'dog'].map((k) => ({type: 'object', properties: {kind: {const: k}, [k]: make(d - 1)},
          required: ['kind'], additionalProperties: false}))};
      case 'allOf': return {allOf: [object(d), object(d)].map((s) => { delete s.additionalProperties; return s; })};
      case 'string': return {type: 'string', ...string()};
      case 'integer': return {type: 'integer', ...bounds(true)};
      case 'number': return {type: 'number', ...bounds(false)};
      case 'enum': return {enum: Array.from({length: 1 + random.below(4)}, (_, i) => value(i))};
      case 'const': return {const: value(random.below(8))};
      case 'boolean': return {type: 'boolean'};
      case 'null': return {type: 'null'};
      default: return {type: ['string', random.pick(['null', 'integer', 'boolean'])], ...(random.chance(0.3) ? {maxLength: 6} : {})};
    }
  };
  const value = (i) => [random.pick(kNames), i, -i * 1.5, true, null, {a: [i, 'x'], b: {}}, [], 'tab\there', 1e30][(i + random.below(9)) % 9];
  const string = () => {
    const out = {};
    switch (random.below(6)) {
      case 0: out.minLength = random.below(4); break;
      case 1: out.maxLength = random.below(12); break;
      case 2: out.minLength = random.below(10); out.maxLength = out.minLength + random.below(30); break;
      case 3: out.pattern = random.pick(kPatterns); break;
      case 4: if (formats) out.format = random.pick(kFormats); break;
    }
    return out;
  };
  const bounds = (integer) => {
    const out = {};
    const number = () => integer || random.chance(0.5) ? random.below(2000) - 1000 : Math.round((random.next() - 0.5) * 1e6) / 1e3;
    const low = number(), high = low + random.below(3000) + 20;
    if (random.chance(0.4)) out[random.pick(['minimum', 'exclusiveMinimum'])] = low;
    if (random.chance(0.4)) out[random.pick(['maximum', 'exclusiveMaximum'])] = high;
    if (integer && random.chance(0.2)) out.multipleOf = 1 + random.below(12);
    return out;
  };
  const object = (d) => {
    const out = {type: 'object'};
    const names = [...new Set(Array.from({length: random.below(5)}, () => random.pick(kNames)))];
    if (names.length > 0 || random.chance(0.7)) out.properties = Object.fromEntries(names.map((n) => [n, make(d - 1)]));
    const required = names.filter(() => random.chance(0.5));
    if (required.length > 0) out.required = required;
    switch (random.below(6)) {
      case 0: out.additionalProperties = false; break;
      case 1: out.additionalProperties = make(0); break;
      case 2: out.additionalProperties = true; break;
      case 3: out.patternProperties = {[random.pick(['^x', '^s_', '\\d$'])]: make(0)}; break;
    }
    if (random.chance(0.1)) out.minProperties = random.below(Math.max(1, names.length));
    if (random.chance(0.1)) out.maxProperties = required.length + random.below(3);
    if (random.chance(0.08)) out.propertyNames = random.pick([{pattern: '^[a-z]'}, {maxLength: 4}, {enum: ['id', 'name', 'q']}]);
    return out;
  };
  const array = (d) => {
    const out = {type: 'array'};
    if (random.chance(0.8)) out.items = make(d - 1);
    if (random.chance(0.25)) out.prefixItems = Array.from({length: 1 + random.below(3)}, () => make(d - 1));
    if (out.prefixItems && random.chance(0.3)) out.items = false;
    if (random.chance(0.4)) out.minItems = random.below(4);
    if (random.chance(0.4)) out.maxItems = (out.minItems ?? 0) + random.below(4);
    return out;
  };
  const schema = random.chance(0.85) ? object(depth) : make(depth);
  if (defs.length > 0) {
    schema.$defs = {
      node: {type: 'object', properties: {label: {type: 'string'}, children: {type: 'array', items: {$ref: '#/$defs/node'}},
        next: {anyOf: [{type: 'null'}, {$ref: '#/$defs/node'}]}}, required: ['label'], additionalProperties: false},
      leaf: {type: 'string', minLength: 1, maxLength: 5},
    };
  }
  return schema;
}
