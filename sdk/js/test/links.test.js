// The home of a thread, and how its messages name each other (RELAYS §1, §2).
import assert from 'node:assert/strict';
import test from 'node:test';
import { flaw, hashOf, rootOf } from '../links.js';
import { checkEnvelope, Client, identity, sign, verify } from '../index.js';
import { DOCUMENT, FakeRelay, serving, until } from './fakerelay.js';
import { alice, bob, refuses } from './helpers.js';
import { needsRelay, startRelay } from './real.js';

const HOME = { did: alice.did, url: 'https://a.example' }, HASH = 'ab'.repeat(32);

// The example of RELAYS §2.
const SEEDS = { a: 1, client: 2, agent: 3, b: 5 };
const people = Object.fromEntries(await Promise.all(Object.entries(SEEDS).map(async ([name, byte]) =>
  [name, await identity(new Uint8Array(32).fill(byte))])));
const example = ({ id, ts, home, continues }) => sign({ version: '1.0', id, ts, type: 'REQUEST',
  sender: { id: people.client.did }, recipient: { id: people.agent.did }, thread: { id: `thread_${continues ? 2 : 1}` },
  payload: { intent: 'translation.en_zh', request_id: `req_${continues ? 2 : 1}` },
  meta: { ttl: 86400, home: { did: people[home].did, url: `https://${home}.example` }, continues } }, people.client);

test('the example of RELAYS §2 has the hashes that it names', async () => {
  const first = await example({ id: 'msg_1', ts: '2026-02-02T12:00:00Z', home: 'a' }), root = await hashOf(first);
  assert.equal(root, '8015c4647588a381068f794c28a3fd0a70a4cdbdd0890df82b8389281a2f0071');
  const next = await example({ id: 'msg_5', ts: '2026-02-02T12:01:00Z', home: 'b', continues: root });
  assert.equal(await hashOf(next), 'b7eba2a35ad581540cacad963cba727171f5f3ac03d9a76edee36f77582d3af1');
  assert.deepEqual([await rootOf(first), await rootOf(next)], [root, root]);
  await verify(checkEnvelope(next));
});

test('R-1, R-5: meta.home, re and continues have one form', async () => {
  const checked = (meta, type = 'REQUEST') => checkEnvelope({ version: '1.0', id: 'm', ts: '2026-02-02T12:00:00Z', type,
    sender: { id: alice.did }, thread: { id: 't' }, payload: {}, meta });
  checked({ home: HOME, re: HASH, continues: HASH });
  checked({ home: { ...HOME, url: 'http://localhost:8789' } });
  for (const meta of [{ home: null }, { home: 1 }, { home: [] }, { home: { did: HOME.did } },
    { home: { ...HOME, x: 1 } }, { home: { ...HOME, did: 'did:web:a' } },
    { home: { ...HOME, url: 'https://a.example/' } },
    { home: { ...HOME, url: 'ftp://a.example' } }, { home: { ...HOME, url: 'https://u@a.example' } },
    { re: 1 }, { re: 'ab' }, { re: HASH.toUpperCase() }, { continues: null }, { continues: 'x' }]) {
    await refuses('INVALID_REQUEST', () => checked(meta), JSON.stringify(meta));
  }
  await refuses('INVALID_REQUEST', () => checked({ continues: HASH }, 'OFFER'));
});

test('R-3, R-7: a message with another home, or that answers another message, has a flaw', () => {
  for (const [meta, home, good] of [[{ home: HOME, re: HASH }, HOME, true], [{ home: HOME }, HOME, false],
    [{ re: HASH }, HOME, false], [undefined, HOME, false], [{ home: HOME, re: HASH.replace('a', '0') }, HOME, false],
    [{ home: { ...HOME, url: 'https://b.example' }, re: HASH }, HOME, false], [{}, undefined, true],
    [undefined, undefined, true], [{ re: HASH }, undefined, true], [{ home: HOME, re: HASH }, undefined, false],
    [{ re: HASH.replace('a', '0') }, undefined, false]]) {
    assert.equal(flaw({ meta }, home, [undefined, HASH]) === undefined, good, JSON.stringify([meta, home]));
  }
});

async function parties(t, options) {
  const relay = await FakeRelay.start();
  relay.features.push('home');
  const client = relay.client(alice), agent = relay.client(bob);
  if (options) serving(t, agent, 'echo', options);
  return { relay, client, agent, home: await client.home() };
}

