import assert from 'node:assert/strict';
import test from 'node:test';
import { canonicalize, checkEnvelope, covered, instant, readEnvelope, Refused, threadOf, verify } from '../agora.js';
import { checkMeant } from '../../../testvectors/interop/node/rules.mjs';
import { bob, folder, hex, message, refuses, utf8, vectorsOf } from './helpers.js';

test('checkEnvelope has the rules of the form', async () => {
  const e = await message();
  const check = (changes) => () => checkEnvelope({ ...e, ...changes });
  for (const [code, ...changes] of [
    ['UNSUPPORTED_VERSION', { version: 1 }, { version: '1.1' }, { version: undefined }],
    ['INVALID_DID', { sender: undefined }, { sender: [] }, { sender: { id: '' } }, { sender: { ...e.sender, name: 1 } },
    { sender: { ...e.sender, url: null } }, { recipient: null }, { recipient: {} }, { recipient: bob.did }],
    ['FORBIDDEN', { meta: { relay: 5 } }, { meta: { relay: null } }, { meta: { relay: ['https://a.example', 5] } }],
    ['INVALID_REQUEST', { id: '' }, { id: '-a' }, { id: 'a'.repeat(129) }, { id: 'a\n' }, { id: 5 },
    { type: 'request' }, { ts: 0 }, { Type: 'x' }, { '\u017fig': 'x' }, { SIG: 1 }, { payload: [] }, { payload: null },
    { payload: { request_id: 5 } }, { payload: { request_id: 'é'.repeat(65) } }, { thread: null }, { thread: {} },
    { thread: 'a' }, { thread: { id: ' ' } }, { thread: undefined, payload: {} }, { type: 'MANIFEST' }, { meta: null },
    { meta: [] }, { meta: { ttl: 0 } }, { meta: { ttl: 1.5 } }, { meta: { ttl: '300' } }, { meta: { ttl: null } },
    { meta: { ttl: 9_223_372_037 } }, { meta: { hop: 17 } }, { meta: { hop: -1 } },
    { payload: { request_id: 'r', x: '\ud800' } }, { x: Array(1001).fill(1e-308) }],
  ]) for (const change of changes) await refuses(code, check(change), JSON.stringify(change));
  for (const change of [
    { id: 'a'.repeat(128) }, { more: { Type: 1 } }, { meta: undefined }, { meta: { ttl: 9_223_372_036, hop: -0 } },
    { types: 1 },
    { meta: { relay: [] } }, { type: 'MANIFEST', thread: undefined, payload: { request_id: 5 } }, { thread: undefined },
    { payload: { request_id: 'é'.repeat(64) } }, { x: Array(1000).fill(1e-308) },
  ]) assert.ok(check(change)(), JSON.stringify(change));
  let deep = {}; // 63 levels, and the envelope is one more
  for (let i = 1; i < 63; i++) deep = { deep };
  assert.ok(check({ deep })());
  await refuses('INVALID_REQUEST', check({ deep: { deep } }));
  for (const e of [null, [], 'x', 5, undefined]) await refuses('INVALID_REQUEST', () => checkEnvelope(e));
});

test('readEnvelope reads a bare or a wrapped envelope', async () => {
  const e = await message(), text = JSON.stringify(e);
  const read = (json) => readEnvelope(utf8(json));
  assert.deepEqual(read(text), e);
  assert.deepEqual(read(` {"envelope" : ${text}}\n`), e);
  assert.deepEqual(read(text.replace('{', '{"envelope":{},')).envelope, {});
  await refuses('UNSUPPORTED_VERSION', () => read(`{"envelope":${text},"x":1}`));
  await refuses('UNSUPPORTED_VERSION', () => read(`{"envelope":[${text}]}`));
  await refuses('INVALID_REQUEST', () => read(`[${text}]`));
  await refuses('INVALID_REQUEST', () => read(text.replace('"id"', '"id":"x","id"')));
  await refuses('PAYLOAD_TOO_LARGE', () => read(text + ' '.repeat(131_073 - text.length)));
  assert.ok(read(text + ' '.repeat(131_072 - text.length)));
  const deep = (levels) => text.replace('"intent"', `"x":${'['.repeat(levels)}${']'.repeat(levels)},"intent"`);
  assert.ok(read(deep(62)));
  await refuses('INVALID_REQUEST', () => read(deep(63)));
  await refuses('INVALID_REQUEST', () => read(`{"envelope":${deep(62)}}`)); // the wrapper counts
});

test('threadOf falls back to request_id', () => {
  assert.equal(threadOf({ thread: { id: 't' }, payload: { request_id: 'r' } }), 't');
  assert.equal(threadOf({ payload: { request_id: 'r' } }), 'r');
});

test('instant has nanoseconds and refuses what RFC 3339 refuses', async () => {
  assert.equal(instant('2026-02-02T12:00:00.000000001Z'), 1_770_033_600_000_000_001n);
  assert.equal(instant('2026-02-02T14:00:00+02:00'), instant('2026-02-02T12:00:00Z'));
  assert.equal(instant('1969-12-31T23:59:59.5Z'), -500_000_000n);
  assert.ok(instant('2024-02-29T00:00:00Z') && instant('9999-12-31T23:59:59Z') && instant('0001-01-01T00:00:00Z'));
  for (const text of [
    '2026-02-02t12:00:00Z', '2026-02-02T12:00:00z', '2026-02-02 12:00:00Z', '2026-02-02T12:00:00',
    '2026-02-02T12:00:00,5Z',
    '2026-02-02T12:00:00.Z', '2026-02-02T12:00:00.1234567890Z', '2026-02-29T00:00:00Z', '2026-13-01T00:00:00Z',
    '2026-00-01T00:00:00Z',
    '2026-01-00T00:00:00Z', '2026-02-02T24:00:00Z', '2026-02-02T12:60:00Z', '2026-02-02T12:00:60Z',
    '2026-02-02T2:00:00Z',
    '2026-02-02T12:00:00+24:00', '2026-02-02T12:00:00+0200', '2026-02-02T12:00:00Z\n', '', 5, null, undefined,
    ['2026-02-02T12:00:00Z'],
  ]) await refuses('INVALID_REQUEST', () => instant(text), JSON.stringify(text));
});

test('envelopes: vectors of third parties', async (t) => {
  const dir = folder(t, 'AGORA_VECTORS');
  if (!dir) return;
  const policy = { casefold_type: false, deep_5000: false,
    ttl_300_0: true }; // where the vectors leave the verdict open
  let accepted = 0;
  for (const v of vectorsOf(dir, 'envelope/verify_vectors.json', 'vectors')) {
    let e;
    try {
      e = readEnvelope(new Uint8Array(Buffer.from(v.body_b64, 'base64')));
      checkMeant(e, 'https://relay.example', instant(v.now));
      await verify(e);
    } catch (err) {
      assert.ok(err instanceof Refused, String(err));
      e = undefined;
    }
    const want = v.expect === 'policy' ? policy[v.name] : v.expect === 'accept';
    if (want !== undefined) assert.equal(e !== undefined, want, `${v.name}: ${v.why}`);
    if (v.expect === 'accept') {
      assert.equal(hex(covered(e)), v.canonical_hex, v.name);
      assert.ok(canonicalize(e).length > covered(e).length);
      accepted++;
    }
  }
  assert.ok(accepted > 5);
});
