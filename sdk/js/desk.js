// What the agents of one identity share, one agent for each relay: its jobs, and the slots for work. A job is worked on
// once, also if its client moves it from relay to relay (RELAYS R-18).
import { canonicalText, pause } from './agora.js';
import { keyOf } from './book.js';
import { AgentError, Cancelled, Moved } from './errors.js';
import { Memory } from './memory.js';
import { Slots } from './queue.js';
import { linked } from './reading.js';
import { called, failed, INTERNAL, Result } from './run.js';

// How far the relay's clock can differ from ours. Work may continue for this long after the deadline of its thread.
const SKEW = 300_000;

const INTERRUPTED = new AgentError('INTERNAL_ERROR',
  'interrupted: the agent has ended each time while it worked on this job; send a new REQUEST');
const CANCELLED = new AgentError('UNAVAILABLE',
  'the job was cancelled after the work had begun; send a new REQUEST');
const FULL = new AgentError('UNAVAILABLE',
  'this agent has as many accepted jobs as it can remember; try again later');

export class Desk {
  /** client has the clock, the log and the identity of the agents. */
  constructor(client, { work, state = new Memory(), attempts = 3, concurrency = 8, signal }) {
    Object.assign(this, { client, work, state, attempts: state.isDurable ? attempts : Infinity });
    this.outer = signal;
    this.stop = linked(signal);
    this.signal = this.stop.signal;
    this.workSlots = new Slots(concurrency);
    this.working = new Map(); // the tasks, by the names of their jobs
    this.owners = new Map(); // the runs in the newest threads with an ACCEPT, by the names of their jobs
    this.tasks = new Set();
    // Network sets these. agentAt: the agent at the home of a REQUEST, if that is another relay. claim: whether to
    // handle a REQUEST, and then what to call when it is done. publish: how to post the manifest. rest: how to wait
    // until the next post of it.
    this.agentAt = undefined;
    this.claim = async () => () => {};
    this.publish = (relay, manifest, options) => relay.post('MANIFEST', manifest, {}, options);
    this.rest = pause;
  }

  /** Runs a task until it ends. An error that nothing has handled ends the desk. */
  start(task) {
    const ended = task.catch((err) => this.stop.abort(err)).finally(() => this.tasks.delete(ended));
    this.tasks.add(ended);
  }

  /** Waits until all tasks have ended. Throws why, unless the caller's signal is aborted. */
  async ended() {
    while (this.tasks.size > 0) await Promise.all(this.tasks);
    this.stop.unlink();
    if (!this.outer?.aborted || this.signal.reason !== this.outer.reason) throw this.signal.reason;
  }

  /** The terms of the first OFFER for a job; undefined: there was none. Throws AgentError if there is no room. */
  terms(key) {
    const { book } = this.state;
    book.expire(this.client.now());
    const may = book.offer(key);
    if (may === 'full') throw FULL;
    return may === 'same' ? book.get(key).offer : undefined;
  }

  /** Records an OFFER durably before it is posted, so that a crash does not lose its terms. If that fails, the desk
   *  ends. */
  async offered(key, terms, expires) {
    this.state.book.expire(this.client.now());
    this.state.book.offered(key, terms, expires);
    try { await this.state.sync(); } catch (err) {
      this.stop.abort(err);
      throw err;
    }
  }

  /** Does the work of a job, unless that was done or is being done. Returns the outcome, { type, payload }, for the
   *  thread of run. Throws Moved if it is not for this thread: see Book.accepted. In the thread of the first REQUEST it
   *  throws that as soon as a newer thread has an ACCEPT. */
  async outcome(run, job, accept, deadline) {
    const { book } = this.state, { home } = accept.meta ?? {}, key = await keyOf(job.envelope);
    const first = !job.envelope.meta?.continues, name = JSON.stringify(key);
    const thread = { home: home?.did ?? '', id: run.thread, accept: run.accept, first };
    run.job = { key, name, thread };
    book.expire(this.client.now());
    const next = book.accepted(key, thread, this.client.now());
    if (next === 'old') throw new Moved();
    const isNewest = book.get(key).thread.accept === run.accept;
    if (isNewest) this.#own(name, run);
    if (next === 'answer') return book.get(key).outcome;
    if (next === 'cancelled') return failed(CANCELLED);
    const isNew = !this.working.has(name);
    if (isNew) this.working.set(name, new Task(this, key, name, job));
    const task = this.working.get(name);
    if (isNew || isNewest) task.until(deadline);
    return task.wait(run.signal);
  }

