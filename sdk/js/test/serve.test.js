// What an agent answers, what it does when things go wrong, and what it keeps over a restart.
import assert from 'node:assert/strict';
import test from 'node:test';
import { AgentError, Cancelled, isSealed, newThread, sign } from '../index.js';
import { broken, FakeRelay, refuse, serving, skipWaits, until } from './fakerelay.js';
import { alice, bob } from './helpers.js';

const memory = (cursor) => ({ saved: [], load: () => cursor, save(next) { cursor = next; this.saved.push(next); } });

async function parties() {
  const relay = await FakeRelay.start();
  return { relay, client: relay.client(alice), agent: relay.client(bob) };
}

async function ask(client, params, options) {
  const call = await client.request('echo', params, options);
  if (!call.agent) await call.accept(await call.best('first'));
  return (await call.result()).output;
}

test('serve checks its arguments', async () => {
  const { relay, agent } = await parties(), work = () => 1;
  for (const [intents, options] of [[[], { work }], [['echo'], {}], ['', { work }], ['echo', { work, quote: 1 }],
    [['echo', 5], { work }], ['echo', { work, manifest: 'Echo' }], ['echo', { work, manifest: ['Echo'] }]]) {
    await assert.rejects(agent.serve(intents, { signal: AbortSignal.abort(), ...options }), TypeError);
  }
  await assert.rejects(relay.client(undefined).serve('echo', { work }), (err) => err.code === 'INVALID_REQUEST');
});

test('an agent refuses what it cannot do, and ignores such broadcasts', async (t) => {
  const { relay, client, agent } = await parties(), logged = [];
  const prices = { nothing: NaN, negative: -1, text: '1', object: { amount: -1, currency: 'USD' } };
  agent.log = (text, err) => logged.push(`${text}: ${err?.message}`);
  serving(t, agent, ['echo'], { work: ({ params }) => params, quote({ params }) {
    if (params === 'decline') return undefined;
    if (params === 'refuse') throw new AgentError('FORBIDDEN', 'not for you');
    if (params === 'fail') throw new Error('secret');
    if (Object.hasOwn(prices, params)) return { price: prices[params] };
    return { price: 2 };
  } });
  const cases = [
    ['other', 1, {}, 'INTENT_NOT_SUPPORTED'], ['echo', 1, { maxCost: 1 }, 'INSUFFICIENT_BUDGET'],
    ['echo', 'decline', {}, 'UNAVAILABLE'], ['echo', 'refuse', {}, 'FORBIDDEN'], ['echo', 'fail', {}, 'INTERNAL_ERROR'],
    ...Object.keys(prices).map((name) => ['echo', name, {}, 'INTERNAL_ERROR']),
    ['echo', 1, { constraints: { max_cost_usd: 'much' } }, 'INVALID_REQUEST'],
  ];
  for (const [intent, params, options] of cases) await client.request(intent, params, options); // broadcasts
  for (const [intent, params, options, code] of cases) {
    const call = await client.request(intent, params, { ...options, to: bob.did });
    await assert.rejects(call.best('first', { seconds: 20 }), (err) => err.code === code, `${code}`);
    assert.ok(!JSON.stringify(relay.events.at(-1)).includes('secret'));
  }
  assert.equal(relay.of('ERROR').length, cases.length);
  assert.equal(relay.of('OFFER').length, 0);
  assert.deepEqual(relay.of('ERROR')[1].payload.details, { min_required: 2, provided: 1 });
  assert.ok(logged.some((text) => text.includes('quote failed')));
  assert.equal(logged.filter((text) => text.includes('a price must be a number of USD')).length, 2 * 4);
});

test('an agent takes intents of a gateway only from the gateway of its relay, and sealed', async (t) => {
  const { relay, client, agent } = await parties();
  serving(t, agent, ['a2a.message', 'chorus.channel.message'], { work: ({ params }) => params });
  const { did: me } = client.me;
  for (const intent of ['a2a.message', 'chorus.channel.message']) {
    for (const [did, seal, code] of [[undefined, true, 'FORBIDDEN'], [me, false, 'FORBIDDEN'], [me, true]]) {
      relay.gateways = did && { did };
      await agent.about(); // it reads the document again after an hour
      const call = await client.request(intent, 1, { to: bob.did, seal });
      if (code) await assert.rejects(call.best('first', { seconds: 20 }), (err) => err.code === code, intent);
      else assert.equal((await call.best('first', { seconds: 20 })).agent, bob.did);
    }
  }
});

test('a sealed payload that cannot be opened gets always the same ERROR', async (t) => {
  const { relay, client, agent } = await parties();
  serving(t, agent, 'echo', { work: () => 1 });
  const answers = [];
  for (const sealed of ['v1.AAAA', 'v2', 5]) {
    const thread = newThread();
    await client.post('REQUEST', { request_id: thread, intent: 'echo', sealed }, { to: bob.did, thread });
    await until(() => relay.of('ERROR').length > answers.length);
    const e = relay.of('ERROR').at(-1), { did, payload } = { did: e.sender.id, payload: e.payload };
    assert.equal(did, bob.did);
    assert.ok(isSealed(e), 'the client has sealed, so the answer is sealed');
    answers.push(`${payload.code} ${payload.message}`);
  }
  assert.deepEqual(answers, Array(3).fill('INVALID_REQUEST sealed'));
});

