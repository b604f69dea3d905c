// Nothing that a hostile relay or a hostile agent sends can end a reader or an agent. The values of all members are
// replaced by values of other types, also where the signature is good.
import assert from 'node:assert/strict';
import test from 'node:test';
import { canonicalText, checkEnvelope, Client, explain, identity, parse, Refused, sign } from '../index.js';
import { broken, DOCUMENT, FakeRelay, serving, skipWaits, URL_OF_FAKE } from './fakerelay.js';
import { alice, bob, fake, message, page, refusal, utf8 } from './helpers.js';

// Values in place of others. Converting or comparing the first ones throws a TypeError in JavaScript.
const ODD = ['{"toString":1}', '{"toString":1,"valueOf":1}', '{"__proto__":1}', '{"then":1,"length":-1}', '[[]]', '[]',
  '{}', 'null', 'true', '-1.5', '1e300', '9007199254740993', '""', '"x"', '"\\u0000"', '"\\ud83d\\ude00"']
  .map((text) => parse(utf8(text)));

// The paths of all values in value, except value itself.
function paths(value, at = []) {
  if (typeof value !== 'object' || value === null) return [];
  return Object.keys(value).flatMap((name) => [[...at, name], ...paths(value[name], [...at, name])]);
}

// A copy of value with another value at a path.
function replaced(value, [name, ...rest], other) {
  const copy = Array.isArray(value) ? [...value] : { ...value };
  copy[name] = rest.length > 0 ? replaced(value[name], rest, other) : other;
  return copy;
}

/** All copies of value with one odd value. */
const variants = (value) => paths(value).flatMap((path) => ODD.map((odd) => replaced(value, path, odd)));

const PAYLOADS = {
  REQUEST: { intent: 'echo', title: 't', description: 'd', params: { a: 'b' },
    constraints: { max_cost_usd: 1, deadline: '2099-01-01T00:00:00Z', max_latency_ms: 5 } },
  OFFER: { price: { amount: 1, currency: 'USD' }, plan: 'p', eta_seconds: 1, valid_until: '2099-01-01T00:00:00Z' },
  ACCEPT: { accepted_at: '2026-02-02T12:00:00Z', terms: { price_usd: 1 } },
  RESULT: { status: 'success', output: 1, artifacts: [1], metrics: { a: 1 } },
  ERROR: { code: 'UNAVAILABLE', message: 'm', details: { a: 'b' } },
  CANCEL: { reason: 'r' },
};

const full = (type, payload) => message({ type, payload: { request_id: 'req_1', ...payload },
  sender: { id: alice.did, name: 'A', url: 'https://a.example' }, recipient: { id: bob.did, name: 'B' },
  meta: { ttl: 300, hop: 1, relay: ['https://r.example'] } });

const clientOf = (act, options) => new Client(URL_OF_FAKE, { log() {}, me: bob, ...options,
  fetch: fake((n, url, how) => url.endsWith(DOCUMENT) ? { ok: true, reads: 'open' } : act(new URL(url), how)) });

test('checking an envelope throws nothing but Refused, whatever its members are', async () => {
  let count = 0;
  for (const [type, payload] of Object.entries(PAYLOADS)) {
    for (const e of [...variants(await full(type, payload)), ...ODD]) {
      try { checkEnvelope(e); } catch (err) {
        assert.ok(err instanceof Refused, `${canonicalText(e)}: ${err.stack}`);
      }
      if (count++ % 50 === 0) await explain(e);
    }
  }
});

test('follow outlives a ts that cannot be converted to a text', async () => {
  const good = await message({ id: 'good' }), bad = { ...good, ts: { toString: 1 } }, logged = [];
  const client = clientOf(() => page([bad, good], 'c'), { log: (text, err) => logged.push(err?.code) });
  for await (const e of client.follow({}, { from: 'oldest' })) {
    assert.equal(e.id, 'good');
    break;
  }
  assert.deepEqual(logged, ['INVALID_REQUEST']);
});

test('follow yields the good event among all the odd ones', async () => {
  const good = await message({ id: 'good' }), all = variants(await full('OFFER', PAYLOADS.OFFER));
  const limit = 1000, pages = [];
  for (let at = 0; at < all.length; at += 900) pages.push(all.slice(at, at + 900));
  pages.at(-1).push(good);
  let n = 0;
  const client = clientOf(() => page(pages[n++], `c${n}`));
  for await (const e of client.follow({}, { from: 'oldest', limit })) if (e.id === 'good') break;
  assert.equal(n, pages.length);
});

// Whether an error is one that the package documents.
const isOurs = (err) => typeof err.code === 'string' && typeof err.retryable === 'boolean';

