// The chain of a thread: who decides it, which message answers which, and what the messages prove (RELAYS §7).
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import test from 'node:test';
import { contentHash, verifyChain } from '../../../../../sdk/js/chain.js';
import { goTo, message, openPage, says, see, settled, until } from './lib/browser.mjs';
import { widest } from './lib/layout.mjs';
import { fresh, newAgent } from './lib/messages.mjs';
import { startRelay } from './lib/relay.mjs';

const PRICE = { price: { amount: 0.005, currency: 'USD' } };

// A relay, a client and an agent, and the home of their threads.
async function start(t) {
  const relay = await startRelay(t), { did } = await (await fetch(`${relay.url}/.well-known/agora.json`)).json();
  const [alice, bob] = await Promise.all(['Alice', 'Bob'].map((name) => newAgent(relay, name)));
  return { relay, alice, bob, home: { did, url: 'https://a.example' } };
}

// Posts REQUEST, OFFER, ACCEPT and RESULT, up to steps. change(type, meta) may return another meta.
async function talk({ alice, bob, home }, { steps = 4, change = (type, meta) => meta } = {}) {
  const thread = { id: fresh('thread') }, all = [];
  for (const [from, type, payload] of [
    [alice, 'REQUEST', { intent: 'echo' }], [bob, 'OFFER', PRICE], [alice, 'ACCEPT', {}],
    [bob, 'RESULT', { status: 'success' }],
  ].slice(0, steps)) {
    const re = all.length > 0 ? { re: await contentHash(all.at(-1)) } : {};
    const meta = change(type, { ttl: 86_400, home, ...re });
    const to = from === alice ? bob.did : alice.did;
    all.push(await from.send(type, { request_id: thread.id, ...payload }, { thread, to, meta }));
  }
  return { all, hash: `#/thread/${thread.id}?client=${alice.did}`, id: thread.id };
}

const link = (e, status) => `.chain li[data-of="${e.id}"][data-link="${status}"]`;

test('each link of a deal has a tick, and the deal can be saved', async (t) => {
  const parties = await start(t), { alice, bob, relay } = parties, { all, hash } = await talk(parties);
  const page = await openPage(t, relay.url, { hash });
  for (const e of all.slice(1)) await see(page, link(e, 'true'));
  assert.equal(await page.locator('.chain li').count(), 3);
  assert.match(await page.locator(link(all[2], 'true')).textContent(), /ACCEPT.*Alice.*answers.*OFFER/);
  await says(page, '.thread .facts', /decided by a\.example(?!, not by this relay)/);
  await says(page, '.chain-card .verdict[data-verified="true"]', /prove the deal.*0\.005 USD.*what was delivered/);
  const [file] = await Promise.all([page.waitForEvent('download'), page.locator('.chain-card button').click()]);
  assert.match(file.suggestedFilename(), /\.deal\.json$/);
  const deal = await verifyChain(JSON.parse(await readFile(await file.path(), 'utf8')));
  assert.deepEqual([deal.client, deal.agent, deal.status], [alice.did, bob.did, 'success']);

  // A thread without home has no chain.
  const old = await talk(parties, { change: (type, { ttl }) => ({ ttl }) });
  await goTo(page, old.hash);
  await see(page, message(old.all[3], '[data-verified="true"]'));
  assert.equal(await page.locator('.chain-card').count(), 0);
  assert.doesNotMatch(await page.locator('.thread').textContent(), /decided by/);

  // A chain grows with the thread.
  const next = await talk(parties, { steps: 1 }), thread = { id: next.id };
  await goTo(page, next.hash);
  await says(page, '.chain-card', /Nobody has answered yet/);
  const meta = { ttl: 86_400, home: parties.home, re: await contentHash(next.all[0]) };
  const offer = await bob.send('OFFER', { request_id: next.id, ...PRICE }, { thread, to: alice.did, meta });
  await see(page, link(offer, 'true'));
  assert.equal(await page.locator('.chain-card .verdict').count(), 0);
});

