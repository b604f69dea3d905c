// Reading with Client: following, threads and the directory, from relays that lose answers and from hostile ones.
import assert from 'node:assert/strict';
import test from 'node:test';
import { Client, Endless, identity, signedForm, verify, wasSealed } from '../index.js';
import { answer, broken, DOCUMENT, FakeRelay, refuse, skipWaits, URL_OF_FAKE } from './fakerelay.js';
import { alice, bob, fake, message, page } from './helpers.js';

// A store that keeps a cursor in memory, and all that were saved.
const store = (cursor) => ({
  saved: [], load: () => cursor, async save(next) { cursor = next; this.saved.push(next); },
});

// Follows until there are count events. Returns their ids, or what pick makes of them.
async function take(client, count, filter, options, pick = (e) => e.id) {
  const got = [];
  for await (const e of client.follow(filter, options)) if (got.push(await pick(e)) === count) break;
  return got;
}

const clientOf = (act, options) => new Client(URL_OF_FAKE, { log() {}, ...options,
  fetch: fake((n, url, how) => url.endsWith(DOCUMENT) ? { ok: true, reads: 'open' } : act(new URL(url), how)) });

test('follow yields what is valid, new and asked for, and saves the cursor after a page', async () => {
  const events = [];
  for (const n of [1, 2, 3, 4]) events.push(await message({ id: `m${n}`, recipient: { id: bob.did } }));
  const bad = { ...events[0], id: 'changed' }, notAsked = await message({ id: 'broadcast' });
  const pages = [page([events[0], bad, notAsked, events[1]], 'c1'),
    page([events[0], { ...events[0], ts: 'now' }], 'c2'),
    page([null, 5, events[2], events[2]], 'c3'), page([events[3]], 'c4')];
  const cursors = [], logged = [], place = store();
  const client = clientOf((url) => {
    cursors.push(url.searchParams.get('cursor'));
    return pages[cursors.length - 1];
  }, { log: (text, err) => logged.push(err?.code) });
  const got = await take(client, 4, { recipient: bob.did }, { cursor: place, from: 'oldest' },
    (e) => [e.id, place.saved.at(-1)]);
  assert.deepEqual(got, [['m1', undefined], ['m2', undefined], ['m3', 'c2'], ['m4', 'c3']]);
  assert.deepEqual(cursors, ['0', 'c1', 'c2', 'c3']);
  assert.deepEqual(place.saved, ['c1', 'c2', 'c3'], 'the last page was not consumed');
  assert.deepEqual(logged, ['INVALID_SIGNATURE', 'INVALID_REQUEST', 'INVALID_REQUEST'], 'a line for each answer');
});

test('a client needs a URL and, if any, an identity', () => {
  for (const url of ['localhost:8901', '127.0.0.1:8901', undefined, '', 'ftp://relay.test', 'http://']) {
    assert.throws(() => new Client(url), { name: 'TypeError', message: /^url must begin with http:/ });
  }
  for (const me of [identity(), 'alice.jwk', {}, { did: alice.did }, true]) {
    assert.throws(() => new Client(URL_OF_FAKE, { me }), { name: 'TypeError', message: /^me must .* forget await/ });
  }
  for (const me of [alice, undefined, null]) assert.equal(new Client(new URL(URL_OF_FAKE), { me }).url, URL_OF_FAKE);
});

test('follow filters by each member', async () => {
  const events = [await message({ id: 'a', recipient: { id: bob.did } }),
    await message({ id: 'b', thread: { id: 'other' } }), await message({ id: 'c', type: 'OFFER' }, bob)];
  for (const [filter, want] of [[{ recipient: bob.did }, 'a'], [{ recipient: bob.did, broadcast: true }, 'abc'],
    [{ sender: bob.did }, 'c'], [{ type: 'REQUEST' }, 'ab'], [{ thread: 'other' }, 'b'], [{}, 'abc']]) {
    const urls = [], client = clientOf((url) => (urls.push(url.search), page(events, 'c')));
    assert.equal((await take(client, want.length, filter, { from: 'oldest', limit: 7 })).join(''), want);
    const query = Object.entries(filter).map(([name, value]) => `${name}=${encodeURIComponent(value)}&`).join('');
    assert.equal(urls[0], `?${query}limit=7&cursor=0&timeout=30`);
  }
});

