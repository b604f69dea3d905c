import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import test from 'node:test';
import * as agora from '../agora.js';
import * as index from '../index.js';
import * as node from '../node.js';
import * as tools from '../tools.js';

const folder = new URL('..', import.meta.url);
const read = (name) => readFileSync(new URL(`../${name}`, import.meta.url), 'utf8');

const exported = (file) => [...read(file).matchAll(/^export (?:class|function|const) (\w+)/gm)].map(([, name]) => name);

test('the declarations have what the modules export', () => {
  assert.deepEqual(exported('agora.d.ts').sort(), Object.keys(agora).sort());
  const files = ['agora.d.ts', 'chain.d.ts', 'client.d.ts', 'network.d.ts', 'proof.d.ts'];
  assert.deepEqual(files.flatMap(exported).sort(), Object.keys(index).sort());
  assert.deepEqual([...exported('node.d.ts'), ...Object.keys(index)].sort(), Object.keys(node).sort());
  assert.deepEqual(exported('tools.d.ts').sort(), Object.keys(tools).sort());
  const members = (type) => Object.getOwnPropertyNames(type.prototype).filter((name) => name !== 'constructor');
  const declared = `${read('agora.d.ts')}${read('client.d.ts')}${read('network.d.ts')}`;
  for (const name of [index.Relay, index.Client, index.Call, index.Network].flatMap(members)) {
    const isInternal = name === 'continueAs' || name === 'check';
    if (!isInternal) assert.match(declared, new RegExp(`^  (readonly )?${name}[?(:<]`, 'm'), name);
  }
});

test('every error has a code, and says whether a new try may succeed', () => {
  const cause = new Error('why'), errors = [new index.Refused('X', 'why'), new index.RelayError('X', 'why', {}),
    new index.UnknownOutcome({}, cause), new index.Unavailable(cause), new index.AgentError('X'), new index.Cancelled(),
    new index.Unacceptable('why'), new index.Plain('OFFER'), new index.Closed('OFFER'), new index.Gone(),
    new index.Unproven(), new index.Endless(), new index.NoProof({}, cause)];
  for (const err of errors) {
    assert.ok(typeof err.code === 'string' && typeof err.retryable === 'boolean', err.name);
    assert.equal(err.name, err.constructor.name);
    assert.ok(err.message.startsWith(`${err.code}: `), err.message);
  }
  const all = Object.values(index).filter((type) => type.prototype instanceof Error);
  assert.equal(all.length, errors.length);
});

test('the package has what it needs, and its version', () => {
  const about = JSON.parse(read('package.json')), lock = JSON.parse(read('package-lock.json'));
  const version = read('../../VERSION').trim();
  assert.deepEqual([about.version, lock.version, lock.packages[''].version], [version, version, version]);
  assert.equal(about.dependencies, undefined);
  assert.equal(about.private, undefined);
  for (const { types, default: main } of ['.', './node', './tools'].map((at) => about.exports[at])) {
    assert.ok(read(types) && read(main));
  }
  assert.equal(read('LICENSE'), read('../../LICENSE'));
  const [modules, declarations] = [/\.js$/, /\.d\.ts$/].map((kind) => readdirSync(folder).filter((n) => kind.test(n)));
  assert.deepEqual([about.files, modules.length, declarations.length], [['*.js', '*.d.ts'], 29, 8]);
});

test('what browsers load imports nothing of Node', () => {
  for (const name of readdirSync(folder).filter((n) => n.endsWith('.js') && !n.startsWith('node'))) {
    const text = read(name);
    for (const [, from] of text.matchAll(/from '([^']*)'/g)) assert.match(from, /^\.\/(?!node)\w+\.js$/, name);
    for (const word of ['import(', 'require(', 'Buffer.', 'process.', 'eval(', 'Function(']) {
      assert.ok(!text.includes(word), `${name}: ${word}`);
    }
  }
});

test('agora.js needs nothing but globals of browsers', () => {
  const text = read('agora.js');
  for (const word of ['import ', 'import(', 'require(', 'Buffer.', 'process.', 'eval(', 'Function(', 'innerHTML']) {
    assert.ok(!text.includes(word), word);
  }
});

test('lines have at most 120 characters', () => {
  const isText = (name) => /\.(m?js|ts|md)$/.test(name);
  const names = [...readdirSync(folder), ...readdirSync(new URL('.', import.meta.url)).map((name) => `test/${name}`)]
    .filter(isText);
  const long = names.flatMap((name) => read(name).split('\n').flatMap((line, i) =>
    line.length > 120 ? `${name}:${i + 1}` : []));
  assert.deepEqual(long, []);
});
