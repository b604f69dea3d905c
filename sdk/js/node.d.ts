import type { CursorStore, Dialler, Identity, StateStore } from './index.js';

export * from './index.js';

/** Reads the key file at path, as saveKey and agora keygen write it. Throws an error with the code ENOENT if there is
 *  none, and Refused with INVALID_KEY if the file is damaged or others than its owner may access it. */
export function loadKey(path: string | URL): Promise<Identity>;
/** Writes me to a new file that only its owner can read. It never overwrites a file: the error then has the code
 *  EEXIST. If the process or the machine stops at any time, the file is either complete or absent. */
export function saveKey(path: string | URL, me: Identity): Promise<void>;
/** Loads the key at path. If there is no file, makes a key and saves it there. If several processes do that at the same
 *  time, all of them get the same key. The folder must exist. Errors: those of loadKey and saveKey. */
export function loadOrCreateKey(path: string | URL): Promise<Identity>;

/** A file that keeps the cursor of one reader. After a crash it has the old cursor or the new one. The folder must
 *  exist. */
export class FileCursor implements CursorStore {
  constructor(path: string | URL);
  load(): Promise<string | undefined>;
  save(cursor: string): Promise<void>;
}

/** One file with all that an agent, or a client of several relays, remembers (RELAYS ): the cursor at each
 *  relay, the events that were handled, the relays that were caught, and the agent's jobs. Use one file for each
 *  identity, and in one process. After a crash it has all that was saved. The folder must exist. */
export class State implements StateStore {
  constructor(path: string | URL);
  readonly isDurable: boolean;
  load(did: string): Promise<void>;
  caught(relay: string): string | undefined;
  setCaught(relay: string, reason?: string): Promise<void>;
}

/** The option discover of Network. It returns a fetch for the relay at an origin. It connects only to public addresses,
 *  which it checks after the name was resolved, with https, at port 443 or above 1023. It follows no redirects, and has
 *  one connection until the first valid answer. Throws an error if the origin has another form or address. */
export const dialler: Dialler;
