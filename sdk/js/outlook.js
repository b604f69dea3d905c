// What the relay's directory says about a request before it is sent. Agents that decline a broadcast do so silently. So
// without it, a mistyped intent and a price that is too low look like a long silence. It proves nothing: an agent may
// serve what it does not announce, and may offer for less than it announces.
import { printable } from './agora.js';
import { linked } from './reading.js';

const PATIENCE = 3000; // milliseconds
const PAGE = 100, PAGES = 3; // agents of a page, and pages that are read
const MAX_INTENTS = 2000, MAX_NAME = 100; // names of other intents, and characters of a name that can be a suggestion
const MAX_NEAREST = 5, MAX_SHOWN = 40; // names that are suggested, and characters of a name that are shown

/** How many letters must be added, removed, replaced or swapped to turn a into b. */
export function distance(a, b) {
  let before = [], above = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; i++) {
    const row = [i];
    for (let j = 1; j <= b.length; j++) {
      row[j] = Math.min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] === b[j - 1] ? 0 : 1));
      const isSwapped = i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1];
      if (isSwapped) row[j] = Math.min(row[j], before[j - 2] + 1);
    }
    [before, above] = [above, row];
  }
  return above[b.length];
}

/** At most five of the known names, the most similar first. A name that contains the other one comes before the
 *  rest. */
export function nearest(name, known) {
  const word = name.slice(0, MAX_NAME).toLowerCase(), all = known.map((other) => {
    const lower = other.toLowerCase(), isWithin = word !== '' && (lower.includes(word) || word.includes(lower));
    return { other, apart: isWithin ? 0 : 1, far: distance(word, lower) };
  });
  all.sort((a, b) => a.apart - b.apart || a.far - b.far || (a.other < b.other ? -1 : 1));
  return all.slice(0, MAX_NEAREST).map(({ other }) => other);
}

// The intents of the valid manifests of an agent, with the price of each manifest in USD; undefined: it has none.
const announced = (manifests) => manifests.flatMap(({ payload: { intents, pricing } }) => {
  const ids = (Array.isArray(intents) ? intents : []).map((intent) => intent?.id);
  return { ids: ids.filter((id) => typeof id === 'string' && id !== ''), price: priceIn(pricing) };
});

function priceIn(pricing) {
  const { model, currency, fixed_price: price } = pricing ?? {}, is = (v, text) => String(v).toLowerCase() === text;
  if (typeof model !== 'string') return undefined;
  if (is(model, 'free')) return 0;
  const isFixed = is(model, 'fixed') && typeof currency === 'string' && is(currency, 'usd');
  return isFixed && typeof price === 'number' && price >= 0 ? price : undefined;
}

/** See Client.outlook. */
export async function outlook(client, intent, { to, signal } = {}) {
  const ours = linked(signal), late = new Error('reading the directory takes too long');
  const timer = setTimeout(() => ours.abort(late), PATIENCE);
  try {
    const { agents, isAll } = await readers(client, intent, to, ours.signal);
    const own = agents.map(({ id, online, manifests }) => ({ id, online, found: announced(manifests)
      .find(({ ids }) => ids.includes(intent)) })).filter(({ found }) => found);
    const prices = own.map(({ found }) => found.price), online = own.filter((agent) => agent.online);
    const isKnown = isAll && own.length > 0 && !prices.includes(undefined), names = new Set();
    if (own.length === 0) {
      const others = to ? agents : (await some(client, {}, ours.signal)).agents;
      for (const { ids } of others.flatMap(({ manifests }) => announced(manifests))) {
        for (const id of ids) if (id.length <= MAX_NAME && names.size < MAX_INTENTS) names.add(id);
      }
    }
    return { agents: own.length, online: online.length, price: isKnown ? Math.min(...prices) : undefined,
      nearest: nearest(intent, [...names]), example: (online[0] ?? own[0])?.id };
  } finally {
    clearTimeout(timer);
    ours.unlink();
  }
}

async function readers(client, intent, to, signal) {
  if (!to) return some(client, { intent }, signal);
  try { return { agents: [await client.agent(to, { signal })], isAll: true }; } catch (err) {
    if (err.code !== 'AGENT_NOT_FOUND') throw err;
    return { agents: [], isAll: true };
  }
}

// The agents of the first pages of the directory, and whether those are all.
async function some(client, query, signal) {
  const agents = [];
  let cursor;
  for (let n = 0; n < PAGES; n++) {
    const page = await client.agents({ ...query, limit: PAGE, cursor }, { signal });
    agents.push(...page.agents.map(({ envelope, ...agent }) => ({ ...agent, manifests: [envelope] })));
    if (page.hasMore !== true) return { agents, isAll: true };
    if (!page.cursor || page.cursor === cursor) break;
    cursor = page.cursor;
  }
  return { agents, isAll: false };
}

const shown = (name) => printable(name.length > MAX_SHOWN ? `${name.slice(0, MAX_SHOWN)}…` : name);

/** Why it is not likely that somebody offers; undefined: it is likely, or nothing is known. */
export function doubt(found, intent, { to, maxCost } = {}) {
  if (!found) return undefined;
  const names = found.nearest.length > 0 ? `; the nearest names are ${found.nearest.map(shown).join(', ')}` : '';
  if (found.agents === 0) return `${to ? `${to} does not announce` : 'nobody announces'} ${shown(intent)}${names}`;
  if (found.price !== undefined && typeof maxCost === 'number' && found.price > maxCost) {
    return `the cheapest agent announces ${found.price} USD for ${shown(intent)}, and maxCost is ${maxCost}`;
  }
  return to && found.online === 0 ? `${to} is offline: the relay has not heard from it for five minutes` : undefined;
}

/** What to say if nobody has offered. */
export function hint(found, intent, options = {}) {
  const why = doubt(found, intent, options);
  if (why) return why;
  if (options.to) return 'client.agent(did) shows whether the agent is online';
  const counts = found ? `agents that announce ${shown(intent)}: ${found.agents}, online: ${found.online}; ` : '';
  return `${counts}perhaps the params are not what they need. An agent that declines says why only if you ask it ` +
    `directly, with the option to${found?.example ? `: '${found.example}'` : ' and its DID'}`;
}
