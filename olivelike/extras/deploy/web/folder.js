// The pipeline's folder beside the page: its manifest, and files that are checked against it.

const KIND = "web/2";

/** What is wrong with the folder; the message names the file. */
export class FolderError extends Error {}

/** The device or browser has no room; the message says for what. */
export class MemoryError extends Error {}

/** Open the folder at a URL that ends with a slash. */
export async function openFolder(url, signal) {
  const manifest = parse("manifest.json", await (await get(url, "manifest.json", signal)).text());
  if (manifest.kind !== KIND) throw new FolderError(`manifest.json is of kind “${manifest.kind}”; this page reads ${KIND}.`);
  const names = Object.keys(manifest.files ?? {});
  if (names.some((name) => !isPlain(name))) throw new FolderError("manifest.json names files outside of its folder.");
  const folder = {
    size: manifest.size,
    /** Bytes of all that a picture takes, onnxruntime-web for a device included. */
    download: (device) => Object.values(manifest.files).reduce((sum, { size }) => sum + size, manifest.runtime[device]),
    /** Names of samplers, what the empty one is known as, and those whose noise `generate` draws otherwise. */
    samplers: manifest.samplers,
    fusedAttention: manifest.fused_attention === true,
    names,
    /** Tell how many bytes a file has. */
    bytesOf: (name) => manifest.files[name].size,
    /** Return the bytes of a file; `onBytes` is told how many more have come. */
    read: (name, onBytes, until) => read(url, name, manifest.files[name], onBytes, until),
    /** Return what a JSON file says. */
    json: async (name, until) => parse(name, new TextDecoder().decode(await folder.read(name, () => {}, until))),
  };
  return folder;
}

function isPlain(name) {
  return name.split("/").every((part) => /^[^\\:?#%]+$/.test(part) && part !== "." && part !== "..");
}

/** Fetch a file; what goes wrong is told with its name. */
export async function get(url, name, signal) {
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

async function read(url, name, facts, onBytes, signal) {
  if (!facts) throw new FolderError(`${name} is not in the manifest; convert the pipeline again with “--layout web”.`);
  const answer = await get(url, name, signal);
  const damaged = (why) => new FolderError(`${name} is damaged: ${why}. Copy it again, or export the page again.`);
  const bytes = allocate(facts.size, name);
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
  if (crypto.subtle && hex(await crypto.subtle.digest("SHA-256", bytes)) !== facts.sha256) {
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