test('follow begins where it is told to', async () => {
  const urls = [], e = await message();
  const client = clientOf((url) => {
    urls.push(url.searchParams);
    return urls.length % 2 === 1 ? page([], 'c1') : page([e], 'c2');
  }, { clock: () => Date.UTC(2026, 1, 2, 12) });
  await take(client, 1);
  await take(client, 1, {}, { from: new Date(0) });
  assert.deepEqual(urls.map((query) => [query.get('since'), query.get('cursor'), query.get('timeout')]), [
    ['2026-02-02T12:00:00.000Z', null, '0'], [null, 'c1', '30'], ['1970-01-01T00:00:00.000Z', null, '0'],
    [null, 'c1', '30']]);
  await take(client, 1, {}, { cursor: store('saved') }).catch(() => {});
  assert.equal(urls[4].get('cursor'), 'saved');
  await assert.rejects(take(client, 1, {}, { cursor: store(5) }), (err) => err.code === 'INVALID_REQUEST');
  const failing = { load() {}, save() { throw new Error('the disk is full'); } };
  await assert.rejects(take(client, 2, {}, { cursor: failing }), /the disk is full/);
});

test('follow survives a relay that has lost its data', async () => {
  const relay = await FakeRelay.start(), client = relay.client(alice), place = store();
  await client.post('CANCEL', {}, { thread: 't' }).catch(() => {});
  relay.add(await message({ id: 'm1' }));
  assert.deepEqual(await take(client, 1, {}, { cursor: place, from: 'oldest' }), ['m1']);
  await place.save(relay.cursor());
  Object.assign(relay, { database: 'b', events: [] });
  relay.add(await message({ id: 'm2' }));
  const logged = [], other = relay.client(alice, { log: (text) => logged.push(text) });
  assert.deepEqual(await take(other, 1, {}, { cursor: place }), ['m2']);
  assert.match(logged[0], /oldest/);
});

test('follow retries what may succeed, as late as the relay asks for', async (t) => {
  const waits = skipWaits(t), e = await message();
  const acts = [() => refuse(429, 'RATE_LIMITED', {}, { 'retry-after': '20' }), () => refuse(503, 'UNAVAILABLE'),
    () => { throw broken(); }, () => new Response('<html>', { status: 404 }), () => page([e], ''), () => ({ ok: true }),
    () => page([e], 'x'.repeat(2000)), () => page(Array(101).fill(e), 'c'), () => page([e], 'c')];
  let n = 0;
  assert.deepEqual(await take(clientOf(() => acts[n++]()), 1, {}, { from: 'oldest' }), ['msg_1']);
  assert.equal(n, acts.length);
  assert.equal(waits.length, acts.length - 1);
  assert.ok(waits[0] >= 20_000 && waits[0] < 20_300, `${waits}`);
  assert.ok(waits.slice(1).every((ms, i) => ms >= 125 * 2 ** i && ms <= 30_000), `${waits}`);
  for (const [status, code] of [[400, 'INVALID_REQUEST'], [403, 'FORBIDDEN'], [401, 'UNAUTHORIZED']]) {
    const refused = take(clientOf(() => refuse(status, code)), 1);
    await assert.rejects(refused, (err) => err.code === code && err.status === status);
  }
});

test('no relay makes us poll in a hot loop', async (t) => {
  const e = await message();
  for (const hostile of [() => page([], 'c'), (n) => page([], `c${n}`), (n) => page([e], `c${n}`), () => page([e], 'c'),
    () => ({ ok: true, events: [{}], cursor: 'c' })]) {
    const waits = skipWaits(t), stop = new AbortController();
    let n = 0;
    const client = clientOf(() => { if (++n === 12) stop.abort(); return hostile(n); });
    await assert.rejects(take(client, 100, {}, { from: 'oldest', signal: stop.signal }), { name: 'AbortError' });
    assert.ok(waits.length >= 9 && waits.at(-1) >= 250, `${hostile}: ${waits}`);
    t.mock.restoreAll();
  }
});

