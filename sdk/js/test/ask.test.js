// Asking in one call, and what the directory says about a request before it is sent.
import assert from 'node:assert/strict';
import test from 'node:test';
import { AgentError, isId, newId, newThread, Unacceptable } from '../index.js';
import { distance, nearest } from '../outlook.js';
import { FakeRelay, refuse, serving, until } from './fakerelay.js';
import { alice, bob } from './helpers.js';

// A relay where bob announces an intent, and does not serve it unless handler is given.
async function announced(t, manifest, handler) {
  const relay = await FakeRelay.start(), agent = relay.client(bob), lines = [];
  const client = relay.client(alice, { log: (text) => lines.push(text) });
  if (manifest) await agent.post('MANIFEST', { id: 'main', ...manifest });
  if (handler) serving(t, agent, 'text.upper', handler);
  return { relay, client, lines };
}

const upper = [{ id: 'text.upper' }], fixed = (price) => ({ model: 'fixed', currency: 'USD', fixed_price: price });
const failing = (act) => act.then(() => assert.fail('it did not fail'), (err) => err);

test('the nearest names have the smallest distance', () => {
  const words = [['', '', 0], ['ab', '', 2], ['abc', 'abd', 1], ['abc', 'acb', 1], ['upper', 'super', 2]];
  for (const [a, b, want] of words) {
    assert.equal(distance(a, b), want, `${a} ${b}`);
    assert.equal(distance(b, a), want, `${b} ${a}`);
  }
  const known = ['image.draw', 'text.upper', 'text.translate', 'TEXT.Uper', 'y', 'z', 'q'];
  assert.deepEqual(nearest('text.uper', known).slice(0, 2), ['TEXT.Uper', 'text.upper']);
  assert.deepEqual(nearest('translate', known)[0], 'text.translate', 'a name that contains the other one');
  assert.equal(nearest('text.uper', known).length, 5);
});

test('ask asks, accepts and returns the result', async (t) => {
  const work = ({ params }) => params.text.toUpperCase();
  const { relay, client, lines } = await announced(t, undefined, { price: 0.5, manifest: { name: 'U' }, work });
  await until(() => relay.of('MANIFEST').length > 0);
  assert.deepEqual(relay.of('MANIFEST')[0].payload.pricing, fixed(0.5));
  const result = await client.ask('text.upper', { text: 'a' }, { maxCost: 1, rule: 'first' });
  assert.deepEqual([result.output, result.agent, lines], ['A', bob.did, []]);
  assert.equal(relay.of('CANCEL').length, 0);
});

// By name: what bob announces; the intent and options of the request; what is said at once; what the error says.
const SILENT = {
  'nobody announces the intent': [{ intents: upper }, 'text.uper', {},
    /^nobody announces text\.uper; the nearest names are text\.upper; waiting/, /nobody announces text\.uper; the/],
  'nobody announces anything': [undefined, 'text.upper', {},
    /^nobody announces text\.upper; waiting/, /nobody announces/],
  'all are dearer': [{ intents: upper, pricing: fixed(0.05) }, 'text.upper', { maxCost: 0.01 },
    /^the cheapest agent announces 0\.05 USD for text\.upper, and maxCost is 0\.01; waiting/, /agent announces 0/],
  'wrong parameters': [{ intents: upper, pricing: fixed(0.05) }, 'text.upper', { maxCost: 1 }, undefined,
    /agents that announce text\.upper: 1, online: 1; perhaps the params .*, with the option to: 'did:key:z6Mk/],
  'the named agent announces something else': [{ intents: upper }, 'text.lower', { to: bob.did },
    /^did:key:\w+ does not announce text\.lower; the nearest names are text\.upper; waiting/, /does not announce/],
};

for (const [name, [manifest, intent, options, line, message]] of Object.entries(SILENT)) {
  test(`ask says why there may be no offer: ${name}`, async (t) => {
    const { relay, client, lines } = await announced(t, manifest);
    const err = await failing(client.ask(intent, {}, { seconds: 0.05, ...options }));
    assert.ok(err instanceof Unacceptable && err.retryable);
    assert.match(err.message, message);
    assert.match(err.message, /\. The request was cancelled$/);
    assert.equal(lines.length, line ? 1 : 0, lines.join());
    if (line) assert.match(lines[0], line);
    assert.deepEqual(relay.events.slice(-2).map((e) => e.type), ['REQUEST', 'CANCEL'], 'the request was cancelled');
  });
}

test('prices that are not known, or free, are no reason for a doubt', async (t) => {
  for (const pricing of [undefined, { model: 'free' }, { model: 'metered' }, { ...fixed(5), currency: 'EUR' }, 5, 'x',
    { model: { toString: 1 } }, { model: 'fixed', currency: { toString: 1 }, fixed_price: 1 }, fixed(-1), fixed('5')]) {
    const { client } = await announced(t, { intents: [...upper, null, 5, { id: { toString: 1 } }], pricing });
    const { agents, online, price, example } = await client.outlook('text.upper');
    assert.deepEqual([agents, online, example, price], [1, 1, bob.did, pricing?.model === 'free' ? 0 : undefined]);
  }
});

test('a directory that cannot be read does not keep a request from being made', async (t) => {
  const { relay, client } = await announced(t, undefined, { work: () => 1 });
  relay.hook = (url, options, next) => url.pathname.startsWith('/agents') ? refuse(503, 'UNAVAILABLE') : next();
  assert.equal((await client.ask('text.upper', {}, { rule: 'first' })).output, 1);
});

test('a request that ends without a result is cancelled, unless it can be continued', async (t) => {
  const work = () => { throw new AgentError('X'); };
  const { relay, client, lines } = await announced(t, { intents: upper }, { work });
  assert.equal((await failing(client.ask('text.upper', {}, { rule: 'first' }))).code, 'X');
  assert.equal(relay.of('CANCEL').length, 0, 'the agent has ended it');
  const open = await failing(client.ask('other', {}, { seconds: 0.05, thread: newThread() }));
  assert.match(open.message, /The request is still open: /);
  assert.equal(relay.of('CANCEL').length, 0, 'the same call continues it');
  const isCancel = (body) => body && Buffer.from(body).includes('"CANCEL"');
  relay.hook = (url, { body }, next) => isCancel(body) ? refuse(403, 'FORBIDDEN') : next();
  assert.match((await failing(client.ask('other', {}, { seconds: 0.05 }))).message, /The request is still open: /);
  assert.match(lines.at(-1), /may still be open; end it with: \(await client\.resume\('thread_\w+'\)\)\.cancel\(\)/);
  const stop = new AbortController();
  relay.hook = undefined;
  const asked = failing(client.ask('other', {}, { rule: 'first', signal: stop.signal }));
  await until(() => relay.events.at(-1).payload.intent === 'other' && relay.waiting > 1);
  stop.abort(new Error('enough'));
  assert.equal((await asked).message, 'enough');
  assert.equal(relay.events.at(-1).type, 'CANCEL');
});

test('ids look alike in all languages', () => {
  assert.match(newThread(), /^thread_[0-9a-hjkmnp-tv-z]{26}$/);
  assert.ok(isId(newThread()));
  assert.equal(newId('msg', 0).slice(0, 14), 'msg_0000000000');
  assert.ok(newId('a', 1_800_000_000_000) > newId('a', 1_700_000_000_000), 'ids sort by time');
});
