// postAll at a relay in memory, and at a real one.
import assert from 'node:assert/strict';
import test from 'node:test';
import { canonicalize, Relay, sign, UnknownOutcome } from '../agora.js';
import { Client, identity } from '../node.js';
import { answer, broken, FakeRelay, refuse } from './fakerelay.js';
import { alice, bob, message } from './helpers.js';
import { needsRelay, startRelay } from './real.js';

// The REQUEST and the CANCEL of each of some threads.
async function conversations(threads, me = alice) {
  const all = [];
  for (let n = 0; n < threads; n++) {
    for (const type of ['REQUEST', 'CANCEL']) {
      const thread = { id: `t${n}` }, payload = type === 'REQUEST' ? { request_id: `t${n}`, intent: 'echo' } : {};
      const ts = new Date().toISOString(), changes = { id: `m${n}${type}`, type, thread, payload, ts };
      all.push(await message({ ...changes, recipient: { id: bob.did }, meta: { ttl: 600 } }, me));
    }
  }
  return all;
}

// The codes of the results; '' for a receipt, and ? before the code of an unknown outcome.
const codes = (results) => results.map(({ status, value, reason }) => status === 'fulfilled' ? value.id && ''
  : reason instanceof UnknownOutcome ? `?${reason.cause.code}` : reason.code);

// A relay whose hook answers the next posts with these functions or answers, and its client, whose pauses are short.
async function start(t, ...faults) {
  const relay = await FakeRelay.start(), pauses = [];
  t.mock.method(Math, 'random', () => 0);
  const set = globalThis.setTimeout;
  t.mock.method(globalThis, 'setTimeout', (act, ms, ...rest) => {
    if (ms < 30_000) pauses.push(ms);
    return set(act, ms < 30_000 ? 0 : ms, ...rest);
  });
  relay.hook = (url, options, next) => {
    const fault = options.method === 'POST' ? faults.shift() : undefined;
    return typeof fault === 'function' ? fault(next) : fault ?? next();
  };
  return { relay, client: relay.client(alice), pauses };
}

const LIMITED = { error: 'RATE_LIMITED', message: 'slowly', retryAfter: 3 };
const TOO_LARGE = { error: 'PAYLOAD_TOO_LARGE', message: 'too large' }, FAILED = { error: 'INTERNAL_ERROR' };
const lost = async (next) => { await next(); throw broken(); }, reset = () => { throw broken(); };
const refused = () => { throw broken('ECONNREFUSED'); };

test('postAll returns what became of each message, in order', async (t) => {
  const { relay, client } = await start(t), all = await conversations(3);
  const wrong = await sign({ ...all[5], id: 'x', thread: { id: 'none' } }, alice);
  const results = await client.postAll([...all.slice(0, 5), wrong, { n: NaN }, all[5]]);
  assert.deepEqual(codes(results), ['', '', '', '', '', 'THREAD_NOT_FOUND', 'INVALID_REQUEST', '']);
  assert.deepEqual(relay.bulks, [[...all.slice(0, 5), wrong, all[5]]
    .map((e) => new TextDecoder().decode(canonicalize(e)))]);
  assert.deepEqual(relay.events.map((e) => e.id), all.map((e) => e.id));
  assert.equal(results[0].value.duplicate, false);
  assert.deepEqual(await client.postAll([]), []);
});