test('follow opens what is sealed to us, and leaves out what cannot be opened', async () => {
  const relay = await FakeRelay.start(), client = relay.client(bob), sender = relay.client(alice);
  const options = { to: bob.did, thread: 't', seal: true };
  await sender.post('REQUEST', { intent: 'echo', request_id: 'r', params: 'secret' }, options);
  const payload = { request_id: 'r', sealed: 'v1.AAAA', intent: 'i' };
  relay.add(await message({ recipient: { id: bob.did }, payload }));
  await sender.post('CANCEL', { reason: 'over' }, { to: bob.did, thread: 't' });
  const [first, second] = await take(client, 2, { recipient: bob.did }, { from: 'oldest' }, (e) => e);
  assert.equal(first.payload.params, 'secret');
  assert.ok(wasSealed(first) && !wasSealed(second));
  await verify(signedForm(first));
  await assert.rejects(verify(first), (err) => err.code === 'INVALID_SIGNATURE');
  assert.equal(signedForm(second), second);
  const third = await take(relay.client(await identity()), 1, { thread: 't' }, { from: 'oldest' }, (e) => e);
  assert.ok(wasSealed(third[0]), 'others see it sealed');
});

test('threads are verified', async () => {
  const relay = await FakeRelay.start(), client = relay.client(alice);
  const call = await client.request('echo', 1);
  relay.add({ ...relay.events[0], id: 'forged' });
  const { thread, events } = await client.thread(call.thread, alice.did);
  assert.deepEqual([thread.state, events.length, events[0].id], ['PENDING', 1, relay.events[0].id]);
  await assert.rejects(client.thread('none'), (err) => err.code === 'THREAD_NOT_FOUND');
  const many = clientOf(() => ({ ok: true, thread, events: Array(10_001).fill({}) }));
  await assert.rejects(many.thread(call.thread), (err) => err.code === 'INVALID_ANSWER');
});

test('a read waits for a relay that limits it, if that is soon', async (t) => {
  const waits = skipWaits(t);
  let n = 0;
  const client = clientOf(() => n++ === 0 ? refuse(429, 'RATE_LIMITED', {}, { 'retry-after': '5' }) : page([], 'c'));
  await assert.rejects(client.agents(), (err) => err.code === 'INVALID_ANSWER');
  assert.ok(waits.length === 1 && waits[0] >= 5000);
  const late = clientOf(() => refuse(429, 'RATE_LIMITED', {}, { 'retry-after': '60' }));
  await assert.rejects(late.agent(bob.did), (err) => err.retryAfter === 60_000);
});

async function manifest(me) {
  const payload = { id: 'm', intents: [] };
  const { thread: _, ...e } = await message({ id: 'm', type: 'MANIFEST', payload, thread: undefined }, me);
  return e;
}

test('the directory is verified', async () => {
  const relay = await FakeRelay.start(), client = relay.client(alice), own = await manifest(bob);
  relay.add(own);
  relay.add({ ...own, payload: { id: 'forged' } });
  assert.deepEqual((await client.agents()).agents.map(({ id, online }) => [id, online]), [[bob.did, true]]);
  assert.deepEqual((await client.agent(bob.did)).manifests, [own]);
  await assert.rejects(client.agent(alice.did), (err) => err.code === 'AGENT_NOT_FOUND');
  const row = { id: alice.did, online: 'yes', lastSeen: 5, envelope: own };
  const liar = clientOf((url) => url.pathname === '/agents' ? { ok: true, agents: [row, null, { envelope: 5 }] }
    : { ok: true, agent: { id: alice.did, manifests: [own] } });
  assert.deepEqual((await liar.agents()).agents, []);
  await assert.rejects(liar.agent(bob.did), (err) => err.code === 'INVALID_ANSWER');
  assert.deepEqual((await liar.agent(alice.did)).manifests, []);
  const long = clientOf(() => ({ ok: true, agents: Array(1001).fill(row) }));
  await assert.rejects(long.agents(), (err) => err.code === 'INVALID_ANSWER');
});

