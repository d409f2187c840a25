// Files that the browser keeps for the next visit, by address and digest: one that has changed is another one.

const NAME = `olivelike files ${new URL(".", import.meta.url).pathname}`;
const keyOf = ({ address, sha256 }) => `${address}?sha256=${sha256}`;

// Browsers keep files for pages from https and from this machine alone.
const opened = globalThis.caches ? caches.open(NAME).catch(() => null) : Promise.resolve(null);

/** Whether the browser keeps files for this page. */
export const keepsFiles = async () => (await opened) !== null;

/** Return what is kept of a file, as an answer to fetch; `undefined` if it is not. */
export const findKept = async (file) => (await opened)?.match(keyOf(file));

/** Keep the bytes of a file, if there is room. */
export async function keep(file, bytes) {
  await (await opened)?.put(keyOf(file), new Response(bytes)).catch(() => {});
}

export const forgetKept = async (file) => (await opened)?.delete(keyOf(file));

/** Return how many bytes of files are kept. */
export async function bytesKept(files) {
  const found = await Promise.all(files.map(findKept));
  return files.reduce((sum, { size }, place) => sum + (found[place] ? size : 0), 0);
}

/** Give back the room of what is kept, but for some files. */
export async function forgetOthers(files = []) {
  const cache = await opened;
  const wanted = new Set(files.map(keyOf));
  for (const { url } of (await cache?.keys()) ?? []) if (!wanted.has(url)) await cache.delete(url);
}
