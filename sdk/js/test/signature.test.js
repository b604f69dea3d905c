import assert from 'node:assert/strict';
import test from 'node:test';
import {
  canonicalize, checkEnvelope, covered, decode64, didOf, encode64, explain, keyOf, Refused, sign, Unavailable, verifies,
  verify, x25519Private,
} from '../agora.js';
import { alice, bob, folder, fromHex, hex, message, refuses, utf8, vectorsOf } from './helpers.js';

const L = 2n ** 252n + 27742317777372353535851937790883648493n;
const number = (bytes) => BigInt(`0x${hex(bytes.slice().reverse())}`);
const bytesOf = (n) => fromHex(n.toString(16).padStart(64, '0')).reverse();

test('verify accepts what sign has signed, and nothing else', async () => {
  const e = await message({ recipient: { id: bob.did }, extra: { sig: 'x' } });
  await verify(checkEnvelope(e));
  for (const change of [
    { id: 'msg_2' }, { extra: undefined }, { more: 1 }, { ts: '2026-02-02T12:00:00.0Z' }, { sender: { id: bob.did } },
    { payload: { ...e.payload, a: 1 } }, { sig: undefined }, { sig: '' }, { sig: 5 }, { sig: `${e.sig}A` },
    { sig: `${e.sig.slice(0, -1)}=` }, { sig: `${e.sig}==` }, { sig: ` ${e.sig.slice(1)}` }, { sig: 'A'.repeat(86) },
  ]) await refuses('INVALID_SIGNATURE', () => verify({ ...e, ...change }), JSON.stringify(change));
  const alphabet = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_',
    last = alphabet.indexOf(e.sig[85]);
  for (let bits = 1; bits < 16; bits++) { // the last character has 4 unused bits
    await refuses('INVALID_SIGNATURE', () => verify({ ...e, sig: e.sig.slice(0, 85) + alphabet[last + bits] }), bits);
  }
  for (const party of [undefined, null, {}, { id: 5 }, { id: 'did:key:z6Mk' }]) {
    await refuses('INVALID_DID', () => verify({ ...e, sender: party }));
    if (party !== undefined) await refuses('INVALID_DID', () => verify({ ...e, recipient: party }));
  }
});

test('the signature covers a member named __proto__', async () => {
  const e = JSON.parse(JSON.stringify(await message({}, alice)).replace('{', '{"__proto__":{"a":1},'));
  await refuses('INVALID_SIGNATURE', () => verify(e));
  const signed = await sign({ ...e, sig: undefined }, alice);
  assert.match(new TextDecoder().decode(covered(signed)), /"__proto__":\{"a":1\}/);
  await verify(signed);
});

test('S is refused from the order of the group on', async (t) => {
  t.mock.method(crypto.subtle, 'verify', async () => true); // does not matter
  const e = await message(), raw = decode64(e.sig), S = number(raw.slice(32));
  for (const n of [S + L, L, 2n ** 256n - 1n]) {
    const sig = encode64(Uint8Array.of(...raw.slice(0, 32), ...bytesOf(n)));
    await refuses('INVALID_SIGNATURE', () => verify({ ...e, sig }));
  }
  assert.equal(await verifies(raw.slice(0, 63), covered(e), alice.did), false);
});

// The signer can choose R = 0, the neutral point: then S = k·a. Go accepts such a signature, and some browsers do not.
test('an R of small order is accepted if the equation holds', async (t) => {
  t.mock.method(crypto.subtle, 'verify', async () => false); // as in those browsers
  const text = utf8('any text'), R = Uint8Array.of(1, ...new Uint8Array(31)), key = keyOf(alice.did);
  const hash = new Uint8Array(await crypto.subtle.digest('SHA-512', Uint8Array.of(...R, ...key, ...text)));
  const k = (number(hash.slice(0, 32)) + (number(hash.slice(32)) << 256n)) % L;
  const S = k * number(await x25519Private(alice.seed)) % L, sig = Uint8Array.of(...R, ...bytesOf(S));
  assert.equal(await verifies(sig, text, alice.did), true);
  assert.equal(await verifies(sig, utf8('other text'), alice.did), false);
  const spelled = Uint8Array.of(...sig); // the same point, with the sign bit of its x = 0: only the bytes differ
  spelled[31] |= 0x80;
  assert.equal(await verifies(spelled, text, alice.did), false);
});

