// The canvas: a mask, colours and more room around a picture, all painted by hand; a control picture is drawn there too.

import { fit, pan, reveal, setContent, startView, viewScale, zoom } from "./canvas_view.js";
import { $, inDigits, on, within } from "./dom.js";
import { t } from "./language.js";
import { confirmed } from "./notices.js";
import { SIDES, WHOLE, canvasOf, colourAt, covered, drawAll, drawStep, frameOf, loadImages, loaded, maskFile, pictureFile, sizeOf } from "./strokes.js";

const LARGEST = 2048;
/** A picture with what is around it; where the form takes less, it is drawn smaller. */
const WIDEST = 3072;
/** What the picture may fill of the board while its frame is dragged. */
const ROOM = 0.6;

/** The picture, its size here, the steps, and the layers that they are drawn in. */
let drawing = null;
let undone = [];
let leave = null;
let stroke = null;
/** Where the last stroke ended. */
let last = null;
let brush = { x: 0, y: 0 };
let tool = "mask";
let erasing = false;
let dragged = null;
/** Whether a number is being typed. */
let typing = false;

const canvas = () => $("mask-canvas");
const largest = () => Math.max(drawing.width, drawing.height);
const radius = () => Math.max(0.5, Number($("mask-pixels").value) / 2);
/** What a brush paints on. */
const painted = () => (tool !== "colour" ? ["mask"] : $("mask-coloured").checked && !$("mask-masks").hidden ? ["colours", "mask"] : ["colours"]);

function draw() {
  drawAll(drawing);
  tell();
}

function add(one) {
  undone = [];
  drawing.steps.push(one);
  if (one.kind !== "stroke") drawStep(drawing, one);
  tell();
}

const feather = () => Number($("mask-feather").value) || 0;
/** Radius of the thinnest stroke of the mask. */
const thinnest = () => Math.min(...drawing.steps.filter((one) => one.kind === "stroke" && !one.erase && one.layers.includes("mask")).map((one) => one.radius));

function tell() {
  const share = covered(canvas()) * 100;
  const [width, height] = sizeOf(drawing);
  const faint = drawing.masks && thinnest() < feather() && t`strokes thinner than twice the blur fade`;
  $("mask-share").textContent = [drawing.masks && t`${inDigits(share, share < 10 ? 1 : 0)} % covered`, `${width}\u00d7${height}`, faint].filter(Boolean).join(", ");
  $("mask-undo").disabled = drawing.steps.length === 0;
  $("mask-redo").disabled = undone.length === 0;
  const frame = frameOf(drawing);
  for (const side of SIDES) $(`frame-${side}`).value = frame[side];
}

function placeOf(event) {
  const box = $("mask-stack").getBoundingClientRect();
  const { left, top } = frameOf(drawing);
  // A tenth of a pixel is enough, and short where strokes are kept.
  const place = [(event.clientX - box.left) / viewScale() - left, (event.clientY - box.top) / viewScale() - top].map((one) => Math.round(one * 10) / 10);
  return event.pointerType === "pen" ? [...place, Math.round(event.pressure * 100) / 100] : place;
}

function showBrush(x, y) {
  brush = { x, y };
  const { left, top } = frameOf(drawing);
  const size = tool === "pick" ? 1 : radius() * 2;
  Object.assign($("mask-brush").style, {
    width: `${size * viewScale()}px`, height: `${size * viewScale()}px`, left: `${(x + left) * viewScale()}px`, top: `${(y + top) * viewScale()}px`,
  });
  $("mask-brush").hidden = tool === "frame" || tool === "hand";
}

/** What is on the screen but not in the picture goes with the zoom. */
function placed() {
  if (!drawing) return;
  showBrush(brush.x, brush.y);
  // A blur of a canvas that is shown large takes long, for each bit of a stroke.
  // Of strokes that are thinner than their edge nothing would be seen: it is shown as soft as the thinnest allows.
  const blur = stroke && viewScale() > 2 ? 0 : Math.min(feather(), thinnest() / 2) * viewScale();
  canvas().style.filter = blur ? `blur(${blur}px) url(#squares)` : "";
}

function beginStroke(point, erase = erasing) {
  if (tool === "pick") return pickColour(...point);
  stroke = { kind: "stroke", layers: painted(), colour: $("mask-colour").value, erase, radius: radius(), points: [point] };
  add(stroke);
  drawStep(drawing, stroke);
  placed();
}

function goOn(points) {
  const from = stroke.points.at(-1);
  stroke.points.push(...points);
  drawStep(drawing, { ...stroke, points: [from, ...points] });
}

