// How the canvas is looked at: zoom and pan by wheel, two fingers, the middle button, keys and buttons.

import { $, on, within } from "./dom.js";

const MOST = 64;
/** How much of the picture stays in sight, in pixels of the screen. */
const KEPT = 40;

let [width, height] = [1, 1];
/** Pixels of the screen per pixel of the picture, and where its corner is on the board. */
let view = { scale: 1, left: 0, top: 0 };
let room = 1;
let fitted = true;
let placed = () => {};

const board = () => $("mask-board");
const fitScale = () => Math.min(board().clientWidth / width, board().clientHeight / height) * room;

export const viewScale = () => view.scale;

/** Show the whole picture; `share` of the board is what it may fill. */
export function fit(share = room) {
  room = share;
  fitted = true;
  const scale = fitScale();
  place({ scale, left: (board().clientWidth - width * scale) / 2, top: (board().clientHeight - height * scale) / 2 });
}

/** Take the size of the picture, whose corner has moved by so many pixels of it; it stays where it is. */
export function setContent(across, down, moved = [0, 0], again = fitted) {
  [width, height] = [across, down];
  if (again) fit();
  else place({ ...view, left: view.left - moved[0] * view.scale, top: view.top - moved[1] * view.scale });
}

/** Zoom in or out around a place of the screen, or the middle. */
export function zoom(factor, x, y) {
  const box = board().getBoundingClientRect();
  const [across, down] = x === undefined ? [box.width / 2, box.height / 2] : [x - box.left, y - box.top];
  const scale = within(view.scale * factor, Math.min(fitScale(), 1) / 4, MOST);
  const by = scale / view.scale;
  fitted = false;
  place({ scale, left: across - (across - view.left) * by, top: down - (down - view.top) * by });
}

export function pan(across, down) {
  fitted = false;
  place({ ...view, left: view.left + across, top: view.top + down });
}

/** Bring a place of the picture into sight. */
export function reveal(x, y) {
  const outside = (at, size) => within(at, KEPT, size - KEPT) - at;
  const [across, down] = [outside(view.left + x * view.scale, board().clientWidth), outside(view.top + y * view.scale, board().clientHeight)];
  if (!fitted && (across || down)) pan(across, down);
}

function place({ scale, left, top }) {
  const [across, down] = [width * scale, height * scale];
  view = {
    scale,
    left: within(left, KEPT - across, board().clientWidth - KEPT),
    top: within(top, KEPT - down, board().clientHeight - KEPT),
  };
  Object.assign($("mask-stack").style, { width: `${across}px`, height: `${down}px`, left: `${view.left}px`, top: `${view.top}px` });
  $("mask-stack").classList.toggle("tiny", scale > 3);
  $("zoom-shown").textContent = `${Math.round(scale * 100)} %`;
  placed();
}

const fingers = new Map();
let panning = false;

/** `tool` hears of the pointer: `isHand()`, `begin`, `go`, `end`, `drop` for a stroke that was none, and `hover`. */
export function startView(tool, whenPlaced) {
  placed = whenPlaced;
  const at = (event) => [event.clientX, event.clientY];
  board().addEventListener("pointerdown", (event) => {
    if (fingers.size === 2) return;
    event.preventDefault();
    fingers.set(event.pointerId, at(event));
    board().setPointerCapture(event.pointerId);
    if (fingers.size === 2) tool.drop();
    else if (event.button === 1 || tool.isHand()) panning = true;
    else tool.begin(event);
  });
  board().addEventListener("pointermove", (event) => {
    const [before, now] = [fingers.get(event.pointerId), at(event)];
    if (!before) return tool.hover(event);
    fingers.set(event.pointerId, now);
    if (fingers.size === 2) {
      const [other] = [...fingers].filter(([id]) => id !== event.pointerId).map(([, point]) => point);
      const apart = ([x, y]) => Math.max(1, Math.hypot(x - other[0], y - other[1]));
      pan((now[0] - before[0]) / 2, (now[1] - before[1]) / 2);
      zoom(apart(now) / apart(before), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
    } else if (panning) pan(now[0] - before[0], now[1] - before[1]);
    else tool.go(event);
  });
  const up = (event) => {
    if (!fingers.delete(event.pointerId)) return;
    if (!fingers.size) panning = false;
    tool.end();
  };
  board().addEventListener("pointerup", up);
  board().addEventListener("pointercancel", up);
  board().addEventListener("wheel", (event) => {
    event.preventDefault();
    const lines = event.deltaMode === 1 ? 20 : 1;
    if (event.shiftKey) pan(-(event.deltaX || event.deltaY) * lines, 0);
    else zoom(1.0018 ** -(event.deltaY * lines * (event.ctrlKey ? 4 : 1)), event.clientX, event.clientY);
  }, { passive: false });
  on("zoom-in", "click", () => zoom(1.5));
  on("zoom-out", "click", () => zoom(1 / 1.5));
  on("zoom-fit", "click", () => fit());
  new ResizeObserver(() => {
    if (board().clientWidth) setContent(width, height);
  }).observe(board());
}
