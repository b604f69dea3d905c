// The relay's log of what it accepts, as this browser remembers it from the last visit. It must never become smaller.
import { Refused } from './agora.js';
import { readStart, verifyCheckpoint } from './proof.js';
import { isTemporary } from './feed.js';
import { time } from './parts.js';
import { number, plural } from './text.js';
import { fillWith, h, visible } from './dom.js';

/** Whether the relay keeps a log, by its well-known document. */
export const hasLog = ({ features }) => Array.isArray(features) && features.includes('proofs');

/** Returns a number of leaves in words. */
export const leaves = (n) => plural(n, 'leaf', 'leaves');

const place = (did) => `agora-log ${did}`;

// What is remembered of the relay's log: {epoch, size, root, at}; undefined: nothing.
function recall(did) {
  try {
    const log = JSON.parse(localStorage.getItem(place(did)));
    return typeof log?.epoch === 'string' && typeof log.size === 'number' ? log : undefined;
  } catch {
    return undefined;
  }
}

function remember(did, log) {
  try {
    if (!log) localStorage.removeItem(place(did));
    else localStorage.setItem(place(did), JSON.stringify({ ...log, at: Date.now() }));
  } catch {
    /* the browser stores nothing */
  }
}

/** Compares the relay's log with the remembered one, and remembers it. If the log has lost something, box shows a
 *  warning. The browser then remembers the log as it was, until the reader dismisses the warning. Throws the error of a
 *  relay that does not answer now. */
export async function watchLog(about, reader, box) {
  const before = recall(about.did);
  let now, words;
  try {
    now = hasLog(about) ? await readLog(about, reader) : undefined;
    words = before && lossOf(before, now, about);
  } catch (err) {
    if (err.code === 'NO_WEBCRYPTO') return; // nothing is known
    if (err.code !== 'INVALID_PROOF' && isTemporary(err)) throw err;
    return warn(box, `This relay does not show its log as it must: ${err.message}`);
  }
  box.hidden = words === undefined;
  if (words === undefined) return remember(about.did, now);
  const dismiss = () => {
    remember(about.did, now);
    box.hidden = true;
  };
  const visited = h('p', { class: 'quiet' }, 'Your last visit: ', time(before.at));
  warn(box, words, visited, h('button', { type: 'button', class: 'small', onclick: dismiss }, 'Do not warn me again'));
}

function warn(box, words, ...more) {
  fillWith(box, h('p', null, h('b', null, 'Warning. '), visible(words, 1000)), more);
  box.hidden = false;
}

// Reads the published checkpoint of the relay's log.
async function readLog({ did, log }, reader) {
  const epoch = String(log?.origin).slice(-8);
  if (!/^[0-9a-f]{8}$/.test(epoch)) throw new Refused('INVALID_PROOF', 'the log has no epoch');
  const { origin, size, root } = await verifyCheckpoint(await reader.get(`/log/${epoch}/checkpoint`));
  if (origin !== `${did}/${epoch}`) throw new Refused('INVALID_PROOF', 'the checkpoint is that of another log');
  return { epoch, size, root };
}

// Says in words what the relay's log has lost since the last visit; undefined: nothing.
function lossOf(before, now, { did, log }) {
  const had = `At your last visit the log had ${leaves(before.size)}`;
  if (!now) return `This relay keeps no log any more. ${had}.`;
  if (now.epoch === before.epoch) {
    if (now.size < before.size) {
      return `The log of this relay has become smaller. ${had}, now it has ${number(now.size)}. ` +
        'An honest relay never takes anything out of its log.';
    }
    if (now.size > before.size || now.root === before.root) return undefined;
    return `The log of this relay has been changed. ${had}, and now it has as many, but not the same ones.`;
  }
  const { previous } = readStart(log.start);
  const began = 'This relay has begun a new log. ';
  if (previous?.origin !== `${did}/${before.epoch}`) {
    return `${began}${had}. The new log does not continue it.`;
  }
  if (Number(previous.size) >= before.size) return undefined;
  return `${began}It continues the one that you saw, but only its first ${leaves(Number(previous.size))}. ${had}. ` +
    'The relay may have been restored from a backup. What came after the backup is lost.';
}