test('the keys of the last 1,000 senders are kept', async (t) => {
  const e = await message(), { importKey } = crypto.subtle;
  let imports = 0;
  t.mock.method(crypto.subtle, 'importKey', (...args) => {
    imports++;
    return importKey.apply(crypto.subtle, args);
  });
  let n = 2n;
  const others = (count) => {
    for (let i = 0; i < count; n++) {
      try { keyOf(didOf(bytesOf(n))); } catch { continue; } // half of all numbers are no point
      i++;
    }
  };
  await verify(e);
  const before = imports;
  others(900);
  await verify(e);
  others(900); // verify has made the key the newest one again
  await verify(e);
  assert.equal(imports, before);
  others(1000);
  await verify(e);
  assert.equal(imports, before + 1);
});

test('explain names each step, and stops at the first that fails', async () => {
  const e = await message({ recipient: { id: bob.did } }), steps = await explain(e);
  const names = ['form', 'canonical', 'sender', 'recipient', 'signature', 'equation'];
  assert.deepEqual(steps.map((s) => [s.step, s.name, s.ok, typeof s.detail]),
    names.map((n, i) => [i + 1, n, true, 'string']));
  const [, canonical, sender, recipient, signature, equation] = steps;
  assert.equal(canonical.text, new TextDecoder().decode(covered(e)));
  assert.equal(canonical.bytes, covered(e).length);
  assert.equal(canonical.sha256, hex(new Uint8Array(await crypto.subtle.digest('SHA-256', covered(e)))));
  assert.deepEqual([sender.did, sender.multicodec, sender.key], [alice.did, 'ed01', hex(keyOf(alice.did))]);
  assert.equal(recipient.key, hex(keyOf(bob.did)));
  assert.deepEqual([signature.sig, signature.R + signature.S], [e.sig, hex(decode64(e.sig))]);
  assert.equal(equation.computed, signature.R);

  const lastOf = async (changes) => {
    const { name, ok, detail, ...values } = (await explain({ ...e, ...changes })).at(-1);
    return { name, ok, values };
  };
  assert.deepEqual((await explain(await message())).map((s) => s.name), names.filter((n) => n !== 'recipient'));
  assert.equal((await lastOf({ type: 'OFERR' })).name, 'form');
  assert.equal((await lastOf({ sender: { id: 'did:key:z6Mk' } })).name, 'sender');
  assert.equal((await lastOf({ recipient: { id: 'did:web:x' } })).name, 'recipient');
  assert.equal((await lastOf({ sig: 'A' })).name, 'signature');
  const high = encode64(Uint8Array.of(...decode64(e.sig).slice(0, 32), ...bytesOf(L)));
  assert.deepEqual([(await lastOf({ sig: high })).name, (await lastOf({ sig: high })).ok], ['signature', false]);
  const { name, ok, values } = await lastOf({ id: 'msg_2' });
  assert.deepEqual([name, ok], ['equation', false]);
  assert.notEqual(values.computed, values.R);
});

test('explain never throws', async () => {
  const cycle = {};
  cycle.self = cycle;
  const trap = new Proxy({}, { get() { throw new Error('trap'); }, ownKeys() { throw new Error('trap'); } });
  const getter = { get id() { throw new Error('trap'); } };
  let deep = {};
  for (let i = 0; i < 100_000; i++) deep = { deep };
  for (const e of [undefined, null, 5, 'x', [], {}, 1n, Symbol('s'), cycle, trap, getter, deep,
    { ...await message(), payload: deep }, { ...await message(), sender: null },
    { ...await message(), toJSON: () => 1 }, JSON.parse('{"__proto__":null}'), new Date()]) {
    const steps = await explain(e);
    assert.deepEqual(steps.map((s) => [s.name, s.ok]), [['form', false]]);
    assert.equal(typeof steps[0].detail, 'string');
    assert.ok(!steps[0].detail.includes('trap'));
  }
});

