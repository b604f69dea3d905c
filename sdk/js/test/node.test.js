// Key files and cursor files.
import assert from 'node:assert/strict';
import { chmod, mkdtemp, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import { pathToFileURL } from 'node:url';
import { FileCursor, formatKeyFile, identity, loadKey, loadOrCreateKey, saveKey } from '../node.js';
import { alice } from './helpers.js';

async function folder(t) {
  const made = await mkdtemp(join(tmpdir(), 'agora-js-'));
  t.after(() => rm(made, { recursive: true }));
  return made;
}

test('a key is saved, only for its owner, and loaded again', async (t) => {
  const dir = await folder(t), path = join(dir, 'key.jwk');
  await saveKey(path, alice);
  assert.equal((await stat(path)).mode & 0o777, 0o600);
  assert.equal(await readFile(path, 'utf8'), formatKeyFile(alice));
  assert.deepEqual(await loadKey(path), alice);
  assert.deepEqual(await loadKey(pathToFileURL(path)), alice);
  await assert.rejects(saveKey(path, await identity()), (err) => err.code === 'EEXIST' && !err.retryable &&
    err.message.includes('not overwritten'));
  assert.deepEqual(await loadKey(path), alice);
  assert.deepEqual(await readdir(dir), ['key.jwk'], 'no temporary file is left');
});

test('loadKey refuses what it should', async (t) => {
  const dir = await folder(t), path = join(dir, 'key.jwk');
  await assert.rejects(loadKey(path), (err) => err.code === 'ENOENT' && err.message.includes('agora keygen'));
  await saveKey(path, alice);
  for (const mode of [0o640, 0o604, 0o610]) {
    await chmod(path, mode);
    await assert.rejects(loadKey(path), (err) => err.code === 'INVALID_KEY' && err.message.includes('chmod 600'));
  }
  await writeFile(path, '{"kty":"OKP"}');
  await chmod(path, 0o600);
  await assert.rejects(loadKey(path), (err) => err.code === 'INVALID_KEY');
  await assert.rejects(loadOrCreateKey(path), (err) => err.code === 'INVALID_KEY', 'it never replaces a file');
});

test('several programs that create the same key get the same one', async (t) => {
  const path = join(await folder(t), 'key.jwk');
  const all = await Promise.all(Array.from({ length: 8 }, () => loadOrCreateKey(path)));
  assert.equal(new Set(all.map(({ did }) => did)).size, 1);
  assert.deepEqual(await loadOrCreateKey(path), all[0]);
  await assert.rejects(loadOrCreateKey(join(path, 'below')), (err) => err.code === 'ENOTDIR');
});

test('a cursor file is replaced in one step', async (t) => {
  const dir = await folder(t), path = join(dir, 'cursor'), cursor = new FileCursor(path);
  assert.equal(await cursor.load(), undefined);
  await cursor.save('a-1');
  await cursor.save('a-2');
  assert.equal(await cursor.load(), 'a-2');
  assert.equal(await readFile(path, 'utf8'), 'a-2\n');
  assert.equal((await stat(path)).mode & 0o777, 0o600);
  assert.deepEqual(await readdir(dir), ['cursor']);
  await writeFile(path, 'x'.repeat(2000));
  await assert.rejects(cursor.load(), (err) => err.code === 'INVALID_CURSOR');
  await assert.rejects(new FileCursor(join(dir, 'none', 'cursor')).save('a'), (err) => err.code === 'ENOENT');
});