// Posts a message of the agent in the thread of a call.
const post = (agent, type, call, draft) => agent.post(type,
  { request_id: call.requestId, code: 'X', status: 'success' }, { to: alice.did, thread: call.thread, ...draft });

test('R-3, R-6: all messages of a thread name its home and what they answer', async (t) => {
  const { relay, client, home } = await parties(t, { work: ({ params }) => params });
  for (const seal of [false, true]) {
    assert.equal((await client.ask('echo', 1, { to: bob.did, seal })).output, 1);
    const thread = relay.events.slice(-4), [request, offer, accept, result] = thread, re = (e) => e.meta.re;
    assert.deepEqual(thread.map(({ meta }) => meta.home), Array(4).fill(home));
    assert.deepEqual([re(request), re(offer), re(accept), re(result)],
      [undefined, await hashOf(request), await hashOf(offer), await hashOf(accept)]);
  }
  const call = await client.request('other', 1, { to: bob.did });
  await assert.rejects(call.best('first'), (err) => err.code === 'INTENT_NOT_SUPPORTED');
  const error = relay.of('ERROR')[0], request = relay.of('REQUEST').at(-1);
  assert.deepEqual(error.meta, { ttl: 86400, home, re: await hashOf(request) });
});

test('R-6: a CANCEL answers the ACCEPT, or else the REQUEST', async (t) => {
  const { relay, client } = await parties(t, { work: (job, { signal }) => new Promise((_, reject) => {
    signal.addEventListener('abort', () => reject(signal.reason));
  }) });
  await (await client.request('nothing', 1)).cancel();
  const call = await client.request('echo', 1);
  await call.accept(await call.best('first'));
  await call.cancel();
  const [first, second] = relay.of('CANCEL');
  assert.equal(first.meta.re, await hashOf(relay.of('REQUEST')[0]));
  assert.equal(second.meta.re, await hashOf(relay.of('ACCEPT')[0]));
  const again = await client.resume(call.thread);
  await assert.rejects(again.cancel(), (err) => err.code === 'INVALID_TRANSITION');
  assert.deepEqual(relay.posts.at(-1).meta, second.meta);
});

test('R-7: a client ignores answers that are not linked, and logs them', async (t) => {
  const { relay, client, agent, home } = await parties(t), logged = [];
  client.log = (text) => logged.push(text);
  const call = await client.request('echo', 1), request = await hashOf(relay.events[0]), offers = [];
  const thief = relay.client(await identity());
  await post(thief, 'OFFER', call, { re: HASH });
  await post(relay.client(await identity()), 'OFFER', call, { home, re: HASH });
  await post(agent, 'OFFER', call, { home, re: request });
  for await (const offer of call.offers()) if (offers.push(offer.agent)) break;
  assert.deepEqual(offers, [bob.did]);
  assert.deepEqual(logged.map((text) => text.replace(/.*: /, '')),
    ['its meta.home is not that of the REQUEST', 'its meta.re is not the message that it must answer']);
  await call.accept(await call.best('first'));
  const accept = await hashOf(relay.of('ACCEPT')[0]), result = call.result();
  relay.add(await sign({ version: '1.0', id: 'false', ts: new Date().toISOString(), type: 'RESULT',
    payload: { request_id: call.requestId, status: 'success', output: 'false' }, sender: { id: bob.did },
    recipient: { id: alice.did }, thread: { id: call.thread }, meta: { ttl: 60, home, re: request } }, bob));
  await until(() => logged.length >= 3);
  await post(agent, 'RESULT', call, { home, re: accept });
  assert.equal((await result).output, undefined);
});

test('a client hires an agent that knows no homes, and a Network does not', async (t) => {
  const { relay, client, agent } = await parties(t), logged = [];
  const call = await client.request('echo', 1);
  await post(agent, 'OFFER', call, {});
  await call.accept(await call.best('first'));
  await post(agent, 'RESULT', call, {});
  await call.result();
  const watched = relay.client(client.me, { watch: { valid() {}, invalid() {} } });
  watched.log = (text) => logged.push(text);
  const second = await watched.request('echo', 1);
  await post(agent, 'OFFER', second, {});
  assert.deepEqual(await second.collect(1), []);
  assert.match(logged[0], /its meta.home is not that of the REQUEST/);
});

