// Both sides of a thread, through a relay in memory.
import assert from 'node:assert/strict';
import test from 'node:test';
import { AgentError, Cancelled, Closed, identity, isSealed, newThread, Plain, Result, sign, Unacceptable,
  UnknownOutcome, Unproven, wasSealed } from '../index.js';
import { broken, FakeRelay, refuse, serving, skipWaits, until } from './fakerelay.js';
import { alice, bob } from './helpers.js';

const echo = { work: ({ params }) => ({ echo: params }) };

async function parties(t, handler = echo) {
  const relay = await FakeRelay.start(), client = relay.client(alice), agent = relay.client(bob);
  if (handler) serving(t, agent, 'echo', handler);
  return { relay, client, agent };
}

// Posts a message of the agent in the thread of a call.
const post = (agent, type, call, payload = {}, options = {}) => agent.post(type,
  { request_id: call.requestId, ...payload }, { to: alice.did, thread: call.thread, ...options });

// The offers of a call when there are so many, however long the machine takes to read them.
async function collected(call, count) {
  for (let n = 0; n < 50; n++) {
    const offers = await call.collect({ seconds: 0.2 });
    if (offers.length >= count) return offers;
  }
  throw new Error(`not ${count} offers`);
}

for (const [name, options] of Object.entries({ 'a broadcast': {}, 'to one agent': { to: bob.did },
  sealed: { to: bob.did, seal: true } })) {
  test(`a request and its result: ${name}`, async (t) => {
    const quote = () => ({ price: 0.5, etaSeconds: 2, plan: 'quickly' });
    const { relay, client } = await parties(t, { ...echo, quote });
    const call = await client.request('echo', { text: 'hello' }, { maxCost: 1, title: 'T', ...options });
    const offer = await call.best('first');
    assert.deepEqual([offer.agent, offer.price, offer.etaSeconds, offer.plan],
      [bob.did, { amount: 0.5, currency: 'USD' }, 2, 'quickly']);
    await call.accept(offer);
    assert.equal(call.agent, bob.did);
    const result = await call.result();
    assert.deepEqual([result.output, result.status, result.agent], [{ echo: { text: 'hello' } }, 'success', bob.did]);
    assert.equal((await call.state()).state, 'COMPLETED');
    assert.deepEqual(relay.events.map((e) => e.type), ['REQUEST', 'OFFER', 'ACCEPT', 'RESULT']);
    assert.ok(relay.events.every((e) => isSealed(e) === Boolean(options.seal)));
    assert.equal(relay.events[2].payload.terms?.price_usd, options.seal ? undefined : 0.5);
    assert.equal(wasSealed(result.envelope), Boolean(options.seal));
  });
}

test('a result may have more than an output, and an agent may refuse', async (t) => {
  const { client } = await parties(t, { work({ params }) {
    if (params === 'refuse') throw new AgentError('OUT_OF_PAPER', 'no paper\u001b[31m', { details: { sheets: 0 } });
    if (params === 'fail') throw new Error('secret');
    return new Result(1, { artifacts: ['a'], metrics: { ms: 5 } });
  } });
  const ask = async (params) => {
    const call = await client.request('echo', params);
    await call.accept(await call.best('first'));
    return call.result();
  };
  const { output, artifacts, metrics } = await ask('more');
  assert.deepEqual([output, artifacts, metrics], [1, ['a'], { ms: 5 }]);
  await assert.rejects(ask('refuse'), (err) => err instanceof AgentError && err.code === 'OUT_OF_PAPER' &&
    !err.retryable && err.from === bob.did && err.details.sheets === 0 && err.reason === 'no paper\u001b[31m' &&
    err.message === 'OUT_OF_PAPER: no paper\\u001b[31m');
  await assert.rejects(ask('fail'), (err) => err.code === 'INTERNAL_ERROR' && err.retryable &&
    !err.message.includes('secret'));
});