test('a directory that does not end is an error', async () => {
  const row = { id: bob.did, online: true, envelope: await manifest(bob) };
  for (const [name, next] of Object.entries({
    'the same cursor': () => ({ hasMore: true, cursor: '1', agents: [row] }),
    'no cursor': () => ({ hasMore: true, agents: [row] }),
    'new cursors': (n) => ({ hasMore: true, cursor: `${n}`, agents: [row] }),
    'empty pages': (n) => ({ hasMore: true, cursor: `${n}`, agents: [] }),
  })) {
    let n = 0;
    const all = async () => { for await (const _ of clientOf(() => ({ ok: true, ...next(++n) })).directory()); };
    await assert.rejects(all(), (err) => err instanceof Endless && err.code === 'ENDLESS', name);
    assert.ok(n <= 101, name);
  }
  let n = 0;
  const ids = [], client = clientOf(() => ({ ok: true, hasMore: n < 2, cursor: `${++n}`, agents: [row] }));
  for await (const { id } of client.directory({ intent: 'echo' })) ids.push(id);
  assert.deepEqual(ids, [bob.did, bob.did, bob.did]);
});

test('the relay says how often we may post, within bounds', async () => {
  const limits = (rate) => ({ ok: true, did: bob.did, limits: { rates: { postsPerAgent: rate } } });
  const usual = { perSecond: 20, burst: 40 }, stated = { perSecond: 5, burst: 9 };
  for (const [rate, want] of [[stated, stated], [{ perSecond: 1e-9, burst: 1 }, usual],
    [{ perSecond: 'x', burst: 1 }, usual], [null, usual]]) {
    const client = new Client(URL_OF_FAKE, { fetch: fake(() => limits(rate)) });
    assert.equal(await client.relayDid(), bob.did);
    assert.deepEqual(client.postRate, want);
  }
  const liar = new Client(URL_OF_FAKE, { fetch: fake(() => answer(200, { ok: true, did: 'did:web:x' })) });
  await assert.rejects(liar.relayDid(), (err) => err.code === 'INVALID_DID');
  assert.equal((await clientOf(() => ({ ok: true, version: '1.0.0' })).health()).version, '1.0.0');
});

test('a hostile relay takes neither much memory nor much time', async (t) => {
  skipWaits(t);
  const text = (head, unit) => () => {
    const many = new TextEncoder().encode(unit.repeat(1 + (1 << 18) / unit.length));
    let first = true;
    return new Response(new ReadableStream({ pull(controller) {
      controller.enqueue(first ? new TextEncoder().encode(head) : many);
      first = false;
    } }));
  };
  const list = (name) => `{"ok":true,"cursor":"1","${name}":[`;
  for (const answers of [text(`${list('events')}{}`, ',{}'), text(`${list('agents')}0`, ',0'),
    text('{"ok":true', ',"a":1'), text(list('events'), '['), text('{"', 'a'), text('{"ok":', '1'),
    text('{"ok":true,', ' ')]) {
    const client = new Client(URL_OF_FAKE, { fetch: fake(answers) });
    for (const act of [() => client.about(), () => client.health(), () => client.agents()]) {
      await assert.rejects(act(), (err) => err.code === 'INVALID_ANSWER' && err.message.length < 4000);
    }
  }
  const before = process.memoryUsage().heapUsed, small = page(Array(100).fill({ a: 'é'.repeat(2000) }), 'c');
  let n = 0;
  const client = clientOf(() => ++n < 20 ? small : (client.stop.abort(), small));
  client.stop = new AbortController();
  await assert.rejects(take(client, 1, {}, { from: 'oldest', signal: client.stop.signal }), { name: 'AbortError' });
  assert.ok(process.memoryUsage().heapUsed - before < 64 << 20);
});
