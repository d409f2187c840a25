// What is painted over a picture, as a list of steps: drawn anew for each undo, so that no copy of a picture is kept.

import { madeOf } from "./given.js";

/** What a mask is painted in; the document's filter `squares` shows it in two colours, of which one is seen on any picture. */
const INK = "#e8352e";
/** How far the mask of what is added reaches into the picture, in pixels, so that no seam stays. */
const OVERLAP = 16;
/** What is added begins as the picture mirrored and so many times smaller: blurred. */
const BLURRED = 16;
/** A frame that adds nothing. */
export const WHOLE = { left: 0, top: 0, right: 0, bottom: 0 };

export const SIDES = Object.keys(WHOLE);
export const canvasOf = (width, height) => Object.assign(document.createElement("canvas"), { width, height });

/** How far the picture reaches beyond what it was, on each side; below 0 it is cropped. */
export const frameOf = ({ steps }) => steps.findLast((one) => one.kind === "frame")?.frame ?? WHOLE;

export function sizeOf(drawing) {
  const { left, top, right, bottom } = frameOf(drawing);
  return [drawing.width + left + right, drawing.height + top + bottom];
}

/** Draw everything anew: `layers` of a drawing are canvases, `under` for the picture, `colours` and `mask`. */
export function drawAll(drawing) {
  const [width, height] = sizeOf(drawing);
  const frame = frameOf(drawing);
  for (const canvas of Object.values(drawing.layers)) Object.assign(canvas, { width, height });
  const context = drawing.layers.under.getContext("2d");
  if (SIDES.some((side) => frame[side] > 0)) fillAround(context, drawing, frame);
  context.drawImage(drawing.image, frame.left, frame.top, drawing.width, drawing.height);
  for (const one of drawing.steps) drawStep(drawing, one);
}

function fillAround(context, { image, width, height }, { left, top, right, bottom }) {
  const whole = context.canvas;
  const small = canvasOf(...[whole.width, whole.height].map((side) => Math.max(2, Math.round(side / BLURRED))));
  const to = small.getContext("2d");
  to.scale(small.width / whole.width, small.height / whole.height);
  to.translate(left, top);
  const times = (reach, side) => Math.ceil(Math.max(reach, 0) / side);
  for (let column = -times(left, width); column <= times(right, width); column += 1) {
    for (let row = -times(top, height); row <= times(bottom, height); row += 1) {
      const [across, down] = [column % 2 !== 0, row % 2 !== 0];
      to.save();
      to.translate((column + Number(across)) * width, (row + Number(down)) * height);
      to.scale(across ? -1 : 1, down ? -1 : 1);
      to.drawImage(image, 0, 0, width, height);
      to.restore();
    }
  }
  context.imageSmoothingQuality = "high";
  context.drawImage(small, 0, 0, whole.width, whole.height);
}

/** An image of an address. */
export async function loaded(url) {
  const image = Object.assign(new Image(), { src: url });
  await image.decode();
  return image;
}

/** Masks that are steps, by their ids at the server: as canvases that are opaque where those are white. */
const images = new Map();

/** Have the masks that are steps at hand. */
export async function loadImages(steps) {
  for (const { id } of steps.filter((one) => one.kind === "image" && !images.has(one.id))) {
    const image = await loaded(madeOf(id, { preprocessor: "mask" }));
    const canvas = canvasOf(image.naturalWidth, image.naturalHeight);
    const context = canvas.getContext("2d");
    context.drawImage(image, 0, 0);
    const pixels = context.getImageData(0, 0, canvas.width, canvas.height);
    for (let place = 0; place < pixels.data.length; place += 4) pixels.data[place + 3] = pixels.data[place];
    context.putImageData(pixels, 0, 0);
    images.set(id, canvas);
  }
}

/** Draw one step onto what is there; places are in pixels of the picture as it was. */
export function drawStep(drawing, one) {
  const { left, top } = frameOf(drawing);
  for (const layer of one.layers) {
    const context = drawing.layers[layer].getContext("2d");
    const { width, height } = context.canvas;
    context.save();
    context.fillStyle = context.strokeStyle = layer === "mask" ? INK : one.colour;
    if (one.erase) context.globalCompositeOperation = "destination-out";
    if (one.kind === "invert") context.globalCompositeOperation = "xor";
    if (one.kind === "clear") context.clearRect(0, 0, width, height);
    else if (one.kind === "all" || one.kind === "invert") context.fillRect(0, 0, width, height);
    else {
      context.translate(left, top);
      if (one.kind === "rectangle") context.fillRect(one.left, one.top, one.width, one.height);
      else if (one.kind === "image") drawInk(context, images.get(one.id), drawing);
      else if (one.kind === "frame") for (const band of bandsOf(one, drawing)) context.fillRect(...band);
      else drawLine(context, one);
    }
    context.restore();
  }
}

