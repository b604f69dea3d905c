// A client of several relays in memory (RELAYS §3, §4).
import assert from 'node:assert/strict';
import { join } from 'node:path';
import test from 'node:test';
import { hashOf } from '../links.js';
import { AgentError, Client, identity, Network, sign, State } from '../node.js';
import { network, relays, urlOf } from './fakenet.js';
import { FakeRelay, proofOf, refuse, serving, until } from './fakerelay.js';
import { alice, bob } from './helpers.js';
import { folder } from './real.js';

const echo = { work: ({ params }) => params };

// A client and an agent of the relays a, b and c. The agent has announced itself.
async function parties(t, handler = echo, options = {}) {
  const all = await relays('a', 'b', 'c'), names = ['a', 'b', 'c'], moves = [];
  const client = network(all, names, alice, { moved: (move) => moves.push(move), ...options });
  const agent = network(all, names, bob);
  if (handler) {
    serving(t, agent, 'echo', { manifest: { name: 'Echo' }, ...handler });
    await until(() => names.every((name) => all[name].of('MANIFEST').some((e) => e.payload.relays.length === 3)));
  }
  return { ...all, client, agent, moves };
}

test('a network checks its arguments', () => {
  for (const [urls, options] of [[[], { me: alice }], ['https://a.example', { me: alice }], [[urlOf('a')], {}],
    [Array(9).fill(urlOf('a')), { me: alice }], [[urlOf('a')], { me: alice, discover: true }]]) {
    assert.throws(() => new Network(urls, options), TypeError, JSON.stringify(urls));
  }
});

test('R-10: the manifest lists the relays, and all of them get the same bytes', async (t) => {
  const { a, b, c } = await parties(t);
  const last = [a, b, c].map((relay) => relay.of('MANIFEST').at(-1));
  assert.deepEqual(last[0].payload.relays, [a, b, c].map(({ me }, i) => ({ did: me.did, url: urlOf('abc'[i]) })));
  assert.deepEqual([last[1], last[2]], [last[0], last[0]]);
  assert.equal(last[0].meta.home, undefined);
});

test('R-11: the home is the first usable relay of the recipient, or of the client', async (t) => {
  const { a, b, c, client, agent } = await parties(t);
  const homeOf = async (options) => (await client.request('echo', 1, options)).home.url;
  assert.equal(await homeOf({}), urlOf('a'));
  await agent.post('MANIFEST', { id: 'main', intents: [], relays: [{ did: c.me.did, url: urlOf('c') },
    { did: b.me.did, url: urlOf('b') }] });
  assert.equal(await homeOf({ to: bob.did }), urlOf('c'));
  c.features.length = 0;
  assert.equal(await homeOf({ to: bob.did }), urlOf('b'));
  a.down = true;
  assert.equal(await homeOf({}), urlOf('b'));
  await client.catch(b.me.did, 'a test');
  await assert.rejects(client.request('echo', 1, { to: bob.did }), (err) => err.code === 'UNACCEPTABLE');
  await assert.rejects(client.at({ did: b.me.did, url: urlOf('b') }), (err) => err.code === 'CAUGHT');
});

test('R-11: a recipient without relays is asked where the directory has it', async () => {
  const all = await relays('a', 'b'), client = network(all, ['a', 'b'], alice);
  await new Client(urlOf('b'), { me: bob, fetch: all.fetch }).post('MANIFEST', { id: 'x', intents: [] });
  assert.equal((await client.request('echo', 1, { to: bob.did })).home.url, urlOf('b'));
});

