// Reads the files and the conversations that other versions of the three clients have made: testvectors/fixtures.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, mkdtempSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { gunzipSync } from 'node:zlib';
import { isSealed, open, verify } from '../agora.js';
import { FileCursor, loadKey } from '../node.js';
import * as index from '../index.js';
import * as node from '../node.js';
import { folder as temporary, needsRelay, run, startRelay } from './real.js';

const folder = new URL('../../../testvectors/fixtures/', import.meta.url);
const entries = readdirSync(folder, { withFileTypes: true });
const versions = entries.filter((entry) => entry.isDirectory()).map((entry) => entry.name);
assert.ok(versions.length > 0);

for (const version of versions) {
  for (const language of ['go', 'js', 'python']) {
    test(`${version}: what the client in ${language} has made`, async () => {
      const recorded = JSON.parse(gunzipSync(readFileSync(new URL(`${version}/${language}.json.gz`, folder))));
      const place = mkdtempSync(join(tmpdir(), 'agora-'));
      for (const [name, text] of Object.entries(recorded.files)) {
        writeFileSync(join(place, name), text, { mode: 0o600 });
      }
      const client = await loadKey(join(place, `${language}-client.key`));
      await loadKey(join(place, `${language}-agent.key`));
      if (language !== 'go') {
        assert.match(await new FileCursor(join(place, `${language}-agent.cursor`)).load(), /^[0-9a-f]{8}-[0-9]+$/);
      }
      for (const events of [recorded.plain, recorded.sealed]) {
        for (const e of events) await verify(e);
        assert.deepEqual(events.map((e) => e.type), ['REQUEST', 'OFFER', 'ACCEPT', 'RESULT']);
        const result = events.at(-1);
        const { output } = isSealed(result) ? await open(result, client) : result.payload;
        assert.equal(output, `HELLO, ${language.toUpperCase()}`);
      }
    });
  }
}

const lines = (file) => gunzipSync(readFileSync(new URL(file, folder))).toString().trim().split('\n');

for (const version of versions) {
  test(`${version}: every exported name is still there`, () => {
    const here = new Set([...Object.keys(index), ...Object.keys(node).map((name) => `node:${name}`)]);
    const promised = lines(`${version}/js.txt.gz`);
    assert.ok(promised.length > 20);
    assert.deepEqual(promised.filter((name) => !here.has(name)), []);
  });

  if (version === JSON.parse(readFileSync(new URL('../package.json', import.meta.url))).version) continue;
  test(`${version}: a client of its package hires agents of both versions`, { timeout: 120_000 }, async (t) => {
    if (!needsRelay(t)) return;
    const place = await temporary(t), relay = await startRelay(t);
    execFileSync('tar', ['-xzf', fileURLToPath(new URL(`${version}/packages.tar.gz`, folder)), '-C', place]);
    const old = join(place, 'js', 'node.js'), current = fileURLToPath(new URL('../node.js', import.meta.url));
    const program = fileURLToPath(new URL('party.mjs', folder));
    const party = (role, name, PACKAGE) => run(t, process.execPath, [program, role, name],
      { cwd: place, env: { ...process.env, PACKAGE, AGORA_RELAY: relay } });
    for (const [name, agent] of [['old', old], ['new', current]]) {
      const working = party('agent', name, agent);
      const hasKey = () => existsSync(join(place, `${name}-agent.key`));
      for (let i = 0; i < 3000 && !hasKey(); i++) await new Promise((done) => { setTimeout(done, 20); });
      await party('client', name, old).finish();
      await working.kill();
    }
  });
}
