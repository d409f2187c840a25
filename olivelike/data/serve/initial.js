// Picture to picture: the initial picture, and what was painted over it: a mask, colours, more room around it.

import { paintOver } from "./canvas.js";
import { $, newest, on, onFiles, onFilled } from "./dom.js";
import { noteSize, ownArea, setField } from "./form.js";
import { t } from "./language.js";
import { announce, notice, problem, shownAt } from "./notices.js";
import { ask } from "./server.js";
import { asPng, canvasOf } from "./strokes.js";

let picture = null;
/** What the canvas made of it: steps, and its mask and picture, where there are some. */
let painted = null;
const choosing = newest();

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

/** What the order has of this. */
export async function initialFields() {
  if (!picture) return {};
  const found = { init_image: await idOf(painted?.picture ?? picture) };
  if (painted?.mask) found.mask = await idOf(painted.mask);
  return found;
}

const idOf = async (one) => (one.id ??= (await upload(one.blob)).id);

export const hasPicture = () => picture !== null;
export const hasMask = () => Boolean(painted?.mask);

/** Start from `blob`; `sent` is what the server answered if it has it already, `own` says that it was drawn here. */
export async function setInitial(blob, { sent, name = t`the picture`, own = false } = {}) {
  problem($("init-problem"), "");
  const isNewest = choosing();
  try {
    const { id, width, height } = sent ?? (await upload(blob));
    if (!isNewest()) return;
    lowerStrength();
    forgetPainted();
    if (picture) URL.revokeObjectURL(picture.url);
    picture = { id, width, height, blob, url: URL.createObjectURL(blob) };
    fitSize(width, height, own);
    $("fold-init").open = true;
    announce(t`Picture to picture starts from ${name}, ${width} by ${height} pixels.`);
  } catch (error) {
    $("fold-init").open = true;
    problem($("init-problem"), error);
  }
  show();
}

/** How many times the area that a model was trained on a picture of somebody may have: more takes long, and repeats what is shown. */
const LARGE = 4;

/** Set width and height that the model takes, near those of a picture; one that is much too large lends its shape alone, unless it is drawn `whole`. */
export function fitSize(width, height, whole = false) {
  const [across, down] = ["width", "height"].map((id) => $(id));
  const most = Math.min(Number(across.max) || 2048, Number(down.max) || 2048);
  const times = (width * height) / ownArea();
  const shrunk = !whole && times > LARGE;
  const share = Math.min(1, most / Math.max(width, height), shrunk ? 1 / Math.sqrt(times) : 1);
  for (const [input, side] of [[across, width], [down, height]]) {
    const unit = Number(input.step) || 8;
    setField(input.id, Math.max(unit, Math.round((side * share) / unit) * unit));
  }
  if (shrunk) noteSize(t`${width}×${height} is ${Math.round(times)} times the area that this model was trained on, so the picture is drawn smaller.`);
}

/** Leave the mask out; the canvas has its strokes, to be had back. */
function removeMask() {
  lowerStrength();
  painted.steps.push({ kind: "clear", layers: ["mask"] });
  painted.mask = null;
  show();
}

/** Whether the strength is 1 because a mask was painted. */
let raised = false;

function lowerStrength() {
  if (raised && $("strength").value === "1") setField("strength", $("strength").defaultValue);
  raised = false;
}

function forgetPainted() {
  if (painted?.picture) URL.revokeObjectURL(painted.picture.url);
  painted = null;
}

/** Let go of uploads that the server has no more. */
export function forgetInitial() {
  lowerStrength();
  noteSize("");
  forgetPainted();
  if (picture) URL.revokeObjectURL(picture.url);
  picture = null;
  show();
}

/** Paint over the initial picture: a mask, colours, or what is to be around it. */
export async function openCanvas(tool = "mask") {
  if (!picture) return;
  const drawn = await paintOver(picture, { steps: painted?.steps, tool });
  if (drawn) takePainted(drawn);
}

function takePainted(drawn) {
  const before = painted;
  forgetPainted();
  painted = drawn;
  if (drawn.picture) drawn.picture.url = URL.createObjectURL(drawn.picture.blob);
  if (drawn.reframed) fitSize(drawn.width, drawn.height, true);
  setStrength(before);
  show();
}

/** What is masked is drawn anew, as the server's own default has it; colours would be lost by that. */
function setStrength(before) {
  const { mask, picture: made } = painted;
  const [now, plain] = [$("strength").value, $("strength").defaultValue];
  const wanted = made?.coloured ? (now === "1" ? plain : now) : mask && !before?.mask && now === plain ? "1" : now;
  if (wanted === now) return;
  setField("strength", wanted);
  raised = wanted === "1";
  notice(made?.coloured ? t`Denoising strength is ${wanted}: at 1 nothing of the colours would be left.` : t`Denoising strength is 1: what is masked is drawn anew.`);
}

/** A picture of one colour and the form's size, to be drawn on. */
export async function emptySheet(colour) {
  const [width, height] = ["width", "height"].map((id) => Number($(id).value) || 512);
  const sheet = canvasOf(width, height);
  const context = sheet.getContext("2d");
  context.fillStyle = colour;
  context.fillRect(0, 0, width, height);
  const blob = await asPng(sheet);
  return { width, height, blob, url: URL.createObjectURL(blob) };
}

async function drawInitial() {
  const sheet = await emptySheet("#fff");
  const drawn = await paintOver(sheet, { tool: "colour" });
  URL.revokeObjectURL(sheet.url);
  if (!drawn) return;
  // It is sent when it is drawn from: who generates now, generates with what is on it.
  setInitial(sheet.blob, { sent: { width: sheet.width, height: sheet.height }, name: t`an empty sheet` });
  takePainted(drawn);
}

function show() {
  const shown = painted?.picture ?? picture;
  $("init-picture").hidden = !shown;
  if (shown) $("init-picture").src = shown.url;
  $("init-empty").hidden = Boolean(picture);
  $("init-badge").textContent = picture ? (hasMask() ? t`with mask` : t`on`) : "";
  $("mask-open").disabled = $("init-remove").disabled = !picture;
  $("mask-remove").disabled = !hasMask();
  const canvas = $("init-mask");
  canvas.hidden = !hasMask();
  if (hasMask()) {
    Object.assign(canvas, { width: painted.width, height: painted.height });
    canvas.getContext("2d").drawImage(painted.mask.canvas, 0, 0);
  }
}

export function startInitial() {
  onFiles("init-file", ([file]) => setInitial(file, { name: file.name }));
  on("init-remove", "click", forgetInitial);
  on("init-draw", "click", () => drawInitial().catch(shownAt("init-problem")));
  on("mask-open", "click", () => openCanvas());
  on("mask-remove", "click", removeMask);
  const tell = () => document.activeElement === $("strength-shown") || ($("strength-shown").value = $("strength").value);
  on("strength-shown", "input", () => setField("strength", $("strength-shown").value));
  on("strength-shown", "change", () => ($("strength-shown").value = $("strength").value));
  on("strength", "input", tell);
  onFilled(tell);
}