test('R-14: a REQUEST that came from several relays is answered once, at its home', async (t) => {
  const { a, b, c, client, agent } = await parties(t), handled = [], { handle } = agent.state;
  agent.state.handle = (...event) => { handled.push(event[0]); handle.apply(agent.state, event); };
  const call = await client.request('echo', 1), [request] = a.of('REQUEST');
  for (const relay of [b, c]) relay.add(request);
  await call.accept(await call.best('first'));
  assert.equal((await call.result()).output, 1);
  assert.deepEqual([a, b, c].map((relay) => relay.of('OFFER').length), [1, 0, 0]);
  const elsewhere = await sign({ ...request, id: 'other', thread: { id: 'other' }, sig: undefined,
    meta: { ttl: 60, home: { did: (await identity()).did, url: urlOf('d') } } }, alice);
  b.add(elsewhere);
  assert.equal((await client.ask('echo', 2, { rule: 'first' })).output, 2);
  assert.equal([a, b, c].flatMap((relay) => relay.of('OFFER')).length, 2, 'no relay that was not given is contacted');
  assert.deepEqual([handled.length, new Set(handled).size], [2, 2]);
});

test('R-14: what its home shows again is handled again: it may be a backup without the answer', async (t) => {
  let price = 0;
  const all = await parties(t, null), { a, client } = all, backup = await FakeRelay.start();
  const { state } = all.agent, options = { ...echo, quote: () => ++price };
  const stop = serving(t, all.agent, 'echo', options);
  await client.request('echo', 1);
  await until(() => a.of('OFFER').length === 1 && a.waiting > 0);
  await stop();
  const [request] = a.of('REQUEST'), body = new TextEncoder().encode(JSON.stringify(request));
  Object.assign(backup, { me: a.me, database: 'b', features: a.features });
  await backup.fetch(`${urlOf('a')}/events`, { method: 'POST', body });
  a.fetch = backup.fetch;
  serving(t, network(all, ['a', 'b', 'c'], bob, { state }), 'echo', options);
  await until(() => backup.of('OFFER').length === 1);
  assert.deepEqual([backup.of('OFFER')[0].payload.price.amount, price], [1, 1]);
});

test('R-12: events of several relays come once; a relay that is down delays nothing', async (t) => {
  const all = await relays('a', 'b', 'c'), { a, b, c } = all, path = join(await folder(t), 'state'), logged = [];
  c.down = true;
  const reader = () => network(all, ['a', 'b', 'c'], bob, { state: new State(path), log: (text) => logged.push(text) });
  const note = (id, params, me = alice) => sign({ version: '1.0', id, ts: new Date().toISOString(), type: 'REQUEST',
    sender: { id: me.did }, thread: { id }, payload: { request_id: id, intent: 'x', params }, meta: { ttl: 60 } }, me);
  const read = async (n) => {
    const got = [];
    for await (const e of reader().follow({ type: 'REQUEST' }, { from: 'oldest' })) {
      if (got.push(`${e.id} ${e.payload.params}`) === n) break;
    }
    return got;
  };
  const [m1, m2, other, m3] = await Promise.all([note('m1', 1), note('m2', 2), note('m2', 3), note('m3', 4)]);
  a.add(m1);
  const first = read(3);
  await until(() => b.waiting > 0);
  b.add(m1);
  b.add(m2);
  await until(() => b.waiting > 0);
  a.add(other);
  assert.deepEqual((await first).sort(), ['m1 1', 'm2 2', 'm2 3']);
  assert.ok(logged.some((text) => text.includes('two messages with the id m2')));
  b.add(m3);
  const after = await read(1);
  assert.ok(['m2 3', 'm3 4'].includes(after[0]), 'only what the program had not finished comes again');
});

test('R-15, R-16: whenever the home dies, the job is continued, and work is done once', (t) =>
  Promise.all(['REQUEST', 'OFFER', 'ACCEPT', 'RESULT'].map(async (step) => {
    let worked = 0;
    const work = async ({ params }) => { worked++; return params; };
    const { a, b, client, moves } = await parties(t, { work, price: 1 }, { offerWait: 9 });
    a.hook = async (url, { method, body }, next) => {
      const isStep = method === 'POST' && JSON.parse(new TextDecoder().decode(body)).type === step;
      if (isStep && step === 'RESULT') a.down = true; // it does not store it
      const answered = a.down ? undefined : await next();
      a.down ||= isStep;
      return answered;
    };
    const { output, envelope } = await client.ask('echo', 7, { to: bob.did, maxCost: 1, rule: 'first' });
    assert.deepEqual([output, worked, moves.length], [7, 1, 1]);
    assert.deepEqual([moves[0].why, moves[0].from.url, moves[0].to.url], ['is silent', urlOf('a'), urlOf('b')]);
    assert.equal(envelope.meta.home.did, b.me.did);
    const [first] = a.of('REQUEST'), [next] = b.of('REQUEST');
    assert.equal(next.meta.continues, await hashOf(first));
    const { request_id: one, ...payload } = first.payload, { request_id: two, ...same } = next.payload;
    assert.deepEqual([same, one !== two, next.recipient], [payload, true, first.recipient]);
    assert.ok(next.meta.ttl <= first.meta.ttl);
  })));

