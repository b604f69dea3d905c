// Agents that join the gateways of a relay (BRIDGE §4), at a real one.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'node:test';
import { AgentError, Client, HUB_INTENT, hubOutput, identity, Network, State } from '../node.js';
import { agentUUID, sumOf } from '../join.js';
import { folder, needsRelay, startRelay } from './real.js';

const ALL = ['--hub', '--jobs', '--channel', '--a2a'];
const manifest = { name: 'Upper Bot', intents: [{ id: 'text.upper' }, { id: 'mit leer' }, { id: HUB_INTENT }] };

test('B-14: the sums and the id are those of the client in Go', async () => {
  const shared = JSON.parse(readFileSync(new URL('../../../client/testdata/join.json', import.meta.url)));
  const { manifest: about, credits, public: isPublic } = shared.options;
  for (const [protocol, sum] of Object.entries(shared.sums)) {
    const options = { manifest: about, agent: about.name, culture: 'en', credits, isPublic, listed: false,
      proofs: false };
    assert.equal(await sumOf(protocol, options), sum, protocol);
  }
  assert.equal(await agentUUID(shared.did), shared.uuid);
});

test('B-14: it joins once, also over a restart, again if it changes, and leaves all', async (t) => {
  if (!needsRelay(t)) return;
  const url = await startRelay(t, ...ALL), file = join(await folder(t), 'state'), me = await identity();
  const calls = [], counting = (to, options = {}) => {
    if (options.method && options.method !== 'GET') calls.push(`${options.method} ${new URL(to).pathname}`);
    return fetch(to, options);
  };
  const client = new Client(url, { me, fetch: counting, log() {} }), multibase = me.did.slice('did:key:'.length);
  const options = { manifest, credits: 0.1, state: new State(file) };
  const places = await client.join(options);
  assert.deepEqual(places.map(({ protocol }) => protocol), ['hub', 'jobs', 'channel', 'a2a']);
  const [hub, jobs, channel, a2a] = places;
  assert.match(hub.address, /^Upper-Bot@/);
  assert.deepEqual([jobs.address, jobs.skipped], [await agentUUID(me.did), ['mit leer']]);
  assert.ok(channel.address.includes('/channel/inbox/'));
  assert.ok(a2a.address.endsWith(`/${multibase}/`) && a2a.key.length > 0);
  const saved = (await readFile(file, 'utf8')).split('\n').find((line) => line.startsWith('["joined"'));
  assert.deepEqual(Object.keys(JSON.parse(saved)[3]).sort(), ['address', 'at', 'id', 'protocol', 'relay', 'sum']);

  const before = calls.length;
  options.state = new State(file);
  assert.deepEqual(await client.join(options), places);
  assert.equal(calls.length, before, 'what has not changed is not registered again');
  const relay = await client.relayDid(), kept = options.state.place(relay, 'jobs');
  await options.state.setPlace(relay, 'jobs', { ...kept, at: new Date(Date.now() - 86_401_000).toISOString() });
  await client.join(options);
  assert.deepEqual(calls.slice(before), ['POST /jobs/register'], 'it is registered again after a day');

  const other = new Client(url, { me: await identity() });
  const taken = await other.join({ manifest, protocols: ['hub'], name: 'Upper Bot' });
  assert.match(taken[0].address, /^Upper-Bot-.{6}@/, 'somebody else has the name');
  const renamed = await client.join({ ...options, name: 'bob', protocols: ['hub'] });
  assert.match(renamed[0].address, /^bob@/);
  assert.ok(calls.includes(`DELETE /hub/agents/${hub.address}`), calls.join('\n'));

  assert.equal((await client.leave(options.state)).length, 4);
  assert.deepEqual(await client.leave(options.state), []);
});

test('B-14: wrong options, and gateways that the relay does not have', async (t) => {
  if (!needsRelay(t)) return;
  const client = new Client(await startRelay(t, '--hub'), { me: await identity(), log() {} });
  await assert.rejects(client.join({ manifest, protocols: ['jobs'] }), { code: 'NO_JOBS' });
  await assert.rejects(client.join({ manifest, protocols: ['mail'] }), /hub, jobs, channel, a2a/);
  await assert.rejects(client.join({}), TypeError);
  assert.equal((await client.join({ manifest })).length, 1, 'all that the relay has');
});

test('B-8, B-9, B-15, B-16: messages of the hub reach an agent, and its reply the sender', async (t) => {
  if (!needsRelay(t)) return;
  const url = await startRelay(t, ...ALL), me = await identity();
  const bob = new Network([url], { me, log() {} }), stop = new AbortController();
  t.after(() => stop.abort());
  const [{ address }] = await bob.join({ manifest, name: 'bob', protocols: ['hub'] });
  const alice = new Client(url, { me: await identity(), log() {} }), seen = [];
  const [{ address: from }] = await alice.join({ manifest, name: 'alice', protocols: ['hub'] });
  let replied;
  const reply = new Promise((resolve) => { replied = resolve; });
  const serving = [bob.serve(HUB_INTENT, { signal: stop.signal, async work(job) {
    const { envelope } = await bob.hubMessage(job);
    seen.push(await bob.origin(job.envelope));
    return hubOutput({ text: envelope.original_text.toUpperCase() });
  } }), alice.serve(HUB_INTENT, { signal: stop.signal, async work(job) {
    replied((await alice.hubMessage(job)).envelope);
    return null;
  } })];
  const hub = await alice.gatewayOf('hub');
  await alice.call(hub.origin, `${hub.url}/messages`, { sister: true, body: { receiver_id: address,
    envelope: { chorus_version: '0.4', sender_id: from, original_text: 'hello', sender_culture: 'en' } } });
  const { sender_id: sender, original_text: text } = await reply;
  assert.deepEqual([sender, text, seen], [address, 'HELLO', [{ protocol: 'hub', sender: from }]]);
  const e = await alice.post('REQUEST', { request_id: 'r', intent: HUB_INTENT, params: {} }, { thread: 'hub_1' });
  assert.ok(e);
  const forged = { intent: HUB_INTENT, params: {}, envelope: { sender: { id: alice.me.did }, thread: { id: 'hub_1' },
    recipient: { id: me.did }, payload: { intent: HUB_INTENT } } };
  await assert.rejects(bob.hubMessage(forged), (err) => err instanceof AgentError && err.code === 'FORBIDDEN');
  assert.deepEqual(await bob.origin(forged.envelope), { protocol: 'agora', sender: alice.me.did });
  stop.abort();
  await Promise.allSettled(serving);
});
