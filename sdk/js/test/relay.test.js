import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import test from 'node:test';
import { checkRead, instant, isSealed, open, parse, readEnvelope, Refused, Relay, RelayError,
  verify } from '../agora.js';
import { alice, bob, fake, message, page, refusal } from './helpers.js';

const DOCUMENT = '/.well-known/agora.json';

// A relay that answers with answer(request, response), where request also has its body and the time. answer returns an
// object, which is sent with status 200, or [status, object, headers], or undefined if it has answered itself. The
// document says reads.
async function serve(t, answer, reads = 'open') {
  const requests = [], server = createServer(async (request, response) => {
    const parts = [];
    for await (const part of request) parts.push(part);
    const { method, url, headers } = request,
      seen = { method, url, headers, body: Buffer.concat(parts), at: performance.now() };
    requests.push(seen);
    const document = url === DOCUMENT && { ok: true, url: relay.origin, reads };
    const result = document || await answer(seen, response);
    if (result === undefined) return;
    const [status, object, more = {}] = Array.isArray(result) ? result : [200, result];
    response.writeHead(status, { 'content-type': 'application/json', ...more });
    response.end(JSON.stringify(object));
  });
  const listen = (port) => new Promise((resolve) => { server.listen(port, '127.0.0.1', resolve); });
  const stop = () => new Promise((resolve) => { server.close(resolve); server.closeAllConnections(); });
  await listen(0);
  const { port } = server.address(), relay = { origin: `http://127.0.0.1:${port}`, requests, stop, start: () =>
    listen(port) };
  t.after(() => server.listening && stop());
  return relay;
}

const receipt = (seen) => ({ ok: true, id: parse(seen.body).id, cursor: 'c', duplicate: false });
const challenge = { 'www-authenticate': 'Agora' };
const reads = (relay) => relay.requests.filter((r) => r.url !== DOCUMENT);

test('post signs, and sends the same bytes again if the answer is lost', async (t) => {
  const relay = await serve(t, (seen, response) =>
    relay.requests.length === 1 ? void response.destroy() : receipt(seen));
  const answer = await new Relay(`${relay.origin}/`, { me: alice }).post('OFFER', { request_id: 'r' },
    { to: bob.did, thread: 't' });
  const [first, second] = relay.requests, e = readEnvelope(first.body);
  await verify(e);
  assert.equal(answer.id, e.id);
  assert.deepEqual([first.method, first.url, first.headers['content-type']], ['POST', '/events', 'application/json']);
  assert.deepEqual(second.body, first.body);
  assert.deepEqual([e.recipient.id, e.thread.id, e.meta.ttl, e.type], [bob.did, 't', 86_400, 'OFFER']);
  assert.ok(second.at - first.at > 200, 'it waits before it sends again');
});

test('post waits as long as the relay asks for', async (t) => {
  const relay = await serve(t, (seen) => [
    [429, refusal('RATE_LIMITED', { limit: 'postsPerAgent' }, true), { 'retry-after': '1' }],
    [503, refusal('UNAVAILABLE', {}, true), { 'retry-after': '1' }], receipt(seen),
  ][relay.requests.length - 1]);
  await new Relay(relay.origin, { me: alice }).post('CANCEL', {}, { thread: 't' });
  const [a, b, c] = relay.requests;
  assert.ok(b.at - a.at >= 1000 && c.at - b.at >= 1000, `${b.at - a.at}, ${c.at - b.at}`);
  assert.deepEqual([b.body, c.body], [a.body, a.body]);
});

test('an error has what the relay has said', async (t) => {
  const relay = await serve(t, () => [409, refusal('INVALID_TRANSITION', { state: 'COMPLETED' })]);
  const late = await serve(t, () => [429, refusal('RATE_LIMITED', { limit: 'polls' }, true),
    { 'retry-after': '7200' }]);
  const post = (to) => new Relay(to.origin, { me: alice }).post('CANCEL', {}, { thread: 't' });
  await assert.rejects(post(relay), (err) => err instanceof RelayError && err instanceof Refused &&
    err.code === 'INVALID_TRANSITION' && err.status === 409 && err.details.state === 'COMPLETED' &&
    err.retryable === false && err.retryAfter === 0 && err.message === 'INVALID_TRANSITION: why');
  await assert.rejects(post(late), (err) => err.retryAfter === 7_200_000 && err.retryable && err.status === 429);
  assert.deepEqual([relay.requests.length, late.requests.length], [1, 1]);
});

