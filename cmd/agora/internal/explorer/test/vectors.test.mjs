// sdk/js/agora.js passes the project's test vectors in a browser too, under the policy of the page.
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import path from 'node:path';
import test from 'node:test';
import { openPage } from './lib/browser.mjs';
import { startRelay, startServer } from './lib/relay.mjs';

const ROOT = path.resolve(import.meta.dirname, '../../../../..');
const TYPES = { '.js': 'text/javascript', '.mjs': 'text/javascript', '.json': 'application/json' };

test('all vectors pass in Chromium', { timeout: 120_000 }, async (t) => {
  const relay = await startRelay(t), policy = (await fetch(relay.url)).headers.get('content-security-policy');
  const url = await startServer(t, async ({ url }, response) => {
    const name = path.join(ROOT, path.normalize(decodeURIComponent(new URL(url, 'http://x').pathname)));
    const type = TYPES[path.extname(name)] ?? 'text/html';
    const body = type === 'text/html' ? '<!doctype html>' : await readFile(name).catch(() => undefined);
    response.writeHead(body === undefined ? 404 : 200, { 'content-type': type, 'content-security-policy': policy });
    response.end(body);
  });
  const page = await openPage(t, url, { allow: (what) => what.includes('favicon.ico') });
  const results = await page.evaluate(async () => {
    const { files, run } = await import('/sdk/js/test/vectors.js');
    const all = {};
    for (const name of files) all[name] = await run(name, await (await fetch(`/testvectors/${name}`)).text());
    return all;
  });
  assert.ok(Object.keys(results).length >= 9, `only the files ${Object.keys(results)}`);
  for (const [name, { passed, failures }] of Object.entries(results)) {
    assert.deepEqual(failures, [], name);
    assert.ok(passed > 10, `${name}: only ${passed} vectors`);
  }
});