test('no answer of a relay makes a method fail with a strange error', async (t) => {
  skipWaits(t);
  const event = await full('OFFER', PAYLOADS.OFFER), at = '2026-02-02T12:00:00Z', manifest = await message({
    type: 'MANIFEST', thread: undefined, payload: { id: 'main', intents: [{ id: 'echo' }] } });
  const row = { id: alice.did, online: true, lastSeen: at }, record = { id: 'thread_1', client: bob.did, state: 'ERROR',
    requestId: 'req_1', agent: alice.did, offers: [{ agent: alice.did, id: 'a', at }], deadline: at,
    transitions: [{ from: 'PENDING', to: 'ERROR', type: 'TIMEOUT', by: bob.did, id: 'a', at }] };
  const rates = { postsPerAgent: { perSecond: 20, burst: 40 } };
  const cases = [
    [{ ok: true, did: alice.did, url: URL_OF_FAKE, reads: 'parties', limits: { rates } }, (c) => c.about()],
    [{ ok: true, did: alice.did, url: 'http://127.0.0.1', reads: 'parties', limits: { rates } }, (c) => c.page()],
    [{ ok: true, did: alice.did, reads: 'open' }, (c) => c.relayDid()],
    [{ ok: true, thread: record, events: [event], expired: 0 }, (c) => c.thread('thread_1')],
    [{ ok: true, thread: record, events: [event], expired: 0 }, (c) => c.resume('thread_1', { requestId: 'r' })],
    [{ ok: true, agents: [{ ...row, envelope: manifest }], hasMore: false, cursor: 'c' }, (c) => c.agents()],
    [{ ok: true, agent: { ...row, manifests: [manifest] } }, (c) => c.agent(alice.did)],
    [{ ok: true, id: 'm', cursor: 'c', duplicate: false, expiresAt: at }, (c) => c.post('CANCEL', {}, { thread: 't' })],
  ];
  for (const [answer, act] of cases) {
    for (const odd of [...variants(answer), ...ODD]) {
      const client = new Client(URL_OF_FAKE, { me: bob, log() {}, fetch: fake((n, url, { body } = {}) => {
        if (!body) return odd;
        const { id } = parse(body);
        return odd?.id === 'm' ? { ...odd, id } : odd;
      }) });
      await act(client).catch((err) => assert.ok(isOurs(err), `${canonicalText(odd)}: ${err.stack}`));
    }
  }
});

test('no refusal makes a method fail with a strange error', async (t) => {
  skipWaits(t);
  const refusals = variants(refusal('UNAUTHORIZED', { now: '2026-02-02T12:00:00Z', reason: 'time', limit: 'x' }));
  for (const odd of [...refusals, ...ODD]) {
    for (const status of [400, 401]) {
      const client = clientOf(() => Response.json(odd, { status, headers: { 'www-authenticate': 'Agora' } }));
      await client.thread('t').catch((err) => assert.ok(isOurs(err), `${canonicalText(odd)}: ${err.stack}`));
    }
  }
});

test('no payload of an agent makes a call fail with a strange error', async () => {
  const at = '2026-02-02T12:00:00Z', me = bob, log = () => {};
  const record = (state, events, transitions = []) => ({ ok: true, expired: 0, events, thread: { id: 'thread_1',
    client: me.did, state, requestId: 'req_1', offers: [], transitions } });
  const own = await message({ recipient: { id: alice.did } }, me), accept = await message({ type: 'ACCEPT', id: 'msg_2',
    recipient: { id: alice.did }, payload: { request_id: 'req_1' } }, me);
  const callOf = async (type, payload, state) => {
    const e = await sign({ ...own, type, id: 'msg_3', sender: { id: alice.did }, recipient: { id: me.did },
      payload: { request_id: 'req_1', ...payload } }, alice);
    const answer = record(state, [own, accept, e], [{ type, to: state, by: alice.did, id: 'msg_3', at }]);
    const client = clientOf((url) => url.pathname === '/events' ? page([], 'c') : answer, { me, log });
    return client.resume('thread_1');
  };
  for (const [type, state] of [['RESULT', 'COMPLETED'], ['ERROR', 'ERROR']]) {
    for (const payload of variants(PAYLOADS[type])) {
      const call = await callOf(type, payload, state);
      await call.result().catch((err) => assert.ok(isOurs(err), `${canonicalText(payload)}: ${err.stack}`));
    }
  }
});

