// Picture to picture: the initial picture, and what was painted over it: a mask, colours, more room around it.

import { drawnAnew, paintOver, repaint } from "./canvas.js";
import { $, newest, on, onFiles, onFilled, tellInput, within } from "./dom.js";
import { noteSize, ownArea, setField } from "./form.js";
import { give, idOf, inWords, isGone, letGo, picked, recalled } from "./given.js";
import { t } from "./language.js";
import { announce, notice, problem, shownAt } from "./notices.js";
import { batch } from "./picture_lists.js";
import { asPng, canvasOf } from "./strokes.js";

let picture = null;
/** What the canvas made of it: steps, and its mask and picture, where there are some. */
let painted = null;
const choosing = newest();

/** What the order has of this. */
export async function initialFields() {
  if (!picture || batch.all().length) return batch.all().length ? { fit: true } : {};
  const found = { init_image: await idOf(painted?.picture ?? picture) };
  if (painted?.mask) found.mask = await idOf(painted.mask);
  return found;
}

export const hasPicture = () => Boolean(picture || batch.all().length);
export const hasMask = () => Boolean(painted?.mask && !batch.all().length);

/** Start from the picture that comes; `own` says that it was drawn here. */
export async function setInitial(coming, own = false) {
  problem($("init-problem"), "");
  const isNewest = choosing();
  $("init-coming").textContent = t`Sending…`;
  try {
    const given = await coming;
    if (!isNewest()) return letGo(given);
    put(given);
    emptyBatch();
    lendSize(given.width, given.height, own);
    $("fold-init").open = true;
    announce(t`Picture to picture starts from ${given.name}, ${given.width} by ${given.height} pixels.`);
    tellInput($("form"));
  } catch (error) {
    $("fold-init").open = true;
    problem($("init-problem"), error);
  }
  if (isNewest()) $("init-coming").textContent = "";
  show();
}

/** Let the picture that came last be drawn: pictures of a batch would be in its place. */
function emptyBatch() {
  const kept = batch.state();
  if (!kept.length) return;
  const undo = () => {
    batch.fill(kept);
    tellInput($("form"));
  };
  batch.fill([]);
  notice(t`The batch is emptied: this picture is drawn alone.`, [[t`Undo`, undo]]);
}

/** Have this picture in place of the last one, and nothing painted over it; or none. */
function put(one) {
  lowerStrength();
  letGo(painted?.picture);
  letGo(picture);
  [picture, painted] = [one, null];
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
  const unit = Number(across.step) || 8;
  const near = (side) => [0, 1].map((more) => within(Math.floor((side * share) / unit) + more, 1, Math.floor(most / unit)) * unit);
  // The shape counts; of sizes that have it alike, the nearest.
  const [wide, high] = [Math.log(width * share), Math.log(height * share)];
  const far = ([x, y]) => Math.abs(Math.log(x / y) - wide + high) + Math.abs(Math.log(x * y) - wide - high) / 100;
  const [best] = near(width).flatMap((x) => near(height).map((y) => [x, y])).sort((one, other) => far(one) - far(other));
  setField("width", best[0]);
  setField("height", best[1]);
  if (shrunk) noteSize(t`${width}×${height} is ${Math.round(times)} times the area that this model was trained on, so the picture is drawn smaller.`);
}

const sizeNow = () => `${$("width").value}×${$("height").value}`;
/** The form's size before a picture set it, and what that set. */
let lent = null;

/** Set the form's size by the picture, until that is removed. */
function lendSize(...given) {
  const now = sizeNow();
  const before = lent?.set === now ? lent.before : now;
  fitSize(...given);
  lent = { before, set: sizeNow() };
}

/** Set the size that was there before the picture, where nobody changed it since. */
function giveSizeBack() {
  if (lent?.set === sizeNow()) for (const [place, side] of lent.before.split("×").entries()) setField(["width", "height"][place], side);
  lent = null;
}

