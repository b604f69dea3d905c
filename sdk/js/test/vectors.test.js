import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import test from 'node:test';
import { verifyChain } from '../chain.js';
import { Refused } from '../agora.js';
import { files, run } from './vectors.js';

const folder = new URL('../../../testvectors/', import.meta.url);
const load = (name) => readFileSync(new URL(name, folder), 'utf8');

for (const name of files) {
  test(`${name} passes`, async () => {
    const { passed, failures } = await run(name, load(name));
    assert.deepEqual(failures, []);
    assert.ok(passed > 10);
  });
}

test('the files are all vector files of the project', () => {
  const found = readdirSync(folder).filter((name) => name.endsWith('.json') && name !== 'protocol.json'); // has tables
  assert.deepEqual(found.sort(), files.toSorted());
});

test('a vector with another result fails', async () => {
  for (const name of files) {
    const { vectors } = JSON.parse(load(name)), v = vectors[0].steps?.[0] ?? vectors[0];
    v.expect = 'reject'; // the first vector of each file is good
    const { passed, failures } = await run(name, { vectors: [vectors[0]] });
    assert.equal(passed, 0, name);
    assert.match(failures[0], /accepted, though/, name);
  }
  assert.deepEqual((await run('verify.json', '{"vectors":[]}')).failures, ['the file has no vectors']);
  const wrongCode = JSON.parse(load('verify.json')).vectors.find((v) => v.expect === 'reject');
  wrongCode.code = 'INTERNAL_ERROR';
  assert.match((await run('verify.json', { vectors: [wrongCode] })).failures[0], /the code is/);
});

test('the error of a chain says which message is wrong', async () => {
  const { vectors } = JSON.parse(load('relays.json')), parse = (v) => JSON.parse(Buffer.from(v.chain, 'base64'));
  const wrong = (index, type) => (err) => err instanceof Refused && err.code === 'INVALID_PROOF'
    && err.details.index === index && err.message.includes(`message ${index + 1}, ${type}: `);
  for (const [index, type] of [[1, 'OFFER'], [2, 'ACCEPT'], [3, 'RESULT']]) {
    const broken = vectors.filter((v) => v.name.startsWith(`chain-${type.toLowerCase()}-`));
    assert.ok(broken.length > 5, type);
    for (const v of broken) await assert.rejects(verifyChain(parse(v)), wrong(index, type), v.name);
  }
  for (const chain of [undefined, {}, 'chain', []]) await assert.rejects(verifyChain(chain), /two to four/);
  await assert.rejects(verifyChain([null, null]), wrong(0, 'REQUEST'));
});
