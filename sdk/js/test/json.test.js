import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { canonicalize, canonicalText, parse, Refused } from '../agora.js';
import { filesOf, folder, fromHex, linesOf, refuses, utf8, vectorsOf } from './helpers.js';

const reading = (text) => () => parse(typeof text === 'string' ? utf8(text) : text);

// The canonical form of a text, or undefined if parse refuses it.
function form(bytes) {
  let value;
  try { value = parse(bytes); } catch (err) {
    assert.ok(err instanceof Refused && err.code === 'INVALID_REQUEST', String(err));
    return undefined;
  }
  const text = canonicalText(value);
  assert.equal(canonicalText(parse(utf8(text))), text, 'the canonical form of a canonical form');
  return text;
}

test('parse accepts only I-JSON', async () => {
  for (const text of [
    '', ' ', '{', '{}{}', "{'a':1}", '[1,]', '01', '+1', '.5', 'NaN', '"\t"', '\ufeff{}', '{"a":1,"a":2}',
    '{"a":1,"\\u0061":1}',
    '[{"x":{"b":[],"b":[]}}]', '{"__proto__":1,"__proto__":2}', '"\\ud800"', '{"\\udc00":1}', '["\\udc00\\ud800"]',
    '1e400',
    '[-1e400]', '{"a":1}\u0000', '-', '"', '"\\', ':', '{:}', '{"a"::1}',
  ]) await refuses('INVALID_REQUEST', reading(text), JSON.stringify(text));
  for (const bytes of [[0xff], [0x22, 0xc0, 0x80, 0x22], [0x22, 0xed, 0xa0, 0x80, 0x22], [0xef, 0xbb, 0xbf, 0x31]]) {
    await refuses('INVALID_REQUEST', reading(Uint8Array.from(bytes)), String(bytes));
  }
  for (const [text, want] of [
    ['{"a":{"b":1},"c":{"b":1}}', '{"a":{"b":1},"c":{"b":1}}'], ['"{\\"a\\":1,:}"', '"{\\"a\\":1,:}"'], [' [ ] ', '[]'],
    ['{"__proto__":{"a":1},"constructor":2}', '{"__proto__":{"a":1},"constructor":2}'], ['"\\ud83d\\ude00"', '"😀"'],
    ['-0.0', '0'], ['"\\u2028\\/\\u007f"', '"\u2028/\u007f"'],
    ['{"\\ufb33":1,"\\ud83d\\ude00":2}', '{"😀":2,"\ufb33":1}'],
  ]) assert.equal(form(utf8(text)), want);
  assert.deepEqual(parse(utf8('[1]').buffer), [1]);
});

test('parse refuses what is nested deeper than 64 levels', async () => {
  const nested = (levels) => '['.repeat(levels) + ']'.repeat(levels);
  assert.equal(form(utf8(nested(64))), nested(64));
  await refuses('INVALID_REQUEST', reading(nested(65)));
  await refuses('INVALID_REQUEST', reading('{"a":'.repeat(65) + '1' + '}'.repeat(65)));
  await refuses('INVALID_REQUEST', reading('['.repeat(1e6)));
  assert.doesNotThrow(() => parse(utf8(nested(70)), { depth: 70 }));
});

test('parse counts costly numbers by their text', async () => {
  const list = (number, count) => `[${Array(count).fill(number).join()}]`;
  for (const number of [
    '123456789012345678', '1.00000000000000001', '-100000000000000001', '9.999e-308', '-5e-324', '0.1e-307', '1e-400',
    '2.2250738585072014e-308', '0.00000000000000000001e-288',
  ]) {
    assert.ok(form(utf8(list(number, 1000))), number);
    await refuses('INVALID_REQUEST', reading(list(number, 1001)), number);
  }
  for (const number of [
    '12345678901234567', '1.0000000000000001', '100000000000000000000', '0.0012345678901234567000', '1e-307', '10e-308',
    '0e-400', '-0.000', '1.7976931348623157e308', '"123456789012345678"', '"\\"123456789012345678"',
  ]) assert.ok(form(utf8(list(number, 1001))), number);
});

test('canonicalize refuses what JSON does not have', async () => {
  for (const value of [
    undefined, NaN, Infinity, 1n, Symbol('s'), () => 1, [undefined], new Date(0), new Map(), new Uint8Array(2),
    '\ud800', { '\udc00': 1 },
  ]) await refuses('INVALID_REQUEST', () => canonicalize({ a: [value] }), String(value));
  const cycle = {};
  cycle.self = cycle;
  await refuses('INVALID_REQUEST', () => canonicalize(cycle), 'a cycle');
  assert.equal(canonicalText({ b: undefined, a: Object.assign(Object.create(null), { c: -0 }) }), '{"a":{"c":0}}');
});

test('JCS: vectors of third parties', (t) => {
  const dir = folder(t, 'AGORA_VECTORS');
  if (!dir) return;
  for (const [name, input] of filesOf(dir, 'jcs/cyberphone/input')) {
    assert.equal(form(input), readFileSync(join(dir, 'jcs/cyberphone/output', name), 'utf8').trim(), name);
  }
  for (const file of ['jcs/es6_numbers.csv', 'jcs/rfc8785_appendix_b.csv']) {
    for (const line of linesOf(dir, file)) {
      const [bits, want] = line.trim().split(',');
      const number = new DataView(fromHex(bits.padStart(16, '0')).buffer).getFloat64(0);
      if (want === 'ERROR') assert.throws(() => canonicalText(number), Refused, bits);
      else assert.equal(canonicalText(number), want, bits);
    }
  }
  for (const v of vectorsOf(dir, 'jcs/nasty_json.json')) {
    const want = v.expect === 'canonical' ? Buffer.from(v.canonical_hex, 'hex').toString() : undefined;
    assert.equal(form(fromHex(v.input_hex)), want, v.name);
  }
});

test('JSON: vectors of third parties', (t) => {
  const dir = folder(t, 'AGORA_VECTORS');
  if (!dir) return;
  const verdicts = { y: 0, n: 0 };
  for (const [name, text] of filesOf(dir, 'json/jsontestsuite/test_parsing')) {
    const got = form(text), wanted = name[0] === 'y' && !name.startsWith('y_object_duplicated_key');
    if (name[0] !== 'i') assert.equal(got !== undefined, wanted, name); // i_: the verdict is open
    verdicts[name[0]]++;
  }
  assert.ok(verdicts.y > 0 && verdicts.n > 0);
  const forms = {
    'number_1.0.json': '[1]', 'number_1e-999.json': '[0]', 'number_9223372036854775807.json': '[9223372036854776000]',
    'object_key_nfc_nfd.json': '{"e\u0301":"NFD","\u00e9":"NFC"}',
  };
  for (const [name, text] of filesOf(dir, 'json/jsontestsuite/test_transform')) {
    if (forms[name]) assert.equal(form(text), forms[name], name);
    if (name.startsWith('object_same_key')) assert.equal(form(text), undefined, name);
  }
});
