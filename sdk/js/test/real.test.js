// Agents and clients at a real relay, some of them in processes that are killed.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { Client, identity, isSealed, loadKey, newThread, NoProof, saveKey, sign,
  verifyProof } from '../node.js';
import { serving } from './fakerelay.js';
import { BINARY, folder, needsRelay, run, startRelay } from './real.js';

const CRASH = fileURLToPath(new URL('crash.mjs', import.meta.url)), agora = promisify(execFile);
const program = (t, ...args) => run(t, process.execPath, [CRASH, ...args]);

for (const reads of ['open', 'parties']) {
  test(`agents trade at a relay: ${reads}`, async (t) => {
    if (!needsRelay(t)) return;
    const url = await startRelay(t, '--reads', reads), agent = new Client(url, { me: await identity(), name: 'Echo' });
    const handler = { work: ({ params }) => params, quote: () => ({ price: 0.5 }) };
    serving(t, agent, 'echo', { ...handler, manifest: { name: 'Echo' } });
    for (const options of [{}, { to: agent.me.did }, { to: agent.me.did, seal: true }]) {
      const client = new Client(url, { me: await identity(), requireParties: reads === 'parties' });
      const call = await client.request('echo', { n: 1 }, { maxCost: 1, ...options });
      await call.accept(await call.best('first'));
      assert.deepEqual((await call.result()).output, { n: 1 });
      const { thread, events } = await client.thread(call.thread);
      assert.equal(thread.state, 'COMPLETED');
      assert.deepEqual(events.map((e) => isSealed(e)), events.map((e) =>
        Boolean(options.seal) && e.sender.id === client.me.did), 'what we have sealed for others stays sealed');
      if (client.isPrivate) assert.ok(agent.isPrivate);
    }
    const reader = new Client(url), online = [];
    for await (const { id, online: isOnline } of reader.directory({ intent: 'echo' })) online.push([id, isOnline]);
    assert.deepEqual(online, [[agent.me.did, true]]);
    assert.equal((await reader.health()).ok, true);
    assert.match(await reader.relayDid(), /^did:key:/);
  });
}

for (const reads of ['open', 'parties']) {
  test(`with proofs, agents trade at a relay that keeps a log: ${reads}`, async (t) => {
    if (!needsRelay(t)) return;
    const url = await startRelay(t, '--reads', reads, '--transparency', 'on'), logs = [], proofs = 'required';
    const options = { proofs, log: (text) => logs.push(text) };
    const [agent, client] = [await identity(), await identity()].map((me) => new Client(url, { me, ...options }));
    serving(t, agent, 'echo', { work: ({ params }) => params, manifest: { name: 'Echo' } });
    for (const seal of [false, true]) {
      const call = await client.request('echo', 7, { to: agent.me.did, seal });
      await call.accept(await call.best('first'));
      assert.equal((await call.result()).output, 7);
    }
    const draft = { version: '1.0', id: 'm', ts: new Date().toISOString(), type: 'REQUEST', meta: { ttl: 60 } };
    const about = { sender: { id: client.me.did }, thread: { id: 't' }, payload: { request_id: 't', intent: 'x' } };
    const e = await sign({ ...draft, ...about, recipient: { id: agent.me.did } }, client.me);
    const [{ value: first }] = await client.postAll([e]), again = await client.postEnvelope(e);
    assert.deepEqual([first.duplicate, again.duplicate], [false, true]);
    for (const { proof } of [first, again]) await verifyProof(proof, { message: e, relay: await client.relayDid() });
    assert.ok((await new Client(url, { me: agent.me }).post('MANIFEST', { id: 'x', intents: [] })).proof);
    assert.deepEqual([await client.proves(), logs], [true, []]);
  });
}

test('a relay without a log gives no proofs', async (t) => {
  if (!needsRelay(t)) return;
  const url = await startRelay(t, '--transparency', 'off'), me = await identity();
  const post = (proofs) => new Client(url, { me, proofs }).request('echo', 1);
  assert.ok(await post('prefer'));
  await assert.rejects(post('required'), (err) => err instanceof NoProof && err.cause.code === 'NOT_FOUND');
});

test('a clock that is wrong is corrected', async (t) => {
  if (!needsRelay(t)) return;
  for (const [reads, offset] of [['open', 7_200_000], ['parties', 7_200_000], ['parties', -600_000]]) {
    const url = await startRelay(t, '--reads', reads), clock = () => Date.now() + offset;
    const [agent, client] = [await identity(), await identity()].map((me) => new Client(url, { me, clock }));
    serving(t, agent, 'echo', { work: ({ params }) => params });
    const call = await client.request('echo', 1);
    await call.accept(await call.best('first'));
    assert.equal((await call.result()).output, 1);
    assert.ok(Math.abs(client.now() - Date.now()) < 60_000);
  }
});

test('killed between ACCEPT and RESULT, the agent does the work again, and the client gets the result', async (t) => {
  if (!needsRelay(t)) return;
  const url = await startRelay(t), place = await folder(t), thread = newThread(), slow = join(place, 'slow');
  await writeFile(slow, '');
  let agent = program(t, 'agent', url, place);
  const did = await agent.line('ready ');
  let client = program(t, 'client', url, place, thread);
  await client.line('requested');
  await client.kill(); // perhaps before its ACCEPT
  client = program(t, 'client', url, place, thread);
  await client.line('accepted');
  await client.kill();
  await agent.line('working');
  await agent.kill();
  await rm(slow);
  agent = program(t, 'agent', url, place);
  assert.equal(await agent.line('ready '), did);
  client = program(t, 'client', url, place, thread);
  assert.equal(await client.line('output '), '42');
  await client.finish();
  const { events } = await new Client(url).thread(thread);
  assert.deepEqual(events.map((e) => e.type), ['REQUEST', 'OFFER', 'ACCEPT', 'RESULT']);
  assert.deepEqual(await program(t, 'client', url, place, thread).finish(), ['requested', 'accepted', 'output 42']);
});

test('key files are those of agora keygen', async (t) => {
  if (!needsRelay(t)) return;
  const place = await folder(t), theirs = join(place, 'theirs'), ours = join(place, 'ours');
  await agora(BINARY, ['keygen', theirs]);
  const me = await loadKey(theirs);
  await saveKey(ours, me);
  assert.equal(await readFile(ours, 'utf8'), await readFile(theirs, 'utf8'));
});

test('the programs of the README run as they are', async (t) => {
  if (!needsRelay(t)) return;
  const readme = await readFile(new URL('../README.md', import.meta.url), 'utf8'), url = await startRelay(t);
  const place = await folder(t), index = new URL('../node.js', import.meta.url).href;
  for (const name of ['agent.mjs', 'client.mjs']) {
    const blocks = readme.split('```').map((block) => block.replace(/^js\n/, ''));
    const text = blocks.find((block) => block.startsWith(`// ${name}`));
    assert.ok(text && text.trimEnd().split('\n').length <= 20, `${name} has at most 20 lines`);
    await writeFile(join(place, name), text.replace('http://127.0.0.1:8789', url)
      .replace(/'agora-relay(\/node)?'/, `'${index}'`));
  }
  run(t, process.execPath, [join(place, 'agent.mjs')], { cwd: place });
  const client = run(t, process.execPath, [join(place, 'client.mjs')], { cwd: place });
  const lines = await client.finish();
  assert.ok(lines.some((line) => line.includes('HELLO')), `${lines}`);
});
