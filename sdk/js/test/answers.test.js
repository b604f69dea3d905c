// The class Relay with a fetch of the tests' own: what it makes of answers, how long it waits, and how it posts.
import assert from 'node:assert/strict';
import test from 'node:test';
import { parse, printable, Refused, Relay, RelayError, UnknownOutcome } from '../agora.js';
import { Client } from '../index.js';
import { broken, refuse, skipWaits } from './fakerelay.js';
import { alice, fake, page, refusal } from './helpers.js';

const DOCUMENT = '/.well-known/agora.json';

test('post gives up after eight attempts', async (t) => {
  const waits = skipWaits(t);
  let count = 0;
  const fetch = fake((n) => { count = n; throw broken('ECONNREFUSED'); });
  await assert.rejects(new Relay('http://127.0.0.1:1', { me: alice, fetch }).post('CANCEL', {}, { thread: 't' }),
    (err) => err.code === 'NO_ANSWER' && err.status === 0 && err.retryable && err.notSent &&
      err.cause instanceof TypeError);
  assert.equal(count, 8);
  const powers = waits.slice(0, 6).map((ms) => Math.floor(Math.log2(ms / 250)));
  assert.deepEqual(powers, [0, 1, 2, 3, 4, 5], 'the pauses grow');
  assert.ok(waits.length === 7 && waits[6] >= 15_000 && waits[6] <= 30_000);
});

test('a failed post says why, and each retry is logged', async (t) => {
  skipWaits(t);
  const logged = [], log = (text, err) => logged.push([text, err.code]);
  const post = (code) => {
    const client = new Client('http://127.0.0.1:1', { me: alice, log, fetch: fake(() => { throw broken(code); }) });
    return client.request('echo', 1).then(assert.fail, (err) => err.message);
  };
  assert.match(await post('ECONNREFUSED'), /:1 .*\(ECONNREFUSED: no relay answers there; is it running\?\)$/);
  assert.deepEqual(logged, Array(7).fill(['posting a message failed, will be retried', 'NO_ANSWER']));
  for (const [code, words] of Object.entries({ ENOTFOUND: 'check the URL', ECONNRESET: 'https:// or http://',
    ERR_SSL_WRONG_VERSION_NUMBER: 'write http://', HPE_INVALID_CONSTANT: 'write https://', ETIMEDOUT: 'in time',
    DEPTH_ZERO_SELF_SIGNED_CERT: 'certificate', UND_ERR_SOCKET: 'closed', EHOSTUNREACH: 'network' })) {
    const message = await post(code);
    assert.ok(message.includes(`(${code}: `) && message.includes(words), message);
  }
  assert.match(await post('EOTHER'), /\(EOTHER\)\)$/);
  assert.match(await post(20), /cut off\)$/, 'the number in a DOMException is not shown');
});

const unavailable = () => refuse(503, 'UNAVAILABLE'), full = () => refuse(503, 'UNAVAILABLE', { stored: false });
const limited = () => refuse(429, 'RATE_LIMITED'), wrongState = () => refuse(409, 'INVALID_TRANSITION');
const gateway = () => new Response('<html>', { status: 502 }), cut = () => { throw broken(); };
const refused = () => { throw broken('ECONNREFUSED'); };
const stale = (ms = 3_600_000) => () =>
  refuse(400, 'STALE_TIMESTAMP', { now: new Date(Date.now() + ms).toISOString() });
const stored = (n, url, { body }) => ({ ok: true, id: parse(body).id, expiresAt: '9999-01-01T00:00:00Z' });
const foreign = () => ({ ok: true, id: 'msg_other' });
const always = (act) => Array.from({ length: 20 }, () => act);

// By name: what the relay does with the posts; the code of the error ('': none); the posts; the different bodies.
const OUTCOMES = {
  'stored at once': [[stored], '', 1, 1],
  'lost answer, then stored': [[cut, stored], '', 2, 1],
  'no connection, then stored': [[refused, refused, stored], '', 3, 1],
  'limited and unavailable': [[limited, unavailable, stored], '', 3, 1],
  'a 502 of a gateway, then stored': [[gateway, stored], '', 2, 1],
  'a receipt for another message, then stored': [[foreign, stored], '', 2, 1],
  'refused': [[wrongState], 'INVALID_TRANSITION', 1, 1],
  'never a connection': [always(refused), 'NO_ANSWER', 8, 1],
  'always limited': [always(limited), 'RATE_LIMITED', 8, 1],
  'always full': [always(full), 'UNAVAILABLE', 8, 1],
  'always cut': [always(cut), 'UNKNOWN_OUTCOME', 8, 1],
  'always unavailable': [always(unavailable), 'UNKNOWN_OUTCOME', 8, 1],
  'cut, then never a connection': [[cut, ...always(refused)], 'UNKNOWN_OUTCOME', 8, 1],
  'cut, then refused by the rules of the thread': [[cut, wrongState], 'INVALID_TRANSITION', 2, 1],
  'cut, then refused because of something else':
    [[cut, () => refuse(403, 'INVALID_SIGNATURE')], 'UNKNOWN_OUTCOME', 2, 1],
  'cut, then expired': [[cut, () => refuse(400, 'EXPIRED')], 'UNKNOWN_OUTCOME', 2, 1],
  'stale, then stored': [[stale(), stored], '', 2, 2],
  'stale, and stale again': [[stale(), stale(-1000)], 'STALE_TIMESTAMP', 2, 2],
  'stale by more than a day': [[stale(90_000_000)], 'STALE_TIMESTAMP', 1, 1],
  'stale without a time': [[() => refuse(400, 'STALE_TIMESTAMP', { now: 'soon' })], 'STALE_TIMESTAMP', 1, 1],
  'cut, then stale, then stored': [[cut, stale(), stored], '', 3, 2],
  'cut, then stale, then another message has the id':
    [[cut, stale(), () => refuse(409, 'DUPLICATE_ID')], 'UNKNOWN_OUTCOME', 3, 2],
  'cut, then stale, then refused': [[cut, stale(), wrongState], 'INVALID_TRANSITION', 3, 2],
  'cut, then stale, then limited': [[cut, stale(), ...always(limited)], 'UNKNOWN_OUTCOME', 10, 2],
  'a long wait': [[() => refuse(429, 'RATE_LIMITED', {}, { 'retry-after': '121' })], 'RATE_LIMITED', 1, 1],
};

