// Several relays in memory, and a network of them.
import { Network } from '../index.js';
import { broken, FakeRelay } from './fakerelay.js';

/** Relays at https://a.example and so on. A relay with down is not reached. */
export async function relays(...names) {
  const all = Object.fromEntries(await Promise.all(names.map(async (name) => [name, await FakeRelay.start()])));
  for (const relay of Object.values(all)) relay.features.push('home');
  const fetch = async (url, options) => {
    const relay = all[new URL(url).hostname.split('.')[0]];
    if (!relay || relay.down) throw broken('ECONNREFUSED');
    const response = await relay.fetch(url, options);
    if (relay.down) throw broken();
    return response;
  };
  return { ...all, fetch };
}

export const urlOf = (name) => `https://${name}.example`;

/** A network of these relays. It continues a job after one second of silence, or one second without an offer. */
export const network = ({ fetch }, names, me, options) =>
  new Network(names.map(urlOf), { me, fetch, silence: 1, offerWait: 1, log() {}, ...options });
