// A mask painted by hand: a list of strokes, drawn anew for each undo, so that no copy of the picture is kept.

import { $ } from "./dom.js";

const INK = "#e8352e";
const LARGEST = 2048;

let board = null;
let strokes = [];
let stroke = null;
let brush = { x: 0, y: 0 };
let erasing = false;

const canvas = () => $("mask-canvas");
const radius = () => Math.max(1, ((Number($("mask-size").value) / 100) ** 1.5 * Math.max(canvas().width, canvas().height)) / 2);

function drawStroke(context, one) {
  const { width, height } = context.canvas;
  context.fillStyle = context.strokeStyle = INK;
  context.globalCompositeOperation = one.erase ? "destination-out" : "source-over";
  if (one.kind === "all") context.fillRect(0, 0, width, height);
  else if (one.kind === "clear") context.clearRect(0, 0, width, height);
  else if (one.kind === "invert") {
    context.globalCompositeOperation = "xor";
    context.fillRect(0, 0, width, height);
  } else if (one.kind === "rectangle") context.fillRect(one.left, one.top, one.width, one.height);
  else {
    context.lineCap = context.lineJoin = "round";
    context.lineWidth = one.radius * 2;
    context.beginPath();
    context.moveTo(...one.points[0]);
    for (const point of one.points) context.lineTo(...point);
    context.stroke();
    // A line without length is none: what was touched once is a dot.
    context.beginPath();
    context.arc(...one.points[0], one.radius, 0, 2 * Math.PI);
    context.fill();
  }
  context.globalCompositeOperation = "source-over";
}

function draw() {
  const context = canvas().getContext("2d");
  context.clearRect(0, 0, canvas().width, canvas().height);
  for (const one of strokes) drawStroke(context, one);
}

function add(one) {
  strokes.push(one);
  drawStroke(canvas().getContext("2d"), one);
  tell();
}

/** Share of the picture that is covered, from 0 to 1. */
function covered() {
  const { width, height } = canvas();
  const small = Object.assign(document.createElement("canvas"), { width: Math.min(width, 128), height: Math.min(height, 128) });
  const context = small.getContext("2d", { willReadFrequently: true });
  context.drawImage(canvas(), 0, 0, small.width, small.height);
  const { data } = context.getImageData(0, 0, small.width, small.height);
  let sum = 0;
  for (let place = 3; place < data.length; place += 4) sum += data[place];
  return sum / 255 / (data.length / 4);
}

function tell() {
  $("mask-share").textContent = `${(covered() * 100).toFixed(covered() < 0.1 ? 1 : 0)} % covered`;
  $("mask-undo").disabled = strokes.length === 0;
}

function placeOf(event) {
  const box = canvas().getBoundingClientRect();
  return [((event.clientX - box.left) / box.width) * canvas().width, ((event.clientY - box.top) / box.height) * canvas().height];
}

function showBrush(x, y) {
  const box = canvas().getBoundingClientRect();
  const scale = box.width / canvas().width;
  brush = { x, y };
  const { style } = $("mask-brush");
  style.width = style.height = `${radius() * 2 * scale}px`;
  style.left = `${x * scale}px`;
  style.top = `${y * scale}px`;
  $("mask-brush").hidden = false;
}

function begin(event) {
  if (event.button !== 0 && event.button !== 2) return;
  event.preventDefault();
  canvas().focus();
  canvas().setPointerCapture(event.pointerId);
  stroke = { kind: "stroke", erase: erasing !== (event.button === 2), radius: radius(), points: [placeOf(event)] };
  strokes.push(stroke);
  drawStroke(canvas().getContext("2d"), stroke);
}

function go(event) {
  showBrush(...placeOf(event));
  if (!stroke) return;
  const last = stroke.points.at(-1);
  const coalesced = event.getCoalescedEvents?.() ?? [];
  for (const one of coalesced.length ? coalesced : [event]) stroke.points.push(placeOf(one));
  const from = stroke.points.lastIndexOf(last);
  drawStroke(canvas().getContext("2d"), { ...stroke, points: stroke.points.slice(from) });
}

function end() {
  if (!stroke) return;
  stroke = null;
  tell();
}

const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