test('the outcome of a post', async (t) => {
  skipWaits(t);
  for (const [name, [acts, code, posts, bodies]] of Object.entries(OUTCOMES)) {
    const sent = [], fetch = fake((n, url, options) => {
      sent.push(Buffer.from(options.body).toString());
      return acts[n - 1](n, url, options);
    });
    const r = new Relay('http://127.0.0.1:1', { me: alice, fetch });
    const [receipt, err] = await r.post('CANCEL', {}, { thread: 't', ttl: 60 }).then((v) => [v], (v) => [undefined, v]);
    assert.equal(err?.code ?? '', code, name);
    assert.deepEqual([sent.length, new Set(sent).size], [posts, bodies], name);
    assert.equal(new Set(sent.map((text) => JSON.parse(text).id)).size, 1, `${name}: one id`);
    const last = JSON.parse(sent.at(-1));
    if (receipt) assert.equal(Date.parse(receipt.expiresAt), Date.parse(last.ts) + 60_000, `${name}: the receipt`);
    if (code === 'UNKNOWN_OUTCOME') {
      assert.ok(err instanceof UnknownOutcome && !(err instanceof Refused) && err.retryable, name);
      assert.deepEqual(err.envelope, last, name);
    } else if (err) assert.ok(err instanceof RelayError, name);
  }
});

test('without retryLimited a limit is not waited for', async () => {
  let count = 0;
  const fetch = fake((n) => { count = n; return limited(); });
  const r = new Relay('http://127.0.0.1:1', { me: alice, fetch });
  await assert.rejects(r.post('CANCEL', {}, { thread: 't' }, { retryLimited: false }), (err) => err.status === 429);
  assert.equal(count, 1);
});

test('post refuses what no relay takes, and sends nothing', async () => {
  const fetch = fake(() => assert.fail('sent')), r = new Relay('http://127.0.0.1:1', { me: alice, fetch });
  const posts = [['CANCEL', { a: 'x'.repeat(140_000) }, { thread: 't' }, 'PAYLOAD_TOO_LARGE'],
    ['CANCEL', {}, {}, 'INVALID_REQUEST'], ['CANCEL', [], { thread: 't' }, 'INVALID_REQUEST'],
    ['CANCEL', { at: new Date() }, { thread: 't' }, 'INVALID_REQUEST'],
    ['OFFER', {}, { thread: 't', to: 'bob', seal: true }, 'INVALID_DID'],
    ['CANCEL', {}, { thread: 't', ttl: 0.5 }, 'INVALID_REQUEST']];
  for (const [type, payload, options, code] of posts) {
    await assert.rejects(r.post(type, payload, options), (err) => err.code === code && err.retryable === false);
  }
});

test('the text of a relay is safe to print', async () => {
  const fetch = fake(() => refuse(400, 'BAD\u001b]0;', { x: 1 }));
  await assert.rejects(new Relay('http://127.0.0.1:1', { fetch }).page(), (err) => err.code === 'BAD\\u001b]0;');
  assert.equal(printable('a\u202eb\u200bc\u{e0041}\n'), 'a\\u202eb\\u200bc\\udb40\\udc41\\u000a');
  assert.equal(printable('é€😀'), 'é€😀');
  assert.equal(printable('x'.repeat(2000)).length, 1000);
  assert.equal(printable('a\n\tb\r', { keep: '\n\t' }), 'a\n\tb\\u000d');
  const all = Array.from({ length: 0x110000 }, (_, n) => n).filter((n) => n < 0xd800 || n > 0xdfff);
  const text = JSON.stringify(all.map((n) => String.fromCodePoint(n)).join(''));
  assert.equal(JSON.parse(printable(text, { max: Infinity })), JSON.parse(text), 'JSON keeps its value');
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
  assert.deepEqual(urls, [[DOCUMENT, undefined], ['/events', undefined], ['/events', undefined]],
    'it has answered an unsigned read of our inbox');
  const failing = fake((n, url) => url.endsWith(DOCUMENT) ? new Response('', { status: 502 }) : page([], 'c'));
  await assert.rejects(new Relay('http://127.0.0.1:1', { me: alice, fetch: failing }).page(), (err) =>
    err.status === 502);
});

