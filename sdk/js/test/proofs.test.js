// The option proofs: what a post returns, and when an agent works.
import assert from 'node:assert/strict';
import test from 'node:test';
import { Client, identity, NoProof, UnknownOutcome, verifyProof } from '../index.js';
import { broken, FakeRelay, proofOf, refuse, serving, skipWaits, until } from './fakerelay.js';
import { alice, bob, message } from './helpers.js';

const right = (proof) => proof, none = () => undefined, NEWS = { request_id: 'r', intent: 'echo' };
const ofAnother = async (proof, e) => proofOf(await identity(), e); // by another relay
const ofOther = () => message().then((other) => proofOf(alice, other));
const cut = (proof) => proof.slice(0, -5);
const odd = (proof) => proof.replaceAll('did:key:z', 'did:key:y');
const long = () => 'x'.repeat((64 << 10) + 1);

async function start(given, shown, proofs, me = alice) {
  const relay = await FakeRelay.start();
  Object.assign(relay, { given, shown, features: ['proofs'] });
  return { relay, client: relay.client(me, { proofs }) };
}

test('proofs must be one of three words', () => {
  for (const proofs of ['on', '', true, null, ['off']]) {
    assert.throws(() => new Client('http://relay.test', { proofs }), (err) =>
      err instanceof TypeError && err.message.includes("'prefer'"));
  }
  assert.equal(new Client('http://relay.test').proofs, 'prefer');
});

// The proof in the receipt, that of /proofs, the option; whether the receipt has a proof, or why there is NoProof; and
// how often /proofs was read.
for (const [name, given, shown, proofs, want, reads] of [
  ['valid', right, none, 'prefer', true, 0],
  ['valid', right, none, 'required', true, 0],
  ['off', right, right, 'off', false, 0],
  ['off, and wrong', ofAnother, ofAnother, 'off', false, 0],
  ['wrong, then good', ofAnother, right, 'prefer', true, 1],
  ['wrong, then good', cut, right, 'required', true, 1],
  ['that of another message, then good', ofOther, right, 'prefer', true, 1],
  ['no text, then good', () => ({}), right, 'prefer', true, 1],
  ['wrong both', ofAnother, cut, 'prefer', /no proof that holds: INVALID_PROOF: the proof is by another relay/, 1],
  ['wrong both', odd, odd, 'prefer', /no proof that holds: INVALID_DID/, 1],
  ['wrong both', cut, ofOther, 'required', /no proof that holds: INVALID_PROOF/, 1],
  ['wrong, then none', cut, none, 'prefer', /no proof that holds: INVALID_PROOF/, 1],
  ['wrong, then too long', cut, long, 'prefer', /no proof that holds: INVALID_PROOF/, 1],
  ['none', none, right, 'prefer', false, 0],
  ['none, then good', none, right, 'required', true, 1],
  ['none at all', none, none, 'required', /gave no proof; use proofs: 'prefer', or a relay whose/, 1],
  ['none, then wrong', none, ofAnother, 'required', /no proof that holds: INVALID_PROOF/, 1],
  ['none, then too long', none, long, 'required', /no proof that holds: INVALID_PROOF/, 1],
]) {
  test(`a post, ${proofs}: ${name}`, async () => {
    const { relay, client } = await start(given, shown, proofs), posted = client.post('REQUEST', NEWS, { thread: 't' });
    if (want instanceof RegExp) {
      await assert.rejects(posted, (err) => err instanceof NoProof && err instanceof UnknownOutcome && err.retryable &&
        err.code === 'UNKNOWN_OUTCOME' && err.name === 'NoProof' && err.envelope.id === relay.events[0].id &&
        want.test(err.message));
    } else {
      const receipt = await posted;
      assert.equal(Object.hasOwn(receipt, 'proof'), want);
      if (want) await verifyProof(receipt.proof, { message: relay.events[0], relay: relay.me.did });
    }
    assert.equal(relay.asked.length, reads);
    assert.equal(relay.events.length, 1);
  });
}

test('a relay that does not say who it is after a post: prefer accepts it, required does not', async (t) => {
  skipWaits(t);
  for (const proofs of ['prefer', 'required']) {
    const { relay } = await start(right, right, proofs), plain = relay.fetch;
    const fetch = (url, options) => url.endsWith('agora.json') ? refuse(404, 'NOT_FOUND') : plain(url, options);
    const posted = relay.client(alice, { fetch, proofs }).post('REQUEST', NEWS, { thread: 't' });
    if (proofs === 'prefer') assert.equal((await posted).proof, undefined);
    else await assert.rejects(posted, NoProof);
  }
});

