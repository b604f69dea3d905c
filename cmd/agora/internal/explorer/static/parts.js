// Parts that several views use: badges, marks, identities, times, JSON, commands, and the inspector of a message.
import * as agora from './agora.js';
import { bytes, clockText, endsOfDID, quoted, span, summary, timeText, utcText } from './text.js';
import { copy, fillWith, foreign, h, svg, visible } from './dom.js';

const SHIELD = 'M12 3 4.5 6v5.5c0 4.6 3.2 8 7.5 9.5 4.3-1.5 7.5-4.9 7.5-9.5V6z';
const PATHS = {
  check: SHIELD + 'm-1.2 12.6-3.4-3.4 1.5-1.5 1.9 1.9 4.3-4.3 1.5 1.5z',
  cross: SHIELD + 'm3.7 11.3-1.4 1.4-2.3-2.3-2.3 2.3-1.4-1.4 2.3-2.3-2.3-2.3 1.4-1.4 2.3 2.3 2.3-2.3 1.4 1.4-2.3 2.3z',
  question:
    SHIELD +
    'm-1 13h2v2h-2zm3.4-4.6c-.8.7-1.3 1.2-1.3 2.1h-2.2c0-1.9 1-2.7 1.7-3.3.6-.5.9-.8.9-1.3 0-.7-.6-1.2-1.4-1.2' +
    '-.9 0-1.5.5-1.7 1.4l-2.1-.6C8.7 6.8 10.2 5.7 12.1 5.7c2.1 0 3.6 1.3 3.6 3.1 0 1.3-.7 2-1.3 2.6z',
  copy: 'M8 3h11v13h-2.5V5.5H8zM5 7h10v14H5zm2.3 2.3v9.4h5.4V9.3z',
  lock: 'M7 10V8a5 5 0 0 1 10 0v2h1.5v10h-13V10zm2.3 0h5.4V8a2.7 2.7 0 0 0-5.4 0z',
};

export const icon = (name) =>
  svg('svg', { viewBox: '0 0 24 24', 'aria-hidden': 'true', class: 'glyph' }, svg('path', { d: PATHS[name] }));

/** For each status of a message or a link: the name of its icon, and what it says. */
export const MARKS = {
  true: ['check', 'Verified in this browser'],
  false: ['cross', 'Failed: this is not what its sender signed'],
  unknown: ['question', 'Not checkable here'],
  pending: ['question', 'Being checked'],
};

/** Returns the mark of a message: a button that opens the inspector. */
export function mark(m, inspect) {
  const [glyph, words] = MARKS[m.status];
  return h(
    'button',
    {
      type: 'button',
      class: 'mark',
      data: { mark: m.status },
      title: words,
      onclick: (e) => {
        e.stopPropagation();
        inspect(m);
      },
    },
    icon(glyph),
    h('span', { class: 'hidden-text' }, `${words}. Show what was checked.`),
  );
}

export const typeBadge = (type) => h('span', { class: 'badge', data: { kind: type } }, type);
export const stateBadge = (state, id) => h('span', { class: 'state', id, data: { is: state } }, state);

/** Returns a time: local, with UTC as title. */
export const time = (ms, text = timeText) =>
  h('time', { datetime: Number.isFinite(ms) ? new Date(ms).toISOString() : undefined, title: utcText(ms) }, text(ms));

/** Returns a picture of a DID, so that equal ones are seen at a glance. It is no proof of anything. */
function picture(did) {
  let seed = 2166136261;
  for (const c of did) seed = Math.imul(seed ^ c.charCodeAt(0), 16777619) >>> 0;
  const cells = [];
  for (let i = 0; i < 15; i++) {
    if (!((seed >>> i) & 1)) continue;
    const x = Math.floor(i / 5);
    const y = i % 5;
    cells.push(`M${x} ${y}h1v1h-1z`);
    if (x < 2) cells.push(`M${4 - x} ${y}h1v1h-1z`);
  }
  return svg(
    'svg',
    { viewBox: '-0.5 -0.5 6 6', class: `picture hue-${(seed >>> 16) % 8}`, 'aria-hidden': 'true' },
    svg('path', { d: cells.join('') }),
  );
}

/** Returns a link to an agent: its short DID, after the name that it gives itself. */
export function agent(did, name, props = {}) {
  if (!did) return h('span', { class: 'agent nobody' }, 'everybody');
  const [start, end] = endsOfDID(did);
  return h(
    'a',
    { class: 'agent', href: `#/agent/${encodeURIComponent(did)}`, title: visible(did), ...props },
    picture(did),
    name && h('span', { class: 'agent-name' }, foreign(name, 40)),
    h('code', null, h('span', { class: 'start' }, start), end),
  );
}

export const threadHref = (id, client) =>
  `#/thread/${encodeURIComponent(id)}${client ? `?client=${encodeURIComponent(client)}` : ''}`;

