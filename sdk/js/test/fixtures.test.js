// Reads the files and the conversations that other versions of the three clients have made: testvectors/fixtures.
import assert from 'node:assert/strict';
import { mkdtempSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { gunzipSync } from 'node:zlib';
import { isSealed, open, verify } from '../agora.js';
import { FileCursor, loadKey } from '../node.js';

const folder = new URL('../../../testvectors/fixtures/', import.meta.url);
const entries = readdirSync(folder, { withFileTypes: true });
const versions = entries.filter((entry) => entry.isDirectory()).map((entry) => entry.name);
assert.ok(versions.length > 0);

for (const version of versions) {
  for (const language of ['go', 'js', 'python']) {
    test(`${version}: what the client in ${language} has made`, async () => {
      const recorded = JSON.parse(gunzipSync(readFileSync(new URL(`${version}/${language}.json.gz`, folder))));
      const place = mkdtempSync(join(tmpdir(), 'agora-'));
      for (const [name, text] of Object.entries(recorded.files)) {
        writeFileSync(join(place, name), text, { mode: 0o600 });
      }
      const client = await loadKey(join(place, `${language}-client.key`));
      await loadKey(join(place, `${language}-agent.key`));
      if (language !== 'go') {
        assert.match(await new FileCursor(join(place, `${language}-agent.cursor`)).load(), /^[0-9a-f]{8}-[0-9]+$/);
      }
      for (const events of [recorded.plain, recorded.sealed]) {
        for (const e of events) await verify(e);
        assert.deepEqual(events.map((e) => e.type), ['REQUEST', 'OFFER', 'ACCEPT', 'RESULT']);
        const result = events.at(-1);
        const { output } = isSealed(result) ? await open(result, client) : result.payload;
        assert.equal(output, `HELLO, ${language.toUpperCase()}`);
      }
    });
  }
}