test('a duplicate has no proof: prefer accepts it, and required reads the proof', async () => {
  const e = await message({ ts: new Date().toISOString() });
  for (const [proofs, want] of [['prefer', 0], ['required', 1]]) {
    const { relay, client } = await start(right, right, proofs);
    relay.hook = async (url, options, next) => {
      relay.hook = undefined;
      await next();
      throw broken();
    };
    const receipt = await client.postEnvelope(e);
    assert.deepEqual([receipt.duplicate, relay.asked.length, Boolean(receipt.proof)], [true, want, want === 1]);
  }
});

test('a private relay gets a signed read, and a limited read is repeated', async (t) => {
  skipWaits(t);
  const { relay, client } = await start(none, right, 'required');
  relay.reads = 'parties';
  let limited = 0;
  relay.hook = (url, options, next) => url.pathname === '/proofs' && limited++ === 0
    ? refuse(429, 'RATE_LIMITED', {}, { 'retry-after': '1' }) : next();
  assert.ok((await client.post('REQUEST', NEWS, { to: bob.did, thread: 't' })).proof);
  assert.deepEqual([limited, relay.authorized], [2, ['/proofs']]);
});

test('without an answer to the read, the outcome is unknown', async () => {
  const { relay, client } = await start(none, right, 'required');
  relay.hook = (url, options, next) => { if (url.pathname === '/proofs') throw broken(); return next(); };
  const call = client.request('echo', 1);
  await assert.rejects(call, (err) => err instanceof NoProof && err.cause.code === 'NO_ANSWER' &&
    err.message.includes('no proof that holds: NO_ANSWER') && err.call.thread !== undefined);
});

test('postAll asks for proofs, and checks each', async () => {
  const now = new Date().toISOString(), thread = (n) => ({ id: `t${n}` });
  const all = await Promise.all([0, 1, 2, 3].map((n) => message({ id: `m${n}`, ts: now, thread: thread(n) })));
  const wrongFirst = (good) => (proof, e) => e.id === 'm1' ? good(proof, e) : proof;
  for (const [given, shown, features, proofs, want, reads] of [
    [right, none, ['proofs'], 'prefer', [1, 1, 1, 1], 0],
    [right, none, ['proofs'], 'required', [1, 1, 1, 1], 0],
    [right, right, ['proofs'], 'off', [0, 0, 0, 0], 0],
    [right, right, [], 'prefer', [0, 0, 0, 0], 0], // it does not ask for proofs
    [right, right, [], 'required', [1, 1, 1, 1], 4],
    [right, none, [], 'required', ['?', '?', '?', '?'], 4],
    [none, right, ['proofs'], 'prefer', [0, 0, 0, 0], 0],
    [wrongFirst(cut), right, ['proofs'], 'prefer', [1, 1, 1, 1], 1],
    [wrongFirst(cut), wrongFirst(ofAnother), ['proofs'], 'prefer', [1, '?', 1, 1], 1],
    [wrongFirst(none), wrongFirst(none), ['proofs'], 'required', [1, '?', 1, 1], 1],
  ]) {
    const { relay, client } = await start(given, shown, proofs);
    relay.features = features;
    const results = await client.postAll(all);
    const found = results.map(({ value, reason }) => reason instanceof NoProof ? '?' : Number(Boolean(value.proof)));
    assert.deepEqual([found, relay.asked.length], [want, reads], `${proofs} ${want}`);
    assert.ok(results.every(({ reason }, i) => !reason || reason.envelope === all[i]));
    assert.equal(relay.bulks.length, 1, 'nothing was posted again');
  }
});

test('postAll checks the proofs of messages that it posts one by one', async () => {
  const e = await message({ ts: new Date().toISOString() });
  const { relay, client } = await start(cut, cut, 'prefer');
  relay.hook = (url, options, next) => url.pathname === '/events/bulk' ? refuse(404, 'NOT_FOUND') : next();
  const [{ reason }] = await client.postAll([e]);
  assert.ok(reason instanceof NoProof);
});

