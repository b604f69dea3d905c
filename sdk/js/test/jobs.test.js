// An agent works once for a job that its client continues in another thread (RELAYS §4).
import assert from 'node:assert/strict';
import { copyFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'node:test';
import { hashOf } from '../links.js';
import { Memory } from '../memory.js';
import { newThread, State } from '../node.js';
import { FakeRelay, serving, until } from './fakerelay.js';
import { alice, bob } from './helpers.js';
import { folder } from './real.js';

async function parties() {
  const relay = await FakeRelay.start();
  relay.features.push('home');
  return { relay, client: relay.client(alice), agent: relay.client(bob), home: await relay.client(alice).home() };
}

// Work that ends when the test says so.
function slow() {
  const jobs = [];
  const work = (job, { signal }) => new Promise((resolve, reject) => {
    jobs.push({ job, end: resolve, signal });
    signal.addEventListener('abort', () => reject(signal.reason));
  });
  return { jobs, work };
}

// Opens a thread of a job, and accepts the offer of bob. first is the hash of the first REQUEST.
async function open({ relay, client, home }, first, params = 1) {
  const thread = newThread(), found = (type) => relay.of(type).find((e) => e.thread.id === thread);
  const payload = { request_id: thread, intent: 'echo', params }, to = bob.did;
  await client.post('REQUEST', payload, { to, thread, home, continues: first });
  const offer = await until(() => found('OFFER')), re = await hashOf(offer);
  await client.post('ACCEPT', { request_id: thread }, { to, thread, home, re });
  return { thread, offer, root: first ?? await hashOf(found('REQUEST')), accept: found('ACCEPT'),
    result: () => until(() => found('RESULT')), error: () => until(() => found('ERROR')), found,
    cancel: async () => client.post('CANCEL', { request_id: thread },
      { to, thread, home, re: await hashOf(found('ACCEPT')) }) };
}

test('R-18: it offers with the same terms, works once, and does not answer in the first thread', async (t) => {
  const all = await parties(), { relay, agent } = all, { jobs, work } = slow(), state = new Memory();
  const isFirst = () => [...state.book.jobs][0].thread.first;
  let price = 0;
  serving(t, agent, 'echo', { work, state, quote: () => ({ price: ++price, validUntil: new Date(Date.now() + 20) }) });
  const first = await open(all);
  await until(() => jobs.length === 1);
  assert.equal(isFirst(), true, 'its REQUEST continues nothing');
  await new Promise((resolve) => { setTimeout(resolve, 30); });
  const second = await open(all, first.root);
  assert.deepEqual([first.offer, second.offer].map(({ payload }) => payload.price.amount), [1, 1]);
  assert.equal(second.offer.payload.valid_until, undefined, 'the terms count longer than they were offered for');
  await first.cancel(); // an older thread: the work continues
  await until(() => relay.of('ACCEPT').length === 2 && relay.waiting > 0);
  jobs[0].end('done');
  const { payload, meta } = await second.result();
  assert.equal(isFirst(), false);
  assert.deepEqual([payload.output, payload.request_id, meta.re], ['done', second.thread, await hashOf(second.accept)]);
  const third = await open(all, first.root);
  assert.equal((await third.result()).payload.output, 'done', 'it posts the outcome again');
  const other = await open(all, first.root, 2); // another payload: a new job
  await until(() => jobs.length === 2);
  jobs[1].end('more');
  assert.equal((await other.result()).payload.output, 'more');
  assert.deepEqual([jobs.length, first.found('RESULT'), price], [2, undefined, 2]);
});

test('R-18: it posts the outcome in each thread that continues the job', async (t) => {
  const all = await parties(), { jobs, work } = slow(), state = new Memory();
  serving(t, all.agent, 'echo', { work, state });
  const first = await open(all);
  await until(() => jobs.length === 1);
  const second = await open(all, first.root), third = await open(all, first.root);
  await until(() => [...state.book.jobs][0].earlier?.length === 2); // both wait for the work
  jobs[0].end('done');
  const results = await Promise.all([second.result(), third.result()]);
  assert.deepEqual(results.map(({ payload }) => payload.output), ['done', 'done']);
  assert.deepEqual([jobs.length, first.found('RESULT')], [1, undefined]);
});

test('R-18: a CANCEL in the newest thread stops the work, which no continuation repeats', async (t) => {
  const all = await parties(), { jobs, work } = slow();
  serving(t, all.agent, 'echo', { work });
  const first = await open(all);
  await until(() => jobs.length === 1);
  await first.cancel();
  await until(() => jobs[0].signal.aborted);
  const second = await open(all, first.root), { payload } = await second.error();
  assert.deepEqual([payload.code, jobs.length], ['UNAVAILABLE', 1]);
});

// Runs an agent with a state file until its work has begun, or has ended, as the file is at that time.
async function crashed(t, all, hasEnded) {
  const dir = await folder(t), path = join(dir, 'state'), { jobs, work } = slow();
  const stop = serving(t, all.agent, 'echo', { work, state: new State(path) });
  const first = await open(all);
  await until(() => jobs.length === 1);
  if (hasEnded) {
    all.relay.hook = (url, { method }, next) => method === 'POST' ? new Response('', { status: 503 }) : next();
    jobs[0].end('before');
    await until(() => all.agent.logged);
  }
  await copyFile(path, join(dir, 'copy'));
  await stop();
  all.relay.hook = undefined;
  return { first, again: (options) => serving(t, all.relay.client(bob), 'echo', { ...options,
    state: new State(join(dir, 'copy')) }) };
}

test('R-18: the terms are in the file before the OFFER is posted, and a crash does not lose them', async (t) => {
  const all = await parties(), { relay, agent } = all, dir = await folder(t), path = join(dir, 'state');
  let price = 0;
  const handler = { work: () => 1, quote: () => ++price };
  relay.hook = async (url, { method, body }, next) => {
    const isOffer = method === 'POST' && JSON.parse(new TextDecoder().decode(body)).type === 'OFFER';
    if (isOffer && price === 1) await copyFile(path, join(dir, 'copy'));
    return next();
  };
  const stop = serving(t, agent, 'echo', { ...handler, state: new State(path) }), first = await open(all);
  await stop();
  serving(t, relay.client(bob), 'echo', { ...handler, state: new State(join(dir, 'copy')) });
  assert.equal((await open(all, first.root)).offer.payload.price.amount, 1);
});

test('R-18: an agent that cannot write its file makes no OFFER, and ends', async () => {
  const { relay, client, agent, home } = await parties(), state = new Memory();
  state.sync = () => Promise.reject(new Error('the disk is full'));
  await client.post('REQUEST', { request_id: 'r', intent: 'echo' }, { to: bob.did, thread: newThread(), home });
  await assert.rejects(agent.serve('echo', { work: () => 1, state }), /the disk is full/);
  assert.deepEqual(relay.of('OFFER'), []);
});

test('R-18: after a crash, work that had begun is repeated, as often as attempts says', async (t) => {
  const all = await parties(), { first, again } = await crashed(t, all);
  again({ work: () => 'again' });
  assert.equal((await first.result()).payload.output, 'again');
});

test('R-18: with one attempt, work is never repeated', async (t) => {
  const all = await parties(), { first, again } = await crashed(t, all);
  let worked = 0;
  again({ work: () => worked++, attempts: 1 });
  const { payload } = await first.error();
  assert.deepEqual([payload.code, worked], ['INTERNAL_ERROR', 0]);
  assert.match(payload.message, /interrupted/);
  assert.equal((await (await open(all, first.root)).error()).payload.code, 'INTERNAL_ERROR');
});

test('R-18: after a crash, work that had ended is not repeated', async (t) => {
  const all = await parties();
  all.agent.log = () => { all.agent.logged = true; };
  const { first, again } = await crashed(t, all, true);
  let worked = 0;
  again({ work: () => worked++ });
  assert.deepEqual([(await first.result()).payload.output, worked], ['before', 0]);
});

test('R-18: after a crash, work that had ended is delivered also if the REQUEST has expired', async (t) => {
  const all = await parties();
  all.agent.log = () => { all.agent.logged = true; };
  const { first, again } = await crashed(t, all, true);
  all.relay.events = all.relay.events.filter(({ type }) => type !== 'REQUEST');
  again({ work: () => 'once more' });
  assert.equal((await first.result()).payload.output, 'before');
});

// The end of the run in a thread, as the agent logs it.
const endOf = ({ thread }, logged) => until(() => logged.some((text) =>
  text.includes('does nothing more') && text.includes(thread)), `the end in ${thread}`);

test('R-18: the run in the first thread ends when the job has moved, also while it posts the outcome', async (t) => {
  const all = await parties(), { relay, agent } = all, { jobs, work } = slow(), logged = [];
  agent.log = (text) => logged.push(text);
  serving(t, agent, 'echo', { work });
  const first = await open(all);
  await until(() => jobs.length === 1);
  let refused = 0;
  relay.hook = (url, { method, body }, next) => {
    const e = method === 'POST' ? JSON.parse(new TextDecoder().decode(body)) : {};
    if (e.type !== 'RESULT' || e.thread.id !== first.thread) return next();
    refused++;
    return new Response('', { status: 503 });
  };
  jobs[0].end('done');
  await until(() => refused > 0);
  const second = await open(all, first.root);
  assert.equal((await second.result()).payload.output, 'done');
  await endOf(first, logged);
  assert.equal(jobs.length, 1);
});

test('R-7: a CANCEL that comes while the agent reads the thread of an ACCEPT counts', async (t) => {
  const all = await parties(), { relay, agent } = all, { jobs, work } = slow(), logged = [];
  let isRead, goOn;
  const held = new Promise((resolve) => { isRead = resolve; }), gate = new Promise((resolve) => { goOn = resolve; });
  agent.log = (text) => logged.push(text);
  serving(t, agent, 'echo', { work });
  relay.hook = async ({ pathname }, options, next) => {
    const response = await next();
    if (pathname.startsWith('/threads/') && relay.of('ACCEPT').length === 1 && relay.of('CANCEL').length === 0) {
      isRead();
      await gate;
    }
    return response;
  };
  const first = await open(all);
  await held;
  const polls = relay.polls.length;
  await first.cancel();
  await until(() => relay.polls.length > polls); // the agent has handled the page with the CANCEL
  goOn();
  await endOf(first, logged);
  assert.equal(jobs.length, 0);
});