function endStroke() {
  if (!stroke) return;
  last = stroke.points.at(-1);
  stroke = null;
  // As it is drawn after an undo: in one go.
  draw();
  placed();
}

function pickColour(x, y) {
  $("mask-colour").value = colourAt(drawing, x, y) ?? $("mask-colour").value;
  choose("colour");
}

const POINTER = {
  isHand: () => tool === "hand" || tool === "frame",
  begin(event) {
    if (event.button !== 0 && event.button !== 2) return;
    canvas().focus();
    showBrush(...placeOf(event));
    if (tool === "colour" && (event.ctrlKey || event.altKey)) return pickColour(...placeOf(event));
    beginStroke(event.shiftKey && last ? last : placeOf(event), erasing !== (event.button === 2));
    if (stroke && event.shiftKey) goOn([placeOf(event)]);
  },
  go(event) {
    showBrush(...placeOf(event));
    if (!stroke) return;
    const coalesced = event.getCoalescedEvents?.() ?? [];
    goOn((coalesced.length ? coalesced : [event]).map(placeOf));
  },
  end: endStroke,
  drop() {
    if (!stroke) return;
    stroke = null;
    drawing.steps.pop();
    draw();
  },
  hover: (event) => showBrush(...placeOf(event)),
};

const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

function keys(event) {
  if (event.key in MOVES) {
    const [x, y] = MOVES[event.key];
    if (POINTER.isHand()) pan(-x * 40, -y * 40);
    else {
      const step = event.shiftKey ? 1 : Math.max(1, radius() / 2);
      const [{ left, top }, [width, height]] = [frameOf(drawing), sizeOf(drawing)];
      showBrush(within(brush.x + x * step, -left, width - left), within(brush.y + y * step, -top, height - top));
      reveal(brush.x + left, brush.y + top);
      if (stroke) goOn([[brush.x, brush.y]]);
    }
  } else if (event.key === " ") {
    if (!event.repeat && !POINTER.isHand()) beginStroke([brush.x, brush.y]);
  } else return;
  event.preventDefault();
}

function shortcuts(event) {
  const key = event.key.toLowerCase();
  // A number that was typed is a step; the browser takes back what is typed now.
  if (event.target.matches("input[type='number']") && (typing || !(event.ctrlKey || event.metaKey))) return;
  if (event.ctrlKey || event.metaKey) {
    if (key === "y" || (key === "z" && event.shiftKey)) redo();
    else if (key === "z") undo();
    else return;
  } else if (key === "[" || key === "]") {
    $("mask-size").value = Number($("mask-size").value) + (key === "]" ? 4 : -4);
    takeSlider();
  } else if (key === "+" || key === "=") zoom(1.5);
  else if (key === "-") zoom(1 / 1.5);
  else if (key === "0") fit();
  else return;
  event.preventDefault();
}

/** Brushes of large pictures are large: the slider is a share, the number is in pixels. */
function takeSlider() {
  $("mask-pixels").value = Math.max(1, Math.round((Number($("mask-size").value) / 100) ** 1.5 * largest()));
  showBrush(brush.x, brush.y);
}

function takePixels() {
  $("mask-size").value = (Number($("mask-pixels").value) / largest()) ** (1 / 1.5) * 100;
  showBrush(brush.x, brush.y);
}

/** Draw steps as they are now; where the frame is another, the picture stays in its place on the screen. */
function reframed(before, again) {
  const now = frameOf(drawing);
  draw();
  if (SIDES.some((side) => now[side] !== before[side])) setContent(...sizeOf(drawing), [now.left - before.left, now.top - before.top], again);
  placed();
}

function undo() {
  const [before, last] = [frameOf(drawing), drawing.steps.pop()];
  if (last) undone.push(last);
  reframed(before);
}

function redo() {
  const [before, next] = [frameOf(drawing), undone.pop()];
  if (next) drawing.steps.push(next);
  reframed(before);
}

function choose(name) {
  const refit = (name === "frame") !== (tool === "frame");
  tool = name;
  for (const input of document.querySelectorAll("#mask-tools input")) input.checked = input.value === name;
  for (const part of document.querySelectorAll("#mask [data-for]")) part.hidden = !part.dataset.for.split(" ").includes(name);
  $("mask-masks").hidden ||= !drawing.masks;
  $("mask-stack").dataset.tool = name;
  $("mask-stack").classList.toggle("framed", name === "frame");
  if (refit) fit(roomOf(name));
  placed();
}

const roomOf = (name) => (name === "frame" ? ROOM : 1);

