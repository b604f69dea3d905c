// An agent that returns the parameters of each REQUEST with its intent.
//   node agent.mjs RELAY INTENT
// RELAY may have several URLs, with spaces between them. It prints its DID when it begins, and a line with the thread for
// each piece of work. AGORA_CLOCK_OFFSET is how many seconds its clock is ahead. With AGORA_HOLD, the work ends when there
// is a file with this name.
import { existsSync } from 'node:fs';
import { setTimeout } from 'node:timers/promises';
import { identity } from '../../../sdk/js/node.js';
import { open } from './open.mjs';

const [urls, intent] = process.argv.slice(2), { AGORA_HOLD: hold } = process.env;
const client = open(urls, await identity());
console.log(client.me.did); // it reads its inbox from the oldest message, so it misses none from now on
await client.serve(intent, {
  manifest: { name: 'node' },
  quote: () => ({ price: 0.001, etaSeconds: 1 }),
  async work({ params = null, thread }) {
    console.log(`work ${thread}`);
    while (hold && !existsSync(hold)) await setTimeout(20);
    return { by: 'node', echo: params };
  },
});
