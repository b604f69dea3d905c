// The page under load. AGORA_PAGE_MESSAGES sets the number of messages of the second test: 50,000 in make nightly.
import assert from 'node:assert/strict';
import test from 'node:test';
import { canonicalize } from '../../../../../sdk/js/agora.js';
import { connection, openPage, see, until } from './lib/browser.mjs';
import { newAgent, post } from './lib/messages.mjs';
import { startRelay } from './lib/relay.mjs';

const MESSAGES = Number(process.env.AGORA_PAGE_MESSAGES ?? 3000);
const RATE = 200, SECONDS = 10, LONG = 200, FEW = 2;

/** Signs n broadcasts. */
async function prepare(a, n, from = 0) {
  const all = [];
  for (let i = from; i < from + n; i++) {
    const payload = { request_id: 'r', intent: `intent.${i % 7}`, params: { i, text: 'x'.repeat(300) } };
    const e = await a.signed('REQUEST', payload, { thread: { id: `load-${i}` } });
    all.push({ id: e.id, body: canonicalize(e) });
  }
  return all;
}

/** Posts messages, several at a time. */
async function postAll(relay, messages) {
  const left = [...messages];
  await Promise.all(Array.from({ length: 16 }, async () => {
    for (let next; (next = left.shift());) assert.equal((await post(relay, next.body)).status, 200);
  }));
}

/** The ids of all messages of a relay, the newest first. */
async function orderOf(relay) {
  const order = [];
  for (let cursor = 0, hasMore = true; hasMore;) {
    const page = await (await fetch(`${relay.url}/events?cursor=${cursor}&limit=1000&timeout=0`)).json();
    order.unshift(...page.events.map((e) => e.id).reverse());
    ({ cursor, hasMore } = page);
  }
  return order;
}

/** The rows that the feed shows, from top to bottom: their ids, and their numbers in the whole list. */
const rows = (page) => page.locator('#feed-list [data-id]').evaluateAll((all) => all
  .sort((a, b) => a.getBoundingClientRect().top - b.getBoundingClientRect().top)
  .map((e) => [e.dataset.id, Number(e.getAttribute('aria-posinset'))]));

/** Does something, and returns the tasks of the page that took more than LONG ms of its main thread meanwhile. Only the
 *  time of the processor counts, because other programs may use the machine too. */
async function longTasks(page, act) {
  const browser = page.context().browser();
  await browser.startTracing(page, { categories: ['toplevel'] });
  await act();
  const { traceEvents } = JSON.parse(await browser.stopTracing());
  const main = traceEvents.filter((e) => e.name === 'thread_name' && e.args.name === 'CrRendererMain');
  // A task that runs when the trace begins or ends has no tdur, its time of the processor in microseconds.
  const tasks = traceEvents.filter((e) => e.name === 'ThreadControllerImpl::RunTask' && e.tdur >= 0
    && main.some(({ pid, tid }) => e.pid === pid && e.tid === tid)).map((e) => e.tdur / 1000);
  assert.ok(tasks.length > 100, `the trace has ${tasks.length} tasks`);
  return tasks.filter((ms) => ms > LONG).map(Math.round);
}

test('200 messages a second leave the feed smooth and in order', { timeout: 120_000 }, async (t) => {
  const relay = await startRelay(t), alice = await newAgent(relay, 'Alice');
  const all = await prepare(alice, RATE * SECONDS);
  let order;
  const page = await openPage(t, relay.url, { hash: '#/feed' });
  await connection(page, 'live');
  const began = performance.now();
  const long = await longTasks(page, async () => {
    await Promise.all(all.map(async ({ body }, i) => {
      await new Promise((resume) => setTimeout(resume, i * 1000 / RATE));
      assert.equal((await post(relay, body)).status, 200);
    }));
    order = await orderOf(relay);
    await see(page, `#feed-list [data-id="${order[0]}"][data-verified="true"]`);
  });
  const took = (performance.now() - began) / 1000;
  t.diagnostic(`${all.length} messages in ${took.toFixed(1)} s; tasks above ${LONG} ms: ${long}`);
  assert.ok(long.length <= FEW, `${long.length} tasks took ${long} ms`);
  const shown = await rows(page);
  assert.ok(shown.length > 10 && shown.length < 100, `${shown.length} rows`);
  assert.deepEqual(shown.map(([id]) => id), order.slice(0, shown.length));
  assert.equal(await page.locator('#feed-list [data-id]').first().getAttribute('aria-setsize'), String(all.length));
});

/** The heap after garbage collection, in MB, and the number of DOM nodes. */
async function measure(page, cdp) {
  await cdp.send('HeapProfiler.collectGarbage');
  await cdp.send('HeapProfiler.collectGarbage');
  const { metrics } = await cdp.send('Performance.getMetrics');
  const of = (name) => metrics.find((m) => m.name === name).value;
  return { heap: of('JSHeapUsedSize') / 1e6, nodes: of('Nodes') };
}

test(`${MESSAGES} messages leave the memory bounded`, { timeout: 60_000 + MESSAGES * 20 }, async (t) => {
  const relay = await startRelay(t), alice = await newAgent(relay, 'Alice');
  const page = await openPage(t, relay.url, { hash: '#/feed' }), cdp = await page.context().newCDPSession(page);
  await cdp.send('Performance.enable');
  await connection(page, 'live');
  const figures = [], step = MESSAGES / 4;
  for (let from = 0; from < MESSAGES; from += step) {
    const all = await prepare(alice, step, from);
    const { id } = all.at(-1);
    await postAll(relay, all.slice(0, -1));
    await postAll(relay, all.slice(-1));
    await see(page, `#feed-list [data-id="${id}"][data-verified="true"]`);
    figures.push(await measure(page, cdp));
  }
  const text = figures.map(({ heap, nodes }) => `${heap.toFixed(1)} MB, ${nodes} nodes`).join('; ');
  t.diagnostic(`after each quarter of ${MESSAGES} messages: ${text}`);
  assert.ok(figures.every(({ heap }) => heap < 150), text);
  assert.ok(figures.every(({ nodes }) => nodes < 10_000), text);
  assert.ok((await rows(page)).length < 100, 'too many rows');
  if (MESSAGES >= 40_000) assert.ok(figures[3].heap < figures[1].heap * 1.15, `the heap grows: ${text}`);
});

/** The first number that is no key of a map. */
const firstGap = (map) => {
  let n = 1;
  while (map.has(n)) n++;
  return n;
};

test('the whole list can be scrolled without a gap', { timeout: 60_000 + MESSAGES * 20 }, async (t) => {
  const relay = await startRelay(t), alice = await newAgent(relay, 'Alice'), n = Math.min(MESSAGES / 3, 10_000);
  await postAll(relay, await prepare(alice, n));
  const order = await orderOf(relay);
  const page = await openPage(t, relay.url, { hash: '#/feed', viewport: { width: 1440, height: 3000 } });
  await see(page, `#feed-list [data-id="${order[0]}"]`);
  const seen = new Map();
  await until('the oldest message', async () => {
    for (const [id, place] of await rows(page)) seen.set(place, id);
    await page.evaluate((next) => { // scroll to the first row that was not seen
      const list = document.querySelector('#feed-list'), row = list.querySelector('[data-id]');
      list.scrollTop = Math.max(list.scrollTop, (next - 1) * row.offsetHeight);
    }, firstGap(seen));
    return seen.get(n) === order.at(-1);
  }, 50_000 + MESSAGES * 10);
  assert.deepEqual([...seen].sort((a, b) => a[0] - b[0]).map(([, id]) => id), order);
});
