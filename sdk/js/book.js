// The jobs of an agent: by these rules it works once for a job that moves from relay to relay (RELAYS §4). There is no
// I/O here, and the time is an argument, in milliseconds since 1970.
import { canonicalize, encode64, sha256 } from './agora.js';
import { rootOf } from './links.js';

const MAX_JOBS = 1024, MAX_OF_CLIENT = 128, KEPT = 86_400_000; // milliseconds after the end of a job
const NOWHERE = { home: '', id: '', accept: '0'.repeat(64), decided: '0001-01-01T00:00:00Z' };

const nameOf = ({ client, root, payload }) => `${client} ${root} ${payload}`;
const isSame = (a, b) => a.home === b.home && a.id === b.id;
const later = (text, ms) => Date.parse(text) > ms ? text : new Date(ms).toISOString();

/** The job of a REQUEST whose payload is open: REQUESTs of one client with one root, and payloads that are equal but
 *  for request_id, are one job. */
export async function keyOf(request) {
  const { request_id: _, ...payload } = request.payload, digest = encode64(await sha256(canonicalize(payload)));
  return { client: request.sender.id, root: await rootOf(request), payload: digest };
}

/** Remembers jobs from their first OFFER. changed gets each job that changes; with true, it was forgotten. A job has
 *  the members of its key, and until (when it may be forgotten), offer (the payload of the OFFER without request_id),
 *  accepted, begun (how often the work was begun), over (it has ended or was cancelled), outcome ({ type, payload })
 *  and thread (the newest with an ACCEPT). */
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
    const { client } = key, hasRoom = (list, most) => list.length < most || list.some((job) => !job.accepted);
    const all = [...this.#jobs.values()], own = all.filter((job) => job.client === client);
    return hasRoom(all, MAX_JOBS) && hasRoom(own, MAX_OF_CLIENT) ? 'new' : 'full';
  }

  /** Records an OFFER. expires is when the REQUEST does. The terms of the first OFFER stay. */
  offered(key, terms, expires) {
    const job = this.get(key) ?? this.#add(key);
    job.offer ??= terms;
    job.until = later(job.until, expires);
    this.#changed(job);
  }

  // Adds a job. If there are too many, the one without an ACCEPT that was offered first is forgotten.
  #add(key) {
    const all = () => [...this.#jobs.values()], own = () => all().filter(({ client }) => client === key.client);
    for (const [list, most] of [[own, MAX_OF_CLIENT], [all, MAX_JOBS]]) {
      const oldest = list().length >= most && list().find(({ accepted }) => !accepted);
      if (oldest) this.#forget(oldest);
    }
    const until = new Date(0).toISOString(), { client, root, payload } = key;
    const job = { client, root, payload, until, accepted: false, begun: 0, over: false, thread: NOWHERE };
    this.restore(job);
    return job;
  }

  #forget(job) {
    this.drop(job);
    this.#changed(job, true);
  }

  /** Records the ACCEPT in a thread, { home, id, accept, decided }, the last being the time of the ACCEPT. Returns what
   *  follows: 'work', if it is not done yet; 'answer', the outcome is known; 'cancelled', the client has cancelled the
   *  work; 'old', a newer thread has an ACCEPT. */
  accepted(key, thread, now) {
    const job = this.get(key) ?? this.#add(key); // an earlier process without a file may have offered
    if (!isSame(job.thread, thread)) {
      if (job.accepted && Date.parse(thread.decided) < Date.parse(job.thread.decided)) return 'old';
      Object.assign(job, { accepted: true, thread, until: later(job.until, now + KEPT) });
      if (!job.outcome && job.begun === 0) job.over = false; // cancelled before the work was begun
      this.#changed(job);
    }
    if (job.outcome) return 'answer';
    return job.over ? 'cancelled' : 'work';
  }

  /** Records that the work begins once more. Returns whether it may: it was not begun as often as attempts. */
  begin(key, attempts) {
    const job = this.get(key);
    if (job.begun >= attempts) return false;
    job.begun++;
    this.#changed(job);
    return true;
  }

  /** Takes back a begin, because the agent ends in order while it works. */
  undo(key) {
    const job = this.get(key);
    job.begun--;
    this.#changed(job);
  }

  /** Records the outcome of the work. */
  finish(key, outcome, now) {
    const job = this.get(key);
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
