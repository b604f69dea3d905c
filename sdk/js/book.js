// The jobs of an agent: by these rules it works once for a job that moves from relay to relay (RELAYS §4). There is no
// I/O here, and the time is an argument, in milliseconds since 1970.
import { canonicalize, encode64, sha256 } from './agora.js';
import { rootOf } from './links.js';

const MAX_JOBS = 1024, MAX_OF_CLIENT = 128, KEPT = 86_400_000; // milliseconds after the end of a job
const MAX_EARLIER = 6; // ACCEPTs in older threads of a job; with so many, further threads are ignored
const NOWHERE = { home: '', id: '', accept: '0'.repeat(64), first: false };

const nameOf = ({ client, root, payload }) => `${client} ${root} ${payload}`;
const isSame = (a, b) => a.home === b.home && a.id === b.id;
const later = (text, ms) => Date.parse(text) > ms ? text : new Date(ms).toISOString();

// The job that makes room. The first without an ACCEPT comes before those that are over. RELAYS R-18 keeps these for a
// day. But then no agent could do more than MAX_JOBS jobs in a day.
const oldestOf = (jobs) => jobs.find(({ accepted }) => !accepted) ?? jobs.find(({ over }) => over);

/** The job of a REQUEST whose payload is open: REQUESTs are for one job if client and root are the same, and the
 *  payloads differ at most in request_id. */
export async function keyOf(request) {
  const { request_id: _, ...payload } = request.payload, digest = encode64(await sha256(canonicalize(payload)));
  return { client: request.sender.id, root: await rootOf(request), payload: digest };
}

/** Remembers jobs from their first OFFER. changed gets each job that changes, and true as its second argument if the
 *  book has forgotten the job. A job has the members of its key, and until (when it may be forgotten), offer (the
 *  payload of the OFFER without request_id), accepted, begun (how often the work was begun), over (it has ended or was
 *  cancelled), outcome ({ type, payload }), thread (the newest with an ACCEPT) and earlier (the hashes of the ACCEPTs
 *  in older threads). They are the members in the file of State, which are the same in Go and Python. */
export class Book {
  #jobs = new Map(); // in the order of their first OFFERs
  #changed;

  constructor(changed = () => {}) { this.#changed = changed; }

  get jobs() { return this.#jobs.values(); }
  get(key) { return this.#jobs.get(nameOf(key)); }

  /** Puts back a job that was saved. */
  restore(job) { this.#jobs.set(nameOf(job), job); }
  drop(key) { this.#jobs.delete(nameOf(key)); }

  /** What the agent may offer: 'same', the terms of the job's first OFFER; 'new'; or 'full', nothing. */
  offer(key) {
    if (this.get(key)) return this.get(key).offer ? 'same' : 'new';
    const crowd = this.#crowd(key);
    return crowd.length > 0 && !oldestOf(crowd) ? 'full' : 'new';
  }

  /** Records an OFFER. expires is when the REQUEST expires. The terms of the first OFFER stay. */
  offered(key, terms, expires) {
    const job = this.get(key) ?? this.#add(key);
    job.offer ??= terms;
    job.until = later(job.until, expires);
    this.#changed(job);
  }

  // The jobs from which one must be forgotten, because the book is full; empty: there is room.
  #crowd({ client }) {
    const all = [...this.#jobs.values()], own = all.filter((job) => job.client === client);
    if (own.length >= MAX_OF_CLIENT) return own;
    return all.length >= MAX_JOBS ? all : [];
  }

  // Adds a job. If the book is full, it forgets another job, if there is one that it may forget.
  #add(key, until = new Date(0).toISOString()) {
    const oldest = oldestOf(this.#crowd(key));
    if (oldest) this.#forget(oldest);
    const { client, root, payload } = key;
    const job = { client, root, payload, until, accepted: false, begun: 0, over: false, thread: NOWHERE };
    this.restore(job);
    return job;
  }

  #forget(job) {
    this.drop(job);
    this.#changed(job, true);
  }

  /** Records the ACCEPT in a thread, { home, id, accept, first }, when it has arrived: its hash, and whether the job's
   *  first REQUEST opened the thread. Returns what to do: 'work' if the work is not done yet, 'answer' if the outcome
   *  is known, 'cancelled' if the client has cancelled the work, and 'old' if a newer thread, or too many threads, have
   *  an ACCEPT. The thread of the first REQUEST is older than all others. Of the others nobody knows which one is the
   *  newest: messages come late, and clocks are set back. So each of them gets the outcome, and the last one to come
   *  counts as the newest. */
  accepted(key, thread, now) {
    // An earlier process without a file may have offered.
    const job = this.get(key) ?? this.#add(key, new Date(now + KEPT).toISOString()), { earlier = [] } = job;
    if (!isSame(job.thread, thread)) {
      const isKnown = earlier.includes(thread.accept);
      if (job.accepted && (thread.first || !isKnown && earlier.length >= MAX_EARLIER)) return 'old';
      if (!isKnown) {
        if (job.accepted) job.earlier = [...earlier, job.thread.accept];
        Object.assign(job, { accepted: true, thread });
        if (!job.outcome && job.begun === 0) job.over = false; // cancelled before the work was begun
        this.#changed(job);
      }
    }
    if (job.outcome) return 'answer';
    return job.over ? 'cancelled' : 'work';
  }

  /** Records that the work begins once more. Returns false, and records nothing, if the work was begun attempts
   *  times already. */
  begin(key, attempts) {
    const job = this.get(key);
    if (!job || job.begun >= attempts) return false;
    job.begun++;
    this.#changed(job);
    return true;
  }

  /** Takes back a begin: the agent was stopped in an orderly way while it worked, which does not count as an
   *  attempt. */
  undo(key) {
    const job = this.get(key);
    if (!job || job.over || job.begun === 0) return;
    job.begun--;
    this.#changed(job);
  }

  /** Records the outcome of the work. */
  finish(key, outcome, now) {
    const job = this.get(key);
    if (!job) return; // it was cancelled, and then forgotten to make room
    job.outcome = outcome;
    this.#end(job, now);
  }

  /** Records that a thread has ended without an outcome. Returns whether the work is to be stopped. */
  ended(key, thread, now) {
    const job = this.get(key);
    if (!job || job.over || !isSame(job.thread, thread)) return false;
    this.#end(job, now);
    return true;
  }

  #end(job, now) {
    job.over = true;
    job.until = later(job.until, now + KEPT);
    this.#changed(job);
  }

  /** Forgets the jobs whose time has come: never one that is accepted and not over. */
  expire(now) {
    for (const job of [...this.#jobs.values()]) {
      if (now >= Date.parse(job.until) && (!job.accepted || job.over)) this.#forget(job);
    }
  }
}
