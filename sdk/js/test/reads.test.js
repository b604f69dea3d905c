import assert from 'node:assert/strict';
import test from 'node:test';
import { canonicalize, checkRead, encode64, instant, readToken, sign } from '../agora.js';
import { alice, bob, message, utf8 } from './helpers.js';

const request = { origin: 'https://relay.example', method: 'GET', target: '/events?cursor=0' };
const ts = '2026-02-02T12:00:00Z', now = instant(ts), nonce = 'a'.repeat(22);
const members = { typ: 'agora-read', did: alice.did, aud: request.origin, method: 'GET', target: request.target, ts,
  nonce };
const tokenOf = async (changes, me = alice) => encode64(canonicalize(await sign({ ...members, ...changes }, me)));

test('a token is good for its request', async () => {
  assert.equal(await checkRead(await readToken(request.origin, request.target, alice, ts), request, now), alice.did);
  assert.equal(await readToken(request.origin, request.target, alice, ts, nonce), await tokenOf({}));
  assert.notEqual(await readToken('a', 'b', alice, ts), await readToken('a', 'b', alice, ts));
  const other = await readToken(request.origin, request.target, alice);
  assert.equal(await checkRead(other, request, BigInt(Date.now()) * 1_000_000n), alice.did);
});

test('a refused token has a reason', async () => {
  const token = await tokenOf({}), minute = 60_000_000_000n;
  for (const [reason, bad, at = now] of [
    ['malformed', ''], ['malformed', 5], ['malformed', `${token}=`], ['malformed', `${token}\n`],
    ['malformed', 'A'.repeat(8196)],
    ['malformed', encode64(utf8('[]'))], ['malformed', encode64(utf8('{}'))],
    ['malformed', encode64(canonicalize(await message()))],
    ['malformed', await tokenOf({ more: 'x' })], ['malformed', await tokenOf({ nonce: 5 })],
    ['malformed', await tokenOf({ nonce: ['a'] })],
    ['malformed', await tokenOf({ nonce: 'a'.repeat(15) })], ['malformed', await tokenOf({ nonce: 'a'.repeat(65) })],
    ['malformed', await tokenOf({ nonce: `${nonce}.` })], ['malformed', await tokenOf({ typ: 'agora-call' })],
    ['malformed', await tokenOf({ ts: '2026-02-02' })], ['malformed', await tokenOf({ did: bob.did })],
    ['malformed', await tokenOf({ did: 'did:web:x' })],
    ['malformed', encode64(canonicalize({ ...members, sig: 'A'.repeat(86) }))],
    ['audience', await tokenOf({ aud: 'https://relay.example/' })], ['request', await tokenOf({ method: 'POST' })],
    ['request', await tokenOf({ target: '/events?cursor=1' })], ['time', token, now + minute],
    ['time', token, now - minute],
  ]) {
    await assert.rejects(checkRead(bad, request, at),
      (err) => err.code === 'UNAUTHORIZED' && err.details.reason === reason, `${reason} ${bad}`);
  }
  const long = async (length) => {
    const target = `/${'a'.repeat(length)}`;
    return checkRead(await tokenOf({ target }), { ...request, target }, now);
  };
  assert.equal(await long(5600), alice.did);
  await assert.rejects(long(6000), (err) => err.details.reason === 'malformed', 'more than 8192 characters');
  assert.equal(await checkRead(token, request, now + minute - 1n), alice.did);
  assert.equal(await checkRead(token, request, now - minute + 1n), alice.did);
});
