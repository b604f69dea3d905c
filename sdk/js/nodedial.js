// Connections to relays that somebody else has named (RELAYS R-13). Such a relay could be an address that only this
// machine can reach.
import { lookup } from 'node:dns';
import { Agent, request } from 'node:https';
import { BlockList, isIP } from 'node:net';
import { networkInterfaces } from 'node:os';
import { Readable } from 'node:stream';

// The addresses for special uses, as in GATEWAYS §6. Of IPv6, only 2000::/3 is public.
const SPECIAL = ['0.0.0.0/8', '10.0.0.0/8', '100.64.0.0/10', '127.0.0.0/8', '169.254.0.0/16', '172.16.0.0/12',
  '192.0.0.0/24', '192.0.2.0/24', '192.88.99.0/24', '192.168.0.0/16', '198.18.0.0/15', '198.51.100.0/24',
  '203.0.113.0/24', '224.0.0.0/4', '240.0.0.0/4', '2001::/23', '2001:db8::/32', '2002::/16', '3fff::/20'];

const listOf = (networks) => {
  const list = new BlockList();
  for (const [address, bits] of networks.map((network) => network.split('/'))) {
    list.addSubnet(address, Number(bits), isIP(address) === 4 ? 'ipv4' : 'ipv6');
  }
  return list;
};
const special = listOf(SPECIAL), unicast = listOf(['2000::/3']);

/** Whether an address is one of the public internet, and not of this machine. */
export function isPublic(address, own = Object.values(networkInterfaces()).flat()) {
  const kind = isIP(address) === 4 ? 'ipv4' : 'ipv6';
  return isIP(address) !== 0 && !address.includes('%') && !special.check(address, kind) &&
    (kind === 'ipv4' || unicast.check(address, kind)) && !own.some((other) => other.address === address);
}

const inside = (what) => Object.assign(new Error(`${what} is not a public address, or the port is below 1024 and not ` +
  '443'), { code: 'EACCES' });

// Resolves a name, and fails if one of its addresses is not public. The connection uses those that were checked.
function checkedLookup(isAllowed, resolve) {
  return (host, options, done) => resolve(host, { ...options, all: true }, (err, all) => {
    const wrong = !err && all.find(({ address }) => !isAllowed(address));
    if (err || wrong) done(err ?? inside(host));
    else if (options.all) done(null, all);
    else done(null, all[0].address, all[0].family);
  });
}

/** The discover of Network: returns the fetch for the relay at this origin. Until the first valid answer there is one
 *  connection. Tests pass another isAllowed, resolve and ca. */
export function dialler(origin, { isAllowed = isPublic, resolve = lookup, ca } = {}) {
  const { protocol, hostname, port } = new URL(origin), host = hostname.replace(/^\[|\]$/g, '');
  if (protocol !== 'https:') throw new TypeError(`a relay that was discovered must have https: ${origin}`);
  if (port !== '' && Number(port) < 1024 || isIP(host) && !isAllowed(host)) throw inside(origin);
  const agent = new Agent({ keepAlive: true, maxSockets: 1, lookup: checkedLookup(isAllowed, resolve), ca });
  return (url, { method, headers, body, signal }) => new Promise((done, failed) => {
    const sent = request(url, { method, headers, signal, agent }, (answer) => {
      const { statusCode: status, headers: fields } = answer;
      if (status >= 300 && status < 400) {
        sent.destroy(new Error('a relay that was discovered must not redirect'));
        return;
      }
      if (status === 200) agent.maxSockets = Infinity;
      const hasBody = ![204, 205].includes(status);
      const names = Object.entries(fields).map(([name, value]) => [name, String(value)]);
      done(new Response(hasBody ? Readable.toWeb(answer) : null, { status, headers: names }));
    });
    sent.on('error', failed);
    sent.end(body);
  });
}