test('Retry-After may be a date', async (t) => {
  const relay = await serve(t, () => [503, refusal('UNAVAILABLE', {}, true),
    { 'retry-after': 'Mon, 02 Feb 2026 12:10:00 GMT' }]);
  const clock = () => Date.UTC(2026, 1, 2, 12);
  await assert.rejects(new Relay(relay.origin, { clock }).agents(), (err) => err.retryAfter === 600_000);
});

test('post needs an identity', async () => {
  await assert.rejects(new Relay('http://127.0.0.1:1').post('CANCEL', {}), (err) => err.code === 'INVALID_REQUEST');
});

test('post seals', async (t) => {
  const relay = await serve(t, receipt), payload = { request_id: 'r', intent: 'i', params: 1 };
  await new Relay(relay.origin, { me: alice }).post('REQUEST', payload, { to: bob.did, thread: 't', seal: true });
  const e = readEnvelope(relay.requests[0].body);
  assert.ok(isSealed(e));
  assert.deepEqual(await open(e, bob), payload);
});

test('redirects are not followed', async (t) => {
  const other = await serve(t, () => ({ ok: true, agents: [] }));
  const relay = await serve(t, () => [307, {}, { location: `${other.origin}/agents` }]);
  await assert.rejects(new Relay(relay.origin).agents(), (err) => err.code === 'NO_ANSWER');
  assert.equal(other.requests.length, 0);
});

test('the routes and their parameters', async (t) => {
  const relay = await serve(t, () => ({ ok: true, events: [], cursor: 'c', agents: [], thread: {} })),
    r = new Relay(`${relay.origin}/agora//`);
  await r.page({ before: 'end', limit: 5, type: undefined });
  await r.thread('a~b', bob.did);
  await r.thread('t');
  await r.agents({ intent: 'a b', online: true });
  assert.deepEqual(relay.requests.map((seen) => seen.url), [
    '/agora/events?before=end&limit=5', `/agora/threads/a~b?client=${encodeURIComponent(bob.did)}`, '/agora/threads/t',
    '/agora/agents?intent=a+b&online=true',
  ]);
  assert.ok(relay.requests.every((seen) => !seen.headers.authorization && !seen.headers.cookie));
});

// A private relay. check is given the number of the read; it returns the refusal of a read, or nothing.
const privately = (t, check) => serve(t, async (seen, response) => {
  const [scheme, token] = (seen.headers.authorization ?? '').split(' ');
  if (scheme !== 'Agora') return [401, refusal('UNAUTHORIZED', { reason: 'unsigned' }), challenge];
  seen.token = parse(Buffer.from(token, 'base64url'));
  const request = { origin: `http://${seen.headers.host}`, method: seen.method, target: seen.url };
  seen.reader = await checkRead(token, request, instant(seen.token.ts));
  const refused = check?.(seen);
  return refused ? [401, refusal('UNAUTHORIZED', refused), challenge] : page([], 'c1');
}, 'parties');

test('reads of a private relay are signed, each with a new token', async (t) => {
  const relay = await privately(t), r = new Relay(relay.origin, { me: alice });
  await r.page({ cursor: 0, recipient: alice.did });
  await r.thread('t');
  const [one, two] = reads(relay);
  assert.deepEqual([one.reader, two.reader], [alice.did, alice.did]);
  assert.notEqual(one.token.nonce, two.token.nonce);
  assert.match(one.token.ts, /\.\d{3}Z$/);
  assert.equal(relay.requests.length, 3, 'the document is read once');
  await assert.rejects(new Relay(relay.origin).page(), (err) => err.status === 401 && err.challenged);
});

