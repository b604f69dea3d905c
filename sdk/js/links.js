// How the messages of a thread name its home, and each other by hash (RELAYS §1, §2, §4).
import { protocol } from './agora.js';
import { contentHash } from './chain.js';
import { signedForm } from './reading.js';

/** The content hash of a message (PROTOCOL §1) in hex. */
export const hashOf = (e) => contentHash(signedForm(e));

/** The root of a REQUEST: what it continues, or else its own hash. */
export const rootOf = async (request) => request.meta?.continues ?? hashOf(request);

/** When a message expires, in milliseconds since 1970. */
export const expiryOf = ({ ts, meta }) => Date.parse(ts) + (meta?.ttl ?? protocol.defaultTtl) * 1000;

/** The home and the re of a draft that answers the message with the hash re. undefined if the thread has no home. */
export const links = (home, re) => home && { home, re };

/** Why a receiver ignores e; undefined: it does not. home is the home of the REQUEST. answers are the hashes of the
 *  messages that e may answer. */
export function flaw({ meta: { home: own, re } = {} }, home, answers) {
  if (own?.did !== home?.did || own?.url !== home?.url) return 'its meta.home is not that of the REQUEST';
  if (re === undefined) return home && 'it has no meta.re, and the thread has a home';
  return answers.includes(re) ? undefined : 'its meta.re is not the message that it must answer';
}