test('offers that break the limits are left out and refused', async (t) => {
  const { relay, client, agent } = await parties(t, null), later = (ms) => new Date(Date.now() + ms);
  const call = await client.request('echo', null, { maxCost: 1, deadline: later(100_000) });
  const offers = {};
  for (const [name, payload] of Object.entries({
    dear: { price: { amount: 1.01, currency: 'USD' } }, euro: { price: { amount: 0.1, currency: 'EUR' } },
    slow: { eta_seconds: 100 }, over: { valid_until: later(-1000).toISOString() },
    bad: { price: 'cheap' }, wrong: { eta_seconds: 'soon' }, odd: { valid_until: 'now' },
    good: { price: { amount: 0.9, currency: 'usd' }, eta_seconds: 50 },
    better: { price: { amount: 0.8, currency: 'USD' }, eta_seconds: 60 },
    free: { price: { amount: 0, currency: 'EUR' } },
    numberless: { price: { currency: 'USD' } }, negative: { price: { amount: -1, currency: 'USD' } },
  })) {
    const other = await identity();
    offers[other.did] = name;
    await post(relay.client(other), 'OFFER', call, payload);
  }
  const all = await collected(call, 9), named = (offer) => offers[offer.agent];
  assert.deepEqual(all.map(named).sort(), ['better', 'dear', 'euro', 'free', 'good', 'negative', 'numberless', 'over',
    'slow']);
  const best = async (...args) => named(await call.best(...args));
  assert.equal(await best('first'), 'good');
  assert.equal(await best('cheapest', { seconds: 2 }), 'free');
  assert.equal(await best('fastest', { seconds: 2 }), 'good');
  assert.equal(await best((a, b) => (b.price?.amount ?? 0) - (a.price?.amount ?? 0), { seconds: 2 }), 'good');
  assert.equal(await best('first', { maxCost: Infinity }), 'dear');
  const other = await client.request('echo', null);
  await post(agent, 'OFFER', other, { price: { amount: 1, currency: 'USD' } });
  await assert.rejects(other.best('first', { maxCost: 0.5, seconds: 2 }), (err) => err instanceof Unacceptable &&
    err.retryable && /acceptable/.test(err.message));
  await assert.rejects(call.best('first', { maxCost: '1' }), { name: 'TypeError', message: /^maxCost/ });
  await assert.rejects(call.accept(all[0], { deadline: 'soon' }), { name: 'TypeError', message: /^deadline/ });
  await assert.rejects(call.best('cheap'), TypeError);
  const reasons = { dear: /costs 1.01/, euro: /"EUR"/, slow: /deadline/, over: /valid until/, numberless: /no number/,
    negative: /negative/ };
  for (const [name, why] of Object.entries(reasons)) {
    await assert.rejects(call.accept(all.find((offer) => named(offer) === name)),
      (err) => err instanceof Unacceptable && err.code === 'UNACCEPTABLE' && why.test(err.message), name);
  }
  await assert.rejects(call.accept({ ...all[0], requestId: 'other' }), Unacceptable);
  await assert.rejects(call.accept(undefined), Unacceptable);
  await assert.rejects(call.result(), /accept an offer first/);
  await call.accept(all.find((offer) => named(offer) === 'dear'), { maxCost: 2 });
  assert.equal((await call.collect({ seconds: 60 })).length, all.length, 'offers end with the ACCEPT');
  await assert.rejects(call.best('first'), (err) => err instanceof Unacceptable && !err.retryable);
});

