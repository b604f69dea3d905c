// The page through restarts, outages and limits.
import assert from 'node:assert/strict';
import test from 'node:test';
import { connection, goTo, isRefusal, message, openPage, says, see, shownIds, until } from './lib/browser.mjs';
import { conversation, newAgent, seed } from './lib/messages.mjs';
import { restart, startProxy, startRelay } from './lib/relay.mjs';

/** Posts n broadcasts and returns their ids, the newest first. */
async function broadcast(a, n) {
  const ids = [];
  for (let i = 0; i < n; i++) ids.unshift((await a.ask()).id);
  return ids;
}

/** Waits until the feed shows exactly these ids, in this order. */
async function shows(page, ids) {
  await see(page, message(ids[0]));
  await until('all messages', async () => (await shownIds(page)).length === ids.length);
  assert.deepEqual(await shownIds(page), ids);
}

// Runs in the page: notes when each poll begins and ends.
function watchPolls() {
  globalThis.polls = [];
  const { fetch } = globalThis;
  globalThis.fetch = async (...args) => {
    const path = String(args[0]), poll = { path, began: performance.now(), ended: Infinity };
    if (!/\/events\?.*cursor=/.test(path)) return fetch(...args);
    globalThis.polls.push(poll);
    args[1].signal.addEventListener('abort', () => { poll.ended = Math.min(poll.ended, performance.now()); });
    try { return await fetch(...args); } finally { poll.ended = Math.min(poll.ended, performance.now()); }
  };
}

test('a restart of the relay is shown and survived', async (t) => {
  const relay = await startRelay(t), alice = await newAgent(relay);
  const page = await openPage(t, relay.url, { hash: '#/feed', allow: isRefusal });
  const first = await broadcast(alice, 3);
  await shows(page, first);
  await relay.kill();
  await connection(page, 'lost');
  const again = await restart(t, relay);
  await connection(page, 'live');
  const next = await broadcast(alice, 3);
  await shows(page, [...next, ...first]);
  await connection(page, 'live');
  await again.stop();
  await connection(page, 'lost');
  await restart(t, relay);
  const last = await broadcast(alice, 1);
  await shows(page, [...last, ...next, ...first]);
});

test('a relay that begins again with an empty database is shown from its beginning', async (t) => {
  const relay = await startRelay(t), alice = await newAgent(relay);
  const page = await openPage(t, relay.url, { hash: '#/feed', allow: isRefusal });
  await shows(page, await broadcast(alice, 3));
  await relay.stop();
  await startRelay(t, { port: relay.port });
  await shows(page, await broadcast(alice, 2));
  await says(page, 'main', /database/);
});

test('a lost network is shown and survived', async (t) => {
  const relay = await startRelay(t), { done } = await seed(relay), alice = await newAgent(relay);
  const page = await openPage(t, relay.url, { hash: '#/feed', allow: isRefusal });
  await see(page, '#feed-list [data-type="RESULT"]');
  const before = await shownIds(page);
  await page.context().setOffline(true);
  const missed = await broadcast(alice, 4);
  await connection(page, 'lost');
  await page.context().setOffline(false);
  await shows(page, [...missed, ...before]);
  await goTo(page, done.hash);
  await see(page, `[data-thread="${done.id}"]`);
});

for (const status of [429, 503]) {
  test(`${status} with Retry-After is obeyed`, async (t) => {
    const relay = await startRelay(t), alice = await newAgent(relay), proxy = await startProxy(t, relay);
    const page = await openPage(t, proxy.url, { hash: '#/feed', allow: isRefusal });
    await connection(page, 'live');
    const refused = [], error = status === 429 ? 'RATE_LIMITED' : 'UNAVAILABLE';
    proxy.answer = ({ url }) => {
      if (url.startsWith('/page') || url === '/') return undefined;
      refused.push(performance.now());
      return { status, headers: { 'retry-after': '3' }, body: { ok: false, error, message: 'wait', retryable: true } };
    };
    const [id] = await broadcast(alice, 1); // ends a poll that waits; the next one is refused
    await connection(page, 'limited');
    const before = refused.length; // requests that were on their way when the page learned of the refusal
    for (const hash of ['#/', '#/agents', '#/feed', '#/']) await goTo(page, hash); // views that read, too
    await until('a second attempt', () => refused.length > before && refused.at(-1) - refused[0] > 2500);
    const early = refused.slice(before).filter((at) => at - refused[0] < 2900);
    assert.equal(early.length, 0, `requests after ${refused.map((at) => Math.round(at - refused[0]))} ms`);
    proxy.answer = () => undefined;
    await connection(page, 'live');
    await goTo(page, '#/feed');
    const next = await broadcast(alice, 1);
    await shows(page, [...next, id]);
  });
}

