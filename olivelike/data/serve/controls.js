// A picture that leads: which one or drawn by hand, what is made of it, by which network, how strongly and for how long.

import { paintOver } from "./canvas.js";
import { FORM } from "./declared.js";
import { $, newest, offer, on, onFiles, onFilled, option } from "./dom.js";
import { emptySheet, fitSize, hasPicture, upload } from "./initial.js";
import { t } from "./language.js";
import { announce, problem, shownAt } from "./notices.js";
import { ask, path, query } from "./server.js";

let picture = null;
let nets = [];
const choosing = newest();

/** Show what a model has; without any there is nothing to choose. */
export function takeControlNets(names = []) {
  nets = names;
  $("control-none").hidden = nets.length > 0;
  for (const part of $("fold-control").querySelectorAll(".drop, .row, .grid")) part.hidden = nets.length === 0;
  offer($("control-net"), nets.map((name) => option(name)));
}

const chosen = () => FORM.preprocessors.find(({ name }) => name === $("control-preprocessor").value);
const inputs = () => [$("control-a"), $("control-b")];

/** Where what the network sees is, made with the thresholds that are asked for. */
function made() {
  const [threshold_a, threshold_b] = inputs().map(({ value }) => value);
  return query(`${path("uploads", picture.id)}/preprocessed`, { preprocessor: chosen().name, threshold_a, threshold_b });
}

/** The picture that leads: with thresholds of its own it is made now, as orders have the usual ones. */
async function leading() {
  const own = chosen()?.thresholds?.some(([, value], place) => Number(inputs()[place].value) !== value);
  return own ? { image: (await ask(made(), { method: "POST" })).id } : { image: picture.id, preprocessor: $("control-preprocessor").value };
}

/** What the order has of this. */
export async function controlFields() {
  if (!picture || nets.length === 0) return {};
  const control = {
    ...(await leading()), net: $("control-net").value, strength: Number($("control-strength").value),
    start: Number($("control-start").value), end: Number($("control-end").value),
  };
  const [width, height] = ["width", "height"].map((id) => Number($(id).value));
  // A picture of another shape is cropped, as in A1111, unless the initial picture would be, too.
  const crops = !hasPicture() && Math.abs((picture.width / picture.height) * (height / width) - 1) > 0.01;
  return { controls: [control], ...(crops ? { fit: true } : {}) };
}

/** Let a file lead; `drawn` has the steps by which it was drawn, and on what. */
export async function setControl(file, name, drawn = null) {
  problem($("control-problem"), "");
  const isNewest = choosing();
  try {
    const { id, width, height } = await upload(file);
    if (!isNewest()) return;
    forgetControl(drawn);
    picture = { id, width, height, url: URL.createObjectURL(file), drawn };
    if (!hasPicture()) fitSize(width, height);
    announce(t`${name}, ${width} by ${height} pixels, leads.`);
  } catch (error) {
    problem($("control-problem"), error);
  }
  show();
}

/** Let go of an upload that the server has no more. */
export function forgetControl(drawn = null) {
  if (picture) URL.revokeObjectURL(picture.url);
  if (picture?.drawn && picture.drawn.sheet !== drawn?.sheet) URL.revokeObjectURL(picture.drawn.sheet.url);
  picture = null;
  show();
}

/** Draw lines in white on black, as networks of scribbles want them; what was drawn last goes on. */
async function drawControl() {
  const sheet = picture?.drawn?.sheet ?? (await emptySheet("#000"));
  const made = await paintOver(sheet, { steps: picture?.drawn?.steps, tool: "colour", masks: false, colour: "#ffffff" });
  if (!made?.picture) return;
  $("control-preprocessor").value = "none";
  await setControl(made.picture.blob, t`the drawing`, { sheet, steps: made.steps });
}

/** What the network sees: the picture, or what the preprocessor makes of it. */
function show() {
  for (const [place, input] of inputs().entries()) {
    const [label = "", value = ""] = chosen()?.thresholds?.[place] ?? [];
    input.parentElement.hidden = !label;
    input.disabled = !label;
    input.previousElementSibling.textContent = label;
    if (!label || input.value === "") input.value = value;
  }
  const shown = picture && (chosen() ? made() : picture.url);
  $("control-picture").hidden = !picture;
  $("control-note").hidden = Boolean(picture);
  if (shown && $("control-picture").getAttribute("src") !== shown) $("control-picture").src = shown;
  $("control-remove").disabled = !picture;
  $("control-badge").textContent = picture ? t`on` : "";
}

export function startControls() {
  onFiles("control-file", ([file]) => setControl(file, file.name));
  $("control-preprocessor").append(...FORM.preprocessors.map(({ name, label }) => option(name, label)));
  on("control-preprocessor", "input", () => {
    for (const input of inputs()) input.value = "";
    show();
  });
  for (const input of inputs()) input.addEventListener("change", show);
  onFilled(show);
  on("control-picture", "error", () => problem($("control-problem"), t`The server can’t make this of the picture; choose another preprocessor.`));
  on("control-picture", "load", () => problem($("control-problem"), ""));
  on("control-draw", "click", () => drawControl().catch(shownAt("control-problem")));
  on("control-remove", "click", () => forgetControl());
}
