// The jobs of an agent, and the file that has them (RELAYS ).
import assert from 'node:assert/strict';
import { appendFile, readFile, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'node:test';
import { Book, keyOf } from '../book.js';
import { hashOf } from '../links.js';
import { State } from '../node.js';
import { alice, bob, message } from './helpers.js';
import { folder } from './real.js';

const NOW = Date.parse('2026-02-02T12:00:00Z'), DAY = 86_400_000, EXPIRES = NOW + 3_600_000;
const job = (n = 1, client = 'c') => ({ client, root: `${n}`, payload: 'p' });
const thread = (home, first = false) => ({ home, id: 't', accept: `accept-${home}`, first });
const TERMS = { price: { amount: 1, currency: 'USD' } }, OUTCOME = { type: 'RESULT', payload: { output: 1 } };

function accepted(key = job()) {
  const book = new Book();
  book.offered(key, TERMS, EXPIRES);
  assert.equal(book.accepted(key, thread('a'), NOW), 'work');
  return book;
}

test('§4: REQUESTs of one client with one root and equal payloads are one job', async () => {
  const first = await message(), payload = (more) => ({ ...first.payload, request_id: 'req_2', ...more });
  const root = await hashOf(first), next = (more, me) => message({ id: 'x', meta: { continues: root }, ...more }, me);
  const key = await keyOf(first);
  assert.deepEqual(await keyOf(await next({ payload: payload() })), key);
  assert.notDeepEqual(await keyOf(await next({ payload: payload({ params: 1 }) })), key, 'another payload');
  assert.notDeepEqual(await keyOf(await next({ payload: payload() }, bob)), key, 'another client');
  assert.notDeepEqual(await keyOf(await next({ payload: payload(), meta: {} })), key, 'no continuation');
});

test('R-18: a continuation gets the terms of the first OFFER', () => {
  const book = new Book();
  assert.equal(book.offer(job()), 'new');
  book.offered(job(), TERMS, EXPIRES);
  assert.equal(book.offer(job()), 'same');
  book.offered(job(), { price: { amount: 2, currency: 'USD' } }, EXPIRES + DAY);
  assert.deepEqual(book.get(job()).offer, TERMS);
});

test('R-18: 1,024 jobs and 128 of one client; those without ACCEPT go first, then those that are over', () => {
  const book = new Book();
  for (let n = 0; n < 128; n++) book.offered(job(n), TERMS, EXPIRES);
  book.accepted(job(0), thread('a'), NOW);
  book.offered(job(128), TERMS, EXPIRES);
  assert.deepEqual([Boolean(book.get(job(0))), book.get(job(1)), [...book.jobs].length], [true, undefined, 128]);
  for (let n = 0; n < 1024; n++) book.offered(job(n, `c${n % 10}`), TERMS, EXPIRES);
  assert.equal([...book.jobs].length, 1024);
  assert.ok(book.get(job(0)));
  for (const known of [...book.jobs]) book.accepted(known, thread('a'), NOW);
  assert.deepEqual([book.offer(job(0, 'd')), book.offer(job(0))], ['full', 'same']);
  book.offered(job(0), TERMS, EXPIRES);
  book.finish(job(3, 'c3'), OUTCOME, NOW);
  assert.equal(book.offer(job(0, 'd')), 'new');
  book.offered(job(0, 'd'), TERMS, EXPIRES);
  assert.deepEqual([[...book.jobs].length, book.get(job(3, 'c3'))], [1024, undefined]);
  const full = new Book();
  for (let n = 0; n < 128; n++) full.accepted(job(n), thread('a'), NOW);
  assert.deepEqual([full.offer(job(128)), full.offer(job(0, 'd'))], ['full', 'new']);
  full.finish(job(7), OUTCOME, NOW);
  full.ended(job(5), thread('a'), NOW);
  for (const [n, gone] of [[128, 5], [129, 7]]) {
    assert.equal(full.offer(job(n)), 'new');
    full.offered(job(n), TERMS, EXPIRES);
    full.accepted(job(n), thread('a'), NOW);
    assert.equal(full.get(job(gone)), undefined);
  }
  assert.equal(full.offer(job(130)), 'full', 'all are accepted and not over');
  full.finish(job(5), OUTCOME, NOW); // it has made room: nothing happens
});

test('R-18: after an ACCEPT in any thread the agent works once, and answers in each one but the first', () => {
  const book = new Book(), first = thread('a', true);
  book.accepted(job(), first, NOW);
  assert.equal(book.begin(job(), 3), true);
  assert.equal(book.accepted(job(), thread('b'), NOW), 'work', 'the work goes on');
  assert.equal(book.accepted(job(), first, NOW), 'old');
  assert.equal(book.get(job()).thread.home, 'b');
  assert.equal(book.ended(job(), thread('a'), NOW), false, 'an older thread has ended');
  book.finish(job(), OUTCOME, NOW);
  assert.deepEqual(['c', 'b'].map((home) => book.accepted(job(), thread(home), NOW)), ['answer', 'answer']);
  assert.equal(book.get(job()).thread.home, 'c', 'the last one to come counts as the newest');
  assert.deepEqual([book.get(job()).outcome, book.get(job()).begun], [OUTCOME, 1]);
});

test('R-18: all threads count but that of the first REQUEST, and 6 older ones at most', () => {
  const book = new Book(), accept = (home, first) => book.accepted(job(), thread(home, first), NOW);
  assert.deepEqual(['b', 'c', 'b'].map((home) => accept(home)), ['work', 'work', 'work']);
  assert.equal(accept('a', true), 'old');
  assert.deepEqual(['d', 'e', 'f', 'g', 'h'].map((home) => accept(home)), Array(5).fill('work'));
  assert.deepEqual(['i', 'h', 'b'].map((home) => accept(home)), ['old', 'work', 'work'], 'a new one is ignored');
  assert.deepEqual(book.get(job()).earlier, [...'bcdefg'].map((home) => `accept-${home}`));
  const only = new Book();
  assert.equal(only.accepted(job(), thread('a', true), NOW), 'work');
});

test('R-18: a CANCEL in the newest thread stops the work, and a continuation does not repeat it', () => {
  const book = accepted();
  book.begin(job(), 3);
  assert.equal(book.ended(job(), thread('a'), NOW), true);
  assert.equal(book.ended(job(), thread('a'), NOW), false);
  assert.equal(book.accepted(job(), thread('b'), NOW), 'cancelled');
  const idle = accepted();
  assert.equal(idle.ended(job(), thread('a'), NOW), true);
  assert.equal(idle.accepted(job(), thread('a'), NOW), 'cancelled', 'in the same thread');
  assert.equal(idle.accepted(job(), thread('b'), NOW), 'work', 'it had never begun');
});

test('R-18: a job that had begun and not ended is repeated, so many times in all', () => {
  const book = accepted(), begin = (most) => book.begin(job(), most);
  assert.deepEqual([begin(3), begin(3), begin(3), begin(3)], [true, true, true, false]);
  assert.equal(accepted().begin(job(), 1), true);
  book.undo(job());
  assert.equal(begin(3), true);
});

test('R-18: a job is kept until 24 hours after its end and the expiry of its REQUEST', () => {
  const book = new Book(), has = (now) => { book.expire(now); return Boolean(book.get(job())); };
  book.offered(job(), TERMS, EXPIRES);
  assert.deepEqual([has(EXPIRES - 1), has(EXPIRES)], [true, false]);
  book.offered(job(), TERMS, EXPIRES);
  book.accepted(job(), thread('a'), NOW);
  assert.ok(has(EXPIRES + 10 * DAY), 'it is accepted, and not over');
  book.finish(job(), OUTCOME, EXPIRES + 10 * DAY);
  assert.deepEqual([has(EXPIRES + 11 * DAY - 1), has(EXPIRES + 11 * DAY)], [true, false]);
});

test('R-12: the state is one file that outlives a crash, of one identity', async (t) => {
  const path = join(await folder(t), 'state'), state = new State(path);
  await state.load(alice.did);
  state.book.offered(job(), TERMS, EXPIRES);
  state.book.offered(job(2), TERMS, EXPIRES);
  state.book.drop(job(2));
  state.append('nojob', job(2));
  state.handle('mark', EXPIRES, NOW);
  await state.setCaught('did:key:a', 'a proof of it does not hold');
  await state.setCaught('did:key:b', 'it lies');
  await state.setCaught('did:key:b', undefined);
  await state.cursor('did:key:a').save('7');
  assert.equal((await stat(path)).mode & 0o777, 0o600);
  const lines = (await readFile(path, 'utf8')).split('\n');
  assert.equal(lines[0], JSON.stringify(['agora-state', 1, alice.did]));
  assert.deepEqual(JSON.parse(lines.at(-2)), ['cursor', 'did:key:a', '7'], 'the cursor moves last');
  await appendFile(path, '["cursor","did:key:a","8'); // a crash has cut it off
  const again = new State(path);
  await again.load(alice.did);
  assert.deepEqual([again.cursor('did:key:a').load(), again.caught('did:key:a'), again.caught('did:key:b')],
    ['7', 'a proof of it does not hold', undefined]);
  assert.deepEqual([...again.book.jobs], [state.book.get(job())]);
  assert.deepEqual([again.isHandled('mark', NOW), again.isHandled('mark', EXPIRES), again.isHandled('x', NOW)],
    [true, false, false]);
  await again.cursor('did:key:a').save('9');
  const last = new State(path);
  await last.load(alice.did);
  assert.equal(last.cursor('did:key:a').load(), '9');
  await assert.rejects(last.load(bob.did), /it belongs to did:key/);
  await writeFile(path, '{}\n');
  await assert.rejects(new State(path).load(alice.did), (err) => err.code === 'INVALID_STATE');
});

test('R-12: a file that another language has written opens, and the lines that count are kept', async (t) => {
  const lines = (await readFile(new URL('../../../client/testdata/state.jsonl', import.meta.url), 'utf8')).split('\n');
  const path = join(await folder(t), 'state'), state = new State(path), { book } = state;
  await writeFile(path, lines.join('\n'));
  await state.load('did:key:zMe');
  const kept = [0, 2, 3, 6, 7, 8, 11, 12].map((n) => lines[n]);
  assert.deepEqual((await readFile(path, 'utf8')).trim().split('\n').sort(), kept.sort());
  assert.equal(state.isHandled('AAAAAAAAAAAAAAAAAAAAAA', NOW), true);
  const [, known] = JSON.parse(lines[7]), count = () => [...book.jobs].length;
  assert.equal(book.accepted(known, known.thread, NOW), 'answer');
  book.expire(Date.parse('2099-02-02T01:40:00Z'));
  assert.equal(count(), 2);
  book.expire(Date.parse('2099-02-02T01:40:01Z'));
  assert.equal(count(), 1);
});

test('R-12: 65,536 events at most, the earliest to expire forgotten first; compacted at 4 MB', async (t) => {
  const path = join(await folder(t), 'state'), state = new State(path), mark = (n) => `${n}`.padStart(22, 'A');
  await state.load(alice.did);
  for (let n = 0; n < 65_537; n++) state.handle(mark(n), EXPIRES + (n === 5 ? 2 * DAY : n * 1000), NOW);
  assert.deepEqual([0, 5, 65_536].map((n) => state.isHandled(mark(n), NOW)), [false, true, true]);
  await state.sync();
  const store = state.cursor('did:key:a');
  for (let n = 0; n < 1000; n++) state.append('cursor', 'did:key:a', 'x'.repeat(1000));
  await state.sync();
  const before = (await stat(path)).size;
  for (let n = 0; n < 4000; n++) state.append('cursor', 'did:key:a', 'x'.repeat(1000));
  await store.save('end');
  const { size } = await stat(path);
  assert.ok(before < 4 << 20 && size < 3_000_000, `${before}, ${size}`);
  const again = new State(path);
  await again.load(alice.did);
  assert.equal(again.cursor('did:key:a').load(), 'end');
});