/** Have the picture that comes as the mask, over what is painted; the canvas can take it back. */
export async function takeMask(coming) {
  problem($("init-problem"), "");
  const [isNewest, of] = [choosing(), picture];
  try {
    const { id, name, width, height } = await coming;
    const layers = ["mask"];
    const drawn = await repaint(of, [...(painted?.steps ?? []), { kind: "clear", layers }, { kind: "image", id, layers }]);
    if (!isNewest() || of !== picture) return;
    if (!drawn.mask) throw new Error(t`${name} has nothing white, so that nothing is masked.`);
    takePainted(drawn);
    if (width !== of.width || height !== of.height) notice(t`The mask is brought from ${width}×${height} to the picture’s ${of.width}×${of.height}.`);
  } catch (error) {
    problem($("init-problem"), error);
  }
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

/** Let go of the picture, if `isGone` says so of its id or of what was painted over it. */
export function forgetInitial(isGone = () => true) {
  const ids = [picture?.id, ...(painted?.steps ?? []).map(({ id }) => id)].filter(Boolean);
  if (!picture || !(ids.length ? ids.some(isGone) : isGone())) return;
  noteSize("");
  put(null);
}

/** What is kept of it: the picture, and the steps of what was painted over it. */
export const initialState = () => ({ picture: inWords(picture), steps: painted?.steps ?? [], raised, lent });

/** Have what was kept. */
export async function fillInitial({ picture: kept = null, steps = [], raised: was = false, lent: had = null }) {
  const isNewest = choosing();
  noteSize("");
  put(recalled(kept));
  [raised, lent] = [was, had];
  if (!picture || !steps.length) return;
  try {
    const drawn = await repaint(picture, steps);
    if (isNewest()) hold(drawn);
  } catch {
    if (!isNewest()) return;
    problem($("init-problem"), t`The server no longer has a picture that is used here; choose it again.`);
    lose();
  }
}

/** Let go of a picture that can't be shown, where it is gone. */
async function lose() {
  const lost = picture;
  if (!lost?.id || !(await isGone(lost)) || lost !== picture) return;
  put(null);
  $("fold-init").open = true;
  problem($("init-problem"), t`The server no longer has a picture that is used here; choose it again.`);
}

/** Paint over the initial picture: a mask, colours, or what is to be around it; return whether that was used. */
export async function openCanvas(tool = "mask") {
  if (!picture) return false;
  const drawn = await paintOver(picture, { steps: painted?.steps, tool });
  if (drawn) takePainted(drawn);
  return Boolean(drawn);
}

function takePainted(drawn) {
  emptyBatch();
  const before = painted;
  hold(drawn);
  if (drawn.reframed) lendSize(drawn.width, drawn.height, true);
  setStrength(before);
  tellInput($("form"));
}

/** Have what was painted over the picture in place of what was before. */
function hold(drawn) {
  letGo(painted?.picture);
  painted = drawn;
  if (drawn.picture) drawn.picture.url = URL.createObjectURL(drawn.picture.blob);
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
  notice(made?.coloured ? t`Denoising strength is ${wanted}: at 1 nothing of the colours would be left.` : `${t`Denoising strength is 1.`} ${drawnAnew()}`);
}

/** A picture of one colour and the form's size, to be drawn on. */
export async function emptySheet(colour) {
  const [width, height] = ["width", "height"].map((id) => Number($(id).value) || 512);
  const sheet = canvasOf(width, height);
  const context = sheet.getContext("2d");
  context.fillStyle = colour;
  context.fillRect(0, 0, width, height);
  return picked(await asPng(sheet), t`an empty sheet`, { width, height });
}

async function drawInitial() {
  const sheet = await emptySheet("#fff");
  const drawn = await paintOver(sheet, { tool: "colour" });
  if (!drawn) return letGo(sheet);
  // Who generates now, generates with what is on it: it is sent later, to be there after a reload.
  choosing();
  put(sheet);
  takePainted(drawn);
  await idOf(sheet);
  tellInput($("form"));
}

function show() {
  const shown = painted?.picture ?? picture;
  $("init-picture").hidden = !shown;
  if (!shown) $("init-picture").removeAttribute("src");
  else if ($("init-picture").getAttribute("src") !== shown.url) $("init-picture").src = shown.url;
  $("init-empty").hidden = Boolean(picture);
  $("init-badge").textContent = picture && !batch.all().length ? (hasMask() ? t`with mask` : t`on`) : "";
  $("mask-open").disabled = $("init-remove").disabled = !picture;
  $("mask-remove").disabled = !hasMask();
  $("mask-drop").hidden = !picture;
  const canvas = $("init-mask");
  canvas.hidden = !hasMask();
  if (hasMask()) {
    Object.assign(canvas, { width: painted.width, height: painted.height });
    canvas.getContext("2d").drawImage(painted.mask.canvas, 0, 0);
  }
}

export function startInitial() {
  onFiles("mask-file", ([file]) => takeMask(give(file, file.name)));
  onFiles("init-file", ([file]) => setInitial(give(file, file.name)));
  on("init-remove", "click", () => {
    forgetInitial();
    giveSizeBack();
    tellInput($("form"));
  });
  on("init-picture", "error", lose);
  // With a batch there is no mask, and what was for it alone is taken back.
  on("form", "input", ({ target }) => {
    if (target !== $("form")) return;
    if (batch.all().length) lowerStrength();
    show();
  });
  onFilled(show);
  on("init-draw", "click", () => drawInitial().catch(shownAt("init-problem")));
  on("mask-open", "click", () => openCanvas());
  on("mask-remove", "click", removeMask);
  const tell = () => document.activeElement === $("strength-shown") || ($("strength-shown").value = $("strength").value);
  on("strength-shown", "input", () => setField("strength", $("strength-shown").value));
  on("strength-shown", "change", () => ($("strength-shown").value = $("strength").value));
  on("strength", "input", tell);
  onFilled(tell);
}