// What /proofs has for the ACCEPT, the features, the option; whether the agent works, or why not; what is logged.
const withoutRequest = (proof, e) => 'ACCEPT' === e.type ? undefined : proof;
for (const [name, shown, features, proofs, works, logged] of [
  ['valid', right, ['proofs'], 'prefer', true],
  ['valid', right, [], 'required', true],
  ['off', cut, ['proofs'], 'off', true],
  ['no feature', cut, [], 'prefer', true],
  ['none', withoutRequest, ['proofs'], 'prefer', true, /gives no proof.*working without one/],
  ['none', withoutRequest, ['proofs'], 'required', false, /does not begin to work: the relay gives no proof/],
  ['none, no feature', withoutRequest, [], 'required', false, /does not begin to work: the relay gives no proof/],
  ['no REQUEST', 'dash', ['proofs'], 'prefer', true, /does not say to which REQUEST.*working without one/],
  ['no REQUEST', 'dash', ['proofs'], 'required', false, /does not begin to work: .*to which REQUEST/],
  ['another REQUEST', 'other', ['proofs'], 'prefer', false, /does not begin to work: .*another REQUEST/],
  ['another REQUEST', 'other', ['proofs'], 'required', false, /does not begin to work: .*another REQUEST/],
  ['wrong', ofAnother, ['proofs'], 'prefer', false, /does not begin to work: .*does not hold/],
  ['wrong', cut, ['proofs'], 'required', false, /does not begin to work: .*does not hold/],
  ['that of another message', 'request', ['proofs'], 'prefer', false, /does not begin to work: .*does not hold/],
  ['by no DID', odd, ['proofs'], 'prefer', false, /does not begin to work: .*does not hold/],
  ['too long', long, ['proofs'], 'prefer', false, /does not begin to work: .*does not hold/],
]) {
  test(`an agent, ${proofs}: ${name}`, { timeout: 20_000 }, async (t) => {
    const { relay, client } = await start(right, right, 'off'), logs = [];
    const special = { dash: (proof, e) => proofOf(relay.me, e),
      request: () => proofOf(relay.me, relay.of('REQUEST')[0]),
      other: (proof, e) => proofOf(relay.me, e, { request: 'ab'.repeat(32) }) };
    Object.assign(relay, { features, shown: special[shown] ?? shown });
    const agent = relay.client(bob, { proofs, log: (text) => logs.push(text) });
    let worked = 0;
    serving(t, agent, 'echo', { work: ({ params }) => { worked++; return params; } });
    const call = await client.request('echo', 5, { to: bob.did, seal: name === 'valid' });
    await call.accept(await call.best('first', { signal: t.signal }));
    const ended = call.result({ signal: t.signal });
    if (works) assert.equal((await ended).output, 5);
    else await assert.rejects(ended, (err) => err.code === 'UNAVAILABLE' && logged.test(err.message));
    assert.equal(worked, Number(works));
    assert.deepEqual(logs.filter((text) => !logged?.test(text)), []);
    assert.equal(logs.length, logged ? 1 : 0);
  });
}

test('an agent reads the proof of an ACCEPT again after a temporary failure', { timeout: 20_000 }, async (t) => {
  skipWaits(t);
  const { relay, client } = await start(right, right, 'off'), agent = relay.client(bob, { proofs: 'required' });
  const faults = [() => { throw broken(); }, () => refuse(503, 'UNAVAILABLE'), () => new Response('', { status: 502 })];
  let worked = 0;
  relay.hook = (url, options, next) => url.pathname === '/proofs' && faults.length ? faults.shift()() : next();
  serving(t, agent, 'echo', { work: () => ++worked });
  const call = await client.request('echo', 1);
  await call.accept(await call.best('first', { signal: t.signal }));
  assert.equal((await call.result({ signal: t.signal })).output, 1);
  assert.deepEqual([faults.length, worked], [0, 1]);
});

test('an agent at a relay without a document works', { timeout: 20_000 }, async (t) => {
  const { relay, client } = await start(none, none, 'off'), plain = relay.fetch;
  const fetch = (url, options) => url.endsWith('agora.json') ? refuse(404, 'NOT_FOUND') : plain(url, options);
  serving(t, relay.client(bob, { fetch }), 'echo', { work: () => 1 });
  const call = await client.request('echo', 1);
  await call.accept(await call.best('first', { signal: t.signal }));
  assert.equal((await call.result({ signal: t.signal })).output, 1);
  await until(() => relay.of('RESULT').length === 1);
});