test('R-15: a home that shows the REQUEST to nobody is left, and its thread cancelled', async (t) => {
  const { a, client, moves } = await parties(t), add = a.add.bind(a);
  a.add = (e) => { if (e.type !== 'REQUEST') add(e); };
  assert.equal((await client.ask('echo', 7, { to: bob.did, rule: 'first' })).output, 7);
  assert.equal(moves[0].why, 'shows no offer');
  await until(() => a.of('CANCEL').length === 1);
});

test('R-15: an open REQUEST waits for offers, and 4xx is an answer', async (t) => {
  const { a, client, moves } = await parties(t, null);
  const call = await client.request('nothing', 1);
  await assert.rejects(call.best('cheapest', { seconds: 0.8 }), (err) => err.code === 'UNACCEPTABLE');
  const refused = client.request('nothing', 1);
  a.hook = (url, { method }, next) => method === 'POST' ? refuse(403, 'FORBIDDEN') : next();
  await assert.rejects(refused, (err) => err.code === 'FORBIDDEN');
  assert.deepEqual(moves, []);
});

test('R-15: it continues three times at most, and waits then until the ttl ends', async (t) => {
  const { a, b, c, client, moves } = await parties(t, null, { offerWait: 0.1 });
  for (const relay of [a, b, c]) await new Client(urlOf('abc'[[a, b, c].indexOf(relay)]), { me: bob,
    fetch: (url, options) => relay.fetch(url, options) }).post('MANIFEST', { id: 'x', intents: [] });
  const call = await client.request('echo', 1, { to: bob.did, ttl: 3 });
  await assert.rejects(call.best('first'), (err) => err instanceof AgentError && err.code === 'TIMEOUT');
  assert.deepEqual(moves.map(({ to }) => to.url), ['b', 'c', 'a'].map(urlOf));
});

test('R-16: the named agent is asked again, and nobody else, and not for more', async (t) => {
  const { a, b, client } = await parties(t, { ...echo, quote: () => ({ price: 2 }) });
  const call = await client.request('echo', 7, { maxCost: 5 }), offer = await call.best('first');
  a.down = true; // the ACCEPT is signed, and not stored
  const accepted = call.accept(offer), thief = new Client(urlOf('b'), { me: await identity(), fetch: b.fetch });
  await accepted;
  assert.deepEqual([call.agent, a.of('ACCEPT').length], [bob.did, 0]);
  const result = call.result();
  const next = await until(() => b.of('REQUEST')[0]), thread = next.thread.id;
  assert.equal(next.recipient.id, bob.did, 'the continuation of an open REQUEST names the agent');
  await thief.post('OFFER', { request_id: next.payload.request_id, price: { amount: 1, currency: 'USD' } },
    { to: alice.did, thread, home: next.meta.home, re: await hashOf(next) }).catch(() => {});
  assert.equal((await result).agent, bob.did);
  assert.deepEqual(b.of('ACCEPT').map((e) => [e.recipient.id, e.payload.terms.price_usd]), [[bob.did, 2]]);
  await assert.rejects(call.accept({ ...offer, agent: alice.did }), (err) => err.code === 'UNACCEPTABLE');
});

