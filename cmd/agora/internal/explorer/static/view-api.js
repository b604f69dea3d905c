// The API of the relay, as its OpenAPI document describes it. What the document says is shown as text only.
import { command, facts, json, problem } from './parts.js';
import { fillWith, h, visible } from './dom.js';
import { quoted } from './text.js';

const METHODS = ['get', 'head', 'post', 'put', 'patch', 'delete'];
const MAX_DEPTH = 5; // of a schema
const MAX_TEXT = 4000;

export function api(app, _params, signal, wanted) {
  const content = h('div', null, h('p', { class: 'loading' }, 'Loading'));
  const view = h('section', { class: 'api' }, h('h1', { tabindex: '-1' }, 'API'), content);

  async function read() {
    try {
      await app.configured; // the commands have the relay's address
      const response = await fetch(`${app.base}/openapi.json`, { signal });
      if (!response.ok) throw new Error(`The relay does not describe its API: status ${response.status}`);
      fillWith(content, reference(await response.json(), app, wanted));
      const open = content.querySelector('details[open]');
      open?.scrollIntoView();
      open?.querySelector('summary').focus({ preventScroll: true });
    } catch (err) {
      if (!signal.aborted) fillWith(content, problem(err));
    }
  }

  read();
  return { title: 'API', element: view };
}

/** Returns what a $ref leads to. Members beside the $ref go before those of the target. */
function follow(document, value) {
  for (let n = 0; typeof value?.$ref === 'string' && n < 10; n++) {
    const { $ref, ...rest } = value;
    const names = $ref.slice(2).split('/').map((name) => name.replaceAll('~1', '/').replaceAll('~0', '~'));
    value = { ...names.reduce((at, name) => (Object.hasOwn(at ?? {}, name) ? at[name] : undefined), document), ...rest };
  }
  return value ?? {};
}

/** Returns text with `code`, paragraphs and lists as elements. */
function prose(text) {
  const inline = (line) =>
    visible(line, MAX_TEXT).split('`').map((part, i) => (i % 2 === 1 ? h('code', null, part) : part));
  return String(text ?? '').split('\n\n').map((block) =>
    block.startsWith('- ')
      ? h('ul', { class: 'api-list' }, block.split('\n').map((line) => h('li', null, inline(line.slice(2)))))
      : h('p', null, inline(block)),
  );
}

function reference(document, { address, base }, wanted) {
  const groups = new Map((document.tags ?? []).map((tag) => [tag.name, { tag, operations: [] }]));
  for (const [path, item] of Object.entries(document.paths ?? {})) {
    for (const method of METHODS.filter((m) => item[m])) {
      const parameters = [...(item.parameters ?? []), ...(item[method].parameters ?? [])];
      const operation = { ...item[method], path, method, parameters: parameters.map((p) => follow(document, p)) };
      groups.get(operation.tags?.[0])?.operations.push(operation);
    }
  }
  const shown = [...groups.values()].filter((g) => g.operations.length > 0);
  return [
    prose(document.info?.description),
    h('p', { class: 'api-links' },
      h('a', { href: `${base}/openapi.json` }, 'The OpenAPI document'),
      h('a', { href: `${base}/llms.txt` }, 'A guide for language models')),
    shown.map(({ tag, operations }) =>
      h('section', { class: 'card api-group' },
        h('h2', null, visible(tag.name, 80)),
        prose(tag.description),
        operations.map((o) => entry(document, address, o, wanted)))),
  ];
}

/** Returns one operation. Its details are made when they are opened. */
function entry(document, address, o, wanted) {
  const body = h('div', { class: 'api-details' });
  const element = h('details', { data: { operation: visible(o.operationId, 80) }, open: o.operationId === wanted },
    h('summary', null,
      h('span', { class: 'badge', data: { method: o.method } }, o.method.toUpperCase()),
      h('code', null, visible(o.path, 200).replaceAll('/', '/\u200b')),
      h('span', { class: 'quiet' }, visible(o.summary ?? '', 200))),
    body);
  const fill = () => body.childElementCount === 0 && fillWith(body, details(document, address, o));
  element.addEventListener('toggle', () => element.open && fill());
  if (element.open) fill();
  return element;
}

function details(document, address, o) {
  const media = follow(document, o.requestBody).content?.['application/json'];
  const sent = media && example(document, media);
  return [
    prose(o.description),
    facts(['Key', keys(document, o)], ['operationId', h('code', null, visible(o.operationId, 80))]),
    o.parameters.length > 0 && [
      h('h3', null, 'Parameters'),
      h('ul', { class: 'api-fields' }, o.parameters.map((p) =>
        field(document, p.name, { ...follow(document, p.schema), description: p.description }, p.required, p.in))),
    ],
    media && [h('h3', null, 'Body'), schema(document, media.schema)],
    h('h3', null, 'With curl'),
    command(curl(address, o, sent)),
    h('h3', null, 'Answers'),
    Object.entries(o.responses ?? {}).map(([status, r]) => answer(document, status, follow(document, r))),
  ];
}

