// The class Relay with a fetch of the tests' own: what it makes of answers, how long it waits, and following.
import assert from 'node:assert/strict';
import test from 'node:test';
import { Relay } from '../agora.js';
import { alice, bob, fake, message, page, refusal } from './helpers.js';

const DOCUMENT = '/.well-known/agora.json';

// Makes all waits of less than 30 seconds short, and returns how long they were to be.
function skipWaits(t) {
  const real = globalThis.setTimeout, waits = [];
  t.mock.method(globalThis, 'setTimeout', (act, ms, ...args) => {
    if (ms < 30_000) waits.push(ms);
    return real(act, ms < 30_000 ? 0 : ms, ...args);
  });
  return waits;
}

test('post gives up after five attempts', async (t) => {
  const waits = skipWaits(t);
  let count = 0;
  const fetch = fake((n) => { count = n; throw new TypeError('fetch failed'); });
  await assert.rejects(new Relay('http://127.0.0.1:1', { me: alice, fetch }).post('CANCEL', {}, { thread: 't' }),
    (err) => err.code === 'NO_ANSWER' && err.status === 0 && err.retryable && err.cause instanceof TypeError);
  assert.equal(count, 5);
  assert.deepEqual(waits.map((ms) => Math.floor(Math.log2(ms / 250))), [0, 1, 2, 3], 'the pauses grow');
});

test('an answer that is not that of a relay is an error', async () => {
  for (const [answer, retryable] of [
    [() => new Response('<html>'), true], [() => ({ ok: 1 }), true],
    [() => Response.json(page([], 'c'), { status: 201 }), true],
    [() => new Response('', { status: 502 }), true], [() => new Response('x', { status: 404 }), false],
    [() => ({ ok: false, error: 'X' }), true],
    [() => Response.json({ ok: false, error: 5 }, { status: 400 }), false],
    [() => new Response('{"ok":true,"ok":true}'), true],
    [() => ({ ok: true, events: {} }), true],
  ]) {
    await assert.rejects(new Relay('http://127.0.0.1:1', { fetch: fake(answer) }).page(),
      (err) => err.code === 'INVALID_ANSWER' && err.retryable === retryable, String(answer));
  }
});

test('answers are bounded', async () => {
  let cancelled = 0;
  const endless = (status) => () => new Response(new ReadableStream({
    pull(controller) { controller.enqueue(new Uint8Array(1 << 18).fill(0x20)); }, cancel() { cancelled++; },
  }), { status });
  for (const status of [200, 400]) {
    await assert.rejects(new Relay('http://127.0.0.1:1', { fetch: fake(endless(status)) }).page(),
      (err) => err.code === 'INVALID_ANSWER' && !err.retryable && /too long/.test(err.message));
  }
  assert.equal(cancelled, 2);
});

test('a relay without a document gets unsigned reads', async () => {
  const urls = [], fetch = fake((n, url, { headers }) => {
    urls.push([new URL(url).pathname, headers.authorization]);
    return url.endsWith(DOCUMENT) ? Response.json(refusal('NOT_FOUND'), { status: 404 }) : page([], 'c');
  });
  await new Relay('http://127.0.0.1:1', { me: alice, fetch }).page();
  assert.deepEqual(urls, [[DOCUMENT, undefined], ['/events', undefined]]);
  const failing = fake((n, url) => url.endsWith(DOCUMENT) ? new Response('', { status: 502 }) : page([], 'c'));
  await assert.rejects(new Relay('http://127.0.0.1:1', { me: alice, fetch: failing }).page(), (err) =>
    err.status === 502);
});