/** Returns a button that copies text. text may be a function. */
export const copyButton = (text, label = 'Copy') =>
  h(
    'button',
    { type: 'button', class: 'small', onclick: () => copy(typeof text === 'function' ? text() : text) },
    icon('copy'),
    label,
  );

/** Returns a button without words that copies text, for the end of a line. what names the text for screen readers. */
export const copyMark = (text, what) =>
  h(
    'button',
    { type: 'button', class: 'small bare', title: 'Copy', onclick: () => copy(text) },
    icon('copy'),
    h('span', { class: 'hidden-text' }, `Copy ${what}`),
  );

/** Returns a command line with a button that copies it. */
export function command(line, label) {
  return h(
    'div',
    { class: 'command' },
    label && h('span', { class: 'command-label' }, label),
    h('pre', { tabindex: '0' }, h('code', null, visible(line, 2000))),
    copyButton(line),
  );
}

const SHOWN_JSON = 20_000;
const TOKENS = /("(?:[^"\\]|\\.)*")(\s*:)?|\b(?:true|false|null)\b|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;

/** Returns JSON with colours. Long text is cut, with a button that shows it whole. */
export function json(value) {
  const text = JSON.stringify(value, null, 2) ?? 'undefined';
  const box = h('pre', { class: 'json', tabindex: '0', dir: 'ltr' });
  const show = (max) => {
    const cut = visible(text, max).replaceAll('\u2409', '\t');
    const parts = [];
    let at = 0;
    if (cut.length <= SHOWN_JSON * 2) {
      for (const found of cut.matchAll(TOKENS)) {
        parts.push(
          cut.slice(at, found.index),
          h('span', { class: found[2] ? 'name' : found[1] ? 'string' : 'value' }, found[1] ?? found[0]),
          found[2],
        );
        at = found.index + found[0].length;
      }
    }
    fillWith(
      box,
      parts,
      cut.slice(at),
      text.length > max &&
        h('button', { type: 'button', class: 'small', onclick: () => show(1 << 20) }, `Show all ${bytes(text.length)}`),
    );
  };
  show(SHOWN_JSON);
  return box;
}

/** Returns a definition list of [term, value] pairs. Pairs without a value are left out. */
export const facts = (...pairs) =>
  h(
    'dl',
    { class: 'facts' },
    pairs
      .filter((p) => p && p[1] !== undefined && p[1] !== '' && p[1] !== null)
      .map(([term, ...values]) => h('div', null, h('dt', null, term), h('dd', null, values))),
  );

/** Returns a box that says why there is nothing, and what to do. */
export const empty = (title, ...children) => h('div', { class: 'empty' }, h('h2', null, title), children);

/** Returns the words for an error of a request. */
export function problem(err) {
  return h(
    'div',
    { class: 'notice', role: 'alert' },
    h('p', null, visible(err.message, 500)),
    err.code && h('p', { class: 'quiet' }, `The relay's code: ${visible(err.code, 60)}`),
  );
}

/** Returns the payload of a message: opened, sealed or plain. */
export function payload(m) {
  if (!m.sealed) return json(m.payload);
  const size = bytes(Math.floor((String(m.payload.sealed).length * 3) / 4));
  if (m.opened)
    return h(
      'div',
      null,
      h('p', { class: 'sealed' }, icon('lock'), 'Sealed to you, and opened here with your key.'),
      json(m.opened),
    );
  const { sealed, ...clear } = m.payload;
  return h(
    'div',
    null,
    h(
      'p',
      { class: 'sealed' },
      icon('lock'),
      `Sealed (${size}): only its recipient can read it.`,
      m.problem && m.status === 'true' ? ` ${m.problem}` : '',
    ),
    Object.keys(clear).length > 0 && json(clear),
  );
}

/** Returns the flag that names a relay in a command. For the relay that agora uses by default it is empty. */
export const relayFlag = (address) => (address === 'http://127.0.0.1:8789' ? '' : ` --relay ${quoted(address)}`);

/** Returns the commands that fetch a thread. address is the relay's. */
export function threadCommands(address, id, client) {
  const query = client ? `?client=${encodeURIComponent(client)}` : '';
  return [
    command(`agora thread${relayFlag(address)}${client ? ` --client ${quoted(client)}` : ''} ${quoted(id)}`, 'agora'),
    command(`curl ${quoted(`${address}/threads/${encodeURIComponent(id)}${query}`)}`, 'curl'),
  ];
}

const STEPS = {
  form: 'Form',
  canonical: 'Signed bytes',
  sender: 'Key of the sender',
  recipient: 'Key of the recipient',
  signature: 'Signature',
  equation: 'Ed25519',
};
const VALUES = {
  text: 'The signed bytes, as text (RFC 8785)',
  sha256: 'SHA-256',
  did: 'DID',
  multicodec: 'Multicodec',
  key: 'Key',
  sig: 'sig',
  R: 'R',
  S: 'S',
  k: 'k = SHA-512(R, key, signed bytes)',
  computed: 'S·B − k·A',
};

