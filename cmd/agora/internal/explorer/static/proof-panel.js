// The panel of a message with the relay's proof that the message is in its log. It is verified in this browser.
import { readStart, verifyProof } from './proof.js';
import { leaves } from './log.js';
import { facts, time, verdict } from './parts.js';
import { number, plural } from './text.js';
import { download, fillWith, foreign, h, svg } from './dom.js';

/** Returns the panel of a message. It reads the proof each time it is opened. */
export function proofPanel(m, app) {
  const content = h('div', { 'aria-live': 'polite' });
  let reading;
  const read = async () => {
    const mine = (reading = {});
    fillWith(content, h('p', { class: 'loading' }, 'Reading the proof'));
    const shown = await show(m, app);
    if (reading === mine) fillWith(content, shown);
  };
  return h(
    'details',
    { class: 'proof', ontoggle: (e) => e.target.open && read() },
    h('summary', null, 'Proof'),
    content,
  );
}

// Reads and verifies the proof, and returns what the panel shows.
async function show(m, app) {
  const { model } = app;
  await model.checked(m);
  if (m.status === 'false') {
    return verdict('false', 'Nothing can be proved', 'This message is not what its sender signed.');
  }
  if (m.status === 'unknown') return verdict('unknown', 'Proofs cannot be checked here', m.problem);
  let text;
  try {
    text = await app.reader.get('/proofs', { sender: m.from, id: m.id });
  } catch (err) {
    if (err.status === 404 || err.status === 401) return verdict('unknown', 'No proof', reason(m, model));
    return verdict('unknown', 'The proof cannot be read', err.message);
  }
  const name = `${m.id.replace(/[^\w.-]/g, '_')}.proof`;
  const onclick = () => download(name, text);
  const save = h('p', null, h('button', { type: 'button', class: 'small', onclick }, 'Download the proof'));
  try {
    return valid(await verifyProof(text, { message: m.envelope, relay: model.about.did }), model.about, save);
  } catch (err) {
    const why = `Warning: it proves nothing. The check says: ${err.message}`;
    return [verdict('false', 'This proof is not valid', why), save];
  }
}

// Says why the relay probably has no proof of a message.
function reason(m, { about, me }) {
  const isParty = me && [m.from, m.to].includes(me.did);
  if (about.reads === 'parties' && m.to && !isParty) {
    return 'This relay proves a directed message only to its sender and its recipient. Load the key of one of them.';
  }
  const began = beginning(about);
  if (m.ts < began) return 'The message is probably older than the log. The relay proves only what came later.';
  return 'The relay has probably removed the message, or it kept no log when the message came.';
}

// When the log began, in ms; NaN: the relay does not say so.
function beginning(about) {
  try {
    return Date.parse(readStart(about.log.start).began);
  } catch {
    return NaN;
  }
}

function valid({ relay, epoch, index, size, leaf, hash, path, unchecked }, about, save) {
  const isOld = `${relay}/${epoch}` !== about.log?.origin;
  return [
    verdict(
      'true',
      'This relay cannot take this message back',
      'It has signed a log that has exactly this message. Whoever keeps the proof can show that to everybody, offline.',
    ),
    facts(
      ['Index', number(index)],
      ['Size of the log', leaves(size)],
      ['Received', time(Date.parse(leaf.received)), h('span', { class: 'quiet' }, ' by the relay’s clock')],
      ['Witnesses', witnesses(unchecked)],
      ['Log', h('code', null, epoch), isOld && ' This is not the present log of this relay.'],
    ),
    save,
    picture(index, size, hash, path),
  ];
}

// This page knows the keys of no witness, so it cannot check their signatures.
function witnesses(signatures) {
  if (signatures.length === 0) return 'None. Only the relay itself has signed.';
  return [
    h(
      'ul',
      null,
      signatures.map(({ name, at }) =>
        h('li', null, foreign(name, 200), at !== undefined && [' at ', time(new Date(at * 1000).getTime())]),
      ),
    ),
    h('span', { class: 'quiet' }, 'Not checked: this page does not know their keys.'),
  ];
}

const short = (hash) => `${hash.slice(0, 8)}…`;
const WIDTH = 320; // of the picture; the boxes stand in three columns
const COLUMNS = [58, 160, 262];
const BOX = { width: 92, height: 28 };
const ROW = 58; // from one level to the next

/** Returns a picture of the path from the leaf, at the bottom, to the root, at the top. */
function picture(index, size, hash, path) {
  const nodes = [hash, ...path.map((step) => step.parent)];
  const last = nodes.length - 1;
  const y = (level) => 34 + (last - level) * ROW;
  const box = (x, level, text, kind) =>
    svg(
      'g',
      { class: `tree-${kind}` },
      svg('rect', { x: x - BOX.width / 2, y: y(level) - BOX.height / 2, ...BOX, rx: 6 }),
      svg('text', { x, y: y(level) + 4 }, short(text)),
    );
  const line = (x, level, kind) => {
    const middle = y(level) - ROW / 2;
    return svg('path', {
      class: `tree-line ${kind}`,
      d: `M${x} ${y(level) - BOX.height / 2}V${middle}H${COLUMNS[1]}V${y(level + 1) + BOX.height / 2}`,
    });
  };
  const side = ({ isLeft }) => COLUMNS[isLeft ? 0 : 2];
  const steps = path.map((step) => `${short(step.hash)} on the ${step.isLeft ? 'left' : 'right'}`);
  const words =
    `The path from leaf ${number(index)}, this message, to the root of the log with ${leaves(size)}. ` +
    `The leaf is ${short(hash)} and the root is ${short(nodes[last])}. ${plural(steps.length, 'hash', 'hashes')} ` +
    `beside the path, from the leaf up: ${steps.join(', ')}.`;
  return h(
    'figure',
    null,
    svg(
      'svg',
      { viewBox: `0 0 ${WIDTH} ${y(0) + 36}`, role: 'img', class: 'tree', 'aria-label': words },
      path.map((step, level) => [line(side(step), level, 'beside'), line(COLUMNS[1], level, 'up')]),
      path.map((step, level) => box(side(step), level, step.hash, 'beside')),
      nodes.map((node, level) => box(COLUMNS[1], level, node, level === 0 ? 'leaf' : level === last ? 'root' : 'node')),
      svg('text', { x: COLUMNS[1], y: 13, class: 'tree-label' }, 'Root, signed by the relay'),
      svg('text', { x: COLUMNS[1], y: y(0) + 29, class: 'tree-label' }, `Leaf ${number(index)}, this message`),
    ),
    h(
      'figcaption',
      { class: 'quiet' },
      'Each box is the hash of the two below it. With another message, the root would not be the one that is signed.',
    ),
  );
}
