// Words and figures that the views share: times, prices, identities, one-line summaries. No elements here.
import { protocol } from './agora.js';
import { visible } from './dom.js';

export const TYPES = Object.keys(protocol.types);
export const STATES = protocol.states.filter((state) => state !== 'OPEN'); // no stored thread is OPEN

/** Returns whether only the client of a thread sends messages of this type. */
export const isOfClient = (type) => ['opener', 'client'].includes(protocol.types[type]?.by);

/** Returns the first and the last characters of a DID. The first are empty if the text is short. */
export function endsOfDID(did) {
  const key = did.startsWith('did:key:') ? did.slice('did:key:'.length) : did;
  return key.length > 20 ? [visible(key.slice(0, 9)), `…${visible(key.slice(-5))}`] : ['', visible(key)];
}

/** Returns a short form of a DID. */
export const shortDID = (did) => endsOfDID(did).join('');

const clock = new Intl.DateTimeFormat(undefined, {
  hour: '2-digit',
  minute: '2-digit',
  second: '2-digit',
  hourCycle: 'h23',
});
const date = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium', timeStyle: 'medium', hourCycle: 'h23' });

/** Returns the local time of day, with the date if it is another day. */
export function timeText(ms) {
  if (!Number.isFinite(ms)) return '—';
  return new Date(ms).toDateString() === new Date().toDateString() ? clock.format(ms) : date.format(ms);
}

/** Returns the local time of day. */
export const clockText = (ms) => (Number.isFinite(ms) ? clock.format(ms) : '—');

/** Returns the same instant in UTC. */
export const utcText = (ms) =>
  Number.isFinite(ms) ? new Date(ms).toISOString().replace('T', ' ').replace('Z', ' UTC') : '';

/** Returns a duration of this many seconds in words, with one or two units. */
export function span(seconds) {
  const s = Math.max(0, Math.round(seconds));
  const units = [
    [86400, 'd'],
    [3600, 'h'],
    [60, 'min'],
    [1, 's'],
  ];
  const i = units.findIndex(([size]) => s >= size);
  if (i < 0) return '0 s';
  const [size, name] = units[i];
  const whole = `${Math.floor(s / size)} ${name}`;
  const next = units[i + 1];
  const rest = next && Math.floor((s % size) / next[0]);
  return rest ? `${whole} ${rest} ${next[1]}` : whole;
}

const count = new Intl.NumberFormat(undefined, { maximumFractionDigits: 6 });
export function number(n) {
  if (typeof n !== 'number' || !Number.isFinite(n)) return '—';
  return n !== 0 && (Math.abs(n) >= 1e15 || Math.abs(n) < 1e-6) ? String(n) : count.format(n);
}

/** Returns a number of bytes with a unit. */
export function bytes(n) {
  if (n < 1024) return `${n} B`;
  return n < 1 << 20
    ? `${count.format(Math.round(n / 102.4) / 10)} KiB`
    : `${count.format(Math.round(n / 104857.6) / 10)} MiB`;
}

export const plural = (n, one, many = `${one}s`) => `${number(n)} ${n === 1 ? one : many}`;

/** Returns the price of an OFFER, or undefined if there is none. */
export function priceText(price) {
  if (typeof price?.amount !== 'number') return undefined;
  return price.amount === 0 ? 'free' : `${number(price.amount)} ${visible(price.currency ?? '', 12)}`;
}

const preview = (value) =>
  value === undefined || value === null ? '' : visible(typeof value === 'string' ? value : JSON.stringify(value), 160);

/** Returns what a message says, in one line. */
export function summary(rec) {
  const p = rec.payload;
  if (rec.sealed && !rec.opened)
    return rec.type === 'REQUEST' ? `asks for ${visible(p.intent, 80)} · sealed` : 'sealed';
  switch (rec.type) {
    case 'REQUEST':
      return [`asks for ${visible(p.intent, 80)}`, p.title ? visible(p.title, 120) : preview(p.params)]
        .filter(Boolean)
        .join(' · ');
    case 'OFFER':
      return [
        'offers',
        [
          priceText(p.price) && `for ${priceText(p.price)}`,
          Number.isFinite(p.eta_seconds) && `in ${span(p.eta_seconds)}`,
        ]
          .filter(Boolean)
          .join(', '),
        p.plan && `· ${visible(p.plan, 160)}`,
      ]
        .filter(Boolean)
        .join(' ');
    case 'ACCEPT':
      return 'accepts the offer';
    case 'RESULT':
      return [`delivers: ${visible(p.status, 40)}`, preview(p.output)].filter(Boolean).join(' · ');
    case 'ERROR':
      return `${visible(p.code, 60)}: ${visible(p.message, 160)}`;
    case 'CANCEL':
      return p.reason ? `cancels: ${visible(p.reason, 160)}` : 'cancels';
    case 'MANIFEST':
      return `announces ${visible(p.name ?? p.id, 80)}${
        intents(p).length
          ? `: ${intents(p)
              .map((i) => visible(i.id, 60))
              .slice(0, 6)
              .join(', ')}`
          : ''
      }`;
  }
  return 'not a message of this protocol';
}

/** Returns the intents of a manifest that have an id. */
export const intents = (manifest) =>
  Array.isArray(manifest?.intents) ? manifest.intents.filter((i) => typeof i?.id === 'string') : [];

/** Quotes text for a POSIX shell. */
export const quoted = (text) => (/^[A-Za-z0-9_./:=@%+-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);