function keys(event) {
  if (event.key in MOVES) {
    const step = event.shiftKey ? 1 : Math.max(1, radius() / 2);
    const [x, y] = MOVES[event.key];
    const inside = (value, most) => Math.min(Math.max(value, 0), most);
    showBrush(inside(brush.x + x * step, canvas().width), inside(brush.y + y * step, canvas().height));
  } else if (event.key === " ") add({ kind: "stroke", erase: erasing, radius: radius(), points: [[brush.x, brush.y]] });
  else return;
  event.preventDefault();
}

function shortcuts(event) {
  if (event.key === "z" && (event.ctrlKey || event.metaKey)) undo();
  else if (event.key === "[" || event.key === "]") {
    $("mask-size").value = Number($("mask-size").value) + (event.key === "]" ? 4 : -4);
    showBrush(brush.x, brush.y);
  } else return;
  event.preventDefault();
}

function undo() {
  strokes.pop();
  draw();
  tell();
}

function setErasing(now) {
  erasing = now;
  $("mask-erase").setAttribute("aria-pressed", String(now));
}

/**
 * Let somebody paint over `picture`; `before` are strokes to begin with.
 *
 * Resolves to the strokes, a canvas in red, and a blob in white on black; or to null if it was left.
 */
export async function paintMask(picture, before) {
  const share = Math.min(1, LARGEST / Math.max(picture.width, picture.height));
  const [width, height] = [picture.width, picture.height].map((side) => Math.max(1, Math.round(side * share)));
  Object.assign(canvas(), { width, height });
  $("mask-under").src = picture.url;
  $("mask-stack").style.aspectRatio = `${width} / ${height}`;
  $("mask-stack").style.setProperty("--shape", width / height);
  for (const [id, most] of [["rect-left", width], ["rect-top", height], ["rect-width", width], ["rect-height", height]]) $(id).max = most;
  $("rect-width").value = Math.round(width / 2);
  $("rect-height").value = Math.round(height / 2);
  strokes = [...before];
  setErasing(false);
  $("mask").showModal();
  draw();
  tell();
  canvas().focus();
  showBrush(width / 2, height / 2);
  const used = await new Promise((resolve) => (board = resolve));
  $("mask").close();
  if (!used) return null;
  const copy = Object.assign(document.createElement("canvas"), { width, height });
  copy.getContext("2d").drawImage(canvas(), 0, 0);
  return { strokes, canvas: copy, blob: await blackAndWhite(copy), empty: covered() === 0 };
}

function blackAndWhite(red) {
  const plain = Object.assign(document.createElement("canvas"), { width: red.width, height: red.height });
  const context = plain.getContext("2d");
  context.drawImage(red, 0, 0);
  context.globalCompositeOperation = "source-in";
  context.fillStyle = "#fff";
  context.fillRect(0, 0, red.width, red.height);
  context.globalCompositeOperation = "destination-over";
  context.fillStyle = "#000";
  context.fillRect(0, 0, red.width, red.height);
  return new Promise((resolve) => plain.toBlob(resolve, "image/png"));
}

export function startMask() {
  const on = (id, work) => $(id).addEventListener("click", work);
  canvas().addEventListener("pointerdown", begin);
  canvas().addEventListener("pointermove", go);
  canvas().addEventListener("pointerup", end);
  canvas().addEventListener("pointercancel", end);
  canvas().addEventListener("pointerleave", () => ($("mask-brush").hidden = !stroke && document.activeElement !== canvas()));
  canvas().addEventListener("contextmenu", (event) => event.preventDefault());
  canvas().addEventListener("keydown", keys);
  $("mask").addEventListener("keydown", shortcuts);
  $("mask").addEventListener("close", () => board?.(false));
  $("mask-size").addEventListener("input", () => showBrush(brush.x, brush.y));
  on("mask-erase", () => setErasing(!erasing));
  on("mask-undo", undo);
  on("mask-clear", () => add({ kind: "clear" }));
  on("mask-all", () => add({ kind: "all" }));
  on("mask-invert", () => add({ kind: "invert" }));
  on("mask-close", () => $("mask").close());
  on("mask-done", () => board?.(true));
  on("rect-add", () => {
    const [left, top, width, height] = ["left", "top", "width", "height"].map((side) => Number($(`rect-${side}`).value));
    add({ kind: "rectangle", erase: erasing, left, top, width, height });
  });
}