test('R-8: an agent begins work only after an ACCEPT with its own OFFER in re', async (t) => {
  const logged = [], worked = [], { relay, client, agent, home } = await parties(t);
  agent.log = (text) => logged.push(text);
  serving(t, agent, 'echo', { work: ({ params }) => worked.push(params) });
  for (const [n, draft] of [{ home, re: HASH }, { home }, {}].entries()) {
    const call = await client.request('echo', n), { requestId, thread } = call;
    await call.best('first');
    await client.post('ACCEPT', { request_id: requestId }, { to: bob.did, thread, ...draft });
    await until(() => logged.some((text) => text.startsWith(`the ACCEPT ${relay.of('ACCEPT').at(-1).id} of`)));
  }
  await client.ask('echo', 'good');
  assert.deepEqual(worked, ['good']);
});

test('R-3: an agent ignores a CANCEL that is not linked', async (t) => {
  let end, began;
  const ready = new Promise((resolve) => { began = resolve; });
  const work = () => new Promise((resolve) => { end = resolve; began(); });
  const { relay, client, home } = await parties(t, { work });
  const call = await client.request('echo', 1);
  await call.accept(await call.best('first'));
  await ready;
  const base = { version: '1.0', ts: new Date().toISOString(), type: 'CANCEL', payload: { request_id: call.requestId },
    sender: { id: alice.did }, recipient: { id: bob.did }, thread: { id: call.thread } };
  relay.add(await sign({ ...base, id: 'x1', meta: { ttl: 60 } }, alice));
  relay.add(await sign({ ...base, id: 'x2', meta: { ttl: 60, home, re: HASH } }, alice));
  await call.state();
  end('done');
  assert.equal((await call.result()).output, 'done');
});

test('R-2, R-4: nothing is posted to a relay with another key', async () => {
  const { relay, client, home } = await parties(), other = await identity(), posted = () => relay.posts.length;
  await client.request('echo', 1);
  const before = posted();
  relay.me = other; // another relay answers at the address, and the document was read less than an hour ago
  const fresh = relay.client(bob), draft = { to: alice.did, thread: 't', home };
  const isOther = (err) => err.code === 'OTHER_RELAY' && err.message.includes(home.did);
  await assert.rejects(fresh.post('CANCEL', { request_id: 'r' }, draft), isOther);
  const ts = new Date().toISOString(), e = await sign({ version: '1.0', id: 'm', ts, type: 'REQUEST',
    sender: { id: bob.did }, thread: { id: 't' }, payload: { request_id: 't', intent: 'x' },
    meta: { ttl: 60, home } }, bob);
  const [{ status, reason }] = await fresh.postAll([e]);
  assert.ok(status === 'rejected' && isOther(reason));
  assert.deepEqual([posted(), relay.bulks], [before, []]);
});

test('R-4: a client reads the document of a home once an hour', async (t) => {
  const relay = await FakeRelay.start();
  relay.features.push('home');
  let reads = 0;
  const fetch = (url, options) => { if (url.endsWith(DOCUMENT)) reads++; return relay.fetch(url, options); };
  const client = relay.client(alice, { fetch }), now = performance.now();
  await client.request('echo', 1);
  await client.request('echo', 2);
  assert.equal(reads, 1);
  t.mock.method(performance, 'now', () => now + 3_700_000);
  await client.request('echo', 3);
  assert.equal(reads, 2);
});

test('after a relay without homes and without proofs, a thread is as today', async (t) => {
  const relay = await FakeRelay.start();
  serving(t, relay.client(bob), 'echo', { work: () => 1 });
  assert.equal((await relay.client(alice).ask('echo', 1)).output, 1);
  assert.ok(relay.events.every(({ meta }) => meta.home === undefined && meta.re === undefined));
});

test('R-3, R-6, R-8: agents trade at a real relay that is the home, and has a log', async (t) => {
  if (!needsRelay(t)) return;
  const url = await startRelay(t, '--transparency', 'on'), proofs = 'required';
  const client = new Client(url, { me: alice, proofs }), agent = new Client(url, { me: bob, proofs });
  serving(t, agent, 'echo', { work: ({ params }) => params });
  const call = await client.request('echo', 1, { to: bob.did });
  await call.accept(await call.best('first'));
  assert.equal((await call.result()).output, 1);
  const { events } = await client.thread(call.thread), home = await client.home();
  const hashes = await Promise.all(events.map(hashOf));
  assert.deepEqual(events.map(({ meta }) => meta.home), Array(4).fill(home));
  assert.deepEqual(events.map(({ meta }) => meta.re), [undefined, ...hashes.slice(0, 3)]);
  assert.equal(home.did, await client.relayDid());
});