test('follow yields what is valid and matches, and moves place after a page', async () => {
  const events = [];
  for (const n of [1, 2, 3, 4]) events.push(await message({ id: `m${n}`, recipient: { id: bob.did } }));
  const bad = { ...events[0], id: 'changed' }, foreign = await message({ id: 'broadcast' }),
    notForm = { ...events[0], ts: 'now' };
  const cursors = [], fetch = fake((n, url) => {
    cursors.push(new URL(url).searchParams.get('cursor'));
    return [page([events[0], bad, foreign, events[1]], 'c1'), page([notForm, events[2]], 'c2'),
      page([events[3]], 'c3')][n - 1];
  });
  const place = { cursor: '0' }, skipped = [], got = [];
  const options = { skipped: (err, event) => skipped.push([err.code, event.id]) };
  for await (const e of new Relay('http://127.0.0.1:1', { fetch }).follow({ recipient: bob.did }, place, options)) {
    got.push([e.id, place.cursor]);
    if (e.id === 'm4') break;
  }
  assert.deepEqual(got, [['m1', '0'], ['m2', '0'], ['m3', 'c1'], ['m4', 'c2']]);
  assert.deepEqual(cursors, ['0', 'c1', 'c2']);
  assert.deepEqual(skipped, [['INVALID_SIGNATURE', 'changed'], ['INVALID_REQUEST', 'broadcast'],
    ['INVALID_REQUEST', 'm1']]);
  assert.equal(place.cursor, 'c2', 'the last page was not consumed');
});

test('follow filters by each member', async () => {
  const toBob = await message({ id: 'a', recipient: { id: bob.did } }),
    toAll = await message({ id: 'b', thread: { id: 'other' } });
  const offer = await message({ id: 'c', type: 'OFFER' }, bob);
  const cases = [
    [{ recipient: bob.did }, 'a'], [{ recipient: bob.did, broadcast: true }, 'abc'], [{ sender: bob.did }, 'c'],
    [{ type: 'REQUEST' }, 'ab'], [{ thread: 'other' }, 'b'], [{}, 'abc'],
  ];
  for (const [filter, want] of cases) {
    const stop = new AbortController(), got = [];
    const fetch = fake((n) => n === 1 ? page([toBob, toAll, offer], 'c') : (stop.abort(), page([], 'c')));
    const options = { signal: stop.signal, skipped() {} };
    const following = new Relay('http://127.0.0.1:1', { fetch }).follow(filter, undefined, options);
    await assert.rejects(async () => { for await (const e of following) got.push(e.id); }, { name: 'AbortError' });
    assert.equal(got.join(''), want, JSON.stringify(filter));
  }
});

test('polls keep their distance', async (t) => {
  const waits = skipWaits(t), e = await message(), stop = new AbortController();
  const fetch = fake((n) => {
    if (n === 8) stop.abort();
    return n < 4 ? page([e], `c${n}`) : n < 6 ? page([], 'c3') : page([e], 'c3');
  });
  const options = { signal: stop.signal, spacing: 250 };
  const following = new Relay('http://127.0.0.1:1', { fetch }).follow({}, undefined, options);
  await assert.rejects(async () => { for await (const _ of following); }, { name: 'AbortError' });
  const near = (ms, want) => assert.ok(ms > want - 200 && ms <= want, `${waits}`);
  waits.slice(0, 3).forEach((ms) => near(ms, 250));
  waits.slice(3, 7).forEach((ms) => near(ms, 1000)); // no events, or the same place as before
  assert.equal(waits.length, 7);
});

test('follow waits when it is told to, and goes on', async (t) => {
  const waits = skipWaits(t), e = await message();
  const fetch = fake((n) => [
    Response.json(refusal('RATE_LIMITED', {}, true), { status: 429, headers: { 'retry-after': '20' } }),
    Response.json(refusal('UNAVAILABLE', {}, true), { status: 503 }), page([e], ''), page([e], 'c'),
  ][n - 1]);
  for await (const _ of new Relay('http://127.0.0.1:1', { fetch }).follow()) break;
  assert.equal(waits.length, 3);
  assert.ok(waits[0] >= 20_000 && waits[0] < 20_300 && waits[1] < 1100, `${waits}`);
});

test('newest reads to the end', async () => {
  const urls = [], pages = [page([await message()], 'c1', true), page([], 'c2', true), page([], 'c3')];
  const fetch = fake((n, url) => {
    urls.push(new URL(url).search);
    return pages[n - 1];
  });
  const clock = () => Date.UTC(2026, 1, 2, 12);
  assert.deepEqual(await new Relay('http://127.0.0.1:1', { fetch, clock }).newest({ type: 'OFFER' }), { cursor: 'c3' });
  assert.deepEqual(urls, [
    '?type=OFFER&since=2026-02-02T12%3A00%3A00.000Z&timeout=0', '?type=OFFER&cursor=c1&timeout=0',
    '?type=OFFER&cursor=c2&timeout=0',
  ]);
});
