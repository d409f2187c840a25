// Pictures that somebody gave to the page: sent once, shown from here or from the server, let go of, and found again.

import { t } from "./language.js";
import { sentence } from "./notices.js";
import { ask, path, query } from "./server.js";

let mostBytes = Infinity;

/** Say how large a file the server takes. */
export const limitUploads = (bytes) => (mostBytes = bytes ?? Infinity);

/** Refuse a file that is too large: the server would hang up in the middle, which a browser can't tell from a lost connection. */
export function checkSize(blob) {
  if (blob.size > mostBytes) throw new Error(t`This file has ${Math.ceil(blob.size / 1e6)} MB; the server takes ${Math.floor(mostBytes / 1e6)} MB.`);
}

/** Send a file or blob; the answer has its id, size and recipe. */
export async function upload(blob) {
  checkSize(blob);
  return ask("/api/uploads", { method: "POST", body: blob });
}

/** A picture of a file that was chosen or drawn here; `sent` is what the server answered, or will once it is sent. */
export const picked = (blob, name, { id, width, height } = {}) => ({ id, name, width, height, blob, url: URL.createObjectURL(blob) });

/** Send a file and return the picture; an error names it. */
export async function give(blob, name) {
  try {
    return picked(blob, name, await upload(blob));
  } catch (error) {
    error.message = `${name}: ${sentence(error.message.replace(/^the upload: /, ""))}`;
    throw error;
  }
}

/** A picture of the gallery, which the server keeps as one that was sent; one that was sent is `given`. */
export async function fromGallery({ id: picture, url, given }, name) {
  if (given) return given;
  const { id, width, height } = await ask(path("pictures", picture, "upload"), { method: "POST" });
  return { id, name, width, height, url };
}

/** The id of a picture at the server, sent now where it was not. */
export const idOf = async (one) => (one.id ??= (await upload(one.blob)).id);

/** What a preprocessor makes of a picture at the server, or the picture itself. */
export const madeOf = (id, how = { preprocessor: "none" }) => query(`${path("uploads", id)}/preprocessed`, how);

/** A picture that is kept in words, as the server has it; `null` for one that was never sent, or is none. */
export const recalled = (kept) => (kept?.id ? { ...kept, url: madeOf(kept.id) } : null);

/** What is kept of a picture in words. */
export const inWords = (one) => (one?.id ? { id: one.id, name: one.name, width: one.width, height: one.height } : null);

/** Let go of a picture that is shown no more. */
export function letGo(one) {
  if (one?.url.startsWith("blob:")) URL.revokeObjectURL(one.url);
}

/** Whether the server says that it has a picture no more: one that does not answer may have it. */
export const isGone = ({ id }) => stillThere([id]).then((there) => !there.has(id), () => false);

/** Those of some uploads that the server still has, or has again from the gallery: their sizes by their ids. */
export async function stillThere(ids) {
  if (!ids.length) return new Map();
  const found = await ask("/api/uploads/find", { method: "POST", json: { ids } });
  return new Map(found.map((one) => [one.id, one]));
}
