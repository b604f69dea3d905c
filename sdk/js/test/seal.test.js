import assert from 'node:assert/strict';
import { createCipheriv, randomBytes } from 'node:crypto';
import test from 'node:test';
import {
  canonicalText, chacha20poly1305, isSealed, open, place, Refused, seal, sign, Unavailable, x25519Private, x25519Public,
} from '../agora.js';
import { alice, bob, folder, fromHex, hex, message, refuses, utf8, vectorsOf } from './helpers.js';

// RFC 8439, section 2.8.2 and appendix A.5.
const RFC8439 = [{
  key: '808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f',
  nonce: '070000004041424344454647', aad: '50515253c0c1c2c3c4c5c6c7',
  text: "Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, " +
    'sunscreen would be it.',
  sealed: 'd31a8d34648e60db7b86afbc53ef7ec2a4aded51296e08fea9e2b5a736ee62d63dbea45e8ca9671282fafb69da92728b' +
    '1a71de0a9e060b2905d6a5b67ecd3b3692ddbd7f2d778b8c9803aee328091b58fab324e4fad675945585808b4831d7bc' +
    '3ff4def08e4b7a9de576d26586cec64b61161ae10b594f09e26a7e902ecbd0600691',
}, {
  key: '1c9240a5eb55d38af333888604f6b5f0473917c1402b80099dca5cbc207075c0',
  nonce: '000000000102030405060708', aad: 'f33388860000000000004e91',
  text: 'Internet-Drafts are draft documents valid for a maximum of six months and may be updated, replaced, or ' +
    'obsoleted by other documents at any time. It is inappropriate to use Internet-Drafts as reference material or ' +
    'to cite them other than as /“work in progress./”',
  sealed: '64a0861575861af460f062c79be643bd5e805cfd345cf389f108670ac76c8cb24c6cfc18755d43eea09ee94e382d26b0' +
    'bdb7b73c321b0100d4f03b7f355894cf332f830e710b97ce98c8a84abd0b948114ad176e008d33bd60f982b1ff37c855' +
    '9797a06ef4f0ef61c186324e2b3506383606907b6a7c02b0f9f6157b53c867e4b9166c767b804d46a59b5216cde7a4e9' +
    '9040c5a40433225ee282a1b0a06c523eaf4534d7f83fa1155b0047718cbc546a0d072b04b3564eea1b422273f548271a' +
    '0bb2316053fa76991955ebd63159434ecebb4e466dae5a1073a6727627097a1049e617d91d361094fa68f0ff77987130' +
    '305beaba2eda04df997b714d6c6f2c29a6ad5cb4022b02709beead9d67890cbb22392336fea1851f38',
}];

test('ChaCha20-Poly1305: RFC 8439', () => {
  for (const v of RFC8439) {
    const key = fromHex(v.key), nonce = fromHex(v.nonce), aad = fromHex(v.aad);
    assert.equal(hex(chacha20poly1305.seal(key, nonce, utf8(v.text), aad)), v.sealed);
    assert.equal(new TextDecoder().decode(chacha20poly1305.open(key, nonce, fromHex(v.sealed), aad)), v.text);
  }
});

test('ChaCha20-Poly1305: every change is refused', async () => {
  const [{ text, ...v }] = RFC8439, key = fromHex(v.key), nonce = fromHex(v.nonce), aad = fromHex(v.aad),
    sealed = fromHex(v.sealed);
  for (let i = 0; i < sealed.length; i++) {
    const changed = sealed.slice();
    changed[i] ^= 1 << i % 8;
    await refuses('INVALID_REQUEST', () => chacha20poly1305.open(key, nonce, changed, aad), `byte ${i}`);
  }
  for (const act of [
    () => chacha20poly1305.open(key, nonce, sealed), () => chacha20poly1305.open(nonce, nonce, sealed, aad),
    () => chacha20poly1305.open(key, key, sealed, aad),
    () => chacha20poly1305.open(key, nonce, sealed.subarray(0, 15), aad),
    () => chacha20poly1305.open(key, nonce, sealed.subarray(1), aad),
    () => chacha20poly1305.seal(nonce, nonce, utf8(text)),
  ]) await refuses('INVALID_REQUEST', act);
  for (let i = 0, found = 0; found < 2; i++) { // a tag without its last byte, which is 0
    const other = Uint8Array.of(i, i >> 8), tag = chacha20poly1305.seal(key, nonce, new Uint8Array(), other);
    if (tag[15] !== 0) continue;
    await refuses('INVALID_REQUEST', () => chacha20poly1305.open(key, nonce, tag.subarray(0, 15), other));
    found++;
  }
});

