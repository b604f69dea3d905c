// The chain of a thread: which message answers which one, by their hashes, computed in this browser. With it, a deal is
// proved by its messages alone.
import { canonicalText } from './agora.js';
import { contentHash, verifyChain } from './chain.js';
import { icon, MARKS, threadHref, typeBadge, verdict } from './parts.js';
import { plural, priceText } from './text.js';
import { download, fillWith, foreign, h, visible } from './dom.js';

const SHOWN = 12; // links; if there are more, the offers that were not accepted are folded
const ANSWERS = {
  OFFER: ['REQUEST'],
  ACCEPT: ['OFFER'],
  RESULT: ['ACCEPT'],
  CANCEL: ['ACCEPT', 'REQUEST'],
  ERROR: ['ACCEPT', 'REQUEST'],
};

const isObject = (v) => typeof v === 'object' && v !== null;
const metaOf = (m) => (isObject(m?.envelope?.meta) ? m.envelope.meta : {});
const short = (hash) => h('code', { class: 'hash', title: visible(hash, 64) }, `${visible(hash, 8)}`);
const hashOf = (m) => (m.hash ??= contentHash(m.envelope));
const fileName = (id) => `${id.replace(/[^\w.-]/g, '_')}.deal.json`;

/** Says which relay decides a thread; undefined: its REQUEST does not say. */
export function decider(request, about) {
  const { home } = metaOf(request);
  if (typeof home?.url !== 'string' || typeof home.did !== 'string') return undefined;
  const host = foreign(home.url.replace(/^https:\/\//, ''), 200);
  const other = about && home.did !== about.did;
  return ['decided by ', h('b', { title: visible(home.did) }, host), other && ', not by this relay'];
}

/** Says what a REQUEST continues: the first REQUEST of its job, with a link if the page knows it. */
export function continued(request, model) {
  const { continues } = metaOf(request);
  if (typeof continues !== 'string') return undefined;
  const line = h('span', null, short(continues), h('span', { class: 'quiet' }, ' the first request of this job'));
  const known = [...model.messages.values()].filter((m) => m.type === 'REQUEST' && m.from === request.from);
  const find = async () => {
    for (const m of known) {
      await model.checked(m);
      if (m.status !== 'true' || (await hashOf(m)) !== continues) continue;
      line.firstChild.replaceWith(h('a', { href: threadHref(m.threadId, m.from) }, short(continues)));
    }
  };
  find().catch(() => undefined); // without WebCrypto there is no hash, and no link
  return line;
}

/** Returns the card with the chain of a thread; undefined: its messages name no others. gone: the relay does not show
 *  all messages of the thread any more. */
export async function chainCard(request, messages, gone, app) {
  const { model } = app;
  const { home } = metaOf(request);
  const answers = messages.filter((m) => ANSWERS[m.type] && m.from !== model.about?.did);
  if (!home && !answers.some((m) => metaOf(m).re)) return undefined;
  await Promise.all(messages.map((m) => model.checked(m)));
  if (request.status !== 'true') return undefined; // its home says nothing
  const known = new Map();
  for (const m of messages) {
    if (m.status === 'true') known.set(await hashOf(m), m);
  }
  const links = answers.filter((m) => home || metaOf(m).re).map((m) => linkOf(m, home, known, gone));
  const accept = links.find(({ m, status }) => m.type === 'ACCEPT' && status === 'true');
  const isExtra = ({ m }) => links.length > SHOWN && m.type === 'OFFER' && m !== accept?.answered;
  const rows = (some) =>
    h(
      'ol',
      { class: 'chain' },
      some.map((link) => row(link, app)),
    );
  const folded = links.filter(isExtra);
  return h(
    'div',
    { class: 'card chain-card' },
    h('h2', null, 'Chain'),
    h(
      'p',
      { class: 'quiet' },
      'Each message names by its hash the one that it answers. This browser has computed the hashes.',
    ),
    links.length === 0 && h('p', { class: 'quiet' }, 'Nobody has answered yet.'),
    rows(links.filter((link) => !isExtra(link))),
    folded.length > 0 && h('details', null, h('summary', null, plural(folded.length, 'other offer')), rows(folded)),
    accept && (await proved(request, accept, links)),
  );
}

// Whether a message answers one of the known ones (RELAYS R-6).
function linkOf(m, home, known, gone) {
  const { re, home: own } = metaOf(m);
  const answered = known.get(re);
  const link = (status, words) => ({ m, re, answered, status, words });
  if (m.status !== 'true') return link(m.status, m.status === 'false' ? 'is not what its sender signed' : m.problem);
  const isAtHome = canonicalText(own ?? null) === canonicalText(home ?? null);
  if (!isAtHome) return link('false', 'names another home than the request');
  if (typeof re !== 'string') return link('false', 'does not say what it answers');
  if (!answered) {
    if (gone) return link('unknown', 'answers a message that this relay does not show any more');
    return link('false', 'answers a message that is not in this thread');
  }
  if (ANSWERS[m.type].includes(answered.type)) return link('true', 'answers');
  return link('false', `must not answer ${answered.type === 'OFFER' ? 'an' : 'a'}`);
}

function row({ m, re, answered, status, words }, app) {
  return h(
    'li',
    { data: { link: status, of: visible(m.id, 128) } },
    icon(MARKS[status][0]),
    h(
      'div',
      { class: 'row' },
      h('span', { class: 'hidden-text' }, { true: 'Right: ', false: 'Wrong: ', unknown: 'Unknown: ' }[status]),
      typeBadge(m.type),
      app.agent(m.from, m.name),
      h('span', { class: 'row' }, visible(words, 200), answered && [' ', typeBadge(answered.type), ' ', short(re)]),
    ),
  );
}

// Says whether the messages prove the deal, and gives them as a file.
async function proved(request, { m: accept, answered: offer }, links) {
  const isResult = ({ m, status, answered }) => m.type === 'RESULT' && status === 'true' && answered === accept;
  const result = links.find(isResult)?.m;
  const chain = [request, offer, accept, result].filter(Boolean).map((m) => m.envelope);
  let deal;
  try {
    deal = await verifyChain(chain);
  } catch (err) {
    return verdict('false', 'These messages prove no deal', err.message);
  }
  const price = priceText(deal.price);
  const parts = ['what was asked', price ? `the price, ${price}` : 'the offer', 'who was chosen'];
  if (result) parts.push('what was delivered');
  const onclick = () => download(fileName(request.id), canonicalText(chain));
  return [
    verdict('true', 'These messages prove the deal without any relay', `They say ${parts.join('; ')}.`),
    h(
      'p',
      { class: 'row' },
      h('button', { type: 'button', class: 'small', onclick }, 'Download the deal'),
      h('span', { class: 'quiet' }, 'Check it offline with ', h('code', null, 'agora verify FILE')),
    ),
  ];
}