  // Makes run the owner of a job. If the owner was the run in the thread of the first REQUEST, that run ends, even
  // while it posts the outcome. Any other earlier owner continues until it has posted the outcome.
  #own(name, run) {
    const before = this.owners.get(name);
    if (before !== run && before?.job.thread.first) before.stop.abort(new Moved());
    this.owners.set(name, run);
  }

  /** The outcome of the job whose newest thread with an ACCEPT this is; undefined: it is not known. The agent needs it
   *  if the REQUEST has expired. */
  outcomeAt({ client, thread, event }) {
    const home = event.meta?.home?.did ?? '';
    return [...this.state.book.jobs].find((job) =>
      job.client === client && job.thread.id === thread && job.thread.home === home)?.outcome;
  }

  /** Is called when a run has ended. */
  done(run) {
    if (run.job && this.owners.get(run.job.name) === run) this.owners.delete(run.job.name);
  }

  /** Is called when the client has ended the thread of a run. The work of its job ends too, unless a newer thread
   *  has an ACCEPT. */
  leave({ job }) {
    if (!job || !this.state.book.ended(job.key, job.thread, this.client.now())) return;
    this.working.get(job.name)?.stop.abort(new Cancelled());
  }
}

// A job that is being worked on.
class Task {
  #desk;
  #timer;
  #work; // the controller of the work
  #done;

  constructor(desk, key, name, job) {
    this.#desk = desk;
    this.stop = linked(desk.signal);
    this.#work = linked(this.stop.signal);
    this.#done = this.#perform(key, job).finally(() => {
      desk.working.delete(name);
      clearTimeout(this.#timer);
      this.#work.unlink();
      this.stop.unlink();
    });
    desk.start(this.#done.catch((err) => { if (!this.stop.signal.aborted) throw err; }));
  }

  /** Ends the work some time after the deadline of a thread. */
  until(deadline) {
    clearTimeout(this.#timer);
    if (!deadline) return;
    const left = Date.parse(deadline) - this.#desk.client.now() + SKEW;
    const late = new AgentError('TIMEOUT', 'the deadline of the thread has passed');
    this.#timer = setTimeout(() => this.#work.abort(late), Math.min(left, 2 ** 31 - 1));
  }

  /** Waits for the outcome, until signal is aborted. */
  async wait(signal) {
    let end;
    const aborted = new Promise((_, reject) => { end = () => reject(signal.reason); });
    signal.addEventListener('abort', end);
    if (signal.aborted) end();
    try { return await Promise.race([this.#done, aborted]); } finally { signal.removeEventListener('abort', end); }
  }

  async #perform(key, job) {
    const { workSlots, state, attempts, client } = this.#desk, { signal } = this.stop;
    await workSlots.acquire(signal, key.client);
    try {
      const may = state.book.begin(key, attempts);
      await state.sync();
      const outcome = may ? await this.#outcome(job) : failed(INTERRUPTED);
      state.book.finish(key, outcome, client.now());
      await state.sync();
      return outcome;
    } catch (err) {
      if (this.#desk.signal.aborted) state.book.undo(key);
      throw err;
    } finally { workSlots.release(key.client); }
  }

  async #outcome(job) {
    const { client, work } = this.#desk, { signal } = this.#work;
    let output;
    try { output = await called(client, 'work', job, this.stop.signal, () => work(job, { signal })); } catch (err) {
      if (!(err instanceof AgentError)) throw err;
      return failed(err);
    }
    try { // as it will be read from the file
      const payload = { ...output instanceof Result ? output : new Result(output) };
      return JSON.parse(canonicalText({ type: 'RESULT', payload }));
    } catch (err) {
      client.log('the outcome of the work cannot be posted, so the client gets an ERROR', err);
      return failed(INTERNAL);
    }
  }
}
