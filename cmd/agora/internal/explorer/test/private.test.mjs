// Private relays, keys, and pages without a secure context.
import assert from 'node:assert/strict';
import { writeFile } from 'node:fs/promises';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import test from 'node:test';
import { formatKeyFile } from '../../../../../sdk/js/agora.js';
import { connection, goTo, isRefusal, message, openPage, says, see, until } from './lib/browser.mjs';
import { conversation, newAgent, seed } from './lib/messages.mjs';
import { folder, startPage, startRelay } from './lib/relay.mjs';

/** An address of this machine that is not loopback. */
function outside() {
  const all = Object.values(os.networkInterfaces()).flat().filter((a) => a.family === 'IPv4' && !a.internal);
  assert.ok(all.length > 0, 'this machine has only loopback addresses');
  return all[0].address;
}

/** A free port of an address. */
const freePort = (host) => new Promise((resolve, reject) => {
  const server = net.createServer().on('error', reject).listen(0, host, () => {
    const { port } = server.address();
    server.close(() => resolve(port));
  });
});

/** Starts a private relay at an address that others can reach. */
async function startPrivate(t, host) {
  const port = await freePort(host);
  const flags = ['--reads', 'parties', '--transparency', 'on', '--public-url', `http://${host}:${port}`];
  return startRelay(t, { host, port, flags });
}

async function keyFile(t, a) {
  const file = path.join(await folder(t), 'my.key');
  await writeFile(file, formatKeyFile(a.me), { mode: 0o600 });
  return file;
}

async function loadKey(page, file) {
  await page.click('#key-button');
  await page.setInputFiles('#key-file', file);
  await page.locator('dialog').waitFor({ state: 'detached' });
}

/** Alice and Bob talk in the open and sealed, Carol and Dave talk to each other, and Carol asks everybody. */
async function talk(relay) {
  const names = ['Alice', 'Bob', 'Carol', 'Dave'];
  const [alice, bob, carol, dave] = await Promise.all(names.map((name) => newAgent(relay, name)));
  const mine = conversation(alice, bob), theirs = conversation(carol, dave);
  const sealed = conversation(alice, bob, { options: { sealed: true } });
  const own = [await mine.request(), await mine.offer()];
  own.push(await sealed.request({ params: { text: 'nobody else reads this' } }));
  const answer = await sealed.offer({ plan: 'a sealed plan' });
  const hidden = [await theirs.request(), await theirs.offer()];
  const broadcast = await carol.ask();
  return { alice, bob, mine, sealed, own, answer, hidden, broadcast };
}

/** Reads as Alice, who sees what she has sent and received, opened, and nothing else. */
async function readsAsAlice(page, { mine, sealed, own, answer, hidden, broadcast }) {
  await goTo(page, '#/feed');
  for (const e of [...own, answer, broadcast]) await see(page, message(e, '[data-verified="true"]'));
  await see(page, `${message(answer)} >> text=a sealed plan`);
  for (const e of hidden) assert.equal(await page.locator(message(e)).count(), 0);
  await goTo(page, mine.hash);
  await see(page, `[data-thread="${mine.id}"][data-state="PENDING"]`);
  await goTo(page, sealed.hash);
  await see(page, `main ${message(answer)} >> text=a sealed plan`);
}

test('a private relay shows broadcasts to everybody, and more with a key', async (t) => {
  const relay = await startRelay(t, { flags: ['--reads', 'parties'] }), said = await talk(relay);
  const file = await keyFile(t, said.alice), sent = [];
  const page = await openPage(t, relay.url, { hash: '#/feed', allow: isRefusal });
  page.on('request', (r) => sent.push([r.url(), JSON.stringify(r.headers()), r.postData() ?? ''].join(' ')));
  await see(page, message(said.broadcast, '[data-verified="true"]'));
  for (const e of [...said.own, ...said.hidden]) assert.equal(await page.locator(message(e)).count(), 0);
  await goTo(page, said.mine.hash);
  await says(page, 'main', /no such thread/i);
  await loadKey(page, file);
  await readsAsAlice(page, said);
  const news = await said.mine.accept();
  await goTo(page, '#/feed');
  await see(page, message(news, '[data-verified="true"]'));

  // The key is neither sent nor stored.
  assert.ok(sent.some((r) => r.includes('Agora ')), 'no read was signed');
  const secret = Buffer.from(said.alice.me.seed);
  const forms = ['base64url', 'base64', 'hex'].map((form) => secret.toString(form));
  for (const form of forms) assert.ok(form.length > 20 && !sent.some((r) => r.includes(form)), 'a request has the key');
  const stored = await page.evaluate(async () => [...Object.keys(localStorage), ...Object.keys(sessionStorage),
    document.cookie, ...await indexedDB.databases(), ...await caches.keys()]);
  assert.deepEqual(stored, ['']);

  // A key can be forgotten, and is gone after a reload.
  await page.click('#key-button');
  await page.click('dialog button:has-text("Forget")');
  await until('that the messages are hidden', async () => await page.locator(message(news)).count() === 0);
  await see(page, message(said.broadcast));
});