test('postAll continues after refusals and failures', async (t) => {
  for (const [faults, refusals, want, requests, waits] of [
    [[lost], [], ['', '', '', ''], 2, 250],
    [[], [{ 0: LIMITED }], ['', '', '', ''], 2, 3000], // the CANCEL behind the limited REQUEST is sent again too
    [[], [{ stop: [1, LIMITED] }], ['', '', '', ''], 3, 3000],
    [[], [{ stop: [3, TOO_LARGE] }], ['', '', '', ''], 2],
    [[], [{ stop: [0, TOO_LARGE] }], ['PAYLOAD_TOO_LARGE', 'THREAD_NOT_FOUND', '', ''], 2],
    [[], Array(8).fill({ stop: [0, LIMITED] }), Array(4).fill('RATE_LIMITED'), 8],
    [[], [{ 3: { error: 'NEW' } }], ['', '', '', 'NEW'], 1],
    [[], [{ 0: { ...LIMITED, retryAfter: 121 } }], ['RATE_LIMITED', 'THREAD_NOT_FOUND', '', ''], 1],
    [[], [{ 3: FAILED }, { 0: { error: 'EXPIRED' } }], ['', '', '', '?EXPIRED'], 2],
    [[], [{ stop: [3, FAILED] }, { 0: { error: 'EXPIRED' } }], ['', '', '', '?EXPIRED'], 2],
    [[], [{ stop: [3, LIMITED] }, { 0: { error: 'EXPIRED' } }], ['', '', '', 'EXPIRED'], 2],
    [Array(8).fill(reset), [], Array(4).fill('?NO_ANSWER'), 0],
    [Array(8).fill(refused), [], Array(4).fill('NO_ANSWER'), 0],
    [[lost], [{}, { stop: [0, TOO_LARGE] }], ['?PAYLOAD_TOO_LARGE', '', '', ''], 3],
    [[answer(413, {}), answer(413, {})], [], ['', '', '', ''], 3],
    [[refuse(403, 'FORBIDDEN')], [], Array(4).fill('FORBIDDEN'), 0],
    [[refuse(429, 'RATE_LIMITED', {}, { 'retry-after': '29' })], [], ['', '', '', ''], 1],
    [[refuse(404, 'NOT_FOUND')], [], ['', '', '', ''], 0],
    [[refuse(405, 'METHOD_NOT_ALLOWED'), undefined, ...Array(8).fill(refused)], [],
      ['', 'NO_ANSWER', 'NO_ANSWER', 'NO_ANSWER'], 0],
    [[lost, refuse(404, 'NOT_FOUND'), refuse(400, 'EXPIRED')], [], ['?EXPIRED', '', '', ''], 1],
    [[answer(200, { ok: true, results: [] })], [], ['', '', '', ''], 1],
    [[answer(200, { ok: true, results: Array(5).fill({ id: 'a' }) })], [], ['', '', '', ''], 1],
    [[answer(200, { ok: true, results: Array(4).fill({ id: 'a' }) })], [], ['', '', '', ''], 1],
    [[answer(200, { ok: true, results: Array(4).fill({ error: 7 }) })], [], ['', '', '', ''], 1],
  ]) {
    await t.test(JSON.stringify([faults.length, refusals, want]), async (t) => {
      const { relay, client, pauses } = await start(t, ...faults), all = await conversations(2);
      relay.refusals = [...refusals];
      const results = await client.postAll(all);
      assert.deepEqual(codes(results), want);
      assert.deepEqual([relay.bulks.length, relay.refusals.length], [requests, 0]);
      if (waits) assert.ok(pauses.some((ms) => ms >= waits), `${pauses}`);
    });
  }
});

test('postAll sends as many messages as the relay takes', async (t) => {
  const { relay, client } = await start(t), stop = { stop: [3, LIMITED] };
  relay.refusals = [stop, stop, {}, {}, { stop: [0, LIMITED] }];
  assert.deepEqual(codes(await client.postAll(await conversations(15))), Array(30).fill(''));
  assert.deepEqual(relay.bulks.map((lines) => lines.length), [30, 3, 3, 6, 12, 1, 2, 4, 8]);
});

test('postAll ends with its signal', async (t) => {
  const stop = new AbortController(), all = await conversations(2), reason = new Error('enough');
  const relay = await FakeRelay.start();
  relay.refusals = [{ stop: [1, LIMITED] }];
  const client = relay.client(alice, { log: () => setTimeout(() => stop.abort(reason)) });
  const [first, ...others] = await client.postAll(all, { signal: stop.signal });
  assert.equal(first.status, 'fulfilled');
  for (const other of others) assert.equal(other.reason, reason); // certainly not stored
  const [sent] = await relay.client(alice).postAll(all.slice(3), { signal: AbortSignal.abort(reason) });
  assert.equal(sent.reason.cause ?? sent.reason, reason);
});

test('postAll asks who may read before it sends private messages', async (t) => {
  const { relay } = await start(t);
  await assert.rejects(relay.client(alice, { requireParties: true }).postAll(await conversations(1)));
  assert.equal(relay.bulks.length, 0);
  assert.ok(Relay.prototype.postBulk);
});

test('postAll at a real relay', async (t) => {
  if (!needsRelay(t)) return;
  const me = await identity(), client = new Client(await startRelay(t), { me, log() {} });
  const all = await conversations(600, me);
  for (const again of [false, true]) {
    const results = await client.postAll(all);
    assert.ok(results.every(({ value }, i) => value?.id === all[i].id && value.duplicate === again));
  }
});
