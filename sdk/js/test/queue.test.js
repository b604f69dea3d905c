// What an agent does next: the queue of REQUESTs, slots, the pace of offers, and which cursor is saved.
import assert from 'node:assert/strict';
import test from 'node:test';
import { Pace, Progress, Queue, Recent, Slots } from '../queue.js';

let threads = 0;
const request = (client, { to, ttl = 300, text = '' } = {}) => ({ client, thread: `t${++threads}`,
  event: { meta: { ttl }, payload: { text }, ...(to && { recipient: { id: to } }) } });
const NOW = 1e6, open = new Pace();
const names = (queue, count) =>
  Array.from({ length: count }, () => queue.next(NOW + 5000, open).item?.client);

test('Recent forgets the oldest keys', () => {
  const recent = new Recent(3);
  assert.deepEqual(['a', 'b', 'a', 'c', 'd', 'b', 'a'].map((key) => recent.add(key)),
    [true, true, false, true, true, false, true]);
  recent.add('x', 5);
  assert.equal(recent.get('x'), 5);
  assert.equal(recent.get('b'), undefined);
});

test('clients take turns, and their newest REQUEST comes first', () => {
  const queue = new Queue();
  for (let n = 0; n < 4; n++) queue.put(request('flood', { to: 'me' }), NOW);
  queue.put(request('quiet', { to: 'me' }), NOW);
  assert.deepEqual(names(queue, 3), ['quiet', 'flood', 'flood']);
  const items = [request('a'), request('a')];
  const other = new Queue();
  for (const item of items) other.put(item, NOW);
  assert.equal(other.next(NOW + 5000, open).item, items[1]);
});

test('known clients come first, then directed REQUESTs; every fourth turn it is the other way round', () => {
  const queue = new Queue();
  queue.earn('known');
  for (let n = 0; n < 3; n++) {
    queue.put(request(`broadcast${n}`), NOW);
    queue.put(request(`directed${n}`, { to: 'me' }), NOW);
    queue.put(request('known', { to: 'me' }), NOW);
  }
  const order = names(queue, 9).map((name) => name.replace(/\d/, ''));
  assert.deepEqual(order.slice(0, 4), ['known', 'known', 'known', 'broadcast']);
  assert.deepEqual(order.slice(4, 7), ['directed', 'directed', 'directed']);
  const credit = new Queue();
  credit.earn('c');
  for (let n = 0; n < 9; n++) credit.put(request('c'), NOW);
  credit.put(request('d', { to: 'me' }), NOW);
  assert.equal(credit.next(NOW + 5000, open).item.rank, 0);
});

test('the queue is bounded by number and size, and drops what waits longest of the greediest client', () => {
  const queue = new Queue();
  assert.deepEqual(queue.put(request('first'), NOW), []);
  let dropped = [];
  for (let n = 0; n < 2048; n++) dropped = dropped.concat(queue.put(request(`c${n}`), NOW));
  assert.deepEqual(dropped.map(({ client }) => client), ['first']);
  const large = new Queue(), text = 'x'.repeat(3 << 20);
  assert.equal(large.put(request('a', { text }), NOW).length, 0);
  assert.equal(large.put(request('b', { text }), NOW).length, 0);
  assert.deepEqual(large.put(request('c', { text }), NOW).map(({ client }) => client), ['a']);
});

test('REQUESTs expire, wait for their retry, and can be withdrawn', () => {
  const queue = new Queue(), item = request('a', { ttl: 10 }), later = request('b');
  queue.put(item, NOW);
  queue.put(later, NOW);
  later.notBefore = NOW + 60_000;
  assert.deepEqual(queue.next(NOW + 10_000, open), { late: [item], wait: 50_000 });
  assert.equal(queue.next(NOW + 60_000, open).item, later);
  assert.deepEqual(queue.next(NOW, open), { late: [], wait: Infinity });
  queue.putBack(later);
  assert.equal(queue.withdraw('b', 'other'), undefined);
  assert.equal(queue.withdraw('b', later.thread), later);
  assert.equal(queue.withdraw('b', later.thread), undefined);
});

test('a waiting agent wakes up when a REQUEST arrives, when its time comes, and when it is stopped', async () => {
  const queue = new Queue(), stop = new AbortController();
  const woken = queue.changed(Infinity, stop.signal);
  queue.put(request('a'), NOW);
  await woken;
  await queue.changed(1, stop.signal);
  const stopped = queue.changed(Infinity, stop.signal);
  stop.abort(new Error('stop'));
  await assert.rejects(stopped, /stop/);
});

test('the client with the fewest slots gets the next one', async () => {
  const slots = new Slots(2), { signal } = new AbortController(), got = [], stop = new AbortController();
  const take = (client, s = signal) => slots.acquire(s, client).then(() => got.push(client));
  await take('a');
  await take('a');
  const waiting = ['a', 'b', 'c'].map((client) => take(client));
  const given = take('d', stop.signal);
  stop.abort(new Error('stop'));
  await assert.rejects(given, /stop/);
  slots.release('a');
  await waiting[1];
  slots.release('a');
  await waiting[0];
  slots.release('b');
  await waiting[2];
  assert.deepEqual(got, ['a', 'a', 'b', 'a', 'c']);
});

test('the pace leaves room for results, once the relay has refused a post', () => {
  const pace = new Pace(), rate = { perSecond: 10, burst: 16 };
  for (let n = 0; n < 1000; n++) pace.spend(NOW);
  assert.equal(pace.until(false, NOW), 0, 'no limit is known yet');
  pace.limited(rate, 2000, NOW);
  assert.equal(pace.until(false, NOW), 2000);
  assert.ok(pace.until(false, NOW + 2000) === 0, 'twenty tokens have come since, at most the burst');
  for (let n = 0; n < 12; n++) pace.spend(NOW + 2000); // 4 are left, which are reserved
  assert.ok(pace.until(false, NOW + 2000) > 0);
  assert.equal(pace.until(true, NOW + 2000), 0, 'a known client may use more of them');
  pace.refund(NOW + 2000);
  assert.equal(pace.until(false, NOW + 2000), 0);
  pace.close(500, NOW + 2000);
  assert.equal(pace.until(true, NOW + 2000), 500);
});

test('a cursor is saved when its page and all earlier ones are finished', async () => {
  const saved = [], progress = new Progress({ save: async (cursor) => { saved.push(cursor); } }, assert.fail);
  const [a, b, c] = ['a', 'b', 'c'].map((cursor) => progress.begin(cursor));
  progress.hold(a);
  for (const page of [b, c, a]) progress.release(page);
  await progress.saved();
  assert.deepEqual(saved, []);
  progress.release(a);
  await progress.saved();
  assert.deepEqual(saved, ['c']);
  let failed;
  const broken = new Progress({ save() { throw new Error('full'); } }, (err) => { failed = err; });
  broken.release(broken.begin('a'));
  await broken.saved();
  assert.match(failed.message, /full/);
});