test('polls begin at least 250 ms apart, one at a time', async (t) => {
  const relay = await startRelay(t), { done, bob } = await seed(relay), alice = await newAgent(relay);
  const page = await openPage(t, relay.url, { hash: '#/feed', init: [watchPolls] });
  await connection(page, 'live');
  const flood = setInterval(() => broadcast(alice, 1), 40);
  const filtered = ['#/feed?type=REQUEST', `#/feed?sender=${bob.did}`];
  const routes = ['#/', '#/feed', done.hash, filtered[0], '#/agents', filtered[1], '#/verify', '#/'];
  for (const hash of routes) {
    await goTo(page, hash);
    await page.waitForTimeout(500);
  }
  clearInterval(flood);
  await page.waitForTimeout(1500);
  const polls = await page.evaluate(() => globalThis.polls);
  assert.ok(polls.length > 8, `only ${polls.length} polls`);
  for (let i = 1; i < polls.length; i++) {
    const [a, b] = [polls[i - 1], polls[i]], apart = b.began - a.began;
    assert.ok(apart > 245, `two polls begin ${apart.toFixed()} ms apart: ${a.path} ${b.path}`);
    assert.ok(b.began >= a.ended - 1, `two polls at a time: ${a.path} ${b.path}`);
  }
  assert.equal(polls.at(-1).ended, Infinity, 'no poll waits');
});

test('a paused feed resumes without a gap', async (t) => {
  const relay = await startRelay(t), alice = await newAgent(relay);
  const page = await openPage(t, relay.url, { hash: '#/feed' });
  const first = await broadcast(alice, 3);
  await shows(page, first);
  await page.click('#feed-pause');
  await connection(page, 'paused');
  const missed = await broadcast(alice, 5);
  await page.waitForTimeout(1500);
  assert.deepEqual(await shownIds(page), first);
  await page.click('#feed-pause');
  await shows(page, [...missed, ...first]);
  await connection(page, 'live');
});

test('filters show what matches, also later messages', async (t) => {
  const relay = await startRelay(t), { alice, bob, carol, done } = await seed(relay);
  const page = await openPage(t, relay.url, { hash: '#/feed' });
  await see(page, '#feed-list [data-type="RESULT"]');
  const all = await page.locator('#feed-list [data-id]').count();
  const types = () => page.locator('#feed-list [data-id]').evaluateAll((rows) => rows.map((r) => r.dataset.type));
  const only = async (what, check, n) => until(what, async () => {
    const seen = await types();
    return seen.length === n && seen.every(check);
  });
  await page.selectOption('#filter-type', 'REQUEST');
  await only('REQUESTs', (type) => type === 'REQUEST', 4);
  const more = conversation(alice, carol, { intent: 'echo' });
  await more.request();
  await more.offer();
  await only('the new REQUEST', (type) => type === 'REQUEST', 5);
  await page.selectOption('#filter-type', '');
  await page.fill('#filter-thread', done.id);
  await only('one thread', () => true, 4);
  await page.fill('#filter-thread', '');
  await page.fill('#filter-sender', bob.did);
  await only('the messages of Bob', (type) => ['MANIFEST', 'OFFER', 'RESULT', 'ERROR'].includes(type), 5);
  await page.fill('#filter-recipient', carol.did);
  await only('those to Carol', (type) => type === 'OFFER', 1);
  await page.fill('#filter-sender', '');
  await page.fill('#filter-recipient', '');
  await page.fill('#filter-intent', 'image.caption');
  await only('the messages of one intent', () => true, 3);
  await page.fill('#filter-intent', '');
  await only('everything', () => true, all + 2);
});
