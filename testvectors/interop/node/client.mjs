// A client. It requests a service, accepts the first offer within its budget, and prints the output of the result.
//   node client.mjs RELAY INTENT PARAMS [AGENT]
// RELAY may have several URLs, with spaces between them. With AGORA_SEAL=1 only the agent can read what it asks. AGORA_CLOCK_OFFSET is how many seconds its clock is ahead.
import { canonicalize, identity, newThread, parse, UnknownOutcome } from '../../../sdk/js/node.js';
import { open } from './open.mjs';

const [urls, intent, params, to] = process.argv.slice(2);
const client = open(urls, await identity());
const options = { to, maxCost: 0.01, seal: process.env.AGORA_SEAL === '1', thread: newThread() };

// After an unknown outcome the same thread is continued, so nothing is asked or accepted twice.
for (;;) {
  try {
    const call = await client.request(intent, parse(Buffer.from(params)), options);
    if (!call.agent) await call.accept(await call.best('first'));
    const { output } = await call.result();
    process.stdout.write(canonicalize(output));
    break;
  } catch (err) { if (!(err instanceof UnknownOutcome)) throw err; }
}
