// Upscale: a picture enlarged by a network or without one, into the gallery; and the list of upscalers, for Hires fix too.

import { $, make, newest, offer, on, onFiles, option } from "./dom.js";
import { addToGallery } from "./gallery.js";
import { mayStand, whyInvalid } from "./form.js";
import { checkSize, letGo, picked } from "./given.js";
import { t } from "./language.js";
import { announce, problem, shownAt } from "./notices.js";
import { showActions } from "./picture_actions.js";
import { ask, fileOf, query } from "./server.js";
import { view } from "./viewer.js";

/** The picture to enlarge. */
let picture = null;
let result = null;
const choosing = newest();

/** Read what there is, into both lists; what was chosen stays, if it is still there. */
export async function readUpscalers() {
  const found = await ask("/api/upscalers");
  const networks = found.filter((one) => one.network);
  const options = (upscalers) => upscalers.map(({ name }) => option(name));
  offer($("upscale-by"), options([...networks, ...found.filter((one) => !one.network)]));
  offer($("upscaler"), [option("", t`None (Latent)`), ...options(networks)]);
  $("upscale-none").hidden = networks.length > 0;
}

/** Whether the server has an upscaler, such as the one of a recipe. */
export const hasUpscaler = (name) => [...$("upscaler").options].some((option) => option.value === name);

/** Take a picture to enlarge, and show it. */
export async function setUpscale(file) {
  const isNewest = choosing();
  problem($("upscale-problem"), "");
  const chosen = picked(file);
  const image = make("img", { src: chosen.url });
  try {
    await image.decode();
  } catch {
    letGo(chosen);
    return problem($("upscale-problem"), t`${file.name ?? t`The file`} is no picture that this browser reads.`);
  }
  if (!isNewest()) return letGo(chosen);
  letGo(picture);
  picture = { ...chosen, width: image.naturalWidth, height: image.naturalHeight };
  announce(t`Upscale has a picture of ${picture.width} by ${picture.height} pixels.`);
  show();
}

/** Go to Upscale with a picture of the gallery. */
export async function sendToUpscale(chosen) {
  location.hash = "#upscale";
  try {
    await setUpscale(await fileOf(chosen));
    $("upscale-start").focus();
  } catch (error) {
    problem($("upscale-problem"), error);
  }
}

/** Whether what is dropped or pasted is meant for this view. */
export const takesPictures = () => !$("view-upscale").hidden;

function show() {
  $("upscale-picture").hidden = !picture;
  $("upscale-remove").disabled = $("upscale-start").disabled = !picture;
  $("upscale-empty").hidden = Boolean(picture);
  if (picture) $("upscale-picture").src = picture.url;
  const times = Number($("upscale-factor").value);
  $("upscale-size").textContent = picture && times > 0 ? t`${picture.width}×${picture.height} becomes ${Math.round(picture.width * times)}×${Math.round(picture.height * times)}` : "";
}

function remove() {
  letGo(picture);
  picture = null;
  show();
  $("upscale-file").focus();
}

async function start(event) {
  event.preventDefault();
  problem($("upscale-problem"), "");
  if (!picture) return problem($("upscale-problem"), t`Choose a picture first.`);
  if (!mayStand($("upscale-factor"))) return problem($("upscale-problem"), t`Resize: ${whyInvalid($("upscale-factor"))}`);
  const began = Date.now();
  const tell = () => ($("upscale-status").textContent = t`Upscaling… ${Math.round((Date.now() - began) / 1000)} s`);
  const timer = setInterval(tell, 1000);
  tell();
  $("upscale-start").disabled = true;
  try {
    checkSize(picture.blob);
    const address = query("/api/upscale", { upscaler: $("upscale-by").value, factor: $("upscale-factor").value });
    result = await ask(address, { method: "POST", body: picture.blob });
    addToGallery(result);
    $("upscale-result").src = result.url;
    $("upscale-result").alt = t`Upscaled to ${result.width} by ${result.height} pixels`;
    $("upscale-open").hidden = false;
    $("upscaled-actions").hidden = false;
    showActions("upscaled", result, { failed: shownAt("upscale-problem"), before: () => problem($("upscale-problem"), "") });
    $("upscale-status").textContent = t`${result.width}×${result.height}, after ${Math.max(1, Math.round((Date.now() - began) / 1000))} s. It is in the gallery.`;
    announce($("upscale-status").textContent);
  } catch (error) {
    $("upscale-status").textContent = "";
    problem($("upscale-problem"), error);
  } finally {
    clearInterval(timer);
    $("upscale-start").disabled = !picture;
  }
}

/** Forget a result that was deleted. */
export function removeFromUpscale(gone) {
  if (result?.id !== gone.id) return;
  result = null;
  $("upscale-open").hidden = $("upscaled-actions").hidden = true;
  $("upscale-status").textContent = "";
}

export function startUpscale() {
  on("upscale-form", "submit", start);
  onFiles("upscale-file", ([file]) => setUpscale(file));
  on("upscale-remove", "click", remove);
  on("upscale-factor", "input", show);
  on("upscale-open", "click", () => result && view(result));
  show();
}