function setErasing(now) {
  erasing = now;
  $("mask-erase").setAttribute("aria-pressed", String(now));
}

/** How far a side reaches so that the whole is in steps of the model: the nearest, or with `round` at least so far. */
function snapped(frame, side, value, round) {
  const upright = side === "top" || side === "bottom";
  const input = $(upright ? "height" : "width");
  const unit = Number(input.step) || 8;
  const opposite = frame[{ left: "right", right: "left", top: "bottom", bottom: "top" }[side]];
  const rest = (upright ? drawing.height : drawing.width) + opposite;
  const whole = within(round((rest + value) / unit), 1, Math.floor(WIDEST / unit)) * unit;
  return whole - rest;
}

/** Let a picture reach further on some sides; `step` is the one to change while it is dragged. */
function setFrame(values, step = null, round = Math.round) {
  const before = frameOf(drawing);
  const frame = { ...before };
  for (const [side, value] of Object.entries(values)) frame[side] = snapped(frame, side, value, round);
  if (SIDES.every((side) => frame[side] === before[side])) return;
  if (step) step.frame = frame;
  else {
    undone = [];
    drawing.steps.push({ kind: "frame", layers: ["mask"], frame, before });
  }
  reframed(before, !step);
}

/** Show where the hand is, and the size that it comes to: from one size to the next nothing else moves. */
function showHand(reach) {
  const frame = frameOf(drawing);
  const hand = $("frame-hand");
  for (const side of SIDES) hand.style[side] = `${(frame[side] - (reach[side] ?? frame[side])) * viewScale()}px`;
  hand.textContent = sizeOf(drawing).join("\u00d7");
  hand.hidden = false;
}

function startHandles() {
  for (const handle of document.querySelectorAll("#mask-stack [data-sides]")) {
    handle.addEventListener("pointerdown", (event) => {
      event.stopPropagation();
      event.preventDefault();
      handle.setPointerCapture(event.pointerId);
      const from = frameOf(drawing);
      dragged = { from, x: event.clientX, y: event.clientY, step: { kind: "frame", layers: ["mask"], frame: from, before: from } };
      undone = [];
      drawing.steps.push(dragged.step);
    });
    handle.addEventListener("pointermove", (event) => {
      if (!dragged) return;
      event.stopPropagation();
      const [across, down] = [event.clientX - dragged.x, event.clientY - dragged.y].map((one) => one / viewScale());
      const by = { left: -across, right: across, top: -down, bottom: down };
      const reach = Object.fromEntries(handle.dataset.sides.split(" ").map((side) => [side, dragged.from[side] + by[side]]));
      setFrame(reach, dragged.step);
      showHand(reach);
    });
    const end = () => {
      if (!dragged) return;
      const { from, step } = dragged;
      dragged = null;
      $("frame-hand").hidden = true;
      if (SIDES.every((side) => step.frame[side] === from[side])) drawing.steps = drawing.steps.filter((one) => one !== step);
      draw();
      fit();
    };
    handle.addEventListener("pointerup", end);
    handle.addEventListener("pointercancel", end);
  }
}

/** What becomes of a mask, by the form's mode. */
export const drawnAnew = () => ($("mask_mode").value === "not masked" ? t`What is not masked is drawn anew.` : t`What is masked is drawn anew.`);

/**
 * Let somebody paint over `picture`, with `tool` in hand; `steps` are those to begin with, `masks` whether there is a mask.
 *
 * Resolves to the steps, the size, whether the frame is another, `mask` (a canvas in red, and a file in white on black) and `picture` (a file), null each where nothing
 * was painted; or to null if it was left.
 */
export async function paintOver(picture, { steps = [], tool: first = "mask", masks = true, colour = null } = {}) {
  drawing = await begin(picture, steps, masks, { under: $("mask-under"), colours: $("mask-colours"), mask: canvas() });
  const { width, height } = drawing;
  undone = [];
  last = null;
  brush = { x: width / 2, y: height / 2 };
  if (colour) $("mask-colour").value = colour;
  for (const name of ["mask", "frame"]) document.querySelector(`#mask-tools [value="${name}"]`).closest("label").hidden = !masks;
  for (const [id, most] of [["rect-left", width], ["rect-top", height], ["rect-width", width], ["rect-height", height]]) $(id).max = most;
  $("rect-width").value = Math.round(width / 2);
  $("rect-height").value = Math.round(height / 2);
  for (const side of SIDES) $(`frame-${side}`).step = $(side === "top" || side === "bottom" ? "height" : "width").step || 8;
  $("frame-hint").textContent = t`Pixels to add, so that sides are multiples of ${$("frame-left").step}; below 0 the picture is cropped.`;
  $("mask-hint").textContent = drawnAnew();
  setErasing(false);
  $("mask").showModal();
  draw();
  choose(first);
  setContent(...sizeOf(drawing));
  fit(roomOf(first));
  takeSlider();
  canvas().focus();
  const used = await new Promise((resolve) => (leave = resolve));
  // It stays open until what it gives is there: who generates then, generates with it.
  const made = used ? await result(drawing) : null;
  $("mask").close();
  drawing = null;
  return made;
}

