// The pipeline's folder beside the page: its manifest, and files that are checked against it.

import { bytesKept, findKept, forgetKept, forgetOthers, keep } from "./kept.js";

const KIND = "web/2";
const RUNTIME = new URL("ort/", import.meta.url).href;

/** What is wrong with the folder; the message names the file. */
export class FolderError extends Error {}

/** The device or browser has no room; the message says for what. */
export class MemoryError extends Error {}

/** Open the folder at a URL that ends with a slash; what the browser keeps of an earlier one is dropped. */
export async function openFolder(url, signal) {
  const manifest = parse("manifest.json", await (await get(url, "manifest.json", signal)).text());
  if (manifest.kind !== KIND) throw new FolderError(`manifest.json is of kind “${manifest.kind}”; this page reads ${KIND}.`);
  const names = Object.keys(manifest.files ?? {});
  if (names.some((name) => !isPlain(name))) throw new FolderError("manifest.json names files outside of its folder.");
  const at = (place, files) => Object.fromEntries(Object.entries(files).map(([name, facts]) => [name, { ...facts, name, address: place + name }]));
  const [files, runtime] = [at(url, manifest.files), at(RUNTIME, manifest.runtime)];
  await forgetOthers([...Object.values(files), ...Object.values(runtime)]);
  const folder = {
    /** What the manifest says beside files. */
    ...manifest,
    names,
    /** Return how many bytes a picture takes, with these files of onnxruntime-web, and how many of them are kept. */
    async download(binaries) {
      const all = [...Object.values(files), ...binaries.map((name) => runtime[name])];
      return { total: all.reduce((sum, { size }) => sum + size, 0), kept: await bytesKept(all) };
    },
    /** Tell how many bytes a file has. */
    bytesOf: (name) => files[name].size,
    /** Return the bytes of a file; `onBytes` is told how many more have come, and whether they were kept. */
    read: (name, onBytes, until) => read(files[name] ?? { name }, onBytes, until),
    /** Return the bytes of a file of onnxruntime-web. */
    readRuntime: (name, onBytes, until) => read(runtime[name], onBytes, until),
    /** Return what a JSON file says. */
    json: async (name, until) => parse(name, new TextDecoder().decode(await folder.read(name, () => {}, until))),
  };
  return folder;
}

function isPlain(name) {
  return name.split("/").every((part) => /^[^\\:?#%]+$/.test(part) && part !== "." && part !== "..");
}

async function get(url, name, signal) {
  let answer;
  try {
    answer = await fetch(url + name, { signal, credentials: "omit" });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new FolderError(`${name} can’t be fetched; is the server still there?`);
  }
  if (!answer.ok) throw new FolderError(`${name} is missing (the server answers ${answer.status}); export the page again.`);
  return answer;
}

async function read(file, onBytes, signal) {
  const { name, address } = file;
  if (!address) throw new FolderError(`${name} is not in the manifest; convert the pipeline again with “--layout web”.`);
  const kept = await findKept(file);
  if (kept) {
    let come = 0;
    const onKept = (more) => {
      come += more;
      onBytes(more, true);
    };
    try {
      return await checked(file, kept, onKept);
    } catch (error) {
      // A browser that lost some of it may have it anew.
      if (!(error instanceof FolderError)) throw error;
      onBytes(-come, true);
      await forgetKept(file);
    }
  }
  const bytes = await checked(file, await get(address.slice(0, -name.length), name, signal), (more) => onBytes(more, false));
  await keep(file, bytes);
  return bytes;
}

/** Return the bytes of an answer, if they are those of the file. */
async function checked({ name, size, sha256 }, answer, onBytes) {
  const damaged = (why) => new FolderError(`${name} is damaged: ${why}. Copy it again, or export the page again.`);
  const bytes = allocate(size, name);
  let filled = 0;
  const reader = answer.body.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    if (filled + value.length > bytes.length) {
      await reader.cancel();
      throw damaged(`it has more than ${bytes.length} bytes`);
    }
    bytes.set(value, filled);
    filled += value.length;
    onBytes(value.length);
  }
  if (filled < bytes.length) throw damaged(`it has ${filled} of ${bytes.length} bytes`);
  // Browsers offer digests to pages from https and from this machine alone.
  if (crypto.subtle && hex(await crypto.subtle.digest("SHA-256", bytes)) !== sha256) {
    throw damaged("its bytes are not those that the manifest has the SHA-256 of");
  }
  return bytes;
}

function allocate(size, name) {
  try {
    return new Uint8Array(size);
  } catch {
    throw new MemoryError(`${name} needs ${(size / 1e6).toFixed(0)} MB at once`);
  }
}

function hex(buffer) {
  return [...new Uint8Array(buffer)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

function parse(name, text) {
  try {
    const content = JSON.parse(text);
    if (content === null || typeof content !== "object") throw new Error("no object");
    return content;
  } catch {
    throw new FolderError(`${name} is no JSON; export the page again.`);
  }
}
