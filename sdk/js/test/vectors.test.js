import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import test from 'node:test';
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
