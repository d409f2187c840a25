// Pictures that were painted: the one that is shown, the strip of all, and what the browser keeps of them for the next visit.

import { $, inWords, make, markInStrip } from "./dom.js";
import { t } from "./language.js";
import { withRecipe } from "./recipe_file.js";

const NAME = `olivelike pictures ${location.pathname}`;
const RECIPE = "X-Recipe";
const MOST = 100;
const TINY = 128;
const FLAGGED = t`The safety checker flagged this picture, so it is black. Another seed or prompt may do.`;

let pictures = [];
let shown = null;
let kept = Promise.resolve(null);

export const shownPicture = () => shown;
export const allPictures = () => pictures;

/** Return what draws the same picture from the same folder. */
function command({ prompt, negative_prompt: negative, seed, scheduler, steps, guidance_scale: scale, width, height }) {
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const other = scheduler ? ` --scheduler ${quoted(scheduler)}` : "";
  const against = negative ? ` --negative-prompt ${quoted(negative)}` : "";
  const numbers = `--seed ${seed} --steps ${steps} --guidance-scale ${scale} --size ${width}x${height}`;
  return `olivelike generate FOLDER ${quoted(prompt)}${against} ${numbers}${other}`;
}

export function display(picture) {
  shown = picture;
  const { recipe, url, flagged, seconds, note } = picture;
  $("preview").hidden = true;
  $("stage-empty").hidden = true;
  $("stage-picture").hidden = false;
  $("stage-picture").src = url;
  $("stage-picture").alt = recipe.prompt || t`Picture without a prompt`;
  $("stage-picture").classList.toggle("tiny", recipe.width <= TINY);
  $("picture-facts").textContent = [t`Seed ${recipe.seed}`, `${recipe.width}×${recipe.height}`, inWords(seconds)].join(" · ");
  $("picture-facts").classList.toggle("problem", flagged);
  if (flagged) $("picture-facts").append(make("br"), FLAGGED);
  Object.assign($("picture-save"), { href: url, download: `${recipe.seed}.png` });
  $("command").textContent = command(recipe);
  $("command-note").textContent = note;
  $("command-note").hidden = !note;
  $("picture-bar").hidden = false;
  markInStrip(picture);
}

/** Show how the picture will look. */
export function showPreview({ pixels, width, height }) {
  put($("preview"), pixels, width, height);
  for (const id of ["stage-empty", "stage-picture", "picture-bar"]) $(id).hidden = true;
  $("preview").hidden = false;
}

/** Show what was there before a preview. */
export function endPreview() {
  $("preview").hidden = true;
  if (shown) display(shown);
  else $("stage-empty").hidden = false;
}

function put(canvas, pixels, width, height) {
  Object.assign(canvas, { width, height });
  canvas.getContext("2d").putImageData(new ImageData(pixels, width, height), 0, 0);
}

/** Take a picture that is finished: its pixels, the recipe that draws it again, what its file tells, and what else there is to say. */
export async function addPicture(pixels, { recipe, told, flagged, seconds, note }) {
  const canvas = document.createElement("canvas");
  put(canvas, pixels, recipe.width, recipe.height);
  const plain = await new Promise((resolve) => canvas.toBlob(resolve));
  const blob = new Blob(withRecipe(new Uint8Array(await plain.arrayBuffer()), told), { type: plain.type });
  const facts = { id: `${Date.now()}.${recipe.seed}`, recipe, flagged, seconds, note };
  const headers = { "Content-Type": "image/png", [RECIPE]: encodeURIComponent(JSON.stringify(facts)) };
  await (await kept)?.put(address(facts), new Response(blob, { headers })).catch(() => {});
  display(add(facts, blob));
  if (pictures.length > MOST) await removePicture(pictures[0]);
}

const address = ({ id }) => new URL(`pictures/${id}`, location.href);

function add(facts, blob) {
  const picture = { ...facts, bytes: blob.size, url: URL.createObjectURL(blob) };
  const label = `${picture.recipe.prompt || t`Picture without a prompt`}, ${t`Seed ${picture.recipe.seed}`}`;
  const { url: src, recipe } = picture;
  const image = make("img", { src, alt: label, className: recipe.width <= TINY ? "tiny" : "" });
  const button = make("button", { type: "button", className: "thumbnail", title: label, on: { click: () => display(picture) } }, image);
  pictures.push(picture);
  $("strip").append(make("li", { data: { picture: picture.id } }, button));
  $("strip").hidden = pictures.length < 2;
  return picture;
}

export async function removePicture(picture) {
  pictures = pictures.filter((one) => one !== picture);
  $("strip").querySelector(`[data-picture="${CSS.escape(picture.id)}"]`)?.remove();
  $("strip").hidden = pictures.length < 2;
  await (await kept)?.delete(address(picture));
  URL.revokeObjectURL(picture.url);
  if (shown !== picture) return;
  shown = pictures.at(-1) ?? null;
  if (shown) return display(shown);
  for (const id of ["stage-picture", "picture-bar"]) $(id).hidden = true;
  $("stage-empty").hidden = false;
}

/** Show what the browser has kept, on pages that it keeps anything for. */
export async function readPictures() {
  if (!globalThis.caches) return;
  kept = caches.open(NAME).catch(() => null);
  const cache = await kept;
  for (const request of (await cache?.keys()) ?? []) {
    const answer = await cache.match(request);
    try {
      add(JSON.parse(decodeURIComponent(answer.headers.get(RECIPE))), await answer.blob());
    } catch {
      await cache.delete(request); // An earlier edition of the page may have kept it otherwise.
    }
  }
  if (pictures.length) display(pictures.at(-1));
}