/** Returns which keys an operation takes. */
function keys(document, o) {
  if (!o.security) return 'none';
  return o.security
    .map((one) => Object.keys(one).map((name) => visible(name, 40)).join(' and ') || 'none')
    .sort((a, b) => (a === 'none') - (b === 'none'))
    .join(', or ');
}

function answer(document, status, r) {
  const media = Object.entries(r.content ?? {});
  const headers = Object.entries(r.headers ?? {});
  return h('div', { class: 'api-answer' },
    h('div', { class: 'row' },
      h('span', { class: 'badge', data: { status: status[0] } }, visible(status, 3)),
      media.length > 0 && h('span', { class: 'quiet' }, media.map(([kind]) => visible(kind, 60)).join(', '))),
    prose(r.description),
    headers.length > 0 && h('ul', { class: 'api-fields' }, headers.map(([name, value]) => {
      const { required, description, ...rest } = follow(document, value);
      return field(document, name, { ...follow(document, rest.schema), description }, required, 'header');
    })),
    media.filter(([kind]) => kind === 'application/json').map(([, m]) =>
      h('details', null, h('summary', null, 'Members'),
        schema(document, m.schema),
        example(document, m) !== undefined && [h('h4', null, 'Example'), json(example(document, m))])));
}

/** Returns the example of a body; undefined: it has none. */
const example = (document, media) =>
  media.example ?? follow(document, Object.values(media.examples ?? {})[0]).value;

/** Returns a schema as a list of members. */
function schema(document, s, depth = 0) {
  s = follow(document, s);
  const of = s.type === 'array' || s.items ? follow(document, s.items) : s;
  const members = Object.entries(of.properties ?? {});
  const choices = (of.oneOf ?? of.anyOf ?? []).filter((c) => c.properties || c.$ref);
  if (depth >= MAX_DEPTH) return undefined;
  return [
    depth === 0 && s.description && prose(s.description),
    depth === 0 && members.length === 0 && choices.length === 0 && h('p', { class: 'quiet' }, kind(document, s)),
    members.length > 0 && h('ul', { class: 'api-fields' }, members.map(([name, value]) =>
      field(document, name, value, of.required?.includes(name), undefined, depth + 1))),
    choices.map((c, i) => [
      h('p', { class: 'quiet' }, i === 0 ? 'One of these:' : 'Or:'), schema(document, c, depth + 1)]),
  ];
}

/** Returns the type of a schema in words. */
function kind(document, s) {
  s = follow(document, s);
  if (s.const !== undefined) return visible(JSON.stringify(s.const), 60);
  if (s.enum) return s.enum.map((v) => visible(JSON.stringify(v), 60)).join(' ');
  const types = [s.type ?? (s.properties ? 'object' : s.anyOf ? s.anyOf.map((c) => kind(document, c)) : 'any')].flat();
  const name = types.join(' or ').replace('array', `list of ${s.items ? kind(document, s.items) : 'any'}`);
  const bounds = [
    s.format,
    [s.minimum !== undefined && `from ${s.minimum}`, s.maximum !== undefined && `to ${s.maximum}`]
      .filter(Boolean).join(' '),
    s.maxLength !== undefined && `at most ${s.maxLength} characters`,
    s.default !== undefined && `default ${JSON.stringify(s.default)}`,
  ];
  return visible([name, ...bounds.filter(Boolean)].join(', '), 400);
}

function field(document, name, s, required, where, depth = MAX_DEPTH) {
  const full = follow(document, s);
  return h('li', null,
    h('div', { class: 'row' },
      h('code', { class: 'api-name' }, visible(name, 80)),
      h('span', { class: 'quiet' }, kind(document, s)),
      where && h('span', { class: 'quiet' }, `in ${where}`),
      required && h('span', { class: 'api-required' }, 'required')),
    full.description && prose(full.description),
    schema(document, full, depth));
}

/** Returns the command that sends a request with the values of the examples. */
function curl(address, o, sent) {
  const value = (p) => String(p.example ?? p.schema?.example ?? `{${p.name}}`);
  const chosen = (p) => p.required || p.example !== undefined;
  let path = o.path;
  const query = [];
  for (const p of o.parameters) {
    if (p.in === 'path') path = path.replace(`{${p.name}}`, () => value(p));
    if (p.in === 'query' && chosen(p)) query.push(`${p.name}=${value(p)}`);
  }
  const method = o.method === 'head' ? ['-I'] : o.method === 'get' || (o.method === 'post' && sent) ? []
    : ['-X', o.method.toUpperCase()];
  const scheme = (o.security ?? []).flatMap(Object.keys)[0];
  const needsKey = scheme && !o.security.some((one) => Object.keys(one).length === 0);
  return ['curl', ...method,
    needsKey && `-H 'Authorization: ${['signedCall', 'signedRead'].includes(scheme) ? 'Agora TOKEN' : 'Bearer KEY'}'`,
    sent !== undefined && `-d ${quoted(JSON.stringify(sent))}`,
    quoted(`${address}${path}${query.length > 0 ? `?${query.join('&')}` : ''}`)].filter(Boolean).join(' ');
}