test('request and resume refuse wrong arguments before anything is sent', async () => {
  const relay = await FakeRelay.start(), client = relay.client(alice), past = new Date(Date.now() - 1000);
  relay.hook = () => assert.fail('sent');
  const wrong = { maxCost: ['1', NaN, -1, null], thread: ['', 'a\n', 'a b', null, 5],
    deadline: ['soon', '', 5, null, new Date(NaN), past, past.toISOString()] };
  for (const [name, values] of Object.entries(wrong)) {
    for (const value of values) {
      await assert.rejects(client.request('echo', 1, { [name]: value }),
        (err) => err instanceof TypeError && err.message.startsWith(name), `${name}: ${value}`);
    }
  }
  for (const intent of ['', undefined, ['echo']]) {
    await assert.rejects(client.request(intent), { name: 'TypeError', message: /^intent must/ });
  }
  for (const thread of ['', 'a\n', undefined]) {
    await assert.rejects(client.resume(thread), { name: 'TypeError', message: /^thread must/ });
  }
  for (const act of [(c) => c.request('echo'), (c) => c.resume('t'), (c) => c.post('CANCEL', {}, { thread: 't' })]) {
    await assert.rejects(async () => act(relay.client()), (err) => /identity: new Client\(url/.test(err.message));
  }
});

test('a request with the same thread may be repeated after its deadline', async (t) => {
  const { relay } = await parties(t), thread = newThread(), deadline = new Date(Date.now() + 60_000);
  const client = relay.client(alice, { clock: () => Date.now() + relay.skew });
  const first = await client.request('echo', 1, { thread, deadline });
  await first.accept(await first.best('first'));
  await first.result();
  relay.skew = 61_000;
  assert.deepEqual((await (await client.request('echo', 1, { thread, deadline })).result()).output, { echo: 1 });
});

test('messages of others do not count', async (t) => {
  const { relay, client, agent } = await parties(t, null), mallory = await identity();
  const call = await client.request('echo', 1, { to: bob.did });
  const forged = async (type, payload, me, more = {}) => relay.add(await sign({
    version: '1.0', id: `msg_${Math.random()}`, ts: new Date().toISOString(), type,
    payload: { request_id: call.requestId, ...payload }, sender: { id: me.did },
    recipient: { id: alice.did }, thread: { id: call.thread }, ...more }, me));
  await forged('OFFER', {}, mallory); // not the agent that was asked
  await forged('OFFER', { request_id: 'other' }, bob);
  await forged('OFFER', {}, bob, { recipient: { id: mallory.did } });
  await forged('ERROR', { code: 'X', message: 'no' }, mallory);
  relay.add({ ...relay.events[1], sender: { id: bob.did } }); // not signed by bob
  assert.deepEqual(await call.collect({ seconds: 0.3 }), []);
  await post(agent, 'OFFER', call);
  await call.accept(await call.best('first'));
  await forged('RESULT', { status: 'success', output: 'forged' }, mallory);
  await forged('RESULT', { status: 'success', output: 'other', request_id: 'other' }, bob);
  await post(agent, 'RESULT', call, { status: 'success', output: 'right' });
  assert.equal((await call.result()).output, 'right');
});

test('a thread that ends without a result', async (t) => {
  const { relay, client, agent } = await parties(t, null);
  const open = async (options = { to: bob.did }) => client.request('echo', 1, options);
  let call = await open();
  await post(agent, 'ERROR', call, { code: 'UNAVAILABLE', message: 'busy' });
  await assert.rejects(call.best('first'), (err) => err instanceof AgentError && err.code === 'UNAVAILABLE' &&
    err.retryable);
  call = await open();
  await call.cancel('enough');
  assert.equal(relay.events.at(-1).payload.reason, 'enough');
  await assert.rejects(call.best('first'), (err) => err instanceof Cancelled && err.code === 'CANCELLED');
  call = await open();
  const waiting = call.best('first');
  until(() => relay.waiting).then(() => relay.timeOut(alice.did, call.thread));
  await assert.rejects(waiting, (err) => err instanceof AgentError && err.code === 'TIMEOUT' &&
    err.from === relay.me.did);
  call = await open({});
  await post(agent, 'OFFER', call);
  await post(agent, 'ERROR', call, { code: 'X', message: 'withdrawn' }); // the thread continues
  const other = relay.client(await identity());
  await post(other, 'OFFER', call);
  const offers = await collected(call, 2);
  await call.accept(offers[1]);
  setTimeout(() => post(other, 'ERROR', call, { code: 'X', message: 'late' }), 20);
  await assert.rejects(call.result(), (err) => err instanceof AgentError && err.code === 'X');
});

test('sealed requests refuse plain and unreadable answers', async (t) => {
  const { relay, client, agent } = await parties(t, null), sealed = { to: bob.did, seal: true };
  let call = await client.request('echo', 1, sealed);
  assert.ok(isSealed(relay.events[0]));
  await post(agent, 'OFFER', call);
  await assert.rejects(call.best('first'), (err) => err instanceof Plain && err.code === 'PLAIN');
  call = await client.request('echo', 1, { ...sealed, allowPlain: true });
  await post(agent, 'OFFER', call);
  await call.accept(await call.best('first'));
  assert.ok(isSealed(relay.events.at(-1)), 'the ACCEPT is sealed all the same');
  call = await client.request('echo', 1, sealed);
  await agent.post('OFFER', { request_id: call.requestId, sealed: `v1.${'A'.repeat(120)}` },
    { to: alice.did, thread: call.thread });
  await assert.rejects(call.best('first'), (err) => err instanceof Closed && err.code === 'CLOSED');
  call = await client.request('echo', 1, sealed);
  await post(agent, 'ERROR', call, { code: 'FORBIDDEN', message: 'no' });
  await assert.rejects(call.best('first'), (err) => err instanceof Plain && err.cause instanceof AgentError &&
    err.cause.code === 'FORBIDDEN');
  await assert.rejects(client.request('echo', 1, { seal: true }), (err) => err.code === 'INVALID_REQUEST');
});

test('a request with the same id continues the thread', async (t) => {
  const { relay, client, agent } = await parties(t, null), thread = newThread(), options = { thread, maxCost: 1 };
  const first = await client.request('echo', 1, options);
  const again = () => relay.client(alice).request('echo', 1, options); // another process
  const second = await again();
  assert.deepEqual([second.thread, second.requestId, second.agent], [thread, first.requestId, undefined]);
  assert.equal(relay.of('REQUEST').length, 1);
  await post(agent, 'OFFER', first, { price: { amount: 2, currency: 'USD' } });
  await assert.rejects(second.accept((await collected(second, 1))[0]), Unacceptable);
  await post(agent, 'OFFER', first, { price: { amount: 1, currency: 'USD' } });
  await second.accept((await collected(second, 2))[1]);
  const third = await again();
  assert.equal(third.agent, bob.did);
  await post(agent, 'RESULT', first, { status: 'success', output: 5 });
  assert.equal((await third.result()).output, 5);
  assert.equal((await (await again()).result()).output, 5);
  for (const other of [{ ...options, to: bob.did }, { ...options, to: bob.did, seal: true }]) {
    await assert.rejects(client.request('echo', 1, other), (err) => err.code === 'INVALID_TRANSITION');
  }
  await assert.rejects(client.request('other', 1, options), (err) => err.code === 'INVALID_TRANSITION');
});

test('resume needs a proof', async (t) => {
  const { relay, client, agent } = await parties(t, null), call = await client.request('echo', 1, { to: bob.did });
  await post(agent, 'OFFER', call);
  await call.accept(await call.best('first'));
  const resumed = await relay.client(alice).resume(call.thread);
  assert.deepEqual([resumed.agent, resumed.recipient], [bob.did, bob.did]);
  await assert.rejects(client.resume('nowhere'), (err) => err.code === 'THREAD_NOT_FOUND' && !err.retryable);
  const all = relay.events;
  relay.events = [];
  await assert.rejects(client.resume(call.thread), (err) => err instanceof Unproven && err.code === 'UNPROVEN');
  const known = await client.resume(call.thread, { requestId: call.requestId, to: bob.did });
  assert.equal(known.recipient, bob.did);
  relay.events = all;
  const sealed = await client.request('echo', 1, { to: bob.did, seal: true, maxCost: 1 });
  await post(agent, 'OFFER', sealed, {}, { seal: true });
  const after = await relay.client(alice).resume(sealed.thread), offer = await sealed.best('first');
  assert.ok(after.seal);
  await assert.rejects(after.accept(offer), (err) => err instanceof Unacceptable && /maxCost/.test(err.message));
  await after.accept(offer, { maxCost: 1 });
  assert.ok(isSealed(relay.events.at(-1)));
});

test('after an unknown outcome there is a call', async (t) => {
  skipWaits(t);
  const { relay, client } = await parties(t, null);
  relay.hook = async (url, options, next) => {
    if (options.method !== 'POST') return next();
    await next();
    throw broken();
  };
  const err = await client.request('echo', 1).catch((failed) => failed);
  assert.ok(err instanceof UnknownOutcome && err.code === 'UNKNOWN_OUTCOME' && err.retryable);
  assert.equal(relay.of('REQUEST').length, 1);
  relay.hook = undefined;
  assert.equal((await err.call.state()).state, 'PENDING');
  assert.equal((await client.postEnvelope(err.envelope)).duplicate, true);
});

test('a hostile record neither ends nor continues a call', async (t) => {
  skipWaits(t);
  const { relay, client } = await parties(t, null), call = await client.request('echo', 1);
  const real = (await client.thread(call.thread, alice.did)).thread;
  let n = 0;
  const lies = [
    { thread: null }, { thread: { ...real, id: 'other' } }, { thread: { ...real, client: bob.did } }, { thread: [] },
    { thread: { ...real, offers: 'many' } }, { thread: { ...real, transitions: [null] } },
    { thread: { ...real, state: 5 } }, { thread: { ...real, deadline: 'x' } }, { events: 'none' },
    { thread: { ...real, state: 'ERROR', transitions: [{ type: 'ERROR', by: bob.did, id: 'msg_x' }] } },
  ];
  relay.hook = async (url, options, next) => {
    if (!url.pathname.startsWith('/threads')) return Response.json({ ok: true, events: [], cursor: `c${n}` });
    return Response.json({ ok: true, thread: real, events: [], ...lies[Math.min(n++, lies.length - 1)] });
  };
  await assert.rejects(call.best('first'), (err) => err.code === 'GONE');
  assert.equal(n, lies.length);
});

test('an aborted signal ends every wait of a call', async (t) => {
  const { client, agent } = await parties(t, null), call = await client.request('echo', 1);
  await post(agent, 'OFFER', call);
  await call.accept(await call.best('first'));
  const idle = await client.request('echo', 1), reason = new Error('enough');
  for (const wait of [(signal) => call.result({ signal }), (signal) => idle.collect({ signal, seconds: 60 }),
    (signal) => idle.best('cheapest', { signal, seconds: 60 }), (signal) => idle.offers({ signal }).next(),
    (signal) => client.follow({}, { signal }).next()]) {
    const stop = new AbortController(), began = performance.now();
    setTimeout(() => stop.abort(reason), 30);
    await assert.rejects(wait(stop.signal), (err) => err === reason);
    assert.ok(performance.now() - began < 5000);
    await assert.rejects(wait(stop.signal), (err) => err === reason);
  }
});

test('an offer that a limit refuses is repeated, and a full thread is left', async (t) => {
  skipWaits(t);
  const { relay, client } = await parties(t);
  let refused = 0;
  relay.hook = (url, options, next) => {
    const isOffer = options.method === 'POST' && Buffer.from(options.body).includes('"OFFER"');
    return isOffer && refused++ < 2 ? refuse(429, 'RATE_LIMITED', { limit: 'inbox' }, { 'retry-after': '1' }) : next();
  };
  await (await client.request('echo', 1)).best('first');
  assert.equal(refused, 3);
  relay.hook = (url, options, next) => {
    if (options.method !== 'POST' || !Buffer.from(options.body).includes('"OFFER"')) return next();
    refused++;
    return refuse(429, 'RATE_LIMITED', { limit: 'offersPerThread', maxOffers: 100 });
  };
  await client.request('echo', 2);
  await until(() => refused === 4);
  await new Promise((resolve) => { setTimeout(resolve, 0); });
  assert.equal(refused, 4);
});
