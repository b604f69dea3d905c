// Opens a client for the agent and the client.
import { Client, Network } from '../../../sdk/js/node.js';

/** A Client of one relay, or a Network of several: urls has spaces between them. AGORA_CLOCK_OFFSET is how many seconds
 *  the clock is ahead, and AGORA_SILENCE how many seconds a home may be silent. */
export function open(urls, me) {
  const { AGORA_CLOCK_OFFSET: offset = 0, AGORA_SILENCE: silence = 30 } = process.env;
  const options = { me, clock: () => Date.now() + Number(offset) * 1000 }, all = urls.split(' ');
  return all.length > 1 ? new Network(all, { ...options, silence: Number(silence) }) : new Client(all[0], options);
}
