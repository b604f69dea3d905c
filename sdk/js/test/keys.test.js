import assert from 'node:assert/strict';
import test from 'node:test';
import { didOf, formatKeyFile, identity, keyOf, parse, readKeyFile } from '../agora.js';
import { alice, bob, folder, fromHex, hex, refuses, utf8, vectorsOf } from './helpers.js';

test('an identity has the did:key of its seed', async () => {
  assert.equal(alice.did, 'did:key:z6Mkon3Necd6NkkyfoGoHxid2znGc59LU3K7mubaRcFbLfLX');
  assert.equal(didOf(keyOf(alice.did)), alice.did);
  const one = await identity(), other = await identity();
  assert.notEqual(one.did, other.did);
  assert.equal((await identity(one.seed)).did, one.did);
  for (const seed of [new Uint8Array(31), new Uint8Array(33), 'seed', null]) {
    await refuses('INVALID_KEY', () => identity(seed));
  }
});

test('keyOf returns a copy', () => {
  keyOf(alice.did).fill(0);
  assert.equal(didOf(keyOf(alice.did)), alice.did);
});

test('keyOf and didOf refuse unusable keys', async () => {
  for (const did of [
    undefined, null, 5, {}, [alice.did], '', alice.did.slice(1), `${alice.did} `, ` ${alice.did}`, `${alice.did}\n`,
    `${alice.did}#${alice.did.slice(8)}`, alice.did.replace('did:', 'DID:'), alice.did.slice(0, -1), `${alice.did}1`,
    alice.did.replace('6Mk', '6Ml'), `${alice.did.slice(0, -1)}0`, `${alice.did.slice(0, 12)}${'z'.repeat(44)}`,
  ]) await refuses('INVALID_DID', () => keyOf(did), String(did));
  for (const key of [
    '01', '02', 'ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f', '00',
    'c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa',
    'edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f',
    'f0ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f',
  ]) await refuses('INVALID_DID', () => didOf(fromHex(key.padEnd(64, '0'))), key);
  await refuses('INVALID_DID', () => didOf(new Uint8Array(31)));
});

test('a key file is read and written as agora keygen writes it', async () => {
  // Written by agora keygen for the seed of 32 bytes 01.
  const file = `{
  "kty": "OKP",
  "crv": "Ed25519",
  "kid": "did:key:z6Mkon3Necd6NkkyfoGoHxid2znGc59LU3K7mubaRcFbLfLX",
  "x": "iojj3XQJ8ZX9UtstPLpdcspnCb8dlBIb83SIAbQPb1w",
  "d": "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE"
}
`;
  assert.deepEqual(await readKeyFile(file), alice);
  assert.equal(formatKeyFile(alice), file);
});

test('a damaged key file is refused, and the error does not show it', async () => {
  const good = parse(utf8(formatKeyFile(alice))), other = parse(utf8(formatKeyFile(bob)));
  const secret = 'TopSecretTopSecretTopSecretTopSecretTopSecr'; // 43 characters of base64url, like a seed
  const texts = ['', secret, `{"kty":"OKP","d":"${secret}`, `["${secret}"]`, JSON.stringify(good) + secret, 'null'];
  for (const change of [
    { kty: undefined }, { kty: secret }, { crv: secret }, { d: undefined }, { d: 5 }, { d: secret.slice(1) },
    { d: `${secret}A` },
    { d: secret }, { d: other.d }, { x: other.x }, { x: undefined }, { kid: other.kid }, { kid: undefined },
    { x: `${good.x}=` },
    { kid: secret }, { d: good.kid, kid: good.d },
  ]) texts.push(JSON.stringify({ ...good, ...change }));
  for (const text of texts) {
    await assert.rejects(readKeyFile(text), (err) => err.code === 'INVALID_KEY' && !err.message.includes('Secret'),
      text);
  }
});

test('did:key: vectors of third parties', async (t) => {
  const dir = folder(t, 'AGORA_VECTORS');
  if (!dir) return;
  for (const v of vectorsOf(dir, 'didkey/ed25519_valid.json')) {
    assert.equal(hex(keyOf(v.did)), v.publicKeyHex, v.did);
    if (v.seed) assert.equal((await identity(fromHex(v.seed))).did, v.did);
  }
  for (const v of vectorsOf(dir, 'didkey/must_reject.json')) await refuses('INVALID_DID', () => keyOf(v.did), v.reason);
  for (const v of vectorsOf(dir, 'didkey/multibase.json')) {
    await refuses('INVALID_DID', () => keyOf(`did:key:${v.value}`));
  }
});