test('files that are no keys are refused', async (t) => {
  const relay = await startRelay(t), page = await openPage(t, relay.url), place = await folder(t);
  await connection(page, 'live');
  await page.click('#key-button');
  const files = { empty: '', text: 'no key', large: 'x'.repeat(1 << 20), other: '{"kty":"OKP","crv":"X25519"}' };
  for (const [name, content] of Object.entries(files)) {
    const file = path.join(place, name);
    await writeFile(file, content);
    await page.setInputFiles('#key-file', file);
    await says(page, 'dialog [role="alert"]', /.{10}/);
    await page.evaluate(() => { document.querySelector('dialog [role="alert"]').textContent = ''; });
  }
});

test('sealed messages are shown as sealed to others', async (t) => {
  const relay = await startRelay(t), said = await talk(relay);
  const page = await openPage(t, relay.url, { hash: said.sealed.hash });
  const shown = await see(page, `main ${message(said.answer, '[data-verified="true"]')}`);
  assert.match(await shown.textContent(), /sealed/i);
  assert.doesNotMatch(await page.content(), /a sealed plan|nobody else reads this/);
});

test('without a secure context all marks are unknown, and no key can be loaded', async (t) => {
  const host = outside(), relay = await startRelay(t, { host });
  const { done } = await seed(relay);
  const allow = (what) => what.includes('Cross-Origin-Opener-Policy'); // browsers ignore it there, and say so
  const page = await openPage(t, relay.url, { hash: '#/feed', allow });
  assert.equal(await page.evaluate(() => isSecureContext), false);
  await see(page, '#feed-list [data-type="RESULT"][data-verified="unknown"]');
  await until('all marks', async () => await page.locator('[data-verified="pending"]').count() === 0);
  const marks = await page.locator('[data-verified]').evaluateAll((all) => all.map((e) => e.dataset.verified));
  assert.ok(marks.length > 5 && marks.every((mark) => mark === 'unknown'), String(marks));
  await page.locator('#feed-list [data-type="RESULT"] [data-mark]').first().click();
  await says(page, 'dialog', /WebCrypto|secure|https/i);
  await page.keyboard.press('Escape');
  await page.click('#key-button');
  await says(page, 'dialog', new RegExp(`agora page ${relay.url}`));
  assert.equal(await page.locator('#key-file').count(), 0);
  await page.keyboard.press('Escape');
  await goTo(page, done.hash);
  await see(page, 'main [data-type="RESULT"][data-verified="unknown"]');
  assert.equal(await page.locator('#seed:visible').count(), 0);
});

test('agora page shows a remote relay, and takes a key', async (t) => {
  const relay = await startPrivate(t, outside()), said = await talk(relay), url = await startPage(t, relay.url);
  const page = await openPage(t, url, { hash: '#/feed', allow: isRefusal });
  await see(page, message(said.broadcast, '[data-verified="true"]'));
  await says(page, 'header', new RegExp(new URL(relay.url).host));
  for (const e of said.own) assert.equal(await page.locator(message(e)).count(), 0);
  await loadKey(page, await keyFile(t, said.alice));
  await readsAsAlice(page, said);
  await page.click(`main ${message(said.answer)} .proof > summary`); // a signed read
  await see(page, `main ${message(said.answer)} .verdict[data-verified="true"]`);
  await relay.stop();
  await connection(page, 'lost');
});