test('an agent outlives every odd REQUEST, and answers the next one', async (t) => {
  const relay = await FakeRelay.start(), client = relay.client(alice), agent = relay.client(bob);
  serving(t, agent, 'echo', { work: (job) => job.params, quote: () => ({ price: 0.5 }), concurrency: 64 });
  const odd = [...variants(PAYLOADS.REQUEST)], to = { id: bob.did };
  for (const [i, payload] of odd.entries()) {
    const id = `odd_${i}`, request_id = id;
    relay.add(await message({ id, payload: { ...payload, request_id }, thread: { id }, recipient: to,
      ts: new Date().toISOString() }));
  }
  const call = await client.request('echo', 'hello', { to: bob.did });
  await call.accept(await call.best('first'));
  assert.equal((await call.result()).output, 'hello');
});

// A poll of an answer costs its bytes and one element at a time. The counts show what is parsed and read.
test('a hostile page is not parsed whole', async () => {
  const units = { arrays: '[],', numbers: '0,', objects: '{},', deep: '['.repeat(100), members: '{"a":0},' };
  for (const [name, unit] of Object.entries(units)) {
    const chunk = utf8(unit.repeat(Math.ceil((64 << 10) / unit.length)));
    let read = 0, cancelled = false;
    const client = clientOf(() => new Response(new ReadableStream({
      start(controller) { controller.enqueue(utf8('{"ok":true,"cursor":"c","events":[')); },
      pull(controller) {
        read += chunk.length;
        controller.enqueue(chunk);
      },
      cancel() { cancelled = true; },
    }, { highWaterMark: 0 })));
    await assert.rejects(client.page({ limit: 100 }), (err) => err.code === 'INVALID_ANSWER', name);
    assert.ok(cancelled, `${name}: the connection was ended`);
    const most = name === 'deep' ? 9 << 20 : 1 << 20;
    assert.ok(read <= most, `${name}: ${read} bytes were read`);
  }
});

test('follow asks for fewer events if a page is too long', async (t) => {
  skipWaits(t);
  const long = 'x'.repeat(120_000), events = [], limits = [];
  for (let i = 0; i < 100; i++) events.push(await message({ id: `m${i}`, payload: { request_id: 'r', intent: long } }));
  const client = clientOf((url) => {
    const limit = Number(url.searchParams.get('limit')), from = Number(url.searchParams.get('cursor'));
    limits.push(limit);
    return page(events.slice(from, from + limit), `${from + limit}`);
  });
  const got = [];
  for await (const e of client.follow({}, { from: 'oldest' })) if (got.push(e.id) === 100) break;
  assert.deepEqual(got, events.map(({ id }) => id));
  assert.deepEqual(limits.slice(0, 3), [100, 50, 100], '100 events of 120 KB are too long');
});

test('an element that is too large or breaks a rule is left out, and the others are read', async () => {
  const good = await message({ id: 'good' }), text = JSON.stringify(good);
  const bad = ['{"a":1,"a":2}', `"${'x'.repeat(1 << 20)}"`, '['.repeat(80) + ']'.repeat(80), '5', '{]', '"\\ud800"',
    `[${'1.23456789012345678901e-300,'.repeat(1001)}1]`, text.replace('good', 'changed')];
  const other = '"other":["events",[1,{"events":[2]}]]', list = `[ ${bad.join(' , ')}, ${text} ]`;
  const client = clientOf(() => new Response(`{"ok":true,${other},"events": ${list} ,"cursor":"c","hasMore":false}`));
  for await (const e of client.follow({}, { from: 'oldest' })) {
    assert.equal(e.id, 'good');
    break;
  }
  await assert.rejects(client.page({ cursor: '0' }), { code: 'INVALID_ANSWER' }, 'without verification');
});

test('the list of an answer is found however the text is cut', async () => {
  const me = await identity(), events = [], logged = [];
  for (let i = 0; i < 3; i++) {
    events.push(await message({ id: `m${i}`, payload: { request_id: 'r', intent: '"],[{}\\"é😀' } }, me));
  }
  const bytes = utf8(JSON.stringify({ note: '{"events":[1]}', ok: true, events, cursor: 'c', more: { events: [1] } }));
  for (let size = 1; size < 40; size++) {
    const client = clientOf(() => new Response(new ReadableStream({
      start(controller) {
        for (let at = 0; at < bytes.length; at += size) controller.enqueue(bytes.subarray(at, at + size));
        controller.close();
      },
    })), { log: (text) => logged.push(text) });
    const answer = await client.page();
    assert.deepEqual(answer.events, events);
    assert.deepEqual([answer.cursor, answer.more, answer.note], ['c', { events: [1] }, '{"events":[1]}']);
  }
  assert.deepEqual(logged, []);
});

test('a connection that breaks in the middle of an answer is a temporary failure', async () => {
  const client = clientOf(() => new Response(new ReadableStream({
    start(controller) { controller.enqueue(utf8('{"ok":true,"events":[')); },
    pull() { throw broken(); },
  })));
  await assert.rejects(client.page(), (err) => err.code === 'NO_ANSWER' && err.retryable);
});
