// An agent: offers on requests for one intent, and works once its offer is accepted.
//   node agent.mjs RELAY INTENT
import { Relay, threadOf } from './agora.mjs';

const [url, intent] = process.argv.slice(2);
const relay = new Relay(url);
const me = relay.me.did;

// What this agent is good for: it gives back what it is given.
const work = async (params) => ({ echo: params ?? null, by: 'node' });

const inbox = { recipient: me, broadcast: true };
const place = await relay.newest(inbox);
console.log(me);

const jobs = new Map(); // what we have offered to do; an agent that must survive a crash keeps it, and place.cursor, on disk
for await (const e of relay.follow(inbox, place)) {
  const thread = threadOf(e), job = `${e.sender.id} ${thread}`;
  const request_id = e.payload.request_id;
  const answer = { to: e.sender.id, thread };
  try {
    if (e.type === 'REQUEST' && e.payload.intent === intent && e.sender.id !== me) {
      await relay.post('OFFER', { request_id, price: { amount: 0.001, currency: 'USD' }, eta_seconds: 1 }, answer);
      jobs.set(job, e.payload);
    } else if (e.type === 'ACCEPT' && jobs.has(job)) {
      // One without recipient is ours too: the relay takes such an ACCEPT only where a single agent has offered.
      const { params } = jobs.get(job);
      jobs.delete(job);
      await relay.post('RESULT', { request_id, status: 'success', output: await work(params) }, answer);
    } else if (e.type === 'CANCEL' || e.type === 'ERROR') jobs.delete(job);
  } catch (err) {
    console.error(`thread ${thread}: ${err.message}`); // the relay says no: somebody else was chosen, or it is too late
  }
}
