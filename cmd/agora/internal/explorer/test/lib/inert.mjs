// Checks that what others wrote has stayed text.
import { widest } from './layout.mjs';

// Characters that reverse text, that cannot be seen, or that control a terminal.
const RAW = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069]/;

// Elements that the text of others could become. The page itself has none of them.
const FOREIGN = 'img,iframe,object,embed,style,base,marquee,video,audio,form[action],[srcdoc],' +
  'link:not(head > link),script:not(head > script)';

/** Returns what is wrong on the page: text of others that became an element, an attribute or a link; raw characters;
 *  Hebrew text whose direction can change that of its neighbours; a prototype that was changed; a page that is too
 *  wide. */
export async function findHarm(page) {
  const found = await page.evaluate(([raw, foreign]) => {
    const wrong = [], unsafe = new RegExp(raw), show = (e) => e.outerHTML.slice(0, 120);
    for (const e of document.querySelectorAll(foreign)) wrong.push(`element ${show(e)}`);
    for (const e of document.querySelectorAll('*')) {
      for (const { name, value } of e.attributes) {
        if (name.startsWith('on') || unsafe.test(value)) wrong.push(`attribute ${name} in ${show(e)}`);
      }
      if (typeof e.href === 'string' && new URL(e.href).origin !== location.origin) wrong.push(`link ${show(e)}`);
    }
    const isolates = (e) => /isolate|plaintext/.test(getComputedStyle(e).unicodeBidi)
      && !e.matches('main,dialog,section');
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node; (node = texts.nextNode());) {
      if (unsafe.test(node.data)) wrong.push(`raw characters in ${show(node.parentElement)}`);
      if (!node.data.includes('שלום') || node.parentElement.closest('textarea,pre')) continue;
      let e = node.parentElement;
      while (e && getComputedStyle(e).display.startsWith('inline') && !isolates(e)) e = e.parentElement;
      const alone = e && (isolates(e) || e.textContent === node.data);
      if (!alone) wrong.push(`not isolated: ${show(node.parentElement)}`);
    }
    if ({}.polluted !== undefined || [].polluted !== undefined) wrong.push('a prototype was changed');
    return wrong;
  }, [RAW.source, FOREIGN]);
  return [...found, ...await widest(page)];
}
