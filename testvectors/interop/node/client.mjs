// A client. It requests a service, accepts the first offer within its budget, and prints the result.
//   node client.mjs RELAY INTENT PARAMS [AGENT]
import { randomUUID } from 'node:crypto';
import { canonicalize, identity, parse, Relay } from '../../../sdk/js/agora.js';

const [url, intent, params, agent] = process.argv.slice(2);
const relay = new Relay(url, { me: await identity() });
const max_cost_usd = 0.01;

// The thread and the request have the same id. So messages of agents that send only request_id belong to the thread.
const thread = `req_${randomUUID()}`, request_id = thread;
const request = { request_id, intent, params: parse(Buffer.from(params)), constraints: { max_cost_usd } };
await relay.post('REQUEST', request, { to: agent, thread });

let chosen; // the agent whose offer was accepted
for await (const e of relay.follow({ thread })) {
  const from = e.sender.id, { payload } = e;
  // Skip our own messages, and messages in a copy of our thread.
  if (from === relay.me.did || e.recipient && e.recipient.id !== relay.me.did) continue;
  if (e.type === 'ERROR' && from === (chosen ?? agent)) throw new Error(`${payload.code}: ${payload.message}`);
  if (payload.request_id !== request_id || agent && from !== agent) continue;
  if (e.type === 'OFFER' && !chosen && (payload.price?.amount ?? 0) <= max_cost_usd) {
    await relay.post('ACCEPT', { request_id }, { to: from, thread });
    chosen = from;
  } else if (e.type === 'RESULT' && from === chosen) {
    process.stdout.write(canonicalize(payload.output));
    break;
  }
}
