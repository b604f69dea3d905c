// An agent that returns the parameters of each REQUEST with its intent.
//   node agent.mjs RELAY INTENT
// It prints its DID when it begins, and a line with the thread for each piece of work. AGORA_CLOCK_OFFSET is how many
// seconds its clock is ahead.
import { Client, identity } from '../../../sdk/js/node.js';

const [url, intent] = process.argv.slice(2);
const offset = Number(process.env.AGORA_CLOCK_OFFSET ?? 0) * 1000;
const client = new Client(url, { me: await identity(), clock: () => Date.now() + offset });
console.log(client.me.did); // it reads its inbox from the oldest message, so it misses none from now on
await client.serve(intent, {
  quote: () => ({ price: 0.001, etaSeconds: 1 }),
  work({ params = null, thread }) {
    console.log(`work ${thread}`);
    return { by: 'node', echo: params };
  },
});
