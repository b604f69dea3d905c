// The page as files of any web server: it asks for a relay, reads from it, and says what its operator must allow.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import path from 'node:path';
import test from 'node:test';
import { promisify } from 'node:util';
import { connection, goTo, isRefusal, message, openPage, says, see, settled } from './lib/browser.mjs';
import { widest } from './lib/layout.mjs';
import { newAgent } from './lib/messages.mjs';
import { AGORA, folder, restart, startRelay, startServer } from './lib/relay.mjs';

const TYPES = { '.html': 'text/html', '.js': 'text/javascript', '.css': 'text/css', '.svg': 'image/svg+xml' };

/** Writes the page as files, serves them in a folder of a web server, and returns their URL. */
async function startFiles(t, ...args) {
  const out = path.join(await folder(t), 'out');
  await promisify(execFile)(AGORA, ['page', ...args, '--out', out]);
  const server = await startServer(t, async (request, response) => {
    const name = new URL(request.url, 'http://x').pathname.replace(/^\/some\//, '').replace(/^$/, 'index.html');
    const content = await readFile(path.join(out, name)).catch(() => undefined);
    response.writeHead(content ? 200 : 404, { 'content-type': TYPES[path.extname(name)] });
    response.end(content);
  });
  return `${server}/some`;
}

const open = (t, url, relay, query = '', more = {}) => openPage(t, url, { hash: query, ...more,
  allow: (what) => what.startsWith(`request: ${relay.url}/`) || more.allow?.(what) });

test('files of the page ask for a relay, and show it', async (t) => {
  const url = await startFiles(t), { origin } = new URL(url);
  const relay = await startRelay(t, { flags: ['--cors-origin', origin] }), alice = await newAgent(relay, 'Alice');
  const e = await alice.ask();
  const page = await open(t, url, relay);
  await see(page, 'h1:has-text("Which relay?")');
  assert.deepEqual(await widest(page), []);
  for (const id of ['#connection', '#key-button']) await see(page, id, 'hidden');
  await page.fill('#relay-url', 'no url');
  await page.click('main button');
  await see(page, 'main [role="alert"]');
  await page.fill('#relay-url', `${relay.url}/`);
  await page.click('main button');
  await connection(page, 'live');
  assert.equal(new URL(page.url()).searchParams.get('relay'), relay.url);
  await goTo(page, '#/feed');
  await see(page, message(e, '[data-verified="true"]'));
  await says(page, '#host', new RegExp(`^${new URL(relay.url).host}$`));
  for (const [hash, shown] of [['#/agents', 'h1'], ['#/api/getEvents', '[data-operation="getEvents"]']]) {
    await goTo(page, hash);
    await see(page, `main ${shown}`);
    await settled(page);
  }
  assert.ok((await page.locator('main').textContent()).includes(relay.url), 'commands name the relay');
});

test('files of the page say how a relay that does not answer lets them read', async (t) => {
  const relay = await startRelay(t), url = await startFiles(t, relay.url), { origin } = new URL(url);
  const allow = (what) => isRefusal(what) || what.includes('CORS policy');
  const page = await open(t, url, relay, '', { allow, viewport: { width: 375, height: 800 } });
  await says(page, '#no-answer', new RegExp(`${relay.url} does not answer[^]*agora serve --cors-origin ${origin}`));
  assert.deepEqual(await widest(page), []);
  await relay.stop();
  await restart(t, { ...relay, flags: ['--cors-origin', origin] });
  await connection(page, 'live');
  await see(page, '#no-answer', 'hidden');
});
