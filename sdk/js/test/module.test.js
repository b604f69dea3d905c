import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import test from 'node:test';
import * as agora from '../agora.js';

const read = (name) => readFileSync(new URL(`../${name}`, import.meta.url), 'utf8');

test('agora.d.ts declares what agora.js exports', () => {
  const declared = [...read('agora.d.ts').matchAll(/^export (?:class|function|const) (\w+)/gm)].map(([, name]) => name);
  assert.deepEqual(declared.sort(), Object.keys(agora).sort());
});

test('agora.js needs nothing but globals of browsers', () => {
  const text = read('agora.js');
  for (const word of ['import ', 'import(', 'require(', 'Buffer.', 'process.', 'eval(', 'Function(', 'innerHTML']) {
    assert.ok(!text.includes(word), word);
  }
});

test('lines have at most 120 characters', () => {
  const names = ['agora.js', 'agora.d.ts', 'README.md',
    ...readdirSync(new URL('.', import.meta.url)).map((name) => `test/${name}`)];
  const long = names.flatMap((name) => read(name).split('\n').flatMap((line, i) =>
    line.length > 120 ? `${name}:${i + 1}` : []));
  assert.deepEqual(long, []);
});