test('R-17: a relay whose proofs do not hold twice in a row is caught, and left at once', async (t) => {
  const state = { isDurable: false, kept: [] }, { a, b, client, moves } = await parties(t);
  client.state.keep = async (relay, evidence) => { state.kept.push([relay, evidence.proofs.length]); };
  const call = await client.request('echo', 7, { to: bob.did }), offer = await call.best('first');
  a.features.push('proofs');
  a.given = async () => proofOf(await identity(), a.events[0]);
  a.shown = a.given;
  await assert.rejects(call.accept(offer), (err) => err.code === 'UNKNOWN_OUTCOME');
  assert.equal((await call.result()).output, 7);
  assert.deepEqual([moves[0].why, state.kept], ['was caught', [[a.me.did, 2]]]);
  assert.equal(client.state.caught(a.me.did), 'two proofs in a row do not hold');
  assert.equal((await client.request('echo', 1)).home.did, b.me.did);
  await client.state.setCaught(a.me.did);
  a.given = a.shown = () => undefined;
  assert.equal((await client.request('echo', 1)).home.did, a.me.did);
});

test('R-17: two proofs that contradict each other catch a relay', async (t) => {
  const { a, client } = await parties(t, null);
  a.given = (proof) => proof;
  await client.request('echo', 1);
  assert.equal(client.state.caught(a.me.did), undefined);
  await client.request('echo', 2); // the double proves another leaf with the same index
  await until(() => client.state.caught(a.me.did));
  assert.match(client.state.caught(a.me.did), /evidence against it: (fork|index)/);
});

test('R-4: an address of a home that another relay has taken over is not used', async (t) => {
  const { a, b, client, moves } = await parties(t), call = await client.request('echo', 7, { to: bob.did });
  const offer = await call.best('first'), stored = a.of('ACCEPT').length;
  a.me = await identity();
  await client.clients[0].about();
  await call.accept(offer);
  assert.equal((await call.result()).envelope.meta.home.did, b.me.did);
  assert.deepEqual([a.of('ACCEPT').length, moves[0].why], [stored, 'is silent']);
});

test('R-13: with discover, relays that manifests and homes name are used too, and else not', async (t) => {
  const { a, c, fetch } = await parties(t, null), all = { fetch }, discover = () => fetch;
  const agent = network(all, ['b', 'a'], bob, { discover });
  serving(t, agent, 'echo', { ...echo, manifest: { name: 'Echo' } });
  await until(() => a.of('MANIFEST').some((e) => e.payload.relays.length === 2));
  const client = (names, options) => network(all, names, alice, options);
  const found = await client(['a'], { discover }).request('echo', 1, { to: bob.did });
  assert.equal(found.home.url, urlOf('b'));
  await found.accept(await found.best('first'));
  assert.equal((await found.result()).output, 1);
  assert.equal((await client(['a']).homes(bob.did)).length, 1, 'only the given one');
  const call = await client(['c']).request('echo', 2);
  a.add(c.of('REQUEST')[0]); // a mirrors c, which the agent does not know
  await call.accept(await call.best('first'));
  assert.equal((await call.result()).output, 2);
});

test('a request with the same thread is continued after a crash', async (t) => {
  const { client } = await parties(t), options = { to: bob.did, thread: 'thread_1' };
  await client.request('echo', 5, options);
  assert.equal((await client.ask('echo', 5, { ...options, rule: 'first' })).output, 5);
});

test('the directory of a network is that of all relays, and resume finds the thread', async (t) => {
  const { client, b } = await parties(t), { agents } = await client.agents({ intent: 'echo' });
  assert.deepEqual(agents.map(({ id }) => id), [bob.did]);
  assert.deepEqual((await client.info()).map(({ url, home }) => home && url), ['a', 'b', 'c'].map(urlOf));
  b.down = true;
  assert.equal((await client.info())[1].error.code, 'NO_ANSWER');
  const call = await client.request('echo', 5, { to: bob.did }), again = await client.resume(call.thread);
  await again.accept(await again.best('first'));
  assert.equal((await again.result()).output, 5);
  assert.equal((await again.state()).state, 'COMPLETED');
  const idle = await client.request('nothing', 1);
  await idle.cancel();
  assert.equal((await idle.state()).state, 'ERROR');
});
