// Asks, accepts and waits for the result in one call.
import { AgentError, Cancelled, Gone, Unacceptable } from './errors.js';
import { doubt } from './outlook.js';

const LAST_PATIENCE = 10_000; // milliseconds that a CANCEL may take after a failure

/** See Client.ask. client is a Client or a Network. */
export async function ask(client, intent, params, { rule, seconds, ...options } = {}) {
  const { signal, thread } = options;
  const found = await client.outlook(intent, options).catch(() => undefined); // the request says what is wrong
  signal?.throwIfAborted();
  const why = doubt(found, intent, options);
  if (why) client.log(`${why}; waiting for an offer anyway`);
  let call;
  try {
    call = await client.request(intent, params, options);
    if (!call.agent) await call.accept(await call.best(rule, { seconds, signal }), { signal });
    return await call.result({ signal });
  } catch (err) {
    call ??= err.call;
    const isOver = err instanceof AgentError || err instanceof Cancelled || err instanceof Gone;
    if (!call || isOver || thread !== undefined || !await giveUp(client, call) || !err.why) throw err;
    throw Unacceptable.none(err.why, false);
  }
}

// Cancels a request that brought no result. Returns whether it has ended. If it may still be open, the log says how to
// cancel it.
async function giveUp(client, call) {
  const ours = new AbortController(), timer = setTimeout(() => ours.abort(), LAST_PATIENCE);
  try { await call.cancel('', { signal: ours.signal }); } catch (err) {
    if (err.code === 'INVALID_TRANSITION' || err.code === 'THREAD_NOT_FOUND') return true; // it has ended
    client.log(`the request may still be open; end it with: (await client.resume('${call.thread}')).cancel()`, err);
    return false;
  } finally { clearTimeout(timer); }
  return true;
}