test('polls of an open relay are signed, so that we are online there', async (t) => {
  let mode = 'open', status = 200, now = 1_770_000_000_000;
  const relay = await serve(t, (seen) => {
    if (seen.headers.authorization ? status === 200 : mode === 'open') return page([], 'c');
    return [seen.headers.authorization ? status : 401, refusal('UNAUTHORIZED', { reason: 'unsigned' }),
      mode === 'open' ? {} : challenge];
  });
  const fetch = (url, options) => url.endsWith(DOCUMENT)
    ? Response.json({ ok: true, url: relay.origin, reads: mode }) : globalThis.fetch(url, options);
  const r = new Relay(relay.origin, { me: alice, fetch, clock: () => now });
  const signed = async (act) => {
    const before = relay.requests.length;
    await act();
    return relay.requests.slice(before).map((seen) => 'authorization' in seen.headers);
  };
  assert.deepEqual(await signed(() => r.page()), [true]);
  assert.deepEqual(await signed(() => r.get('/agents')), [false], 'other reads are not signed there');
  status = 403; // a proxy refuses tokens
  assert.deepEqual(await signed(() => r.page()), [true, false]);
  status = 200;
  assert.deepEqual(await signed(() => r.page()), [false]);
  now += 300_000;
  assert.deepEqual(await signed(() => r.page()), [true]);
  mode = 'parties';
  assert.deepEqual(await signed(() => r.get('/agents')), [false, true], 'the relay asks for it');
  assert.ok(r.isPrivate);
  mode = 'open'; // once private, always signed
  now += 300_000;
  assert.deepEqual(await signed(() => r.get('/agents')), [true]);
});

test('no poll is signed for another origin', async (t) => {
  for (const about of [{ reads: 'open', url: 'https://relay.example' }, { reads: 'open' }, {}]) {
    let unsigned = 0;
    const fetch = fake((n, url, { headers }) => {
      if (headers.authorization === undefined) unsigned++;
      return url.endsWith(DOCUMENT) ? { ok: true, ...about } : page([], 'c');
    });
    await new Relay('http://127.0.0.1:1', { me: alice, fetch }).page();
    assert.equal(unsigned, 2, JSON.stringify(about));
  }
});

test('with requireParties, nothing is sent to an open relay', async (t) => {
  let reads = 'open', sent = 0, now = 1_770_000_000_000;
  const url = 'http://127.0.0.1:1';
  const fetch = fake((n, at, { body }) => {
    if (at.endsWith(DOCUMENT)) return { ok: true, url, reads };
    sent++;
    return body ? { ok: true, id: parse(body).id } : page([], 'c');
  });
  const r = new Relay(url, { me: alice, fetch, requireParties: true, clock: () => now });
  const acts = [() => r.page(), () => r.post('CANCEL', {}, { thread: 't' }), () => r.agents()];
  for (const act of [...acts, () => new Relay(url, { fetch, requireParties: true }).page()]) {
    await assert.rejects(act(), (err) => err.code === 'UNAUTHORIZED' && !err.retryable, String(act));
  }
  assert.equal(sent, 0);
  reads = 'parties';
  for (const act of acts) await act();
  assert.equal(sent, 3);
  reads = 'open';
  now += 300_000;
  await assert.rejects(acts[1](), (err) => err.code === 'UNAUTHORIZED');
  assert.equal(sent, 3);
});

test('no token is made for an origin that is not in use', async (t) => {
  const claiming = (about) => fake((n, url, { headers }) => {
    assert.equal(headers.authorization, undefined);
    return { ok: true, events: [], ...about };
  });
  for (const about of [
    { reads: 'parties', url: 'https://relay.example' }, { reads: 'parties', url: 'http://127.0.0.1:2' },
    { reads: 'parties' },
    { reads: 'parties', url: 'http://127.0.0.1:1/' }, { reads: 'parties', url: 'http://localhost:1' },
    { reads: 'friends', url: 'http://127.0.0.1:1' },
  ]) {
    await assert.rejects(new Relay('http://127.0.0.1:1', { me: alice, fetch: claiming(about) }).page(),
      (err) => err.code === 'UNAUTHORIZED' && !err.retryable, JSON.stringify(about));
  }
  for (const url of ['http://127.0.0.1:2', 'https://127.0.0.1:1', 'http://127.0.0.1:1/x', 'http://10.0.0.1:1',
    'http://[::2]:1']) {
    const fetch = fake((n, asked) => {
      assert.equal(new URL(asked).origin, 'http://localhost:1');
      return { ok: true, events: [], reads: 'parties', url };
    });
    await assert.rejects(new Relay('http://localhost:1', { me: alice, fetch }).page(),
      (err) => err.code === 'UNAUTHORIZED', url);
  }
  const relay = await privately(t), port = new URL(relay.origin).port; // given as localhost, it is used at its address
  await new Relay(`http://localhost:${port}`, { me: alice }).page();
  assert.equal(reads(relay)[0].headers.host, `127.0.0.1:${port}`);
});

