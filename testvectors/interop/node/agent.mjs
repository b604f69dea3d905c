// An agent. It sends an OFFER for each REQUEST with its intent, and does the work when the offer is accepted.
//   node agent.mjs RELAY INTENT
import { identity, Relay, threadOf } from '../../../sdk/js/agora.js';

const [url, intent] = process.argv.slice(2);
const relay = new Relay(url, { me: await identity() });
const me = relay.me.did;

// The work of this agent: it returns the parameters that it got.
const work = async (params) => ({ echo: params ?? null, by: 'node' });

const inbox = { recipient: me, broadcast: true };
const place = await relay.newest(inbox);
console.log(me);

const jobs = new Map(); // the REQUESTs with our offer; to survive a crash, store jobs and place.cursor on disk
for await (const e of relay.follow(inbox, place)) {
  const thread = threadOf(e), job = `${e.sender.id} ${thread}`;
  const request_id = e.payload.request_id;
  const answer = { to: e.sender.id, thread };
  try {
    if (e.type === 'REQUEST' && e.payload.intent === intent && e.sender.id !== me) {
      await relay.post('OFFER', { request_id, price: { amount: 0.001, currency: 'USD' }, eta_seconds: 1 }, answer);
      jobs.set(job, e.payload);
    } else if (e.type === 'ACCEPT' && jobs.has(job)) {
      // An ACCEPT without recipient is for this agent too: the relay accepts it only if a single agent has offered.
      const { params } = jobs.get(job);
      jobs.delete(job);
      await relay.post('RESULT', { request_id, status: 'success', output: await work(params) }, answer);
    } else if (e.type === 'CANCEL' || e.type === 'ERROR') jobs.delete(job);
  } catch (err) {
    // The relay has refused: the client chose another agent, or it is too late.
    console.error(`thread ${thread}: ${err.message}`);
  }
}
