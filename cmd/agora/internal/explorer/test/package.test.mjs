// The package in sdk/js works in a page of another origin than the relay's, as its README says.
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import path from 'node:path';
import test from 'node:test';
import { openPage, until } from './lib/browser.mjs';
import { newAgent } from './lib/messages.mjs';
import { startRelay, startServer } from './lib/relay.mjs';

const PACKAGE = path.resolve(import.meta.dirname, '../../../../../sdk/js');
const IMPORTS = { imports: { 'agora-relay': '/index.js' } };

// Serves the modules of the package, and a page whose script is the README's, for this relay. Opens the page. Returns
// it with its origin, and a function that waits for a line that it prints.
async function openProgram(t, relayURL) {
  const readme = await readFile(path.join(PACKAGE, 'README.md'), 'utf8');
  const [program] = readme.match(/^import [^\n]* from 'agora-relay';\n[^]*?(?=^```)/m);
  const script = program.replace('https://relay.example', relayURL);
  assert.ok(script.includes(relayURL), 'the README names https://relay.example');
  const origin = await startServer(t, async ({ url }, response) => {
    const isScript = url.endsWith('.js'), isModule = isScript && url !== '/program.js';
    response.writeHead(200, { 'content-type': isScript ? 'text/javascript' : 'text/html' });
    if (isModule) response.end(await readFile(path.join(PACKAGE, path.basename(url))));
    else if (url === '/program.js') response.end(script);
    else {
      response.end(`<!doctype html><link rel="icon" href="data:,">
        <script type="importmap">${JSON.stringify(IMPORTS)}</script><script type="module" src="/program.js"></script>`);
    }
  });
  const isOther = (what) => what.startsWith(`request: ${relayURL}`) || what.startsWith('console: ');
  const page = await openPage(t, origin, { allow: isOther, hash: '', init: [() => {
    globalThis.lines = [];
    for (const name of ['log', 'warn']) {
      const print = console[name];
      console[name] = (...args) => { globalThis.lines.push(args.join(' ')); print(...args); };
    }
  }] });
  const printed = (words) => until(`the page prints ${words}`, async () =>
    (await page.evaluate(() => globalThis.lines)).find((line) => words.test(line)));
  return { page, origin, printed };
}

test('the program of the README reads a relay that allows its origin', async (t) => {
  const relay = await startRelay(t, { flags: ['--cors-origin', '*'] }), alice = await newAgent(relay, 'Alice');
  const { page, printed } = await openProgram(t, relay.url);
  await until('the page has a cursor', () => page.evaluate(() => localStorage.getItem('cursor')));
  const key = JSON.parse(await page.evaluate(() => localStorage.getItem('key')));
  await alice.send('REQUEST', { request_id: 'r', intent: 'echo' }, { to: key.kid, thread: { id: 'to-the-page' } });
  assert.equal(await printed(/^REQUEST/), 'REQUEST');
});

test('at a relay that does not allow the origin, the error says what is missing', async (t) => {
  const relay = await startRelay(t), { origin, printed } = await openProgram(t, relay.url);
  const line = await printed(/cannot be reached/);
  assert.ok(line.includes(`the browser may not let this page read its answers (CORS)`), line);
  assert.ok(line.includes(`agora serve --cors-origin ${origin}`), line);
});