function sameAsOpenSSL(key, nonce, text, aad) {
  const theirs = createCipheriv('chacha20-poly1305', key, nonce, { authTagLength: 16 }).setAAD(aad);
  const want = Buffer.concat([theirs.update(text), theirs.final(), theirs.getAuthTag()]);
  const what = `key ${hex(key)}, nonce ${hex(nonce)}, text ${hex(text)}, aad ${hex(aad)}`;
  assert.equal(hex(chacha20poly1305.seal(key, nonce, text, aad)), hex(want), what);
  assert.equal(hex(chacha20poly1305.open(key, nonce, want, aad)), hex(text), what);
}

test('ChaCha20-Poly1305 gives what OpenSSL gives', () => {
  for (let length = 0; length < 400; length++) {
    const [key, nonce, text, aad] = [32, 12, length, length % 37].map((size) => randomBytes(size));
    if (length % 3 === 0) for (const part of [key, text, aad]) part.fill(0xff); // long carries
    sameAsOpenSSL(key, nonce, text, aad);
  }
});

// The last reduction matters only for few sums. This test makes texts of one block with such sums modulo P = 2^130-5.
test('Poly1305 reduces its sum completely', () => {
  const P = 2n ** 130n - 5n, top = 2n ** 128n, key = new Uint8Array(32).fill(7);
  const number = (bytes) => BigInt(`0x${hex(bytes.slice().reverse())}`);
  const mod = (n) => (n % P + P) % P;
  const inverse = (n) => {
    let result = 1n;
    for (let e = P - 2n, base = n; e > 0n; e >>= 1n, base = base * base % P) if (e & 1n) result = result * base % P;
    return result;
  };
  let made = 0;
  for (let i = 0; i < 100; i++) {
    const nonce = Uint8Array.of(i, ...new Uint8Array(11)), start = Uint8Array.of(0, 0, 0, 0, ...nonce);
    const stream = createCipheriv('chacha20', key, start).update(new Uint8Array(80)); // the one-time key; block 1
    const r = inverse(number(stream.subarray(0, 16)) & 0x0ffffffc0ffffffc0ffffffc0fffffffn), lengths = 16n << 64n;
    for (const sum of [0n, 1n, 2n, 3n, 4n, 5n, 2n ** 22n, 2n ** 44n + 1n, 2n ** 100n, 2n ** 129n, P - 1n]) {
      const block = mod(mod(sum * r - lengths - top) * r - top);
      if (block >= top) continue; // not the number of a block
      const sealed = fromHex(block.toString(16).padStart(32, '0')).reverse();
      sameAsOpenSSL(key, nonce, sealed.map((byte, at) => byte ^ stream[64 + at]), new Uint8Array());
      made++;
    }
  }
  assert.ok(made > 100, `${made}`);
});

test('ChaCha20-Poly1305: Wycheproof', async (t) => {
  const dir = folder(t, 'AGORA_WYCHEPROOF');
  if (!dir) return;
  const count = { valid: 0, invalid: 0 };
  for (const group of vectorsOf(dir, 'testvectors_v1/chacha20_poly1305_test.json', 'testGroups')) {
    for (const v of group.tests) {
      const [key, nonce, aad, sealed] = [v.key, v.iv, v.aad, v.ct + v.tag].map(fromHex);
      if (v.result === 'valid') {
        assert.equal(hex(chacha20poly1305.open(key, nonce, sealed, aad)), v.msg, `test ${v.tcId}`);
        assert.equal(hex(chacha20poly1305.seal(key, nonce, fromHex(v.msg), aad)), hex(sealed), `test ${v.tcId}`);
      } else await refuses('INVALID_REQUEST', () => chacha20poly1305.open(key, nonce, sealed, aad), `test ${v.tcId}`);
      count[v.result]++;
    }
  }
  assert.ok(count.valid > 200 && count.invalid > 50, JSON.stringify(count));
});

const toBob = { recipient: { id: bob.did } };
const sealedTo = async (changes) => sign(await seal(await message({ ...toBob, ...changes })), alice);

