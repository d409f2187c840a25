// What the safety checker sees of a picture: resized, cropped and scaled as Pillow and CLIP's image processor do it.

import { FolderError } from "./folder.js";

const BICUBIC = 3;
const SUPPORT = 2;
const SHARPNESS = -0.5;
const FRACTION = 2 ** 22;

/** Return a function that makes float32 input of RGBA pixels: `{data, dims}`. `config` is preprocessor_config.json. */
export function makePreprocessing(config) {
  const resizes = config.do_resize ?? true;
  if (resizes && (config.resample ?? BICUBIC) !== BICUBIC) {
    throw new FolderError("feature_extractor/preprocessor_config.json asks for another filter than the bicubic one.");
  }
  const crops = config.do_center_crop ?? true;
  const factor = (config.do_rescale ?? true) ? (config.rescale_factor ?? 1 / 255) : 1;
  const [mean, std] = (config.do_normalize ?? true) ? [config.image_mean, config.image_std] : [[0, 0, 0], [1, 1, 1]];
  return (pixels, width, height) => {
    let image = { width, height, data: withoutAlpha(pixels) };
    if (resizes) image = resized(image, ...newSize(image, config.size));
    if (crops) image = cropped(image, ...pair(config.crop_size));
    const plane = image.width * image.height;
    const data = new Float32Array(3 * plane);
    for (let i = 0; i < data.length; i++) {
      const colour = Math.floor(i / plane);
      data[i] = (Math.fround(image.data[(i % plane) * 3 + colour] * factor) - mean[colour]) / std[colour];
    }
    return { data, dims: [1, 3, image.height, image.width] };
  };
}

function withoutAlpha(pixels) {
  return pixels.filter((_, i) => i % 4 !== 3);
}

function newSize({ width, height }, size) {
  const edge = typeof size === "number" ? size : size.shortest_edge;
  if (edge === undefined) return pair(size).reverse();
  return width <= height ? [edge, Math.floor((edge * height) / width)] : [Math.floor((edge * width) / height), edge];
}

/** Return height and width. */
function pair(size) {
  return typeof size === "number" ? [size, size] : [size.height, size.width];
}

function resized({ width, height, data }, newWidth, newHeight) {
  const across = newWidth === width ? data : filtered(data, height, width, newWidth, [width * 3, 3], [newWidth * 3, 3]);
  if (newHeight === height) return { width: newWidth, height, data: across };
  const row = newWidth * 3;
  return { width: newWidth, height: newHeight, data: filtered(across, newWidth, height, newHeight, [3, row], [3, row]) };
}

/** Filter each of `lines` from `before` pixels to `after`; steps are those from line to line and from pixel to pixel. */
function filtered(data, lines, before, after, [fromLine, fromPixel], [toLine, toPixel]) {
  const found = new Uint8ClampedArray(lines * after * 3);
  for (const [place, { first, weights }] of windows(before, after).entries()) {
    for (let line = 0; line < lines; line++) {
      for (let colour = 0; colour < 3; colour++) {
        const from = line * fromLine + first * fromPixel + colour;
        const sum = weights.reduce((total, weight, i) => total + weight * data[from + i * fromPixel], FRACTION / 2);
        found[line * toLine + place * toPixel + colour] = Math.floor(sum / FRACTION);
      }
    }
  }
  return found;
}

/** Return for each new pixel the first old one that counts, and whole-number weights from there on. */
function windows(before, after) {
  const scale = before / after;
  const stretch = Math.max(scale, 1);
  return Array.from({ length: after }, (_, place) => {
    const centre = (place + 0.5) * scale;
    const first = Math.max(Math.trunc(centre - SUPPORT * stretch + 0.5), 0);
    const end = Math.min(Math.trunc(centre + SUPPORT * stretch + 0.5), before);
    const weights = Array.from({ length: end - first }, (_, i) => bicubic((i + first - centre + 0.5) / stretch));
    const sum = weights.reduce((total, weight) => total + weight, 0);
    return { first, weights: weights.map((weight) => Math.trunc((weight / sum) * FRACTION + (weight < 0 ? -0.5 : 0.5))) };
  });
}

function bicubic(distance) {
  const x = Math.abs(distance);
  if (x < 1) return ((SHARPNESS + 2) * x - (SHARPNESS + 3)) * x * x + 1;
  return x < 2 ? (((x - 5) * x + 8) * x - 4) * SHARPNESS : 0;
}

/** Return the middle of an image; what lies outside of it is black. */
function cropped({ width, height, data }, newHeight, newWidth) {
  const [top, left] = [Math.floor((height - newHeight) / 2), Math.floor((width - newWidth) / 2)];
  const found = new Uint8ClampedArray(newWidth * newHeight * 3);
  for (let y = Math.max(0, -top); y < Math.min(newHeight, height - top); y++) {
    for (let x = Math.max(0, -left); x < Math.min(newWidth, width - left); x++) {
      const from = ((y + top) * width + x + left) * 3;
      found.set(data.subarray(from, from + 3), (y * newWidth + x) * 3);
    }
  }
  return { width: newWidth, height: newHeight, data: found };
}