test('work is cancelled by its client, and by nobody else', async (t) => {
  const { relay, client, agent } = await parties(), began = [], reasons = [];
  serving(t, agent, 'echo', { work: (job, { signal }) => new Promise((resolve, reject) => {
    began.push(job.thread);
    signal.addEventListener('abort', () => { reasons.push(signal.reason); reject(signal.reason); });
  }) });
  const call = await client.request('echo', 1);
  await call.accept(await call.best('first'));
  await until(() => began.length === 1);
  const stranger = { request_id: call.requestId, reason: 'x' };
  relay.add(await sign({ version: '1.0', id: 'forged', ts: new Date().toISOString(), type: 'CANCEL', payload: stranger,
    sender: { id: relay.me.did }, thread: { id: call.thread } }, relay.me));
  await call.state();
  assert.deepEqual(reasons, []);
  await call.cancel();
  await until(() => reasons.length === 1);
  assert.ok(reasons[0] instanceof Cancelled);
  await assert.rejects(call.result(), Cancelled);
  assert.equal(relay.of('RESULT').length + relay.of('ERROR').length, 0);
});

test('after a crash between ACCEPT and RESULT the work is done again', async (t) => {
  for (const cursor of [memory(), undefined]) {
    const { relay, client, agent } = await parties();
    let works = 0, release;
    const hold = { cursor, work: (job, { signal }) => new Promise((resolve, reject) => {
      works++;
      release = () => resolve(job.params);
      signal.addEventListener('abort', () => reject(signal.reason));
    }) };
    let stop = serving(t, agent, 'echo', { cursor, work: ({ params }) => { works++; return params; } });
    assert.equal(await ask(client, 1), 1);
    await stop();
    stop = serving(t, relay.client(bob), 'echo', hold);
    const call = await client.request('echo', 2);
    await call.accept(await call.best('first'));
    await until(() => works === 2);
    const idle = await client.request('echo', 3);
    await idle.best('first');
    const before = cursor?.saved.at(-1);
    assert.equal(relay.of('RESULT').length, 1);
    await stop(); // as if it was killed: the work is lost
    assert.equal(cursor?.saved.at(-1), before);
    stop = serving(t, relay.client(bob), 'echo', hold);
    await until(() => works === 3);
    release();
    assert.equal((await call.result()).output, 2);
    await stop();
    stop = serving(t, relay.client(bob), 'echo', hold);
    await new Promise((resolve) => { setTimeout(resolve, 100); });
    await stop();
    const counts = ['OFFER', 'RESULT', 'ERROR'].map((type) => relay.of(type).length);
    assert.deepEqual([works, ...counts], [3, 3, 2, 0]);
  }
});

test('the cursor stays before work that is not done', async (t) => {
  const { relay, client, agent } = await parties(), cursor = memory();
  let finish;
  serving(t, agent, 'echo', { cursor, work: ({ params }) => params === 'long'
    ? new Promise((resolve) => { finish = resolve; }) : params });
  const call = await client.request('echo', 'long');
  await call.accept(await call.best('first'));
  const accepted = relay.events.length;
  await until(() => finish);
  for (let n = 0; n < 3; n++) await ask(client, n);
  assert.ok(cursor.saved.every((saved) => Number(saved.slice(2)) < accepted), `${cursor.saved}`);
  finish('done');
  assert.equal((await call.result()).output, 'done');
  await until(() => Number(cursor.saved.at(-1).slice(2)) > accepted);
});

test('an agent ends if its cursor cannot be saved', async () => {
  const { client, agent } = await parties();
  const cursor = { load() {}, save() { throw new Error('disk full'); } };
  const serving = agent.serve('echo', { work: () => 1, cursor });
  const ended = assert.rejects(serving, /disk full/);
  await client.request('echo', 1);
  await ended;
});

test('a private relay hides a broadcast thread from an agent before its offer', async (t) => {
  const { relay, client, agent } = await parties();
  relay.reads = 'parties';
  serving(t, agent, 'echo', { work: ({ params }) => params });
  assert.equal(await ask(client, 7), 7);
  assert.equal(await ask(client, 8, { to: bob.did, seal: true }), 8);
  assert.ok(agent.isPrivate && client.isPrivate);
});

