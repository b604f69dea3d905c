// Runs this project's test vectors.
//   node vectors.mjs FOLDER
// Prints "file passed failed" for each file. The failures are printed to standard error.
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { files, runVectors } from '../../../sdk/js/test/vectors.js';

const folder = process.argv[2];
const names = (await readdir(folder)).filter((name) => name.endsWith('.json') && name !== 'protocol.json'); // it has tables
if (names.sort().join() !== files.toSorted().join()) throw new Error('the vector files are not those known here');
for (const [name, { passed, failures }] of Object.entries(await runVectors((name) => readFile(join(folder, name), 'utf8')))) {
  if (failures.length > 0) process.exitCode = 1;
  for (const failure of failures) console.error(`${name}: ${failure}`);
  console.log(name, passed, failures.length);
}