/** A drawing over `picture` that begins with steps, on canvases of a document or of nobody. */
async function begin(picture, steps, masks, layers) {
  const image = await loaded(picture.url);
  await loadImages(steps);
  const share = Math.min(1, LARGEST / Math.max(picture.width, picture.height));
  const [width, height] = [picture.width, picture.height].map((side) => Math.max(1, Math.round(side * share)));
  return { image, width, height, masks, steps: [...steps], first: steps, began: frameOf({ steps }), layers };
}

/** What `paintOver` gave once, made again of its steps. */
export async function repaint(picture, steps) {
  const again = await begin(picture, steps, true, { under: canvasOf(1, 1), colours: canvasOf(1, 1), mask: canvasOf(1, 1) });
  drawAll(again);
  return result(again);
}

async function result(of) {
  const { steps, masks, layers } = of;
  const [width, height] = sizeOf(of);
  const isFrame = (other) => SIDES.every((side) => frameOf(of)[side] === other[side]);
  const found = { steps, width, height, reframed: !isFrame(of.began), mask: null, picture: null };
  if (masks && covered(layers.mask)) {
    const copy = canvasOf(width, height);
    copy.getContext("2d").drawImage(layers.mask, 0, 0);
    found.mask = { canvas: copy, blob: await maskFile(copy) };
  }
  const coloured = steps.some((one) => one.layers.includes("colours"));
  if (coloured || !isFrame(WHOLE)) found.picture = { blob: await pictureFile(of), coloured };
  return found;
}

/** Whether nothing was painted since the canvas was opened. */
const isAsBefore = ({ first, steps }) => steps.length === first.length && steps.every((one, place) => one === first[place]);

/** Close without changes, and ask first where there are some. */
async function leaveIt() {
  if (isAsBefore(drawing) || (await confirmed(t`Leave without what you painted?`, t`Leave`))) $("mask").close();
}

export function startCanvas() {
  const whole = (kind) => () => add({ kind, layers: painted(), colour: $("mask-colour").value });
  startView(POINTER, placed);
  startHandles();
  on("mask-board", "pointerleave", () => ($("mask-brush").hidden = !stroke && document.activeElement !== canvas()));
  on("mask-board", "contextmenu", (event) => event.preventDefault());
  canvas().addEventListener("keydown", keys);
  canvas().addEventListener("keyup", (event) => event.key === " " && endStroke());
  canvas().addEventListener("blur", endStroke);
  on("mask", "keydown", shortcuts);
  on("mask", "input", ({ target }) => (typing = target.type === "number"));
  on("mask", "change", () => (typing = false));
  on("mask", "close", () => leave?.(false));
  on("mask-tools", "change", (event) => choose(event.target.value));
  on("mask-size", "input", takeSlider);
  on("mask-pixels", "input", takePixels);
  on("mask-feather", "input", () => {
    placed();
    tell();
  });
  for (const side of SIDES) on(`frame-${side}`, "change", () => {
    setFrame({ [side]: Number($(`frame-${side}`).value) || 0 }, null, Math.ceil);
    tell();
  });
  on("mask-erase", "click", () => setErasing(!erasing));
  on("mask-undo", "click", undo);
  on("mask-redo", "click", redo);
  on("mask-clear", "click", whole("clear"));
  on("mask-all", "click", whole("all"));
  on("mask-invert", "click", whole("invert"));
  on("mask-close", "click", leaveIt);
  on("mask", "cancel", (event) => {
    event.preventDefault();
    leaveIt();
  });
  on("mask-done", "click", () => leave?.(true));
  addEventListener("beforeunload", (event) => drawing && !isAsBefore(drawing) && event.preventDefault());
  on("rect-add", "click", () => {
    const [left, top, width, height] = ["left", "top", "width", "height"].map((side) => Number($(`rect-${side}`).value));
    add({ kind: "rectangle", layers: painted(), colour: $("mask-colour").value, erase: erasing, left, top, width, height });
  });
}