test('the record alone does not start work', async (t) => {
  const { relay, client, agent } = await parties();
  let works = 0;
  serving(t, agent, 'echo', { work: () => ++works });
  const call = await client.request('echo', 1);
  await call.best('first');
  relay.hook = async (url, options, next) => {
    const response = await next();
    if (!url.pathname.startsWith('/threads')) return response;
    const answer = await response.json();
    return Response.json({ ...answer, thread: { ...answer.thread, state: 'ACTIVE', agent: bob.did } });
  };
  relay.add(await sign({ version: '1.0', id: 'forged', ts: new Date().toISOString(), type: 'ACCEPT',
    payload: { request_id: 'other' }, sender: { id: alice.did }, recipient: { id: bob.did },
    thread: { id: call.thread } }, alice));
  await new Promise((resolve) => { setTimeout(resolve, 200); });
  assert.equal(works, 0);
});

test('the manifest is posted, completed, and posted again', async (t) => {
  const { relay, agent } = await parties();
  const real = globalThis.setTimeout, long = [];
  t.mock.method(globalThis, 'setTimeout', (act, ms, ...args) => {
    if (ms < 1e7 || ms > 1e9) return real(act, ms, ...args);
    long.push(ms);
    return real(act, long.length < 3 ? 0 : ms, ...args);
  });
  serving(t, agent, ['echo', 'shout'], { work: () => 1, manifest: { name: 'Echo' } });
  await until(() => relay.of('MANIFEST').length === 3);
  const intents = [{ id: 'echo' }, { id: 'shout' }];
  assert.deepEqual(relay.of('MANIFEST')[0].payload, 
    { id: 'main', intents, name: 'Echo', pricing: { model: 'free' } });
  assert.ok(long[0] > 43_000_000 && long[0] < 44_000_000, `${long}`);
  relay.hook = (url, options, next) => options.method === 'POST' ? refuse(403, 'FORBIDDEN') : next();
});

test('no more jobs run at once than concurrency says, and clients share them', async (t) => {
  const { relay, client, agent } = await parties();
  let running = 0, most = 0;
  const order = [];
  serving(t, agent, 'echo', { concurrency: 2, async work(job) {
    most = Math.max(most, ++running);
    order.push(job.client);
    await until(() => running > 1 || order.length === 6); // another one runs beside it, unless it is the last
    running--;
    return 1;
  } });
  const other = relay.client(relay.me);
  await Promise.all([...Array.from({ length: 5 }, () => ask(client, 1)), ask(other, 1)]);
  assert.equal(most, 2);
  assert.equal(order.length, 6);
});

// A relay whose every fifth request fails, whose clients have wrong clocks, and which repeats events.
for (const reads of ['open', 'parties']) {
  test(`nothing is lost or done twice at a flaky relay: ${reads}`, async (t) => {
    skipWaits(t);
    const { relay } = await parties(), offset = 600_000;
    relay.reads = reads;
    let n = 0;
    relay.hook = async (url, options, next) => {
      switch (++n % 23) {
        case 3: return refuse(429, 'RATE_LIMITED', { limit: 'postsPerAgent' }, { 'retry-after': '1' });
        case 7: return refuse(503, 'UNAVAILABLE', {}, { 'retry-after': '1' });
        case 11: throw broken();
        case 13: await next(); throw broken();
        case 17: await next(); return next();
        case 19: await new Promise((resolve) => { setImmediate(resolve); }); return next();
        case 22: return new Response('<html>', { status: 502 });
      }
      const response = await next();
      if (url.pathname !== '/events' || options.method === 'POST') return response;
      const page = await response.json();
      return Response.json({ ...page, events: page.events && [...page.events, ...page.events.slice(0, 1)] });
    };
    const works = new Map(), agent = relay.client(bob, { clock: () => Date.now() + offset });
    serving(t, agent, 'echo', { cursor: memory(), work({ params, thread }) {
      works.set(thread, (works.get(thread) ?? 0) + 1);
      return params;
    } });
    const one = async (params) => {
      const client = relay.client(alice, { clock: () => Date.now() - offset }), thread = newThread();
      const options = params % 3 === 0 ? {} : { to: bob.did, seal: params % 3 === 1 };
      for (;;) {
        try { return await ask(client, params, { thread, ...options }); } catch (err) {
          if (err.code !== 'UNKNOWN_OUTCOME') throw err;
        }
      }
    };
    const outputs = await Promise.all(Array.from({ length: 9 }, (_, i) => one(i)));
    assert.deepEqual(outputs, [0, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert.deepEqual([...works.values()], Array(9).fill(1));
    assert.deepEqual([relay.of('REQUEST').length, relay.of('ACCEPT').length, relay.of('RESULT').length], [9, 9, 9]);
  });
}

test('an aborted agent ends without an error, after its work', async () => {
  const { client, agent } = await parties(), stop = new AbortController();
  let begun = false, ended = false;
  const serving = agent.serve('echo', { signal: stop.signal, async work(job, { signal }) {
    begun = true;
    await new Promise((resolve) => { signal.addEventListener('abort', resolve); });
    await new Promise((resolve) => { setTimeout(resolve, 30); });
    ended = true;
  } });
  const call = await client.request('echo', 1);
  await call.accept(await call.best('first'));
  await until(() => begun);
  stop.abort();
  await serving;
  assert.ok(ended);
});
