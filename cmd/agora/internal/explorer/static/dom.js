// Elements and texts of strangers. Text never becomes markup here: children are text nodes or elements.

const SVG = 'http://www.w3.org/2000/svg';

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (name === 'data') Object.assign(element.dataset, value);
    else element.setAttribute(name, value === true ? '' : value);
  }
  element.append(
    ...children.flat(Infinity).filter((child) => child !== undefined && child !== null && child !== false),
  );
  return element;
}

/** Creates an HTML element. props has attributes, data (an object) and listeners such as onclick. */
export const h = (name, props, ...children) => fill(document.createElement(name), props, children);

/** Creates an SVG element. */
export const svg = (name, props, ...children) => fill(document.createElementNS(SVG, name), props, children);

/** Replaces all children of an element. */
export function fillWith(element, ...children) {
  element.replaceChildren(
    ...children.flat(Infinity).filter((child) => child !== undefined && child !== null && child !== false),
  );
}

// Characters that change the direction of text, that cannot be seen, or that control a terminal.
const HIDDEN = new RegExp(
  '[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u061c\\u200b\\u200e\\u200f\\u2028-\\u202e' +
    '\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb\\u{e0000}-\\u{e007f}]',
  'gu',
);
const MARKS = /(\p{M}{3})\p{M}+/gu; // more marks on one letter than any language needs

function show(c) {
  const n = c.codePointAt(0);
  return n < 32 ? String.fromCodePoint(0x2400 + n) : `⟨${n.toString(16).toUpperCase().padStart(4, '0')}⟩`;
}

/** Returns a text of a stranger with at most max characters, in which hidden characters are visible. */
export function visible(text, max = 200) {
  const full = typeof text === 'string' ? text : (JSON.stringify(text) ?? '');
  let cut = full.slice(0, max);
  if (/[\ud800-\udbff]$/.test(cut)) cut = cut.slice(0, -1);
  return cut.replace(HIDDEN, show).replace(MARKS, '$1') + (full.length > max ? '…' : '');
}

/** Returns an element with a text of a stranger. Its direction does not change that of the text around it. */
export const foreign = (text, max) => h('bdi', null, visible(text, max).replace(/\s+/g, ' '));

/** Calls a function at the next frame, at most once a frame. */
export function eachFrame(act) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      act();
    });
  };
}

let toastTimer;
/** Shows a short note, which screen readers read out. */
export function toast(text) {
  const element = document.getElementById('toast');
  element.textContent = text;
  element.dataset.shown = '';
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => delete element.dataset.shown, 4000);
}

/** Copies text. Pages without a secure context have no clipboard, so they use a selection. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = h('textarea', { class: 'hidden-text', readonly: true });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand('copy');
    area.remove();
  }
  toast('Copied');
}

const OFFERED = 60_000; // how long the browser may take until it has written a file, in ms

/** Saves text as a file with this name. */
export function download(name, text) {
  const href = URL.createObjectURL(new Blob([text], { type: 'text/plain' }));
  h('a', { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), OFFERED);
}

/**
 * Makes elements the children of container, in this order. It moves no child that is at its place already: a child that
 * is moved loses the focus, and a click on it may get lost.
 */
export function arrange(container, elements) {
  const wanted = new Set(elements);
  for (const child of [...container.children]) if (!wanted.has(child)) child.remove();
  elements.forEach((element, i) => {
    if (container.children[i] !== element) container.insertBefore(element, container.children[i] ?? null);
  });
}

/** Calls a function soon, but at most once in each ms milliseconds, until the signal is aborted. */
export function atMostEvery(ms, act, signal) {
  let timer;
  let last = -Infinity;
  signal.addEventListener('abort', () => clearTimeout(timer));
  return () => {
    timer ??= setTimeout(
      () => {
        timer = undefined;
        last = performance.now();
        if (!signal.aborted) act();
      },
      Math.max(0, last + ms - performance.now()),
    );
  };
}