test('through a trusted proxy, tokens are for the relay behind it', async (t) => {
  let audience, url = 'https://relay.example';
  const fetch = fake((n, at, { headers }) => {
    const token = headers.authorization?.split(' ')[1];
    if (token) audience = parse(Buffer.from(token, 'base64url')).aud;
    return { ok: true, reads: 'parties', url };
  });
  const proxied = () => new Relay('http://127.0.0.1:1', { me: alice, origin: 'https://relay.example', fetch });
  await proxied().get('/events?cursor=0', { wait: 1000 });
  assert.equal(audience, 'https://relay.example');
  url = 'https://other.example';
  await assert.rejects(proxied().get('/health'), (err) => err.code === 'UNAUTHORIZED' && !err.retryable);
});

test('the clock for tokens is corrected, once in five minutes', async (t) => {
  let offset = 120_000, skew;
  const now = () => Date.now() + offset;
  const relay = await privately(t, ({ token }) => {
    skew = Number(instant(token.ts) / 1_000_000n) - now();
    return Math.abs(skew) < 60_000 ? undefined : { reason: 'time', now: new Date(now()).toISOString() };
  });
  let passed = 0;
  const r = new Relay(relay.origin, { me: alice, clock: () => Date.now() + passed });
  await r.page();
  assert.equal(reads(relay).length, 2);
  assert.ok(Math.abs(skew) < 10_000);
  offset = -120_000; // the relay's clock jumps
  await assert.rejects(r.page(), (err) => err.status === 401 && err.retryable && err.details.reason === 'time');
  assert.equal(reads(relay).length, 3, 'a second correction comes too early');
  passed = 300_000; // five minutes later, by our clock, which the relay does not follow
  offset = 840_000;
  await r.page();
  passed += 300_000;
  offset = 1_600_000; // a quarter of an hour and more before us
  await assert.rejects(r.page(), (err) => err.status === 401 && !err.retryable);
  passed += 300_000;
  offset = -85_000_000; // nearly a day behind us: such a token is worth nothing to others
  await r.page();
  for (const bad of ['', 5, null, '9999-99-99T00:00:00Z']) {
    const liar = await privately(t, () => ({ reason: 'time', now: bad }));
    await assert.rejects(new Relay(liar.origin, { me: alice }).page(), (err) => err.status === 401 && !err.retryable);
  }
});

test('a token that was used already is replaced', async (t) => {
  const relay = await privately(t, () => reads(relay).length === 1 ? { reason: 'used' } : undefined);
  await new Relay(relay.origin, { me: alice }).page();
  const [one, two] = reads(relay);
  assert.notEqual(one.token.nonce, two.token.nonce);
  const always = await privately(t, () => ({ reason: 'used' }));
  await assert.rejects(new Relay(always.origin, { me: alice }).page(), (err) => err.details.reason === 'used');
  assert.equal(reads(always).length, 3);
});

test('a signal ends every wait at once', async (t) => {
  const relay = await serve(t, () => undefined); // a poll that is never answered
  const busy = await serve(t, () => [503, refusal('UNAVAILABLE', {}, true), { 'retry-after': '60' }]);
  for (const act of [
    (signal) => new Relay(relay.origin).page({}, { signal }),
    (signal) => new Relay(busy.origin, { me: alice }).post('CANCEL', {}, { thread: 't' }, { signal }),
    (signal) => new Relay(relay.origin).thread('t', undefined, { signal }),
  ]) {
    const stop = new AbortController(), reason = new Error('enough'), began = performance.now();
    setTimeout(() => stop.abort(reason), 150);
    await assert.rejects(act(stop.signal), (err) => err === reason, String(act));
    assert.ok(performance.now() - began < 5000, String(act));
    await assert.rejects(act(stop.signal), (err) => err === reason, 'a signal that was aborted before');
  }
  assert.ok(relay.requests.length <= 8, 'an aborted signal sends nothing');
});
