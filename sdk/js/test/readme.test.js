// The programs of the README are correct TypeScript, in strict mode.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import ts from 'typescript';

const folder = fileURLToPath(new URL('.', import.meta.url));
const readme = readFileSync(new URL('../README.md', import.meta.url), 'utf8');
const blocks = [...readme.matchAll(/^```js\n([^]*?)^```/gm)].map(([, text]) => text);
const programs = blocks.filter((text) => /^import /m.test(text));

// What the programs use of Node; the package itself needs no types of Node.
const NODE = `declare module 'node:fs/promises' {
  export function readFile(path: string, encoding: string): Promise<string>;
  export function writeFile(path: string, text: string): Promise<void>;
}`;

test('the programs of the README pass tsc --strict', () => {
  const options = { strict: true, noEmit: true, skipLibCheck: true, types: [], target: ts.ScriptTarget.ES2022,
    lib: ['lib.es2022.d.ts', 'lib.dom.d.ts'], module: ts.ModuleKind.NodeNext,
    moduleResolution: ts.ModuleResolutionKind.NodeNext };
  const files = new Map(programs.map((text, i) => [`${folder}readme${i}.ts`, text]));
  files.set(`${folder}readme.node.d.ts`, NODE);
  const host = ts.createCompilerHost(options), { fileExists, readFile, getSourceFile } = host;
  host.fileExists = (name) => files.has(name) || fileExists(name);
  host.readFile = (name) => files.get(name) ?? readFile(name);
  host.getSourceFile = (name, ...args) => files.has(name)
    ? ts.createSourceFile(name, files.get(name), options.target) : getSourceFile.call(host, name, ...args);
  const found = ts.getPreEmitDiagnostics(ts.createProgram([...files.keys()], options, host));
  assert.ok(programs.length >= 5, `${programs.length} programs`);
  assert.deepEqual(found.map(({ file, start, messageText }) =>
    `${file?.fileName.slice(folder.length)} ${start}: ${ts.flattenDiagnosticMessageText(messageText, '\n')}`), []);
});