test('a message that answers none, or another one, has a cross', async (t) => {
  const parties = await start(t), page = await openPage(t, parties.relay.url);
  for (const [wrong, words, change, proves] of [
    ['OFFER', /is not in this thread/, (meta) => ({ ...meta, re: 'ab'.repeat(32) })],
    ['OFFER', /does not say/, ({ re, ...meta }) => meta],
    ['ACCEPT', /does not say/, ({ re, ...meta }) => meta],
    ['ACCEPT', /must not answer a\s*REQUEST/, (meta, root) => ({ ...meta, re: root })],
    ['RESULT', /another home/, ({ home, ...meta }) => meta, true], // the others still prove what was agreed
  ]) {
    let root;
    const { all, hash } = await talk(parties, { change: (type, meta) => {
      if (type === 'OFFER') root = meta.re;
      return type === wrong ? change(meta, root) : meta;
    } });
    await goTo(page, hash);
    const broken = all.find((e) => e.type === wrong);
    assert.match(await (await see(page, link(broken, 'false'))).textContent(), words);
    assert.equal(await page.locator('.chain li[data-link="false"]').count(), 1);
    const verdict = page.locator('.chain-card .verdict[data-verified="true"]');
    assert.equal(await verdict.count(), proves ? 1 : 0, wrong);
    if (proves) assert.match(await verdict.textContent(), /who was chosen\./);
  }
});

test('a link to a message that has expired is unknown', async (t) => {
  const parties = await start(t);
  const { all, hash } = await talk(parties, { change: (type, meta) => type === 'OFFER' ? { ...meta, ttl: 1 } : meta });
  const page = await openPage(t, parties.relay.url, { hash });
  await until('the OFFER has expired', async () => {
    await page.reload();
    await settled(page);
    return await page.locator(`main ${message(all[1])}`).count() === 0;
  });
  assert.match(await (await see(page, link(all[2], 'unknown'))).textContent(), /does not show any more/);
  assert.equal(await page.locator('.chain-card .verdict').count(), 0);
});

test('a continuation leads to the first request of its job, if the page knows that', async (t) => {
  const parties = await start(t), first = await talk(parties, { steps: 1 }), root = await contentHash(first.all[0]);
  const continuing = (hash) => talk(parties, { steps: 1, change: (type, meta) => ({ ...meta, continues: hash }) });
  const next = await continuing(root), other = await continuing('cd'.repeat(32));
  const page = await openPage(t, parties.relay.url, { hash: '#/feed' });
  await see(page, message(first.all[0]));
  await goTo(page, next.hash);
  await says(page, '.thread .facts', new RegExp(`${root.slice(0, 8)}.*the first request of this job`));
  await (await see(page, '.thread .facts a:has(.hash)')).click();
  await page.waitForURL((url) => url.hash.startsWith(`#/thread/${first.id}?client=`));
  await goTo(page, other.hash);
  await says(page, '.thread .facts', /cdcdcdcd.*the first request of this job/);
  assert.equal(await page.locator('.thread .facts a:has(.hash)').count(), 0);
});

test('many offers are folded, and fit a phone', async (t) => {
  const parties = await start(t), { relay, alice, home } = parties;
  const thread = { id: fresh('thread') }, meta = { ttl: 86_400, home };
  const request = await alice.send('REQUEST', { request_id: thread.id, intent: 'echo' }, { thread, meta });
  const re = await contentHash(request);
  for (let n = 0; n < 13; n++) {
    const agent = await newAgent(relay, `Agent ${n} with a name that is quite long`);
    await agent.send('OFFER', { request_id: thread.id, ...PRICE }, { thread, to: alice.did, meta: { ...meta, re } });
  }
  const page = await openPage(t, relay.url,
    { hash: `#/thread/${thread.id}?client=${alice.did}`, viewport: { width: 390, height: 844 } });
  await (await see(page, '.chain-card summary')).click();
  await until('13 links', async () => await page.locator('.chain li[data-link="true"]:visible').count() === 13);
  assert.deepEqual(await widest(page), []);
});