/** Fill with ink where a mask is opaque. */
function drawInk(context, mask, { width, height }) {
  const ink = canvasOf(width, height);
  const to = ink.getContext("2d");
  to.fillStyle = INK;
  to.fillRect(0, 0, width, height);
  to.globalCompositeOperation = "destination-in";
  to.drawImage(mask, 0, 0, width, height);
  context.drawImage(ink, 0, 0);
}

function drawLine(context, { points, radius }) {
  context.lineCap = context.lineJoin = "round";
  // Of a pen each bit has the width that its pressure says, else all is one line.
  const isPen = points.some(([, , pressure]) => pressure !== undefined);
  for (const bit of isPen ? points.map((point, place) => [points[place - 1] ?? point, point]) : [points]) {
    context.lineWidth = radius * 2 * (bit[1]?.[2] ?? 1);
    context.beginPath();
    for (const [x, y] of bit) context.lineTo(x, y);
    context.stroke();
  }
  // A line without length is none: what was touched once is a dot.
  const [x, y, pressure = 1] = points[0];
  context.beginPath();
  context.arc(x, y, radius * pressure, 0, 2 * Math.PI);
  context.fill();
}

/** What a frame adds to the one before and the last one has still, with some of the picture: left, top, width and height each. */
function bandsOf({ frame, before }, drawing) {
  const { width, height } = drawing;
  const still = frameOf(drawing);
  const reach = (one) => Object.fromEntries(SIDES.map((side) => [side, Math.max(Math.min(one[side], still[side]), 0)]));
  const [now, last] = [reach(frame), reach(before)];
  const all = [width + now.left + now.right, height + now.top + now.bottom];
  const over = Math.min(OVERLAP, width / 8, height / 8);
  const thick = (side) => (now[side] > last[side] ? now[side] - last[side] + over : 0);
  return [
    [-now.left, -now.top, thick("left"), all[1]],
    [-now.left, -now.top, all[0], thick("top")],
    [width + now.right - thick("right"), -now.top, thick("right"), all[1]],
    [-now.left, height + now.bottom - thick("bottom"), all[0], thick("bottom")],
  ];
}

/** Share of a canvas that is covered, from 0 to 1. */
export function covered(canvas) {
  const small = canvasOf(Math.min(canvas.width, 128), Math.min(canvas.height, 128));
  const context = small.getContext("2d", { willReadFrequently: true });
  context.drawImage(canvas, 0, 0, small.width, small.height);
  const { data } = context.getImageData(0, 0, small.width, small.height);
  let sum = 0;
  for (let place = 3; place < data.length; place += 4) sum += data[place];
  return sum / 255 / (data.length / 4);
}

export const asPng = (canvas) => new Promise((resolve) => canvas.toBlob(resolve, "image/png"));

/** The mask in white on black. */
export function maskFile(red) {
  const plain = canvasOf(red.width, red.height);
  const context = plain.getContext("2d");
  context.drawImage(red, 0, 0);
  context.globalCompositeOperation = "source-in";
  context.fillStyle = "#fff";
  context.fillRect(0, 0, red.width, red.height);
  context.globalCompositeOperation = "destination-over";
  context.fillStyle = "#000";
  context.fillRect(0, 0, red.width, red.height);
  return asPng(plain);
}

/** The picture with its colours and what was added to it. */
export function pictureFile({ layers }) {
  const plain = canvasOf(layers.under.width, layers.under.height);
  const context = plain.getContext("2d");
  for (const layer of [layers.under, layers.colours]) context.drawImage(layer, 0, 0);
  return asPng(plain);
}

/** The colour at a place of the picture, as `#rrggbb`; `null` outside of it. */
export function colourAt(drawing, x, y) {
  const { left, top } = frameOf(drawing);
  const point = canvasOf(1, 1);
  const context = point.getContext("2d");
  for (const layer of [drawing.layers.under, drawing.layers.colours]) context.drawImage(layer, -Math.floor(x + left), -Math.floor(y + top));
  const [red, green, blue, alpha] = context.getImageData(0, 0, 1, 1).data;
  return alpha ? `#${[red, green, blue].map((one) => one.toString(16).padStart(2, "0")).join("")}` : null;
}