test('without WebCrypto nothing is claimed about a signature', async () => {
  const e = await message(), { getRandomValues, subtle } = globalThis.crypto, real = globalThis.crypto;
  const noEd25519 = {
    digest: subtle.digest.bind(subtle), importKey: async () => { throw new DOMException('', 'NotSupportedError'); },
  };
  const other = didOf(Uint8Array.of(3,
    ...new Uint8Array(31))); // a sender that no test has used: its key is not imported yet
  for (const missing of [{ getRandomValues: getRandomValues.bind(real) }, { subtle: noEd25519 }]) {
    Object.defineProperty(globalThis, 'crypto', { value: missing, configurable: true });
    try {
      const foreign = { ...e, sender: { id: other } };
      await assert.rejects(verify(foreign), (err) => err instanceof Unavailable && err.code === 'NO_WEBCRYPTO' &&
        !(err instanceof Refused));
      await assert.rejects(sign(e, { ...alice }), Unavailable);
      const steps = await explain(foreign), last = steps.at(-1);
      assert.deepEqual([last.name, last.ok, steps.length], ['equation', null, 5]);
      assert.equal(typeof steps[1].sha256, missing.subtle ? 'string' : 'object');
    } finally { Object.defineProperty(globalThis, 'crypto', { value: real, configurable: true }); }
  }
  await refuses('INVALID_SIGNATURE', () => verify({ ...e, sender: { id: other } }), 'the failure is not remembered');
});

test('Ed25519: vectors of third parties', async (t) => {
  const dir = folder(t, 'AGORA_VECTORS');
  if (!dir) return;
  const count = { true: 0, false: 0 };
  const check = async (key, text, sig, want, what) => {
    let got = false, did;
    try { did = didOf(fromHex(key)); } catch (err) { assert.ok(err instanceof Refused, String(err)); }
    if (did) got = await verifies(fromHex(sig), typeof text === 'string' ? fromHex(text) : text, did);
    assert.equal(got, want, what);
    count[got]++;
  };
  for (const group of vectorsOf(dir, 'ed25519/wycheproof_ed25519.json', 'testGroups')) {
    for (const v of group.tests) await check(group.publicKey.pk, v.msg, v.sig, v.result === 'valid',
      `Wycheproof ${v.tcId}`);
  }
  for (const v of vectorsOf(dir, 'ed25519/cctv_ed25519.json')) {
    await check(v.key, utf8(v.msg), v.sig, v.relay_policy === 'accept', `CCTV ${v.number}`);
  }
  for (const v of vectorsOf(dir, 'ed25519/speccheck_cases.json')) {
    await check(v.pub_key, v.message, v.signature, v.relay_policy === 'accept', `speccheck ${v.index}`);
  }
  for (const file of ['ed25519/rfc8032.json', 'ed25519/sign_input_128.json']) {
    for (const v of vectorsOf(dir, file)) {
      await check(v.pub, v.msg, v.sig, true, `${file} ${v.index}`);
      await check(v.pub, `${v.msg}00`, v.sig, false, `${file} ${v.index}, another text`);
    }
  }
  assert.ok(count.true > 100 && count.false > 500, JSON.stringify(count));
});

test('our own arithmetic agrees with WebCrypto', async (t) => {
  const dir = folder(t, 'AGORA_VECTORS');
  if (!dir) return;
  for (const v of vectorsOf(dir, 'envelope/verify_vectors.json', 'vectors')) {
    let e;
    try { e = JSON.parse(Buffer.from(v.body_b64, 'base64')); } catch { continue; }
    const last = (await explain(e.envelope ?? e)).at(-1);
    if (last.name === 'equation') assert.equal(last.ok, last.computed === last.R, v.name);
  }
});

test('a canonical form has no more bytes than the limit', async () => {
  const filled = (length) => message({ payload: { request_id: 'r', intent: 'i', fill: 'x'.repeat(length) } });
  const size = canonicalize(await filled(0)).length, fits = await filled(131_072 - size);
  checkEnvelope(fits);
  await refuses('PAYLOAD_TOO_LARGE', async () => checkEnvelope(await filled(131_073 - size)));
  assert.ok(checkEnvelope(await filled(131_073 - size), { maxBytes: 1 << 20 }));
});
