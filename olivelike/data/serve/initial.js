// Picture to picture: the initial picture, and the mask that goes with it.

import { $, newest } from "./dom.js";
import { setField } from "./form.js";
import { paintMask } from "./mask.js";
import { announce, problem } from "./notices.js";
import { ask } from "./server.js";

let picture = null;
let mask = null;
const choosing = newest();

let mostBytes = Infinity;

/** Say how large a file the server takes. */
export const limitUploads = (bytes) => (mostBytes = bytes ?? Infinity);

/** Refuse a file that is too large: the server would hang up in the middle, which a browser can't tell from a lost connection. */
export function checkSize(blob) {
  if (blob.size > mostBytes) throw new Error(`This file has ${Math.ceil(blob.size / 1e6)} MB; the server takes ${Math.floor(mostBytes / 1e6)} MB.`);
}

/** Send a file or blob; the answer has its id, size and recipe. */
export async function upload(blob) {
  checkSize(blob);
  return ask("/api/uploads", { method: "POST", body: blob });
}

/** What the order has of this. */
export async function initialFields() {
  if (!picture) return {};
  const found = { init_image: picture.id };
  if (mask) {
    mask.id ??= (await upload(mask.blob)).id;
    found.mask = mask.id;
  }
  return found;
}

export const hasPicture = () => picture !== null;
export const hasMask = () => mask !== null;

/** Start from `blob`; `sent` is what the server answered if it has it already. */
export async function setInitial(blob, { sent, name = "the picture" } = {}) {
  problem($("init-problem"), "");
  const isNewest = choosing();
  try {
    const { id, width, height } = sent ?? (await upload(blob));
    if (!isNewest()) return;
    removeMask();
    if (picture) URL.revokeObjectURL(picture.url);
    picture = { id, width, height, blob, url: URL.createObjectURL(blob) };
    $("init-picture").src = picture.url;
    fitSize(width, height);
    $("fold-init").open = true;
    announce(`Picture to picture starts from ${name}, ${width} by ${height} pixels.`);
  } catch (error) {
    $("fold-init").open = true;
    problem($("init-problem"), error);
  }
  show();
}

/** Set width and height that the model takes, near those of a picture. */
export function fitSize(width, height) {
  const [across, down] = ["width", "height"].map((id) => $(id));
  const most = Math.min(Number(across.max) || 2048, Number(down.max) || 2048, 1536);
  const share = Math.min(1, most / Math.max(width, height));
  for (const [input, side] of [[across, width], [down, height]]) {
    const unit = Number(input.step) || 8;
    setField(input.id, Math.max(unit, Math.round((side * share) / unit) * unit));
  }
}

function removeMask() {
  mask = null;
  show();
}

/** Let go of uploads that the server has no more. */
export function forgetInitial() {
  if (picture) URL.revokeObjectURL(picture.url);
  picture = mask = null;
  $("init-file").value = "";
  show();
}

/** Paint the mask that goes with the initial picture. */
export async function openMask() {
  if (!picture) return;
  const drawn = await paintMask(picture, mask?.strokes ?? []);
  if (!drawn) return;
  const first = !mask;
  mask = drawn.empty ? null : drawn;
  // With a mask the picture below it is drawn anew, as the server's own default has it.
  if (mask && first && $("strength").value === "0.8") setField("strength", 1);
  show();
}

function show() {
  $("init-picture").hidden = !picture;
  $("init-empty").hidden = Boolean(picture);
  $("init-badge").textContent = picture ? (mask ? "with mask" : "on") : "";
  $("mask-open").disabled = $("init-remove").disabled = !picture;
  $("mask-open").textContent = mask ? "Change the mask…" : "Paint a mask…";
  $("mask-remove").disabled = !mask;
  const canvas = $("init-mask");
  canvas.hidden = !mask;
  if (mask) {
    Object.assign(canvas, { width: mask.canvas.width, height: mask.canvas.height });
    canvas.getContext("2d").drawImage(mask.canvas, 0, 0);
  }
}

export function startInitial() {
  $("init-file").addEventListener("change", () => {
    const [file] = $("init-file").files;
    if (file) setInitial(file, { name: file.name });
  });
  $("init-remove").addEventListener("click", forgetInitial);
  $("mask-open").addEventListener("click", openMask);
  $("mask-remove").addEventListener("click", removeMask);
  const tell = () => ($("strength-shown").textContent = Number($("strength").value).toFixed(2));
  $("strength").addEventListener("input", tell);
  document.addEventListener("form-filled", tell);
}