/** Returns a box with a verdict. status is that of a message. */
export const verdict = (status, words, why) =>
  h(
    'div',
    { class: 'verdict', data: { verified: status } },
    icon(MARKS[status][0]),
    h('div', null, h('b', null, words), why && h('p', null, visible(why, 500))),
  );

/** Returns the list of what was checked of an envelope. */
export async function explanation(envelope) {
  let steps;
  try {
    steps = await agora.explain(envelope);
  } catch (err) {
    return h('p', { class: 'notice' }, visible(err.message, 500));
  }
  return h(
    'ol',
    { class: 'steps' },
    steps.map((s) =>
      h(
        'li',
        { data: { ok: String(s.ok) } },
        h(
          'p',
          { class: 'step' },
          s.ok === true ? icon('check') : icon(s.ok === false ? 'cross' : 'question'),
          STEPS[s.name] ?? visible(s.name, 40),
        ),
        h('p', null, visible(s.detail, 1000)),
        h(
          'dl',
          { class: 'values' },
          Object.entries(VALUES)
            .filter(([name]) => typeof s[name] === 'string')
            .map(([name, label]) =>
              h(
                'div',
                null,
                h('dt', null, label),
                h('dd', null, h('pre', { class: 'bytes', tabindex: '0', dir: 'ltr' }, visible(s[name], 20_000))),
              ),
            ),
        ),
      ),
    ),
  );
}

/** Opens a dialog with everything about a message. */
export function inspect(m, app) {
  const dialog = h('dialog', { class: 'inspector', 'aria-labelledby': 'inspector-title' });
  const verdict = h('div', { class: 'verdict', data: { verified: m.status } });
  const checked = h('div', null, h('p', { class: 'quiet' }, 'Checking'));
  const say = () => {
    const [glyph, words] = MARKS[m.status];
    verdict.dataset.verified = m.status;
    fillWith(
      verdict,
      icon(glyph),
      h('div', null, h('b', null, words), m.status !== 'true' && m.problem && h('p', null, visible(m.problem, 500))),
    );
  };
  say();
  app.model.addEventListener('checked', say);
  explanation(m.envelope).then((list) => fillWith(checked, list));
  const close = () => dialog.close();
  dialog.append(
    h(
      'header',
      { role: 'none' },
      h('h2', { id: 'inspector-title' }, typeBadge(m.type), ' ', h('code', null, visible(m.id, 128))),
      h('button', { type: 'button', class: 'small', onclick: close, autofocus: true }, 'Close'),
    ),
    h(
      'div',
      { class: 'inspector-body' },
      verdict,
      facts(
        ['From', app.agent(m.from, m.name)],
        ['To', app.agent(m.to)],
        ['Sent', time(m.ts), ' ', h('span', { class: 'quiet' }, 'by the sender’s clock')],
        [
          'Thread',
          m.threadId &&
            h(
              'a',
              { href: m.thread ? threadHref(m.thread.id, m.thread.client) : threadHref(m.threadId) },
              h('code', null, visible(m.threadId, 128)),
            ),
        ],
        ['Says', foreign(summary(m), 400)],
      ),
      h('h3', null, 'What was checked'),
      checked,
      h('h3', null, 'Payload'),
      payload(m),
      h(
        'div',
        { class: 'row' },
        h('h3', null, 'Envelope'),
        copyButton(() => agora.canonicalText(m.envelope), 'Copy the canonical form'),
      ),
      json(m.envelope),
      app.proof(m),
      h('h3', null, 'Fetch it yourself'),
      m.threadId
        ? threadCommands(app.address, m.threadId, m.thread?.client)
        : command(`agora agents${relayFlag(app.address)} ${quoted(m.from)}`, 'agora'),
    ),
  );
  dialog.addEventListener('click', (e) => {
    if (e.target === dialog || e.target.closest('a')) close();
  });
  dialog.addEventListener('close', () => {
    app.model.removeEventListener('checked', say);
    dialog.remove();
  });
  document.body.append(dialog);
  dialog.showModal();
}

/** Returns the text of a deadline that counts down, and calls passed once when it is over. */
export function countdown(deadline, model, signal, passed) {
  const element = h('span', { role: 'timer', class: 'countdown', title: utcText(deadline) });
  const tell = () => {
    const left = (deadline - model.now()) / 1000;
    element.textContent = left > 0 ? `${span(left)} left` : `ended at ${clockText(deadline)}`;
    if (left > 0) return;
    clearInterval(timer);
    passed?.();
  };
  const timer = setInterval(tell, 1000);
  signal.addEventListener('abort', () => clearInterval(timer));
  tell();
  return element;
}
