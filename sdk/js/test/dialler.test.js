// Connections to relays that somebody else has named (RELAYS R-13).
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { createServer } from 'node:https';
import { join } from 'node:path';
import test from 'node:test';
import { Network } from '../node.js';
import { dialler, isPublic } from '../nodedial.js';
import { identity } from '../index.js';
import { alice } from './helpers.js';
import { folder } from './real.js';

test('R-13: addresses that are not public are not dialled', () => {
  for (const address of ['127.0.0.1', '10.0.0.1', '172.16.0.1', '172.31.255.255', '192.168.1.1', '169.254.169.254',
    '100.64.0.1', '0.0.0.0', '192.0.0.8', '192.0.2.1', '198.18.0.1', '198.51.100.1', '203.0.113.1', '224.0.0.1',
    '239.255.255.255', '240.0.0.1', '255.255.255.255', '192.88.99.1', '::', '::1', '::ffff:127.0.0.1', '::ffff:8.8.8.8',
    'fe80::1', 'fe80::1%eth0', 'fc00::1', 'fd00::1', 'ff02::1', '2001:db8::1', '2001::1', '2002:7f00:1::', '3fff::1',
    '64:ff9b::7f00:1', '100::1', '5f00::1', 'x', '']) assert.equal(isPublic(address), false, address);
  for (const address of ['8.8.8.8', '1.1.1.1', '172.32.0.1', '2606:4700::1111']) assert.ok(isPublic(address), address);
  assert.equal(isPublic('8.8.8.8', [{ address: '8.8.8.8' }]), false, 'an address of this machine');
});

test('R-13: only https, and port 443 or above 1023', () => {
  for (const origin of ['http://a.example', 'https://a.example:80', 'https://a.example:1023', 'https://127.0.0.1',
    'https://127.1', 'https://0x7f000001', 'https://[::1]', 'https://[::ffff:10.0.0.1]:8443']) {
    assert.throws(() => dialler(origin), undefined, origin);
  }
  dialler('https://a.example:1024');
});

// A server with https on loopback, and how to reach it as a.example.
async function server(t, answer) {
  const dir = await folder(t), file = (name) => join(dir, name);
  execFileSync('openssl', ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-days',
    '1', '-subj', '/CN=a.example', '-addext', 'subjectAltName=DNS:a.example', '-keyout', file('key'), '-out',
    file('cert')], { stdio: 'ignore' });
  const ca = readFileSync(file('cert')), live = createServer({ key: readFileSync(file('key')), cert: ca }, answer);
  await new Promise((resolve) => { live.listen(0, '127.0.0.1', resolve); });
  t.after(() => { live.closeAllConnections(); live.close(); });
  const resolve = (host, options, done) => done(null, [{ address: '127.0.0.1', family: 4 }]);
  return { live, ca, resolve, origin: `https://a.example:${live.address().port}` };
}

test('R-13: the address is checked after the name was resolved, and redirects are not followed', async (t) => {
  let open = 0, most = 0;
  const { ca, resolve, origin, live } = await server(t, (request, response) => {
    if (request.url === '/away') response.writeHead(302, { location: '/' }).end();
    else setTimeout(() => response.end('{}'), 20);
  });
  live.on('connection', (socket) => {
    most = Math.max(most, ++open);
    socket.on('close', () => { open--; });
  });
  await assert.rejects(dialler(origin, { resolve, ca })(`${origin}/`, {}), /not a public address/);
  assert.equal(most, 0, 'nothing was dialled');
  const fetch = dialler(origin, { resolve, ca, isAllowed: () => true });
  await assert.rejects(fetch(`${origin}/away`, {}), /redirect/);
  const all = await Promise.all(Array.from({ length: 3 }, () => fetch(`${origin}/`, {})));
  assert.deepEqual(await Promise.all(all.map((answer) => answer.json())), [{}, {}, {}]);
  assert.ok(most <= 2, `${most} connections before a valid answer`);
});

test('R-13: a network discovers 16 hosts an hour at most', async () => {
  const dialled = [], me = await identity(), network = new Network(['https://given.example'], { me, log() {},
    discover: (origin) => async () => { dialled.push(origin); throw new TypeError('no'); } });
  for (let n = 0; n < 20; n++) {
    await assert.rejects(network.at({ did: alice.did, url: `https://${n}.example` }),
      (err) => err.code === (n < 16 ? 'NO_ANSWER' : 'RATE_LIMITED'));
  }
  assert.equal(new Set(dialled).size, 16);
});