test('only the recipient opens a sealed payload', async () => {
  for (const [type, payload, clear] of [
    ['REQUEST', { request_id: 'r', intent: 'i', params: { text: '世界' }, status: 's' },
    { request_id: 'r', intent: 'i' }],
    ['REQUEST', { request_id: 'r', intent: 'i' }, { request_id: 'r', intent: 'i' }],
    ['OFFER', { request_id: 'r', intent: 'i', plan: 'p' }, { request_id: 'r' }],
    ['RESULT', { request_id: 'r', status: 's', output: null }, { request_id: 'r', status: 's' }],
    ['ERROR', { code: 'TIMEOUT', message: 'late', code2: 1 }, { code: 'TIMEOUT', message: 'sealed' }],
    ['CANCEL', {}, {}],
  ]) {
    const e = await sealedTo({ type, payload }), { sealed, ...rest } = e.payload;
    assert.ok(isSealed(e));
    assert.deepEqual(rest, clear);
    assert.match(sealed, /^v1\.[\w-]+$/);
    assert.deepEqual(await open(e, bob), payload);
    await refuses('INVALID_REQUEST', () => open(e, alice));
  }
  const odd = { request_id: 'r', ...JSON.parse('{"__proto__":{"a":1}}') };
  assert.equal(canonicalText(await open(await sealedTo({ payload: odd }), bob)),
    '{"__proto__":{"a":1},"request_id":"r"}');
  assert.equal(isSealed(await message()), false);
  assert.equal(isSealed({ type: 'MANIFEST', payload: { sealed: 'x' } }), false);
});

test('each sealing differs, and hides the length in steps of 256 bytes', async () => {
  const length = async (fill) => (await sealedTo({ payload: { request_id: 'r', x: fill } })).payload.sealed.length;
  assert.equal(await length(''), await length('x'.repeat(240)));
  assert.notEqual(await length(''), await length('x'.repeat(260)));
  assert.notEqual((await sealedTo()).payload.sealed, (await sealedTo()).payload.sealed);
});

test('a ciphertext does not open in another message', async () => {
  const e = await sealedTo({}), resigned = (changes, me = alice) =>
    sign({ ...e, sender: { id: me.did }, ...changes }, me);
  const { sealed, ...clear } = e.payload, mallory = bob;
  for (const other of [
    await resigned({ id: 'msg_2' }), await resigned({ thread: { id: 'other' } }),
    await resigned({ type: 'OFFER', payload: { request_id: 'req_1', sealed } }),
    await resigned({}, mallory), await resigned({ payload: { ...clear, request_id: 'req_2', sealed } }),
    await resigned({ payload: { ...clear, sealed, more: 1 } }),
    await resigned({ payload: { ...clear, sealed: `${sealed}=` } }),
    await resigned({ payload: { ...clear, sealed: sealed.slice(3) } }),
    await resigned({ payload: { ...clear, sealed: 5 } }),
    await resigned({ payload: { ...clear, sealed: 'v1.' } }), { ...e, sig: (await message()).sig },
    await resigned({ recipient: undefined }),
    await resigned({ payload: { ...clear, sealed: `v1.${'A'.repeat(100)}` } }),
    await resigned({ payload: { ...clear, sealed: `${sealed}AAAA` } }),
  ]) {
    await assert.rejects(open(other, bob), (err) => err instanceof Refused &&
      err.message === 'INVALID_REQUEST: the sealed payload cannot be opened', JSON.stringify(other));
  }
  assert.ok(await open(await resigned({ ts: '2026-02-02T12:00:01Z' }), bob)); // the place does not have the time
  assert.match(new TextDecoder().decode(place(e)),
    /^\{"id":"msg_1","recipient":.*"thread":"thread_1","type":"REQUEST"\}$/);
});

test('seal refuses what must not be sealed or could not be opened', async () => {
  let deep = {};
  for (let i = 0; i < 65; i++) deep = { deep };
  for (const changes of [
    { recipient: undefined }, { type: 'MANIFEST', thread: undefined }, { payload: { request_id: 'r', sealed: 'x' } },
    { type: 'ERROR', payload: { code: 'c' } }, { type: 'ERROR', payload: { code: 'c', message: '' } },
    { payload: deep },
  ]) await refuses('INVALID_REQUEST', async () => seal(await message({ ...toBob, ...changes })),
    JSON.stringify(changes));
  await refuses('INVALID_DID', async () => seal({ ...await message(), recipient: { id: 'did:key:z6Mk' } }));
});

test('a missing algorithm is not taken for a wrong ciphertext', async (t) => {
  const e = await sealedTo({});
  t.mock.method(crypto.subtle, 'deriveBits', async () => { throw new DOMException('', 'NotSupportedError'); });
  await assert.rejects(open(e, bob), Unavailable);
});

test('keys are converted for X25519', async () => {
  const secret = await x25519Private(alice.seed), raw = { name: 'X25519' };
  const mine = await crypto.subtle.importKey('pkcs8', fromHex('302e020100300506032b656e04220420' + hex(secret)), raw,
    true, ['deriveBits']);
  const { x } = await crypto.subtle.exportKey('jwk', mine), { keyOf } = await import('../agora.js');
  assert.equal(Buffer.from(x, 'base64url').toString('hex'), hex(x25519Public(keyOf(alice.did))));
});
